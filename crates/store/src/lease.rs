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
pub struct KeptLease {
    id: LeaseId,
    lost: watch::Receiver<bool>,
}

impl KeptLease {
    /// Makes a lease and the future that keeps it alive: run that one.
    pub async fn grant(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        ttl: Duration,
    ) -> Result<(KeptLease, impl Future<Output = ()> + Send + 'static), LeaseError> {
        let asked = clock.now();
        let (id, ttl) = store.grant(ttl).await?;
        let (tell, lost) = watch::channel(false);
        let keeper = Keeper { store, clock, id, ttl, expires: asked + ttl, tell };
        Ok((KeptLease { id, lost }, keeper.run()))
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

struct Keeper {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    id: LeaseId,
    ttl: Duration,
    expires: Duration,
    tell: watch::Sender<bool>,
}

impl Keeper {
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
