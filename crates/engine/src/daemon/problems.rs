//! What the parts of the engine refuse, as callers of the node API see it.

use std::error::Error;
use std::io;

use model::envelope::DecodeError;
use model::{Problem, ProblemKind};
use pool::{BadEntity, BadPool, Refused};

use crate::pools::{KeyError, PoolError};
use crate::serve::AdminError;

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
    Problem::new(ProblemKind::Unavailable, "the engine is stopping; ask again when it runs")
}

/// A problem with a value of the caller's.
pub(super) fn in_field(field: &str, kind: ProblemKind, detail: impl std::fmt::Display) -> Problem {
    Problem { field: Some(field.to_owned()), ..Problem::new(kind, detail) }
}

const DISKS: &str = "spec.disks";

/// What a pool refused.
pub(super) fn of_pool(error: &PoolError) -> Problem {
    let text = chain(error);
    match error {
        PoolError::Open { source, .. } if source.kind() == io::ErrorKind::NotFound => in_field(
            DISKS,
            ProblemKind::InvalidArgument,
            format!("{text}; give a disk that is there"),
        ),
        PoolError::InUse { .. } => in_field(
            DISKS,
            ProblemKind::InUse,
            format!("{text}; stop that first, or choose another"),
        ),
        PoolError::Occupied { path, occupant } => {
            let path = path.display();
            let detail = format!("{path} holds {occupant}; wipe it, or choose another disk");
            in_field(DISKS, ProblemKind::InUse, detail)
        }
        PoolError::Alignment { .. } => in_field(DISKS, ProblemKind::NotSupported, text),
        PoolError::Bad(BadPool::Name) | PoolError::NeedsKey | PoolError::NotEncrypted => {
            Problem::new(ProblemKind::InvalidArgument, text)
        }
        PoolError::TooSmall { .. } | PoolError::Bad(_) => {
            in_field(DISKS, ProblemKind::InvalidArgument, text)
        }
        PoolError::NotFound => Problem::new(ProblemKind::NotFound, text),
        PoolError::AlreadyOpen => Problem::new(ProblemKind::AlreadyExists, text),
        PoolError::Refused(refused) => Problem::new(of_refused(*refused), text),
        PoolError::Full => Problem::new(ProblemKind::Overloaded, text),
        PoolError::Key(KeyError::Wrong | KeyError::Length(_)) => {
            Problem::new(ProblemKind::PermissionDenied, text)
        }
        PoolError::Open { .. }
        | PoolError::Disk { .. }
        | PoolError::Import(_)
        | PoolError::Fault(_)
        | PoolError::Key(KeyError::Damaged | KeyError::Random(_))
        | PoolError::Reactor(_)
        | PoolError::Buffers(_) => Problem::new(ProblemKind::Unavailable, text),
    }
}

fn of_refused(refused: Refused) -> ProblemKind {
    match refused {
        Refused::Exists => ProblemKind::AlreadyExists,
        Refused::NotFound => ProblemKind::NotFound,
        Refused::IsSnapshot | Refused::NotSnapshot | Refused::NotLarger => {
            ProblemKind::NotSupported
        }
        Refused::Bad(BadEntity::TooLong { .. }) => ProblemKind::TooLarge,
        Refused::Bad(_) => ProblemKind::InvalidArgument,
        Refused::NoSpace => ProblemKind::NoSpace,
        Refused::WrongKey => ProblemKind::PermissionDenied,
        Refused::Damaged | Refused::Broken => ProblemKind::Unavailable,
        Refused::Busy => ProblemKind::Busy,
    }
}

/// What the target refused.
pub(super) fn of_order(error: &AdminError) -> Problem {
    let kind = match error {
        AdminError::Stopped | AdminError::Serve(_) => ProblemKind::Unavailable,
        AdminError::Busy { .. } | AdminError::Full => ProblemKind::Overloaded,
        AdminError::NoSubsystem { .. } | AdminError::NoNamespace { .. } => ProblemKind::NotFound,
        AdminError::Conflict { .. } => ProblemKind::AlreadyExists,
        AdminError::Leaving { .. } => ProblemKind::Busy,
        AdminError::Shrinks { .. } => ProblemKind::InUse,
        AdminError::Small { .. } | AdminError::Geometry { .. } => ProblemKind::OutOfRange,
    };
    Problem::new(kind, chain(error))
}

/// What is on the disks cannot be read.
pub(super) fn of_record(error: &DecodeError) -> Problem {
    Problem::new(ProblemKind::Unavailable, error)
}
