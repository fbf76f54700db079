//! Several control planes over one store: one leads, and another takes over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::rest::{Control as _, Remote};
use control::{Config, Service};
use futures::future::BoxFuture;
use model::ProblemKind;
use store::contract::{
    LeaseError, LeaseId, Page, Query, ReadError, Revision, Store, SystemClock, Txn, TxnOutcome,
    Watch, WatchFrom, WriteError,
};
use store::testing::MemoryStore;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A control plane that is told to stop when dropped.
pub(crate) struct Running {
    pub(crate) remote: Remote,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

impl Running {
    /// Tells it to stop, and waits for its end.
    pub(crate) async fn end(self) {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap();
    }
}

pub(crate) async fn start(store: &MemoryStore) -> Running {
    let config = Config::plain(SocketAddr::from(([127, 0, 0, 1], 0)));
    let store: Arc<dyn Store> = Arc::new(store.clone());
    let service = Service::bind(&config, store).await.unwrap();
    let address = service.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let ended = tokio::spawn(service.run(async move {
        let _ = stopped.await;
    }));
    Running { remote: Remote::plain(address.to_string().parse().unwrap()).unwrap(), stop, ended }
}

pub(crate) async fn until_it_leads(running: &Running) {
    while running.remote.status().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn one_leads_and_when_it_stops_another_does() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let first = start(&store).await;
    until_it_leads(&first).await;
    let second = start(&store).await;
    let status = first.remote.status().await.unwrap();
    assert!(status.leader.here);
    let refused = second.remote.status().await.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::Unavailable);
    assert!(refused.detail.contains("lead"), "{}", refused.detail);
    // Both are well, one of them is to be asked, and each says who that is.
    for (running, leads) in [(&first, true), (&second, false)] {
        assert!(running.remote.live().await.is_ok());
        let health = running.remote.health().await.unwrap();
        assert_eq!((health.leader.here, &health.leader.name), (leads, &status.leader.name));
        match running.remote.ready().await {
            Ok(ready) => assert!(leads && ready.leader.here),
            Err(problem) => assert!(!leads && problem.kind.http() == 503, "{problem:?}"),
        }
    }
    first.end().await;
    until_it_leads(&second).await;
    assert_ne!(second.remote.status().await.unwrap().leader.name, status.leader.name);
}

/// Who leads, once all say the same.
async fn agreed(all: &[Running]) -> String {
    loop {
        let mut said = Vec::new();
        for running in all {
            said.push(running.remote.health().await.unwrap().leader);
        }
        let name = said.iter().find(|it| it.here).and_then(|it| it.name.clone());
        match name {
            Some(name) if said.iter().all(|it| it.name.as_ref() == Some(&name)) => return name,
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

#[tokio::test]
async fn those_who_wait_know_each_who_leads() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let mut all = vec![start(&store).await];
    until_it_leads(&all[0]).await;
    all.extend([start(&store).await, start(&store).await]);
    while all.len() > 1 {
        let name = tokio::time::timeout(Duration::from_secs(30), agreed(&all)).await;
        let name = name.expect("those who wait do not know who leads");
        let mut leading = None;
        for (nth, running) in all.iter().enumerate() {
            match running.remote.status().await {
                Ok(_) => leading = Some(nth),
                Err(refused) => assert!(refused.detail.contains(&name), "{refused:?}"),
            }
        }
        all.swap_remove(leading.unwrap()).end().await;
    }
}

/// A control plane that cannot lead any more, for a bug, ends and says so: nobody takes it for one
/// that leads.
#[tokio::test]
async fn a_panic_of_what_leads_ends_the_service() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let config = Config::plain(SocketAddr::from(([127, 0, 0, 1], 0)));
    let service = Service::bind(&config, Arc::new(Panics(store))).await.unwrap();
    let running = tokio::spawn(service.run(std::future::pending()));
    let ended = tokio::time::timeout(Duration::from_secs(20), running).await;
    assert!(ended.expect("it goes on").unwrap_err().is_panic());
}

/// A store of which the first read panics.
struct Panics(MemoryStore);

impl Store for Panics {
    fn range(&self, query: Query) -> BoxFuture<'_, Result<Page, ReadError>> {
        panic!("as the test wants: {query:?}")
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, WriteError>> {
        self.0.txn(txn)
    }

    fn watch(&self, from: WatchFrom) -> Watch {
        self.0.watch(from)
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<(LeaseId, Duration), LeaseError>> {
        self.0.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, LeaseError>> {
        self.0.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), LeaseError>> {
        self.0.revoke(lease)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), WriteError>> {
        self.0.compact(revision)
    }
}
