//! Damage that mirrors find and mend, told at most once a second for each volume.

use std::collections::BTreeMap;
use std::time::Duration;

use block::{Instant, Span};
use mirror::Effect;
use model::ReplicaId;
use reactor::Io;

use super::order::What;
use super::volume::Volume;

/// How often damage is told.
const EVERY: Duration = Duration::from_secs(1);
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
    /// Blocks that no copy could prove after a crash, by the copy that is believed.
    pub accepted: BTreeMap<ReplicaId, Places>,
    /// Blocks that no copy can read.
    pub unreadable: Places,
    /// Blocks that are good on several copies and not equal.
    pub differing: Places,
}

/// The damage of one volume.
#[derive(Debug, Default)]
pub(super) struct Untold {
    damage: Damage,
    told: Option<Instant>,
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
            Effect::Accept { io: name, session, span, .. } => {
                if !self.ask(session, |child| child.accept(name, span, io)) {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Checked { token, found } => {
                self.checked.insert(token.0, *found);
            }
            Effect::Conflict(conflict) => self.tell(What::Conflict(conflict)),
            told => {
                self.untold.add(&told);
                self.tell_damage(now);
            }
        }
    }

    /// Tells what was found since it was last told.
    pub(super) fn tell_damage(&mut self, now: Instant) {
        if let Some(damage) = self.untold.due(now) {
            self.tell(What::Damage(Box::new(damage)));
        }
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
