//! Damage: what scrubs of replicas found is checked by the mirror, and what mirrors find and mend
//! is told, at most once a second for each volume.
//!
//! Every few seconds each replica is asked what a scrub found. These blocks are checked one run
//! after another, beside everything else: each is rewritten from a copy that has it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use block::{Instant, Span};
use mirror::{Buffer, Checked, CommandId, Effect, MirrorRequest, Session, UnreadableBlocks};
use model::{Problem, ReplicaId};
use reactor::Io;

use super::replica_connection::DamageEvent;
use super::replica_protocol::BLOCK;
use super::request::{EventKind, VolumeResponse};
use super::snapshot_repair::SnapshotRepairs;
use super::volume::Volume;

/// How often damage is told.
const EVERY: Duration = Duration::from_secs(1);
/// How often replicas are asked what scrubs found.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// Most runs that wait to be checked; others are found by the next scrub.
const MOST_WAITING: usize = 4096;
/// Most spans that are named at once; all are counted.
const NAMED: usize = 64;

/// Blocks of one kind of damage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// How many blocks.
    pub blocks: u64,
    /// Where the first of them are, at most 64.
    pub first: Vec<Span>,
}

impl Places {
    fn add(&mut self, span: Span) {
        self.blocks += span.len().0;
        if self.first.len() < NAMED {
            self.first.push(span);
        }
    }
}

/// What was found and mended, and not told yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Blocks that were rewritten from another copy, by copy.
    pub repaired: BTreeMap<ReplicaId, Places>,
    /// The same in snapshots.
    pub repaired_in_snapshots: BTreeMap<ReplicaId, Places>,
    /// Damaged blocks that an operator kept, by the copy that held them.
    pub kept: BTreeMap<ReplicaId, Places>,
    /// Blocks that no copy could prove after a crash, by the copy that is believed.
    pub accepted: BTreeMap<ReplicaId, Places>,
    /// Blocks that no copy can read.
    pub unreadable: Places,
    /// Blocks that are good on several copies and not equal.
    pub differing: Places,
}

/// What is not told yet.
#[derive(Debug, Default)]
struct Untold {
    damage: Damage,
    told: Option<Instant>,
}

/// The damage of one volume.
#[derive(Debug, Default)]
pub(super) struct Found {
    untold: Untold,
    /// What checks found whose orders are answered next.
    checked: BTreeMap<u64, Checked>,
    /// What replicas said is damaged, and what of it is being checked, by which order.
    waiting: VecDeque<Span>,
    checking: Option<(u64, Span)>,
    asked: Option<Instant>,
    snapshots: SnapshotRepairs,
}

impl Found {
    /// A scrub of a replica found these blocks damaged.
    fn found(&mut self, spans: Vec<Span>) {
        let room = MOST_WAITING.saturating_sub(self.waiting.len());
        self.waiting.extend(spans.into_iter().take(room));
    }
}

impl Untold {
    fn add(&mut self, effect: &Effect) {
        match effect {
            Effect::Repaired(replica, span) => {
                self.damage.repaired.entry(*replica).or_default().add(*span);
            }
            Effect::Accepted(replica, span) => {
                self.damage.accepted.entry(*replica).or_default().add(*span);
            }
            Effect::Kept(replica, span) => {
                self.damage.kept.entry(*replica).or_default().add(*span);
            }
            Effect::Unreadable(span) => self.damage.unreadable.add(*span),
            Effect::Differing(span, _) => self.damage.differing.add(*span),
            _ => {}
        }
    }

    /// What is to be told now.
    fn due(&mut self, now: Instant) -> Option<Damage> {
        let is_due = self.told.is_none_or(|told| now.since(told) >= EVERY);
        if !is_due || self.damage == Damage::default() {
            return None;
        }
        self.told = Some(now);
        Some(core::mem::take(&mut self.damage))
    }
}

