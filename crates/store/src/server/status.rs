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
    /// Auth cannot be enabled without a root user.
    #[error("etcdserver: root user does not exist")]
    RootUserMissing,
    /// Auth cannot be enabled when root is not root.
    #[error("etcdserver: root user does not have root role")]
    RootRoleMissing,
    /// A user with this name exists.
    #[error("etcdserver: user name already exists")]
    UserExists,
    /// No user is named, and one must be.
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    /// No such user.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A role with this name exists.
    #[error("etcdserver: role name already exists")]
    RoleExists,
    /// No such role.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// No role is named, and one must be.
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    /// No such user, or another password.
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    /// A permission is to be granted, and none is given.
    #[error("etcdserver: permission not given")]
    PermissionMissing,
    /// The caller may not do this.
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    /// The user does not have the role.
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    /// The role does not have the permission.
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    /// There are no tokens without auth.
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    /// The token is unknown or too old.
    #[error("etcdserver: invalid auth token")]
    InvalidToken,
    /// It would lock everybody out.
    #[error("etcdserver: invalid auth management")]
    InvalidAuthChange,
    /// The alarm says that the data is damaged.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// No such member.
    #[error("etcdserver: member not found")]
    MemberNotFound,
    /// One member is all there can be.
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughMembers,
    /// The member votes already.
    #[error("etcdserver: can only promote a learner member")]
    NotALearner,
    /// These are no addresses.
    #[error("etcdserver: given member URLs are invalid")]
    BadPeerUrls,
    /// It cannot lead.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// That is no version.
    #[error("etcdserver: wrong downgrade target version format")]
    BadVersionFormat,
    /// There is no way to this version.
    #[error("etcdserver: invalid downgrade target version")]
    BadDowngrade,
    /// No downgrade is under way.
    #[error("etcdserver: no inflight downgrade job")]
    NoDowngrade,
    /// Nobody leads the election.
    #[error("election: no leader")]
    NoLeader,
    /// The caller does not lead the election.
    #[error("election: not leader")]
    NotLeader,
    /// The lease ended while its lock was waited for.
    #[error("mutex: session is expired")]
    SessionExpired,
    /// A leader must be named.
    #[error("\"leader\" field must be provided")]
    LeaderMissing,
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
            | Self::TooLarge
            | Self::UserEmpty
            | Self::RoleEmpty
            | Self::AuthFailed
            | Self::PermissionMissing
            | Self::InvalidAuthChange
            | Self::BadPeerUrls
            | Self::BadVersionFormat
            | Self::BadDowngrade => Code::InvalidArgument,
            Self::Compacted | Self::FutureRevision | Self::LeaseTooLong => Code::OutOfRange,
            Self::NoSpace | Self::TooManyRequests => Code::ResourceExhausted,
            Self::LeaseNotFound | Self::MemberNotFound => Code::NotFound,
            Self::LeaseExists
            | Self::RootUserMissing
            | Self::RootRoleMissing
            | Self::UserExists
            | Self::UserNotFound
            | Self::RoleExists
            | Self::RoleNotFound
            | Self::RoleNotGranted
            | Self::PermissionNotGranted
            | Self::AuthNotEnabled
            | Self::NotEnoughMembers
            | Self::NotALearner
            | Self::BadTransferee
            | Self::NoDowngrade => Code::FailedPrecondition,
            Self::PermissionDenied => Code::PermissionDenied,
            Self::InvalidToken => Code::Unauthenticated,
            Self::Corrupt => Code::DataLoss,
            Self::NoLeader | Self::NotLeader | Self::SessionExpired | Self::LeaderMissing => {
                Code::Unknown
            }
            Self::Stopped | Self::Broken(_) => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.code(), refusal.to_string())
    }
}
