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

use crate::api::Effect;
use crate::child::reason;
use crate::child_set::{ChildSet, ChildSlot};
use crate::mirror::{Mirror, Pending, Purpose, Ticket};

impl Mirror {
    /// Whether reads may be answered now.
    pub(crate) fn holds_lease(&self, now: Instant) -> bool {
        #[cfg(test)]
        match self.broken {
            crate::tests::Broken::LeaseIgnored => return self.is_settled(),
            crate::tests::Broken::ReadUnsettled => return self.opened,
            _ => {}
        }
        self.opened && self.lapsed(now, self.config.lease).is_empty()
    }

    /// Copies that may be called in sync and have proved nothing for so long.
    fn lapsed(&self, now: Instant, time: Duration) -> ChildSet {
        let is_fresh = |slot: &ChildSlot| {
            let proved = self.child(*slot).filter(|child| child.attached)?.proved?;
            (proved.after(time) > now).then_some(())
        };
        self.required_acks().iter().filter(|slot| is_fresh(slot).is_none()).collect()
    }

    /// A copy has done what was asked of it.
    pub(crate) fn proved(&mut self, pending: &Pending, io: u64) {
        if let Some(child) = self.child_mut(pending.slot)
            && child.is_current(pending.session)
        {
            child.proved = child.proved.max(Some(pending.sent));
            child.proved_io = child.proved_io.max(io);
        }
    }

    /// Asks copies whose last proof is half over, while there are reads.
    pub(crate) fn renew_lease(&mut self) {
        let due = self.lapsed(self.now, self.config.lease / 2);
        if !due.is_empty() && !self.config.lease.is_zero() {
            self.prove(due, 0);
        }
    }

    /// Asks copies for a proof that is sent after the I/O with this number.
    fn prove(&mut self, slots: ChildSet, since: u64) {
        for slot in slots.iter() {
            let asks = self.child(slot).and_then(|child| child.proving);
            if asks.is_some_and(|io| io > since) {
                continue;
            }
            let Some((io, child, session)) = self.ask(slot, Purpose::Prove) else { continue };
            let child = child.replica;
            self.effects.push_back(Effect::Measure { io, child, session });
            if let Some(child) = self.child_mut(slot) {
                child.proving = Some(io.0);
            }
        }
    }

    /// A copy was asked for a proof.
    pub(crate) fn prove_answered(&mut self, pending: Pending, io: u64, result: Completion) {
        let Some(child) = self.child_mut(pending.slot) else { return };
        child.proving = child.proving.filter(|asked| *asked != io);
        if let Err(fault) = result {
            let current = child.is_current(pending.session);
            match fault.class() {
                ErrorClass::Owner => self.fenced(),
                _ if current => self.fail(pending.slot, reason(fault)),
                _ => {}
            }
        }
        self.needs_rescan = true;
    }

    /// Ends a read whose answer is known, now or when every copy in sync has proved that nobody
    /// else owns the volume.
    pub(crate) fn answer_read(&mut self, ticket: Ticket) {
        let Some(op) = self.ops.get(ticket) else { return };
        let (since, Some(result)) = (op.since, op.answered) else { return };
        if self.prove_since(since) {
            self.finish(ticket, result);
        }
    }

    /// Whether every copy in sync has proved that nobody else owns the volume: within the lease, or
    /// after the I/O with this number. If not, they are asked.
    pub(crate) fn prove_since(&mut self, since: u64) -> bool {
        if self.holds_lease(self.now) || self.is_proved_since(since) {
            return true;
        }
        let older = |slot: &ChildSlot| self.child(*slot).is_some_and(|one| one.proved_io <= since);
        let older = self.required_acks().iter().filter(older).collect();
        self.prove(older, since);
        false
    }

    fn is_proved_since(&self, since: u64) -> bool {
        let is_later = |slot: ChildSlot| {
            self.child(slot).is_some_and(|child| child.attached && child.proved_io > since)
        };
        self.opened && self.required_acks().iter().all(is_later)
    }

    /// Whether what a copy read around the mirror may be answered now. If not, it comes back
    /// ([`Mirror::bypass_failed`]).
    pub fn may_answer(&self, now: Instant) -> bool {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::BypassUnchecked {
            return true;
        }
        !self.is_down() && !self.failing && self.holds_lease(now)
    }

    /// When an opening goes on: at once with every copy in sync, unless one was given up before it
    /// was fenced; else when those that are not there were given time, and a former owner that
    /// cannot be reached has stopped answering reads.
    pub(crate) fn open_at(&self) -> Instant {
        let must = self.required_acks();
        let all = must.without(self.in_sync()).is_empty();
        let fenced = must.iter().filter_map(|slot| self.child(slot)?.fenced).min();
        let lease = self.config.lease + self.config.lease / 4;
        let over = fenced.map_or(self.begun, |fenced| fenced.after(lease));
        let patience = self.begun.after(self.config.open_wait);
        #[cfg(test)]
        match self.broken {
            crate::tests::Broken::WaitFromStart if !all => return patience,
            crate::tests::Broken::GivenUpForgotten if all => return self.begun,
            _ => {}
        }
        match (all, self.record_writer.stored().has_unfenced()) {
            (true, false) => self.begun,
            (true, true) => over,
            (false, _) => patience.max(over),
        }
    }
}
