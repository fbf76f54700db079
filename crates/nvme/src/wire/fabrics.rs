//! Fabrics commands: Connect, Disconnect, properties, authentication.

use super::command::{halves, high16, low16};
use super::{Cqe, Nqn, Sgl, Sqe, Status, U16, U32, U64, layout};
use crate::wire::command::codes;

codes! {
    /// Fabrics commands, by the type in the lowest byte of the namespace field.
    pub enum FabricsType {
        /// Write a property.
        PropertySet = 0x00,
        /// Create a queue, and with queue 0 a controller.
        Connect = 0x01,
        /// Read a property.
        PropertyGet = 0x04,
        /// Send a message of the authentication protocol.
        AuthSend = 0x05,
        /// Fetch a message of the authentication protocol.
        AuthReceive = 0x06,
        /// Delete an I/O queue.
        Disconnect = 0x08,
    }
}

/// Controller id of a Connect that asks for any controller.
pub const CNTLID_DYNAMIC: u16 = 0xFFFF;
/// Largest controller id that may be given out.
pub const CNTLID_MAX: u16 = 0xFFEF;
/// Bit of the Connect answer that says: authenticate this queue before anything else.
pub const AUTH_REQUIRED: u32 = 1 << 17;

layout! {
    /// Data of a Connect command.
    pub struct ConnectData: 1024 {
        /// The host's identity across all its controllers.
        0: pub hostid: [u8; 16],
        /// Wanted controller, or [`CNTLID_DYNAMIC`].
        16: pub cntlid: U16,
        18: _reserved1: [u8; 238],
        /// The subsystem, zero-terminated.
        256: pub subnqn: [u8; 256],
        /// The host, zero-terminated.
        512: pub hostnqn: [u8; 256],
        768: _reserved2: [u8; 256],
    }
}

impl ConnectData {
    /// Data for a Connect of `host` to `subsystem`.
    pub fn new(host: &Nqn, hostid: [u8; 16], subsystem: &Nqn, cntlid: u16) -> ConnectData {
        ConnectData {
            hostid,
            cntlid: U16::new(cntlid),
            _reserved1: [0; 238],
            subnqn: subsystem.to_field(),
            hostnqn: host.to_field(),
            _reserved2: [0; 256],
        }
    }
}

/// Arguments of a Connect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Record format, zero.
    pub recfmt: u16,
    /// Queue: 0 for the admin queue.
    pub qid: u16,
    /// Entries of the queue minus one.
    pub sqsize: u16,
    /// Attributes.
    pub cattr: u8,
    /// Keep-alive time in milliseconds, zero for none.
    pub kato: u32,
}

impl Connect {
    /// Attribute: the submission queue head is neither sent nor looked at.
    pub const CATTR_NO_SQ_FLOW: u8 = 1 << 2;

    /// Reads the arguments.
    pub fn from_sqe(sqe: &Sqe) -> Connect {
        Connect {
            recfmt: low16(sqe.cdw10.get()),
            qid: high16(sqe.cdw10.get()),
            sqsize: low16(sqe.cdw11.get()),
            cattr: sqe.cdw11.get().to_le_bytes()[2],
            kato: sqe.cdw12.get(),
        }
    }

    /// The command; its data follow in the capsule.
    pub fn to_sqe(self, cid: u16) -> Sqe {
        let mut sqe = fabrics(FabricsType::Connect, cid);
        sqe.cdw10 = U32::new(u32::from(self.qid) << 16 | u32::from(self.recfmt));
        sqe.cdw11 = U32::new(u32::from(self.cattr) << 16 | u32::from(self.sqsize));
        sqe.cdw12 = U32::new(self.kato);
        sqe.sgl = Sgl::in_capsule(1024);
        sqe
    }

    /// Whether submission queue flow control is off.
    pub fn no_sq_flow(self) -> bool {
        self.cattr & Self::CATTR_NO_SQ_FLOW != 0
    }
}

/// What a Connect got wrong, as its completion says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadConnect {
    /// A field of the command, by its offset.
    Command(u16),
    /// A field of the data, by its offset.
    Data(u16),
}

impl BadConnect {
    /// Queue identifier.
    pub const QID: BadConnect = BadConnect::Command(42);
    /// Queue size.
    pub const SQSIZE: BadConnect = BadConnect::Command(44);
    /// Keep-alive time.
    pub const KATO: BadConnect = BadConnect::Command(48);
    /// Host identifier.
    pub const HOSTID: BadConnect = BadConnect::Data(0);
    /// Controller identifier.
    pub const CNTLID: BadConnect = BadConnect::Data(16);
    /// Name of the subsystem.
    pub const SUBNQN: BadConnect = BadConnect::Data(256);
    /// Name of the host.
    pub const HOSTNQN: BadConnect = BadConnect::Data(512);

