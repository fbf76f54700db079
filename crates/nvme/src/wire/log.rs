//! Log pages.

use super::command::codes;
use super::{U16, U32, U64, U128, layout};

codes! {
    /// Log pages that the target knows.
    pub enum LogId {
        /// Which log pages there are.
        Supported = 0x00,
        /// Errors.
        Error = 0x01,
        /// Health.
        Smart = 0x02,
        /// Firmware slots.
        FirmwareSlots = 0x03,
        /// Namespaces that changed.
        ChangedNamespaces = 0x04,
        /// Commands and what they touch.
        CommandEffects = 0x05,
        /// Asymmetric namespace access.
        Ana = 0x0C,
        /// Subsystems and where they listen.
        Discovery = 0x70,
        /// Reservation notices.
        ReservationNotices = 0x80,
    }
}

codes! {
    /// State of a path to a group of namespaces.
    pub enum AnaState {
        /// Best.
        Optimized = 0x01,
        /// Works.
        NonOptimized = 0x02,
        /// Does not work at this time.
        Inaccessible = 0x03,
        /// Will not work again.
        PersistentLoss = 0x04,
        /// Between two states.
        Change = 0x0F,
    }
}

/// Bits of a command in the effects log.
pub mod effect {
    /// Supported.
    pub const SUPPORTED: u32 = 1;
    /// Changes contents of blocks.
    pub const CONTENT: u32 = 1 << 1;
    /// Changes capabilities of a namespace.
    pub const NAMESPACE: u32 = 1 << 2;
}

layout! {
    /// One entry of the error log.
    pub struct ErrorEntry: 64 {
        /// Number of this error; zero: no error.
        0: pub error_count: U64,
        /// Submission queue.
        8: pub sqid: U16,
        /// Command.
        10: pub cid: U16,
        /// Status field as in the completion.
        12: pub status: U16,
        /// Which parameter was wrong.
        14: pub location: U16,
        /// First block that failed.
        16: pub lba: U64,
        /// Namespace.
        24: pub nsid: U32,
        28: _reserved: [u8; 36],
    }
}

layout! {
    /// Health.
    pub struct Smart: 512 {
        /// What is wrong, one bit each.
        0: pub critical_warning: u8,
        /// Kelvin.
        1: pub temperature: U16,
        /// Percent.
        3: pub available_spare: u8,
        /// Percent.
        4: pub spare_threshold: u8,
        /// Percent.
        5: pub percentage_used: u8,
        6: _reserved1: [u8; 26],
        /// In units of 1000 times 512 bytes.
        32: pub data_units_read: U128,
        /// In units of 1000 times 512 bytes.
        48: pub data_units_written: U128,
        /// Read commands.
        64: pub host_reads: U128,
        /// Write commands.
        80: pub host_writes: U128,
        96: _rest: [u8; 416],
    }
}

layout! {
    /// Firmware slots.
    pub struct FirmwareSlots: 512 {
        /// Bits 2:0: active slot.
        0: pub afi: u8,
        1: _reserved1: [u8; 7],
        /// Revision in each slot.
        8: pub revision: [[u8; 8]; 7],
        64: _reserved2: [u8; 448],
    }
}

layout! {
    /// Commands and what they touch: see [`effect`].
    pub struct CommandEffects: 4096 {
        /// Admin commands by opcode.
        0: pub admin: [U32; 256],
        /// I/O commands by opcode.
        1024: pub io: [U32; 256],
        2048: _reserved: [u8; 2048],
    }
}

layout! {
    /// Head of the ANA log.
    pub struct AnaLogHeader: 16 {
        /// Number of changes.
        0: pub chgcnt: U64,
        /// Groups that follow.
        8: pub ngrps: U16,
        10: _reserved: [u8; 6],
    }
}

layout! {
    /// Head of a group in the ANA log; its namespaces follow, four bytes each.
    pub struct AnaGroupHeader: 32 {
        /// Group.
        0: pub grpid: U32,
        /// Namespaces that follow.
        4: pub nnsids: U32,
        /// Number of the change that gave it this state.
        8: pub chgcnt: U64,
        /// See [`AnaState`].
        16: pub state: u8,
        17: _reserved: [u8; 15],
    }
}

layout! {
    /// Head of the discovery log.
    pub struct DiscoveryHeader: 1024 {
        /// Generation: changes with the log.
        0: pub genctr: U64,
        /// Entries that follow.
        8: pub numrec: U64,
        /// Format, zero.
        16: pub recfmt: U16,
        18: _reserved: [u8; 1006],
    }
}

layout! {
    /// One entry of the discovery log.
    pub struct DiscoveryEntry: 1024 {
        /// Transport: 3 is TCP.
        0: pub trtype: u8,
        /// Address family: 1 IPv4, 2 IPv6.
        1: pub adrfam: u8,
        /// 1 other discovery service, 2 NVM subsystem, 3 this discovery subsystem.
        2: pub subtype: u8,
        /// Bits 1:0 secure channel: 0 not said, 1 required, 2 not required.
        3: pub treq: u8,
        /// Port of the subsystem.
        4: pub portid: U16,
        /// Controller, FFFFh for dynamic.
        6: pub cntlid: U16,
        /// Largest admin queue.
        8: pub asqsz: U16,
        /// Bit 1: explicit persistent connections.
        10: pub eflags: U16,
        12: _reserved1: [u8; 20],
        /// Port number as text, padded with spaces.
        32: pub trsvcid: [u8; 32],
        64: _reserved2: [u8; 192],
        /// Subsystem, zero-terminated.
        256: pub subnqn: [u8; 256],
        /// Address as text, padded with spaces.
        512: pub traddr: [u8; 256],
        /// Byte 0: 0 no security, 1 TLS 1.2, 2 TLS 1.3.
        768: pub tsas: [u8; 256],
    }
}

layout! {
    /// Reservation notice.
    pub struct ReservationNotice: 64 {
        /// Number of the notice.
        0: pub count: U64,
        /// 0 none, 1 registration preempted, 2 reservation released, 3 reservation preempted.
        8: pub kind: u8,
        /// Notices that wait after this one.
        9: pub available: u8,
        10: _reserved1: [u8; 2],
        /// Namespace.
        12: pub nsid: U32,
        16: _reserved2: [u8; 48],
    }
}
