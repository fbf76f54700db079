//! A snapshot of the volume: at one point on every copy in sync, all or none.
//!
//! ```text
//!   no doubt, all there ──► lane: no write under way ──► snapshot each ──all well──► answer
//!                                                              └─ some not ─► drop each ─► refuse
//! ```
//!
//! A copy that was lost when others dropped theirs keeps its own until it is back: then it drops it
//! before anything else is taken. What nobody remembers is found when the same is asked for again:
//! some copies have it and some take it now, or those that have it took it in different attempts.
//! These are two moments, and it is refused; those that had it keep it, because somebody may rely
//! on it. If all have it from one attempt, it was taken before.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;

use block::{Completion, ErrorClass, Instant, IoError, RangeAccess};
use model::{Problem, ProblemKind, ReplicaId, SnapshotId};

use crate::api::{Answer, Attempt, CommandId, Effect};
use crate::context::{Pending, Purpose, Ticket};
use crate::mirror::Mirror;
use crate::replicas::{Asked, ChildSet, ChildSlot, reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    InLane(Ticket),
    Taking(Ticket),
    Dropping(Ticket),
}

/// Most snapshots of one copy that are remembered to be dropped.
const MOST_LEFT: usize = 64;

/// Snapshots of attempts that failed, which copies have to drop.
#[derive(Debug, Default)]
pub(crate) struct OrphanSnapshots {
    of: BTreeMap<ReplicaId, BTreeSet<SnapshotId>>,
    /// Copies that are being asked to.
    asked: ChildSet,
}

impl OrphanSnapshots {
    /// A copy that was removed has nothing to drop for us any more.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        self.of.remove(&replica);
    }
}

/// A snapshot under way.
#[derive(Debug)]
pub(crate) struct ActiveSnapshot {
    token: CommandId,
    id: SnapshotId,
    attempt: Attempt,
    /// Until when it may wait.
    pub(crate) deadline: Instant,
    stage: Stage,
    asked: ChildSet,
    outstanding: ChildSet,
    /// Copies that had it.
    old: ChildSet,
    /// The attempts in which copies took it, of which nothing is no target's.
    by: BTreeSet<Option<Attempt>>,
    problem: Option<Problem>,
}

impl Mirror {
    pub(crate) fn take_snapshot(&mut self, token: CommandId, id: SnapshotId, attempt: Attempt) {
        if self.snapshot.is_some() {
            let problem = Problem::new(ProblemKind::Busy, "a snapshot is being taken; try again");
            return self.base.cx.answer(token, Err(problem));
        }
        self.snapshot = Some(ActiveSnapshot {
            token,
            id,
            attempt,
            deadline: self.base.cx.now().after(self.base.cx.config().hold),
            stage: Stage::Waiting,
            asked: ChildSet::NONE,
            outstanding: ChildSet::NONE,
            old: ChildSet::NONE,
            by: BTreeSet::new(),
            problem: None,
        });
    }

    /// Whether copies are being asked for a snapshot.
    pub(crate) fn is_snapshotting(&self) -> bool {
        let stage = self.snapshot.as_ref().map(|snapshot| snapshot.stage);
        matches!(stage, Some(Stage::Taking(_) | Stage::Dropping(_)))
    }

    fn can_snapshot(&self) -> bool {
        let has_leftover = |slot| {
            let child = self.base.replicas.get(slot);
            child.is_some_and(|child| self.orphans.of.contains_key(&child.replica()))
        };
        self.base.is_settled()
            && self.base.log.in_doubt().is_empty()
            && self.base.replicas.required_acks() == self.base.replicas.in_sync()
            && !self.base.replicas.required_acks().iter().any(has_leftover)
    }

