//! One command on its way through a device.

use block::{Command, Completion, Geometry, IoError, Lba, Span};
use reactor::{Buffer, Op, Outcome, SharedBuffer};

use super::DeviceId;
use super::memory::{Memory, NoMemory};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// One block command.
    Command(Command),
    /// Compare, and write only if equal, with nothing in between.
    CompareAndWrite {
        /// Which blocks.
        span: Span,
        /// Durable before it completes.
        fua: bool,
    },
}

/// The bytes that go with a job.
#[derive(Debug)]
pub enum Data {
    /// None: flush, discard, write zeroes.
    None,
    /// To be filled by a read; as long as its span.
    Fill(Buffer),
    /// What a read found, where the device has it: a device in memory fills no buffer for much.
    Found(SharedBuffer),
    /// To be written or compared with; as long as its span.
    Bytes(SharedBuffer),
    /// To be compared with, and to be written. In a box, because all others are small and move
    /// often.
    Both(Box<Both>),
}

/// The bytes of a compare and write.
#[derive(Debug)]
pub struct Both {
    /// What must be there.
    pub expected: SharedBuffer,
    /// What shall be there.
    pub new: SharedBuffer,
}

/// A command with its data and its owner.
#[derive(Debug)]
pub struct Job<O> {
    /// Whose it is.
    pub owner: O,
    /// What to do.
    pub task: Task,
    /// With which bytes.
    pub data: Data,
}

/// A job at work, and how far it is.
#[derive(Debug)]
pub(super) struct Running<O> {
    device: DeviceId,
    job: Job<O>,
    pub(super) stage: Stage,
    /// An operation that the reactor had no room for.
    pub(super) kept: Option<Box<Op>>,
}

/// What the last operation of a job in a file or a pool left.
#[derive(Debug)]
pub(super) enum Stage {
    /// Nothing was asked of the file yet.
    Fresh,
    /// An operation is under way, and the job's own data may be inside it.
    Asked,
    /// It came back.
    Answered(Outcome),
    /// Zeros are being written, because the file system cannot make them; that many bytes so far.
    Zeroing(u64),
    /// A command came out of a pool, with its data.
    Ended(Completion, Data),
}

/// What is to be done about a job.
#[derive(Debug)]
pub(super) enum Progress {
    Finished(Completion),
    Submit(Op),
    /// No buffer is free: try again later.
    Stalled,
    /// A pool has it.
    Waits,
}

impl<O> Running<O> {
    pub(super) fn new(device: DeviceId, job: Job<O>) -> Running<O> {
        Running { device, job, stage: Stage::Fresh, kept: None }
    }

    pub(super) fn into_job(self) -> Job<O> {
        self.job
    }

    pub(super) fn into_parts(self) -> (O, Data) {
        (self.job.owner, self.job.data)
    }

    pub(super) fn device(&self) -> DeviceId {
        self.device
    }

    pub(super) fn must_be_alone(&self) -> bool {
        matches!(self.job.task, Task::CompareAndWrite { .. })
    }

    pub(super) fn absorb(&mut self, outcome: Outcome) {
        self.stage = match (&self.stage, outcome) {
            // The zeros that were written do not matter; only whether they were.
            (Stage::Zeroing(done), Outcome::Written { payload, result: Ok(()) }) => {
                Stage::Zeroing(done.saturating_add(u64::try_from(payload.len()).unwrap_or(0)))
            }
            (_, outcome) => Stage::Answered(outcome),
        };
    }

    pub(super) fn keep(&mut self, op: Op) {
        self.kept = Some(Box::new(op));
    }

    pub(super) fn task(&self) -> Task {
        self.job.task
    }

    pub(super) fn data(&mut self) -> &mut Data {
        &mut self.job.data
    }

    /// Does all of it at once.
    pub(super) fn in_memory(&mut self, memory: &mut Memory, geometry: Geometry) -> Completion {
        let start = |span: Span| byte_range(span, geometry).0;
        match (self.job.task, &mut self.job.data) {
            (Task::Command(command), data) => {
                command.check(geometry)?;
                match (command, data) {
                    (Command::Read { span }, data) => {
                        let Data::Fill(buffer) = data else { return Err(IoError::Internal) };
                        let start = start(span);
                        match memory.share(start..start + buffer.len()) {
                            Some(bytes) => *data = Data::Found(bytes),
                            None => memory.read(start, buffer),
                        }
                    }
                    (Command::Write { span, .. }, Data::Bytes(bytes)) => {
                        memory.write(start(span), bytes).map_err(|NoMemory| IoError::NoSpace)?;
                    }
                    (Command::Compare { span }, Data::Bytes(bytes)) => {
                        equal(memory.differs(start(span), bytes), span, geometry)?;
                    }
                    (Command::Discard { span } | Command::WriteZeroes { span, .. }, _) => {
                        let (start, len) = byte_range(span, geometry);
                        memory.zero(start, len).map_err(|NoMemory| IoError::NoSpace)?;
                    }
                    (Command::Flush, _) => {}
                    _ => return Err(IoError::Internal),
                }
            }
            (Task::CompareAndWrite { span, .. }, Data::Both(both)) => {
                Command::Compare { span }.check(geometry)?;
                equal(memory.differs(start(span), &both.expected), span, geometry)?;
                memory.write(start(span), &both.new).map_err(|NoMemory| IoError::NoSpace)?;
            }
            _ => return Err(IoError::Internal),
        }
        Ok(())
    }
}

/// Start and length in bytes.
pub(super) fn byte_range(span: Span, geometry: Geometry) -> (usize, usize) {
    let shift = geometry.block_size().shift();
    let bytes = |blocks: u64| usize::try_from(blocks << shift).unwrap_or(usize::MAX);
    (bytes(span.start().0), bytes(span.len().0))
}

/// A miscompare if there is a byte that differs.
pub(super) fn equal(differs: Option<usize>, span: Span, geometry: Geometry) -> Completion {
    match differs {
        None => Ok(()),
        Some(offset) => {
            let blocks = u64::try_from(offset).unwrap_or(0) >> geometry.block_size().shift();
            Err(IoError::Miscompare { at: Lba(span.start().0.saturating_add(blocks)) })
        }
    }
}
