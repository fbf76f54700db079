//! Errors as callers see them: one table of kinds, one wire form.
//!
//! The HTTP status says who must act: 4xx the caller, 503 try again, 507 no room (the operator),
//! 500 a bug. Kinds are finer than that and stable: programs compare kinds, people read the detail.
//!
//! Deliberately not here: causes and backtraces (they are logged where the error is handled).

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::ValidationError;

macro_rules! kinds {
    ($($kind:ident $name:literal $http:literal $csi:ident $title:literal;)+) => {
        /// What went wrong, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum ProblemKind {
            $(#[doc = $title] #[serde(rename = $name)] $kind,)+
        }

        impl ProblemKind {
            /// Every kind, in the order of the table.
            pub const ALL: &[ProblemKind] = &[$(ProblemKind::$kind,)+];

            /// Its stable name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(ProblemKind::$kind => $name,)+ }
            }

            /// The HTTP status of an answer with this kind.
            pub fn http(self) -> u16 {
                match self { $(ProblemKind::$kind => $http,)+ }
            }

            /// The gRPC code of a CSI answer with this kind.
            pub fn csi(self) -> CsiCode {
                match self { $(ProblemKind::$kind => CsiCode::$csi,)+ }
            }

            /// The kind in words, the same for every problem of this kind.
            pub fn title(self) -> &'static str {
                match self { $(ProblemKind::$kind => $title,)+ }
            }
        }
    };
}

kinds! {
    // kind          on the wire        HTTP CSI code          in words
    InvalidArgument  "invalidArgument"  400 InvalidArgument    "A value is not acceptable";
    Malformed        "malformed"        400 InvalidArgument    "The request cannot be read";
    OutOfRange       "outOfRange"       400 OutOfRange         "A size is not possible";
    Unauthenticated  "unauthenticated"  401 Unauthenticated    "The caller is not known";
    PermissionDenied "permissionDenied" 403 PermissionDenied   "You may not do this";
    NotFound         "notFound"         404 NotFound           "No such thing";
    MethodNotAllowed "methodNotAllowed" 405 Unimplemented      "Not this method here";
    AlreadyExists    "alreadyExists"    409 AlreadyExists      "It exists with other content";
    Deleting         "deleting"         409 Aborted            "It is being deleted";
    InUse            "inUse"            409 FailedPrecondition "It is in use";
    NotPublished     "notPublished"     409 FailedPrecondition "The volume is not published";
    AlreadyPublished "alreadyPublished" 409 FailedPrecondition "The volume is published elsewhere";
    LastReplica      "lastReplica"      409 FailedPrecondition "It is the last copy in sync";
    SnapshotLimit    "snapshotLimit"    409 FailedPrecondition "The volume has all its snapshots";
    NotSupported     "notSupported"     409 FailedPrecondition "This thing cannot do that";
    GenerationReused "generationReused" 409 Aborted            "One generation, two contents";
    Fenced           "fenced"           409 Aborted            "A newer epoch owns the volume";
    StoreBehind      "storeBehind"      409 FailedPrecondition "The disks know more than the store";
    StaleGeneration  "staleGeneration"  412 Aborted            "It has changed meanwhile";
    TooLarge         "tooLarge"         413 OutOfRange         "The request is too large";
    WrongMediaType   "wrongMediaType"   415 InvalidArgument    "Not this media type here";
    Internal         "internal"         500 Internal           "A bug in Holdfast";
    Busy             "busy"             503 Aborted            "Another operation is running";
    Overloaded       "overloaded"       503 Unavailable        "Too much at once";
    Unavailable      "unavailable"      503 Unavailable        "Not ready to serve";
    NodeUnavailable  "nodeUnavailable"  503 Unavailable        "The node cannot be reached";
    NoHealthyReplica "noHealthyReplica" 503 Unavailable        "No copy in sync can be reached";
    StoreUnavailable "storeUnavailable" 503 Unavailable        "The store cannot be reached";
    TimedOut         "timedOut"         503 DeadlineExceeded   "It took too long";
    NoSpace          "noSpace"          507 ResourceExhausted  "No space is left";
    NoPlacement      "noPlacement"      507 ResourceExhausted  "No place satisfies the rules";
    CapacityLimit    "capacityLimit"    507 ResourceExhausted  "The limit of capacity is reached";
}

/// Who must act on a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The caller: the same request will fail again.
    Caller,
    /// Nobody: the same request may succeed later.
    Retry,
    /// The operator: add room or relax the rules.
    Operator,
    /// Us.
    Bug,
}

impl ProblemKind {
    /// Who must act; the HTTP status says the same.
    pub fn class(self) -> ErrorClass {
        match self.http() {
            400..500 => ErrorClass::Caller,
            503 => ErrorClass::Retry,
            507 => ErrorClass::Operator,
            _ => ErrorClass::Bug,
        }
    }

