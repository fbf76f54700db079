//! A volume of this node whose array runs: steps 6 to 8.
//!
//! What MD does and what `inSync` says are brought together in two directions. A member leaves
//! `inSync` first, and only then its leg is released; it enters `inSync` only when MD has it in
//! sync and its leg has a path. So a member is never replaced by MD's own replacement, which fails
//! the old one by itself when the copy is complete: the array gets one place more for a while.

use super::owner::NO_ROOM;
use super::startup::{mark_removed, reach, request, wanted};
use super::{Action, Array, Draft, LegPath, MemberState, Step};
use crate::placement::rank;
use crate::state::PartitionEvent;
use crate::volume::PartitionRequest;

/// Keeps an array as it shall be.
pub(super) fn maintain(draft: &mut Draft<'_>) {
    let Some(array) = draft.array().cloned() else { return };
    record_losses(draft, &array);
    for member in &array.members {
        follow(draft, &array, &member.partition, member.state);
    }
    finish_replacements(draft, &array);
    schedule_replacements(draft);
    move_to_consumer(draft);
    add_members(draft, &array);
    grow(draft, &array);
}

/// Members that can be counted on now: recorded, in sync for MD, with a path.
fn is_sound(draft: &Draft<'_>, array: &Array, partition: &str) -> bool {
    let epoch = draft.old.status.epoch;
    let leg = draft.view.kernel.leg(partition, epoch);
    draft.old.status.is_in_sync(partition)
        && array.member(partition).is_some_and(|it| it.state == MemberState::InSync)
        && leg.is_some_and(|leg| leg.path == LegPath::Live)
}

/// Takes members out of `inSync` that are lost, as long as the others hold every block.
///
/// For a volume that was just created, every member is recorded: nothing was written before.
fn record_losses(draft: &mut Draft<'_>, array: &Array) {
    let old = draft.old;
    if old.status.in_sync.is_empty() {
        let all = array.members.iter().filter(|it| it.state == MemberState::InSync);
        let all: Vec<String> = all.map(|it| it.partition.clone()).collect();
        if !old.spec.is_covered(all.iter().map(String::as_str)) {
            return;
        }
        for partition in &all {
            draft.event(partition, PartitionEvent::SyncStarted);
            draft.event(partition, PartitionEvent::InSync);
        }
        draft.new.status.in_sync = all;
        return;
    }
    let (sound, lost): (Vec<String>, Vec<String>) =
        old.status.in_sync.iter().cloned().partition(|it| is_sound(draft, array, it));
    let unwanted = |uuid: &String| old.spec.request(uuid).is_none_or(|request| request.remove);
    let (unwanted, wanted): (Vec<String>, Vec<String>) = sound.iter().cloned().partition(unwanted);
    let kept = if old.spec.is_covered(wanted.iter().map(String::as_str)) { wanted } else { sound };
    if lost.is_empty() && (unwanted.is_empty() || kept.len() == old.status.in_sync.len()) {
        return;
    }
    if !old.spec.is_covered(kept.iter().map(String::as_str)) {
        let waits = lost.iter().filter_map(|uuid| old.spec.request(uuid));
        let nodes: Vec<&str> = waits.map(|request| request.node_id.as_str()).collect();
        draft.new.status.message =
            format!("I/O waits for {}: without it, no copy would have all data", nodes.join(", "));
        return;
    }
    for partition in &lost {
        let is_faulty = array.member(partition).is_some_and(|it| it.state == MemberState::Faulty);
        let event = if is_faulty { PartitionEvent::Failed } else { PartitionEvent::Lost };
        draft.event(partition, event);
    }
    draft.new.status.in_sync = kept;
}

