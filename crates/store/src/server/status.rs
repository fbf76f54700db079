//! Why a request was refused, in the words and codes that etcd uses.
//!
//! Invariant: for refusals etcd also knows, code and text are etcd's to the letter, because clients
//! recognise errors by them.

use std::sync::Arc;

use tonic::{Code, Status};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// A request without a key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// The value or lease of a missing key should be kept, or an operation is empty.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A value came with `ignore_value`.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A lease came with `ignore_lease`.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// More operations than a transaction may have.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// A transaction writes one key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// An unknown sort order or target.
    #[error("etcdserver: invalid sort option")]
    BadSort,
    /// The revision is compacted.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is not reached yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The quota is used up.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// No such lease.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this number exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// The lease would live too long.
    #[error("etcdserver: too large lease TTL")]
    LeaseTooLong,
    /// The request has too many bytes.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// More requests wait than the queue takes.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    /// The server is shutting down.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// The disk failed; the text says what and where.
    #[error("{0}")]
    Broken(Arc<str>),
}

impl Refusal {
    /// The gRPC code of this refusal.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::DuplicateKey
            | Self::BadSort
            | Self::TooLarge => Code::InvalidArgument,
            Self::Compacted | Self::FutureRevision | Self::LeaseTooLong => Code::OutOfRange,
            Self::NoSpace | Self::TooManyRequests => Code::ResourceExhausted,
            Self::LeaseNotFound => Code::NotFound,
            Self::LeaseExists => Code::FailedPrecondition,
            Self::Stopped | Self::Broken(_) => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}
