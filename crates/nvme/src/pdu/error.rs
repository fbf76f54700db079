//! Errors that end a connection.

use super::PduType;

/// Fatal error status: what a termination request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fes {
    /// A field of the header is wrong; FEI is its offset.
    InvalidHeaderField,
    /// A PDU came when it may not come.
    SequenceError,
    /// The header digest does not match; FEI is the digest received.
    HeaderDigest,
    /// Data lie outside of what was asked for.
    DataOutOfRange,
    /// More data than agreed (to a controller), or more R2Ts than agreed (to a host).
    LimitExceeded,
    /// A parameter is not supported; FEI is its offset.
    UnsupportedParameter,
}

impl Fes {
    /// Its number.
    pub fn code(self) -> u16 {
        match self {
            Fes::InvalidHeaderField => 1,
            Fes::SequenceError => 2,
            Fes::HeaderDigest => 3,
            Fes::DataOutOfRange => 4,
            Fes::LimitExceeded => 5,
            Fes::UnsupportedParameter => 6,
        }
    }
}

/// Why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FatalError {
    /// No such PDU, or not in this direction.
    #[error("PDU type {kind:#04x} is not expected here")]
    UnknownKind {
        /// The type byte.
        kind: u8,
    },
    /// A header field with an impossible value.
    #[error("{kind:?} has a bad header field at offset {at}")]
    BadField {
        /// The PDU.
        kind: PduType,
        /// Offset of the field.
        at: u8,
    },
    /// A PDU that may not come now.
    #[error("{kind:?} came out of sequence")]
    OutOfSequence {
        /// The PDU.
        kind: PduType,
    },
    /// The header digest does not match.
    #[error("the header digest of a {kind:?} is {received:#010x}, its header has {computed:#010x}")]
    HeaderDigest {
        /// The PDU.
        kind: PduType,
        /// What came.
        received: u32,
        /// What the header has.
        computed: u32,
    },
    /// Data outside the range that was granted.
    #[error("{kind:?} is outside the range that was granted")]
    OutOfRange {
        /// The PDU.
        kind: PduType,
    },
    /// More than was agreed.
    #[error("{kind:?} exceeds the agreed limit")]
    Limit {
        /// The PDU.
        kind: PduType,
    },
    /// A parameter of the set-up that is not supported.
    #[error("{kind:?} asks for something unsupported at offset {at}")]
    Unsupported {
        /// The PDU.
        kind: PduType,
        /// Offset of the field.
        at: u8,
    },
}

impl FatalError {
    /// Status and information for the termination request.
    pub fn fes_fei(self) -> (Fes, u32) {
        match self {
            FatalError::UnknownKind { .. } => (Fes::InvalidHeaderField, 0),
            FatalError::BadField { at, .. } => (Fes::InvalidHeaderField, u32::from(at)),
            FatalError::OutOfSequence { .. } => (Fes::SequenceError, 0),
            FatalError::HeaderDigest { received, .. } => (Fes::HeaderDigest, received),
            FatalError::OutOfRange { .. } => (Fes::DataOutOfRange, 0),
            FatalError::Limit { .. } => (Fes::LimitExceeded, 0),
            FatalError::Unsupported { at, .. } => (Fes::UnsupportedParameter, u32::from(at)),
        }
    }
}
