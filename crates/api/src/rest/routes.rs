//! Every request of REST: the one table.
//!
//! A row is a request: its constant, the function of [`Control`] with what it takes, what is
//! answered, and how it looks on the wire. The constants, the trait, its client and its server are
//! made from the rows, so they cannot disagree.

use model::{
    BlockDevice, Event, Failover, Generation, Heartbeat, Host, HostAddress, HostChange, HostName,
    Node, NodeAddress, NodeChange, NodeName, PathReport, Pool, PoolChange, PoolName, PoolSpec,
    Problem, Rebuild, RebuildId, Replica, ReplicaId, Snapshot, SnapshotChange, SnapshotGroup,
    SnapshotGroupChange, SnapshotGroupId, SnapshotGroupSpec, SnapshotId, SnapshotSpec, Target,
    TargetId, Volume, VolumeId, VolumeSpec, WebhookChange, WebhookName, WebhookSpec,
};

use super::{
    Backup, DryRun, DryRunRequest, EventQuery, ExplainQuery, Explanation, FailoverQuery,
    GroupQuery, Health, HostQuery, MaintenanceRequest, MaintenanceStatus, NodeQuery, Placement,
    PoolQuery, Purge, PurgeConfirmation, Quarantined, RangeQuery, RebuildQuery, RecoverRequest,
    Recovery, ReplicaQuery, RescueRequest, SnapshotQuery, Status, StoredSpec, TargetQuery,
    VersionInfo, VolumeAction, VolumeQuery,
};
use crate::Method::{Delete, Get, Post, Put};
use crate::Role::{Admin, Anybody, Editor, Host as Agent, Node as Engine, Viewer};
use crate::heartbeat::{Deregister, HeartbeatAck};
use crate::node::{
    CheckReport, CheckRequest, Fence, FenceReset, JobControl, Range, Scrub, Statistics,
};
use crate::{Applied, Deleted, EventStream, NoBody, NoQuery, Page, Paging, Route, Text};

/// An answer, or why there is none.
pub type ApiResult<T> = Result<T, Problem>;

/// The type that is given, or else the other.
macro_rules! or {
    ($given:ty; $else:ty) => {
        $given
    };
    (; $else:ty) => {
        $else
    };
}

