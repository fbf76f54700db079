//! What was done and how long it took.
//!
//! Counters begin at zero with the run of the engine and only grow: readers take the difference of
//! two answers of the same instance.

use model::{DevicePath, InstanceId, PoolName, ReplicaId, TargetId, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Json;

/// The counters of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// Of what.
    pub of: StatisticsOf,
    /// The run of the engine they belong to.
    pub instance: InstanceId,
    /// When they were read.
    pub at: Timestamp,
    /// Reads.
    pub read: Traffic,
    /// Writes.
    pub write: Traffic,
    /// Deallocations and writes of zeroes.
    pub discard: Traffic,
    /// Flushes; they move no bytes.
    pub flush: Traffic,
    /// Commands that had to wait for a limit of the target.
    #[serde(default)]
    pub throttled: u64,
    /// How long the oldest command has been at work that has not ended, in microseconds: 0 if there
    /// is none. Known of targets and disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_micros: Option<u64>,
}

/// What has counters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum StatisticsOf {
    /// A target, as hosts use it.
    Target {
        /// Which.
        target: TargetId,
    },
    /// A child, as its target uses it.
    Child {
        /// Of which target.
        target: TargetId,
        /// Which replica.
        replica: ReplicaId,
    },
    /// A replica, as this engine serves it.
    Replica {
        /// Which.
        replica: ReplicaId,
    },
    /// A disk, as its pool uses it.
    Disk {
        /// Of which pool.
        pool: PoolName,
        /// Which.
        disk: DevicePath,
    },
}

/// Commands of one sort.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// How many ended well.
    pub commands: u64,
    /// What they moved.
    pub bytes: u64,
    /// How many ended with an error.
    pub errors: u64,
    /// How long those took that ended well.
    pub latency: Histogram,
}

/// How many took how long: bucket `n` counts those that took less than 2^n microseconds, not less
/// than the bucket before. Empty buckets at the end are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Histogram {
    /// From the quickest.
    pub buckets: Vec<u64>,
    /// What all of them took together.
    pub total_micros: u64,
}

impl Histogram {
    /// More buckets than these no command lives long enough for.
    const MOST_BUCKETS: usize = 40;

    /// Counts one more.
    pub fn record(&mut self, micros: u64) {
        let bits = u64::BITS - micros.leading_zeros();
        let bucket = usize::try_from(bits).unwrap_or(usize::MAX).min(Histogram::MOST_BUCKETS - 1);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count = count.saturating_add(1);
        }
        self.total_micros = self.total_micros.saturating_add(micros);
    }

    /// The time within which so many of a thousand ended, rounded up to a bucket.
    pub fn quantile_micros(&self, of_thousand: u16) -> Option<u64> {
        let all = self.buckets.iter().fold(0u128, |sum, count| sum + u128::from(*count));
        if all == 0 {
            return None;
        }
        let wanted = (all * u128::from(of_thousand.min(1000))).div_ceil(1000).max(1);
        let mut below = 0;
        let full = self.buckets.iter().position(|count| {
            below += u128::from(*count);
            below >= wanted
        })?;
        1u64.checked_shl(u32::try_from(full).ok()?)
    }
}

impl Json for Statistics {}
