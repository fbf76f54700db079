//! How a command ended, as the host sees it.

use core::fmt;

/// Status of a completion: code, type, retry delay, "more" and "do not retry".
///
/// Held as the completion's status field without the phase bit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

impl Status {
    const DNR: u16 = 1 << 14;
    const MORE: u16 = 1 << 13;

    const fn generic(code: u16) -> Status {
        Status(code)
    }

    const fn specific(code: u16) -> Status {
        Status(0x100 | code)
    }

    const fn media(code: u16) -> Status {
        Status(0x200 | code)
    }

    const fn path(code: u16) -> Status {
        Status(0x300 | code)
    }

    /// From the 16 bits of a completion, whose lowest bit is the phase.
    pub const fn from_field(field: u16) -> Status {
        Status(field >> 1)
    }

    /// The 16 bits of a completion, phase bit clear as fabrics want it.
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// The same status, telling the host that sending the command again is of no use.
    #[must_use]
    pub const fn do_not_retry(self) -> Status {
        Status(self.0 | Self::DNR)
    }

    /// The same status, naming one of the three retry delays of the controller (1 to 3).
    #[must_use]
    pub const fn retry_after(self, delay: u8) -> Status {
        let bits: u16 = match delay {
            1 => 1,
            2 => 2,
            3 => 3,
            _ => 0,
        };
        Status((self.0 & !(3 << 11)) | (bits << 11))
    }

