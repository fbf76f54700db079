//! How pools and what is in them are, as orders are answered.

use std::path::PathBuf;

use block::{Blocks, Bytes};
use pool::Pool;

use super::request::{EntityStatus, PoolStatus, ScrubStatus};

/// How a pool is.
pub(super) fn status_of(
    pool: &Pool,
    disks: Vec<(PathBuf, Blocks)>,
    scrub: Option<ScrubStatus>,
) -> PoolStatus {
    let superblock = pool.superblock();
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(4096));
    PoolStatus {
        id: superblock.pool,
        name: superblock.name.clone(),
        disks: disks.into_iter().map(|(path, blocks)| (path, bytes(blocks.0))).collect(),
        cluster: bytes(superblock.cluster.blocks()),
        usage: pool.usage(),
        health: pool.health(),
        scrub,
        entities: pool.entities().filter_map(|entity| entity_status(pool, entity)).collect(),
    }
}

/// How something in a pool is.
pub(super) fn entity_status(pool: &Pool, entity: &pool::Entity) -> Option<EntityStatus> {
    let usage = pool.usage_of(entity.id)?;
    Some(EntityStatus { entity: entity.clone(), usage })
}
