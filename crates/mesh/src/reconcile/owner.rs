//! Steps 2 to 5: the partitions of this node.

use super::{Action, Draft, Export, LocalPartition, Step};
use crate::placement::{Wanted, rank};
use crate::state::{PartitionEvent, PartitionState};
use crate::volume::{PartitionRequest, PartitionStatus};

/// Does what is requested of this node for one volume.
pub(super) fn own(draft: &mut Draft<'_>) {
    let requests = draft.old.spec.partitions.iter();
    let mine: Vec<PartitionRequest> =
        requests.filter(|request| request.node_id == draft.view.node).cloned().collect();
    revoke(draft);
    for request in mine {
        if request.remove || draft.old.deleting {
            remove(draft, &request.partition_uuid);
            continue;
        }
        let uuid = &request.partition_uuid;
        let is_made = draft
            .old
            .status
            .partition(uuid)
            .is_some_and(|it| it.state != PartitionState::Requested);
        match draft.view.kernel.partition(uuid).cloned() {
            // A new one would be empty, and is not what the volume believes to have here.
            None if is_made => {
                draft.event(uuid, PartitionEvent::Failed);
                say(draft, uuid, "its partition is gone; was the drive taken out?");
            }
            None => create(draft, &request),
            Some(found) if !is_made && !found.prepared => {
                let partition = uuid.clone();
                draft.act(Step::Collect, Action::PreparePartition { partition });
            }
            Some(found) => {
                if !is_made {
                    record(draft, &request, &found);
                }
                grow(draft, &found);
                export(draft, uuid);
            }
        }
    }
}

fn say(draft: &mut Draft<'_>, partition: &str, message: &str) {
    if let Some(entry) = draft.new.status.partition_mut(partition)
        && entry.message != message
    {
        message.clone_into(&mut entry.message);
    }
}

/// Step 2: a partition on the drive that was asked for, or the best.
fn create(draft: &mut Draft<'_>, request: &PartitionRequest) {
    let spec = &draft.old.spec;
    let view = draft.view;
    let drive = request.device.clone().or_else(|| {
        let wanted = Wanted {
            consumer: &view.node,
            size: spec.partition_bytes(),
            sector_size: spec.sector_size,
            drives: 1,
            taken: &[],
            now: view.now,
        };
        let ranked = rank(&view.drives, &wanted);
        let own = ranked.into_iter().find(|(node, _)| *node == view.node);
        own.and_then(|(_, drives)| drives.first().map(|drive| (*drive).to_owned()))
    });
    let uuid = &request.partition_uuid;
    if let Some(drive) = drive {
        let bytes = spec.partition_bytes();
        let action = Action::CreatePartition { partition: uuid.clone(), drive, bytes };
        draft.act(Step::Collect, action);
        return;
    }
    if draft.old.status.partition(uuid).is_none() {
        let entry = PartitionStatus {
            node_id: request.node_id.clone(),
            partition_uuid: uuid.clone(),
            updated_at: view.now,
            ..PartitionStatus::default()
        };
        draft.new.status.partitions.push(entry);
    }
    say(draft, uuid, "no drive of this node has room and the sector size");
}

/// The partition is there, zeroed: the consumer may count on it.
fn record(draft: &mut Draft<'_>, request: &PartitionRequest, found: &LocalPartition) {
    let uuid = &request.partition_uuid;
    let entries = &mut draft.new.status.partitions;
    entries.retain(|entry| entry.partition_uuid != *uuid);
    let next = entries.iter().map(|entry| entry.nvmeof_namespace_id).max().unwrap_or(0);
    entries.push(PartitionStatus {
        node_id: request.node_id.clone(),
        partition_uuid: uuid.clone(),
        nvmeof_namespace_id: next + 1,
        state: PartitionState::Created,
        size_bytes: found.bytes,
        granted_epoch: 0,
        synced: false,
        updated_at: draft.view.now,
        message: String::new(),
    });
}

/// Whether something is shown to the consumer of now.
fn is_current(draft: &Draft<'_>, export: &Export) -> bool {
    let status = &draft.old.status;
    let to_consumer = status.node_name.as_deref() == Some(export.target.as_str());
    to_consumer && export.epoch == status.epoch && !draft.old.deleting
}

