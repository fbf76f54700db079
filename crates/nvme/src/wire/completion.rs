//! Completion queue entries.

use super::{Status, U16, U32, layout};

layout! {
    /// Completion queue entry: the end of one command.
    pub struct Cqe: 16 {
        /// First dword of the result.
        0: pub dw0: U32,
        /// Second dword of the result.
        4: pub dw1: U32,
        /// Submission queue head: how far the controller has taken commands.
        8: pub sqhd: U16,
        /// Submission queue identifier, zero with fabrics.
        10: pub sqid: U16,
        /// The command's identifier.
        12: pub cid: U16,
        /// Status in bits 15:1; the phase bit stays clear with fabrics.
        14: pub status: U16,
    }
}

impl Cqe {
    /// The end of command `cid`.
    pub fn new(cid: u16, status: Status) -> Cqe {
        Cqe {
            dw0: U32::ZERO,
            dw1: U32::ZERO,
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(status.to_field()),
        }
    }

    /// The status.
    pub fn status(&self) -> Status {
        Status::from_field(self.status.get())
    }

    /// Both result dwords as one number.
    pub fn result(&self) -> u64 {
        u64::from(self.dw1.get()) << 32 | u64::from(self.dw0.get())
    }

    /// Sets both result dwords.
    pub fn set_result(&mut self, result: u64) {
        let [low, high] = super::command::halves(result);
        self.dw0 = U32::new(low);
        self.dw1 = U32::new(high);
    }
}
