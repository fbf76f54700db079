//! One leader at a time, and no write of a former one.
//!
//! The leader's key hangs on its lease. Losing the lease deletes the key; whoever creates it next
//! leads. A leader cannot know in time that it has been replaced, so every write it makes under its
//! [`Guard`] is a transaction that also compares the create revision of that key: a late write of a
//! former leader changes nothing and says so.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::{Either, select};

use crate::contract::{
    Change, Compare, CompareOp, KeyValue, Keys, Op, OpResponse, Revision, Store, Txn, TxnOutcome,
    WatchError, WatchFrom, WriteError, printable,
};
use crate::lease::RenewedLease;

/// Leadership that was won; whether it still lasts, each write finds out.
#[derive(Clone)]
pub struct Guard {
    store: Arc<dyn Store>,
    key: Bytes,
    since: Revision,
    lease: RenewedLease,
}

/// Why a campaign ended without leadership.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// The lease ended first: make a new one and campaign again.
    #[error("the lease ended while waiting to lead by key {key}")]
    LeaseLost {
        /// The leader's key.
        key: String,
    },
    /// The store will not do it.
    #[error("cannot campaign by key {key}")]
    Write {
        /// The leader's key.
        key: String,
        /// Why.
        source: WriteError,
    },
    /// The store will not let the leader be watched.
    #[error("cannot watch the leader's key {key}")]
    Watch {
        /// The leader's key.
        key: String,
        /// Why.
        source: WatchError,
    },
}

/// Why a guarded write was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum GuardedError {
    /// Somebody else leads, or nobody; nothing was written. Stop acting as the leader.
    #[error("no longer the leader by key {key}, held from revision {since}; nothing was written")]
    LostLeadership {
        /// The leader's key.
        key: String,
        /// Since when this one had led.
        since: Revision,
        /// What the key holds now.
        now: Option<Box<KeyValue>>,
    },
    /// As without a guard.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Guard {
    /// Waits until `key` is free, takes it with `identity` as its value, and leads.
    pub async fn campaign(
        store: Arc<dyn Store>,
        key: impl Into<Bytes>,
        identity: impl Into<Bytes>,
        lease: RenewedLease,
    ) -> Result<Guard, CampaignError> {
        let (key, identity) = (key.into(), identity.into());
        let race = {
            let run = pin!(win(store.as_ref(), &key, &identity, &lease));
            match select(run, pin!(lease.lost())).await {
                Either::Left((won, _)) => won?,
                Either::Right(_) => {
                    return Err(CampaignError::LeaseLost { key: printable(&key) });
                }
            }
        };
        Ok(Guard { store, key, since: race, lease })
    }

    /// The revision at which the leader's key was created: grows from leader to leader.
    pub fn since(&self) -> Revision {
        self.since
    }

    /// The lease under which this one leads.
    pub fn lease(&self) -> &RenewedLease {
        &self.lease
    }

    /// Does `txn` if this one still leads.
    pub async fn txn(&self, txn: Txn) -> Result<TxnOutcome, GuardedError> {
        let guarded = Txn::new()
            .when(Compare::created(self.key.clone(), CompareOp::Equal, self.since))
            .then(Op::Txn(txn))
            .otherwise(Op::get(self.key.clone()));
        let outcome = self.store.txn(guarded).await?;
        let revision = outcome.revision;
        if !outcome.succeeded {
            return Err(GuardedError::LostLeadership {
                key: printable(&self.key),
                since: self.since,
                now: outcome.first_read().cloned().map(Box::new),
            });
        }
        let empty = TxnOutcome { revision, succeeded: true, answers: Vec::new() };
        Ok(match outcome.answers.into_iter().next() {
            // Only the outermost answer carries the revision.
            Some(OpResponse::Txn(inner)) => TxnOutcome { revision, ..inner },
            _ => empty,
        })
    }

    /// Lets somebody else lead. Harmless if somebody else does already.
    pub async fn resign(self) -> Result<(), WriteError> {
        let resign = Txn::new()
            .when(Compare::created(self.key.clone(), CompareOp::Equal, self.since))
            .then(Op::delete(Keys::One(self.key.clone())));
        self.store.txn(resign).await.map(|_| ())
    }
}

/// Tries until the key is ours; returns its create revision.
async fn win(
    store: &dyn Store,
    key: &Bytes,
    identity: &Bytes,
    lease: &RenewedLease,
) -> Result<Revision, CampaignError> {
    loop {
        let take = Txn::new()
            .when(Compare::absent(key.clone()))
            .then(Op::put(key.clone(), identity.clone()).leased(lease.id()))
            .otherwise(Op::get(key.clone()));
        let outcome = match store.txn(take).await {
            Ok(outcome) => outcome,
            // If it was carried out after all, the next round finds the key hung on our lease.
            Err(WriteError::Unknown { .. } | WriteError::NotSent { .. }) => continue,
            Err(WriteError::LeaseGone { .. }) => {
                return Err(CampaignError::LeaseLost { key: printable(key) });
            }
            Err(source) => return Err(CampaignError::Write { key: printable(key), source }),
        };
        if outcome.succeeded {
            return Ok(outcome.revision);
        }
        match outcome.first_read() {
            Some(holder) if holder.lease == Some(lease.id()) => return Ok(holder.created),
            Some(_) => free(store, key, outcome.revision).await?,
            None => {}
        }
    }
}

/// Waits until the key is deleted after `seen`.
async fn free(store: &dyn Store, key: &Bytes, seen: Revision) -> Result<(), CampaignError> {
    let mut watch = store.watch(WatchFrom::new(Keys::One(key.clone()), seen.next()));
    while let Some(news) = watch.next().await {
        match news {
            Ok(news) => {
                let gone = |change: &Change| matches!(change, Change::Deleted { .. });
                if news.changes.iter().any(gone) {
                    return Ok(());
                }
            }
            // What was missed, looking at the key again will show.
            Err(WatchError::Compacted { .. }) => return Ok(()),
            Err(source) => return Err(CampaignError::Watch { key: printable(key), source }),
        }
    }
    Ok(())
}
