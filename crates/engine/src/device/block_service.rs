//! Block commands on what is elsewhere: a replica or snapshot of a pool, or a mirrored volume.
//!
//! Those do all of them but comparing, for which they read.

use std::collections::VecDeque;

use block::{BlockSize, Command, Completion, Geometry, IoError, Span};
use model::VolumeId;
use reactor::{Buffer, Io, Key};

use super::ForVolume;
use super::file::{differs, settled};
use super::job::{Data, Progress, Running, Stage, Task, equal};
use crate::pools::{Pools, Replica};

/// Takes block commands, and gives each back later as an [`Ended`](crate::pools::Ended).
pub(super) trait BlockService {
    /// Takes one; hands the data back if there are as many as there may be.
    fn take(
        &mut self,
        owner: Key,
        command: Command,
        data: Data,
        io: &mut impl Io,
    ) -> Result<(), Data>;
}

impl BlockService for (Replica, &mut Pools) {
    fn take(
        &mut self,
        owner: Key,
        command: Command,
        data: Data,
        io: &mut impl Io,
    ) -> Result<(), Data> {
        self.1.submit(self.0, owner, command, data, io)
    }
}

impl BlockService for (VolumeId, &mut VecDeque<ForVolume>) {
    fn take(
        &mut self,
        owner: Key,
        command: Command,
        data: Data,
        _: &mut impl Io,
    ) -> Result<(), Data> {
        // No more than there are jobs.
        self.1.push_back(ForVolume { volume: self.0, owner, command, data });
        Ok(())
    }
}

impl<O> Running<O> {
    /// Takes the next step. `key` is the job's own.
    pub(super) fn forward(
        &mut self,
        key: Key,
        taker: &mut impl BlockService,
        io: &mut impl Io,
    ) -> Progress {
        match (self.task(), core::mem::replace(&mut self.stage, Stage::Asked)) {
            (
                Task::Command(Command::Compare { span }) | Task::CompareAndWrite { span, .. },
                Stage::Fresh,
            ) => {
                let Some(buffer) = buffer_for(span, io) else {
                    self.stage = Stage::Fresh;
                    return Progress::Stalled;
                };
                let read = Command::Read { span };
                if taker.take(key, read, Data::Fill(buffer), io).is_ok() {
                    return Progress::Waits;
                }
                self.stage = Stage::Fresh;
                Progress::Stalled
            }
            (Task::Command(command), Stage::Fresh) => {
                let data = core::mem::replace(self.data(), Data::None);
                let taken = settled(data, io).and_then(|data| taker.take(key, command, data, io));
                match taken {
                    Ok(()) => Progress::Waits,
                    Err(data) => {
                        *self.data() = data;
                        self.stage = Stage::Fresh;
                        Progress::Stalled
                    }
                }
            }
            (Task::Command(Command::Compare { span }), Stage::Ended(completion, data)) => {
                Progress::Finished(completion.and_then(|()| self.compared(span, &data)))
            }
            (Task::CompareAndWrite { span, fua }, Stage::Ended(completion, data)) => {
                // After the write there is nothing to compare.
                let Data::Fill(_) = &data else { return Progress::Finished(completion) };
                let Data::Both(both) = self.data() else {
                    return Progress::Finished(Err(IoError::Internal));
                };
                let new = Data::Bytes(both.new.clone());
                if let Err(fault) = completion.and_then(|()| self.compared(span, &data)) {
                    return Progress::Finished(Err(fault));
                }
                let write = Command::Write { span, fua };
                let taken = settled(new, io).and_then(|new| taker.take(key, write, new, io));
                if taken.is_ok() {
                    return Progress::Waits;
                }
                self.stage = Stage::Ended(Ok(()), data);
                Progress::Stalled
            }
            (Task::Command(_), Stage::Ended(completion, data)) => {
                *self.data() = data;
                Progress::Finished(completion)
            }
            _ => Progress::Finished(Err(IoError::Internal)),
        }
    }

    /// Whether what was read is what was expected.
    fn compared(&mut self, span: Span, found: &Data) -> Completion {
        let (found, expected) = match (found, self.data()) {
            (Data::Fill(found), Data::Bytes(expected)) => (found, &*expected),
            (Data::Fill(found), Data::Both(both)) => (found, &both.expected),
            _ => return Err(IoError::Internal),
        };
        // Only the size of a block matters here.
        let geometry =
            Geometry::new(BlockSize::B4096, span.len()).map_err(|_| IoError::Internal)?;
        equal(differs(found, expected), span, geometry)
    }
}

fn buffer_for(span: Span, io: &mut impl Io) -> Option<Buffer> {
    io.take(usize::try_from(span.len().0).ok()?.checked_mul(4096)?)
}