impl Volume {
    /// Carries out what is about damage.
    pub(super) fn mend(&mut self, effect: Effect, now: Instant, io: &impl Io) {
        match effect {
            Effect::Accept { io: name, session, span, is_damaged, .. } => {
                if !self.ask(session, |child| child.accept(name, (span, is_damaged), io)) {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Repair { io: name, session, at, buffer: Buffer::Copy(number), .. } => {
                let good = self.copies.get(&number).and_then(|bytes| bytes.get(..BLOCK));
                let good = good.map(<[u8]>::to_vec);
                let is_sent = good.is_some_and(|good| {
                    self.ask(session, |child| child.repair(name, (at, &good), io))
                });
                if !is_sent {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Checked { token, found } => {
                self.damage.checked.insert(token.0, *found);
            }
            Effect::Conflict(conflict) => self.tell(EventKind::Conflict(conflict)),
            told => {
                self.damage.untold.add(&told);
                self.tell_damage(now);
            }
        }
    }

    /// Tells what was found since it was last told.
    fn tell_damage(&mut self, now: Instant) {
        if let Some(damage) = self.damage.untold.due(now) {
            self.tell(EventKind::Damage(Box::new(damage)));
        }
    }

    /// Asks replicas now and then what scrubs found, and has that checked.
    pub(super) fn look_for_damage(&mut self, now: Instant, io: &impl Io) {
        self.tell_damage(now);
        if self.damage.asked.is_none_or(|asked| now.since(asked) >= ASK_EVERY) {
            self.damage.asked = Some(now);
            self.children.values_mut().for_each(|child| child.ask_damaged(io));
        }
        self.check_next(now);
        self.damage.snapshots.tick();
        self.step_snapshots(now, io);
    }

    /// Does what can be done about snapshots without waiting.
    pub(super) fn repair_snapshots(&mut self, now: Instant, io: &impl Io) {
        if self.damage.snapshots.can_step() {
            self.step_snapshots(now, io);
        }
    }

    /// What a replica says about damage.
    pub(super) fn damage_told(&mut self, session: Session, news: DamageEvent) {
        match news {
            DamageEvent::Blocks(spans) => self.damage.found(spans),
            DamageEvent::Snapshots(places) => {
                if let Some(child) = self.children.get(&session) {
                    self.damage.snapshots.found(child.replica, places);
                }
            }
            DamageEvent::Stepped(step, result) => {
                if let Some((replica, span)) = self.damage.snapshots.ended(step, result) {
                    let repaired = &mut self.damage.untold.damage.repaired_in_snapshots;
                    repaired.entry(replica).or_default().add(span);
                }
            }
        }
    }

    /// Does the next step of the repair of a snapshot.
    fn step_snapshots(&mut self, now: Instant, io: &impl Io) {
        let up = self.children.iter().filter(|(_, child)| child.is_up());
        let up: Vec<_> = up.map(|(session, child)| (*session, child.replica)).collect();
        while let Some((session, step, message)) = self.damage.snapshots.next(&up, now) {
            let mut is_sent = false;
            self.ask(session, |child| is_sent = child.step_snapshot(step, message, io));
            if !is_sent {
                return self.damage.snapshots.not_sent();
            }
        }
    }

    /// Has the next run of damaged blocks checked, one at a time.
    fn check_next(&mut self, now: Instant) {
        if self.damage.checking.is_some() {
            return;
        }
        let next = self.damage.waiting.pop_front();
        let whole = self.mirror().geometry().span();
        let Some(span) = next.and_then(|span| span.intersect(whole)) else { return };
        self.next_order += 1;
        self.damage.checking = Some((self.next_order, span));
        let order =
            MirrorRequest::Check { span, believed: None, unreadable: UnreadableBlocks::Tell };
        self.mirror.request(CommandId(self.next_order), order, now);
    }

    /// An order was answered: what a check found, if it was one. One of our own that could not be
    /// carried out is tried again.
    pub(super) fn checked(
        &mut self,
        order: u64,
        result: &Result<(), Problem>,
        now: Instant,
    ) -> VolumeResponse {
        let ours = self.damage.checking.take_if(|(by, _)| *by == order);
        match (ours, result) {
            (Some((_, span)), Err(_)) => self.damage.waiting.push_back(span),
            (Some(_), Ok(())) => self.check_next(now),
            (None, _) => {}
        }
        let found = self.damage.checked.remove(&order);
        found.map_or(VolumeResponse::Done, |found| VolumeResponse::Checked(Box::new(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Lba;

    #[test]
    fn damage_is_told_at_once_then_once_a_second_and_all_of_it_is_counted() {
        let mut untold = Untold::default();
        let at = |millis| Instant::since_start(Duration::from_millis(millis));
        let bad = |block| Effect::Unreadable(Span::one(Lba(block)).unwrap());
        assert_eq!(untold.due(at(0)), None);
        untold.add(&bad(7));
        assert_eq!(untold.due(at(1)).unwrap().unreadable.blocks, 1);
        (0..100).for_each(|block| untold.add(&bad(block)));
        assert_eq!(untold.due(at(900)), None);
        let told = untold.due(at(1001)).unwrap().unreadable;
        assert_eq!((told.blocks, told.first.len()), (100, NAMED));
        assert_eq!(untold.due(at(5000)), None);
    }
}
