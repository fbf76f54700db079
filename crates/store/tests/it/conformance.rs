//! The suites, against what can be had without a process of its own.

use std::sync::Arc;

use store::client::{Client, Options};
use store::contract::{Store, SystemClock};
use store::server::{Config, Server};
use store::testing::MemoryStore;
use store::testing::conformance::{CONTRACT, Checked, WIRE};

fn report(failed: &mut Vec<String>, name: &str, result: Checked) {
    if let Err(failure) = result {
        let cause = std::error::Error::source(&failure).map(ToString::to_string);
        failed.push(format!("{name}: {failure} {}", cause.unwrap_or_default()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_memory_keeps_the_contract() {
    let mut failed = Vec::new();
    for case in CONTRACT {
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
        report(&mut failed, case.name, case.run(store).await);
    }
    assert_eq!(failed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config::new(dir.path().join("store"), "127.0.0.1:0".parse().unwrap());
    let server = Server::open(config).unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    let mut failed = Vec::new();
    for case in WIRE {
        report(&mut failed, case.name, case.run(&endpoint).await);
    }
    let client: Arc<dyn Store> =
        Arc::new(Client::connect(&[&endpoint], Options::default()).await.unwrap());
    for case in CONTRACT {
        report(&mut failed, case.name, case.run(Arc::clone(&client)).await);
    }
    drop(client);
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert_eq!(failed, Vec::<String>::new());
}
