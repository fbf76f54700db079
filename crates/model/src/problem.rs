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

use crate::Invalid;

macro_rules! kinds {
    ($($kind:ident $name:literal $http:literal $csi:ident $title:literal;)+) => {
        /// What went wrong, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub enum Kind {
            $(#[doc = $title] #[serde(rename = $name)] $kind,)+
        }

        impl Kind {
            /// Every kind, in the order of the table.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)+];

            /// Its stable name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)+ }
            }

            /// The HTTP status of an answer with this kind.
            pub fn http(self) -> u16 {
                match self { $(Kind::$kind => $http,)+ }
            }

            /// The gRPC code of a CSI answer with this kind.
            pub fn csi(self) -> Csi {
                match self { $(Kind::$kind => Csi::$csi,)+ }
            }

            /// The kind in words, the same for every problem of this kind.
            pub fn title(self) -> &'static str {
                match self { $(Kind::$kind => $title,)+ }
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
pub enum Blame {
    /// The caller: the same request will fail again.
    Caller,
    /// Nobody: the same request may succeed later.
    Retry,
    /// The operator: add room or relax the rules.
    Operator,
    /// Us.
    Bug,
}

impl Kind {
    /// Who must act; the HTTP status says the same.
    pub fn blame(self) -> Blame {
        match self.http() {
            400..500 => Blame::Caller,
            503 => Blame::Retry,
            507 => Blame::Operator,
            _ => Blame::Bug,
        }
    }

    /// The kind with this name on the wire.
    pub fn from_name(name: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == name)
    }

    /// The kind to take for a status that came without one we know.
    pub fn of_status(status: u16) -> Kind {
        let first = Kind::ALL.iter().copied().find(|kind| kind.http() == status);
        match status {
            409 => Kind::InUse,
            503 => Kind::Unavailable,
            _ => first.unwrap_or(match status {
                400..500 => Kind::InvalidArgument,
                502 | 504 => Kind::Unavailable,
                _ => Kind::Internal,
            }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// gRPC status codes that CSI knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are gRPC's")]
pub enum Csi {
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

impl Csi {
    /// The number gRPC gives the code.
    pub fn number(self) -> u8 {
        match self {
            Csi::InvalidArgument => 3,
            Csi::DeadlineExceeded => 4,
            Csi::NotFound => 5,
            Csi::AlreadyExists => 6,
            Csi::PermissionDenied => 7,
            Csi::ResourceExhausted => 8,
            Csi::FailedPrecondition => 9,
            Csi::Aborted => 10,
            Csi::OutOfRange => 11,
            Csi::Unimplemented => 12,
            Csi::Internal => 13,
            Csi::Unavailable => 14,
            Csi::Unauthenticated => 16,
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
    pub kind: Kind,
    /// What went wrong this time and what to do, for people.
    pub detail: String,
    /// The field that is to blame, as a path of JSON names.
    pub field: Option<String>,
    /// The request this answers, to find it in the logs.
    pub request: Option<String>,
}

impl Problem {
    /// A problem of this kind.
    pub fn new(kind: Kind, detail: impl fmt::Display) -> Problem {
        Problem { kind, detail: detail.to_string(), field: None, request: None }
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Problem {
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
        let kind = Kind::from_name(&wire.kind).unwrap_or_else(|| Kind::of_status(wire.status));
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
        for &kind in Kind::ALL {
            let expected = match kind.blame() {
                Blame::Caller => 400..=499,
                Blame::Retry => 503..=503,
                Blame::Operator => 507..=507,
                Blame::Bug => 500..=500,
            };
            assert!(expected.contains(&kind.http()), "{kind}");
        }
    }

    #[test]
    fn csi_retries_what_http_says_to_try_again() {
        for &kind in Kind::ALL {
            let again =
                [Csi::Aborted, Csi::Unavailable, Csi::DeadlineExceeded].contains(&kind.csi());
            assert!(kind.blame() != Blame::Retry || again, "{kind}");
        }
    }

    #[test]
    fn names_are_stable_and_distinct() {
        let names: BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        for &kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(format!("{kind:?}").to_lowercase(), kind.name().to_lowercase());
            assert_eq!(Kind::of_status(kind.http()).http(), kind.http());
        }
    }

    #[test]
    fn a_kind_of_a_newer_server_falls_back_to_its_status() {
        let json = r#"{"kind":"moonPhase","status":507,"detail":"wait","new":1}"#;
        let problem: Problem = serde_json::from_str(json).unwrap();
        assert_eq!((problem.kind, problem.detail.as_str()), (Kind::NoSpace, "wait"));
        for (status, kind) in
            [(418, Kind::InvalidArgument), (502, Kind::Unavailable), (599, Kind::Internal)]
        {
            assert_eq!(Kind::of_status(status), kind);
        }
    }
}
