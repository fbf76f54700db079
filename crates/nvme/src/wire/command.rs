//! Submission queue entries.

use super::{U16, U32, U64, layout};

layout! {
    /// Submission queue entry: one command.
    pub struct Sqe: 64 {
        /// Opcode.
        0: pub opcode: u8,
        /// Bits 1:0 fused operation, bits 7:6 kind of data pointer.
        1: pub flags: u8,
        /// Command identifier, chosen by the host.
        2: pub cid: U16,
        /// Namespace; the lowest byte is the type of a fabrics command.
        4: pub nsid: U32,
        /// Command dword 2.
        8: pub cdw2: U32,
        /// Command dword 3.
        12: pub cdw3: U32,
        /// Metadata pointer, unused with fabrics.
        16: pub mptr: U64,
        /// The one data descriptor of a fabrics command.
        24: pub sgl: Sgl,
        /// Command dword 10.
        40: pub cdw10: U32,
        /// Command dword 11.
        44: pub cdw11: U32,
        /// Command dword 12.
        48: pub cdw12: U32,
        /// Command dword 13.
        52: pub cdw13: U32,
        /// Command dword 14.
        56: pub cdw14: U32,
        /// Command dword 15.
        60: pub cdw15: U32,
    }
}

layout! {
    /// Data descriptor: where the bytes of a command are.
    pub struct Sgl: 16 {
        /// Offset into the capsule's data, or zero.
        0: pub address: U64,
        /// Number of bytes.
        8: pub length: U32,
        12: _reserved: [u8; 3],
        /// Type in the upper, subtype in the lower four bits.
        15: pub identifier: u8,
    }
}

layout! {
    /// One range of a Dataset Management command.
    pub struct DsmRange: 16 {
        /// Context attributes: hints, ignored.
        0: pub cattr: U32,
        /// Number of blocks; not zero-based.
        4: pub nlb: U32,
        /// First block.
        8: pub slba: U64,
    }
}

/// What a data descriptor of NVMe/TCP can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// The bytes follow in the capsule, from `offset` of its data.
    InCapsule {
        /// Where they begin.
        offset: u64,
    },
    /// The bytes travel in data PDUs of their own.
    Transport,
}

impl Sgl {
    const IN_CAPSULE: u8 = 0x01;
    const TRANSPORT: u8 = 0x5A;

    /// Bytes in the capsule, from the start of its data.
    pub fn in_capsule(length: u32) -> Sgl {
        Sgl {
            address: U64::ZERO,
            length: U32::new(length),
            _reserved: [0; 3],
            identifier: Self::IN_CAPSULE,
        }
    }

    /// Bytes in data PDUs; also the descriptor of a command without data, with length zero.
    pub fn transport(length: u32) -> Sgl {
        Sgl { identifier: Self::TRANSPORT, ..Sgl::in_capsule(length) }
    }

    /// Its kind, if NVMe/TCP knows it.
    pub fn kind(&self) -> Option<SglKind> {
        match self.identifier {
            Self::IN_CAPSULE => Some(SglKind::InCapsule { offset: self.address.get() }),
            Self::TRANSPORT => Some(SglKind::Transport),
            _ => None,
        }
    }
}

/// Kind of data pointer, bits 7:6 of the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Psdt {
    /// Physical region pages: not with fabrics.
    Prp,
    /// One descriptor; metadata, if any, is contiguous.
    Sgl,
    /// One descriptor, and another one for metadata.
    SglMetadata,
    /// Not defined.
    Reserved,
}

/// Part of a command in a fused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// A command of its own.
    Normal,
    /// The first of two.
    First,
    /// The second of two.
    Second,
    /// Not defined.
    Reserved,
}

impl Sqe {
    /// Opcode of every fabrics command.
    pub const FABRICS: u8 = 0x7F;
    /// Namespace identifier that means "all of them".
    pub const ALL_NAMESPACES: u32 = u32::MAX;
    /// Flags of a command with one data descriptor.
    pub const FLAGS_SGL: u8 = 0x40;

    /// A command with everything but the opcode and the kind of data pointer at zero.
    pub fn new(opcode: u8, cid: u16) -> Sqe {
        let mut sqe: Sqe = zerocopy::FromZeros::new_zeroed();
        sqe.opcode = opcode;
        sqe.flags = Self::FLAGS_SGL;
        sqe.cid = U16::new(cid);
        sqe.sgl = Sgl::transport(0);
        sqe
    }

