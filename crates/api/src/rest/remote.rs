//! A control plane far away: the contract, over HTTP.

use http::uri::Authority;
use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Node, NodeAddress, NodeChange, NodeName, Pool, PoolChange, PoolName, PoolSpec, Problem,
    Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec,
};

use super::{
    Answered, Backup, Consent, Control, EventsAsked, FailoversAsked, GroupsAsked, Health,
    HostsAsked, NodesAsked, Placement, PoolsAsked, Purge, RangesAsked, RebuildsAsked, RecoverWish,
    Recovery, ReplicasAsked, SnapshotsAsked, Status, StoredSpec, TargetsAsked, VolumeWish,
    VolumesAsked, routes,
};
use crate::heartbeat::{Farewell, Heard};
use crate::node::{Pace, Range, Scrub, Statistics};
use crate::{
    CallError, Client, ClientConfig, Ensured, Gone, NoBody, NoQuery, Page, Paging, Subscription,
    Text,
};

/// A control plane that is called over HTTP. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Remote(Client);

impl Remote {
    /// The control plane behind this client.
    pub fn new(client: Client) -> Remote {
        Remote(client)
    }

    /// The control plane at this address, without TLS and token.
    pub fn plain(server: Authority) -> Result<Remote, CallError> {
        Client::new(ClientConfig::plain(server)).map(Remote)
    }

    /// What happens there, going on after `last` if there is one.
    pub async fn events(&self, last: Option<String>) -> Result<Subscription<Event>, CallError> {
        self.0.watch(&routes::EVENTS, last).await
    }
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
                async fn $name(
                    &self,
                    $(at: $at,)? $(query: $query,)? $(body: $body,)?
                    $($seen: Option<Generation>,)?
                ) -> Answered<$answer> {
                    let answer = self.0.call_seeing(
                        &routes::$constant,
                        or!([$($at; (at,))?] ()),
                        or!([$($query; query)?] NoQuery {}),
                        or!([$($body; body)?] NoBody),
                        or!([$(Option<Generation>; $seen)?] None),
                    );
                    answer.await.map_err(Problem::from)
                }
            )+
        }
    };
}

routes::each_route!(called);
