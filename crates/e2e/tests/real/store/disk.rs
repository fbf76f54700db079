//! A disk that is full, and a file that is damaged.

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::process::{Program, holdfast};
use e2e::store::{Kind, StoreServer, command, free_port};
use store::client::{Client, Options};
use store::contract::{ErrorClass, Query, Store as _, StoreExt as _};

/// A small disk of its own, where one may mount; else a limit on the size of files.
enum Small<'a> {
    Mounted(&'a Path),
    Limited,
}

impl Small<'_> {
    fn new(dir: &Path) -> Small<'_> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(dir)
            .output()
            .is_ok_and(|output| output.status.success());
        if mounted { Small::Mounted(dir) } else { Small::Limited }
    }

    /// The command, with the limit on it if there is no disk of its own.
    /// `blocks` are of 512 bytes.
    fn limit(&self, plain: Command, blocks: u32) -> Command {
        match self {
            Small::Mounted(_) => plain,
            Small::Limited => {
                let mut limited = Command::new("sh");
                // Without the signal a write beyond the limit fails as on a full disk.
                let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\"");
                limited.args(["-c", &script, "sh"]);
                limited.arg(plain.get_program()).args(plain.get_args());
                limited
            }
        }
    }

    fn grow(&self) {
        if let Small::Mounted(dir) = self {
            let grown = Command::new("mount").args(["-o", "remount,size=64m"]).arg(dir).status();
            assert!(grown.unwrap().success());
        }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        if let Small::Mounted(dir) = self {
            // Lazily: the server may still be ending.
            let _ = Command::new("umount").arg("-l").arg(dir).status();
        }
    }
}

async fn connect(port: u16) -> Client {
    let patient = Options { deadline: e2e::process::PATIENCE, ..Options::default() };
    let endpoint = format!("http://127.0.0.1:{port}");
    Client::connect(&[&endpoint], patient).await.unwrap();
    Client::lazy(&[endpoint], Options::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(dir.path());
    let port = free_port().unwrap();
    let plain = || command(Kind::Embedded, dir.path(), port).unwrap();
    let mut program = Program::start(&mut small.limit(plain(), 16384)).unwrap();
    let store = connect(port).await;
    let mut acknowledged = 0u32;
    let refusal = loop {
        match store.put(format!("full/{acknowledged:05}"), vec![b'x'; 100_000]).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1000, "the disk never filled");
    };
    assert!(acknowledged > 10);
    assert_ne!(refusal.class(), ErrorClass::Caller, "{refusal}");
    let seen = store.range(Query::prefix("full/").count_only()).await.unwrap().count;
    assert!(seen >= acknowledged.into(), "reads go on");
    program.kill().unwrap();
    small.grow();
    let _program = Program::start(&mut plain()).unwrap();
    let store = connect(port).await;
    for number in 0..acknowledged {
        let kv = store.get(format!("full/{number:05}")).await.unwrap();
        assert_eq!(kv.map(|kv| kv.value.len()), Some(100_000), "key {number} was acknowledged");
    }
    store.put("full/again", "1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_store_on_a_full_disk_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let small = Small::new(dir.path());
    if let Small::Mounted(dir) = small {
        let filled = fs::write(dir.join("filler"), vec![1; 9 << 20]);
        assert!(filled.is_err(), "the disk is not full");
    }
    let port = free_port().unwrap();
    let mut command = small.limit(command(Kind::Embedded, dir.path(), port).unwrap(), 0);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it started: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_named_and_left_alone() {
    let mut server = StoreServer::start(Kind::Embedded).unwrap();
    let store = server.client().await.unwrap();
    for number in 0..200 {
        store.put(format!("k/{number}"), "some value").await.unwrap();
    }
    server.program().stop().unwrap();
    let journal = server.dir().join("store/store.journal");
    let whole = fs::read(&journal).unwrap();
    let used = whole.iter().rposition(|&byte| byte != 0).unwrap();
    for at in [20, used / 4, used / 2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x40;
        fs::write(&journal, &damaged).unwrap();
        let mut serve = holdfast().unwrap();
        serve.args(["store", "serve", "--dir"]).arg(server.dir().join("store"));
        serve.args(["--listen", &format!("127.0.0.1:{}", free_port().unwrap())]);
        let output = serve.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "byte {at}: it started: {said}");
        assert!(said.contains("damaged") && said.contains("store.journal"), "byte {at}: {said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
        assert!(fs::read(&journal).unwrap() == damaged, "byte {at}: the file was touched");
    }
    fs::write(&journal, &whole).unwrap();
    server.restart().unwrap();
    let store = server.client().await.unwrap();
    assert_eq!(store.range(Query::prefix("k/").count_only()).await.unwrap().count, 200);
}
