//! What etcd does, written down as cases that run against any server, and against any
//! [`Store`](crate::contract::Store).
//!
//! Two lists: [`WIRE`] speaks the protocol with raw stubs, so that no client hides anything;
//! [`CONTRACT`] asks what the programs above rely on. Cases were written against etcd; a server
//! that differs is wrong, not the case.
//!
//! Invariant: a case touches only keys that begin with its own name, so the cases can follow each
//! other on one server. They must not run at the same time: some compact, some count revisions.

mod auth;
mod compact;
mod contract;
mod gateway;
mod http;
mod lease;
mod locks;
mod maintenance;
mod put;
mod range;
mod target;
mod txn;
mod watch;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;

pub use target::Target;

use crate::contract::{LeaseError, ReadError, Store, WatchError, WriteError};

/// One behaviour of a server.
#[derive(Clone, Copy)]
pub struct WireCase {
    /// Its name: `module::function`.
    pub name: &'static str,
    run: fn(Target) -> BoxFuture<'static, Checked>,
}

/// One behaviour of a store.
#[derive(Clone, Copy)]
pub struct ContractCase {
    /// Its name: `module::function`.
    pub name: &'static str,
    run: fn(Arc<dyn Store>) -> BoxFuture<'static, Checked>,
}

/// How a case ended.
pub type Checked = Result<(), Failure>;

/// What was not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something else came.
    #[error("{what}: got {got}, want {want}")]
    Differs {
        /// What was looked at.
        what: String,
        /// As it was.
        got: String,
        /// As it must be.
        want: String,
    },
    /// Something that must come did not.
    #[error("missing: {0}")]
    Missing(&'static str),
    /// Nothing more happened.
    #[error("the case did not end in time")]
    Stuck,
    /// The server refused what it must do.
    #[error("refused")]
    Status(#[source] Box<tonic::Status>),
    /// The server could not be reached.
    #[error("no connection")]
    Transport(#[from] tonic::transport::Error),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A lease failed.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A watch ended.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A connection broke.
    #[error("no HTTP")]
    Io(#[from] std::io::Error),
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Failure {
        Failure::Status(Box::new(status))
    }
}

macro_rules! cases {
    ($kind:ident: $($module:ident { $($name:ident),* $(,)? })*) => {
        &[$($($kind {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |subject| $module::$name(subject).boxed(),
        }),*),*]
    };
}

/// What every server does.
pub const WIRE: &[WireCase] = cases! { WireCase:
    range {
        one_key_and_its_place_in_history, missing_key, limit_and_more, sorted_by_each_target,
        sorted_then_limited, count_only, keys_only, old_revisions, future_revision,
        filtered_by_revisions, from_a_key_on, backward_range_is_empty, refuses_no_key,
        serializable, more_than_four_mebibytes,
    }
    put {
        counts_versions_and_revisions, answers_the_previous, empty_value, keeps_the_value,
        keeps_the_lease, refuses_bad_requests, refuses_what_is_too_large, deletes_one,
        deletes_a_range, deletes_nothing, created_again_after_deletion,
    }
    txn {
        compares_every_target, compares_a_missing_key, compares_a_range, all_in_one_revision,
        reads_its_own_writes, takes_the_other_branch, reading_makes_no_revision,
        nested, inner_compares_see_the_state_before, refuses_a_key_written_twice,
        branches_may_write_the_same_key, refuses_too_many_operations, refuses_bad_operations,
        refused_as_a_whole, reads_at_an_old_revision,
    }
    compact {
        forgets_what_is_older, keeps_what_is_live, refuses_twice_and_the_future,
    }
    lease {
        grants, refuses_bad_grants, revocation_deletes_keys_at_once, unknown_lease_everywhere,
        time_to_live, expiry_deletes_keys, kept_alive_outlives_its_twin, listed,
        a_plain_put_takes_the_key_off, a_key_moves_between_leases,
    }
    watch {
        follows_a_prefix, follows_one_key, replays_history, begins_in_the_future,
        previous_values, filters, cancel_ends_one_of_two, compacted_history,
        compacted_while_connected, one_transaction_one_message, large_events,
        large_events_in_fragments, chosen_numbers, progress_on_request, everything,
        resumes_on_a_new_stream, ends_with_a_lease, goes_on_when_all_is_said,
    }
    maintenance {
        status, members, one_identity_everywhere, no_alarms, hash_depends_on_content, defragment,
        snapshot_carries_its_checksum, one_member_stays_one, space_alarm_lets_delete,
        corrupt_alarm_stops_writes,
    }
    gateway {
        puts_and_ranges, transactions, refusals, watches, leases, members_and_status,
        version_health_and_metrics,
    }
    auth {
        not_enabled, users_and_roles, enforced,
    }
    locks {
        one_at_a_time, leases_let_go, campaign_proclaim_resign,
    }
};

/// What every store does.
pub const CONTRACT: &[ContractCase] = cases! { ContractCase:
    contract {
        put_get_delete, pages_are_of_one_revision, swaps_once, conditions, refusals,
        watch_reports_each_revision_once, watch_reports_compaction, lease_takes_its_keys_along,
        kept_lease_tells_when_lost, one_leader_at_a_time, former_leader_writes_nothing,
        guarded_conditions_are_the_callers,
    }
};

/// How long a case may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

impl WireCase {
    /// Runs it against the server at `endpoint`.
    pub async fn run(&self, endpoint: &str) -> Checked {
        let target = Target::connect(endpoint, self.name).await?;
        target.tidy().await?;
        patiently((self.run)(target)).await
    }
}

impl ContractCase {
    /// Runs it against a store.
    pub async fn run(&self, store: Arc<dyn Store>) -> Checked {
        patiently((self.run)(store)).await
    }
}

async fn patiently(case: BoxFuture<'static, Checked>) -> Checked {
    tokio::time::timeout(PATIENCE, case).await.unwrap_or(Err(Failure::Stuck))
}

/// Both must be the same.
#[expect(clippy::needless_pass_by_value, reason = "cases read better without borrows")]
fn same<T: PartialEq + Debug>(what: &str, got: T, want: T) -> Checked {
    if got == want {
        return Ok(());
    }
    let (got, want) = (format!("{got:?}"), format!("{want:?}"));
    Err(Failure::Differs { what: what.to_owned(), got, want })
}

/// It must hold.
fn holds(what: &str, holds: bool) -> Checked {
    same(what, holds, true)
}

/// The server must refuse, with this code and these words.
fn refused<T: Debug>(
    what: &str,
    answer: Result<T, tonic::Status>,
    want: (tonic::Code, &str),
) -> Checked {
    match answer {
        Ok(answer) => same(what, format!("{answer:?}"), format!("{want:?}")),
        Err(status) => same(what, (status.code(), status.message()), want),
    }
}
