//! What operators set once for the cluster.

use core::time::Duration;

use model::Size;

/// The policy of a cluster in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lost copy may stay away before it is replaced, unless its volume says otherwise.
    pub replace_after: Duration,
    /// How many rebuilds may run at once in the cluster.
    pub rebuilds: u32,
    /// How many rebuilds may run at once from or to one node.
    pub rebuilds_per_node: u32,
    /// How often a copy may fail to be rebuilt before it is replaced by one elsewhere.
    pub rebuild_attempts: u32,
    /// If no more than so many in a hundred nodes of the cluster or of a zone answer, lost copies
    /// are waited for and not replaced; zero: they always are.
    pub heal_share: u32,
    /// How full a pool may become, in hundredths, by copies in place of lost ones.
    pub heal_fill: u32,
    /// How much may be promised in a pool, in hundredths of its capacity.
    pub pool_commitment: u32,
    /// How much room a thin replica needs beyond what is written, in hundredths of its size.
    pub volume_commitment: u32,
    /// The same for the replicas of a new volume.
    pub volume_commitment_initial: u32,
    /// How much room a snapshot needs, in hundredths of the size of its volume.
    pub snapshot_commitment: u32,
    /// Room in a pool that nothing new may take.
    pub watermark: Size,
    /// How long something must be seen to be unwanted before it is removed.
    pub second_look: Duration,
    /// How long a copy that its volume does not count is set aside, if it cannot be proved that
    /// nothing is lost with it.
    pub quarantine: Duration,
    /// How long something half made is left to whoever may still be making it.
    pub half_made_after: Duration,
    /// How often every copy is read and checked; absent: never.
    pub scrub_every: Option<Duration>,
    /// How many copies of one node may be checked at once.
    pub scrubs_per_node: u32,
    /// How often the copies of every volume are compared with each other; absent: never.
    pub compare_every: Option<Duration>,
    /// How many volumes may be compared at once in the cluster.
    pub comparisons: u32,
    /// By how many hundredths the fill of two pools may differ before copies are moved; absent:
    /// none are moved without being asked for.
    pub rebalance_above: Option<u32>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            replace_after: Duration::from_mins(10),
            rebuilds: 16,
            rebuilds_per_node: 4,
            rebuild_attempts: 3,
            heal_share: 50,
            heal_fill: 90,
            pool_commitment: 250,
            volume_commitment: 40,
            volume_commitment_initial: 40,
            snapshot_commitment: 40,
            watermark: Size::mib(16),
            second_look: Duration::from_mins(5),
            quarantine: Duration::from_hours(7 * 24),
            half_made_after: Duration::from_mins(10),
            scrub_every: Some(Duration::from_hours(30 * 24)),
            scrubs_per_node: 1,
            compare_every: Some(Duration::from_hours(90 * 24)),
            comparisons: 1,
            rebalance_above: None,
        }
    }
}
