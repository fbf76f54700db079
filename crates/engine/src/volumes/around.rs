//! Reads of a local copy that go around the mirror, while that has nothing to say about them.
//!
//! ```text
//!   host ─► Volume ─► replica of the same core ─► Volume ─► host
//!                            │ failed, lost, late, not here
//!                            └──► Mirror, which reads elsewhere what was wrong here
//! ```
//!
//! Such a read is known here and to its attachment by number only; the mirror counts it. It has
//! the name of its host's command, with a bit that no other name has.

use std::collections::BTreeSet;

use block::{Command, Completion, Fault, Instant};
use mirror::{Session, Token};
use reactor::{Io, Key};

use super::Shared;
use super::child::NSID;
use super::hosted::Hosted;
use super::volume::{PATIENCE, Volume};
use crate::client::Request;
use crate::clock::instant;
use crate::device::Data;

/// Marks the tags of such reads.
const AROUND: u64 = 1 << 63;

/// The command of a host whose read has this tag, if it went around.
pub(super) fn key_of(tag: u64) -> Option<Key> {
    (tag & AROUND != 0).then(|| Key::from_bits(tag & !AROUND))
}

impl Volume {
    /// Asks a copy for what a host wants to read; hands its buffer back if the mirror must do it.
    pub(super) fn ask_around(
        &mut self,
        (key, command): (Key, Command),
        data: Data,
        shared: &mut Shared,
        now: Instant,
    ) -> Result<(), Data> {
        #[cfg(feature = "faults")]
        if crate::faults::concern_children() {
            return Err(data);
        }
        let Some(session) = self.mirror.ask_around(command, now) else { return Err(data) };
        let child = self.children.get_mut(&session);
        let way = child.and_then(|child| child.let_around().then(|| child.way()));
        let (Some(way), Some(hosted)) = (way, self.hosted.get_mut(key)) else {
            self.mirror.went_around(now);
            return Err(data);
        };
        hosted.around = Some(session);
        shared.pass(way, Request { tag: AROUND | key.to_bits(), nsid: NSID, command, data });
        Ok(())
    }

    /// A read that went around has ended; whether that leaves something to do.
    pub(super) fn went_around(
        &mut self,
        session: Session,
        key: Key,
        (completion, data): (Completion, Data),
        shared: &mut Shared,
        io: &mut impl Io,
    ) -> bool {
        let now = instant(io);
        let is_its = |hosted: &&mut Hosted| hosted.around == Some(session);
        // One that was brought back before ends there.
        let Some(hosted) = self.hosted.get_mut(key).filter(is_its) else { return false };
        hosted.data = data;
        let counted = hosted.counted;
        let mut is_stirred = self.mirror.went_around(now);
        if let Some(child) = self.children.get_mut(&session) {
            self.by_child.entry(child.replica).or_default().ended(counted, completion, now);
            child.went_around(io);
            if child.is_waiting() {
                self.touch(session);
                is_stirred = true;
            }
        }
        // The lease counts when a read ends: whatever stood still meanwhile, nobody else has
        // acknowledged a write before this moment.
        match completion {
            Ok(()) if self.mirror.may_answer(now) => {
                self.done(key, Ok(()), (shared, now), io);
                is_stirred
            }
            Ok(()) => {
                self.come_back(key, (session, Fault::Unreachable), now);
                true
            }
            Err(fault) => {
                self.come_back(key, (session, fault), now);
                true
            }
        }
    }

    /// There is no short way to a copy: a read that took it comes back.
    pub(super) fn is_far(&mut self, session: Session, (key, data): (Key, Data), now: Instant) {
        if let Some(child) = self.child(session) {
            child.is_far();
        }
        let is_its = |hosted: &&mut Hosted| hosted.around == Some(session);
        if let Some(hosted) = self.hosted.get_mut(key).filter(is_its) {
            hosted.data = data;
            self.mirror.went_around(now);
            self.come_back(key, (session, Fault::Unreachable), now);
        }
    }

    /// The attachment of reads that went around is gone: the mirror decides about them.
    pub(super) fn bring_back(&mut self, session: Session, now: Instant) {
        let is_its = |(_, hosted): &(Key, &Hosted)| hosted.around == Some(session);
        let keys: Vec<Key> = self.hosted.iter().filter(is_its).map(|(key, _)| key).collect();
        for key in keys {
            let Some(counted) = self.hosted.get(key).map(|hosted| hosted.counted) else { continue };
            self.count_for(session, counted, Err(Fault::Unreachable), now);
            self.mirror.went_around(now);
            self.come_back(key, (session, Fault::Unreachable), now);
        }
    }

    fn come_back(&mut self, key: Key, from: (Session, Fault), now: Instant) {
        if let Some(hosted) = self.hosted.get_mut(key) {
            hosted.around = None;
            self.mirror.come_back(Token(key.to_bits()), hosted.command, from, now);
        }
    }

    /// Gives up attachments that do not answer reads that went around.
    pub(super) fn give_up_late(&mut self, now: Instant, io: &mut impl Io) {
        let late = |hosted: &Hosted| hosted.around.filter(|_| hosted.counted.age(now) >= PATIENCE);
        let late: BTreeSet<Session> = self.hosted.iter().filter_map(|(_, it)| late(it)).collect();
        for session in late {
            if let Some(child) = self.children.get_mut(&session) {
                child.is_late(io);
            }
        }
    }
}
