//! When copies are read and checked, and when they are compared with each other.
//!
//! A scrub reads one copy and finds blocks that are not what was written there. A comparison reads
//! all copies through a target and also finds intact blocks that differ: writes that a disk lost or
//! put elsewhere.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use model::{NodeName, Replica, Subject, Timestamp, Volume, VolumeId};

use crate::member::{Condition, VolumeHealth};
use crate::plan::Round;
use crate::view::exists;
use crate::{Step, View};

/// Begins the scrubs that are due, the one that waited longest first, a few on each node. Copies of
/// volumes that are not well are left alone: their disks have other work.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    scrub(round);
    compare(round);
}

fn scrub(round: &mut Round<'_, '_>) {
    let view = round.view;
    let Some(every) = view.settings.scrub_every else { return };
    let mut running: BTreeMap<&NodeName, u32> = BTreeMap::new();
    for replica in view.facts.scrubbing.iter().filter_map(|id| view.facts.replicas.get(id)) {
        if let Some(pool) = view.pool(&replica.spec().pool) {
            *running.entry(&pool.pool.spec().node).or_default() += 1;
        }
    }
    let mut due: Vec<(Timestamp, &Replica)> = Vec::new();
    for replica in view.facts.replicas.values() {
        let last = view.facts.scrubbed.get(replica.id()).copied();
        let last = last.unwrap_or(replica.created_at());
        let waits = view.now.since(last) >= every && !view.facts.scrubbing.contains(replica.id());
        if waits && is_well(view, replica) {
            due.push((last, replica));
        }
    }
    due.sort_by_key(|(last, replica)| (*last, *replica.id()));
    for (_, replica) in due {
        let Some(pool) = view.pool(&replica.spec().pool) else { continue };
        let node = &pool.pool.spec().node;
        let running = running.get(node).copied().unwrap_or(0);
        if round.budget.take_scrub(view, node, running) {
            round.push(Step::Scrub { replica: *replica.id() });
        }
    }
}

/// Begins the comparisons that are due, the volume that waited longest first, a few in the cluster.
fn compare(round: &mut Round<'_, '_>) {
    let view = round.view;
    let Some(every) = view.settings.compare_every else { return };
    let running = view.facts.comparing.len();
    let left = usize::try_from(view.settings.comparisons).unwrap_or(usize::MAX);
    let left = left.saturating_sub(running);
    if left == 0 {
        return;
    }
    let mut due: Vec<(Timestamp, VolumeId)> = Vec::new();
    for volume in view.facts.volumes.values() {
        let id = *volume.id();
        let last = view.facts.compared.get(&id).copied().unwrap_or(volume.created_at());
        let waits = view.now.since(last) >= every && !view.facts.comparing.contains(&id);
        // What was never served is empty, or holds one snapshot.
        let was_served = view.facts.records.contains_key(&id);
        if waits && was_served && volume.spec().replicas > 1 && is_comparable(view, volume) {
            due.push((last, id));
        }
    }
    due.sort_unstable();
    let open = due.into_iter().filter(|(_, id)| round.is_open(&Subject::Volume(*id)));
    let begun: Vec<VolumeId> = open.map(|(_, id)| id).take(left).collect();
    for volume in begun {
        round.push(Step::Compare { volume });
    }
}

/// Whether all copies of a volume are in sync and answer, and nothing is done to it.
pub fn is_comparable(view: &View<'_>, volume: &Volume) -> bool {
    exists(volume) && volume.lifecycle().is_idle() && all_good(view, volume)
}

fn is_well(view: &View<'_>, replica: &Replica) -> bool {
    let volume = view.facts.volumes.get(&replica.spec().volume);
    volume.is_some_and(|volume| exists(volume) && all_good(view, volume))
}

fn all_good(view: &View<'_>, volume: &Volume) -> bool {
    let members = VolumeHealth::new(view, volume).members;
    members.iter().all(|member| member.condition == Condition::Good)
}
