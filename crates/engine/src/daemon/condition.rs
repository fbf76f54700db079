//! How an open pool is: what it says of itself, and what its disks did.

use std::path::PathBuf;

use api::node::Answered;
use block::Bytes;
use model::{DiskStatus, PoolState, PoolStatus, Size, Symptom, SymptomKind};
use pool::Id;

use super::engine::Engine;
use super::health;
use super::pools::{device_path, uuid_of};
use crate::counters::Counters;
use crate::pools::{self as engine_pools, Measured};

impl Engine {
    /// An open pool, with what its disks did.
    pub(super) async fn open_status(&self, pool: Id) -> Answered<PoolStatus> {
        let (status, measured) = (self.status(pool).await?, self.measure_pool(pool).await?);
        let seen = open_status(&status, &measured)?;
        Ok(judged(seen, &measured))
    }
}

/// Adds what the disks of a pool say by what they did.
fn judged(mut seen: PoolStatus, measured: &Measured) -> PoolStatus {
    let sums = checksum_errors(measured);
    let mut works = true;
    let mut symptoms = Vec::new();
    for ((work, counters), nth) in measured.disks.iter().zip(0..) {
        let Some(disk) = device_path(&work.path) else { continue };
        // Nobody knows which of several disks; it is told once.
        let sums = if nth == 0 { sums } else { 0 };
        for ill in health::judge(counters, work.oldest, sums) {
            works &= ill.works;
            symptoms.push(Symptom { disk: disk.clone(), kind: ill.kind, detail: ill.detail });
        }
    }
    if symptoms.is_empty() {
        return seen;
    }
    seen.state = match seen.state {
        PoolState::Faulted { symptoms: mut known } => {
            known.extend(symptoms);
            PoolState::Faulted { symptoms: known }
        }
        PoolState::Suspect { symptoms: mut known } => {
            known.extend(symptoms);
            PoolState::Suspect { symptoms: known }
        }
        _ if works => PoolState::Suspect { symptoms },
        _ => PoolState::Faulted { symptoms },
    };
    seen
}

/// How often blocks of a pool were not what was written.
fn checksum_errors(measured: &Measured) -> u64 {
    let each = measured.replicas.values().flat_map(Counters::each);
    each.map(|(_, counter)| counter.checksums).sum()
}

/// An open pool.
fn open_status(status: &engine_pools::PoolStatus, measured: &Measured) -> Answered<PoolStatus> {
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
        pool::Kind::Replica => Size::from(one.usage.size),
        pool::Kind::Snapshot => Size::from(one.usage.own),
    });
    let symptoms = |detail: String| {
        let first = disks.first().map(|disk| disk.path.clone());
        let symptom = |disk| Symptom { disk, kind: SymptomKind::Damaged, detail };
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
