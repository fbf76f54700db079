//! What happened: told to those who listen, and the last of it kept in the store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{Event, keys, stored};
use store::contract::{Keys, Op, Txn};
use store::leader::Guard;
use tokio::sync::mpsc;

use crate::core::{Input, Telling};
use crate::shared::Shared;

/// How many events are kept.
pub(crate) const KEPT: u64 = 1000;
/// How many are written at once.
const AT_ONCE: usize = 64;
/// How long events are gathered before they are written.
const GATHER: Duration = Duration::from_millis(500);

/// Numbers events, tells them, and keeps the last in the store, until nobody has any more.
pub(crate) async fn keep(
    shared: Arc<Shared>,
    guard: Guard,
    mut last: u64,
    mut told: mpsc::Receiver<Telling>,
) {
    let mut tellings = Vec::new();
    while told.recv_many(&mut tellings, AT_ONCE).await > 0 {
        let mut txn = Txn::new();
        for telling in tellings.drain(..) {
            last += 1;
            let Telling { subject, name, severity, message } = telling;
            let event = Event { number: last, at: shared.now(), subject, name, severity, message };
            if let Ok(text) = stored::encode(&event) {
                txn = txn.then(Op::put(keys::event(last), text));
            }
            shared.feed(Input::Told(event.clone()));
            shared.publish(event);
        }
        let oldest = last.saturating_sub(KEPT);
        let old = Keys::Between(Bytes::from(keys::event(0)), Bytes::from(keys::event(oldest)));
        if let Err(error) = guard.txn(txn.then(Op::delete(old))).await {
            // They were told; what is lost is that somebody reads them later.
            tracing::debug!(%error, "events are not kept");
        }
        tokio::time::sleep(GATHER).await;
    }
}
