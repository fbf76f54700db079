//! The commands at work on a connection.

use alloc::vec::Vec;

use super::super::command::Answer;
use super::super::event::Slot;
use crate::wire::{Sqe, Status};

/// Where a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No command.
    Free,
    /// Its capsule is being read.
    Receiving,
    /// The driver is asked for a buffer.
    AwaitGrant,
    /// The host was, or will be, asked for its data.
    Transferring,
    /// All data are there.
    Ready,
    /// The device has it.
    Device,
    /// It waits for something else than the device.
    Held,
    /// Its answer waits to be sent.
    Answered,
}

/// Why a command was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Withdrawn {
    /// It was not.
    No,
    /// By an abort command.
    Aborted,
    /// By a preempt-and-abort.
    Preempted,
}

/// One command.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) sqe: Sqe,
    pub(super) stage: Stage,
    /// Data from the host for commands whose data are not the driver's.
    pub(super) data: Vec<u8>,
    /// Whether the data are the driver's.
    pub(super) in_buffer: bool,
    /// Bytes that the host sends.
    pub(super) total: u32,
    /// Bytes that it has sent.
    pub(super) received: u32,
    /// Decided against it; it is answered when its data are out of the way.
    pub(super) refused: Option<Status>,
    /// The other half of a fused pair.
    pub(super) partner: Option<Slot>,
    /// Device commands that are not complete.
    pub(super) issued: u16,
    /// When the device got it, in an order of all commands of the connection.
    pub(super) issued_at: u64,
    /// The first failure of its device commands.
    pub(super) failure: Option<Status>,
    pub(super) withdrawn: Withdrawn,
    pub(super) answer: Answer,
    /// Bytes of the slot's buffer that go with the answer.
    pub(super) sends: u32,
}

/// All commands of a connection; their number is fixed by the depth of the queue.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    entries: Vec<Entry>,
    free: Vec<Slot>,
}

impl Slots {
    pub(super) fn new(depth: u16) -> Slots {
        let mut slots = Slots { entries: Vec::new(), free: Vec::new() };
        slots.grow(depth);
        slots
    }

    /// Makes room for a deeper queue.
    pub(super) fn grow(&mut self, depth: u16) {
        let have = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        self.entries.resize_with(depth.max(have).into(), Entry::empty);
        // The lowest slots come first, so that the driver's tables stay warm.
        self.free.splice(0..0, (have..depth).rev().map(Slot));
    }

    /// Takes a free slot for a command; none if the host has sent more than its queue holds.
    pub(super) fn take(&mut self, sqe: &Sqe) -> Option<Slot> {
        let slot = self.free.pop()?;
        let entry = self.entries.get_mut(slot.index())?;
        entry.sqe = *sqe;
        entry.stage = Stage::Receiving;
        Some(slot)
    }

    /// The command is over.
    pub(super) fn release(&mut self, slot: Slot) {
        let Some(entry) = self.entries.get_mut(slot.index()) else { return };
        if entry.stage != Stage::Free {
            entry.reset();
            self.free.push(slot);
        }
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Entry> {
        self.entries.get(slot.index()).filter(|entry| entry.stage != Stage::Free)
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.entries.get_mut(slot.index()).filter(|entry| entry.stage != Stage::Free)
    }

    /// All commands.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Entry)> {
        let numbered = self.entries.iter().zip(0..=u16::MAX);
        numbered
            .filter(|(entry, _)| entry.stage != Stage::Free)
            .map(|(entry, number)| (Slot(number), entry))
    }
}

impl Entry {
    fn empty() -> Entry {
        Entry {
            sqe: zerocopy::FromZeros::new_zeroed(),
            stage: Stage::Free,
            data: Vec::new(),
            in_buffer: false,
            total: 0,
            received: 0,
            refused: None,
            partner: None,
            issued: 0,
            issued_at: 0,
            failure: None,
            withdrawn: Withdrawn::No,
            answer: Answer::OK,
            sends: 0,
        }
    }

    /// Empties it but keeps its memory, so that the next command needs none.
    fn reset(&mut self) {
        let mut data = core::mem::take(&mut self.data);
        data.clear();
        *self = Entry { data, ..Entry::empty() };
    }

    pub(super) fn cid(&self) -> u16 {
        self.sqe.cid.get()
    }

    /// Status of a device command that was withdrawn, or of one that failed otherwise.
    pub(super) fn outcome(&self) -> Status {
        match (self.failure, self.withdrawn) {
            (None, _) => Status::SUCCESS,
            (Some(Status::COMMAND_INTERRUPTED), Withdrawn::Aborted) => {
                Status::ABORT_REQUESTED.do_not_retry()
            }
            (Some(Status::COMMAND_INTERRUPTED), Withdrawn::Preempted) => {
                Status::ABORTED_PREEMPT.do_not_retry()
            }
            (Some(status), _) => status,
        }
    }
}
