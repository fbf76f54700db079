//! `holdfast store export` and `import`, between the two servers.

use std::path::Path;
use std::process::Output;

use e2e::process::holdfast;
use e2e::store::{Kind, StoreServer};
use store::contract::{Keys, Op, Query, Store as _, StoreExt as _, Txn};

fn run(verb: &str, server: &StoreServer, file: &Path) -> Output {
    let mut command = holdfast().unwrap();
    command.args(["store", verb, "--endpoints", &server.endpoint()]).arg(file);
    command.output().unwrap()
}

fn must(verb: &str, server: &StoreServer, file: &Path) {
    let output = run(verb, server, file);
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
}

/// It must fail, with one sentence that has these words.
fn must_not(verb: &str, server: &StoreServer, file: &Path, words: &str) {
    let output = run(verb, server, file);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{verb} succeeded: {said}");
    assert!(said.contains(words) && said.trim().lines().count() == 1, "{said}");
}

async fn fill(server: &StoreServer) {
    let store = server.client().await.unwrap();
    for number in 0..500u32 {
        let key = format!("k/{}", number.wrapping_mul(2_654_435_761));
        store.put(key, number.to_string().repeat(50)).await.unwrap();
    }
    let several = (0..50).fold(Txn::new(), |txn, n| txn.then(Op::put(format!("t/{}", 99 - n), "")));
    store.txn(several).await.unwrap();
    store.put(vec![0, 255, 10], vec![0; 1_000_000]).await.unwrap();
    store.put("k/gone", "1").await.unwrap();
    store.delete(Keys::one("k/gone")).await.unwrap();
    let (lease, _) = store.grant(std::time::Duration::from_secs(600)).await.unwrap();
    store.put_leased("lock", "me", lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn there_and_back_is_byte_identical() {
    for (first, second) in [(Kind::Embedded, Kind::Etcd), (Kind::Etcd, Kind::Embedded)] {
        let dir = tempfile::tempdir().unwrap();
        let files = [1, 2, 3].map(|n| dir.path().join(format!("export-{n}")));
        let servers = [first, second, first].map(|kind| StoreServer::start(kind).unwrap());
        for server in &servers {
            server.client().await.unwrap();
        }
        fill(&servers[0]).await;
        must("export", &servers[0], &files[0]);
        must("import", &servers[1], &files[0]);
        must("export", &servers[1], &files[1]);
        must("import", &servers[2], &files[1]);
        must("export", &servers[2], &files[2]);
        let bytes = files.map(|file| std::fs::read(file).unwrap());
        assert!(bytes[0].len() > 1_000_000);
        assert!(bytes[0] == bytes[1], "{first:?} to {second:?}");
        assert!(bytes[1] == bytes[2], "{second:?} to {first:?}");
        let store = servers[2].client().await.unwrap();
        let count = store.range(Query::keys(Keys::ALL).count_only()).await.unwrap().count;
        assert_eq!(count, 551, "the leased and the deleted key are left out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_and_full_stores_are_refused_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("export");
    let source = StoreServer::start(Kind::Embedded).unwrap();
    fill(&source).await;
    must("export", &source, &file);
    must_not("export", &source, &file, "exists");
    must_not("import", &source, &file, "already holds 552 keys");
    let target = StoreServer::start(Kind::Embedded).unwrap();
    let store = target.client().await.unwrap();
    let whole = std::fs::read(&file).unwrap();
    let bad = dir.path().join("bad");
    std::fs::write(&bad, &whole[..whole.len() / 2]).unwrap();
    must_not("import", &target, &bad, "cut off");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    std::fs::write(&bad, flipped).unwrap();
    must_not("import", &target, &bad, "damaged");
    std::fs::write(&bad, "something else").unwrap();
    must_not("import", &target, &bad, "not a store export");
    must_not("import", &target, &dir.path().join("missing"), "missing");
    let page = store.range(Query::keys(Keys::ALL).count_only()).await.unwrap();
    assert_eq!((page.count, page.revision.0), (0, 1), "nothing was written");
    must("import", &target, &file);
}
