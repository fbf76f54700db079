//! Calls to engines: a few at a time to each node, each with a deadline, so that a node that does
//! not answer holds up nobody but itself.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::node::{GenerationQuery, Node as _, Remote};
use api::{Client, ClientConfig, Page, Paging};
use model::{NodeName, Problem, ProblemKind};
use tokio::sync::Semaphore;

use crate::controller::{Call, CallResponse, Inventory};

/// How many orders one node carries out at a time.
const AT_A_TIME: usize = 16;
/// How many more may wait.
const MOST_WAITING: usize = 1024;
/// How long an engine may take to carry out an order.
const ORDER: Duration = Duration::from_secs(30);
/// How long it may take to say what it has, page by page.
const PAGE: Duration = Duration::from_secs(10);

/// How often an engine whose connection broke off is looked for, and how long each time: it may
/// only have cut a connection.
const LOOKS: u32 = 3;
const LOOK: Duration = Duration::from_millis(100);

/// How engines are reached.
#[derive(Clone, Debug, Default)]
pub struct EngineAuth {
    /// Whom to believe; absent: engines are called without TLS.
    pub tls: Option<api::TlsClient>,
    /// What to show them; absent: nothing.
    pub token: Option<api::Token>,
}

/// One engine, as it is called.
#[derive(Clone)]
pub(crate) struct EngineClient {
    address: SocketAddr,
    remote: Remote,
    orders: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Whether somebody listens to its events.
    heard: Arc<AtomicBool>,
    /// The last of its events that was read.
    place: Arc<Mutex<Option<String>>>,
}

/// All engines, as they are called.
#[derive(Default)]
pub(crate) struct EngineClients {
    reach: EngineAuth,
    known: BTreeMap<NodeName, EngineClient>,
}

impl EngineClients {
    pub(crate) fn new(reach: EngineAuth) -> EngineClients {
        EngineClients { reach, known: BTreeMap::new() }
    }

    /// The engine of a node at this address.
    pub(crate) fn get(
        &mut self,
        node: &NodeName,
        address: SocketAddr,
    ) -> Result<EngineClient, Problem> {
        if let Some(caller) = self.known.get(node).filter(|caller| caller.address == address) {
            return Ok(caller.clone());
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let detail = format!("node {node} cannot be called at {address}: {error}");
            Problem::new(ProblemKind::NodeUnavailable, detail)
        };
        let server = address.to_string().parse().map_err(|error| wrong(&error))?;
        let config = ClientConfig {
            tls: self.reach.tls.clone(),
            token: self.reach.token.clone(),
            patience: ORDER,
            ..ClientConfig::plain(server)
        };
        let remote = Remote::new(Client::new(config).map_err(|error| wrong(&error))?);
        let orders = Arc::new(Semaphore::new(AT_A_TIME));
        let waiting = Arc::new(Semaphore::new(MOST_WAITING));
        let heard = Arc::new(AtomicBool::new(false));
        let place = Arc::default();
        let caller = EngineClient { address, remote, orders, waiting, heard, place };
        self.known.insert(node.clone(), caller.clone());
        Ok(caller)
    }

    /// How far events were read is to be found out anew.
    pub(crate) fn forget_places(&self) {
        for client in self.known.values() {
            *client.place.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// That somebody listens to the events of an engine, as long as it is kept.
pub(crate) struct Subscription(EngineClient);

impl Subscription {
    pub(crate) fn engine(&self) -> &EngineClient {
        &self.0
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.heard.store(false, Ordering::Release);
    }
}

impl EngineClient {
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    /// If nobody listens to its events yet: the caller does from now on.
    pub(crate) fn subscribe(&self) -> Option<Subscription> {
        let is_heard = self.heard.swap(true, Ordering::AcqRel);
        (!is_heard).then(|| Subscription(self.clone()))
    }

    /// The last of its events that was read, for whoever listens next.
    pub(crate) fn place(&self) -> Option<String> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its events were read up to here.
    pub(crate) fn reach(&self, place: &str) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place.to_owned());
    }

    /// Whether the machine of the engine answers that nobody listens there, again and again.
    pub(crate) async fn is_refused(&self) -> bool {
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            let looked = tokio::net::TcpStream::connect(self.address);
            match tokio::time::timeout(LOOK, looked).await {
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                _ => return false,
            }
        }
        true
    }

