//! How daemons show the control plane that they are there.
//!
//! The first heartbeat registers a node, each further one renews it, a clean exit takes it back.
//! The control plane answers with when it wants the next one.

use std::time::Duration;

use model::{InstanceId, StoreMark};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Json;
pub use crate::rest::routes::{
    DEREGISTER_HOST, DEREGISTER_NODE, HOST_HEARTBEAT as HOST, NODE_HEARTBEAT as NODE,
};

/// The control plane has heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeartbeatAck {
    /// When to send the next one.
    pub next_in_millis: u64,
    /// When it is taken for gone without one.
    pub gone_in_millis: u64,
    /// How far the store has come: to be kept on disk, and sent with every heartbeat. Absent: what
    /// was told before stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<StoreMark>,
}

impl HeartbeatAck {
    /// How long to wait before the next one.
    pub fn next_in(self) -> Duration {
        Duration::from_millis(self.next_in_millis)
    }
}

impl Json for HeartbeatAck {}

/// Which run of a daemon ends: a late deregistration of an earlier run is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deregister {
    /// The run.
    pub instance: InstanceId,
}
