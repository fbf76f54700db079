//! Block devices of a node: what a pool could be made of.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{DevicePath, PoolName, Size};

/// A disk or partition of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BlockDevice {
    /// Its name in `/dev`, which may change at the next start.
    pub path: DevicePath,
    /// Names that do not change, best first: one of these belongs into a pool's spec.
    pub links: Vec<DevicePath>,
    /// What it is.
    pub kind: DeviceKind,
    /// Its size.
    pub size: Size,
    /// How it writes.
    pub traits: DiskTraits,
    /// What it is called by its maker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Which one of its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The device this is a part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<DevicePath>,
    /// What keeps a pool from being made on it; empty: nothing.
    pub obstacles: Vec<IneligibleReason>,
}

/// How a disk writes: what decides whether data survives a loss of power there, and at what cost.
///
/// All of it is what the kernel says. What the kernel does not say is taken at its worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DiskTraits {
    /// The smallest read or write, in bytes.
    pub logical_block_size: u32,
    /// The smallest write that the disk carries out without reading first, in bytes.
    pub physical_block_size: u32,
    /// An aligned write of at most this many bytes is wholly there or not at all after a loss of
    /// power.
    pub atomic_write_unit: u32,
    /// What happens to finished writes that were not flushed.
    pub write_cache: WriteCache,
    /// Whether it turns.
    pub rotational: bool,
}

/// What a disk does with finished writes that were not flushed when it loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WriteCache {
    /// It keeps them: it has no cache, or one with power-loss protection. A flush costs nothing.
    Protected,
    /// It may lose them. Every flush is passed on to it.
    Volatile,
    /// The kernel does not say. Treated as volatile.
    Unknown,
}

impl DiskTraits {
    /// A sector, which every disk writes as a whole.
    pub const SECTOR: u32 = 512;

    /// The unit in which pools write.
    pub const POOL_BLOCK: u32 = 4096;

    /// A disk of which nothing is known.
    pub const UNKNOWN: DiskTraits = DiskTraits {
        logical_block_size: DiskTraits::SECTOR,
        physical_block_size: DiskTraits::SECTOR,
        atomic_write_unit: DiskTraits::SECTOR,
        write_cache: WriteCache::Unknown,
        rotational: false,
    };

    /// What somebody who puts a pool there should know; nothing keeps a pool from being made.
    pub fn remarks(&self) -> Vec<&'static str> {
        let cache = match self.write_cache {
            WriteCache::Protected => None,
            WriteCache::Volatile => {
                Some("its write cache is volatile, so every flush waits for it")
            }
            WriteCache::Unknown => Some(
                "the kernel does not say whether its write cache survives a loss of power, so it \
                 is taken for volatile",
            ),
        };
        let torn = (self.atomic_write_unit < DiskTraits::POOL_BLOCK)
            .then_some("it does not promise to write 4 KiB as a whole, so overwrites go elsewhere");
        let slow = self.rotational.then_some("it rotates, so random reads and writes are slow");
        [cache, torn, slow].into_iter().flatten().collect()
    }
}

/// What a block device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DeviceKind {
    /// A disk.
    Disk,
    /// A part of one.
    Partition,
    /// Made of others: MD, device mapper.
    Composed,
    /// A file seen as a disk.
    Loop,
}

/// What keeps a pool from being made on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum IneligibleReason {
    /// Too small for a pool.
    TooSmall,
    /// It takes no writes.
    ReadOnly,
    /// It has partitions.
    Partitioned,
    /// It holds a file system.
    FileSystem {
        /// Which.
        name: String,
    },
    /// It is mounted.
    Mounted {
        /// Where.
        path: String,
    },
    /// Something else holds it open: swap, MD, device mapper.
    Held {
        /// What.
        by: String,
    },
    /// It holds a pool already, which can be imported.
    Pool {
        /// Which.
        pool: PoolName,
    },
    /// It is one of our own volumes.
    OwnVolume,
}

impl BlockDevice {
    /// Whether a pool can be made on it.
    pub fn is_usable(&self) -> bool {
        self.obstacles.is_empty()
    }
}
