//! Features, and the events that one of them turns on.

use super::command::codes;
use super::{U16, layout};

codes! {
    /// Features that the target knows.
    pub enum FeatureId {
        /// Arbitration.
        Arbitration = 0x01,
        /// Power management.
        PowerManagement = 0x02,
        /// Temperature thresholds.
        TemperatureThreshold = 0x04,
        /// Error recovery.
        ErrorRecovery = 0x05,
        /// Volatile write cache.
        VolatileWriteCache = 0x06,
        /// Number of queues.
        NumberOfQueues = 0x07,
        /// Interrupt coalescing: accepted, without meaning over fabrics.
        InterruptCoalescing = 0x08,
        /// Interrupt vector configuration: accepted, without meaning over fabrics.
        InterruptVector = 0x09,
        /// Write atomicity.
        WriteAtomicity = 0x0A,
        /// Asynchronous event configuration.
        AsyncEventConfig = 0x0B,
        /// Timestamp.
        Timestamp = 0x0E,
        /// Keep-alive timer.
        KeepAliveTimer = 0x0F,
        /// Host behavior support.
        HostBehavior = 0x16,
        /// Host identifier.
        HostIdentifier = 0x81,
        /// Reservation notification mask.
        ReservationMask = 0x82,
        /// Reservation persistence.
        ReservationPersistence = 0x83,
    }
}

/// Which events a host wants, dword 11 of the feature and OAES of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventConfig(pub u32);

impl EventConfig {
    /// Namespace attributes changed.
    pub const NAMESPACE: u32 = 1 << 8;
    /// ANA state changed.
    pub const ANA: u32 = 1 << 11;
    /// Discovery log changed.
    pub const DISCOVERY: u32 = 1 << 31;

    /// Whether one of the bits above is on.
    pub fn wants(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// An event as the completion of an asynchronous event request carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsyncEvent {
    /// A namespace appeared, went or changed; log page 04h says which.
    NamespaceChanged,
    /// An ANA state changed; log page 0Ch says which.
    AnaChanged,
    /// The discovery log changed; log page 70h.
    DiscoveryChanged,
    /// A reservation notice waits in log page 80h.
    ReservationNotice,
}

impl AsyncEvent {
    /// First dword of the completion.
    pub fn dw0(self) -> u32 {
        let (kind, info, log) = match self {
            AsyncEvent::NamespaceChanged => (2, 0x00, 0x04),
            AsyncEvent::AnaChanged => (2, 0x03, 0x0C),
            AsyncEvent::DiscoveryChanged => (2, 0xF0, 0x70),
            AsyncEvent::ReservationNotice => (6, 0x00, 0x80),
        };
        log << 16 | info << 8 | kind
    }

    /// From the first dword of a completion, if it is one of these.
    pub fn from_dw0(dw0: u32) -> Option<AsyncEvent> {
        const ALL: [AsyncEvent; 4] = [
            AsyncEvent::NamespaceChanged,
            AsyncEvent::AnaChanged,
            AsyncEvent::DiscoveryChanged,
            AsyncEvent::ReservationNotice,
        ];
        ALL.into_iter().find(|event| event.dw0() == dw0 & 0x00FF_FF07)
    }
}

layout! {
    /// Data of the Host Behavior Support feature.
    pub struct HostBehavior: 512 {
        /// Advanced command retry: the host honours retry delays.
        0: pub acre: u8,
        /// Extended telemetry.
        1: pub etdas: u8,
        /// Extended LBA formats.
        2: pub lbafee: u8,
        3: _reserved: [u8; 509],
    }
}

layout! {
    /// Data of the Timestamp feature.
    pub struct Timestamp: 8 {
        /// Milliseconds since 1970, 48 bits.
        0: pub milliseconds: [u8; 6],
        /// Bits 3:1: 1 if a host set it.
        6: pub attributes: u8,
        7: _reserved: u8,
    }
}

layout! {
    /// Number of queues, both minus one: submission in the low, completion in the high half.
    pub struct QueueCounts: 4 {
        /// I/O submission queues minus one.
        0: pub submission: U16,
        /// I/O completion queues minus one.
        2: pub completion: U16,
    }
}
