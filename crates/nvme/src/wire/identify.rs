//! What Identify returns.

use super::command::codes;
use super::{U16, U32, U64, U128, layout};

codes! {
    /// What to identify: the controller-or-namespace-structure field.
    pub enum Cns {
        /// A namespace, NVM command set.
        Namespace = 0x00,
        /// The controller.
        Controller = 0x01,
        /// Namespaces that are active, above a given one.
        ActiveNamespaces = 0x02,
        /// Identifiers of a namespace.
        NamespaceDescriptors = 0x03,
        /// A namespace, specific to a command set.
        CommandSetNamespace = 0x05,
        /// The controller, specific to a command set.
        CommandSetController = 0x06,
        /// Namespaces of a command set that are active, above a given one.
        CommandSetActiveNamespaces = 0x07,
        /// A namespace, independent of command sets.
        IndependentNamespace = 0x08,
        /// Namespaces that exist, above a given one.
        AllocatedNamespaces = 0x10,
        /// A namespace that exists, NVM command set.
        AllocatedNamespace = 0x11,
        /// Controllers that have a namespace.
        NamespaceControllers = 0x12,
        /// Controllers of the subsystem.
        Controllers = 0x13,
        /// Command sets the controller can run.
        CommandSets = 0x1C,
    }
}

/// Optional NVM commands: bits of ONCS.
pub mod oncs {
    /// Compare.
    pub const COMPARE: u16 = 1;
    /// Dataset Management.
    pub const DSM: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp feature.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
}

layout! {
    /// Identify Controller.
    pub struct IdController: 4096 {
        /// PCI vendor.
        0: pub vid: U16,
        /// PCI subsystem vendor.
        2: pub ssvid: U16,
        /// Serial number, padded with spaces.
        4: pub sn: [u8; 20],
        /// Model, padded with spaces.
        24: pub mn: [u8; 40],
        /// Firmware revision, padded with spaces.
        64: pub fr: [u8; 8],
        /// Recommended arbitration burst.
        72: pub rab: u8,
        /// IEEE OUI.
        73: pub ieee: [u8; 3],
        /// Multipath: bit 0 several ports, bit 1 several controllers, bit 3 ANA.
        76: pub cmic: u8,
        /// Largest transfer: power of two of 4 KiB pages.
        77: pub mdts: u8,
        /// Controller id.
        78: pub cntlid: U16,
        /// Version.
        80: pub ver: U32,
        /// Resume latency.
        84: pub rtd3r: U32,
        /// Entry latency.
        88: pub rtd3e: U32,
        /// Optional events: see `EventConfig`.
        92: pub oaes: U32,
        /// Attributes: bit 0 128-bit host id, bit 6 traffic-based keep-alive.
        96: pub ctratt: U32,
        /// Read recovery levels.
        100: pub rrls: U16,
        102: _reserved1: [u8; 9],
        /// Controller type: 1 I/O, 2 discovery.
        111: pub cntrltype: u8,
        /// FRU identifier.
        112: pub fguid: [u8; 16],
        /// Retry delay 1 in 100 ms.
        128: pub crdt1: U16,
        /// Retry delay 2 in 100 ms.
        130: pub crdt2: U16,
        /// Retry delay 3 in 100 ms.
        132: pub crdt3: U16,
        134: _reserved2: [u8; 122],
        /// Optional admin commands.
        256: pub oacs: U16,
        /// Abort commands at once, minus one.
        258: pub acl: u8,
        /// Event requests at once, minus one.
        259: pub aerl: u8,
        /// Firmware updates: bit 0 slot 1 read-only, bits 3:1 number of slots.
        260: pub frmw: u8,
        /// Log pages: bit 1 command effects, bit 2 offsets.
        261: pub lpa: u8,
        /// Error log entries, minus one.
        262: pub elpe: u8,
        /// Power states, minus one.
        263: pub npss: u8,
        /// Vendor commands.
        264: pub avscc: u8,
        /// Autonomous power states.
        265: pub apsta: u8,
        /// Warning temperature in kelvin.
        266: pub wctemp: U16,
        /// Critical temperature in kelvin.
        268: pub cctemp: U16,
        270: _reserved3: [u8; 10],
        /// Capacity.
        280: pub tnvmcap: U128,
        /// Unallocated capacity.
        296: pub unvmcap: U128,
        312: _reserved4: [u8; 8],
        /// Keep-alive granularity in 100 ms; zero: not supported.
        320: pub kas: U16,
        322: _reserved5: [u8; 20],
        /// Longest ANA transition in seconds.
        342: pub anatt: u8,
        /// ANA states that are reported, one bit each; bit 6: group ids do not change.
        343: pub anacap: u8,
        /// Largest ANA group id.
        344: pub anagrpmax: U32,
        /// Number of ANA groups.
        348: pub nanagrpid: U32,
        352: _reserved6: [u8; 160],
        /// Submission entry sizes, min and max.
        512: pub sqes: u8,
        /// Completion entry sizes, min and max.
        513: pub cqes: u8,
        /// Commands at once per queue.
        514: pub maxcmd: U16,
        /// Largest namespace id.
        516: pub nn: U32,
        /// Optional NVM commands: see [`oncs`].
        520: pub oncs: U16,
        /// Fused operations: bit 0 compare and write.
        522: pub fuses: U16,
        /// Format attributes.
        524: pub fna: u8,
        /// Volatile write cache: bit 0 present, bits 2:1 3: flush takes all namespaces.
        525: pub vwc: u8,
        /// Atomic write unit, minus one.
        526: pub awun: U16,
        /// Atomic write unit at power fail, minus one.
        528: pub awupf: U16,
        /// Vendor I/O commands.
        530: pub icsvscc: u8,
        /// Write protection.
        531: pub nwpc: u8,
        /// Atomic compare and write unit, minus one.
        532: pub acwu: U16,
        534: _reserved7: [u8; 2],
        /// Descriptors: bits 1:0 supported, bit 20 offsets in the capsule.
        536: pub sgls: U32,
        /// Most namespaces at once.
        540: pub mnan: U32,
        544: _reserved8: [u8; 224],
        /// Name of the subsystem, zero-terminated.
        768: pub subnqn: [u8; 256],
        1024: _reserved9: [u8; 768],
        /// Capsule of an I/O command in units of 16 bytes.
        1792: pub ioccsz: U32,
        /// Capsule of an I/O completion in units of 16 bytes.
        1796: pub iorcsz: U32,
        /// Offset of data in the capsule in units of 16 bytes.
        1800: pub icdoff: U16,
        /// Bit 0: static controllers.
        1802: pub fcatt: u8,
        /// Descriptors per command.
        1803: pub msdbd: u8,
        /// Optional fabrics commands: bit 0 disconnect.
        1804: pub ofcs: U16,
        /// Kind of discovery controller.
        1806: pub dctype: u8,
        1807: _reserved10: [u8; 241],
        /// Power states.
        2048: pub psd: [[u8; 32]; 32],
        3072: _vendor: [u8; 1024],
    }
}

