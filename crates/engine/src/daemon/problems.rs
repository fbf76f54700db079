//! What the parts of the engine refuse, as callers of the node API see it.

use std::error::Error;
use std::io;

use model::stored::Unreadable;
use model::{Kind, Problem};
use pool::{BadEntity, BadPool, Refused};

use crate::pools::{KeyError, PoolError};
use crate::serve::OrderError;

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    text
}

/// The engine is going away.
pub(super) fn stopping() -> Problem {
    Problem::new(Kind::Unavailable, "the engine is stopping; ask again when it runs")
}

/// A problem with a value of the caller's.
pub(super) fn in_field(field: &str, kind: Kind, detail: impl std::fmt::Display) -> Problem {
    Problem { field: Some(field.to_owned()), ..Problem::new(kind, detail) }
}

const DISKS: &str = "spec.disks";

/// What a pool refused.
pub(super) fn of_pool(error: &PoolError) -> Problem {
    let text = chain(error);
    match error {
        PoolError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            in_field(DISKS, Kind::InvalidArgument, format!("{text}; give a disk that is there"))
        }
        PoolError::InUse { .. } => {
            in_field(DISKS, Kind::InUse, format!("{text}; stop that first, or choose another"))
        }
        PoolError::Occupied { path, occupant } => {
            let path = path.display();
            let detail = format!("{path} holds {occupant}; wipe it, or choose another disk");
            in_field(DISKS, Kind::InUse, detail)
        }
        PoolError::Alignment { .. } => in_field(DISKS, Kind::NotSupported, text),
        PoolError::Bad(BadPool::Name) | PoolError::NeedsKey | PoolError::NotEncrypted => {
            Problem::new(Kind::InvalidArgument, text)
        }
        PoolError::TooSmall { .. } | PoolError::Bad(_) => {
            in_field(DISKS, Kind::InvalidArgument, text)
        }
        PoolError::NotFound => Problem::new(Kind::NotFound, text),
        PoolError::AlreadyOpen => Problem::new(Kind::AlreadyExists, text),
        PoolError::Refused(refused) => Problem::new(of_refused(*refused), text),
        PoolError::Full => Problem::new(Kind::Overloaded, text),
        PoolError::Key(KeyError::Wrong | KeyError::Length(_)) => {
            Problem::new(Kind::PermissionDenied, text)
        }
        PoolError::Open { .. }
        | PoolError::Disk { .. }
        | PoolError::Import(_)
        | PoolError::Fault(_)
        | PoolError::Key(KeyError::Damaged | KeyError::Random(_))
        | PoolError::Reactor(_)
        | PoolError::Buffers(_) => Problem::new(Kind::Unavailable, text),
    }
}

fn of_refused(refused: Refused) -> Kind {
    match refused {
        Refused::Exists => Kind::AlreadyExists,
        Refused::NotFound => Kind::NotFound,
        Refused::IsSnapshot | Refused::NotSnapshot | Refused::NotLarger => Kind::NotSupported,
        Refused::Bad(BadEntity::TooLong { .. }) => Kind::TooLarge,
        Refused::Bad(_) => Kind::InvalidArgument,
        Refused::NoSpace => Kind::NoSpace,
        Refused::WrongKey => Kind::PermissionDenied,
        Refused::Damaged | Refused::Broken => Kind::Unavailable,
        Refused::Busy => Kind::Busy,
    }
}

/// What the target refused.
pub(super) fn of_order(error: &OrderError) -> Problem {
    let kind = match error {
        OrderError::Stopped | OrderError::Serve(_) => Kind::Unavailable,
        OrderError::Busy { .. } | OrderError::Full => Kind::Overloaded,
        OrderError::NoSubsystem { .. } | OrderError::NoNamespace { .. } => Kind::NotFound,
        OrderError::Conflict { .. } => Kind::AlreadyExists,
        OrderError::Leaving { .. } => Kind::Busy,
        OrderError::Shrinks { .. } => Kind::InUse,
        OrderError::Small { .. } | OrderError::Geometry { .. } => Kind::OutOfRange,
    };
    Problem::new(kind, chain(error))
}

/// What is on the disks cannot be read.
pub(super) fn of_record(error: &Unreadable) -> Problem {
    Problem::new(Kind::Unavailable, error)
}
