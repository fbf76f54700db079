//! A store in memory that behaves as etcd does, for tests and simulation.
//!
//! Leases end by the clock that is handed in; nothing runs in the background: whoever calls, or
//! waits on a watch, first lets overdue leases end.

mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, Either, ready, select};
use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::watch;

use self::history::History;
use crate::contract::{
    Changes, Clock, ErrorClass, LeaseError, LeaseId, Page, Query, ReadError, Revision, Store, Txn,
    TxnOutcome, Watch, WatchError, WatchFrom, WriteError,
};

/// A store in memory; clones are one store.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    history: Mutex<History>,
    clock: Arc<dyn Clock>,
    revision: watch::Sender<Revision>,
}

/// The server in error messages.
const HERE: &str = "memory";

impl MemoryStore {
    /// An empty store, as etcd begins: at revision 1.
    pub fn new(clock: Arc<dyn Clock>) -> MemoryStore {
        let history = History::new();
        let (revision, _) = watch::channel(history.revision());
        MemoryStore { shared: Arc::new(Shared { history: Mutex::new(history), clock, revision }) }
    }

    /// Does something with a history in which overdue leases have ended, and tells watchers.
    fn with<T>(&self, act: impl FnOnce(&mut History, Duration) -> T) -> T {
        let mut history = self.shared.lock();
        let now = self.shared.clock.now();
        history.expire(now);
        let result = act(&mut history, now);
        let revision = history.revision();
        drop(history);
        self.shared.revision.send_if_modified(|told| {
            let news = *told != revision;
            *told = revision;
            news
        });
        result
    }

    /// Waits for a change after `seen`, or for a lease to run out.
    async fn news(&self, seen: Revision) {
        let mut revision = self.shared.revision.subscribe();
        let next_expiry = self.shared.lock().next_expiry();
        let changed = Box::pin(async move {
            // The sender lives as long as `self`.
            let _ = revision.wait_for(|now| *now > seen).await;
        });
        match next_expiry {
            Some(at) => {
                let left = at.saturating_sub(self.shared.clock.now());
                match select(changed, self.shared.clock.sleep(left)).await {
                    Either::Left(_) | Either::Right(_) => {}
                }
            }
            None => changed.await,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn range(&self, query: Query) -> BoxFuture<'_, Result<Page, ReadError>> {
        ready(self.with(|history, _| history.range(&query))).boxed()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, WriteError>> {
        ready(self.with(|history, _| history.txn(&txn))).boxed()
    }

    fn watch(&self, from: WatchFrom) -> Watch {
        let next = from.revision;
        stream::unfold(Some((self.clone(), from, next)), |state| async move {
            let (store, from, next) = state?;
            loop {
                let (news, seen) =
                    store.with(|history, _| (history.changes(&from, next), history.revision()));
                match news {
                    Err(upto) => {
                        let what = from.keys.to_string();
                        return Some((Err(WatchError::Compacted { what, upto }), None));
                    }
                    Ok(changes) => {
                        if let Some(upto) = changes.last().map(crate::contract::Change::at) {
                            let changes = Changes { upto, changes };
                            return Some((Ok(changes), Some((store, from, upto.next()))));
                        }
                    }
                }
                store.news(seen).await;
            }
        })
        .boxed()
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<(LeaseId, Duration), LeaseError>> {
        let ttl = Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0));
        if ttl.is_zero() {
            let refused = LeaseError::Refused {
                what: "making of a lease".into(),
                endpoint: HERE.into(),
                reason: "a lease must live for at least a second".into(),
                class: ErrorClass::Caller,
            };
            return ready(Err(refused)).boxed();
        }
        ready(Ok((self.with(|history, now| history.grant(ttl, now)), ttl))).boxed()
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, LeaseError>> {
        let ttl = self.with(|history, now| history.keep_alive(lease, now));
        ready(ttl.ok_or(LeaseError::Gone { lease })).boxed()
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), LeaseError>> {
        let existed = self.with(|history, _| history.revoke(lease));
        ready(if existed { Ok(()) } else { Err(LeaseError::Gone { lease }) }).boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), WriteError>> {
        ready(self.with(|history, _| history.compact(revision))).boxed()
    }
}
