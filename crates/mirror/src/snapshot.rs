//! A snapshot of the volume: at one point on every copy in sync, all or none.
//!
//! ```text
//!   no doubt, all there ──► lane: no write under way ──► snapshot each ──all well──► answer
//!                                                              └─ some not ─► drop each ─► refuse
//! ```

use alloc::format;

use block::{Blame, Claim, Completion, Fault, Instant};
use model::{Kind, Problem, SnapshotId};

use crate::api::{Effect, Token};
use crate::child::reason;
use crate::mirror::{Mirror, Pending, Purpose, Ticket};
use crate::slots::Slots;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    InLane(Ticket),
    Taking(Ticket),
    Dropping(Ticket),
}

/// A snapshot under way.
#[derive(Debug)]
pub(crate) struct Snapshotting {
    token: Token,
    id: SnapshotId,
    /// Until when it may wait.
    pub(crate) deadline: Instant,
    stage: Stage,
    asked: Slots,
    outstanding: Slots,
    problem: Option<Problem>,
}

impl Mirror {
    pub(crate) fn take_snapshot(&mut self, token: Token, id: SnapshotId) {
        if self.snapshot.is_some() {
            let problem = Problem::new(Kind::Busy, "a snapshot is being taken; try again");
            return self.answer(token, Err(problem));
        }
        self.snapshot = Some(Snapshotting {
            token,
            id,
            deadline: self.now.after(self.policy.hold),
            stage: Stage::Waiting,
            asked: Slots::NONE,
            outstanding: Slots::NONE,
            problem: None,
        });
    }

    /// Whether copies are being asked for a snapshot.
    pub(crate) fn is_snapshotting(&self) -> bool {
        let stage = self.snapshot.as_ref().map(|snapshot| snapshot.stage);
        matches!(stage, Some(Stage::Taking(_) | Stage::Dropping(_)))
    }

    fn can_snapshot(&self) -> bool {
        self.is_settled() && self.dirty.doubt.is_empty() && self.must() == self.in_sync()
    }

    pub(crate) fn pump_snapshot(&mut self) {
        let can = self.can_snapshot();
        let Some(snapshot) = &self.snapshot else { return };
        match snapshot.stage {
            Stage::Waiting if self.now >= snapshot.deadline => {
                let problem = Problem::new(Kind::TimedOut, "copies do not agree yet; try again");
                self.end_snapshot(Err(problem));
            }
            Stage::Waiting if can => {
                let ticket = self.next_ticket();
                self.snapshot_stage(Stage::InLane(ticket));
                if self.lane.enter(ticket, Claim::Still) {
                    self.ready.push(ticket);
                }
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
        self.poke = true;
    }

    /// No write is under way, and none begins.
    pub(crate) fn snapshot_granted(&mut self, ticket: Ticket) {
        let mine = |snapshot: &Snapshotting| snapshot.stage == Stage::InLane(ticket);
        if !self.snapshot.as_ref().is_some_and(mine) {
            return self.lane.leave(ticket, &mut self.ready);
        }
        if !self.can_snapshot() {
            self.lane.leave(ticket, &mut self.ready);
            return self.snapshot_stage(Stage::Waiting);
        }
        self.snapshot_stage(Stage::Taking(ticket));
        let to = self.must();
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.asked = to;
        }
        self.ask_snapshot(to, true);
    }

    fn ask_snapshot(&mut self, to: Slots, take: bool) {
        let Some(id) = self.snapshot.as_ref().map(|snapshot| snapshot.id) else { return };
        for slot in to.iter() {
            let Some((io, child, session)) = self.ask(slot, Purpose::Snapshot) else { continue };
            let (child, snapshot) = (child.replica, id);
            self.effects.push_back(if take {
                Effect::Snapshot { io, child, session, snapshot }
            } else {
                Effect::DropSnapshot { io, child, session, snapshot }
            });
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.outstanding.insert(slot);
            }
        }
    }

    pub(crate) fn snapshot_answered(&mut self, from: Pending, result: Completion) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.outstanding.remove(from.slot);
        }
        self.poke = true;
        let Err(fault) = result else { return };
        let Some(child) = self.child(from.slot) else { return };
        let (replica, current) = (child.replica, child.is_current(from.session));
        let stage = self.snapshot.as_ref().map(|snapshot| snapshot.stage);
        if fault == Fault::Busy && current {
            // It was not begun: again, until the child says something else.
            return self
                .ask_snapshot(Slots::one(from.slot), !matches!(stage, Some(Stage::Dropping(_))));
        }
        if let Some(snapshot) = &mut self.snapshot {
            let kind = if fault == Fault::NoSpace { Kind::NoSpace } else { Kind::Unavailable };
            let detail = format!("replica {replica} took no snapshot: {fault}; try again");
            snapshot.problem.get_or_insert(Problem::new(kind, detail));
        }
        match fault.blame() {
            Blame::Owner => self.fenced(),
            Blame::Path | Blame::Medium | Blame::Bug if current => {
                self.fail(from.slot, reason(fault));
            }
            _ => {}
        }
    }

    /// Every child has answered.
    fn snapshot_step(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let (stage, asked) = (snapshot.stage, snapshot.asked);
        match (stage, snapshot.problem.clone()) {
            (Stage::Taking(ticket), Some(_)) => {
                // All or none. A child that is away keeps one that nobody will ask for.
                self.snapshot_stage(Stage::Dropping(ticket));
                #[cfg(test)]
                if self.broken == crate::tests::Broken::HalfSnapshot {
                    return;
                }
                self.ask_snapshot(asked, false);
            }
            (Stage::Taking(ticket) | Stage::Dropping(ticket), problem) => {
                self.lane.leave(ticket, &mut self.ready);
                self.end_snapshot(problem.map_or(Ok(()), Err));
            }
            _ => {}
        }
    }

    pub(crate) fn end_snapshot(&mut self, result: Result<(), Problem>) {
        if let Some(snapshot) = self.snapshot.take() {
            self.answer(snapshot.token, result);
        }
    }
}
