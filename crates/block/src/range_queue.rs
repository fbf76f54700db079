//! Order of commands: those of one device that share a block run in the order they came.
//!
//! Invariant: a running command conflicts with no other running one, and with none that came before
//! it and still waits, unless it only moves blocks.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::{Command, Span};

/// What a command keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeAccess {
    /// Reads these blocks.
    Read(Span),
    /// Changes these blocks.
    Write(Span),
    /// Moves these blocks without changing what they hold, for those who wait: it waits for nobody
    /// who has not begun, nor for one that is [idle](RangeQueue::idle).
    Move(Span),
    /// A write that waits for others to move blocks, and does nothing meanwhile.
    Idle(Span),
    /// Wants no change under way: a snapshot.
    Still,
    /// Wants nothing under way: a resize or a delete.
    Alone,
    /// Minds nobody: a flush.
    Free,
}

impl RangeAccess {
    /// What a block command keeps others from.
    pub fn of(command: Command) -> RangeAccess {
        match command.span() {
            None => RangeAccess::Free,
            Some(span) if command.is_mutation() => RangeAccess::Write(span),
            Some(span) => RangeAccess::Read(span),
        }
    }

    /// Whether there are reads that it conflicts with.
    fn may_stop_a_read(self) -> bool {
        matches!(
            self,
            RangeAccess::Write(_)
                | RangeAccess::Move(_)
                | RangeAccess::Idle(_)
                | RangeAccess::Alone
        )
    }

    fn conflicts(self, other: RangeAccess) -> bool {
        match (self, other) {
            (RangeAccess::Free, _)
            | (_, RangeAccess::Free)
            | (RangeAccess::Read(_), RangeAccess::Read(_) | RangeAccess::Still)
            | (RangeAccess::Still, RangeAccess::Read(_))
            | (RangeAccess::Move(_), RangeAccess::Idle(_))
            | (RangeAccess::Idle(_), RangeAccess::Move(_)) => false,
            (RangeAccess::Alone | RangeAccess::Still, _)
            | (_, RangeAccess::Alone | RangeAccess::Still) => true,
            (
                RangeAccess::Write(a)
                | RangeAccess::Move(a)
                | RangeAccess::Idle(a)
                | RangeAccess::Read(a),
                RangeAccess::Write(b)
                | RangeAccess::Move(b)
                | RangeAccess::Idle(b)
                | RangeAccess::Read(b),
            ) => a.overlaps(b),
        }
    }

    fn is_move(self) -> bool {
        matches!(self, RangeAccess::Move(_))
    }
}

/// The commands of one device, each with a name the caller chose.
#[derive(Debug)]
pub struct RangeQueue<K> {
    /// In any order.
    running: Vec<(K, RangeAccess)>,
    waiting: VecDeque<(K, RangeAccess)>,
    /// How many of all of them a read may conflict with.
    changes: usize,
}

impl<K> Default for RangeQueue<K> {
    fn default() -> RangeQueue<K> {
        RangeQueue { running: Vec::new(), waiting: VecDeque::new(), changes: 0 }
    }
}

impl<K: Copy + PartialEq> RangeQueue<K> {
    /// Takes a command; true if it may run now.
    pub fn enter(&mut self, name: K, claim: RangeAccess) -> bool {
        // Most reads meet nothing but reads, which need not be looked at.
        let is_alone = self.changes == 0 && matches!(claim, RangeAccess::Read(_));
        let waiting = if claim.is_move() { 0 } else { self.waiting.len() };
        let mut before = self.running.iter().chain(self.waiting.iter().take(waiting));
        let free = is_alone || !before.any(|(_, other)| claim.conflicts(*other));
        self.changes += usize::from(claim.may_stop_a_read());
        if free {
            self.running.push((name, claim));
        } else {
            self.waiting.push_back((name, claim));
        }
        free
    }

    /// A command has ended or is withdrawn; those that may run now are added to `ready`.
    pub fn leave(&mut self, name: K, ready: &mut Vec<K>) {
        let running = self.running.iter().position(|(other, _)| *other == name);
        let gone = if let Some(at) = running {
            Some(self.running.swap_remove(at))
        } else {
            let waiting = self.waiting.iter().position(|(other, _)| *other == name);
            waiting.and_then(|at| self.waiting.remove(at))
        };
        let Some((_, claim)) = gone else { return };
        self.changes -= usize::from(claim.may_stop_a_read());
        self.admit(ready);
    }

    /// Lets those run who may now.
    fn admit(&mut self, ready: &mut Vec<K>) {
        let mut at = 0;
        while let Some((name, claim)) = self.waiting.get(at).copied() {
            let waiting = if claim.is_move() { 0 } else { at };
            let before = self.running.iter().chain(self.waiting.iter().take(waiting));
            if before.into_iter().any(|(_, other)| claim.conflicts(*other)) {
                at += 1;
            } else {
                self.waiting.remove(at);
                self.running.push((name, claim));
                ready.push(name);
            }
        }
    }