    /// The kind with this name on the wire.
    pub fn from_name(name: &str) -> Option<ProblemKind> {
        ProblemKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The kind to take for a status that came without one we know.
    pub fn of_status(status: u16) -> ProblemKind {
        let first = ProblemKind::ALL.iter().copied().find(|kind| kind.http() == status);
        match status {
            409 => ProblemKind::InUse,
            503 => ProblemKind::Unavailable,
            _ => first.unwrap_or(match status {
                400..500 => ProblemKind::InvalidArgument,
                502 | 504 => ProblemKind::Unavailable,
                _ => ProblemKind::Internal,
            }),
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// gRPC status codes that CSI knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are gRPC's")]
pub enum CsiCode {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl CsiCode {
    /// The number gRPC gives the code.
    pub fn number(self) -> u8 {
        match self {
            CsiCode::InvalidArgument => 3,
            CsiCode::DeadlineExceeded => 4,
            CsiCode::NotFound => 5,
            CsiCode::AlreadyExists => 6,
            CsiCode::PermissionDenied => 7,
            CsiCode::ResourceExhausted => 8,
            CsiCode::FailedPrecondition => 9,
            CsiCode::Aborted => 10,
            CsiCode::OutOfRange => 11,
            CsiCode::Unimplemented => 12,
            CsiCode::Internal => 13,
            CsiCode::Unavailable => 14,
            CsiCode::Unauthenticated => 16,
        }
    }
}

/// An error as it travels: `application/problem+json` (RFC 9457) with our `kind`.
///
/// A client older than its server may meet a kind it does not know: it takes the one that its HTTP
/// status stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", from = "Wire", into = "Wire")]
#[error("{detail}")]
pub struct Problem {
    /// What went wrong, for programs.
    pub kind: ProblemKind,
    /// What went wrong this time and what to do, for people.
    pub detail: String,
    /// The field that is to blame, as a path of JSON names.
    pub field: Option<String>,
    /// The request this answers, to find it in the logs.
    pub request: Option<String>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(kind: ProblemKind, detail: impl fmt::Display) -> Problem {
        Problem { kind, detail: detail.to_string(), field: None, request: None }
    }
}

impl From<ValidationError> for Problem {
    fn from(invalid: ValidationError) -> Problem {
        let field = Some(invalid.field().to_string());
        Problem { field, ..Problem::new(invalid.kind(), invalid) }
    }
}

/// What is on the wire: `type`, `title` and `status` follow from the kind.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default, rename = "type")]
    uri: String,
    kind: String,
    #[serde(default)]
    title: String,
    status: u16,
    #[serde(default)]
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

impl From<Wire> for Problem {
    fn from(wire: Wire) -> Problem {
        let kind = ProblemKind::from_name(&wire.kind)
            .unwrap_or_else(|| ProblemKind::of_status(wire.status));
        Problem { kind, detail: wire.detail, field: wire.field, request: wire.request }
    }
}

impl From<Problem> for Wire {
    fn from(problem: Problem) -> Wire {
        Wire {
            uri: format!("urn:holdfast:problem:{}", problem.kind),
            kind: problem.kind.name().to_string(),
            title: problem.kind.title().to_string(),
            status: problem.kind.http(),
            detail: problem.detail,
            field: problem.field,
            request: problem.request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn the_status_says_who_acts() {
        for &kind in ProblemKind::ALL {
            let expected = match kind.class() {
                ErrorClass::Caller => 400..=499,
                ErrorClass::Retry => 503..=503,
                ErrorClass::Operator => 507..=507,
                ErrorClass::Bug => 500..=500,
            };
            assert!(expected.contains(&kind.http()), "{kind}");
        }
    }

    #[test]
    fn csi_retries_what_http_says_to_try_again() {
        for &kind in ProblemKind::ALL {
            let again = [CsiCode::Aborted, CsiCode::Unavailable, CsiCode::DeadlineExceeded]
                .contains(&kind.csi());
            assert!(kind.class() != ErrorClass::Retry || again, "{kind}");
        }
    }

    #[test]
    fn names_are_stable_and_distinct() {
        let names: BTreeSet<_> = ProblemKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ProblemKind::ALL.len());
        for &kind in ProblemKind::ALL {
            assert_eq!(ProblemKind::from_name(kind.name()), Some(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(format!("{kind:?}").to_lowercase(), kind.name().to_lowercase());
            assert_eq!(ProblemKind::of_status(kind.http()).http(), kind.http());
        }
    }

    #[test]
    fn a_kind_of_a_newer_server_falls_back_to_its_status() {
        let json = r#"{"kind":"moonPhase","status":507,"detail":"wait","new":1}"#;
        let problem: Problem = serde_json::from_str(json).unwrap();
        assert_eq!((problem.kind, problem.detail.as_str()), (ProblemKind::NoSpace, "wait"));
        for (status, kind) in [
            (418, ProblemKind::InvalidArgument),
            (502, ProblemKind::Unavailable),
            (599, ProblemKind::Internal),
        ] {
            assert_eq!(ProblemKind::of_status(status), kind);
        }
    }
}