    /// Whether the host was told not to retry.
    pub const fn is_do_not_retry(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// Which of the three retry delays applies; zero for none.
    pub const fn retry_delay(self) -> u16 {
        (self.0 >> 11) & 3
    }

    /// Type and code alone, for comparison with the constants here.
    #[must_use]
    pub const fn kind(self) -> Status {
        Status(self.0 & 0x7FF)
    }

    /// Whether the error log says more.
    pub const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Whether the command was carried out.
    pub const fn is_success(self) -> bool {
        self.kind().0 == 0
    }

    /// Whether another path to the same namespace may do better.
    pub const fn is_path_error(self) -> bool {
        (self.0 >> 8) & 7 == 3
    }
}

/// Names and numbers of the statuses that either side uses.
macro_rules! statuses {
    ($($(#[doc = $doc:literal])* $name:ident = $class:ident($code:literal),)*) => {
        impl Status {
            $($(#[doc = $doc])* pub const $name: Status = Status::$class($code);)*
        }

        fn name(status: Status) -> &'static str {
            $(if status.kind().0 == Status::$name.0 { return stringify!($name); })*
            "status"
        }
    };
}

statuses! {
    /// Done.
    SUCCESS = generic(0x00),
    /// The opcode is not supported on this queue.
    INVALID_OPCODE = generic(0x01),
    /// A field of the command holds a value that is not supported.
    INVALID_FIELD = generic(0x02),
    /// The command identifier is in use.
    ID_CONFLICT = generic(0x03),
    /// The data could not be moved.
    DATA_TRANSFER_ERROR = generic(0x04),
    /// A failure inside the controller.
    INTERNAL_ERROR = generic(0x06),
    /// The host asked for the abort.
    ABORT_REQUESTED = generic(0x07),
    /// The queue went away under the command.
    ABORTED_SQ_DELETION = generic(0x08),
    /// The other half of the fused pair failed.
    ABORTED_FAILED_FUSED = generic(0x09),
    /// The other half of the fused pair is missing.
    ABORTED_MISSING_FUSED = generic(0x0A),
    /// No such namespace, or not for this controller.
    INVALID_NAMESPACE = generic(0x0B),
    /// Commands came in an order that the protocol forbids.
    SEQUENCE_ERROR = generic(0x0C),
    /// The number of data descriptors is not supported.
    INVALID_SGL_COUNT = generic(0x0E),
    /// The length of a data descriptor does not fit the command.
    DATA_SGL_LENGTH_INVALID = generic(0x0F),
    /// The kind of a data descriptor is not supported.
    SGL_DESCRIPTOR_TYPE_INVALID = generic(0x11),
    /// A fused write is larger than what is written atomically.
    ATOMIC_WRITE_UNIT_EXCEEDED = generic(0x14),
    /// The offset of a data descriptor lies outside the capsule.
    SGL_OFFSET_INVALID = generic(0x16),
    /// Two controllers of one host disagree about the format of the host identifier.
    HOST_ID_INCONSISTENT = generic(0x18),
    /// The keep-alive timer ran out.
    KEEP_ALIVE_EXPIRED = generic(0x19),
    /// The keep-alive time is not supported.
    KEEP_ALIVE_INVALID = generic(0x1A),
    /// A preempt-and-abort withdrew the command.
    ABORTED_PREEMPT = generic(0x1B),
    /// The namespace does not take changes.
    NAMESPACE_WRITE_PROTECTED = generic(0x20),
    /// The command was interrupted; send it again.
    COMMAND_INTERRUPTED = generic(0x21),
    /// The transport lost or damaged data; send the command again.
    TRANSIENT_TRANSPORT_ERROR = generic(0x22),
    /// The blocks lie beyond the end of the namespace.
    LBA_OUT_OF_RANGE = generic(0x80),
    /// There is no space for the data.
    CAPACITY_EXCEEDED = generic(0x81),
    /// The namespace is not ready to be used.
    NAMESPACE_NOT_READY = generic(0x82),
    /// Another host's reservation forbids the command.
    RESERVATION_CONFLICT = generic(0x83),

    /// Too many abort commands at once.
    ABORT_LIMIT_EXCEEDED = specific(0x03),
    /// Too many asynchronous event requests at once.
    ASYNC_LIMIT_EXCEEDED = specific(0x05),
    /// The log page is not supported.
    INVALID_LOG_PAGE = specific(0x09),
    /// The feature cannot be saved.
    FEATURE_NOT_SAVEABLE = specific(0x0D),
    /// The feature cannot be changed.
    FEATURE_NOT_CHANGEABLE = specific(0x0E),
    /// The feature is not one of a namespace.
    FEATURE_NOT_PER_NAMESPACE = specific(0x0F),
    /// The record format of a Connect or Disconnect is not supported.
    CONNECT_INCOMPATIBLE_FORMAT = specific(0x80),
    /// The controller takes no more hosts or queues at this time.
    CONNECT_CONTROLLER_BUSY = specific(0x81),
    /// A field of the Connect is wrong; the completion says which.
    CONNECT_INVALID_PARAMETERS = specific(0x82),
    /// The discovery log must be read again.
    CONNECT_RESTART_DISCOVERY = specific(0x83),
    /// This host may not use this subsystem.
    CONNECT_INVALID_HOST = specific(0x84),
    /// This queue cannot be disconnected.
    DISCONNECT_INVALID_QUEUE = specific(0x85),
    /// The discovery log changed between two reads of its parts.
    DISCOVER_RESTART = specific(0x90),
    /// The queue must authenticate first.
    AUTHENTICATION_REQUIRED = specific(0x91),

    /// The medium could not be written.
    WRITE_FAULT = media(0x80),
    /// The medium could not be read.
    UNRECOVERED_READ = media(0x81),
    /// The bytes are not proven to be the ones written: the guard check failed.
    GUARD_CHECK = media(0x82),
    /// The compared bytes differ.
    COMPARE_FAILURE = media(0x85),
    /// Access is refused.
    ACCESS_DENIED = media(0x86),

    /// The controller failed in a way that another path may not.
    INTERNAL_PATH_ERROR = path(0x00),
    /// This path has lost the namespace for good.
    ANA_PERSISTENT_LOSS = path(0x01),
    /// This path cannot reach the namespace at this time.
    ANA_INACCESSIBLE = path(0x02),
    /// This path is changing its state.
    ANA_TRANSITION = path(0x03),
    /// The host's own path failed.
    HOST_PATH_ERROR = path(0x70),
    /// The host gave the command up.
    HOST_ABORTED = path(0x71),
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:#05x}", name(*self), self.kind().0)?;
        if self.is_do_not_retry() {
            f.write_str(", do not retry")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
