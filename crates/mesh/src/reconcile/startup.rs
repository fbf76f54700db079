//! A volume of this node whose array does not run yet.

use super::{Action, Draft, LegPath, Step};
use crate::names;
use crate::placement::{Wanted, rank};
use crate::state::PartitionEvent;
use crate::volume::PartitionRequest;

/// How long a member is waited for, in seconds, before the volume starts without it.
const GRACE: u64 = 15;
/// How long a node may take to make a partition of a new volume, before another one is asked.
const CREATION: u64 = 120;

/// Creates or assembles the array, as far as that is possible now.
pub(super) fn start(draft: &mut Draft<'_>) {
    let (old, view) = (draft.old, draft.view);
    if old.spec.partitions.iter().all(|request| request.remove) {
        request_all(draft);
        return;
    }
    let is_new = old.status.in_sync.is_empty();
    let active = old.spec.partitions.iter().filter(|request| !request.remove);
    let members: Vec<PartitionRequest> =
        active.filter(|it| is_new || old.status.is_in_sync(&it.partition_uuid)).cloned().collect();
    let epoch = old.status.epoch;
    let mut usable: Vec<(u16, String)> = Vec::new();
    for request in &members {
        let uuid = &request.partition_uuid;
        if reach(draft, request) && old.is_granted(uuid) {
            usable.push((request.slot, uuid.clone()));
        }
    }
    usable.sort();
    let volume = old.name.clone();
    if usable.len() == members.len() && !members.is_empty() {
        let action = if is_new {
            Action::CreateArray { volume, epoch, members: usable }
        } else {
            let members = usable.into_iter().map(|(_, uuid)| uuid).collect();
            Action::AssembleArray { volume, epoch, members }
        };
        draft.act(Step::AddImported, action);
        return;
    }
    let since = old.status.claimed_at.unwrap_or(view.now);
    let waited = view.now.saturating_sub(since);
    let missing: Vec<&PartitionRequest> = members
        .iter()
        .filter(|it| !usable.iter().any(|(_, uuid)| *uuid == it.partition_uuid))
        .collect();
    let nodes: Vec<&str> = missing.iter().map(|it| it.node_id.as_str()).collect();
    if is_new {
        if waited >= CREATION {
            ask_others(draft, &missing);
        }
        draft.new.status.message = format!("waits for partitions on {}", nodes.join(", "));
        return;
    }
    let is_lost = waited >= GRACE || missing.iter().all(|it| !draft.is_healthy(&it.node_id));
    if is_lost && old.spec.is_covered(usable.iter().map(|(_, uuid)| uuid.as_str())) {
        // Written before the array starts: from then on only these have every write.
        for request in &missing {
            draft.event(&request.partition_uuid, PartitionEvent::Lost);
        }
        draft.new.status.in_sync = usable.into_iter().map(|(_, uuid)| uuid).collect();
        return;
    }
    draft.new.status.message =
        format!("waits for {}, which has copies with all data", nodes.join(", "));
}

/// Whether a partition can be written through its leg; begins what that needs.
pub(super) fn reach(draft: &mut Draft<'_>, request: &PartitionRequest) -> bool {
    let (old, kernel) = (draft.old, &draft.view.kernel);
    let (uuid, epoch) = (&request.partition_uuid, old.status.epoch);
    if let Some(leg) = kernel.leg(uuid, epoch) {
        return leg.path == LegPath::Live;
    }
    if !old.is_granted(uuid) {
        return false;
    }
    let is_local = request.node_id == draft.view.node;
    let is_there =
        if is_local { kernel.partition(uuid).is_some() } else { kernel.imports(uuid, epoch) };
    if is_there {
        let action = Action::CreateLeg { partition: uuid.clone(), epoch };
        draft.act(Step::AddImported, action);
    } else if let Some(address) = draft.address(&request.node_id).filter(|_| !is_local) {
        let (volume, source) = (old.name.clone(), request.node_id.clone());
        draft.act(Step::AddImported, Action::Connect { volume, source, address });
    }
    false
}

/// Chooses nodes and drives for all members.
fn request_all(draft: &mut Draft<'_>) {
    let slots: Vec<u16> = draft.old.spec.wanted_slots().collect();
    let width = draft.old.spec.mirror_width();
    let stripes = usize::from(draft.old.spec.stripe_width);
    let wanted = wanted(draft, &[], stripes);
    let ranked = rank(&draft.view.drives, &wanted);
    if ranked.len() < usize::from(draft.old.spec.replica_count) {
        draft.new.status.message = format!(
            "{} nodes with room are needed, and there are {}",
            draft.old.spec.replica_count,
            ranked.len()
        );
        return;
    }
    let mut requests = Vec::new();
    for slot in slots {
        let copy = usize::from(slot % width);
        let stripe = usize::from(slot / width);
        let Some((node, drives)) = ranked.get(copy) else { continue };
        let device = drives.get(stripe).map(|drive| (*drive).to_owned());
        requests.push((slot, (*node).to_owned(), device));
    }
    for (slot, node, device) in requests {
        request(draft, PartitionRequest { slot, node_id: node, device, ..Default::default() });
    }
}

/// A new volume has no data yet: nodes that do not answer are left out.
fn ask_others(draft: &mut Draft<'_>, missing: &[&PartitionRequest]) {
    let requests = draft.old.spec.partitions.iter();
    let taken: Vec<&str> =
        requests.filter(|it| !it.remove).map(|request| request.node_id.as_str()).collect();
    let mut free = rank(&draft.view.drives, &wanted(draft, &taken, 1)).into_iter();
    let mut replaced = Vec::new();
    for request in missing {
        if let Some((node, _)) = free.next() {
            replaced.push(((*request).clone(), node.to_owned()));
        }
    }
    for (old, node_id) in replaced {
        mark_removed(draft, &old.partition_uuid);
        let slot = old.slot;
        request(draft, PartitionRequest { node_id, slot, ..Default::default() });
    }
}

/// What a further member of this volume needs.
pub(super) fn wanted<'a>(draft: &'a Draft<'_>, taken: &'a [&'a str], drives: usize) -> Wanted<'a> {
    Wanted {
        consumer: &draft.view.node,
        size: draft.old.spec.partition_bytes(),
        sector_size: draft.old.spec.sector_size,
        drives,
        taken,
        now: draft.view.now,
    }
}

/// Requests one more partition, under a UUID that this volume never used.
pub(super) fn request(draft: &mut Draft<'_>, request: PartitionRequest) {
    let spec = &draft.new.spec;
    let epoch = usize::try_from(draft.old.status.epoch).unwrap_or(usize::MAX);
    // An epoch has fewer requests than this, and a UUID is not used twice.
    let first = epoch.saturating_mul(4096);
    let fresh = (first..first.saturating_add(4096))
        .map(|sequence| names::partition_uuid(&spec.volume_id, sequence))
        .find(|uuid| spec.request(uuid).is_none() && draft.new.status.partition(uuid).is_none());
    if let Some(partition_uuid) = fresh {
        draft.new.spec.partitions.push(PartitionRequest { partition_uuid, ..request });
    }
}

/// A partition is not wanted any more.
pub(super) fn mark_removed(draft: &mut Draft<'_>, uuid: &str) {
    let requests = &mut draft.new.spec.partitions;
    if let Some(request) = requests.iter_mut().find(|it| it.partition_uuid == uuid) {
        request.remove = true;
    }
}
