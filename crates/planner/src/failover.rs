//! Keeping published volumes served: which target must move, and where to.
//!
//! `Unknown` is doubt and moves nothing. What is certain of an absent node is only that it does not
//! answer; the new target fences the old one before it serves.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;

use model::{Failover, FailoverReason, FailoverStage, Subject, Target, TargetState, VolumeId};

use crate::member::{Member, VolumeHealth};
use crate::place::{NodePreference, Unplaceable, choose_target};
use crate::plan::Round;
use crate::view::{NodeView, exists, is_going};
use crate::{Step, View};

/// The volumes whose target is on the move: nothing else is decided about them.
pub(crate) fn moving(view: &View<'_>) -> BTreeSet<VolumeId> {
    view.facts.failovers.values().filter(|moving| !is_over(moving)).map(Failover::volume).collect()
}

/// Whether the target of a volume is on the move.
pub(crate) fn is_moving(view: &View<'_>, volume: VolumeId) -> bool {
    let mut of_volume = view.facts.failovers.values().filter(|it| it.volume() == volume);
    of_volume.any(|failover| !is_over(failover))
}

fn is_over(failover: &Failover) -> bool {
    matches!(failover.stage(), FailoverStage::Successful { .. } | FailoverStage::Errored { .. })
}

/// Goes on with failovers, and begins those that are due.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    let view = round.view;
    for failover in view.facts.failovers.values().filter(|failover| !is_over(failover)) {
        go_on(round, failover);
    }
    let moving = moving(view);
    for volume in view.facts.volumes.values() {
        let idle = volume.lifecycle().operation().is_none();
        if !exists(volume) || !idle || moving.contains(volume.id()) {
            continue;
        }
        if let Some(target) = view.target(*volume.id()).filter(|target| exists(target)) {
            watch(round, &VolumeHealth::new(view, volume), target);
        }
    }
}

fn go_on(round: &mut Round<'_, '_>, failover: &Failover) {
    let view = round.view;
    let volume = failover.volume();
    let Some(object) = view.facts.volumes.get(&volume) else { return };
    match failover.stage() {
        FailoverStage::RepublishVolume {} => {
            let preference = NodePreference { asked: None, or_again: Some(failover.from()) };
            match choose(round, &VolumeHealth::new(view, object), preference) {
                Ok(node) => round.push(Step::Republish { failover: failover.id(), volume, node }),
                Err(reason) => round.block(Subject::Volume(volume), reason),
            }
        }
        FailoverStage::ReplacePath { to } => {
            let target = view.target_by_id(*to);
            let node = target.and_then(|target| view.node(&target.spec().node));
            if target.is_none_or(is_going) || node.is_none_or(NodeView::is_absent) {
                round.push(Step::Reroute { failover: failover.id(), volume });
            }
        }
        FailoverStage::DeleteTarget { .. } => {
            let old = view.target_by_id(failover.from());
            let node = old.and_then(|target| view.node(&target.spec().node));
            if node.is_some_and(NodeView::is_online) {
                round.push(Step::GoOnDeleting(Subject::Target(failover.from())));
            }
        }
        FailoverStage::Init {}
        | FailoverStage::Successful { .. }
        | FailoverStage::Errored { .. } => {}
    }
}

/// A node for a new target of the volume, or why there is none.
fn choose(
    round: &mut Round<'_, '_>,
    health: &VolumeHealth<'_>,
    preference: NodePreference<'_>,
) -> Result<model::NodeName, String> {
    if health.good().next().is_none() {
        return Err(String::from("it wants a target, but no copy in sync answers"));
    }
    let none = |none: Unplaceable| format!("it wants a target elsewhere: {none}");
    choose_target(round.view, &mut round.budget, health, preference).map_err(none)
}

/// Looks whether the target of a volume can stay as it is.
fn watch(round: &mut Round<'_, '_>, health: &VolumeHealth<'_>, target: &Target) {
    let view = round.view;
    let Some((cause, preference)) = reason_to_move(view, health, target) else {
        let online = view.node(&target.spec().node).is_some_and(NodeView::is_online);
        if online && target.status.is_none() {
            let (target, generation) = (*target.id(), target.generation());
            round.push(Step::OrderTarget { target, generation });
        }
        return;
    };
    let volume = *health.volume.id();
    let by_itself =
        matches!(cause, FailoverReason::NodeLapsed { .. } | FailoverReason::PathLost { .. });
    if by_itself && view.is_paused() {
        let reason = "its target would be moved, but failover is paused for maintenance";
        return round.block(Subject::Volume(volume), reason);
    }
    let seen = health.volume.generation();
    let from = *target.id();
    if target.spec().hosts.is_empty() {
        let force = view.node(&target.spec().node).is_none_or(|node| !node.is_online());
        return round.push(Step::Close { volume, seen, target: from, force });
    }
    match choose(round, health, preference) {
        Ok(node) => round.push(Step::BeginFailover { volume, seen, from, node, cause }),
        Err(reason) => round.block(Subject::Volume(volume), reason),
    }
}

fn reason_to_move<'a>(
    view: &View<'_>,
    health: &VolumeHealth<'_>,
    target: &'a Target,
) -> Option<(FailoverReason, NodePreference<'a>)> {
    let name = &target.spec().node;
    let node = view.node(name)?;
    let elsewhere = NodePreference::default();
    if node.is_absent() {
        return Some((FailoverReason::NodeLapsed { node: name.clone() }, elsewhere));
    }
    let state = target.status.as_ref().map(|status| status.state);
    if matches!(state, Some(TargetState::Shutdown { .. })) && node.is_online() {
        // It will never serve again, but its node may.
        return Some((
            FailoverReason::Asked {},
            NodePreference { asked: None, or_again: Some(*target.id()) },
        ));
    }
    if let Some(cause) = lost_path(view, health, target) {
        return Some((cause, elsewhere));
    }
    // The copy of a volume with one copy goes first, or the target would only be further from it.
    let can_follow = health.members.iter().any(Member::stays_good);
    let draining = node.node.spec().is_draining() && can_follow;
    draining.then(|| (FailoverReason::Drain { node: name.clone() }, elsewhere))
}

/// A path to this target that a host of it has lost.
fn lost_path(
    view: &View<'_>,
    health: &VolumeHealth<'_>,
    target: &Target,
) -> Option<FailoverReason> {
    let lost = view.facts.lost_paths.get(health.volume.id())?;
    let here = target.status.as_ref().map(|status| status.addresses.as_slice())?;
    let ours = lost
        .iter()
        .find(|(host, address)| target.spec().hosts.contains_key(*host) && here.contains(address));
    ours.map(|(host, address)| FailoverReason::PathLost { host: host.clone(), address: *address })
}
