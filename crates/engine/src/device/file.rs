//! Block commands on a file or block device, as operations of the reactor.
//!
//! Flush is fdatasync, FUA a write with RWF_DSYNC, discard and write zeroes are fallocate; where
//! the file system has no fallocate, zeros are written.

use std::io;

use block::{Command, Completion, Geometry, IoError, Span};
use reactor::{FileId, Io, Op, Outcome, PAGE, Space};

use super::job::{Data, Progress, Running, Stage, Task, byte_range, equal};

/// Most zeros written at once.
const ZEROS: u64 = 128 * 1024;

impl<O> Running<O> {
    /// Takes the next step.
    pub(super) fn in_file(
        &mut self,
        file: FileId,
        geometry: Geometry,
        io: &mut impl Io,
    ) -> Progress {
        if let Some(op) = self.kept.take() {
            return Progress::Submit(*op);
        }
        match core::mem::replace(&mut self.stage, Stage::Asked) {
            Stage::Fresh => self.first(file, geometry, io),
            Stage::Answered(outcome) => self.next(outcome, file, geometry, io),
            Stage::Zeroing(done) => self.zero(done, file, geometry, io),
            Stage::Asked | Stage::Ended(..) => Progress::Finished(Err(IoError::Internal)),
        }
    }

    fn first(&mut self, file: FileId, geometry: Geometry, io: &mut impl Io) -> Progress {
        let task = self.task();
        let span = match task {
            Task::Command(command) => {
                if let Err(fault) = command.check(geometry) {
                    return Progress::Finished(Err(fault));
                }
                command.span()
            }
            Task::CompareAndWrite { span, .. } => Some(span),
        };
        let at = span.map_or(0, |span| offset(span, geometry));
        let data = match settled(core::mem::replace(self.data(), Data::None), io) {
            Ok(data) => data,
            Err(data) => {
                *self.data() = data;
                self.stage = Stage::Fresh;
                return Progress::Stalled;
            }
        };
        match (task, data) {
            (Task::Command(Command::Read { .. }), Data::Fill(buffer)) => {
                Progress::Submit(Op::Read { file, at, buffer })
            }
            (Task::Command(Command::Write { fua, .. }), Data::Bytes(payload)) => {
                Progress::Submit(Op::Write { file, at, payload, durable: fua })
            }
            (Task::Command(Command::Flush), _) => Progress::Submit(Op::Sync { file }),
            (Task::Command(Command::Discard { span }), _) => {
                Progress::Submit(allocate(file, span, geometry, Space::Released))
            }
            (Task::Command(Command::WriteZeroes { span, deallocate, .. }), _) => {
                let space = if deallocate { Space::Released } else { Space::Zeroed };
                Progress::Submit(allocate(file, span, geometry, space))
            }
            (
                Task::Command(Command::Compare { span }) | Task::CompareAndWrite { span, .. },
                data @ (Data::Bytes(_) | Data::Both(_)),
            ) => {
                *self.data() = data;
                let Some(buffer) = io.take(byte_range(span, geometry).1) else {
                    self.stage = Stage::Fresh;
                    return Progress::Stalled;
                };
                Progress::Submit(Op::Read { file, at, buffer })
            }
            _ => Progress::Finished(Err(IoError::Internal)),
        }
    }

    fn next(
        &mut self,
        outcome: Outcome,
        file: FileId,
        geometry: Geometry,
        io: &mut impl Io,
    ) -> Progress {
        let task = self.task();
        match (task, outcome) {
            (Task::Command(Command::Read { span }), Outcome::Read { buffer, result }) => {
                *self.data() = Data::Fill(buffer);
                Progress::Finished(judge(result, span))
            }
            (Task::Command(Command::Write { span, .. }), Outcome::Written { payload, result }) => {
                *self.data() = Data::Bytes(payload);
                Progress::Finished(judge(result, span))
            }
            (Task::CompareAndWrite { span, .. }, Outcome::Written { result, .. }) => {
                Progress::Finished(judge(result, span))
            }
            (Task::Command(Command::Compare { span }), Outcome::Read { buffer, result }) => {
                Progress::Finished(judge(result, span).and_then(|()| match self.data() {
                    Data::Bytes(expected) => equal(differs(&buffer, expected), span, geometry),
                    _ => Err(IoError::Internal),
                }))
            }
            (Task::CompareAndWrite { span, fua }, Outcome::Read { buffer, result }) => {
                let Data::Both(both) = self.data() else {
                    return Progress::Finished(Err(IoError::Internal));
                };
                let same = judge(result, span)
                    .and_then(|()| equal(differs(&buffer, &both.expected), span, geometry));
                let payload = both.new.clone();
                match same {
                    Ok(()) => {
                        let at = offset(span, geometry);
                        Progress::Submit(Op::Write { file, at, payload, durable: fua })
                    }
                    Err(fault) => Progress::Finished(Err(fault)),
                }
            }
            (Task::Command(Command::Flush), Outcome::Synced(result)) => {
                Progress::Finished(result.map_err(|_| IoError::Medium { span: geometry.span() }))
            }
            (Task::Command(command), outcome) => {
                self.emptied(command, outcome, (file, geometry), io)
            }
            _ => Progress::Finished(Err(IoError::Internal)),
        }
    }

