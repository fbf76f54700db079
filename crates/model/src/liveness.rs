//! Whether a machine answers.
//!
//! ```text
//!                 Heartbeat
//!   Unknown ─────────────────────► Online ◄──────────┐
//!    │   ▲                         │  │              │ Heartbeat
//!    │   └── Late, ListingFailed ──┘  │              │
//!    │                                │ absence      │
//!    │ absence                        ▼              │
//!    └───────────────────────────► Offline ──────────┘
//!   absence: Lapsed, Left, Refused, Unresponsive
//! ```
//!
//! `Unknown` is doubt: nothing is moved away yet. `Offline` is certain enough to act; what it is
//! certain of is that the machine does not answer, not that it does nothing: fencing takes care of
//! the rest.

use serde::{Deserialize, Serialize};

use crate::InvalidTransition;

/// Whether a node or host answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Liveness {
    /// Its heartbeats come.
    Online,
    /// Not heard, or not heard enough of.
    Unknown {
        /// Why.
        reason: UnknownReason,
    },
    /// It does not answer.
    Offline {
        /// Why.
        reason: OfflineReason,
    },
}

/// Why it is not known whether a machine is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum UnknownReason {
    /// Not one heartbeat since this control plane started.
    NotSeen,
    /// A heartbeat is late, its deadline has not come.
    Late,
    /// Its heartbeats come but it cannot be asked what it holds.
    ListingFailed,
}

/// Why a machine is taken for absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OfflineReason {
    /// The deadline for its heartbeat passed.
    Lapsed,
    /// It said goodbye: a clean stop.
    Left,
    /// Its machine refuses connections: its process has ended.
    Refused,
    /// Its heartbeats come, but for too long nobody could ask it what it holds.
    Unresponsive,
}

/// What can be noticed about a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivenessEvent {
    /// A heartbeat came and the machine was listed.
    Heartbeat,
    /// A heartbeat did not come when it should.
    Late,
    /// It could not be asked what it holds.
    ListingFailed,
    /// The deadline passed.
    Lapsed,
    /// It said goodbye.
    Left,
    /// Its connections broke off, and nobody listens at its address any more.
    Refused,
    /// It could not be asked what it holds for too long.
    Unresponsive,
}

impl Liveness {
    /// Before the first sign.
    pub const NOT_SEEN: Liveness = Liveness::Unknown { reason: UnknownReason::NotSeen };

    /// The only way from one state to another.
    pub fn on(self, sign: LivenessEvent) -> Result<Liveness, InvalidTransition> {
        use Liveness::{Offline, Online, Unknown};
        match (self, sign) {
            (_, LivenessEvent::Heartbeat) => Ok(Online),
            // An absent machine is not brought back into doubt by one more thing it did not do.
            (Online | Unknown { .. }, LivenessEvent::Late) => {
                Ok(Unknown { reason: UnknownReason::Late })
            }
            (Online | Unknown { .. }, LivenessEvent::ListingFailed) => {
                Ok(Unknown { reason: UnknownReason::ListingFailed })
            }
            (Online | Unknown { .. }, LivenessEvent::Lapsed) => {
                Ok(Offline { reason: OfflineReason::Lapsed })
            }
            (Online | Unknown { .. }, LivenessEvent::Left) => {
                Ok(Offline { reason: OfflineReason::Left })
            }
            (Online | Unknown { .. }, LivenessEvent::Refused) => {
                Ok(Offline { reason: OfflineReason::Refused })
            }
            (Online | Unknown { .. }, LivenessEvent::Unresponsive) => {
                Ok(Offline { reason: OfflineReason::Unresponsive })
            }
            (Offline { .. }, sign) => {
                Err(InvalidTransition { from: "offline", event: sign.name() })
            }
        }
    }

    /// Whether it can be asked to do something.
    pub fn is_online(self) -> bool {
        self == Liveness::Online
    }
}

impl LivenessEvent {
    fn name(self) -> &'static str {
        match self {
            LivenessEvent::Heartbeat => "heartbeat",
            LivenessEvent::Late => "late",
            LivenessEvent::ListingFailed => "listingFailed",
            LivenessEvent::Lapsed => "lapsed",
            LivenessEvent::Left => "left",
            LivenessEvent::Refused => "refused",
            LivenessEvent::Unresponsive => "unresponsive",
        }
    }
}
