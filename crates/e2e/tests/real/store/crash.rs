//! `kill -9` in a storm of writes.

use std::sync::Arc;

use e2e::store::{Kind, StoreServer};
use store::contract::{Op, Query, Revision, Store as _, StoreExt as _, Txn};
use tokio::sync::mpsc;

const WRITERS: usize = 8;

/// What a writer was told.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    number: u64,
    revision: Revision,
}

/// Counts up in two keys at once until the server is gone; the last acknowledged is what it
/// returns.
async fn write(
    store: store::client::Client,
    writer: usize,
    from: u64,
    told: mpsc::UnboundedSender<()>,
) -> Acknowledged {
    let mut last = Acknowledged::default();
    for number in from.. {
        let value = number.to_string();
        let pair = Txn::new()
            .then(Op::put(format!("storm/{writer}/a"), value.clone()))
            .then(Op::put(format!("storm/{writer}/b"), value));
        match store.txn(pair).await {
            Ok(outcome) => last = Acknowledged { number, revision: outcome.revision },
            Err(_) => return last,
        }
        let _ = told.send(());
    }
    last
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

/// After a crash: every acknowledged pair, whole, at its revision; later ones whole or not at all.
async fn check(store: &store::client::Client, writer: usize, told: Acknowledged) -> u64 {
    let pair = store.range(Query::prefix(format!("storm/{writer}/"))).await.unwrap();
    let [a, b] = pair.kvs.as_slice() else { panic!("half a pair: {pair:?}") };
    assert_eq!(a.value, b.value, "half a transaction");
    assert_eq!(a.changed, b.changed, "half a transaction");
    assert!(number(&a.value) >= told.number, "lost {told:?}, found {a:?}");
    assert!(pair.revision >= told.revision, "revisions went back");
    if told.number > 0 {
        let then = store.range(Query::prefix(format!("storm/{writer}/")).at(told.revision)).await;
        let kvs = then.unwrap().kvs;
        let values: Vec<u64> = kvs.iter().map(|kv| number(&kv.value)).collect();
        assert_eq!(values, [told.number; 2], "another past at {}", told.revision);
    }
    number(&a.value)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost() {
    let mut server = StoreServer::start(Kind::Embedded).unwrap();
    let store = server.client().await.unwrap();
    for writer in 0..WRITERS {
        let pair = Txn::new()
            .then(Op::put(format!("storm/{writer}/a"), "0"))
            .then(Op::put(format!("storm/{writer}/b"), "0"));
        store.txn(pair).await.unwrap();
    }
    let mut next = [1; WRITERS];
    let mut newest = Revision::ZERO;
    for round in 0..5 {
        let (told, mut heard) = mpsc::unbounded_channel();
        let mut writers = Vec::new();
        for (writer, from) in next.into_iter().enumerate() {
            let store = server.client().await.unwrap();
            writers.push(tokio::spawn(write(store, writer, from, told.clone())));
        }
        drop(told);
        for _ in 0..200 + round * 37 {
            heard.recv().await.unwrap();
        }
        server.program().kill().unwrap();
        let mut last = Vec::new();
        for writer in writers {
            last.push(writer.await.unwrap());
        }
        server.restart().unwrap();
        let store = server.client().await.unwrap();
        let now = store.status().await.unwrap().revision;
        assert!(now >= newest, "revisions went back from {newest} to {now}");
        for (writer, told) in last.into_iter().enumerate() {
            next[writer] = check(&store, writer, told).await + 1;
        }
        newest = store.put("storm/after", round.to_string()).await.unwrap();
        assert!(newest > now);
    }
}

/// A server that dies while another is told to start finds its folder free again.
#[tokio::test(flavor = "multi_thread")]
async fn leases_and_watches_survive_a_crash() {
    let mut server = StoreServer::start(Kind::Embedded).unwrap();
    let store = Arc::new(server.client().await.unwrap());
    let (lease, _) = store.grant(std::time::Duration::from_mins(10)).await.unwrap();
    store.put_leased("leased", "1", lease).await.unwrap();
    server.program().kill().unwrap();
    server.restart().unwrap();
    server.client().await.unwrap();
    assert_eq!(store.get("leased").await.unwrap().unwrap().lease, Some(lease));
    store.keep_alive(lease).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(store.get("leased").await.unwrap(), None);
}
