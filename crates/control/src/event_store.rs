//! What happened: kept in the store, and then told to those who listen.
//!
//! An event is told when it is kept, so no two events ever have one number, and what was told can
//! be read again. An event whose control plane died before it was kept was told to nobody: the
//! change it is about is in the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Event, envelope, keys};
use store::contract::{Keys, Op, Txn};
use store::leader::{Guard, GuardedError};
use tokio::sync::mpsc;

use crate::controller::EventDraft;
use crate::process_state::ProcessState;

/// How many events are kept.
pub(crate) const KEPT: u64 = 1000;
/// How many are written at once.
const AT_ONCE: usize = 64;
/// How long events are gathered before they are written.
const GATHER: Duration = Duration::from_millis(100);
/// How soon after a failure they are written again.
const AGAIN: Duration = Duration::from_millis(50);

/// Numbers events, keeps the last in the store and tells them, until nobody has any more or
/// somebody else leads.
pub(crate) async fn keep(
    shared: Arc<ProcessState>,
    guard: Guard,
    mut last: u64,
    mut told: mpsc::Receiver<EventDraft>,
) {
    let mut drafts = Vec::new();
    while told.recv_many(&mut drafts, AT_ONCE).await > 0 {
        let is_all = drafts.len() < AT_ONCE;
        let mut txn = Txn::new();
        let mut events = Vec::new();
        for draft in drafts.drain(..) {
            last += 1;
            let EventDraft { subject, name, severity, message } = draft;
            let event = Event { number: last, at: shared.now(), subject, name, severity, message };
            match envelope::encode(&event) {
                Ok(text) => txn = txn.then(Op::put(keys::event(last), text)),
                Err(error) => tracing::error!(%error, "an event cannot be written as JSON"),
            }
            events.push(event);
        }
        let oldest = last.saturating_sub(KEPT);
        let old = Keys::Between(Bytes::from(keys::event(0)), Bytes::from(keys::event(oldest)));
        if !write(&guard, txn.then(Op::delete(old))).await {
            return;
        }
        shared.publish(events);
        if is_all {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// Writes, as often as it takes: the same events under the same numbers do no harm. Whether they
/// are written; if not, somebody else leads.
async fn write(guard: &Guard, txn: Txn) -> bool {
    while !guard.lease().is_lost() {
        match guard.txn(txn.clone()).await {
            Ok(_) => return true,
            Err(error @ GuardedError::LostLeadership { .. }) => {
                tracing::debug!(%error, "events are not kept");
                return false;
            }
            Err(error) => {
                tracing::debug!(%error, "events are not kept yet");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    false
}