    /// Lets copies that are back drop what is left of attempts that failed.
    fn pump_orphans(&mut self) {
        let is_late = self.base.service.is_stopping() || self.base.service.is_down();
        if self.orphans.of.is_empty() || self.is_snapshotting() || is_late {
            return;
        }
        let (orphans, children) = (&self.orphans, self.base.replicas.iter());
        let due: Vec<(ChildSlot, SnapshotId)> = children
            .filter(|(slot, child)| child.is_attached() && !orphans.asked.contains(*slot))
            .filter_map(|(slot, child)| Some((slot, *orphans.of.get(&child.replica())?.first()?)))
            .collect();
        for (slot, snapshot) in due {
            let asked = self.base.ask(slot, Purpose::Leftover(snapshot));
            let Some(Asked { io, child, session }) = asked else { continue };
            self.base.cx.emit(Effect::DropSnapshot { io, child, session, snapshot });
            self.orphans.asked.insert(slot);
        }
    }

    pub(crate) fn orphan_answered(&mut self, from: Pending, id: SnapshotId, result: Completion) {
        self.orphans.asked.remove(from.slot);
        self.base.cx.rescan();
        let Some(child) = self.base.replicas.get(from.slot) else { return };
        let (replica, current) = (child.replica(), child.is_current(from.session));
        match result.map_err(|fault| (fault, fault.class())) {
            Err((_, ErrorClass::Owner)) => self.fenced(),
            // Asked again, now or when it is back.
            Err((IoError::Busy, _)) => {}
            Err((fault, ErrorClass::Path)) if current => self.fail(from.slot, reason(fault)),
            Err((_, ErrorClass::Path)) => {}
            // What it cannot drop, nobody takes for a snapshot of another moment.
            Ok(()) | Err(_) => self.forget_orphan(replica, id),
        }
    }

    fn forget_orphan(&mut self, replica: ReplicaId, id: SnapshotId) {
        if let Some(left) = self.orphans.of.get_mut(&replica) {
            left.remove(&id);
            if left.is_empty() {
                self.orphans.of.remove(&replica);
            }
        }
    }

    /// These copies may have a snapshot that is not to be.
    fn remember_orphans(&mut self, of: ChildSet, id: SnapshotId) {
        let replicas: Vec<ReplicaId> = self.base.replicas.replicas_in(of).collect();
        for replica in replicas {
            let left = self.orphans.of.entry(replica).or_default();
            if left.len() < MOST_LEFT {
                left.insert(id);
            }
        }
    }

    pub(crate) fn pump_snapshot(&mut self) {
        self.pump_orphans();
        let can = self.can_snapshot();
        let Some(snapshot) = &self.snapshot else { return };
        match snapshot.stage {
            Stage::Waiting if self.base.cx.now() >= snapshot.deadline => {
                let problem =
                    Problem::new(ProblemKind::TimedOut, "copies do not agree yet; try again");
                self.end_snapshot(Err(problem));
            }
            Stage::Waiting if can => {
                let ticket = self.base.cx.next_ticket();
                self.snapshot_stage(Stage::InLane(ticket));
                self.base.lane.enter(ticket, RangeAccess::Still);
            }
            Stage::Taking(_) | Stage::Dropping(_) if snapshot.outstanding.is_empty() => {
                self.snapshot_step();
            }
            _ => {}
        }
    }

