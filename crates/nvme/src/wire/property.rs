//! Controller properties: capabilities, configuration, status.

/// Version 2.0 of the base specification.
pub const VERSION_2_0: u32 = 0x0002_0000;

/// The properties that exist over fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Capabilities, 8 bytes.
    Cap,
    /// Version, 4 bytes.
    Vs,
    /// Configuration, 4 bytes.
    Cc,
    /// Status, 4 bytes.
    Csts,
    /// NVM subsystem reset, 4 bytes.
    Nssr,
    /// Controller ready timeouts, 4 bytes.
    Crto,
}

impl Property {
    /// By its offset.
    pub fn from_offset(offset: u32) -> Option<Property> {
        match offset {
            0x00 => Some(Property::Cap),
            0x08 => Some(Property::Vs),
            0x14 => Some(Property::Cc),
            0x1C => Some(Property::Csts),
            0x20 => Some(Property::Nssr),
            0x68 => Some(Property::Crto),
            _ => None,
        }
    }

    /// Its offset.
    pub fn offset(self) -> u32 {
        match self {
            Property::Cap => 0x00,
            Property::Vs => 0x08,
            Property::Cc => 0x14,
            Property::Csts => 0x1C,
            Property::Nssr => 0x20,
            Property::Crto => 0x68,
        }
    }

    /// Whether it has eight bytes.
    pub fn is_wide(self) -> bool {
        self == Property::Cap
    }
}

/// Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// Contiguous queues required.
    pub const CQR: u64 = 1 << 16;
    /// NVM command set.
    pub const CSS_NVM: u64 = 1 << 37;
    /// Several command sets, chosen by CC.CSS 110b.
    pub const CSS_IOCSS: u64 = 1 << 43;
    /// Controller ready modes: with media.
    pub const CRWMS: u64 = 1 << 59;

    /// Queue entries (not zero-based) and the time to become ready in units of 500 ms.
    pub fn new(queue_entries: u16, ready_halfseconds: u8, modes: u64) -> Cap {
        let mqes = u64::from(queue_entries.saturating_sub(1));
        Cap(mqes | u64::from(ready_halfseconds) << 24 | modes)
    }

    /// Largest queue in entries.
    pub fn queue_entries(self) -> u32 {
        let [a, b, ..] = self.0.to_le_bytes();
        u32::from(u16::from_le_bytes([a, b])) + 1
    }

    /// Time to become ready, in units of 500 ms.
    pub fn ready_halfseconds(self) -> u8 {
        self.0.to_le_bytes()[3]
    }
}

/// What the host wants of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Nothing.
    None,
    /// An orderly one.
    Normal,
    /// A quick one.
    Abrupt,
    /// Not defined.
    Reserved,
}

/// Configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cc(pub u32);

impl Cc {
    /// Enabled, NVM command set, queue entries of 64 and 16 bytes.
    pub const ENABLE_NVM: Cc = Cc(1 | 6 << 16 | 4 << 20);

    /// Whether the controller shall run.
    pub fn enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Command set selected.
    pub fn css(self) -> u32 {
        (self.0 >> 4) & 7
    }

    /// Memory page size exponent minus 12.
    pub fn mps(self) -> u32 {
        (self.0 >> 7) & 0xF
    }

    /// Arbitration mechanism.
    pub fn ams(self) -> u32 {
        (self.0 >> 11) & 7
    }

    /// Shutdown notification.
    pub fn shutdown(self) -> Shutdown {
        match (self.0 >> 14) & 3 {
            0 => Shutdown::None,
            1 => Shutdown::Normal,
            2 => Shutdown::Abrupt,
            _ => Shutdown::Reserved,
        }
    }

    /// Base-two logarithm of the submission queue entry size.
    pub fn iosqes(self) -> u32 {
        (self.0 >> 16) & 0xF
    }

    /// Base-two logarithm of the completion queue entry size.
    pub fn iocqes(self) -> u32 {
        (self.0 >> 20) & 0xF
    }

    /// The same with a shutdown asked for.
    #[must_use]
    pub fn with_normal_shutdown(self) -> Cc {
        Cc((self.0 & !(3 << 14)) | 1 << 14)
    }
}

/// Status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Csts(pub u32);

impl Csts {
    /// Ready.
    pub const READY: u32 = 1;
    /// Failed for good.
    pub const FATAL: u32 = 1 << 1;
    /// Shutdown is complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

    /// Whether it is ready.
    pub fn ready(self) -> bool {
        self.0 & Self::READY != 0
    }

    /// Whether it failed for good.
    pub fn fatal(self) -> bool {
        self.0 & Self::FATAL != 0
    }

    /// Whether a shutdown is complete.
    pub fn shutdown_complete(self) -> bool {
        self.0 & (3 << 2) == Self::SHUTDOWN_COMPLETE
    }
}
