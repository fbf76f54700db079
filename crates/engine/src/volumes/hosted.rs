//! A host's command with its bytes, while a mirror works on it.

use block::{Completion, Fault};
use reactor::{Frozen, Io, Key};

use crate::counters::Counted;
use crate::device::Data;

/// A host's command.
pub(super) struct Hosted {
    pub(super) owner: Key,
    pub(super) is_read: bool,
    pub(super) counted: Counted,
    /// None while a child reads into them.
    pub(super) data: Data,
}

impl Hosted {
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

/// The bytes of a command as its owner wants them back: what was read must be its own again.
pub(super) fn given_back(
    bytes: Frozen,
    result: Completion,
    io: &mut impl Io,
) -> (Completion, Data) {
    match bytes.thaw() {
        Ok(buffer) => (result, Data::Fill(buffer)),
        Err(shared) => match io.take(shared.len()) {
            Some(mut copy) => {
                copy.copy_from_slice(&shared);
                (result, Data::Fill(copy))
            }
            None => (result.and(Err(Fault::Busy)), Data::None),
        },
    }
}
