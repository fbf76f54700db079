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

use crate::Illegal;

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
        reason: Doubt,
    },
    /// It does not answer.
    Offline {
        /// Why.
        reason: Absence,
    },
}

/// Why it is not known whether a machine is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Doubt {
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
pub enum Absence {
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
pub enum Sign {
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
    pub const NOT_SEEN: Liveness = Liveness::Unknown { reason: Doubt::NotSeen };

    /// The only way from one state to another.
    pub fn on(self, sign: Sign) -> Result<Liveness, Illegal> {
        use Liveness::{Offline, Online, Unknown};
        match (self, sign) {
            (_, Sign::Heartbeat) => Ok(Online),
            // An absent machine is not brought back into doubt by one more thing it did not do.
            (Online | Unknown { .. }, Sign::Late) => Ok(Unknown { reason: Doubt::Late }),
            (Online | Unknown { .. }, Sign::ListingFailed) => {
                Ok(Unknown { reason: Doubt::ListingFailed })
            }
            (Online | Unknown { .. }, Sign::Lapsed) => Ok(Offline { reason: Absence::Lapsed }),
            (Online | Unknown { .. }, Sign::Left) => Ok(Offline { reason: Absence::Left }),
            (Online | Unknown { .. }, Sign::Refused) => Ok(Offline { reason: Absence::Refused }),
            (Online | Unknown { .. }, Sign::Unresponsive) => {
                Ok(Offline { reason: Absence::Unresponsive })
            }
            (Offline { .. }, sign) => Err(Illegal { from: "offline", event: sign.name() }),
        }
    }

    /// Whether it can be asked to do something.
    pub fn is_online(self) -> bool {
        self == Liveness::Online
    }
}

impl Sign {
    fn name(self) -> &'static str {
        match self {
            Sign::Heartbeat => "heartbeat",
            Sign::Late => "late",
            Sign::ListingFailed => "listingFailed",
            Sign::Lapsed => "lapsed",
            Sign::Left => "left",
            Sign::Refused => "refused",
            Sign::Unresponsive => "unresponsive",
        }
    }
}
