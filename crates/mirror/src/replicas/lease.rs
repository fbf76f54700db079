//! The read lease: a read is answered only while nobody else can have acknowledged a write.
//!
//! ```text
//!   former owner                         copy R                          new owner
//!     asks R at s ──────────────────────► does it
//!     ◄────────────────────────────────── answers
//!     reads are answered until s + lease   │ ◄──────────── fenced at f ─── attaches
//!                                          ▼ from here on, no answer to the former owner
//!                                                           opens without the others
//!                                                           at f + 5/4 lease, not before
//! ```
//!
//! Invariant **R1**: when a read is answered, every copy that anybody may call in sync has done
//! something for this target that was asked less than a lease ago, or after the read had come. A
//! new owner fences one of those copies before it acknowledges anything, and then waits longer than
//! a lease, or fences all of them. It also waits if copies were taken out of the set before they
//! were fenced (`TargetRecord::has_unfenced`). `docs/design/0002-mirror.md` has the argument.
//!
//! Any command that a copy carries out is such a proof; when there is none, it is asked for its
//! size, and only when there are reads: an idle volume asks nothing.

use core::time::Duration;

use block::{Completion, ErrorClass, Instant};

use super::{ChildSet, ChildSlot, Replicas, reason};
use crate::api::{Effect, RequestId};
use crate::context::{Context, Pending, Purpose, Verdict};

impl Replicas {
    /// Whether no proof is older than the lease.
    pub(crate) fn are_leased(&self, cx: &Context, now: Instant) -> bool {
        self.lapsed(now, cx.config().lease.own).is_empty()
    }

    /// Copies that may be called in sync and have proved nothing for so long.
    fn lapsed(&self, now: Instant, time: Duration) -> ChildSet {
        let is_fresh = |slot: &ChildSlot| {
            self.get(*slot).is_some_and(|child| child.has_proved_within(time, now))
        };
        self.required_acks().iter().filter(|slot| !is_fresh(slot)).collect()
    }

    /// A copy has done what was asked of it.
    pub(crate) fn proved(&mut self, pending: &Pending, request: u64) {
        if let Some(child) = self.get_mut(pending.slot) {
            child.note_proof(pending, request);
        }
    }

    /// A copy that was asked for a proof has answered.
    pub(crate) fn proof_answered(
        &mut self,
        cx: &mut Context,
        pending: Pending,
        io: RequestId,
        result: Completion,
    ) -> Verdict {
        let Some(child) = self.get_mut(pending.slot) else { return Verdict::Fine };
        child.proof_ended(io.0);
        let is_current = child.is_current(pending.session);
        cx.rescan();
        match result {
            Err(fault) if fault.class() == ErrorClass::Owner => Verdict::Fenced,
            Err(fault) if is_current => Verdict::Failed(ChildSet::one(pending.slot), reason(fault)),
            _ => Verdict::Fine,
        }
    }

    /// Asks copies whose last proof is half over, while there are reads.
    pub(crate) fn renew_lease(&mut self, cx: &mut Context) {
        let due = self.lapsed(cx.now(), cx.config().lease.own / 2);
        if !due.is_empty() && !cx.config().lease.own.is_zero() {
            self.prove(cx, due, 0);
        }
    }

    /// Asks copies for a proof that is sent after the request with this number.
    fn prove(&mut self, cx: &mut Context, slots: ChildSet, since: u64) {
        for slot in slots.iter() {
            if self.get(slot).is_some_and(|child| child.is_proving_since(since)) {
                continue;
            }
            let Some(asked) = self.ask(cx, slot, Purpose::Prove) else { continue };
            let (io, child, session) = (asked.io, asked.child, asked.session);
            cx.emit(Effect::Measure { io, child, session });
            if let Some(child) = self.get_mut(slot) {
                child.await_proof(io.0);
            }
        }
    }

    /// Whether every copy in sync has done something that was asked after this request.
    pub(crate) fn are_proved_since(&self, since: u64) -> bool {
        let is_later = |slot: ChildSlot| {
            self.get(slot).is_some_and(|child| child.is_attached() && child.has_proved_since(since))
        };
        self.required_acks().iter().all(is_later)
    }

    /// Asks copies that did nothing since this request.
    pub(crate) fn prove_since(&mut self, cx: &mut Context, since: u64) {
        let is_older =
            |slot: &ChildSlot| self.get(*slot).is_some_and(|child| !child.has_proved_since(since));
        let older = self.required_acks().iter().filter(is_older).collect();
        self.prove(cx, older, since);
    }

    /// When an opening goes on: at once with every copy in sync, unless one was given up before it
    /// was fenced; else when those that are not there were given time, and a former owner that
    /// cannot be reached has stopped answering reads.
    pub(crate) fn open_at(&self, cx: &Context) -> Instant {
        let (begun, config) = (cx.begun(), cx.config());
        let must = self.required_acks();
        let all = must.without(self.in_sync()).is_empty();
        let fenced = must.iter().filter_map(|slot| self.get(slot)?.fenced()).min();
        let lease = config.lease.longest + config.lease.longest / 4;
        let over = fenced.map_or(begun, |fenced| fenced.after(lease));
        let patience = begun.after(config.open_wait);
        #[cfg(test)]
        match cx.broken {
            crate::tests::Broken::WaitFromStart if !all => return patience,
            crate::tests::Broken::GivenUpForgotten if all => return begun,
            _ => {}
        }
        match (all, self.record().stored().has_unfenced()) {
            (true, false) => begun,
            (true, true) => over,
            (false, _) => patience.max(over),
        }
    }
}
