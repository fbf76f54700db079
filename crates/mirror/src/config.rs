//! How patient and how large a mirror is.

use core::num::NonZeroU64;
use core::time::Duration;

use block::Blocks;
use model::{RegionSet, Size};

/// How patient and how large a mirror is. Every queue is bounded by a number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// Most host commands at once; more are answered with *busy*.
    pub commands: usize,
    /// How long hosts wait while nothing can be served; then their commands fail.
    pub hold: Duration,
    /// How long an opening waits for copies in sync before it goes on without them.
    pub open_wait: Duration,
    /// For how long reads may be answered.
    pub lease: ReadLease,
    /// A note is made anew after this time while hosts write: how far back a copy may be rolled
    /// without its note saying so.
    pub renew: Duration,
    /// How long an ordered stop may take before it ends unclean.
    pub stop_wait: Duration,
    /// Delay before something that failed is tried again: the first, and the longest.
    pub retry: (Duration, Duration),
    /// How long a child that was busy is left alone, and how often it may be in one command.
    pub busy: (Duration, u32),
    /// Regions that were not written for so long lose their mark after a flush.
    pub idle: Duration,
    /// Blocks of a region, the unit of marks and dirty maps.
    pub region: NonZeroU64,
    /// Blocks that a rebuild copies at once.
    pub chunk: Blocks,
    /// Most such copies at once, of all rebuilds.
    pub copies: u32,
    /// Most rebuilds at once; others wait for their turn.
    pub rebuilds: usize,
    /// What rebuilds together may copy in a second.
    pub rebuild_limit: Option<Size>,
    /// Blocks that a rebuild copies at once while hosts are served.
    pub small_chunk: Blocks,
    /// How long it then pauses after each.
    pub pause: Duration,
    /// Hosts that asked nothing for so long are not being served.
    pub lull: Duration,
    /// Hosts that asked nothing for so long are away: rebuilds copy as much at once as they may. A
    /// host that comes sooner finds one chunk before it, not all of them.
    pub away: Duration,
    /// A host command slower than this makes rebuilds pause longer.
    pub slow: Duration,
    /// Whether what was copied is compared with its source again.
    pub verify: bool,
    /// Most ended rebuilds remembered.
    pub history: usize,
}

/// For how long reads may be answered after a copy in sync was last asked for something that it
/// then did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLease {
    /// By this owner; at most the longest. Zero: each read is answered after every copy in sync
    /// was asked again.
    pub own: Duration,
    /// By a former owner, whatever its own is. An opening without all copies waits a quarter more
    /// from the moment it fenced one of them: so a former owner that it cannot reach has stopped
    /// answering.
    pub longest: Duration,
}

/// The longest lease that any owner of a volume has.
pub const LONGEST_LEASE: Duration = Duration::from_secs(1);

impl MirrorConfig {
    /// The usual policy for a volume of this size.
    pub fn default_for(size: Blocks) -> MirrorConfig {
        MirrorConfig {
            commands: 4096,
            hold: Duration::from_mins(1),
            open_wait: Duration::from_secs(20),
            lease: ReadLease { own: LONGEST_LEASE, longest: LONGEST_LEASE },
            renew: Duration::from_secs(10),
            stop_wait: Duration::from_secs(20),
            retry: (Duration::from_millis(100), Duration::from_secs(5)),
            busy: (Duration::from_millis(2), 1000),
            idle: Duration::from_secs(5),
            region: RegionSet::default_for(size),
            chunk: Blocks(64),
            copies: 16,
            rebuilds: 4,
            rebuild_limit: None,
            small_chunk: Blocks(16),
            pause: Duration::from_millis(1),
            lull: Duration::from_millis(5),
            away: Duration::from_millis(100),
            slow: Duration::from_millis(10),
            verify: true,
            history: 64,
        }
    }
}
