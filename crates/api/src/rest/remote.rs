//! A control plane far away: the contract, over HTTP.

use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Node, NodeAddress, NodeChange, NodeName, PathReport, Pool, PoolChange, PoolName, PoolSpec,
    Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec, WebhookChange, WebhookName, WebhookSpec,
};

use super::{
    ApiResult, Backup, Control, DryRun, DryRunRequest, EventQuery, ExplainQuery, Explanation,
    FailoverQuery, GroupQuery, Health, HostQuery, MaintenanceRequest, MaintenanceStatus, NodeQuery,
    Placement, PoolQuery, Purge, PurgeConfirmation, Quarantined, RangeQuery, RebuildQuery,
    RecoverRequest, Recovery, ReplicaQuery, RescueRequest, SnapshotQuery, Status, StoredSpec,
    TargetQuery, VersionInfo, VolumeAction, VolumeQuery, routes,
};
use crate::heartbeat::{Deregister, HeartbeatAck};
use crate::node::{
    CheckReport, CheckRequest, Fence, FenceReset, JobControl, Range, Scrub, Statistics,
};
use crate::{Applied, Deleted, EventStream, NoBody, NoQuery, Page, Paging, Route, Text};

/// A control plane that is called over HTTP. Cheap to clone.
pub type Remote = crate::remote::Remote<Contract>;

/// What is spoken with a control plane.
#[derive(Clone, Copy, Debug)]
pub enum Contract {}

impl crate::remote::Contract for Contract {
    const EVENTS: Route<(), NoQuery, NoBody, EventStream<Event>> = routes::EVENTS;
}

/// The value that is given, or else the other.
macro_rules! or {
    ([$type:ty; $value:expr] $else:expr) => {
        $value
    };
    ([] $else:expr) => {
        $else
    };
}

macro_rules! called {
    ($(
        $constant:ident $name:ident(
            $(at: $at:ty,)? $(query: $query:ty,)? $(body: $body:ty,)? $(if $if_match:ident,)?
        ) -> $answer:ty;
        $method:ident $path:literal $role:ident $summary:literal;
    )+) => {
        impl Control for Remote {
            $(
                fn $name(
                    &self,
                    $(at: $at,)? $(query: $query,)? $(body: $body,)?
                    $($if_match: Option<Generation>,)?
                ) -> impl Future<Output = ApiResult<$answer>> + Send {
                    self.ask(
                        &routes::$constant,
                        or!([$($at; (at,))?] ()),
                        (
                            or!([$($query; query)?] NoQuery {}),
                            or!([$($body; body)?] NoBody),
                        ),
                        or!([$(Option<Generation>; $if_match)?] None),
                    )
                }
            )+
        }
    };
}

routes::each_route!(called);
