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

use block::{Command, Completion, Instant, IoError};
use mirror::{CommandId, Session};
use reactor::{Io, Key};

use super::Shared;
use super::host_command::HostCommand;
use super::replica_connection::NSID;
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
    pub(super) fn try_bypass(
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
        let Some(session) = self.mirror.try_bypass(command, now) else { return Err(data) };
        let child = self.children.get_mut(&session);
        let way = child.and_then(|child| child.allow_bypass().then(|| child.way()));
        let (Some(way), Some(host_commands)) = (way, self.host_commands.get_mut(key)) else {
            self.mirror.bypass_done(now);
            return Err(data);
        };
        host_commands.around = Some(session);
        shared
            .submit_local(way, Request { tag: AROUND | key.to_bits(), nsid: NSID, command, data });
        Ok(())
    }

    /// A read that went around has ended; whether that leaves something to do.
    pub(super) fn bypass_done(
        &mut self,
        session: Session,
        key: Key,
        (completion, data): (Completion, Data),
        shared: &mut Shared,
        io: &mut impl Io,
    ) -> bool {
        let now = instant(io);
        let is_its = |host_commands: &&mut HostCommand| host_commands.around == Some(session);
        // One that was brought back before ends there.
        let Some(host_commands) = self.host_commands.get_mut(key).filter(is_its) else {
            return false;
        };
        host_commands.data = data;
        let counted = host_commands.counted;
        let mut is_stirred = self.mirror.bypass_done(now);
        if let Some(child) = self.children.get_mut(&session) {
            self.by_child.entry(child.replica).or_default().ended(counted, completion, now);
            child.bypass_done(io);
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
                self.bypass_failed(key, (session, IoError::Unreachable), now);
                true
            }
            Err(fault) => {
                self.bypass_failed(key, (session, fault), now);
                true
            }
        }
    }

    /// There is no short way to a copy: a read that took it comes back.
    pub(super) fn is_far(&mut self, session: Session, (key, data): (Key, Data), now: Instant) {
        if let Some(child) = self.child(session) {
            child.is_far();
        }
        let is_its = |host_commands: &&mut HostCommand| host_commands.around == Some(session);
        if let Some(host_commands) = self.host_commands.get_mut(key).filter(is_its) {
            host_commands.data = data;
            self.mirror.bypass_done(now);
            self.bypass_failed(key, (session, IoError::Unreachable), now);
        }
    }

    /// The attachment of reads that went around is gone: the mirror decides about them.
    pub(super) fn bring_back(&mut self, session: Session, now: Instant) {
        let is_its =
            |(_, host_commands): &(Key, &HostCommand)| host_commands.around == Some(session);
        let keys: Vec<Key> = self.host_commands.iter().filter(is_its).map(|(key, _)| key).collect();
        for key in keys {
            let Some(counted) =
                self.host_commands.get(key).map(|host_commands| host_commands.counted)
            else {
                continue;
            };
            self.count_for(session, counted, Err(IoError::Unreachable), now);
            self.mirror.bypass_done(now);
            self.bypass_failed(key, (session, IoError::Unreachable), now);
        }
    }

    fn bypass_failed(&mut self, key: Key, from: (Session, IoError), now: Instant) {
        if let Some(host_commands) = self.host_commands.get_mut(key) {
            host_commands.around = None;
            let (token, command) = (CommandId(key.to_bits()), host_commands.command);
            self.mirror.bypass_failed(token, command, from.0, from.1, now);
        }
    }

    /// Gives up attachments that do not answer reads that went around.
    pub(super) fn give_up_late(&mut self, now: Instant, io: &mut impl Io) {
        let late = |host_commands: &HostCommand| {
            host_commands.around.filter(|_| host_commands.counted.age(now) >= PATIENCE)
        };
        let late: BTreeSet<Session> =
            self.host_commands.iter().filter_map(|(_, it)| late(it)).collect();
        for session in late {
            if let Some(child) = self.children.get_mut(&session) {
                child.is_late(io);
            }
        }
    }
}