/// Hands all rows to another macro.
macro_rules! each_route {
    ($then:ident) => {
        $then! {
            LIVE live() -> VersionInfo;
                Get "/v1/live" Anybody "Whether this process answers; it asks nobody else";
            READY ready() -> Health;
                Get "/v1/ready" Anybody "Whether this control plane leads: 503 if another does, \
or nobody";
            HEALTH health() -> Health;
                Get "/v1/health" Anybody "Whether this control plane can do its work, and who \
leads";
            STATUS status() -> Status;
                Get "/v1/status" Viewer "The whole cluster on one page: health, room, \
what is wrong";
            METRICS metrics() -> Text;
                Get "/v1/metrics" Viewer "Metrics for Prometheus";
            BACKUP backup() -> Backup;
                Get "/v1/backup" Admin "The content of the store, to be imported elsewhere";
            RECOVERY recovery() -> Recovery;
                Get "/v1/recover" Viewer "What the disks of the nodes hold that the store does not \
know";
            RECOVER recover(body: RecoverRequest,) -> Recovery;
                Post "/v1/recover" Admin "Read pools, volumes and snapshots back from the disks, \
when the store was lost";
            SPECS specs(query: Paging,) -> Page<StoredSpec>;
                Get "/v1/specs" Viewer "Everything that is stored, by key";
            EVENT_HISTORY event_history(query: EventQuery,) -> Page<Event>;
                Get "/v1/events/history" Viewer "What happened lately, the oldest first";

            EXPLAIN explain(query: ExplainQuery,) -> Explanation;
                Get "/v1/explain" Viewer "Why a thing is as it is: what is wanted and seen, what \
is under way and for what it waits, what comes next, what a person can do";
            DRY_RUN dry_run(body: DryRunRequest,) -> DryRun;
                Post "/v1/dry-run" Viewer "What a change would do; nothing is done";
            MAINTENANCE maintenance() -> MaintenanceStatus;
                Get "/v1/maintenance" Viewer "Whether automatic failover and healing are paused";
            PUT_MAINTENANCE put_maintenance(body: MaintenanceRequest,) -> MaintenanceStatus;
                Put "/v1/maintenance" Editor "Pause automatic failover and healing for a while";
            END_MAINTENANCE end_maintenance() -> Deleted;
                Delete "/v1/maintenance" Editor "Failover and healing go on now";

            NODES nodes(query: NodeQuery,) -> Page<Node>;
                Get "/v1/nodes" Viewer "Nodes, by name";
            NODE node(at: NodeName,) -> Node;
                Get "/v1/nodes/{node}" Viewer "One node, with how far its drain is";
            CHANGE_NODE change_node(at: NodeName, body: NodeChange, if if_match,) -> Applied<Node>;
                Post "/v1/nodes/{node}/changes" Editor "Label, cordon, drain or uncordon a node";
            NODE_PURGE node_purge(at: NodeName,) -> Purge;
                Get "/v1/nodes/{node}/purge" Viewer "What a purge of a node would cost";
            PURGE_NODE purge_node(at: NodeName, body: PurgeConfirmation,) -> Deleted;
                Post "/v1/nodes/{node}/purge" Admin "Forget a node that is lost, and all on it";
            DEVICES devices(at: NodeName, query: Paging,) -> Page<BlockDevice>;
                Get "/v1/nodes/{node}/devices" Viewer "Block devices of a node, and what keeps a \
pool from being made on each";
            STATISTICS statistics(at: NodeName, query: Paging,) -> Page<Statistics>;
                Get "/v1/nodes/{node}/statistics" Viewer "What was done on a node and how long it \
took";
            NODE_HEARTBEAT node_heartbeat(at: NodeName, body: Heartbeat<NodeAddress>,)
                -> HeartbeatAck;
                Put "/v1/nodes/{node}/heartbeat" Engine "Show that an engine is there; the first \
one registers its node";
            DEREGISTER_NODE deregister_node(at: NodeName, query: Deregister,) -> Deleted;
                Delete "/v1/nodes/{node}/heartbeat" Engine "An engine stops on purpose: its node \
is off-line at once";

            HOSTS hosts(query: HostQuery,) -> Page<Host>;
                Get "/v1/hosts" Viewer "Hosts, by name";
            HOST host(at: HostName,) -> Host;
                Get "/v1/hosts/{host}" Viewer "One host, with the volumes it uses";
            CHANGE_HOST change_host(at: HostName, body: HostChange, if if_match,) -> Applied<Host>;
                Post "/v1/hosts/{host}/changes" Editor "Label a host";
            DELETE_HOST delete_host(at: HostName, if if_match,) -> Deleted;
                Delete "/v1/hosts/{host}" Admin "Forget a host that is gone and uses nothing";
            HOST_HEARTBEAT host_heartbeat(at: HostName, body: Heartbeat<HostAddress>,)
                -> HeartbeatAck;
                Put "/v1/hosts/{host}/heartbeat" Agent "Show that the agent of a host is there; \
the first one registers it";
            DEREGISTER_HOST deregister_host(at: HostName, query: Deregister,) -> Deleted;
                Delete "/v1/hosts/{host}/heartbeat" Agent "The agent of a host stops on purpose";
            HOST_PATHS host_paths(at: HostName, body: PathReport,) -> HeartbeatAck;
                Put "/v1/hosts/{host}/paths" Agent "Report the paths of a host, and \
those that it has lost; repeated as long as there are any";

            POOLS pools(query: PoolQuery,) -> Page<Pool>;
                Get "/v1/pools" Viewer "Pools, by name";
            POOL pool(at: PoolName,) -> Pool;
                Get "/v1/pools/{pool}" Viewer "One pool";
            PUT_POOL put_pool(at: PoolName, body: PoolSpec,) -> Applied<Pool>;
                Put "/v1/pools/{pool}" Editor "Make a pool, or import one that is on the disks";
            CHANGE_POOL change_pool(at: PoolName, body: PoolChange, if if_match,) -> Applied<Pool>;
                Post "/v1/pools/{pool}/changes" Editor "Label, cordon, uncordon, grow, export or \
import a pool, or give it a disk more";
            DELETE_POOL delete_pool(at: PoolName, if if_match,) -> Deleted;
                Delete "/v1/pools/{pool}" Admin "Destroy a pool that has no replicas and no \
snapshots";
            CLEAR_POOL_ERRORS clear_pool_errors(at: PoolName,) -> Deleted;
                Delete "/v1/pools/{pool}/errors" Editor "Errors of the disks of a pool until now \
count no more";
            POOL_PURGE pool_purge(at: PoolName,) -> Purge;
                Get "/v1/pools/{pool}/purge" Viewer "What a purge of a pool would cost";
            PURGE_POOL purge_pool(at: PoolName, body: PurgeConfirmation,) -> Deleted;
                Post "/v1/pools/{pool}/purge" Admin "Forget a pool that is lost, and all in it";

            VOLUMES volumes(query: VolumeQuery,) -> Page<Volume>;
                Get "/v1/volumes" Viewer "Volumes, by id";
            VOLUME volume(at: VolumeId,) -> Volume;
                Get "/v1/volumes/{volume}" Viewer "One volume, with its copies and its target";
            PUT_VOLUME put_volume(at: VolumeId, body: VolumeSpec,) -> Applied<Volume>;
                Put "/v1/volumes/{volume}" Editor "Make a volume: empty, from a snapshot, or as a \
clone of another";
            CHANGE_VOLUME change_volume(at: VolumeId, body: VolumeAction, if if_match,)
                -> Applied<Volume>;
                Post "/v1/volumes/{volume}/changes" Editor "Publish, unpublish, republish, resize \
or modify a volume, or move its copies";
            DELETE_VOLUME delete_volume(at: VolumeId, if if_match,) -> Deleted;
                Delete "/v1/volumes/{volume}" Editor "Delete a volume that is not published";
            CHECK_VOLUME check_volume(at: VolumeId, body: CheckRequest,) -> CheckReport;
                Post "/v1/volumes/{volume}/check" Editor "Read a part of a served volume on all \
copies in sync, compare, and rewrite what is damaged";
            PLACEMENT placement(at: VolumeId, query: Paging,) -> Page<Placement>;
                Get "/v1/volumes/{volume}/placement" Viewer "For each pool, whether a copy of the \
volume could go there, and why not";

            SNAPSHOTS snapshots(query: SnapshotQuery,) -> Page<Snapshot>;
                Get "/v1/snapshots" Viewer "Snapshots, by id";
            SNAPSHOT snapshot(at: SnapshotId,) -> Snapshot;
                Get "/v1/snapshots/{snapshot}" Viewer "One snapshot, with where it lies";
            PUT_SNAPSHOT put_snapshot(at: SnapshotId, body: SnapshotSpec,) -> Applied<Snapshot>;
                Put "/v1/snapshots/{snapshot}" Editor "Take a snapshot of a volume";
            CHANGE_SNAPSHOT change_snapshot(at: SnapshotId, body: SnapshotChange, if if_match,)
                -> Applied<Snapshot>;
                Post "/v1/snapshots/{snapshot}/changes" Editor "Label a snapshot";
            DELETE_SNAPSHOT delete_snapshot(at: SnapshotId, if if_match,) -> Deleted;
                Delete "/v1/snapshots/{snapshot}" Editor "Delete a snapshot; volumes made from it \
keep what they need";
            RANGES ranges(at: SnapshotId, query: RangeQuery,) -> Page<Range>;
                Get "/v1/snapshots/{snapshot}/ranges" Viewer "What of a snapshot is written, or \
has changed since another, in order";

            GROUPS groups(query: GroupQuery,) -> Page<SnapshotGroup>;
                Get "/v1/groups" Viewer "Groups of snapshots, by id";
            GROUP group(at: SnapshotGroupId,) -> SnapshotGroup;
                Get "/v1/groups/{group}" Viewer "One group of snapshots";
            PUT_GROUP put_group(at: SnapshotGroupId, body: SnapshotGroupSpec,)
                -> Applied<SnapshotGroup>;
                Put "/v1/groups/{group}" Editor "Take snapshots of several volumes at one moment, \
all or none";
            CHANGE_GROUP change_group(at: SnapshotGroupId, body: SnapshotGroupChange, if if_match,)
                -> Applied<SnapshotGroup>;
                Post "/v1/groups/{group}/changes" Editor "Label a group of snapshots";
            DELETE_GROUP delete_group(at: SnapshotGroupId, if if_match,) -> Deleted;
                Delete "/v1/groups/{group}" Editor "Delete a group with its snapshots";

            REPLICAS replicas(query: ReplicaQuery,) -> Page<Replica>;
                Get "/v1/replicas" Viewer "Copies of volumes, by id";
            REPLICA replica(at: ReplicaId,) -> Replica;
                Get "/v1/replicas/{replica}" Viewer "One copy of a volume";
            SCRUB scrub(at: ReplicaId,) -> Scrub;
                Get "/v1/replicas/{replica}/scrub" Viewer "The scrub of a copy that is under way, \
or the last";
            PUT_SCRUB put_scrub(at: ReplicaId, body: JobControl,) -> Applied<Scrub>;
                Put "/v1/replicas/{replica}/scrub" Editor "Start, pause, resume or cancel a scrub \
of a copy";

            FENCE fence(at: ReplicaId,) -> Fence;
                Get "/v1/replicas/{replica}/fence" Viewer "The highest epoch that ever held a copy";
            RESET_FENCE reset_fence(at: ReplicaId, body: FenceReset,) -> Applied<Fence>;
                Put "/v1/replicas/{replica}/fence" Admin "Lower the fence of a copy that an absurd \
epoch locked";

            QUARANTINE quarantine(query: Paging,) -> Page<Quarantined>;
                Get "/v1/quarantine" Viewer "Copies that are set aside instead of destroyed, by id";
            RESCUE rescue(at: ReplicaId, body: RescueRequest,) -> Applied<Snapshot>;
                Post "/v1/quarantine/{replica}/snapshot" Editor "Make a snapshot of a copy that is \
set aside";
            DISCARD discard(at: ReplicaId,) -> Deleted;
                Delete "/v1/quarantine/{replica}" Admin "Destroy a copy that is set aside";

            TARGETS targets(query: TargetQuery,) -> Page<Target>;
                Get "/v1/targets" Viewer "Targets, by id, with their children";
            TARGET target(at: TargetId,) -> Target;
                Get "/v1/targets/{target}" Viewer "One target, with its children";

            REBUILDS rebuilds(query: RebuildQuery,) -> Page<Rebuild>;
                Get "/v1/rebuilds" Viewer "Rebuilds under way and the last that ended, by id";
            REBUILD rebuild(at: RebuildId,) -> Rebuild;
                Get "/v1/rebuilds/{rebuild}" Viewer "One rebuild";
            PUT_REBUILD put_rebuild(at: RebuildId, body: JobControl,) -> Applied<Rebuild>;
                Put "/v1/rebuilds/{rebuild}" Editor "Pause, resume, slow down or cancel a rebuild";

            FAILOVERS failovers(query: FailoverQuery,) -> Page<Failover>;
                Get "/v1/failovers" Viewer "Failovers under way and the last that ended, by id";

            WEBHOOKS webhooks(query: Paging,) -> Page<model::Webhook>;
                Get "/v1/webhooks" Viewer "Addresses that are called when something happens, by \
name";
            WEBHOOK webhook(at: WebhookName,) -> model::Webhook;
                Get "/v1/webhooks/{webhook}" Viewer "One webhook, with what became of its calls";
            PUT_WEBHOOK put_webhook(at: WebhookName, body: WebhookSpec,) -> Applied<model::Webhook>;
                Put "/v1/webhooks/{webhook}" Admin "Have an address called when something happens";
            CHANGE_WEBHOOK change_webhook(at: WebhookName, body: WebhookChange, if if_match,)
                -> Applied<model::Webhook>;
                Post "/v1/webhooks/{webhook}/changes"
                Admin "Change the filter or the address of a webhook";
            DELETE_WEBHOOK delete_webhook(at: WebhookName, if if_match,) -> Deleted;
                Delete "/v1/webhooks/{webhook}" Admin "Call an address no more";
        }
    };
}
pub(super) use each_route;

