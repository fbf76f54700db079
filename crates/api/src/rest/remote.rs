//! A control plane far away: the contract, over HTTP.

use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Node, NodeAddress, NodeChange, NodeName, PathReport, Pool, PoolChange, PoolName, PoolSpec,
    Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec, WatchChange, WatchName, WatchSpec,
};

use super::{
    Alive, Answered, Backup, Consent, Control, EventsAsked, FailoversAsked, GroupsAsked, Health,
    HostsAsked, NodesAsked, Placement, PoolsAsked, Purge, Quarantined, RangesAsked, RebuildsAsked,
    RecoverWish, Recovery, ReplicasAsked, RescueRequest, SnapshotsAsked, Status, StoredSpec,
    TargetsAsked, VolumeWish, VolumesAsked, routes,
};
use crate::heartbeat::{Farewell, Heard};
use crate::node::{CheckReport, CheckRequest, Fence, FenceReset, Pace, Range, Scrub, Statistics};
use crate::{Ensured, Gone, NoBody, NoQuery, Page, Paging, Route, Text, Watch};

/// A control plane that is called over HTTP. Cheap to clone.
pub type Remote = crate::remote::Remote<Contract>;

/// What is spoken with a control plane.
#[derive(Clone, Copy, Debug)]
pub enum Contract {}

impl crate::remote::Contract for Contract {
    const EVENTS: Route<(), NoQuery, NoBody, Watch<Event>> = routes::EVENTS;
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
            $(at: $at:ty,)? $(query: $query:ty,)? $(body: $body:ty,)? $(if $seen:ident,)?
        ) -> $answer:ty;
        $method:ident $path:literal $role:ident $summary:literal;
    )+) => {
        impl Control for Remote {
            $(
                fn $name(
                    &self,
                    $(at: $at,)? $(query: $query,)? $(body: $body,)?
                    $($seen: Option<Generation>,)?
                ) -> impl Future<Output = Answered<$answer>> + Send {
                    self.ask(
                        &routes::$constant,
                        or!([$($at; (at,))?] ()),
                        (
                            or!([$($query; query)?] NoQuery {}),
                            or!([$($body; body)?] NoBody),
                        ),
                        or!([$(Option<Generation>; $seen)?] None),
                    )
                }
            )+
        }
    };
}

routes::each_route!(called);
