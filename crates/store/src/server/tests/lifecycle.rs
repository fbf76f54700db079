//! Opening, and every reason not to.

use std::{error::Error, fs, net::TcpListener, path::Path};

use tempfile::tempdir;

use crate::{
    proto::etcdserverpb::{
        PutRequest, RangeRequest, SnapshotRequest, kv_client::KvClient,
        maintenance_client::MaintenanceClient,
    },
    server::{Config, OpenError, Server, Tls, journal::NAME},
};

fn config(dir: &Path) -> Config {
    Config::new(dir.to_owned(), "127.0.0.1:0".parse().unwrap())
}

fn refusal(config: Config) -> OpenError {
    Server::open(config).err().unwrap()
}

/// Serves while the client does its work, then stops in order.
async fn serve<T>(server: Server, client: impl AsyncFnOnce(String) -> T) -> T {
    let address = format!("http://{}", server.local_addr());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async { drop(stopped.await) }));
    let done = client(address).await;
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    done
}

async fn put(address: String, value: &'static str) {
    let mut client = KvClient::connect(address).await.unwrap();
    let (key, value) = ("k".into(), value.into());
    client.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
}

async fn get(address: String) -> Vec<u8> {
    let mut client = KvClient::connect(address).await.unwrap();
    let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
    client.range(request).await.unwrap().into_inner().kvs[0].value.to_vec()
}

#[tokio::test]
async fn a_store_is_there_after_a_restart() {
    let dir = tempdir().unwrap();
    let inner = dir.path().join("made");
    serve(Server::open(config(&inner)).unwrap(), async |a| put(a, "v").await).await;
    let value = serve(Server::open(config(&inner)).unwrap(), get).await;
    assert_eq!(value, b"v");
}

#[tokio::test]
async fn a_copy_can_be_put_in_place() {
    let (from, to) = (tempdir().unwrap(), tempdir().unwrap());
    let bytes = serve(Server::open(config(from.path())).unwrap(), async |address| {
        put(address.clone(), "copied").await;
        let mut client = MaintenanceClient::connect(address).await.unwrap();
        let mut stream = client.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = stream.message().await.unwrap() {
            bytes.extend(piece.blob);
        }
        bytes
    })
    .await;
    assert_eq!(bytes.len() % 512, 32, "what clients take for a copy with a checksum");
    fs::write(to.path().join(NAME), bytes).unwrap();
    let value = serve(Server::open(config(to.path())).unwrap(), get).await;
    assert_eq!(value, b"copied");
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_made() {
    let dir = tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let inner = dir.path().join("made");
    let error = refusal(Config { listen, ..config(&inner) });
    assert!(error.to_string().contains(&listen.to_string()), "{error}");
    assert!(error.source().is_some());
    assert!(!inner.exists());
}

#[test]
fn two_servers_do_not_share_a_folder() {
    let dir = tempdir().unwrap();
    let first = Server::open(config(dir.path())).unwrap();
    let error = refusal(config(dir.path()));
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    drop(first);
    Server::open(config(dir.path())).unwrap();
}

#[test]
fn a_folder_that_is_none_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = refusal(config(file.path()));
    assert!(matches!(error, OpenError::Folder { .. }), "{error}");
    assert!(error.to_string().contains(&file.path().display().to_string()));
}

#[test]
fn a_journal_of_a_newer_version_is_left_alone() {
    let dir = tempdir().unwrap();
    drop(Server::open(config(dir.path())).unwrap());
    let path = dir.path().join(NAME);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 9;
    fs::write(&path, &bytes).unwrap();
    let error = refusal(config(dir.path()));
    assert!(matches!(error, OpenError::Newer { found: 9, known: 3, .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[tokio::test]
async fn a_journal_of_the_format_before_is_read_and_written_anew() {
    let dir = tempdir().unwrap();
    serve(Server::open(config(dir.path())).unwrap(), async |a| put(a, "old").await).await;
    let path = dir.path().join(NAME);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let sum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let value = serve(Server::open(config(dir.path())).unwrap(), get).await;
    assert_eq!(value, b"old");
    assert_eq!(fs::read(&path).unwrap()[8], 3, "entries of this format may follow");
}

#[test]
fn a_damaged_journal_is_left_alone() {
    let dir = tempdir().unwrap();
    drop(Server::open(config(dir.path())).unwrap());
    let path = dir.path().join(NAME);
    for damage in [0, 20, 64, 90] {
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        bytes[damage] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = refusal(config(dir.path()));
        assert!(matches!(error, OpenError::Damaged { .. }), "at {damage}: {error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        fs::write(&path, &whole).unwrap();
    }
    fs::write(&path, b"short").unwrap();
    assert!(matches!(refusal(config(dir.path())), OpenError::Damaged { .. }));
}

#[test]
fn certificates_that_are_none_are_refused() {
    let dir = tempdir().unwrap();
    let tls = Tls { certificate: "no".to_owned(), key: "no".to_owned(), client_ca: None };
    let inner = dir.path().join("made");
    let error = refusal(Config { tls: Some(tls), ..config(&inner) });
    assert!(matches!(error, OpenError::Tls(_)), "{error}");
    assert!(!inner.exists());
}