layout! {
    /// A format of blocks.
    pub struct LbaFormat: 4 {
        /// Metadata bytes.
        0: pub ms: U16,
        /// Base-two logarithm of the block size.
        2: pub lbads: u8,
        /// Relative performance.
        3: pub rp: u8,
    }
}

layout! {
    /// Identify Namespace, NVM command set.
    pub struct IdNamespace: 4096 {
        /// Size in blocks.
        0: pub nsze: U64,
        /// Capacity in blocks.
        8: pub ncap: U64,
        /// Blocks in use.
        16: pub nuse: U64,
        /// Features: bit 0 thin, bit 1 own atomic units, bit 4 preferred sizes below.
        24: pub nsfeat: u8,
        /// Formats, minus one.
        25: pub nlbaf: u8,
        /// The format in use.
        26: pub flbas: u8,
        /// Metadata capabilities.
        27: pub mc: u8,
        /// Protection capabilities.
        28: pub dpc: u8,
        /// Protection in use.
        29: pub dps: u8,
        /// Bit 0: several controllers may have it.
        30: pub nmic: u8,
        /// Reservations: bit 0 persistence, bits 6:1 types, bit 7 IEKEY as of 1.3.
        31: pub rescap: u8,
        /// Format progress.
        32: pub fpi: u8,
        /// Deallocated blocks: bits 2:0 1 read as zeros, bit 3 write zeroes may deallocate.
        33: pub dlfeat: u8,
        /// Atomic write unit, minus one.
        34: pub nawun: U16,
        /// Atomic write unit at power fail, minus one.
        36: pub nawupf: U16,
        /// Atomic compare and write unit, minus one.
        38: pub nacwu: U16,
        /// Atomic boundary size.
        40: pub nabsn: U16,
        /// Atomic boundary offset.
        42: pub nabo: U16,
        /// Atomic boundary at power fail.
        44: pub nabspf: U16,
        /// Optimal I/O boundary.
        46: pub noiob: U16,
        /// Capacity in bytes.
        48: pub nvmcap: U128,
        /// Preferred write granularity, minus one.
        64: pub npwg: U16,
        /// Preferred write alignment, minus one.
        66: pub npwa: U16,
        /// Preferred deallocate granularity, minus one.
        68: pub npdg: U16,
        /// Preferred deallocate alignment, minus one.
        70: pub npda: U16,
        /// Optimal write size, minus one.
        72: pub nows: U16,
        74: _reserved1: [u8; 18],
        /// ANA group.
        92: pub anagrpid: U32,
        96: _reserved2: [u8; 3],
        /// Bit 0: write-protected.
        99: pub nsattr: u8,
        /// NVM set.
        100: pub nvmsetid: U16,
        /// Endurance group.
        102: pub endgid: U16,
        /// Globally unique identifier.
        104: pub nguid: [u8; 16],
        /// IEEE extended unique identifier.
        120: pub eui64: [u8; 8],
        /// Formats.
        128: pub lbaf: [LbaFormat; 64],
        384: _vendor: [u8; 3712],
    }
}

