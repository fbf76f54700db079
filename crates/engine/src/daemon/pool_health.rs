//! How an open pool is: what it says of itself, and what its disks did.

use std::path::PathBuf;

use api::Deleted;
use api::node::ApiResult;
use block::Bytes;
use model::{
    DiskFinding, DiskFindingKind, DiskStatus, EventName, PoolName, PoolState, PoolStatus, Problem,
    ProblemKind, Size, Subject,
};
use pool::Id;

use super::ErrorLimits;
use super::engine::Engine;
use super::health;
use super::pools::{device_path, uuid_of};
use crate::counters::Counters;
use crate::pools::{self as engine_pools, PoolCounters};

impl Engine {
    /// An open pool, with what its disks did.
    pub(super) async fn open_status(&self, pool: Id) -> ApiResult<PoolStatus> {
        let (status, measured) = (self.status(pool).await?, self.measure_pool(pool).await?);
        let seen = open_status(&status, &measured)?;
        let (errors, sums) = self.recent_errors(pool, &measured);
        Ok(judged(seen, (&measured, &errors, sums), self.0.error_limits))
    }

    /// The errors of each disk of a pool that still count, and blocks that were not what was
    /// written.
    fn recent_errors(&self, pool: Id, measured: &PoolCounters) -> (Vec<u64>, u64) {
        let disks: Vec<u64> = measured.disks.iter().map(|(_, did)| did.errors()).collect();
        let window = (self.0.started.elapsed(), self.0.error_limits.window);
        let mut state = self.state();
        let errors = state.disk_errors.entry(pool).or_default();
        errors.observe((&disks, checksum_errors(measured)), window)
    }

    /// Errors of the disks of a pool until now count no more.
    pub(super) async fn forget_errors(&self, name: &PoolName) -> ApiResult<Deleted> {
        let pool = self.state().pools.get(name).map(|pool| pool.id);
        let missing = || Problem::new(ProblemKind::NotFound, format!("there is no pool {name}"));
        let pool = pool.ok_or_else(missing)?;
        // What came since it was last looked at is cleared as well.
        self.open_status(pool).await?;
        let existed = self.state().disk_errors.entry(pool).or_default().clear();
        if existed {
            let message = "errors of its disks were cleared: they count anew";
            self.tell(Subject::Pool(name.clone()), EventName::Changed, message);
        }
        Ok(Deleted { existed })
    }
}

/// Adds what the disks of a pool say by what they did.
fn judged(
    mut seen: PoolStatus,
    (measured, errors, sums): (&PoolCounters, &[u64], u64),
    limits: ErrorLimits,
) -> PoolStatus {
    let mut works = true;
    let mut symptoms = Vec::new();
    for (((work, _), errors), nth) in measured.disks.iter().zip(errors).zip(0..) {
        let Some(disk) = device_path(&work.path) else { continue };
        // Nobody knows which of several disks; it is told once.
        let sums = if nth == 0 { sums } else { 0 };
        for ill in health::judge(work, (*errors, sums), limits) {
            works &= ill.works;
            symptoms.push(DiskFinding { disk: disk.clone(), kind: ill.kind, detail: ill.detail });
        }
    }
    seen.state = with_symptoms(seen.state, symptoms, works);
    seen
}

/// A state with more symptoms; `works` is whether all disks still do.
fn with_symptoms(state: PoolState, more: Vec<DiskFinding>, works: bool) -> PoolState {
    if more.is_empty() {
        return state;
    }
    let (known, works) = match state {
        PoolState::Faulted { symptoms } => (symptoms, false),
        PoolState::Suspect { symptoms } => (symptoms, works),
        PoolState::Online | PoolState::Offline | PoolState::Unknown => (Vec::new(), works),
    };
    let symptoms = [known, more].concat();
    if works { PoolState::Suspect { symptoms } } else { PoolState::Faulted { symptoms } }
}

/// How often blocks of a pool were not what was written.
fn checksum_errors(measured: &PoolCounters) -> u64 {
    let each = measured.replicas.values().flat_map(Counters::each);
    each.map(|(_, counter)| counter.checksums).sum()
}

/// An open pool.
fn open_status(
    status: &engine_pools::PoolStatus,
    measured: &PoolCounters,
) -> ApiResult<PoolStatus> {
    let mut sums = Some(checksum_errors(measured));
    let disk = |(path, size): &(PathBuf, Bytes)| {
        let did = measured.disks.iter().find(|(work, _)| work.path == *path);
        let did = did.map(|(_, counters)| *counters).unwrap_or_default();
        let (path, size) = (device_path(path)?, Size::from(*size));
        let (io_errors, stalls) = (did.errors(), health::stalls(&did));
        let checksum_errors = sums.take().unwrap_or(0);
        Some(DiskStatus { path, size, io_errors, checksum_errors, stalls })
    };
    let disks: Vec<DiskStatus> = status.disks.iter().filter_map(disk).collect();
    let committed = status.entities.iter().map(|one| match one.entity.kind {
        pool::EntityKind::Replica => Size::from(one.usage.size),
        pool::EntityKind::Snapshot => Size::from(one.usage.own),
    });
    let symptoms = |detail: String| {
        let first = disks.first().map(|disk| disk.path.clone());
        let symptom = |disk| DiskFinding { disk, kind: DiskFindingKind::Damaged, detail };
        first.map(symptom).into_iter().collect()
    };
    let health = &status.health;
    let state = if health.broken {
        let detail = "its journal or a flush failed; it takes no changes until it is imported anew";
        PoolState::Faulted { symptoms: symptoms(detail.to_owned()) }
    } else if health.damaged.is_empty() {
        PoolState::Online
    } else {
        let detail = format!(
            "the maps of {} replicas and snapshots cannot be read; delete and rebuild them",
            health.damaged.len()
        );
        PoolState::Suspect { symptoms: symptoms(detail) }
    };
    Ok(PoolStatus {
        state,
        uuid: uuid_of(status.id)?,
        capacity: status.usage.size.into(),
        used: status.usage.own.into(),
        committed: committed.fold(Size::ZERO, Size::plus),
        cluster_size: status.cluster.into(),
        disks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symptoms(kind: DiskFindingKind) -> Vec<DiskFinding> {
        vec![DiskFinding { disk: "/dev/sdb".parse().unwrap(), kind, detail: "it is ill".into() }]
    }

    #[test]
    fn a_pool_is_as_ill_as_the_worst_that_is_known_of_it() {
        use DiskFindingKind::{Damaged, Stalled};
        let suspect = |symptoms| PoolState::Suspect { symptoms };
        let faulted = |symptoms| PoolState::Faulted { symptoms };
        let (damaged, stalled) = (|| symptoms(Damaged), || symptoms(Stalled));
        let both = || [damaged(), stalled()].concat();
        for (state, more, works, expected) in [
            (PoolState::Online, vec![], true, PoolState::Online),
            (PoolState::Online, stalled(), true, suspect(stalled())),
            (PoolState::Online, stalled(), false, faulted(stalled())),
            (suspect(damaged()), vec![], true, suspect(damaged())),
            (suspect(damaged()), stalled(), true, suspect(both())),
            (suspect(damaged()), stalled(), false, faulted(both())),
            (faulted(damaged()), stalled(), true, faulted(both())),
        ] {
            assert_eq!(with_symptoms(state, more, works), expected);
        }
    }
}
