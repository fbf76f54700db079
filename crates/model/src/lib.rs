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
mod event;
mod failover;
mod generation;
mod host;
mod id;
mod illegal;
mod invalid;
pub mod keys;
mod labels;
mod lifecycle;
mod limits;
mod liveness;
mod memo;
mod name;
mod node;
mod note;
mod nqn;
mod object;
mod pool;
mod problem;
mod quarantine;
mod rebuild;
mod regions;
mod replica;
mod replica_set;
mod reservation;
mod size;
mod snapshot;
mod snapshot_group;
mod store_mark;
pub mod stored;
mod target;
mod target_record;
mod text;
mod timestamp;
mod topology;
mod usage;
mod volume;
mod watch;

pub use child::{Child, ChildEvent, ChildPath, ChildState, ChildStatus, FaultReason, Recorded};
pub use conflict::{ConflictReason, LabelConflict};
pub use device::{BlockDevice, DeviceKind, DiskTraits, Obstacle, WriteCache};
pub use event::{Event, EventName, Severity, Subject};
pub use failover::{Cause, Failover, FailoverPlan, Stage, StageEvent};
pub use generation::{Admitted, Epoch, Generation, Order, Refused};
pub use host::{
    Host, HostAddress, HostChange, HostSpec, HostStatus, PathReport, PathState, PathStatus,
};
pub use id::{
    FailoverId, InstanceId, MachineId, PoolUuid, PublicationId, RebuildId, ReplicaId,
    SnapshotGroupId, SnapshotId, StoreId, TargetId, VolumeId,
};
pub use illegal::Illegal;
pub use invalid::Invalid;
pub use labels::{Labels, MOST_LABELS};
pub use lifecycle::{Life, Lifecycle, Operation, Outcome};
pub use limits::Limits;
pub use liveness::{Absence, Doubt, Liveness, Sign};
pub use memo::Memo;
pub use name::{
    AffinityGroup, CallbackUrl, CordonName, DevicePath, HostName, KeyName, LabelKey, LabelValue,
    NodeName, PoolName, WatchName,
};
pub use node::{DrainStatus, Heartbeat, Node, NodeAddress, NodeChange, NodeSpec, NodeStatus};
pub use note::{Note, NoteStamp};
pub use nqn::{Named, Nqn};
pub use object::{Object, Spec};
pub use pool::{
    DiskStatus, Pool, PoolChange, PoolSpec, PoolState, PoolStatus, Symptom, SymptomKind,
};
pub use problem::{Blame, Csi, Kind, Problem};
pub use quarantine::{Quarantine, QuarantineCause};
pub use rebuild::{Extent, Progress, Rebuild, RebuildEvent, RebuildPlan, RebuildState};
pub use regions::Regions;
pub use replica::{Label, Replica, ReplicaChange, ReplicaSpec, ReplicaState, ReplicaStatus, Stamp};
pub use replica_set::{ReplicaSet, SetChange, SetRefused};
pub use reservation::{
    HeldReservation, HostIdentifier, HostReservations, Registrant, ReservationKind,
};
pub use size::Size;
pub use snapshot::{
    Consistency, Snapshot, SnapshotChange, SnapshotCopy, SnapshotLabel, SnapshotSpec,
    SnapshotState, SnapshotStatus,
};
pub use snapshot_group::{
    SnapshotGroup, SnapshotGroupChange, SnapshotGroupSpec, SnapshotGroupStatus,
};
pub use store_mark::{StoreMark, StoreSequence};
pub use target::{
    Ana, HeldIo, HoldCause, StopCause, Target, TargetChange, TargetEvent, TargetSpec, TargetState,
    TargetStatus,
};
pub use target_record::{End, TargetRecord};
pub use timestamp::Timestamp;
pub use topology::{LabelRules, Topology, Zones};
pub use usage::Usage;
pub use volume::{
    Encryption, Policy, Source, Volume, VolumeChange, VolumeReplica, VolumeSpec, VolumeState,
    VolumeStatus, VolumeTarget,
};
pub use watch::{Watch, WatchChange, WatchSpec, WatchStatus};
