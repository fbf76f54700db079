//! How far the emptying of a node is.
//!
//! What moves things away is not here: a target leaves by failover, a copy by healing, which takes
//! a draining node for a place where nothing should stay. Copies of snapshots do not move: they are
//! told when all else is gone.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use model::{DrainStatus, NodeName, PoolName};

use crate::member::VolumeHealth;
use crate::place::{NodePreference, choose_target, find};
use crate::view::{exists, is_going};
use crate::{Budget, View};

/// What is still on a node, and what of it cannot move, as things are now.
pub fn drain_status(view: &View<'_>, node: &NodeName) -> DrainStatus {
    let mut status = DrainStatus::default();
    let facts = view.facts;
    for target in facts.targets.values().filter(|target| target.spec().node == *node) {
        status.targets.insert(*target.id());
        let volume = facts.volumes.get(&target.spec().volume).filter(|volume| exists(*volume));
        let current = !target.spec().shutdown && !is_going(target);
        let Some(volume) = volume.filter(|_| current && !target.spec().hosts.is_empty()) else {
            continue;
        };
        let health = VolumeHealth::new(view, volume);
        if let Err(none) =
            choose_target(view, &mut Budget::new(), &health, NodePreference::default())
        {
            status.blocked.push(format!("target of volume {}: {none}", volume.id()));
        }
    }
    for replica in facts.replicas.values() {
        let pool = view.pool(&replica.spec().pool);
        if pool.is_none_or(|pool| pool.pool.spec().node != *node) {
            continue;
        }
        status.replicas.insert(*replica.id());
        let volume = facts.volumes.get(&replica.spec().volume).filter(|volume| exists(*volume));
        let Some(volume) = volume.filter(|_| !is_going(replica)) else { continue };
        let health = VolumeHealth::new(view, volume);
        if health.count_good() >= usize::from(health.wanted) {
            continue;
        }
        if health.good().next().is_none() {
            let reason = "no copy in sync answers to copy from";
            status.blocked.push(format!("copy of volume {}: {reason}", volume.id()));
            continue;
        }
        let coming = health.members.iter().filter(|member| member.is_coming()).count();
        if health.count_good() + coming >= usize::from(health.wanted) {
            continue;
        }
        if let Err(none) = find(view, &mut Budget::new(), &health.ask(view), |_| None) {
            status.blocked.push(format!("copy of volume {}: {none}", volume.id()));
        }
    }
    if status.is_drained() {
        status.blocked.extend(snapshots_that_stay(view, node));
        status.blocked.extend(quarantined_that_stay(view, node));
    }
    status
}

/// Which copies that are set aside lie there, for people.
fn quarantined_that_stay(view: &View<'_>, node: &NodeName) -> Option<String> {
    let is_here =
        |pool: &PoolName| view.pool(pool).is_some_and(|pool| pool.pool.spec().node == *node);
    let mut here = view.facts.quarantined.values().filter(|it| is_here(&it.pool));
    let first = here.next()?.replica;
    Some(format!(
        "{} copies in quarantine stay here, {first} for one: restore or delete them before the \
         node goes",
        here.count() + 1
    ))
}

/// Which snapshots have copies there, for people.
fn snapshots_that_stay(view: &View<'_>, node: &NodeName) -> Option<String> {
    let is_here =
        |pool: &PoolName| view.pool(pool).is_some_and(|pool| pool.pool.spec().node == *node);
    let (mut stay, mut only_here) = (0u32, Vec::new());
    for (id, snapshot) in &view.facts.snapshots {
        let copies = snapshot.status.as_ref().map(|status| &status.copies);
        let Some(copies) = copies.filter(|copies| copies.keys().any(is_here)) else { continue };
        stay += 1;
        if !copies.iter().any(|(pool, copy)| copy.online && !is_here(pool)) {
            only_here.push(id);
        }
    }
    let last = match only_here.first() {
        None => String::from("all have copies elsewhere"),
        Some(first) => format!(
            "{} of them have no other copy that answers, {first} for one: restore them to volumes \
             or delete them before the node goes",
            only_here.len()
        ),
    };
    (stay > 0).then(|| format!("snapshots do not move, and {stay} keep a copy here; {last}"))
}
