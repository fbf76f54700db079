//! Maintenance of the whole cluster: for a while nothing is moved or replaced by itself.

use alloc::string::String;

use serde::{Deserialize, Serialize};

use crate::Timestamp;
use crate::envelope::Versioned;

/// Automatic failover and healing are paused until then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Maintenance {
    /// When it began.
    pub since: Timestamp,
    /// When it ends by itself.
    pub until: Timestamp,
    /// Why, for people.
    #[serde(default)]
    pub reason: String,
}

impl Maintenance {
    /// The name of the one record of this kind.
    pub const ID: &'static str = "cluster";
}

impl Versioned for Maintenance {
    const KIND: &'static str = "maintenance";
    const VERSION: u32 = 1;
}
