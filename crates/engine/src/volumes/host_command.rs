//! A host's command with its bytes, while a mirror works on it; and which bytes a child gets.

use block::{Command, Completion, Instant, IoError};
use mirror::{Buffer, CommandId, Session};
use reactor::{Io, Key, SharedBuffer};

use super::Shared;
use super::volume::{BLOCK, Volume};
use crate::counters::OpTimer;
use crate::device::Data;
use crate::pools::CompletedCommand;

/// A host's command.
pub(super) struct HostCommand {
    pub(super) owner: Key,
    pub(super) command: Command,
    pub(super) counted: OpTimer,
    /// The attachment that it was asked of without the mirror.
    pub(super) around: Option<Session>,
    /// None while a child reads into them.
    pub(super) data: Data,
}

impl HostCommand {
    /// The bytes for a child: to be read into, or shared.
    pub(super) fn lend(&mut self, is_read: bool) -> Data {
        match core::mem::replace(&mut self.data, Data::None) {
            Data::Fill(buffer) if is_read => Data::Fill(buffer),
            // What was read is written to a copy that had it wrong.
            Data::Fill(buffer) => {
                let bytes = buffer.freeze();
                self.data = Data::Bytes(bytes.clone());
                Data::Bytes(bytes)
            }
            Data::Bytes(bytes) => {
                self.data = Data::Bytes(bytes.clone());
                Data::Bytes(bytes)
            }
            other => {
                self.data = other;
                Data::None
            }
        }
    }
}

impl Volume {
    /// The bytes for an I/O of a child; none if there is no memory for them now.
    pub(super) fn data_of(
        &mut self,
        command: Command,
        buffer: Buffer,
        io: &mut impl Io,
    ) -> Option<Data> {
        let bytes = command.span().map_or(0, |span| span.len().0.saturating_mul(BLOCK));
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let is_read = matches!(command, Command::Read { .. });
        match buffer {
            Buffer::None => Some(Data::None),
            Buffer::Copy(_) if is_read => io.take(bytes).map(Data::Fill),
            Buffer::Copy(number) => {
                let part = self.copies.get(&number).and_then(|copy| copy.part(0, bytes));
                Some(part.map_or(Data::None, Data::Bytes))
            }
            Buffer::Host(CommandId(token)) => {
                let host_commands = self.host_commands.get_mut(Key::from_bits(token));
                let Some(host_commands) = host_commands else { return Some(Data::None) };
                if is_read && matches!(host_commands.data, Data::None) {
                    // A child that is lost still reads into the bytes there were.
                    return io.take(bytes).map(Data::Fill);
                }
                Some(host_commands.lend(is_read))
            }
        }
    }

    /// Bytes came back from a child.
    pub(super) fn put_back(&mut self, buffer: Buffer, data: Data) {
        match (buffer, data) {
            (Buffer::Copy(number), Data::Fill(filled)) => {
                self.copies.insert(number, filled.freeze());
            }
            (Buffer::Host(CommandId(token)), filled @ Data::Fill(_)) => {
                if let Some(host_commands) = self.host_commands.get_mut(Key::from_bits(token)) {
                    host_commands.data = filled;
                }
            }
            _ => {}
        }
    }

    /// A host's command has ended.
    pub(super) fn done(
        &mut self,
        key: Key,
        result: Completion,
        (shared, now): (&mut Shared, Instant),
        io: &mut impl Io,
    ) {
        let Some(host_commands) = self.host_commands.remove(key) else { return };
        let HostCommand { owner, command, counted, data, .. } = host_commands;
        let is_read = matches!(command, Command::Read { .. });
        self.counters.ended(counted, result, now);
        let (completion, data) = match data {
            Data::Bytes(bytes) if is_read => given_back(bytes, result, io),
            data => (result, data),
        };
        shared.ended.push_back(CompletedCommand { owner, completion, data });
    }
}

/// The bytes of a command as its owner wants them back: what was read must be its own again.
fn given_back(bytes: SharedBuffer, result: Completion, io: &mut impl Io) -> (Completion, Data) {
    match bytes.thaw() {
        Ok(buffer) => (result, Data::Fill(buffer)),
        Err(shared) => match io.take(shared.len()) {
            Some(mut copy) => {
                copy.copy_from_slice(&shared);
                (result, Data::Fill(copy))
            }
            None => (result.and(Err(IoError::Busy)), Data::None),
        },
    }
}
