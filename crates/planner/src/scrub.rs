//! When copies are read and checked.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use model::{NodeName, Replica, Timestamp};

use crate::member::{Condition, VolumeHealth};
use crate::plan::Round;
use crate::view::exists;
use crate::{Step, View};

/// Begins the scrubs that are due, the one that waited longest first, a few on each node. Copies of
/// volumes that are not well are left alone: their disks have other work.
pub(crate) fn run(round: &mut Round<'_, '_>) {
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

fn is_well(view: &View<'_>, replica: &Replica) -> bool {
    let volume = view.facts.volumes.get(&replica.spec().volume);
    let Some(volume) = volume.filter(|volume| exists(*volume)) else { return false };
    let members = VolumeHealth::new(view, volume).members;
    members.iter().all(|member| member.condition == Condition::Good)
}