    /// After a step of discard or write zeroes.
    fn emptied(
        &mut self,
        command: Command,
        outcome: Outcome,
        (file, geometry): (FileId, Geometry),
        io: &mut impl Io,
    ) -> Progress {
        let Some(span) = command.span() else { return Progress::Finished(Err(IoError::Internal)) };
        match outcome {
            Outcome::Allocated(Ok(())) if command.is_durable() => {
                Progress::Submit(Op::Sync { file })
            }
            Outcome::Allocated(Err(error)) if error.kind() == io::ErrorKind::Unsupported => {
                self.zero(0, file, geometry, io)
            }
            Outcome::Allocated(result) | Outcome::Synced(result) => {
                Progress::Finished(judge(result, span))
            }
            Outcome::Written { result, .. } => Progress::Finished(judge(result, span)),
            _ => Progress::Finished(Err(IoError::Internal)),
        }
    }

    fn zero(&mut self, done: u64, file: FileId, geometry: Geometry, io: &mut impl Io) -> Progress {
        let Task::Command(command) = self.task() else {
            return Progress::Finished(Err(IoError::Internal));
        };
        let Some(span) = command.span() else { return Progress::Finished(Err(IoError::Internal)) };
        let total = u64::try_from(byte_range(span, geometry).1).unwrap_or(u64::MAX);
        self.stage = Stage::Zeroing(done);
        if done >= total {
            if command.is_durable() {
                self.stage = Stage::Asked;
                return Progress::Submit(Op::Sync { file });
            }
            return Progress::Finished(Ok(()));
        }
        let len = usize::try_from(ZEROS.min(total - done)).unwrap_or(0);
        let Some(mut buffer) = io.take(len) else { return Progress::Stalled };
        buffer.fill(0);
        let at = offset(span, geometry).saturating_add(done);
        Progress::Submit(Op::Write { file, at, payload: buffer.freeze(), durable: false })
    }
}

/// Moves bytes that lie where they were received into a buffer of their own: direct I/O wants them
/// aligned, and the device may take long, while others wait to receive. Hands them back if there is
/// no buffer.
pub(super) fn settled(data: Data, io: &mut impl Io) -> Result<Data, Data> {
    let Data::Bytes(bytes) = data else { return Ok(data) };
    if bytes.as_ptr().addr().is_multiple_of(PAGE) {
        return Ok(Data::Bytes(bytes));
    }
    let Some(mut buffer) = io.take(bytes.len()) else { return Err(Data::Bytes(bytes)) };
    buffer.copy_from_slice(&bytes);
    Ok(Data::Bytes(buffer.freeze()))
}

fn offset(span: Span, geometry: Geometry) -> u64 {
    span.start().0 << geometry.block_size().shift()
}

fn allocate(file: FileId, span: Span, geometry: Geometry, space: Space) -> Op {
    let len = span.len().0 << geometry.block_size().shift();
    Op::Allocate { file, at: offset(span, geometry), len, space }
}

pub(super) fn differs(found: &[u8], expected: &[u8]) -> Option<usize> {
    if found == expected {
        return None;
    }
    found.iter().zip(expected).position(|(a, b)| a != b)
}

fn judge(result: io::Result<()>, span: Span) -> Completion {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => IoError::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem => IoError::ReadOnly,
        _ => IoError::Medium { span },
    })
}