    fn snapshot_stage(&mut self, stage: Stage) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.stage = stage;
        }
        self.base.cx.rescan();
    }

    /// No write is under way, and none begins.
    pub(crate) fn snapshot_granted(&mut self, ticket: Ticket) {
        let mine = |snapshot: &ActiveSnapshot| snapshot.stage == Stage::InLane(ticket);
        if !self.snapshot.as_ref().is_some_and(mine) {
            return self.base.lane.leave(ticket);
        }
        if !self.can_snapshot() {
            self.base.lane.leave(ticket);
            return self.snapshot_stage(Stage::Waiting);
        }
        self.snapshot_stage(Stage::Taking(ticket));
        let to = self.base.replicas.required_acks();
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.asked = to;
        }
        self.ask_snapshot(to, true);
    }

    fn ask_snapshot(&mut self, to: ChildSet, take: bool) {
        let asked = self.snapshot.as_ref().map(|snapshot| (snapshot.id, snapshot.attempt));
        let Some((id, attempt)) = asked else { return };
        for slot in to.iter() {
            let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Snapshot) else {
                continue;
            };
            let snapshot = id;
            self.base.cx.emit(if take {
                Effect::Snapshot { io, child, session, snapshot, attempt }
            } else {
                Effect::DropSnapshot { io, child, session, snapshot }
            });
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.outstanding.insert(slot);
            }
        }
    }

    pub(crate) fn snapshot_answered(&mut self, from: Pending, result: &Result<Answer, IoError>) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.outstanding.remove(from.slot);
            let (is_dropping, id) = (matches!(snapshot.stage, Stage::Dropping(_)), snapshot.id);
            match result {
                Ok(_) if is_dropping => {
                    if let Some(replica) = self.base.replicas.replica_in(from.slot) {
                        self.forget_orphan(replica, id);
                    }
                }
                Ok(Answer::WasThere(by)) if *by != Some(snapshot.attempt) => {
                    snapshot.old.insert(from.slot);
                    snapshot.by.insert(*by);
                }
                Ok(_) => drop(snapshot.by.insert(Some(snapshot.attempt))),
                Err(_) => {}
            }
        }
        self.base.cx.rescan();
        let Err(fault) = *result else { return };
        let Some(child) = self.base.replicas.get(from.slot) else { return };
        let (replica, current) = (child.replica(), child.is_current(from.session));
        let stage = self.snapshot.as_ref().map(|snapshot| snapshot.stage);
        if fault == IoError::Busy && current {
            // It was not begun: again, until the child says something else.
            return self.ask_snapshot(
                ChildSet::one(from.slot),
                !matches!(stage, Some(Stage::Dropping(_))),
            );
        }
        if let Some(snapshot) = &mut self.snapshot {
            let kind = if fault == IoError::NoSpace {
                ProblemKind::NoSpace
            } else {
                ProblemKind::Unavailable
            };
            let detail = format!("replica {replica} took no snapshot: {fault}; try again");
            snapshot.problem.get_or_insert(Problem::new(kind, detail));
        }
        match fault.class() {
            ErrorClass::Owner => self.fenced(),
            ErrorClass::Path | ErrorClass::Medium | ErrorClass::Bug if current => {
                self.fail(from.slot, reason(fault));
            }
            _ => {}
        }
    }

    /// Every child has answered.
    fn snapshot_step(&mut self) {
        let Some(snapshot) = &mut self.snapshot else { return };
        let (stage, asked) = (snapshot.stage, snapshot.asked);
        let is_mixed = snapshot.by.len() > 1;
        #[cfg(test)]
        let is_mixed = match self.base.cx.broken {
            crate::tests::Broken::MixedSnapshot => false,
            crate::tests::Broken::AnyAttempt => is_mixed && snapshot.old != asked,
            _ => is_mixed,
        };
        if is_mixed && matches!(stage, Stage::Taking(_)) {
            let detail = "some copies have it from another moment; delete it there, or choose \
                          another id";
            snapshot.problem.get_or_insert(Problem::new(ProblemKind::AlreadyExists, detail));
        }
        let (id, taken) = (snapshot.id, asked.without(snapshot.old));
        match (stage, snapshot.problem.clone()) {
            (Stage::Taking(ticket), Some(_)) => {
                // All or none.
                self.snapshot_stage(Stage::Dropping(ticket));
                self.remember_orphans(taken, id);
                #[cfg(test)]
                if self.base.cx.broken == crate::tests::Broken::HalfSnapshot {
                    return;
                }
                self.ask_snapshot(taken, false);
            }
            (Stage::Taking(ticket) | Stage::Dropping(ticket), problem) => {
                self.base.lane.leave(ticket);
                self.end_snapshot(problem.map_or(Ok(()), Err));
            }
            _ => {}
        }
    }

    pub(crate) fn end_snapshot(&mut self, result: Result<(), Problem>) {
        if let Some(snapshot) = self.snapshot.take() {
            self.base.cx.answer(snapshot.token, result);
            // A copy that waited for this may join now.
            self.base.cx.rescan();
        }
    }
}
