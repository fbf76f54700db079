//! How much space a thing takes.

use serde::{Deserialize, Serialize};

use crate::Size;

/// Space that a replica, snapshot or volume takes in its pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// What it looks like from outside.
    pub capacity: Size,
    /// What it alone takes.
    pub allocated: Size,
    /// What its snapshots take beyond that.
    pub snapshots: Size,
}
