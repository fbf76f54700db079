//! Every request of the node API: the one place that says how it looks on the wire.

use model::{
    BlockDevice, Event, PoolName, PoolSpec, Rebuild, RebuildId, ReplicaId, ReplicaLabel,
    ReplicaSpec, SnapshotId, SpecBackup, TargetId, TargetSpec, VersionedSpec,
};

#[cfg(feature = "faults")]
use super::Faults;
use super::{
    CheckReport, CheckRequest, DeletePool, DeleteReplica, DiffQuery, Fence, FenceReset,
    GenerationQuery, Health, JobControl, NodeInfo, Observed, ObservedSnapshot, PoolFilter, Range,
    RebuildRequest, Scrub, SnapshotRequest, Statistics, TargetSnapshot,
};
use crate::Method::{Delete, Get, Post, Put};
use crate::Role::{Admin, Anybody, Editor, Viewer};
use crate::{Applied, Deleted, EventStream, NoBody, NoQuery, Page, Paging, Route, Text};

/// Whether this engine can do its work.
pub const HEALTH: Route<(), NoQuery, NoBody, Health> =
    Route::new((Get, "/v1/health"), Anybody, "health", "Whether this engine can do its work");

/// Which engine this is.
pub const NODE: Route<(), NoQuery, NoBody, NodeInfo> =
    Route::new((Get, "/v1/node"), Viewer, "node", "Which engine this is");

/// The pools of this engine, by name.
pub const POOLS: Route<(), Paging, NoBody, Page<Observed<PoolSpec>>> =
    Route::new((Get, "/v1/pools"), Viewer, "pools", "The pools of this engine, by name");

/// One pool.
pub const POOL: Route<(PoolName,), NoQuery, NoBody, Observed<PoolSpec>> =
    Route::new((Get, "/v1/pools/{pool}"), Viewer, "pool", "One pool");

/// Make, import, export or grow a pool, or give it a disk more.
pub const PUT_POOL: Route<
    (PoolName,),
    NoQuery,
    VersionedSpec<PoolSpec>,
    Applied<Observed<PoolSpec>>,
> = Route::new(
    (Put, "/v1/pools/{pool}"),
    Editor,
    "putPool",
    "Make, import, export or grow a pool, or give it a disk more",
);

/// Destroy a pool that has no replicas and no snapshots.
pub const DELETE_POOL: Route<(PoolName,), DeletePool, NoBody, Deleted> = Route::new(
    (Delete, "/v1/pools/{pool}"),
    Admin,
    "deletePool",
    "Destroy a pool that has no replicas and no snapshots",
);

/// Errors of the disks of a pool until now count no more.
pub const CLEAR_POOL_ERRORS: Route<(PoolName,), NoQuery, NoBody, Deleted> = Route::new(
    (Delete, "/v1/pools/{pool}/errors"),
    Editor,
    "clearPoolErrors",
    "Errors of the disks of a pool until now count no more",
);

/// The replicas of this engine, by id.
pub const REPLICAS: Route<(), Paging, NoBody, Page<Observed<ReplicaSpec>>> =
    Route::new((Get, "/v1/replicas"), Viewer, "replicas", "The replicas of this engine, by id");

/// One replica.
pub const REPLICA: Route<(ReplicaId,), NoQuery, NoBody, Observed<ReplicaSpec>> =
    Route::new((Get, "/v1/replicas/{replica}"), Viewer, "replica", "One replica");

/// Make a replica, empty or from a snapshot; share it, unshare it, resize it.
pub const PUT_REPLICA: Route<
    (ReplicaId,),
    NoQuery,
    VersionedSpec<ReplicaSpec>,
    Applied<Observed<ReplicaSpec>>,
> = Route::new(
    (Put, "/v1/replicas/{replica}"),
    Editor,
    "putReplica",
    "Make a replica, empty or from a snapshot; share it, unshare it, resize it",
);

/// Destroy a replica; its snapshots stay.
pub const DELETE_REPLICA: Route<(ReplicaId,), DeleteReplica, NoBody, Deleted> = Route::new(
    (Delete, "/v1/replicas/{replica}"),
    Editor,
    "deleteReplica",
    "Destroy a replica; its snapshots stay",
);

