//! A lease that is kept alive for as long as somebody holds it.
//!
//! Invariant: the owner is told that its lease is lost no later than the store can end it: time is
//! counted from the moment a renewal was *sent*, not from its answer.
//!
//! The renewing itself is a future for the caller to run, so that a program can spawn it and a
//! simulator can poll it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use tokio::sync::watch;

use crate::contract::{Clock, LeaseError, LeaseId, Store};

/// A lease that is being kept alive. Clones share it; when the last is dropped, the renewals stop
/// and the lease ends by itself.
#[derive(Clone, Debug)]
pub struct RenewedLease {
    id: LeaseId,
    lost: watch::Receiver<bool>,
}

impl RenewedLease {
    /// Makes a lease and the future that keeps it alive: run that one.
    pub async fn grant(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        ttl: Duration,
    ) -> Result<(RenewedLease, impl Future<Output = ()> + Send + 'static), LeaseError> {
        let asked = clock.now();
        let (id, ttl) = store.grant(ttl).await?;
        let (tell, lost) = watch::channel(false);
        let keeper = LeaseRenewer { store, clock, id, ttl, expires: asked + ttl, tell };
        Ok((RenewedLease { id, lost }, keeper.run()))
    }

    /// Its number.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Whether it is lost: its keys are gone, or may be from now on.
    pub fn is_lost(&self) -> bool {
        // A keeper that was dropped renews no more.
        *self.lost.borrow() || self.lost.has_changed().is_err()
    }

    /// Waits until it is lost.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        // An error means that the keeper was dropped: nobody renews any more.
        let _ = lost.wait_for(|lost| *lost).await;
    }
}

struct LeaseRenewer {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    id: LeaseId,
    ttl: Duration,
    expires: Duration,
    tell: watch::Sender<bool>,
}

impl LeaseRenewer {
    async fn run(mut self) {
        let mut pause = self.ttl / 3;
        loop {
            let wait = self.clock.sleep(pause);
            if let Either::Right(_) = select(wait, pin!(self.tell.closed())).await {
                return;
            }
            pause = match self.renew().await {
                Renewed::Yes => self.ttl / 3,
                Renewed::NotYet => self.ttl / 10,
                Renewed::Never => break,
            };
        }
        self.tell.send_replace(true);
    }

    async fn renew(&mut self) -> Renewed {
        let sent = self.clock.now();
        let Some(left) = self.expires.checked_sub(sent).filter(|left| !left.is_zero()) else {
            return Renewed::Never;
        };
        let answer = self.store.keep_alive(self.id);
        match select(answer, self.clock.sleep(left)).await {
            Either::Left((Ok(ttl), _)) => {
                self.ttl = ttl;
                self.expires = sent + ttl;
                Renewed::Yes
            }
            Either::Left((Err(LeaseError::Gone { .. }), _)) | Either::Right(_) => Renewed::Never,
            Either::Left((Err(_), _)) => Renewed::NotYet,
        }
    }
}

enum Renewed {
    Yes,
    NotYet,
    Never,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::future::BoxFuture;

    use super::*;
    use crate::contract::{
        Page, Query, ReadError, Revision, StoreExt as _, Txn, TxnOutcome, Watch, WatchFrom,
        WriteError,
    };
    use crate::testing::{ManualClock, MemoryStore};

    /// A store to which renewals can be cut off.
    struct Cut {
        store: MemoryStore,
        cut: AtomicBool,
    }

    impl Store for Cut {
        fn range(&self, query: Query) -> BoxFuture<'_, Result<Page, ReadError>> {
            self.store.range(query)
        }
        fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, WriteError>> {
            self.store.txn(txn)
        }
        fn watch(&self, from: WatchFrom) -> Watch {
            self.store.watch(from)
        }
        fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<(LeaseId, Duration), LeaseError>> {
            self.store.grant(ttl)
        }
        fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, LeaseError>> {
            if self.cut.load(Ordering::SeqCst) {
                return Box::pin(std::future::pending());
            }
            self.store.keep_alive(lease)
        }
        fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), LeaseError>> {
            self.store.revoke(lease)
        }
        fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), WriteError>> {
            self.store.compact(revision)
        }
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn it_lives_while_kept_and_is_lost_no_later_than_the_store_ends_it() {
        let clock = ManualClock::new();
        let memory = MemoryStore::new(Arc::new(clock.clone()));
        let store = Arc::new(Cut { store: memory.clone(), cut: AtomicBool::new(false) });
        let ttl = Duration::from_secs(9);
        let shared: Arc<dyn Store> = Arc::<Cut>::clone(&store);
        let (lease, keeper) =
            RenewedLease::grant(shared, Arc::new(clock.clone()), ttl).await.unwrap();
        tokio::spawn(keeper);
        memory.put_leased("a", "1", lease.id()).await.unwrap();
        settle().await;
        for _ in 0..30 {
            clock.advance(Duration::from_secs(1));
            settle().await;
            assert!(!lease.is_lost());
        }
        assert!(memory.get("a").await.unwrap().is_some(), "kept for more than three lives");
        store.cut.store(true, Ordering::SeqCst);
        for _ in 0..9 {
            clock.advance(Duration::from_secs(1));
            settle().await;
            if memory.get("a").await.unwrap().is_none() {
                assert!(lease.is_lost(), "the key is gone and the owner does not know");
            }
        }
        assert!(lease.is_lost());
    }

    #[tokio::test]
    async fn it_ends_by_itself_when_nobody_holds_it() {
        let clock = ManualClock::new();
        let memory = MemoryStore::new(Arc::new(clock.clone()));
        let ttl = Duration::from_secs(9);
        let shared: Arc<dyn Store> = Arc::new(memory.clone());
        let (lease, keeper) =
            RenewedLease::grant(shared, Arc::new(clock.clone()), ttl).await.unwrap();
        let keeper = tokio::spawn(keeper);
        memory.put_leased("a", "1", lease.id()).await.unwrap();
        drop(lease);
        keeper.await.unwrap();
        clock.advance(ttl);
        assert_eq!(memory.get("a").await.unwrap(), None);
    }
}
