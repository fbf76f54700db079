//! What an order about a replica may not contradict: its label, its place, its size.

use api::node::ApiResult;
use model::{Problem, ProblemKind, ReplicaId, ReplicaLabel, ReplicaSpec};
use pool::Entity;

use super::engine::ReplicaEntry;
use super::keys;
use super::pool_mapping;
use super::problems::in_field;

/// Refuses a label that is not newer.
pub(super) fn may_follow(label: &ReplicaLabel, before: &ReplicaLabel) -> ApiResult<()> {
    let (sent, have) = (label.stamp(), before.stamp());
    let refused = |kind, detail: String| Err(Problem::new(kind, detail));
    if sent > have {
        return Ok(());
    }
    if sent.epoch < have.epoch {
        let (sent, have) = (sent.epoch, have.epoch);
        let detail = format!("epoch {sent} is over: {have} owns the volume; give it up");
        return refused(ProblemKind::Fenced, detail);
    }
    if sent == have {
        let number = sent.generation;
        let detail = format!("generation {number} was written with other content; use a new one");
        return refused(ProblemKind::GenerationReused, detail);
    }
    let (sent, have) = (sent.generation, have.generation);
    refused(
        ProblemKind::StaleGeneration,
        format!("generation {sent} is late: {have} has been written"),
    )
}

/// Refuses what contradicts the replica that is there.
pub(super) fn check(
    replica: ReplicaId,
    spec: &ReplicaSpec,
    replica_entry: Option<&ReplicaEntry>,
    found: Option<&Entity>,
) -> ApiResult<()> {
    let differs = |field, detail: String| Err(in_field(field, ProblemKind::AlreadyExists, detail));
    if let Some(replica_entry) = replica_entry
        && replica_entry.pool != spec.pool
    {
        let detail = format!("replica {replica} is in pool {}", replica_entry.pool);
        return differs("spec.pool", detail);
    }
    let Some(entity) = found else { return Ok(()) };
    if entity.kind == pool::EntityKind::Snapshot {
        return differs("replica", format!("{replica} is a snapshot; choose another id"));
    }
    keys::check(replica, spec, entity)?;
    if let Some(volume) = pool_mapping::volume(entity)
        && volume != spec.volume
    {
        let detail = format!("replica {replica} is a copy of volume {volume}");
        return differs("spec.volume", detail);
    }
    if entity.thick == spec.thin {
        let kind = if entity.thick { "thick" } else { "thin" };
        return differs("spec.thin", format!("replica {replica} is {kind}, for good"));
    }
    if let (Some(has), Some(wanted)) = (pool_mapping::snapshot_id(entity.origin), spec.source)
        && has != wanted
    {
        return differs("spec.source", format!("replica {replica} was started from {has}"));
    }
    may_shrink(replica, spec, entity)?;
    let is_shared = replica_entry.is_some_and(|replica_entry| !replica_entry.served.is_empty());
    let is_used_here = replica_entry.is_some_and(|replica_entry| !replica_entry.used_by.is_empty());
    let stays_shared = is_shared && (is_used_here || !spec.hosts.is_empty());
    if stays_shared && pool_mapping::blocks_of(spec.size) < entity.size {
        let detail = "it cannot shrink while it is exported; unshare it first";
        return Err(in_field("spec.size", ProblemKind::InUse, detail));
    }
    Ok(())
}

/// Refuses to cut off what belongs to the volume: a replica is never made smaller than the size on
/// its own label. Generations of orders are forgotten with a restart, so an order of a store that
/// went back may come with any number.
pub(super) fn may_shrink(replica: ReplicaId, spec: &ReplicaSpec, entity: &Entity) -> ApiResult<()> {
    if pool_mapping::blocks_of(spec.size) >= entity.size {
        return Ok(());
    }
    let wanted = spec.size;
    let detail = match pool_mapping::label(entity) {
        Ok(Some(label)) if wanted < label.size => format!(
            "replica {replica} holds a volume of {}, as its label says, and is not cut to \
             {wanted}: whoever orders that is older than the disk; compare the store with \
             `holdfast recover`",
            label.size
        ),
        Err(error) => format!("replica {replica} is not cut to {wanted}: its label: {error}"),
        Ok(_) => return Ok(()),
    };
    Err(in_field("spec.size", ProblemKind::StoreBehind, detail))
}
