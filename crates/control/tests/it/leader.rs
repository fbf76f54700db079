//! Several control planes over one store: one leads, and another takes over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::rest::{Control as _, Remote};
use control::{Config, Service};
use model::ProblemKind;
use store::contract::{Store, SystemClock};
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
