//! How calls fail, and who must act.

use super::{LeaseId, Revision};

/// What lies beneath an error.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Who must act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Nobody: try again later. If the error [leaves doubt](WriteError::leaves_doubt), read first.
    Retry,
    /// Whoever made the call: the same call will fail again.
    Caller,
    /// Whoever runs the store.
    Operator,
}

/// A read that was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No server answered in time.
    #[error("no answer to the {what} from {endpoint}")]
    Unreachable {
        /// The call.
        what: String,
        /// The server asked last.
        endpoint: String,
        /// What went wrong there.
        source: Cause,
    },
    /// History that old is gone.
    #[error("{what}: that revision has been compacted")]
    Compacted {
        /// The call.
        what: String,
    },
    /// The store has not come that far.
    #[error("{what}: that revision is still to come")]
    Future {
        /// The call.
        what: String,
    },
    /// The server will not do it.
    #[error("{endpoint} refuses the {what}: {reason}")]
    Refused {
        /// The call.
        what: String,
        /// The server.
        endpoint: String,
        /// Its words.
        reason: String,
        /// Who must act.
        class: ErrorClass,
    },
}

impl ReadError {
    /// Who must act.
    pub fn class(&self) -> ErrorClass {
        match self {
            ReadError::Unreachable { .. } => ErrorClass::Retry,
            ReadError::Compacted { .. } | ReadError::Future { .. } => ErrorClass::Caller,
            ReadError::Refused { class, .. } => *class,
        }
    }
}

/// A write that was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No server could be reached in time; nothing was written.
    #[error("cannot reach {endpoint} for the {what}; nothing was written")]
    NotSent {
        /// The call.
        what: String,
        /// The server tried last.
        endpoint: String,
        /// What went wrong there.
        source: Cause,
    },
    /// The answer was lost: the write was carried out, or will be, or never will.
    #[error("{endpoint} did not answer the {what}; it may or may not have been carried out")]
    Unknown {
        /// The call.
        what: String,
        /// The server it was sent to.
        endpoint: String,
        /// What went wrong.
        source: Cause,
    },
    /// The lease to hang a key on does not exist; nothing was written.
    #[error("{what}: its lease does not exist or has expired")]
    LeaseGone {
        /// The call.
        what: String,
    },
    /// History that old is gone already.
    #[error("{what}: that revision has been compacted")]
    Compacted {
        /// The call.
        what: String,
    },
    /// The store is full; nothing was written.
    #[error("{endpoint} has no space for the {what}: compact it, or raise its quota")]
    Full {
        /// The call.
        what: String,
        /// The server.
        endpoint: String,
    },
    /// The server will not do it; nothing was written.
    #[error("{endpoint} refuses the {what}: {reason}")]
    Refused {
        /// The call.
        what: String,
        /// The server.
        endpoint: String,
        /// Its words.
        reason: String,
        /// Who must act.
        class: ErrorClass,
    },
}

impl WriteError {
    /// Who must act.
    pub fn class(&self) -> ErrorClass {
        match self {
            WriteError::NotSent { .. } | WriteError::Unknown { .. } => ErrorClass::Retry,
            WriteError::LeaseGone { .. } | WriteError::Compacted { .. } => ErrorClass::Caller,
            WriteError::Full { .. } => ErrorClass::Operator,
            WriteError::Refused { class, .. } => *class,
        }
    }

    /// Whether the write may have been carried out although it failed.
    pub fn may_be_applied(&self) -> bool {
        matches!(self, WriteError::Unknown { .. })
    }
}

/// A lease that was not made, renewed or ended. Each of these calls may be repeated: a lease made
/// without our knowledge ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The lease does not exist: it has expired, or was revoked.
    #[error("lease {lease} does not exist or has expired")]
    Gone {
        /// Which.
        lease: LeaseId,
    },
    /// No server answered in time.
    #[error("no answer to the {what} from {endpoint}")]
    Unreachable {
        /// The call.
        what: String,
        /// The server asked last.
        endpoint: String,
        /// What went wrong there.
        source: Cause,
    },
    /// The server will not do it.
    #[error("{endpoint} refuses the {what}: {reason}")]
    Refused {
        /// The call.
        what: String,
        /// The server.
        endpoint: String,
        /// Its words.
        reason: String,
        /// Who must act.
        class: ErrorClass,
    },
}

impl LeaseError {
    /// Who must act.
    pub fn class(&self) -> ErrorClass {
        match self {
            LeaseError::Gone { .. } => ErrorClass::Caller,
            LeaseError::Unreachable { .. } => ErrorClass::Retry,
            LeaseError::Refused { class, .. } => *class,
        }
    }
}

/// Why a watch ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// Changes that were to be reported are forgotten: read everything, then watch from there.
    #[error("watch of {what}: history before revision {upto} has been compacted")]
    Compacted {
        /// What was watched.
        what: String,
        /// The first revision that can still be watched from.
        upto: Revision,
    },
    /// The server will not do it.
    #[error("{endpoint} refuses to watch {what}: {reason}")]
    Refused {
        /// What was to be watched.
        what: String,
        /// The server.
        endpoint: String,
        /// Its words.
        reason: String,
        /// Who must act.
        class: ErrorClass,
    },
}

impl WatchError {
    /// Who must act.
    pub fn class(&self) -> ErrorClass {
        match self {
            WatchError::Compacted { .. } => ErrorClass::Caller,
            WatchError::Refused { class, .. } => *class,
        }
    }
}
