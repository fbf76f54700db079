//! From specs and observations to steps: functions only.
//!
//! [`Facts`] is what is known, a [`View`] is an index over it at one moment, [`plan`] says what to
//! do next. Requests of users ask the same rules beforehand: [`place_volume`], [`place_target`],
//! [`check_snapshot`], [`check_resize`] and the others answer with a decision or with the reasons
//! against it, pool by pool.
//!
//! Whoever runs this observes, plans, acts, and begins again. So a plan holds only what can be done
//! now: no two steps of it are about the same thing, all may run side by side, each may fail or be
//! repeated, and what follows from them is the business of the next plan.
//!
//! Invariants, each a property test:
//! - The last copy in sync is never removed, and nothing is copied from a copy that is not in sync.
//! - No volume gets two copies on one node, and its other rules hold for each copy that is placed.
//! - No pool is promised more than the settings allow, counting what runs already and what the
//!   same plan begins.
//! - A healthy volume is left alone; every other one is in the end, if there is room.
//! - The cost of a plan is linear in what is known, plus candidates times what is sick.
//!
//! Deliberately not here: ids of new things (whoever acts chooses them), clocks (time is an
//! argument), retries and back-off (control), moving bytes (engine).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod brake;
mod budget;
mod conflict;
mod drain;
mod facts;
mod failover;
mod gc;
mod heal;
mod member;
mod place;
mod plan;
mod publish;
mod quarantine;
mod rebalance;
mod resize;
mod scrub;
mod settings;
mod snapshot;
mod step;
mod view;
mod volume;

pub use brake::Brake;
pub use budget::Budget;
pub use conflict::{Claim, Conflict, conflict, has_a_say};
pub use drain::drain_status;
pub use facts::{Facts, Orphan, OrphanTarget, ReplicaMove, Reservation};
pub use place::{Refusal, Unplaceable, place_target};
pub use plan::plan;
pub use publish::{Publishing, publish, unpublish};
pub use quarantine::{Standing, standing};
pub use resize::check_resize;
pub use scrub::is_comparable;
pub use settings::Settings;
pub use snapshot::{SnapshotProposal, check_snapshot, check_snapshot_group};
pub use step::{Blocked, Plan, Step};
pub use view::View;
pub use volume::{VolumePlaces, check_move, check_replica_count, place_volume, rank};