/// Write the label of a replica; an older stamp than it has is refused.
pub const PUT_LABEL: Route<(ReplicaId,), NoQuery, ReplicaLabel, Applied<ReplicaLabel>> = Route::new(
    (Put, "/v1/replicas/{replica}/label"),
    Editor,
    "putLabel",
    "Write the label of a replica; an older stamp than it has is refused",
);

/// Write with a replica what is wanted of its volume; an older generation is refused.
pub const PUT_SPEC_BACKUP: Route<(ReplicaId,), NoQuery, SpecBackup, Applied<SpecBackup>> =
    Route::new(
        (Put, "/v1/replicas/{replica}/spec-backup"),
        Editor,
        "putSpecBackup",
        "Write with a replica what is wanted of its volume; an older generation is refused",
    );

/// What of a replica is written, in order.
pub const WRITTEN: Route<(ReplicaId,), Paging, NoBody, Page<Range>> = Route::new(
    (Get, "/v1/replicas/{replica}/written"),
    Viewer,
    "written",
    "What of a replica is written, in order",
);

/// The scrub of a replica that is under way, or the last.
pub const SCRUB: Route<(ReplicaId,), NoQuery, NoBody, Scrub> = Route::new(
    (Get, "/v1/replicas/{replica}/scrub"),
    Viewer,
    "scrub",
    "The scrub of a replica that is under way, or the last",
);

/// Start, pause, resume or cancel a scrub of a replica.
pub const PUT_SCRUB: Route<(ReplicaId,), NoQuery, VersionedSpec<JobControl>, Applied<Scrub>> =
    Route::new(
        (Put, "/v1/replicas/{replica}/scrub"),
        Editor,
        "putScrub",
        "Start, pause, resume or cancel a scrub of a replica",
    );

/// The fence of a replica.
pub const FENCE: Route<(ReplicaId,), NoQuery, NoBody, Fence> = Route::new(
    (Get, "/v1/replicas/{replica}/fence"),
    Viewer,
    "fence",
    "The highest epoch that ever held a replica",
);

/// Lower the fence of a replica that an absurd epoch locked.
pub const RESET_FENCE: Route<(ReplicaId,), NoQuery, FenceReset, Applied<Fence>> = Route::new(
    (Put, "/v1/replicas/{replica}/fence"),
    Admin,
    "resetFence",
    "Lower the fence of a replica that an absurd epoch locked",
);

/// The snapshots of this engine, by replica and id.
pub const SNAPSHOTS: Route<(), Paging, NoBody, Page<ObservedSnapshot>> = Route::new(
    (Get, "/v1/snapshots"),
    Viewer,
    "snapshots",
    "The snapshots of this engine, by replica and id",
);

/// Take a snapshot of one replica.
pub const PUT_SNAPSHOT: Route<
    (ReplicaId, SnapshotId),
    NoQuery,
    SnapshotRequest,
    Applied<ObservedSnapshot>,
> = Route::new(
    (Put, "/v1/replicas/{replica}/snapshots/{snapshot}"),
    Editor,
    "putSnapshot",
    "Take a snapshot of one replica",
);

/// Delete a snapshot of one replica; clones keep what they need.
pub const DELETE_SNAPSHOT: Route<(ReplicaId, SnapshotId), PoolFilter, NoBody, Deleted> = Route::new(
    (Delete, "/v1/replicas/{replica}/snapshots/{snapshot}"),
    Editor,
    "deleteSnapshot",
    "Delete a snapshot of one replica; clones keep what they need",
);

/// What a snapshot has that an older one has not, in order.
pub const CHANGED: Route<(ReplicaId, SnapshotId), DiffQuery, NoBody, Page<Range>> = Route::new(
    (Get, "/v1/replicas/{replica}/snapshots/{snapshot}/changed"),
    Viewer,
    "changed",
    "What a snapshot has that an older one has not, in order",
);

/// The targets of this engine, by id.
pub const TARGETS: Route<(), Paging, NoBody, Page<Observed<TargetSpec>>> =
    Route::new((Get, "/v1/targets"), Viewer, "targets", "The targets of this engine, by id");

/// One target, with its children.
pub const TARGET: Route<(TargetId,), NoQuery, NoBody, Observed<TargetSpec>> =
    Route::new((Get, "/v1/targets/{target}"), Viewer, "target", "One target, with its children");

