//! What the machines of a mirror share: time and effects, replicas, the write-intent log, the range
//! queue, and how the target serves. Each keeps its own state; what needs several is here.

use block::Instant;
use model::RegionSet;

use crate::attachment::Conflicts;
use crate::context::{Context, Purpose};
use crate::intent_log::IntentLog;
use crate::lane::Lane;
use crate::replicas::{Asked, ChildSlot, Replicas};
use crate::service::Service;

/// What the machines of a mirror share.
#[derive(Debug)]
pub(crate) struct Replication {
    pub(crate) cx: Context,
    pub(crate) replicas: Replicas,
    pub(crate) log: IntentLog,
    pub(crate) lane: Lane,
    pub(crate) service: Service,
    pub(crate) conflicts: Conflicts,
}

impl Replication {
    /// Names something asked of a child, if it is attached.
    pub(crate) fn ask(&mut self, slot: ChildSlot, purpose: Purpose) -> Option<Asked> {
        self.replicas.ask(&mut self.cx, slot, purpose)
    }

    /// Whether every copy that somebody may call in sync takes writes.
    pub(crate) fn is_settled(&self) -> bool {
        self.service.is_open() && self.replicas.all_take_writes()
    }

    /// The note has changed; answers the version that has the change.
    pub(crate) fn change_note(&mut self) -> u64 {
        self.log.change(&mut self.cx)
    }

    /// The version of the note that every child that takes writes has.
    pub(crate) fn durable_version(&self) -> u64 {
        self.log.durable_version(&self.replicas)
    }

    /// Copies in sync may differ in these regions. The rebuilder has to know, too.
    pub(crate) fn doubt(&mut self, regions: &RegionSet) {
        self.log.doubt(&mut self.cx, &self.replicas, regions);
    }

    /// **R1** Whether reads may be answered now.
    pub(crate) fn holds_lease(&self, now: Instant) -> bool {
        #[cfg(test)]
        match self.cx.broken {
            crate::tests::Broken::LeaseIgnored => return self.is_settled(),
            crate::tests::Broken::ReadUnsettled => return self.service.is_open(),
            _ => {}
        }
        self.service.is_open() && self.replicas.are_leased(&self.cx, now)
    }

    /// Whether every copy in sync has proved that nobody else owns the volume: within the lease, or
    /// after the request with this number. If not, they are asked.
    pub(crate) fn prove_since(&mut self, since: u64) -> bool {
        let is_proved = self.service.is_open() && self.replicas.are_proved_since(since);
        if self.holds_lease(self.cx.now()) || is_proved {
            return true;
        }
        self.replicas.prove_since(&mut self.cx, since);
        false
    }

    /// When the opening goes on, if it waits for that.
    pub(crate) fn opens_at(&self) -> Option<Instant> {
        let at = (!self.service.is_open()).then(|| self.replicas.open_at(&self.cx));
        at.filter(|at| *at > self.cx.now())
    }

    /// Decides what the set should be, from what the children are.
    pub(crate) fn reconcile(&mut self) {
        // S1: without another one, nobody is recorded stale; hosts wait.
        if self.service.is_active() && !self.replicas.in_sync().is_empty() {
            self.replicas.reconcile(&mut self.cx);
        }
    }
}
