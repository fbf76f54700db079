//! What the kernel asks of the file of a volume, as block commands, and back.
//!
//! ```text
//!   fuse::Command ── begin ──► Submit(slot, block::Command) ──► initiator
//!                                 ▲          │
//!                                 └── rest ──┤ done(slot, completion)
//!                                            ▼
//!                                     Reply(id, outcome) ──► kernel
//! ```
//!
//! Invariants:
//! - A request has one command at work at a time; what is larger than one command goes on with the
//!   rest when the first is done, and the first fault ends it.
//! - A request is answered once. A flush is answered by the end of a flush of the target, never
//!   before, and never with "not implemented".
//! - There are as many slots as were asked for at the start, and nothing is allocated later.
//!
//! Not here: the bytes, the descriptor, paths and how long a command may wait for one (the
//! initiator's policy).

use block::{Blocks, Command, Completion, Geometry, IoError, Lba, Span};
use linux::fuse;
use nvme::initiator::Limits;

/// A request at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

/// What is to be done next for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this command to the target; [`Requests::done`] when it has ended.
    Submit(Slot, Command),
    /// Answer the kernel.
    Reply(Reply),
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// To which request.
    pub id: fuse::RequestId,
    /// What was asked.
    pub command: fuse::Command,
    /// Done, or an error number.
    pub outcome: Result<(), i32>,
}

/// Every slot is taken: the request is to be kept until one is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

#[derive(Clone, Copy, Debug)]
struct Request {
    id: fuse::RequestId,
    command: fuse::Command,
    rest: Option<Command>,
}

