//! What was done and how long it took, by target, child, replica and disk.

use std::time::Duration;

use api::node::{ApiResult, Histogram, Statistics, StatisticsOf, Traffic};
use api::{Page, Paging};

use super::engine::{Engine, now};
use super::pool_mapping;
use super::pools::device_path;
use crate::counters::{Counter, Counters};
use crate::pools::{PoolCounters, PoolRequest, PoolResponse};
use crate::volumes::{VolumeRequest, VolumeResponse};

/// What one thing has done, and does.
pub(super) struct Reading {
    pub(super) of: StatisticsOf,
    pub(super) counters: Counters,
    /// How long its oldest command has been at work, where that is known.
    pub(super) oldest: Option<Duration>,
}

impl Engine {
    /// A page of counters: targets with their children, then replicas, then disks.
    pub(super) async fn page_of_statistics(&self, paging: Paging) -> ApiResult<Page<Statistics>> {
        let key = |one: &Statistics| match &one.of {
            StatisticsOf::Target { target } => format!("1 {target}"),
            StatisticsOf::Child { target, replica } => format!("1 {target} {replica}"),
            StatisticsOf::Replica { replica } => format!("2 {replica}"),
            StatisticsOf::Disk { pool, disk } => format!("3 {pool} {disk}"),
        };
        let all = self.measure().await?.into_iter();
        let mut all: Vec<_> = all.map(|reading| self.statistics_of(reading)).collect();
        all.sort_by_key(key);
        paging.cut(all, key)
    }

    /// All counters.
    pub(super) async fn measure(&self) -> ApiResult<Vec<Reading>> {
        let mut all = Vec::new();
        for (target, volume) in self.open_targets() {
            // One that was closed meanwhile has none.
            let Ok(VolumeResponse::Measured(measured)) =
                self.ask_volume(volume, VolumeRequest::Measure).await
            else {
                continue;
            };
            let (counters, oldest) = (measured.volume, Some(measured.oldest));
            all.push(Reading { of: StatisticsOf::Target { target }, counters, oldest });
            for (replica, counters) in measured.children {
                let of = StatisticsOf::Child { target, replica };
                all.push(Reading { of, counters, oldest: None });
            }
        }
        for (pool, id) in self.open_pools() {
            let Ok(measured) = self.measure_pool(id).await else { continue };
            for (work, counters) in measured.disks {
                let Some(disk) = device_path(&work.path) else { continue };
                let of = StatisticsOf::Disk { pool: pool.clone(), disk };
                all.push(Reading { of, counters, oldest: Some(work.oldest) });
            }
            for (replica, counters) in measured.replicas {
                let Some(replica) = pool_mapping::replica_id(replica) else { continue };
                let of = StatisticsOf::Replica { replica };
                all.push(Reading { of, counters, oldest: None });
            }
        }
        Ok(all)
    }

    /// The counters of a pool.
    pub(super) async fn measure_pool(&self, pool: pool::Id) -> ApiResult<PoolCounters> {
        match self.carry_out(pool, PoolRequest::Measure(pool)).await? {
            PoolResponse::Measured(measured) => Ok(*measured),
            _ => Err(super::problems::stopping()),
        }
    }

    fn statistics_of(&self, Reading { of, counters, oldest }: Reading) -> Statistics {
        let micros = |age: Duration| u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        Statistics {
            of,
            instance: self.0.info.instance,
            at: now(),
            read: traffic(&counters.read),
            write: traffic(&counters.write),
            discard: traffic(&counters.discard),
            flush: traffic(&counters.flush),
            throttled: counters.throttled,
            oldest_micros: oldest.map(micros),
        }
    }
}

fn traffic(counter: &Counter) -> Traffic {
    let used = counter.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    let buckets = counter.buckets.iter().copied().take(used).collect();
    Traffic {
        commands: counter.commands,
        bytes: counter.bytes,
        errors: counter.errors,
        latency: Histogram { buckets, total_micros: counter.micros },
    }
}
