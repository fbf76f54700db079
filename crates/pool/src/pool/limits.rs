//! What a pool is told when it is opened: how much it may use, and what its disks promise.

use block::Bytes;

/// What a pool may use of memory and queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most commands at once; more are answered with *busy*.
    pub commands: usize,
    /// Memory for what can be read or worked out again: half for sums pages, a quarter for maps, a
    /// quarter for places of blocks under snapshots. What has changed may exceed it until it is
    /// written, and what one command needs may.
    pub cache: Bytes,
    /// What its disks may leave of a block that was being overwritten.
    pub torn_writes: TornWrites,
}

/// What a power cut may leave of a block that was being overwritten, on any disk of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TornWrites {
    /// Old sectors beside new ones: overwrites are redirected (O9). So it is if nobody knows.
    #[default]
    Possible,
    /// All of the old block or all of the new one: blocks are overwritten in place.
    Impossible,
}

impl Default for Limits {
    fn default() -> Self {
        let torn_writes = TornWrites::default();
        Limits { commands: 4096, cache: Bytes::mib(128), torn_writes }
    }
}