/// Steps 6 and 8 for a member: what is not recorded may be failed, what is in sync is recorded.
fn follow(draft: &mut Draft<'_>, array: &Array, partition: &str, state: MemberState) {
    let (old, kernel) = (draft.old, &draft.view.kernel);
    if old.status.in_sync.is_empty() || old.status.is_in_sync(partition) {
        return;
    }
    let epoch = old.status.epoch;
    let path = kernel.leg(partition, epoch).map(|leg| leg.path);
    let is_wanted = old.spec.request(partition).is_some_and(|request| !request.remove);
    let (volume, uuid) = (array.volume.clone(), partition.to_owned());
    match (state, path) {
        (_, Some(LegPath::Held)) => {
            draft.event(partition, PartitionEvent::Lost);
            draft.act(Step::Replace, Action::ReleaseLeg { partition: uuid, epoch });
        }
        (MemberState::Faulty, _) => {
            draft.event(partition, PartitionEvent::Failed);
            draft.act(Step::Replace, Action::RemoveMember { volume, partition: uuid, epoch });
        }
        _ if !is_wanted => {
            draft.act(Step::Replace, Action::RemoveMember { volume, partition: uuid, epoch });
        }
        (MemberState::InSync, Some(LegPath::Live)) => {
            draft.event(partition, PartitionEvent::SyncStarted);
            draft.event(partition, PartitionEvent::InSync);
            draft.new.status.in_sync.push(uuid);
        }
        (MemberState::Recovering, _) => draft.event(partition, PartitionEvent::SyncStarted),
        (MemberState::Spare, _) => draft.event(partition, PartitionEvent::Added),
        (MemberState::InSync, _) => {}
    }
}

/// Step 6: a replacement that is in sync sends the one it replaces away.
fn finish_replacements(draft: &mut Draft<'_>, array: &Array) {
    let requests = draft.old.spec.partitions.clone();
    for request in requests {
        let Some(old) = request.replaces.clone() else { continue };
        let is_done = is_sound(draft, array, &request.partition_uuid);
        let is_gone = draft.old.spec.request(&old).is_none();
        if is_done || is_gone {
            mark_removed(draft, &old);
            let requests = &mut draft.new.spec.partitions;
            let new = requests.iter_mut().find(|it| it.partition_uuid == request.partition_uuid);
            if let Some(new) = new {
                new.replaces = None;
            }
        }
    }
}

/// Step 7: members that are away for too long, or cannot grow, are replaced elsewhere.
fn schedule_replacements(draft: &mut Draft<'_>) {
    let (old, view) = (draft.old, draft.view);
    let timeout = u64::from(old.spec.member_missing_timeout);
    if old.spec.partitions.iter().any(|it| it.replaces.is_some()) {
        return;
    }
    for lost in old.spec.partitions.iter().filter(|it| !it.remove) {
        let uuid = &lost.partition_uuid;
        let Some(entry) = old.status.partition(uuid) else { continue };
        let is_late = entry.state.is_lost()
            && view.now.saturating_sub(entry.updated_at) >= timeout
            && !draft.new.status.is_in_sync(uuid);
        let is_stuck = entry.message == NO_ROOM && old.spec.stripe_width == 1;
        if !is_late && !is_stuck {
            continue;
        }
        let others = old.spec.partitions.iter().filter(|it| !it.remove && *it != lost);
        let mut taken: Vec<&str> = others.map(|it| it.node_id.as_str()).collect();
        if is_late && entry.node_id != view.node {
            taken.push(&lost.node_id);
        }
        let ranked = rank(&view.drives, &wanted(draft, &taken, 1));
        // One that cannot grow moves on its own node, if it can.
        let same = ranked.iter().find(|(node, _)| is_stuck && *node == lost.node_id);
        let Some((node, drives)) = same.or(ranked.first()) else {
            "no other node has room for a replacement".clone_into(&mut draft.new.status.message);
            continue;
        };
        let (node_id, device) = ((*node).to_owned(), drives.first().map(|it| (*it).to_owned()));
        let replaces = (!is_late).then(|| uuid.clone());
        let slot = lost.slot;
        if is_late {
            mark_removed(draft, uuid);
        }
        let new = PartitionRequest { node_id, device, slot, replaces, ..Default::default() };
        request(draft, new);
        return;
    }
}

