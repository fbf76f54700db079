//! How daemons show the control plane that they are there.
//!
//! The first heartbeat registers a node, each further one renews it, a clean exit takes it back.
//! The control plane answers with when it wants the next one.

use std::time::Duration;

use model::{Heartbeat, HostAddress, HostName, InstanceId, NodeAddress, NodeName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Method::{Delete, Put};
use crate::Role::Editor;
use crate::{Gone, Json, NoBody, NoQuery, Route};

/// The control plane has heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Heard {
    /// When to send the next one.
    pub next_in_millis: u64,
    /// When it is taken for gone without one.
    pub gone_in_millis: u64,
}

impl Heard {
    /// How long to wait before the next one.
    pub fn next_in(self) -> Duration {
        Duration::from_millis(self.next_in_millis)
    }
}

impl Json for Heard {}

/// Which run of a daemon ends: a late farewell of an earlier run is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Farewell {
    /// The run.
    pub instance: InstanceId,
}

/// An engine is there.
pub const NODE: Route<(NodeName,), NoQuery, Heartbeat<NodeAddress>, Heard> = Route::new(
    (Put, "/v1/nodes/{node}/heartbeat"),
    Editor,
    "nodeHeartbeat",
    "Show that an engine is there; the first one registers its node",
);

/// An engine goes.
pub const NODE_FAREWELL: Route<(NodeName,), Farewell, NoBody, Gone> = Route::new(
    (Delete, "/v1/nodes/{node}/heartbeat"),
    Editor,
    "nodeFarewell",
    "An engine stops on purpose: its node is off-line at once",
);

/// A host's agent is there.
pub const HOST: Route<(HostName,), NoQuery, Heartbeat<HostAddress>, Heard> = Route::new(
    (Put, "/v1/hosts/{host}/heartbeat"),
    Editor,
    "hostHeartbeat",
    "Show that the agent of a host is there; the first one registers it",
);

/// A host's agent goes.
pub const HOST_FAREWELL: Route<(HostName,), Farewell, NoBody, Gone> = Route::new(
    (Delete, "/v1/hosts/{host}/heartbeat"),
    Editor,
    "hostFarewell",
    "The agent of a host stops on purpose",
);
