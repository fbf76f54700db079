//! Order of commands: those of one replica that share a block run in the order they came.
//!
//! Invariant: a running command conflicts with no other running one, and with none that came before
//! it and still waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use block::{Command, Span};

/// Number of an operation in the pool's table.
pub(crate) type OpId = u32;

/// What a command keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Reads these blocks.
    Read(Span),
    /// Changes these blocks.
    Write(Span),
    /// Wants no change under way: a snapshot.
    Still,
    /// Wants nothing under way: a resize or a delete.
    Alone,
    /// Minds nobody: a flush.
    Free,
}

impl Claim {
    pub(crate) fn of(command: Command) -> Claim {
        match command.span() {
            None => Claim::Free,
            Some(span) if command.is_mutation() => Claim::Write(span),
            Some(span) => Claim::Read(span),
        }
    }

    fn conflicts(self, other: Claim) -> bool {
        match (self, other) {
            (Claim::Free, _)
            | (_, Claim::Free)
            | (Claim::Read(_), Claim::Read(_) | Claim::Still)
            | (Claim::Still, Claim::Read(_)) => false,
            (Claim::Alone | Claim::Still, _) | (_, Claim::Alone | Claim::Still) => true,
            (Claim::Write(a), Claim::Write(b) | Claim::Read(b))
            | (Claim::Read(a), Claim::Write(b)) => a.overlaps(b),
        }
    }
}

/// The commands of one replica.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    running: Vec<(OpId, Claim)>,
    waiting: VecDeque<(OpId, Claim)>,
}

impl Lane {
    /// Takes a command; true if it may run now.
    pub(crate) fn enter(&mut self, op: OpId, claim: Claim) -> bool {
        let before = self.running.iter().chain(&self.waiting);
        let free = !before.into_iter().any(|(_, other)| claim.conflicts(*other));
        if free {
            self.running.push((op, claim));
        } else {
            self.waiting.push_back((op, claim));
        }
        free
    }

    /// A command has ended; those that may run now are added to `ready`.
    pub(crate) fn leave(&mut self, op: OpId, ready: &mut Vec<OpId>) {
        self.running.retain(|(other, _)| *other != op);
        let mut at = 0;
        while let Some((op, claim)) = self.waiting.get(at).copied() {
            let before = self.running.iter().chain(self.waiting.iter().take(at));
            if before.into_iter().any(|(_, other)| claim.conflicts(*other)) {
                at += 1;
            } else {
                self.waiting.remove(at);
                self.running.push((op, claim));
                ready.push(op);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }
}
