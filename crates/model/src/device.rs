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
    /// Size of its blocks in bytes.
    pub block_size: u32,
    /// Whether it turns.
    pub rotational: bool,
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
    pub obstacles: Vec<Obstacle>,
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
pub enum Obstacle {
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