/// Step 3, first half: nobody but the consumer of now keeps a connection.
fn revoke(draft: &mut Draft<'_>) {
    let exports = draft.view.kernel.exports.iter();
    let mut stale: Vec<String> = exports
        .filter(|export| export.volume == draft.old.name && !is_current(draft, export))
        .map(|export| export.target.clone())
        .collect();
    stale.sort();
    stale.dedup();
    for target in stale {
        let volume = draft.old.name.clone();
        draft.act(Step::Export, Action::Revoke { volume, target });
    }
}

/// Step 3, second half: the consumer sees the partition, and the volume says so.
fn export(draft: &mut Draft<'_>, uuid: &str) {
    let (old, kernel) = (draft.old, &draft.view.kernel);
    let Some(entry) = old.status.partition(uuid) else { return };
    let Some(consumer) = old.status.node_name.clone() else { return };
    let of_partition = |export: &&Export| export.volume == old.name && export.partition == uuid;
    let exports: Vec<&Export> = kernel.exports.iter().filter(of_partition).collect();
    let has_stale = exports.iter().any(|export| !is_current(draft, export));
    let epoch = old.status.epoch;
    // An array of an earlier claim still has this node's partition.
    let in_use = kernel.legs.iter().any(|leg| leg.partition == uuid && leg.epoch != epoch)
        || kernel.array(&old.name).is_some_and(|array| array.epoch != Some(epoch));
    if has_stale || in_use {
        return;
    }
    if consumer != draft.view.node && exports.is_empty() {
        draft.act(
            Step::Export,
            Action::Export {
                volume: old.name.clone(),
                partition: uuid.to_owned(),
                target: consumer,
                epoch,
                nsid: entry.nvmeof_namespace_id,
            },
        );
    } else if entry.granted_epoch != epoch
        && let Some(entry) = draft.new.status.partition_mut(uuid)
    {
        entry.granted_epoch = epoch;
    }
}

/// Step 4: in place, or the consumer is told that there is no room.
fn grow(draft: &mut Draft<'_>, found: &LocalPartition) {
    let bytes = draft.old.spec.partition_bytes();
    if found.bytes < bytes && found.room >= bytes {
        let partition = found.uuid.clone();
        draft.act(Step::Grow, Action::GrowPartition { partition, bytes });
    } else if found.bytes < bytes {
        say(draft, &found.uuid, NO_ROOM);
    } else {
        say(draft, &found.uuid, "");
    }
    if let Some(entry) = draft.new.status.partition_mut(&found.uuid)
        && entry.size_bytes != found.bytes
    {
        entry.size_bytes = found.bytes;
    }
}

/// What an entry says whose partition cannot grow where it is.
pub(super) const NO_ROOM: &str = "no free space behind the partition: it is replaced to grow";

/// Step 5: a partition that nobody needs or reaches.
fn remove(draft: &mut Draft<'_>, uuid: &str) {
    let (old, kernel) = (draft.old, &draft.view.kernel);
    if old.status.is_in_sync(uuid) && !old.deleting {
        return;
    }
    let array = kernel.array(&old.name);
    if array.is_some_and(|array| array.member(uuid).is_some()) {
        return;
    }
    draft.event(uuid, PartitionEvent::Removed);
    let is_shown = kernel.exports.iter().any(|it| it.partition == uuid);
    let legs: Vec<u64> =
        kernel.legs.iter().filter(|leg| leg.partition == uuid).map(|leg| leg.epoch).collect();
    for epoch in &legs {
        let action = Action::RemoveLeg { partition: uuid.to_owned(), epoch: *epoch };
        draft.act(Step::StopForeign, action);
    }
    if is_shown {
        // The consumer may still show it to itself: only this node can end that.
        let targets = kernel.exports.iter().filter(|it| it.partition == uuid);
        let targets: Vec<String> = targets.map(|it| it.target.clone()).collect();
        for target in targets {
            let volume = old.name.clone();
            draft.act(Step::Remove, Action::Revoke { volume, target });
        }
    } else if legs.is_empty() && kernel.partition(uuid).is_some() {
        draft.act(Step::Remove, Action::RemovePartition { partition: uuid.to_owned() });
    } else if legs.is_empty() {
        draft.new.status.partitions.retain(|entry| entry.partition_uuid != uuid);
        draft.new.spec.partitions.retain(|request| request.partition_uuid != uuid);
    }
}