/// A consumer that has no copy gets one, in the place of another's: the pod has moved.
fn move_to_consumer(draft: &mut Draft<'_>) {
    let (old, view) = (draft.old, draft.view);
    let active: Vec<&PartitionRequest> =
        old.spec.partitions.iter().filter(|request| !request.remove).collect();
    let has_own = active.iter().any(|request| request.node_id == view.node);
    let is_busy = active.iter().any(|it| it.replaces.is_some())
        || draft.new.spec.partitions.len() != old.spec.partitions.len()
        || old.status.in_sync.len() < usize::from(old.spec.members());
    if has_own || is_busy || old.spec.stripe_width != 1 || !draft.new.status.message.is_empty() {
        return;
    }
    let Some(moved) = active.iter().max_by_key(|request| request.slot) else { return };
    let ranked = rank(&view.drives, &wanted(draft, &[], 1));
    let Some((_, drives)) = ranked.iter().find(|(node, _)| *node == view.node) else { return };
    let new = PartitionRequest {
        slot: moved.slot,
        node_id: view.node.clone(),
        device: drives.first().map(|drive| (*drive).to_owned()),
        replaces: Some(moved.partition_uuid.clone()),
        ..PartitionRequest::default()
    };
    request(draft, new);
}

/// Step 8: what is requested and not in the array is reached, and added.
fn add_members(draft: &mut Draft<'_>, array: &Array) {
    let (old, epoch) = (draft.old, draft.old.status.epoch);
    let is_idle =
        array.sync.is_none() && array.members.iter().all(|it| it.state == MemberState::InSync);
    for request in old.spec.partitions.iter().filter(|request| !request.remove) {
        let uuid = &request.partition_uuid;
        if array.member(uuid).is_some() || old.status.is_in_sync(uuid) {
            continue;
        }
        let leg = draft.view.kernel.leg(uuid, epoch).map(|leg| leg.path);
        if leg.is_some_and(|path| path != LegPath::Live) {
            draft.event(uuid, PartitionEvent::Lost);
            let action = Action::RemoveLeg { partition: uuid.clone(), epoch };
            draft.act(Step::AddImported, action);
            continue;
        }
        if !reach(draft, request) {
            draft.event(uuid, PartitionEvent::Lost);
            continue;
        }
        let volume = array.volume.clone();
        let has_place = array.members.len() < usize::from(array.slots);
        let was_member = old.status.partition(uuid).is_some_and(|it| it.synced);
        let partition = uuid.clone();
        if has_place {
            let action = Action::AddMember { volume, partition, epoch, was_member };
            draft.act(Step::AddImported, action);
            // One at a time: MD gives the first free place.
            return;
        }
        let may_widen = request.replaces.is_some() && array.slots == old.spec.slots();
        if may_widen && is_idle && old.spec.stripe_width == 1 {
            let slots = array.slots + 1;
            draft.act(Step::Replace, Action::SetSlots { volume, slots });
        }
    }
    let is_replacing = old.spec.partitions.iter().any(|it| it.replaces.is_some());
    let fits = array.members.len() <= usize::from(old.spec.slots());
    if array.slots > old.spec.slots() && fits && is_idle && !is_replacing {
        let (volume, slots) = (array.volume.clone(), old.spec.slots());
        draft.act(Step::Replace, Action::SetSlots { volume, slots });
    }
}

/// The array grows once every member has.
fn grow(draft: &mut Draft<'_>, array: &Array) {
    let (spec, status) = (&draft.old.spec, &draft.old.status);
    let has_grown = |uuid: &str| {
        status.partition(uuid).is_some_and(|entry| entry.size_bytes >= spec.partition_bytes())
    };
    let all = array.members.iter().all(|it| has_grown(&it.partition));
    if array.bytes < spec.capacity_bytes && all && array.sync.is_none() {
        draft.act(Step::Grow, Action::GrowArray { volume: array.volume.clone() });
    }
}