/// Make a target or change it: its children, hosts, size, limits, path state; shut it down.
pub const PUT_TARGET: Route<
    (TargetId,),
    NoQuery,
    VersionedSpec<TargetSpec>,
    Applied<Observed<TargetSpec>>,
> = Route::new(
    (Put, "/v1/targets/{target}"),
    Editor,
    "putTarget",
    "Make a target or change it: its children, hosts, size, limits, path state; shut it down",
);

/// Stop a target and forget it; its replicas stay.
pub const DELETE_TARGET: Route<(TargetId,), GenerationQuery, NoBody, Deleted> = Route::new(
    (Delete, "/v1/targets/{target}"),
    Editor,
    "deleteTarget",
    "Stop a target and forget it; its replicas stay",
);

/// Take a snapshot of a volume at one point, on all children in sync or on none.
pub const PUT_TARGET_SNAPSHOT: Route<
    (TargetId, SnapshotId),
    NoQuery,
    SnapshotRequest,
    Applied<TargetSnapshot>,
> = Route::new(
    (Put, "/v1/targets/{target}/snapshots/{snapshot}"),
    Editor,
    "putTargetSnapshot",
    "Take a snapshot of a volume at one point, on all children in sync or on none",
);

/// Read a part of a volume on all copies in sync, compare, and rewrite what is damaged.
pub const CHECK_TARGET: Route<(TargetId,), NoQuery, CheckRequest, CheckReport> = Route::new(
    (Post, "/v1/targets/{target}/check"),
    Editor,
    "checkTarget",
    "Read a part of a volume on all copies in sync, compare, and rewrite what is damaged",
);

/// Rebuilds under way and the last that ended, by id.
pub const REBUILDS: Route<(), Paging, NoBody, Page<Rebuild>> = Route::new(
    (Get, "/v1/rebuilds"),
    Viewer,
    "rebuilds",
    "Rebuilds under way and the last that ended, by id",
);

/// One rebuild.
pub const REBUILD: Route<(RebuildId,), NoQuery, NoBody, Rebuild> =
    Route::new((Get, "/v1/rebuilds/{rebuild}"), Viewer, "rebuild", "One rebuild");

/// Start, pause, resume or cancel a rebuild.
pub const PUT_REBUILD: Route<
    (RebuildId,),
    NoQuery,
    VersionedSpec<RebuildRequest>,
    Applied<Rebuild>,
> = Route::new(
    (Put, "/v1/rebuilds/{rebuild}"),
    Editor,
    "putRebuild",
    "Start, pause, resume or cancel a rebuild",
);

/// What was done and how long it took, for targets, children, replicas and disks.
pub const STATISTICS: Route<(), Paging, NoBody, Page<Statistics>> = Route::new(
    (Get, "/v1/statistics"),
    Viewer,
    "statistics",
    "What was done and how long it took, for targets, children, replicas and disks",
);

/// The block devices of the node, and what keeps a pool from being made on each.
pub const DEVICES: Route<(), Paging, NoBody, Page<BlockDevice>> = Route::new(
    (Get, "/v1/devices"),
    Viewer,
    "devices",
    "The block devices of the node, and what keeps a pool from being made on each",
);

/// Metrics for Prometheus.
pub const METRICS: Route<(), NoQuery, NoBody, Text> =
    Route::new((Get, "/v1/metrics"), Viewer, "metrics", "Metrics for Prometheus");

#[cfg(feature = "faults")]
/// The faults that are injected, and how often each hit.
pub const FAULTS: Route<(), NoQuery, NoBody, Faults> = Route::new(
    (Get, "/v1/faults"),
    Viewer,
    "faults",
    "The faults that are injected, and how often each hit",
);

#[cfg(feature = "faults")]
/// Inject exactly these faults.
pub const PUT_FAULTS: Route<(), NoQuery, Faults, Applied<Faults>> =
    Route::new((Put, "/v1/faults"), Admin, "putFaults", "Inject exactly these faults");

/// What happens, as it happens; goes on after `Last-Event-ID`.
pub const EVENTS: Route<(), NoQuery, NoBody, EventStream<Event>> =
    Route::new((Get, "/v1/events"), Viewer, "events", "What happens, as it happens");
