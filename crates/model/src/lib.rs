//! The resources: typed ids, specs, statuses, generations, legal transitions.
//!
//! These types are the one definition of each thing for the store, REST, the node API, custom
//! resources and the command line. A *spec* is what is wanted, a *status* is what was seen.
//!
//! Invariants:
//! - What was parsed is good: an id is never nil, a name can be a key, a path segment and a
//!   resource name, a set of replicas always has one in sync.
//! - States change by one function per machine, drawn at the top of its module; what has no edge is
//!   refused and changes nothing.
//! - Generations and epochs never go back, and one generation never stands for two contents.
//!
//! JSON: names in camelCase; enums with data carry the name of the variant in a field (`kind`,
//! `name` of a state, `state` of a life), those without are strings; sizes are whole bytes, times
//! RFC 3339 in UTC.
//!
//! **Specs, changes, orders and stored records are read strictly**: an unknown
//! field is refused, since somebody meant something by it. **Statuses, events and problems are read
//! leniently**: a newer server may tell an older client more. A field that came later is written
//! only when it is used, so an older reader meets it only where it matters.
//!
//! Deliberately not here: clocks and randomness (times and ids are arguments), decisions (planner),
//! paging, filters and routes (api).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod child;
mod conflict;
mod device;
pub mod envelope;
mod event;
mod failover;
mod generation;
mod host;
mod id;
mod invalid_transition;
pub mod keys;
mod labels;
mod lifecycle;
mod liveness;
mod maintenance;
mod name;
mod node;
mod nqn;
mod pool;
mod problem;
mod qos;
mod quarantine;
mod rebuild;
mod region_set;
mod replica;
mod replica_set;
mod reservation;
mod resource;
mod size;
mod snapshot;
mod snapshot_group;
mod spec_backup;
mod store_mark;
mod sync_metadata;
mod target;
mod target_record;
mod text;
mod timestamp;
mod topology;
mod usage;
mod validation_error;
mod volume;
mod webhook;

pub use child::{
    Child, ChildEvent, ChildPath, ChildState, ChildStatus, FaultReason, RecordedState,
};
pub use conflict::{ConflictReason, LabelConflict};
pub use device::{BlockDevice, DeviceKind, DiskTraits, IneligibleReason, WriteCache};
pub use event::{Event, EventName, EventOrigin, Severity, Subject, SubjectKind};
pub use failover::{Failover, FailoverEvent, FailoverPlan, FailoverReason, FailoverStage};
pub use generation::{Admission, Epoch, Generation, GenerationConflict, VersionedSpec};
pub use host::{
    Host, HostAddress, HostChange, HostSpec, HostStatus, PathReport, PathState, PathStatus,
};
pub use id::{
    FailoverId, InstanceId, MachineId, PoolUuid, PublicationId, RebuildId, ReplicaId,
    SnapshotGroupId, SnapshotId, StoreId, TargetId, VolumeId,
};
pub use invalid_transition::InvalidTransition;
pub use labels::{Labels, MOST_LABELS};
pub use lifecycle::{Lifecycle, LifecycleEvent, Operation, Outcome};
pub use liveness::{Liveness, LivenessEvent, OfflineReason, UnknownReason};
pub use maintenance::Maintenance;
pub use name::{
    AffinityGroup, CallbackUrl, CordonName, DevicePath, GivenName, HostName, KeyName, LabelKey,
    LabelValue, NodeName, PoolName, WebhookName,
};
pub use node::{DrainStatus, Heartbeat, Node, NodeAddress, NodeChange, NodeSpec, NodeStatus};
pub use nqn::{Nqn, NqnKind};
pub use pool::{
    DiskFinding, DiskFindingKind, DiskStatus, Pool, PoolChange, PoolSpec, PoolState, PoolStatus,
};
pub use problem::{CsiCode, ErrorClass, Problem, ProblemKind};
pub use qos::QosLimits;
pub use quarantine::{Quarantine, QuarantineCause};
pub use rebuild::{Progress, Rebuild, RebuildEvent, RebuildKind, RebuildPlan, RebuildState};
pub use region_set::RegionSet;
pub use replica::{
    Replica, ReplicaChange, ReplicaLabel, ReplicaSpec, ReplicaState, ReplicaStatus, Stamp,
};
pub use replica_set::{ReplicaSet, SetChange, SetRefused};
pub use reservation::{
    HeldReservation, HostIdentifier, HostReservations, Registrant, ReservationKind,
};
pub use resource::{Resource, Spec};
pub use size::Size;
pub use snapshot::{
    Consistency, Snapshot, SnapshotChange, SnapshotCopy, SnapshotLabel, SnapshotSpec,
    SnapshotState, SnapshotStatus,
};
pub use snapshot_group::{
    SnapshotGroup, SnapshotGroupChange, SnapshotGroupSpec, SnapshotGroupStatus,
};
pub use spec_backup::SpecBackup;
pub use store_mark::{StoreMark, StoreSequence};
pub use sync_metadata::{SyncMetadata, SyncStamp};
pub use target::{
    Ana, StopCause, SuspendReason, SuspendedIo, Target, TargetChange, TargetEvent, TargetSpec,
    TargetState, TargetStatus,
};
pub use target_record::{ShutdownState, TargetRecord};
pub use timestamp::Timestamp;
pub use topology::{LabelRules, Topology, Zones};
pub use usage::Usage;
pub use validation_error::ValidationError;
pub use volume::{
    Encryption, Source, Volume, VolumeChange, VolumePolicy, VolumeReplica, VolumeSpec, VolumeState,
    VolumeStatus, VolumeTarget,
};
pub use webhook::{Webhook, WebhookChange, WebhookSpec, WebhookStatus};