    /// The completion that names the field.
    ///
    /// A subsystem that is not there may be soon: its target is just being opened, or comes back.
    /// Linux gives a path up for good that it shall not try again, and with the last one the
    /// device and all that is mounted on it.
    pub fn cqe(self, cid: u16) -> Cqe {
        let status = Status::CONNECT_INVALID_PARAMETERS;
        let is_final = self != BadConnect::SUBNQN;
        let mut cqe = Cqe::new(cid, if is_final { status.do_not_retry() } else { status });
        cqe.dw0 = U32::new(match self {
            BadConnect::Command(at) => u32::from(at),
            BadConnect::Data(at) => 1 << 16 | u32::from(at),
        });
        cqe
    }
}

/// Arguments of a Property Get command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// Offset of the property.
    pub offset: u32,
    /// Eight bytes instead of four; `None` if the size is neither.
    pub wide: Option<bool>,
}

impl PropertyGet {
    /// Reads the arguments.
    pub fn from_sqe(sqe: &Sqe) -> PropertyGet {
        PropertyGet { offset: sqe.cdw11.get(), wide: width(sqe) }
    }

    /// The command.
    pub fn to_sqe(self, cid: u16) -> Sqe {
        let mut sqe = fabrics(FabricsType::PropertyGet, cid);
        sqe.cdw10 = U32::new(u32::from(self.wide == Some(true)));
        sqe.cdw11 = U32::new(self.offset);
        sqe
    }
}

/// Arguments of a Property Set command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// Offset of the property.
    pub offset: u32,
    /// Eight bytes instead of four; `None` if the size is neither.
    pub wide: Option<bool>,
    /// The new value.
    pub value: u64,
}

impl PropertySet {
    /// Reads the arguments.
    pub fn from_sqe(sqe: &Sqe) -> PropertySet {
        let value = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        PropertySet { offset: sqe.cdw11.get(), wide: width(sqe), value }
    }

    /// The command.
    pub fn to_sqe(self, cid: u16) -> Sqe {
        let mut sqe = fabrics(FabricsType::PropertySet, cid);
        let [low, high] = halves(self.value);
        sqe.cdw10 = U32::new(u32::from(self.wide == Some(true)));
        sqe.cdw11 = U32::new(self.offset);
        sqe.cdw12 = U32::new(low);
        sqe.cdw13 = U32::new(high);
        sqe
    }
}

/// Arguments of Authentication Send and Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Security protocol specific, 0x0101 for NVMe.
    pub spsp: u16,
    /// Security protocol, 0xE9 for NVMe.
    pub secp: u8,
    /// Transfer length (send) or allocation length (receive).
    pub length: u32,
}

impl Auth {
    /// Security protocol of NVMe.
    pub const SECP_NVME: u8 = 0xE9;
    /// The one protocol-specific value that is defined.
    pub const SPSP: u16 = 0x0101;

    /// Reads the arguments.
    pub fn from_sqe(sqe: &Sqe) -> Auth {
        let [_, spsp0, spsp1, secp] = sqe.cdw10.get().to_le_bytes();
        Auth { spsp: u16::from_le_bytes([spsp0, spsp1]), secp, length: sqe.cdw11.get() }
    }

    /// Authentication Send; its data follow in the capsule.
    pub fn to_send(self, cid: u16) -> Sqe {
        let mut sqe = self.to_sqe(FabricsType::AuthSend, cid);
        sqe.sgl = Sgl::in_capsule(self.length);
        sqe
    }

    /// Authentication Receive.
    pub fn to_receive(self, cid: u16) -> Sqe {
        let mut sqe = self.to_sqe(FabricsType::AuthReceive, cid);
        sqe.sgl = Sgl::transport(self.length);
        sqe
    }

    fn to_sqe(self, kind: FabricsType, cid: u16) -> Sqe {
        let mut sqe = fabrics(kind, cid);
        let [spsp0, spsp1] = self.spsp.to_le_bytes();
        sqe.cdw10 = U32::new(u32::from_le_bytes([0, spsp0, spsp1, self.secp]));
        sqe.cdw11 = U32::new(self.length);
        sqe
    }
}

impl Sqe {
    /// Type of a fabrics command: the lowest byte of the namespace field.
    pub fn fctype(&self) -> u8 {
        self.nsid.get().to_le_bytes()[0]
    }

    /// A Disconnect command.
    pub fn disconnect(cid: u16) -> Sqe {
        fabrics(FabricsType::Disconnect, cid)
    }
}

fn fabrics(kind: FabricsType, cid: u16) -> Sqe {
    let mut sqe = Sqe::new(Sqe::FABRICS, cid);
    sqe.nsid = U32::new(u32::from(kind.code()));
    sqe.mptr = U64::ZERO;
    sqe
}

fn width(sqe: &Sqe) -> Option<bool> {
    match sqe.cdw10.get() & 7 {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
