//! Concurrent histories, also across crashes.

use std::sync::Arc;

use e2e::store::{Kind, StoreServer};
use futures::StreamExt as _;
use store::contract::{Keys, Revision, Store, WatchFrom};
use store::testing::linear::{Outcome, Workload, check, run};

async fn linear(kind: Kind, crashes: u32, seed: u64) {
    let mut server = StoreServer::start(kind).unwrap();
    let mut clients: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..6 {
        clients.push(Arc::new(server.client().await.unwrap()));
    }
    let watcher = server.client().await.unwrap();
    let mut changes = watcher.watch(WatchFrom::new(Keys::prefix("linear/"), Revision(1)));
    let workload = Workload { prefix: "linear/".into(), keys: 4, calls: 150, seed };
    let mut history = tokio::spawn(async move { run(clients, &workload).await });
    for _ in 0..crashes {
        let mut seen = 0;
        while seen < 40 && !history.is_finished() {
            // Whichever comes first: enough was written, or everything is.
            tokio::select! {
                news = changes.next() => seen += news.unwrap().unwrap().changes.len(),
                () = async { while !history.is_finished() { tokio::task::yield_now().await } } => {}
            }
        }
        server.program().kill().unwrap();
        server.restart().unwrap();
    }
    let history = (&mut history).await.unwrap();
    let unknown = history.iter().filter(|call| call.outcome == Outcome::Unknown).count();
    assert!(history.len() > 600, "only {} calls", history.len());
    assert!(unknown < history.len() / 4, "{unknown} of {} calls unknown", history.len());
    check(&history).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_linear() {
    linear(Kind::Etcd, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_server_is_linear() {
    linear(Kind::Embedded, 0, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_is_linear_across_crashes() {
    linear(Kind::Etcd, 2, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_server_is_linear_across_crashes() {
    linear(Kind::Embedded, 3, 2).await;
}