    /// Asks the engine.
    pub(crate) async fn call(&self, call: Call) -> Result<CallResponse, Problem> {
        if call == Call::List {
            return self.list().await;
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            let detail = "too many orders wait for this node";
            return Err(Problem::new(ProblemKind::Overloaded, detail));
        };
        let work = async {
            // Nobody closes it.
            let _turn = self.orders.acquire().await;
            self.order(call).await
        };
        within(ORDER, work).await
    }

    async fn order(&self, call: Call) -> Result<CallResponse, Problem> {
        let remote = &self.remote;
        Ok(match call {
            Call::List => self.list().await?,
            Call::PutPool(name, order) => {
                CallResponse::Pool(Box::new(remote.put_pool(name, order).await?.now))
            }
            Call::DeletePool(name, order) => {
                remote.delete_pool(name, order).await?;
                CallResponse::Gone
            }
            Call::PutReplica(id, order) => {
                CallResponse::Replica(Box::new(remote.put_replica(id, order).await?.now))
            }
            Call::DeleteReplica(id, order) => {
                remote.delete_replica(id, order).await?;
                CallResponse::Gone
            }
            Call::PutSpecBackup(id, spec_backup) => {
                remote.put_spec_backup(id, spec_backup).await?;
                CallResponse::SpecBackup
            }
            Call::PutTarget(id, order) => {
                CallResponse::Target(Box::new(remote.put_target(id, order).await?.now))
            }
            Call::DeleteTarget(id, generation) => {
                remote.delete_target(id, GenerationQuery { generation }).await?;
                CallResponse::Gone
            }
            Call::PutTargetSnapshot(target, id, request) => {
                let taken = remote.put_target_snapshot(target, id, request).await?;
                CallResponse::TargetSnapshot(Box::new(taken.now))
            }
            Call::PutSnapshot(replica, id, request) => CallResponse::Snapshot(Box::new(
                remote.put_snapshot(replica, id, request).await?.now,
            )),
            Call::DeleteSnapshot(replica, id, place) => {
                remote.delete_snapshot(replica, id, place).await?;
                CallResponse::Gone
            }
            Call::PutRebuild(id, order) => {
                CallResponse::Rebuild(Box::new(remote.put_rebuild(id, order).await?.now))
            }
            Call::PutScrub(id, order) => {
                CallResponse::Scrub(Box::new(remote.put_scrub(id, order).await?.now))
            }
            Call::CheckTarget(target, request) => {
                CallResponse::Checked(Box::new(remote.check_target(target, request).await?))
            }
            Call::Scrub(id) => CallResponse::Scrub(Box::new(remote.scrub(id).await?)),
        })
    }

    async fn list(&self) -> Result<CallResponse, Problem> {
        let remote = &self.remote;
        let listing = Inventory {
            pools: every(|page| remote.pools(page)).await?,
            replicas: every(|page| remote.replicas(page)).await?,
            targets: every(|page| remote.targets(page)).await?,
            snapshots: every(|page| remote.snapshots(page)).await?,
            rebuilds: every(|page| remote.rebuilds(page)).await?,
        };
        Ok(CallResponse::Listing(Box::new(listing)))
    }
}

/// What an engine answers, if it does so in time.
async fn within<T>(
    most: Duration,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    let late = |_| Problem::new(ProblemKind::TimedOut, "the engine did not answer in time");
    tokio::time::timeout(most, work).await.map_err(late)?
}

/// All pages of a list.
async fn every<T, F: Future<Output = Result<Page<T>, Problem>>>(
    ask: impl Fn(Paging) -> F,
) -> Result<Vec<T>, Problem> {
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let page = within(PAGE, ask(Paging { limit: None, after })).await?;
        items.extend(page.items);
        after = page.after;
        if after.is_none() {
            return Ok(items);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_engine_is_gone_when_its_machine_says_so_and_not_when_it_is_silent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let caller = EngineClients::default().get(&"n1".parse().unwrap(), address).unwrap();
        assert!(!caller.is_refused().await, "a process that stands still has its listener");
        drop(listener);
        assert!(caller.is_refused().await);
    }
}
