//! `holdfast store serve` with what it cannot use: one clear sentence, nothing touched.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use e2e::process::holdfast;
use e2e::store::{Kind, StoreServer, free_port};

/// Runs `store serve` with these words; it must end by itself. Returns what it said.
fn refused(words: &[&str]) -> String {
    let output = holdfast().unwrap().args(["store", "serve"]).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it ran: {said}");
    assert!(output.stdout.is_empty(), "errors go to standard error");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// The same, and it must be one sentence that names each of `named`.
fn refused_naming(words: &[&str], named: &[&str]) {
    let said = refused(words);
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    for name in named {
        assert!(said.contains(name), "{name:?} is not named in {said}");
    }
}

fn listing(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn unknown_flags_and_values_are_named() {
    assert!(refused(&["--dir", "x", "--lisen", "127.0.0.1:1"]).contains("--lisen"));
    assert!(refused(&["--dir", "x", "--listen", "nowhere"]).contains("nowhere"));
    assert!(refused(&[]).contains("--dir"));
    assert!(!Path::new("x").exists());
}

#[test]
fn a_folder_that_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let below = file.join("store");
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    for path in [&file, &below] {
        let path = path.to_str().unwrap();
        refused_naming(&["--dir", path, "--listen", &listen], &[path]);
    }
    assert_eq!(listing(dir.path()), [("file".to_owned(), b"precious".to_vec())]);
}

#[test]
fn a_port_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let path = dir.path().join("store");
    refused_naming(&["--dir", path.to_str().unwrap(), "--listen", &address], &[&address]);
    assert!(!path.exists(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_folder() {
    let server = StoreServer::start(Kind::Embedded).unwrap();
    server.client().await.unwrap();
    let path = server.dir().join("store");
    let path = path.to_str().unwrap();
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    refused_naming(&["--dir", path, "--listen", &listen], &[path]);
    server.client().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_a_newer_version() {
    let mut server = StoreServer::start(Kind::Embedded).unwrap();
    server.client().await.unwrap();
    server.program().stop().unwrap();
    let folder = server.dir().join("store");
    let journal = folder.join("store.journal");
    // docs/format/store.md: the version stands at byte 8, and is looked at before all else.
    let mut bytes = fs::read(&journal).unwrap();
    bytes[8..12].copy_from_slice(&99u32.to_le_bytes());
    fs::write(&journal, bytes).unwrap();
    let before = listing(&folder);
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let path = folder.to_str().unwrap();
    refused_naming(&["--dir", path, "--listen", &listen], &[path, "newer"]);
    assert!(listing(&folder) == before, "nothing was touched");
}
