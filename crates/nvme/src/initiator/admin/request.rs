//! Admin commands as NVMe commands.

use alloc::vec::Vec;

use super::super::transfer::Data;
use super::super::transmit::Lost;
use crate::wire::{
    AdminOpcode, Cc, Cns, FeatureId, LogId, Property, PropertyGet, PropertySet, Sqe, Status, U32,
};

/// An admin command that the owner of a controller may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminRequest {
    /// Describe something: 4096 bytes.
    Identify {
        /// What.
        what: Cns,
        /// Of which namespace, or zero.
        nsid: u32,
    },
    /// Read a log page.
    Log {
        /// Which.
        id: LogId,
        /// From which byte; a multiple of four.
        offset: u64,
        /// How many bytes; a multiple of four.
        len: u32,
        /// Whether to leave alone what reading would acknowledge.
        keep_event: bool,
    },
    /// Read a feature that fits its answer's result.
    GetFeature {
        /// Which.
        id: FeatureId,
    },
    /// Change a feature that has no data.
    SetFeature {
        /// Which.
        id: FeatureId,
        /// To what.
        value: u32,
    },
    /// Read a property.
    GetProperty {
        /// Which.
        property: Property,
    },
    /// Withdraw a command: it ends soon, done or aborted.
    Abort {
        /// Of which queue.
        queue: u16,
        /// By which identifier.
        cid: u16,
    },
    /// Configure the controller; with a shutdown in it, this ends the association in good order.
    Configure {
        /// How.
        cc: Cc,
    },
}

/// Longest part of a log page that one request reads.
const MAX_LOG: u32 = 256 * 1024;

impl AdminRequest {
    /// The command and the room for its answer.
    pub(super) fn encode(self) -> (Sqe, Data) {
        match self {
            AdminRequest::Identify { what, nsid } => {
                let mut sqe = Sqe::new(AdminOpcode::Identify.code(), 0);
                sqe.nsid = U32::new(nsid);
                sqe.cdw10 = U32::new(what.code().into());
                (sqe, Data::InOwned { len: 4096 })
            }
            AdminRequest::Log { id, offset, len, keep_event } => log_page(
                id,
                offset,
                len.clamp(4, MAX_LOG) & !3,
                if keep_event { 1 << 15 } else { 0 },
            ),
            AdminRequest::GetFeature { id } => {
                let mut sqe = Sqe::new(AdminOpcode::GetFeatures.code(), 0);
                sqe.cdw10 = U32::new(id.code().into());
                (sqe, Data::None)
            }
            AdminRequest::SetFeature { id, value } => {
                let mut sqe = Sqe::new(AdminOpcode::SetFeatures.code(), 0);
                sqe.cdw10 = U32::new(id.code().into());
                sqe.cdw11 = U32::new(value);
                (sqe, Data::None)
            }
            AdminRequest::GetProperty { property } => {
                let wide = Some(property.is_wide());
                (PropertyGet { offset: property.offset(), wide }.to_sqe(0), Data::None)
            }
            AdminRequest::Abort { queue, cid } => {
                let mut sqe = Sqe::new(AdminOpcode::Abort.code(), 0);
                sqe.cdw10 = U32::new(u32::from(cid) << 16 | u32::from(queue));
                (sqe, Data::None)
            }
            AdminRequest::Configure { cc } => {
                let offset = Property::Cc.offset();
                let set = PropertySet { offset, wide: Some(false), value: cc.0.into() };
                (set.to_sqe(0), Data::None)
            }
        }
    }
}

/// The ANA log without lists of namespaces, which Identify tells too.
pub(super) fn ana_log(len: u32) -> (Sqe, Data) {
    const GROUPS_ONLY: u32 = 1 << 8;
    log_page(LogId::Ana, 0, len, GROUPS_ONLY)
}

fn log_page(id: LogId, offset: u64, len: u32, bits: u32) -> (Sqe, Data) {
    let mut sqe = Sqe::new(AdminOpcode::GetLogPage.code(), 0);
    let dwords = len / 4 - 1;
    sqe.nsid = U32::new(Sqe::ALL_NAMESPACES);
    sqe.cdw10 = U32::new(u32::from(id.code()) | bits | (dwords & 0xFFFF) << 16);
    sqe.cdw11 = U32::new(dwords >> 16);
    let low = u32::try_from(offset & u64::from(u32::MAX)).unwrap_or_default();
    sqe.cdw12 = U32::new(low);
    sqe.cdw13 = U32::new(u32::try_from(offset >> 32).unwrap_or_default());
    (sqe, Data::InOwned { len })
}

/// Names a request until its answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done {
        /// Result dwords.
        result: u64,
        /// Data, if there are any.
        bytes: Vec<u8>,
    },
    /// The controller refused it.
    Failed(Status),
    /// The connection was lost first.
    Lost(Lost),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dwords(request: AdminRequest) -> (u8, [u32; 5]) {
        let (sqe, _) = request.encode();
        let rest = [sqe.nsid, sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13];
        (sqe.opcode, rest.map(U32::get))
    }

    #[test]
    fn commands_as_the_specification_lays_them_out() {
        let all = u32::MAX;
        let log = |offset, len, keep_event| AdminRequest::Log {
            id: LogId::Discovery,
            offset,
            len,
            keep_event,
        };
        for (request, opcode, expected) in [
            (AdminRequest::Identify { what: Cns::Namespace, nsid: 9 }, 0x06, [9, 0, 0, 0, 0]),
            (AdminRequest::Identify { what: Cns::Controller, nsid: 0 }, 0x06, [0, 1, 0, 0, 0]),
            (log(0, 1024, false), 0x02, [all, 0x00FF_0070, 0, 0, 0]),
            (log(1 << 32, 4, true), 0x02, [all, 0x8070, 0, 0, 1]),
            (log(0, u32::MAX, false), 0x02, [all, 0xFFFF_0070, 0, 0, 0]),
            (log(0, 0, false), 0x02, [all, 0x70, 0, 0, 0]),
            (AdminRequest::GetFeature { id: FeatureId::KeepAliveTimer }, 0x0A, [0, 0x0F, 0, 0, 0]),
            (
                AdminRequest::SetFeature { id: FeatureId::NumberOfQueues, value: 0x0003_0003 },
                0x09,
                [0, 7, 0x0003_0003, 0, 0],
            ),
            (AdminRequest::Abort { queue: 2, cid: 0x0102 }, 0x08, [0, 0x0102_0002, 0, 0, 0]),
            (AdminRequest::GetProperty { property: Property::Cap }, 0x7F, [4, 1, 0, 0, 0]),
            (AdminRequest::Configure { cc: Cc::ENABLE_NVM }, 0x7F, [0, 0, 0x14, 0x0046_0001, 0]),
        ] {
            assert_eq!(dwords(request), (opcode, expected), "{request:?}");
        }
    }
}