    /// A running write waits until blocks were moved: it does nothing until it is resumed, and
    /// those who came after it wait.
    pub fn idle(&mut self, name: K, ready: &mut Vec<K>) {
        let claim = self.running.iter().position(|(other, _)| *other == name);
        if let Some((_, claim)) = claim.and_then(|at| self.running.get_mut(at))
            && let RangeAccess::Write(span) = *claim
        {
            *claim = RangeAccess::Idle(span);
        }
        self.admit(ready);
    }

    /// An idle write goes on; false if blocks of it are being moved.
    pub fn resume(&mut self, name: K) -> bool {
        let Some(at) = self.running.iter().position(|(other, _)| *other == name) else {
            return false;
        };
        let Some((_, RangeAccess::Idle(span))) = self.running.get(at).copied() else {
            return false;
        };
        let mut moves = self.running.iter().filter(|(_, other)| other.is_move());
        let is_free = !moves.any(|(_, other)| other.conflicts(RangeAccess::Write(span)));
        if let Some((_, claim)) = self.running.get_mut(at).filter(|_| is_free) {
            *claim = RangeAccess::Write(span);
        }
        is_free
    }

    /// Whether nothing runs or waits.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blocks, Lba};
    use proptest::prelude::*;

    /// The invariant, written down: who runs, of all that are in, in the order they came.
    fn running(all: &[(u8, RangeAccess)]) -> Vec<u8> {
        let stopped = |at: usize, claim: RangeAccess| {
            let before = all.iter().take(at);
            before.into_iter().any(|(_, other)| claim.conflicts(*other))
        };
        let runs = |(at, (name, claim)): (usize, &(u8, RangeAccess))| {
            (!stopped(at, *claim)).then_some(*name)
        };
        all.iter().enumerate().filter_map(runs).collect()
    }

    fn claim() -> impl Strategy<Value = RangeAccess> {
        let span =
            (0u64..6, 1u64..3).prop_map(|(at, len)| Span::new(Lba(at), Blocks(len)).unwrap());
        prop_oneof![
            4 => span.clone().prop_map(RangeAccess::Read),
            4 => span.prop_map(RangeAccess::Write),
            1 => Just(RangeAccess::Still),
            1 => Just(RangeAccess::Alone),
            1 => Just(RangeAccess::Free),
        ]
    }

    #[test]
    fn blocks_are_moved_under_a_write_that_waits_for_that() {
        let span = |at, len| Span::new(Lba(at), Blocks(len)).unwrap();
        let (mut lane, mut ready) = (RangeQueue::default(), Vec::new());
        assert!(lane.enter('w', RangeAccess::Write(span(0, 4))));
        assert!(!lane.enter('l', RangeAccess::Write(span(3, 4))), "it came later");
        assert!(!lane.enter('s', RangeAccess::Still));
        assert!(!lane.enter('m', RangeAccess::Move(span(2, 8))));
        lane.idle('w', &mut ready);
        assert_eq!(ready, ['m'], "nobody else may pass");
        assert!(!lane.resume('w'), "its blocks are being moved");
        assert!(!lane.enter('r', RangeAccess::Read(span(0, 1))));
        ready.clear();
        lane.leave('m', &mut ready);
        assert_eq!(ready, []);
        assert!(lane.resume('w') && !lane.resume('w'));
        assert!(!lane.enter('n', RangeAccess::Move(span(0, 1))), "it does something again");
        lane.leave('w', &mut ready);
        assert_eq!(ready, ['l', 'r']);
        ready.clear();
        for name in ['l', 'r', 's', 'n'] {
            lane.leave(name, &mut ready);
        }
        assert_eq!(ready, ['s', 'n'], "a snapshot minds no read");
        assert!(lane.is_empty() && lane.changes == 0);
    }

    proptest! {
        #[test]
        fn whoever_meets_nobody_earlier_runs(
            steps in proptest::collection::vec((claim(), 0usize..8, any::<bool>()), 1..60),
        ) {
            let (mut lane, mut all, mut now) = (RangeQueue::default(), Vec::new(), Vec::new());
            for (name, (claim, gone, leaves)) in (0u8..).zip(steps) {
                if leaves && gone < all.len() {
                    let (gone, _) = all.remove(gone);
                    now.retain(|name| *name != gone);
                    lane.leave(gone, &mut now);
                }
                all.push((name, claim));
                if lane.enter(name, claim) {
                    now.push(name);
                }
                now.sort_unstable();
                prop_assert_eq!(&now, &running(&all));
            }
            for (name, _) in all.drain(..) {
                lane.leave(name, &mut now);
            }
            prop_assert!(lane.is_empty() && lane.changes == 0);
        }
    }
}