/// The requests at work.
#[derive(Debug)]
pub struct Requests {
    limits: Limits,
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Requests {
    /// At most so many at once.
    pub fn new(most: u32, limits: Limits) -> Requests {
        Requests {
            limits,
            slots: (0..most).map(|_| None).collect(),
            free: (0..most).rev().collect(),
        }
    }

    /// How large one command may be, as the target says.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether nothing is at work.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// A request of the kernel, for a volume of this shape.
    pub fn begin(
        &mut self,
        id: fuse::RequestId,
        command: fuse::Command,
        volume: Geometry,
    ) -> Result<Step, Full> {
        let reply = |outcome| Ok(Step::Reply(Reply { id, command, outcome }));
        let whole = match block_command(command, volume) {
            Ok(Some(whole)) => whole,
            Ok(None) => return reply(Ok(())),
            Err(errno) => return reply(Err(errno)),
        };
        let slot = self.free.pop().ok_or(Full)?;
        let (first, rest) = self.limits.split(whole);
        if let Some(place) = self.place(Slot(slot)) {
            *place = Some(Request { id, command, rest });
        }
        Ok(Step::Submit(Slot(slot), first))
    }

    /// The command of a slot has ended; nothing if there was none.
    pub fn done(&mut self, slot: Slot, completion: Completion) -> Option<Step> {
        let limits = self.limits;
        let place = self.place(slot)?;
        let request = place.as_mut()?;
        if let (Ok(()), Some(rest)) = (completion, request.rest) {
            let (next, rest) = limits.split(rest);
            request.rest = rest;
            return Some(Step::Submit(slot, next));
        }
        let Request { id, command, .. } = place.take()?;
        self.free.push(slot.0);
        let outcome = completion.map_err(errno);
        Some(Step::Reply(Reply { id, command, outcome }))
    }

    fn place(&mut self, slot: Slot) -> Option<&mut Option<Request>> {
        self.slots.get_mut(usize::try_from(slot.0).ok()?)
    }
}

/// The block command for a request; none if there is nothing to do, as for a read at the end.
fn block_command(command: fuse::Command, volume: Geometry) -> Result<Option<Command>, i32> {
    let span = |offset: u64, length: u64| {
        let bytes = u64::from(volume.block_size().bytes());
        if !offset.is_multiple_of(bytes) || !length.is_multiple_of(bytes) {
            // The loop device asks for whole blocks; nobody else has business here.
            return Err(libc::EINVAL);
        }
        let span = Span::new(Lba(offset / bytes), Blocks(length / bytes)).ok_or(libc::EINVAL)?;
        if volume.contains(span) { Ok(span) } else { Err(libc::EIO) }
    };
    Ok(Some(match command {
        fuse::Command::Read { length: 0, .. } | fuse::Command::Write { length: 0, .. } => {
            return Ok(None);
        }
        fuse::Command::Read { offset, length } => {
            Command::Read { span: span(offset, u64::from(length))? }
        }
        fuse::Command::Write { offset, length } => {
            Command::Write { span: span(offset, u64::from(length))?, fua: false }
        }
        fuse::Command::Flush => Command::Flush,
        fuse::Command::Discard { offset, length } => {
            Command::Discard { span: span(offset, length)? }
        }
        fuse::Command::WriteZeroes { offset, length } => {
            let span = span(offset, length)?;
            Command::WriteZeroes { span, fua: false, deallocate: false }
        }
    }))
}

/// What the kernel is told of a fault. Never `ENOSYS`, which it would believe for ever.
fn errno(fault: IoError) -> i32 {
    match fault {
        IoError::NoSpace => libc::ENOSPC,
        IoError::ReadOnly => libc::EROFS,
        IoError::Unsupported => libc::EOPNOTSUPP,
        IoError::OutOfRange { .. } => libc::EINVAL,
        _ => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use block::{BlockSize, Bytes};
    use linux::fuse::{Reaction, Session};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn volume() -> Geometry {
        Geometry::of_bytes(BlockSize::B4096, Bytes(1024 * MIB)).unwrap()
    }

    fn requests(most: u32) -> Requests {
        Requests::new(most, Limits::of_protocol(BlockSize::B4096))
    }

    /// Ids are the kernel's: one has to come out of a session.
    fn id() -> fuse::RequestId {
        let mut message = vec![0; 56];
        message[..4].copy_from_slice(&56_u32.to_ne_bytes());
        message[4..8].copy_from_slice(&20_u32.to_ne_bytes());
        message[16..24].copy_from_slice(&2_u64.to_ne_bytes());
        match Session::new(MIB, 4096, false).receive(&message) {
            Reaction::Submit(id, fuse::Command::Flush) => id,
            other => panic!("{other:?}"),
        }
    }

    fn span(start: u64, len: u64) -> Span {
        Span::new(Lba(start), Blocks(len)).unwrap()
    }

    fn check(command: fuse::Command, expected: Result<Command, Result<(), i32>>) {
        let step = requests(1).begin(id(), command, volume()).unwrap();
        let found = match step {
            Step::Submit(_, command) => Ok(command),
            Step::Reply(reply) => Err(reply.outcome),
        };
        assert_eq!(found, expected, "{command:?}");
    }

    #[test]
    fn each_request_is_one_command_of_whole_blocks() {
        use fuse::Command as Asked;
        let (offset, length) = (8192, 4096);
        check(Asked::Read { offset, length }, Ok(Command::Read { span: span(2, 1) }));
        let write = Command::Write { span: span(2, 1), fua: false };
        check(Asked::Write { offset, length }, Ok(write));
        check(Asked::Flush, Ok(Command::Flush));
        let length = MIB;
        let discard = Command::Discard { span: span(2, 256) };
        check(Asked::Discard { offset, length }, Ok(discard));
        let zeroes = Command::WriteZeroes { span: span(2, 256), fua: false, deallocate: false };
        check(Asked::WriteZeroes { offset, length }, Ok(zeroes));
    }

    #[test]
    fn what_is_no_whole_block_or_beyond_the_end_is_refused() {
        use fuse::Command as Asked;
        check(Asked::Read { offset: MIB, length: 0 }, Err(Ok(())));
        check(Asked::Read { offset: 512, length: 4096 }, Err(Err(libc::EINVAL)));
        check(Asked::Write { offset: 0, length: 512 }, Err(Err(libc::EINVAL)));
        check(Asked::Discard { offset: 0, length: 100 }, Err(Err(libc::EINVAL)));
        // The session may know of a growth that this path does not show yet.
        let beyond = Asked::Write { offset: 1024 * MIB, length: 4096 };
        check(beyond, Err(Err(libc::EIO)));
    }

    #[test]
    fn a_large_request_goes_on_with_its_rest_and_is_answered_once() {
        let mut requests = requests(1);
        let command = fuse::Command::WriteZeroes { offset: 0, length: 600 * MIB };
        let Step::Submit(slot, mut at_work) = requests.begin(id(), command, volume()).unwrap()
        else {
            panic!("nothing to do");
        };
        let mut spans = Vec::new();
        let reply = loop {
            spans.push(at_work.span().unwrap());
            match requests.done(slot, Ok(())).unwrap() {
                Step::Submit(_, next) => at_work = next,
                Step::Reply(reply) => break reply,
            }
        };
        assert_eq!(reply, Reply { id: id(), command, outcome: Ok(()) });
        assert_eq!(spans, [span(0, 65536), span(65536, 65536), span(131_072, 22528)]);
        assert!(requests.is_idle());
        assert_eq!(requests.done(slot, Ok(())), None, "answered once");
    }

    #[test]
    fn the_first_fault_ends_a_request() {
        let mut requests = requests(1);
        let command = fuse::Command::WriteZeroes { offset: 0, length: 600 * MIB };
        let Step::Submit(slot, _) = requests.begin(id(), command, volume()).unwrap() else {
            panic!("nothing to do");
        };
        let reply = requests.done(slot, Err(IoError::NoSpace)).unwrap();
        assert_eq!(reply, Step::Reply(Reply { id: id(), command, outcome: Err(libc::ENOSPC) }));
    }

    #[test]
    fn a_flush_ends_with_the_targets_and_never_as_not_implemented() {
        for fault in
            [IoError::Unsupported, IoError::TimedOut, IoError::Unreachable, IoError::Internal]
        {
            let mut requests = requests(1);
            let step = requests.begin(id(), fuse::Command::Flush, volume()).unwrap();
            assert_eq!(step, Step::Submit(Slot(0), Command::Flush), "not answered by itself");
            let Some(Step::Reply(reply)) = requests.done(Slot(0), Err(fault)) else {
                panic!("no answer");
            };
            assert!(reply.outcome.is_err() && reply.outcome != Err(libc::ENOSYS), "{fault}");
        }
    }

    #[test]
    fn no_more_are_at_work_than_there_are_slots() {
        let mut requests = requests(2);
        let mut begin = || requests.begin(id(), fuse::Command::Flush, volume());
        assert!(begin().is_ok() && begin().is_ok());
        assert_eq!(begin(), Err(Full));
        assert!(requests.done(Slot(1), Ok(())).is_some());
        assert!(requests.begin(id(), fuse::Command::Flush, volume()).is_ok());
        assert_eq!(requests.done(Slot(7), Ok(())), None);
    }
}
