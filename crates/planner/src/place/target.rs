//! Where the target of a volume goes.

use alloc::vec::Vec;

use model::{NodeName, TargetId, Volume};

use super::filter::takes_new;
use super::{Refusal, Unplaceable};
use crate::member::VolumeHealth;
use crate::{Budget, View};

/// How good a node is for a target: smaller is better, and the order of the fields is the policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score<'v> {
    /// It is where the target was that failed.
    again: bool,
    /// It is not the one that was asked for.
    not_asked_for: bool,
    /// Targets of volumes of the same group.
    group_shared: u32,
    /// Every read would cross the network.
    without_copy: bool,
    /// How many targets it has.
    targets: u32,
    /// The same decision each time.
    name: &'v NodeName,
}

/// What is wished of the node of a target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodePreference<'w> {
    /// Rather there.
    pub(crate) asked: Option<&'w NodeName>,
    /// The node of this target too, if no other will do.
    pub(crate) or_again: Option<TargetId>,
}

/// Where the target of a volume should go; rather to the node that is asked for, if it will do.
pub fn place_target(
    view: &View<'_>,
    volume: &Volume,
    asked: Option<&NodeName>,
) -> Result<NodeName, Unplaceable> {
    let health = VolumeHealth::new(view, volume);
    choose(view, &mut Budget::new(), &health, NodePreference { asked, or_again: None })
}

/// The best node for a target, taken in the budget.
pub(crate) fn choose(
    view: &View<'_>,
    budget: &mut Budget,
    health: &VolumeHealth<'_>,
    preference: NodePreference<'_>,
) -> Result<NodeName, Unplaceable> {
    let spec = health.spec();
    let group = spec.affinity_group.as_ref().and_then(|group| view.group(group));
    let pinned = pinned_to(view, health);
    let mut best: Option<Score<'_>> = None;
    let mut refused = Vec::new();
    for (name, node) in &view.nodes {
        budget.looked_at += 1;
        let again = match admit(view, health, name, preference.or_again) {
            Ok(_) if pinned.is_some_and(|pinned| pinned != *name) => {
                refused.push((*name, Refusal::NodeWithoutCopy((*name).clone())));
                continue;
            }
            Ok(again) => again,
            Err(refusal) => {
                refused.push((*name, refusal));
                continue;
            }
        };
        let shared = group.and_then(|group| group.targets.get(name)).copied();
        let score = Score {
            again,
            not_asked_for: preference.asked.is_some_and(|asked| asked != *name),
            group_shared: shared.unwrap_or(0),
            without_copy: !holds_copy(health, name),
            targets: node.targets.saturating_add(budget.targets(name)),
            name,
        };
        best = Some(best.map_or(score, |best| best.min(score)));
    }
    let Some(best) = best else { return Err(Unplaceable::of_nodes(refused)) };
    budget.take_target(best.name);
    Ok(best.name.clone())
}

/// Whether a target may go there, and whether that would be where one was.
fn admit(
    view: &View<'_>,
    health: &VolumeHealth<'_>,
    name: &NodeName,
    or_again: Option<TargetId>,
) -> Result<bool, Refusal> {
    takes_new(view, name)?;
    // An engine serves a volume once; one that was replaced may still have hosts.
    let targets = view.targets(*health.volume.id()).iter();
    let mut here = targets.filter(|target| target.spec().node == *name);
    match (here.next(), here.next()) {
        (None, _) => Ok(false),
        (Some(one), None) if or_again == Some(*one.id()) => Ok(true),
        _ => Err(Refusal::NodeHasTarget(name.clone())),
    }
}

/// The node of the only copy, if it will do: a node more on the way is one more that may fail.
fn pinned_to<'a>(view: &View<'_>, health: &VolumeHealth<'a>) -> Option<&'a NodeName> {
    let [only] = health.members.as_slice() else { return None };
    only.node.filter(|node| only.stays_good() && admit(view, health, node, None).is_ok())
}

fn holds_copy(health: &VolumeHealth<'_>, name: &NodeName) -> bool {
    health.good().any(|member| member.node == Some(name) && member.leave.is_none())
}
