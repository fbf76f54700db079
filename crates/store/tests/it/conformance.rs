//! The suites, against what can be had without a process of its own.

use std::sync::Arc;

use store::contract::{Store, SystemClock};
use store::testing::MemoryStore;
use store::testing::conformance::{CONTRACT, Checked, WIRE};
use store::testing::linear::{self, Workload};

use crate::embedded::Embedded;

fn report(failed: &mut Vec<String>, name: &str, result: Checked) {
    if let Err(failure) = result {
        let cause = std::error::Error::source(&failure).map(ToString::to_string);
        failed.push(format!("{name}: {failure} {}", cause.unwrap_or_default()));
    }
}

fn memory() -> MemoryStore {
    MemoryStore::new(Arc::new(SystemClock::new()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_memory_keeps_the_contract() {
    let mut failed = Vec::new();
    for case in CONTRACT {
        report(&mut failed, case.name, case.run(Arc::new(memory())).await);
    }
    assert_eq!(failed, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Embedded::start(dir.path().join("store"));
    let mut failed = Vec::new();
    for case in WIRE {
        report(&mut failed, case.name, case.run(&server.endpoint()).await);
    }
    let client: Arc<dyn Store> = Arc::new(server.client());
    for case in CONTRACT {
        report(&mut failed, case.name, case.run(Arc::clone(&client)).await);
    }
    drop(client);
    server.stop().await;
    assert_eq!(failed, Vec::<String>::new());
}

async fn histories_are_linear(clients: Vec<Arc<dyn Store>>) {
    let calls = 100;
    let expected = clients.len() * 100;
    let workload = Workload { prefix: "linear/".into(), keys: 3, calls, seed: 1 };
    let history = linear::run(clients, &workload).await;
    assert_eq!(history.len(), expected);
    linear::check(&history).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_the_store_in_memory_are_linear() {
    let store: Arc<dyn Store> = Arc::new(memory());
    histories_are_linear(vec![store; 8]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_the_embedded_server_are_linear() {
    let dir = tempfile::tempdir().unwrap();
    let server = Embedded::start(dir.path().join("store"));
    let client = || Arc::new(server.client()) as Arc<dyn Store>;
    histories_are_linear((0..8).map(|_| client()).collect()).await;
}