layout! {
    /// Identify Namespace, independent of command sets.
    pub struct IdNamespaceIndependent: 4096 {
        /// Features: bit 4 rotational, bit 5 no volatile cache.
        0: pub nsfeat: u8,
        /// Bit 0: several controllers may have it.
        1: pub nmic: u8,
        /// As in [`IdNamespace`].
        2: pub rescap: u8,
        /// Format progress.
        3: pub fpi: u8,
        /// ANA group.
        4: pub anagrpid: U32,
        /// Bit 0: write-protected.
        8: pub nsattr: u8,
        9: _reserved1: u8,
        /// NVM set.
        10: pub nvmsetid: U16,
        /// Endurance group.
        12: pub endgid: U16,
        /// Bit 0: ready.
        14: pub nstat: u8,
        15: _reserved2: [u8; 4081],
    }
}

layout! {
    /// Identify Namespace, specific to the NVM command set: no extended formats.
    pub struct IdNamespaceNvm: 4096 {
        /// Storage tag mask.
        0: pub lbstm: U64,
        /// Protection capabilities.
        8: pub pic: u8,
        9: _reserved: [u8; 4087],
    }
}

layout! {
    /// Identify Controller, specific to the NVM command set.
    pub struct IdControllerNvm: 4096 {
        /// Verify limit: power of two of 4 KiB pages.
        0: pub vsl: u8,
        /// Write zeroes limit: power of two of 4 KiB pages.
        1: pub wzsl: u8,
        /// Write uncorrectable limit.
        2: pub wusl: u8,
        /// Ranges of one Dataset Management.
        3: pub dmrl: u8,
        /// Blocks of one range.
        4: pub dmrsl: U32,
        /// Blocks of one command.
        8: pub dmsl: U64,
        16: _reserved: [u8; 4080],
    }
}

layout! {
    /// Namespaces in ascending order, ended by zero.
    pub struct NsList: 4096 {
        /// The list.
        0: pub nsid: [U32; 1024],
    }
}

layout! {
    /// Command sets: bit 0 is NVM.
    pub struct CommandSets: 4096 {
        /// Combinations that can be chosen.
        0: pub combinations: [U64; 512],
    }
}

codes! {
    /// Kinds of namespace identifiers.
    pub enum NsDescriptorType {
        /// IEEE extended unique identifier, 8 bytes.
        Eui64 = 0x01,
        /// Globally unique identifier, 16 bytes.
        Nguid = 0x02,
        /// UUID, 16 bytes.
        Uuid = 0x03,
        /// Command set, 1 byte.
        Csi = 0x04,
    }
}

layout! {
    /// Head of a namespace identifier; the identifier follows.
    pub struct NsDescriptor: 4 {
        /// Kind, see [`NsDescriptorType`]; zero ends the list.
        0: pub nidt: u8,
        /// Length of the identifier.
        1: pub nidl: u8,
        2: _reserved: [u8; 2],
    }
}

impl NsDescriptor {
    /// Head of an identifier of `length` bytes.
    pub fn new(kind: NsDescriptorType, length: u8) -> NsDescriptor {
        NsDescriptor { nidt: kind.code(), nidl: length, _reserved: [0; 2] }
    }
}

/// Text as the specification wants it: cut to its field, padded with spaces.
pub fn padded_ascii<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    let graphic = text.bytes().map(|byte| if (0x20..0x7F).contains(&byte) { byte } else { b'?' });
    for (to, from) in field.iter_mut().zip(graphic) {
        *to = from;
    }
    field
}