macro_rules! constants_and_trait {
    ($(
        $constant:ident $name:ident(
            $(at: $at:ty,)? $(query: $query:ty,)? $(body: $body:ty,)? $(if $if_match:ident,)?
        ) -> $answer:ty;
        $method:ident $path:literal $role:ident $summary:literal;
    )+) => {
        $(
            #[doc = $summary]
            pub const $constant: Route<
                ($($at,)?),
                or!($($query)?; NoQuery),
                or!($($body)?; NoBody),
                $answer,
            > = Route::new(($method, $path), $role, stringify!($name), $summary);
        )+

        /// A control plane, here or far away. Every function may be called again without harm.
        ///
        /// `if_match` is the generation the caller has seen, if it wants to be refused when there
        /// is a newer one.
        pub trait Control: Send + Sync + 'static {
            $(
                #[doc = $summary]
                fn $name(
                    &self,
                    $(at: $at,)? $(query: $query,)? $(body: $body,)?
                    $($if_match: Option<Generation>,)?
                ) -> impl Future<Output = ApiResult<$answer>> + Send;
            )+
        }
    };
}

each_route!(constants_and_trait);

/// What happens, as it happens; goes on after `Last-Event-ID`.
pub const EVENTS: Route<(), NoQuery, NoBody, EventStream<Event>> =
    Route::new((Get, "/v1/events"), Viewer, "events", "What happens, as it happens");
