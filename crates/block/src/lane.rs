//! Order of commands: those of one device that share a block run in the order they came.
//!
//! Invariant: a running command conflicts with no other running one, and with none that came before
//! it and still waits.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::{Command, Span};

/// What a command keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
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
    /// What a block command keeps others from.
    pub fn of(command: Command) -> Claim {
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

/// The commands of one device, each with a name the caller chose.
#[derive(Debug)]
pub struct Lane<K> {
    running: Vec<(K, Claim)>,
    waiting: VecDeque<(K, Claim)>,
}

impl<K> Default for Lane<K> {
    fn default() -> Lane<K> {
        Lane { running: Vec::new(), waiting: VecDeque::new() }
    }
}

impl<K: Copy + PartialEq> Lane<K> {
    /// Takes a command; true if it may run now.
    pub fn enter(&mut self, name: K, claim: Claim) -> bool {
        let before = self.running.iter().chain(&self.waiting);
        let free = !before.into_iter().any(|(_, other)| claim.conflicts(*other));
        if free {
            self.running.push((name, claim));
        } else {
            self.waiting.push_back((name, claim));
        }
        free
    }

    /// A command has ended or is withdrawn; those that may run now are added to `ready`.
    pub fn leave(&mut self, name: K, ready: &mut Vec<K>) {
        self.running.retain(|(other, _)| *other != name);
        self.waiting.retain(|(other, _)| *other != name);
        let mut at = 0;
        while let Some((name, claim)) = self.waiting.get(at).copied() {
            let before = self.running.iter().chain(self.waiting.iter().take(at));
            if before.into_iter().any(|(_, other)| claim.conflicts(*other)) {
                at += 1;
            } else {
                self.waiting.remove(at);
                self.running.push((name, claim));
                ready.push(name);
            }
        }
    }

    /// Whether nothing runs or waits.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }
}