    /// Its part in a fused operation.
    pub fn fuse(&self) -> Fuse {
        match self.flags & 3 {
            0 => Fuse::Normal,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Kind of its data pointer.
    pub fn psdt(&self) -> Psdt {
        match self.flags >> 6 {
            0 => Psdt::Prp,
            1 => Psdt::Sgl,
            2 => Psdt::SglMetadata,
            _ => Psdt::Reserved,
        }
    }

    /// First block of a read, write, compare, verify or write-zeroes command.
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get())
    }

    /// Sets the first block.
    pub fn set_slba(&mut self, slba: u64) {
        let [low, high] = halves(slba);
        self.cdw10 = U32::new(low);
        self.cdw11 = U32::new(high);
    }

    /// Number of blocks minus one, of the same commands.
    pub fn nlb(&self) -> u16 {
        low16(self.cdw12.get())
    }

    /// Whether force unit access is asked for (bit 30 of dword 12).
    pub fn fua(&self) -> bool {
        self.cdw12.get() & Self::CDW12_FUA != 0
    }

    /// Whether write zeroes may give the blocks back (bit 25 of dword 12).
    pub fn deac(&self) -> bool {
        self.cdw12.get() & Self::CDW12_DEAC != 0
    }

    /// Whether protection information is asked for (bits 29:26 of dword 12).
    pub fn prinfo(&self) -> u32 {
        (self.cdw12.get() >> 26) & 0xF
    }

    /// Force unit access.
    pub const CDW12_FUA: u32 = 1 << 30;
    /// Write zeroes may deallocate.
    pub const CDW12_DEAC: u32 = 1 << 25;

    /// Number of ranges minus one, of a Dataset Management command.
    pub fn dsm_nr(&self) -> u8 {
        self.cdw10.get().to_le_bytes()[0]
    }

    /// Whether a Dataset Management command deallocates (bit 2 of dword 11).
    pub fn dsm_deallocate(&self) -> bool {
        self.cdw11.get() & Self::CDW11_DSM_AD != 0
    }

    /// Dataset Management: deallocate.
    pub const CDW11_DSM_AD: u32 = 1 << 2;
}

/// The low and the high half of a 64-bit number.
pub(crate) fn halves(value: u64) -> [u32; 2] {
    let low = value & u64::from(u32::MAX);
    [low, value >> 32].map(|half| u32::try_from(half).unwrap_or_default())
}

/// The low 16 bits.
pub(super) fn low16(value: u32) -> u16 {
    let [a, b, _, _] = value.to_le_bytes();
    u16::from_le_bytes([a, b])
}

/// The high 16 bits.
pub(super) fn high16(value: u32) -> u16 {
    low16(value >> 16)
}

/// Declares an enumeration of one-byte codes.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[doc = $doc:literal])* $code:ident = $value:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $doc])* $code,)* }

        impl $name {
            /// All that are defined here, by number.
            pub const ALL: &'static [$name] = &[$($name::$code,)*];

            /// From its number, if it is defined here.
            pub const fn from_code(code: u8) -> Option<$name> {
                match code {
                    $($value => Some($name::$code),)*
                    _ => None,
                }
            }

            /// Its number.
            pub const fn code(self) -> u8 {
                match self { $($name::$code => $value,)* }
            }
        }
    };
}
pub(super) use codes;

codes! {
    /// Commands of the admin queue.
    pub enum AdminOpcode {
        /// Read a log page.
        GetLogPage = 0x02,
        /// Describe a controller or a namespace.
        Identify = 0x06,
        /// Withdraw a command.
        Abort = 0x08,
        /// Change a feature.
        SetFeatures = 0x09,
        /// Read a feature.
        GetFeatures = 0x0A,
        /// Wait for an event.
        AsyncEventRequest = 0x0C,
        /// Say that the host is alive.
        KeepAlive = 0x18,
    }
}

codes! {
    /// Commands of an I/O queue.
    pub enum IoOpcode {
        /// Make completed writes durable.
        Flush = 0x00,
        /// Write blocks.
        Write = 0x01,
        /// Read blocks.
        Read = 0x02,
        /// Compare blocks with bytes of the host.
        Compare = 0x05,
        /// Make blocks read as zeros.
        WriteZeroes = 0x08,
        /// Deallocate ranges of blocks.
        DatasetManagement = 0x09,
        /// Read blocks without returning them.
        Verify = 0x0C,
        /// Register a reservation key.
        ReservationRegister = 0x0D,
        /// Describe registrants and holder.
        ReservationReport = 0x0E,
        /// Acquire or preempt a reservation.
        ReservationAcquire = 0x11,
        /// Release or clear a reservation.
        ReservationRelease = 0x15,
        /// Tell the owner of a namespace something (of our own making).
        Tell = 0xC1,
        /// Ask the owner of a namespace something (of our own making).
        Ask = 0xC2,
    }
}
