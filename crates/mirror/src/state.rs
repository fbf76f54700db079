//! How the target serves: opening, holding, resuming.
//!
//! The states and their edges are `model::TargetState`. Hosts wait from the moment that a copy
//! recorded in sync is not there until the record says so or it is back, [`Policy::hold`] at most.
//!
//! [`Policy::hold`]: crate::Policy::hold

use alloc::vec::Vec;

use model::{
    ConflictReason, Problem, ProblemKind, ReplicaId, SuspendReason, TargetEvent, TargetState,
};

use crate::api::Effect;
use crate::mirror::Mirror;

impl Mirror {
    /// Opens the volume when every copy in sync is there, or enough time was given to them.
    pub(crate) fn pump_open(&mut self) {
        if self.opened || self.is_down() || self.stopping.is_some() {
            return;
        }
        let there = self.in_sync();
        let all = self.required_acks().without(there).is_empty();
        let waited = self.open_at() <= self.now;
        if there.is_empty() || !waited || !self.suspected.is_empty() {
            return;
        }
        let (rolled, claim) = self.rolled_back(there);
        let believed = there.without(rolled);
        let known_by = claim.map(|(_, replica)| replica);
        if believed.is_empty() {
            // What is in sync and away may be right.
            if all {
                let reason = ConflictReason::RolledBack { known_by };
                there.iter().for_each(|slot| self.contradicts(slot, reason));
                self.needs_rescan = true;
            }
            return;
        }
        self.settled = claim.map(|(stamp, _)| stamp);
        self.adopt_notes(believed);
        self.judge_stale();
        // What is in doubt a stale copy may lack, too.
        let doubt = self.dirty.resync.clone();
        self.dirty.missed.values_mut().for_each(|missed| missed.add(&doubt));
        self.opened = true;
        // Copies in sync that are not here now may hold other bytes, and lack some.
        for replica in self.absent_in_sync() {
            let risk = self.dirty.at_risk();
            self.dirty.missed.insert(replica, risk);
        }
        self.demote(rolled, known_by);
        self.children.iter_mut().flatten().for_each(|child| child.note = None);
        let there = believed;
        if self.least_loss(there) > 0 && !all {
            // A copy that is away may be the only one that has what these lost.
            self.lost = !self.dirty.resync.is_empty();
        }
        self.change_note();
        let whole =
            self.required_acks().without(there).is_empty() && self.record_writer.set().is_whole();
        self.on(if whole { TargetEvent::OpenedWhole } else { TargetEvent::OpenedPartial });
        self.needs_rescan = true;
    }

    fn absent_in_sync(&self) -> Vec<ReplicaId> {
        let absent = self.required_acks().without(self.in_sync());
        absent.iter().filter_map(|slot| Some(self.child(slot)?.replica)).collect()
    }

    pub(crate) fn on(&mut self, event: TargetEvent) {
        if let Ok(state) = self.state.on(event)
            && state != self.state
        {
            self.state = state;
            self.effects.push_back(Effect::TargetChanged(state));
        }
    }

    /// Follows what the children and the record are.
    pub(crate) fn update_state(&mut self) {
        self.settle_labels();
        if self.is_down() {
            return;
        }
        if self.is_settled() && !self.in_sync().is_empty() {
            self.hold_from = None;
            if core::mem::take(&mut self.failing) {
                self.needs_rescan = true;
            }
            self.on(TargetEvent::Resumed);
            self.on(if self.is_whole() { TargetEvent::Recovered } else { TargetEvent::Lost });
            return;
        }
        let from = *self.hold_from.get_or_insert(self.now);
        if self.in_sync().is_empty() {
            self.on(TargetEvent::Suspended(SuspendReason::NoChild));
        } else if self.record_writer.is_away() {
            self.on(TargetEvent::Suspended(SuspendReason::NotRecorded));
        }
        if !self.failing && self.now >= from.after(self.config.hold) {
            self.failing = true;
            let detail = "no copy could be read in time; check again later";
            self.drop_checks(&Problem::new(ProblemKind::Unavailable, detail));
            let nobody = self.in_sync().is_empty();
            let cause = if nobody { SuspendReason::NoChild } else { SuspendReason::NotRecorded };
            self.on(TargetEvent::Suspended(cause));
            self.on(TargetEvent::SuspendExpired);
            self.needs_rescan = true;
        }
    }

    /// Whether it serves nothing and never will again.
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, TargetState::Shutdown { .. }) || self.is_fenced()
    }
}
