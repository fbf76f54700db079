//! Bringing volumes to the copies they should have.
//!
//! For each volume, the first of these that applies:
//! 1. It has copies enough without one of them: the worst goes.
//! 2. A copy that answers has missed writes: it is brought in sync, by a target that is opened for
//!    that if nobody uses the volume.
//! 3. Copies are missing, also for those that should be elsewhere: one is added.
//! 4. Its copies are to be compared or repaired, and it has no target: one is opened.
//! 5. A target was opened for one of these and nothing is left to do: it is closed.
//!
//! While many nodes are away at once lost copies are not replaced (`brake.rs`).
//!
//! A lost copy stays a member until another has taken its place, since it may still come back.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use model::{PoolName, RebuildKind, RebuildPlan, ReplicaId, Subject, Target, Volume, VolumeChange};

use crate::member::{Condition, Member, VolumeHealth};
use crate::place::{NodePreference, Unplaceable, choose_target, find, take};
use crate::plan::Round;
use crate::view::exists;
use crate::{Step, View, brake};

/// Why lost copies are not replaced during maintenance.
const PAUSED: &str = "healing is paused for maintenance";

/// Plans for every volume, those with the fewest copies first, and what is there already before
/// anything new.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    let view = round.view;
    let moving = crate::failover::moving(view);
    let mut cares = Vec::new();
    for volume in view.facts.volumes.values() {
        let subject = Subject::Volume(*volume.id());
        if !is_ours_to_plan(volume) || moving.contains(volume.id()) || !round.is_open(&subject) {
            continue;
        }
        let health = VolumeHealth::new(view, volume);
        match want(view, &health) {
            Ok(Some(want)) => cares.push((want.phase(), health.good().count(), health, want)),
            Ok(None) => {}
            Err(reason) => round.block(subject, reason),
        }
    }
    cares.sort_by_key(|(phase, good, health, _)| (*phase, *good, *health.volume.id()));
    for (_, _, health, want) in &cares {
        act(round, health, want);
    }
}

/// Whether nobody else is changing the copies of the volume.
fn is_ours_to_plan(volume: &Volume) -> bool {
    let change = volume.lifecycle().operation().map(|operation| &operation.change);
    exists(volume) && matches!(change, None | Some(VolumeChange::SetReplicas { .. }))
}

/// What one volume wants next.
enum HealAction {
    /// The change under way has reached its end.
    Finish,
    Remove(ReplicaId),
    Attach(ReplicaId),
    Rebuild(ReplicaId, RebuildKind),
    OpenToHeal,
    Add,
    /// Where somebody asked for it.
    AddTo(PoolName),
    Close,
}

impl HealAction {
    /// What frees comes before what takes, and what exists before what is new.
    fn phase(&self) -> u8 {
        match self {
            HealAction::Finish | HealAction::Remove(_) | HealAction::Close => 0,
            HealAction::Rebuild(..) => 1,
            HealAction::Attach(_) | HealAction::OpenToHeal => 2,
            HealAction::Add | HealAction::AddTo(_) => 3,
        }
    }
}

/// What a volume wants next, or why it cannot have it.
fn want(view: &View<'_>, health: &VolumeHealth<'_>) -> Result<Option<HealAction>, String> {
    if is_reached(view, health) {
        return Ok(Some(HealAction::Finish));
    }
    if let Some(replica) = removable(view, health) {
        return Ok(Some(HealAction::Remove(replica)));
    }
    let deficit = deficit(health);
    let stale = health.members.iter().find(|member| {
        member.leave.is_none() && matches!(member.condition, Condition::Stale { .. })
    });
    if (stale.is_some() || deficit > 0) && health.good().next().is_none() {
        let wanted = if stale.is_some() { "to be brought in sync" } else { "another copy" };
        return Err(format!(
            "it wants {wanted}, but no copy in sync answers, and nothing else may be copied; \
             bring back one of: {}",
            believed(health)
        ));
    }
    if let Some(member) = stale {
        return Ok(revive(health, member));
    }
    if deficit > 0 {
        return Ok(Some(asked_place(view, health).map_or(HealAction::Add, HealAction::AddTo)));
    }
    let idle = health.target.is_some_and(|target| target.spec().hosts.is_empty());
    let working = health.members.iter().any(|member| member.condition == Condition::Rebuilding);
    let attended = view.facts.attended.get(health.volume.id());
    let attended = attended.is_some_and(|until| *until > view.now);
    if attended && health.target.is_none() && health.good().next().is_some() {
        return Ok(Some(HealAction::OpenToHeal));
    }
    Ok((idle && !working && !attended).then_some(HealAction::Close))
}

/// Whether the change or the move under way has nothing left to do.
fn is_reached(view: &View<'_>, health: &VolumeHealth<'_>) -> bool {
    let members = &health.members;
    let change = health.volume.lifecycle().operation().map(|operation| &operation.change);
    if let Some(VolumeChange::SetReplicas { replicas }) = change {
        return members.len() == usize::from(*replicas);
    }
    let lacks = |id: ReplicaId| members.iter().all(|member| member.id() != id);
    view.facts.moves.get(health.volume.id()).is_some_and(|asked| {
        let has_no_place = view.pool(&asked.pool).is_none() && lacks(asked.replica);
        lacks(asked.from) || has_no_place
    })
}

/// How many copies have to be added.
fn deficit(health: &VolumeHealth<'_>) -> usize {
    let heals = health.spec().policy.self_heal;
    let waited_for = |member: &&Member<'_>| {
        let lost = member.condition == Condition::Lost && member.leave.is_none();
        member.is_coming() || (lost && !heals)
    };
    let coming = health.members.iter().filter(waited_for).count();
    usize::from(health.wanted).saturating_sub(health.count_good() + coming)
}

/// The worst copy, if there are enough good ones without it.
fn removable(view: &View<'_>, health: &VolumeHealth<'_>) -> Option<ReplicaId> {
    let good = health.count_good();
    let wanted = usize::from(health.wanted.max(1));
    let spare = |member: &&Member<'_>| {
        let others = good - usize::from(member.stays_good());
        let touchable = !matches!(member.condition, Condition::Making | Condition::Resting);
        touchable && others >= wanted
    };
    let spares = health.members.iter().filter(spare);
    spares.min_by_key(|member| worth(view, health, member)).map(Member::id)
}

/// What a copy is worth: the least goes first. The order of the fields is the policy.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule of its own")]
struct RemovalRank {
    /// Whether it is in sync and where it should be.
    stays_good: bool,
    /// Whether it holds every acknowledged write.
    believed: bool,
    /// How far it is from holding it.
    condition: u8,
    /// Whether its node takes anything new.
    welcome: bool,
    /// Whether it is beside the target.
    local: bool,
    /// Copies of volumes of the same group on its node.
    group_shared: Reverse<u32>,
    /// How full its pool is.
    fill: Reverse<u32>,
    id: ReplicaId,
}

fn worth(view: &View<'_>, health: &VolumeHealth<'_>, member: &Member<'_>) -> RemovalRank {
    let pool = view.pool(&member.replica.spec().pool);
    let node = member.node.and_then(|name| view.node(name));
    let cordoned = node.is_none_or(|node| node.node.spec().is_cordoned())
        || pool.is_none_or(|pool| pool.pool.spec().is_cordoned());
    let group = health.spec().affinity_group.as_ref().and_then(|group| view.group(group));
    let shared = group.zip(member.node).and_then(|(group, node)| group.replicas.get(node));
    RemovalRank {
        stays_good: member.stays_good(),
        believed: member.believed,
        condition: match member.condition {
            Condition::Lost => 0,
            Condition::Away | Condition::Crowded => 1,
            Condition::Stale { .. } => 2,
            Condition::Rebuilding => 3,
            Condition::Good | Condition::Making | Condition::Resting => 4,
        },
        welcome: !cordoned,
        local: health.target.is_some_and(|target| member.node == Some(&target.spec().node)),
        group_shared: Reverse(shared.copied().unwrap_or(0)),
        fill: Reverse(pool.map_or(0, |pool| pool.used.percent_of(pool.capacity))),
        id: member.id(),
    }
}

/// The next thing to do for a copy that answers and has missed writes.
fn revive(health: &VolumeHealth<'_>, member: &Member<'_>) -> Option<HealAction> {
    let Condition::Stale { attached, based } = member.condition else { return None };
    let Some(target) = health.target else { return Some(HealAction::OpenToHeal) };
    if !attached {
        return Some(HealAction::Attach(member.id()));
    }
    let extent = if based { RebuildKind::Partial } else { RebuildKind::Full };
    serves(target).then_some(HealAction::Rebuild(member.id(), extent))
}

fn serves(target: &Target) -> bool {
    target.status.as_ref().is_some_and(|status| status.state.serves())
}

/// Where a copy was asked for and is not yet.
fn asked_place(view: &View<'_>, health: &VolumeHealth<'_>) -> Option<PoolName> {
    let asked = view.facts.moves.get(health.volume.id())?;
    let is_there = health.members.iter().any(|member| member.id() == asked.replica);
    (!is_there).then(|| asked.pool.clone())
}

fn believed(health: &VolumeHealth<'_>) -> String {
    let believed = health.members.iter().filter(|member| member.believed);
    let names: Vec<_> = believed
        .map(|member| match member.node {
            Some(node) => format!("{} on node {node}", member.replica.spec().pool),
            None => format!("pool {}", member.replica.spec().pool),
        })
        .collect();
    if names.is_empty() { String::from("(none is known)") } else { names.join(", ") }
}

fn act(round: &mut Round<'_, '_>, health: &VolumeHealth<'_>, want: &HealAction) {
    let view = round.view;
    let volume = *health.volume.id();
    let subject = Subject::Volume(volume);
    let seen = health.volume.generation();
    let target = health.target;
    match want {
        HealAction::Finish => round.push(Step::Finish(subject)),
        HealAction::Remove(replica) => {
            round.push(Step::RemoveReplica { volume, seen, replica: *replica });
        }
        HealAction::Close => {
            let Some(target) = target else { return };
            round.push(Step::Close { volume, seen, target: *target.id(), force: false });
        }
        HealAction::Attach(replica) => {
            let Some(target) = target else { return };
            round.push(Step::Attach { volume, seen, target: *target.id(), replica: *replica });
        }
        HealAction::Rebuild(replica, extent) => {
            let Some(target) = target else { return };
            let to = health.members.iter().find(|member| member.id() == *replica);
            let Some(to) = to.and_then(|member| member.node) else { return };
            if round.budget.take_rebuild(view, [&target.spec().node, to]) {
                let sources = health.good().map(Member::id).collect::<BTreeSet<_>>();
                let (target, replica, extent) = (*target.id(), *replica, *extent);
                round.push(Step::Rebuild(RebuildPlan { volume, target, replica, sources, extent }));
            }
        }
        HealAction::OpenToHeal if view.is_paused() => {
            round.block(subject, format!("it wants a target to heal: {PAUSED}"));
        }
        HealAction::OpenToHeal => {
            match choose_target(view, &mut round.budget, health, NodePreference::default()) {
                Ok(node) if round.budget.take_rebuild(view, [&node, &node]) => {
                    round.push(Step::OpenToHeal { volume, seen, node });
                }
                Ok(_) => {}
                Err(none) => round.block(subject, format!("it wants a target to heal: {none}")),
            }
        }
        HealAction::Add => add(round, health, None),
        HealAction::AddTo(pool) => add(round, health, Some(pool)),
    }
}

fn add(round: &mut Round<'_, '_>, health: &VolumeHealth<'_>, asked: Option<&PoolName>) {
    let view = round.view;
    let volume = *health.volume.id();
    let mut ask = health.ask(view);
    if asked.is_none() && brake::concerns(view, health) && view.is_paused() {
        let reason = format!("it wants another copy: {PAUSED}");
        return round.block(Subject::Volume(volume), reason);
    }
    if asked.is_none() && brake::concerns(view, health) {
        if let Some(brake) = round.brake.as_mut().filter(|brake| brake.holds(health)) {
            brake.held += 1;
            let reason = format!("it wants another copy: {}", brake.reason);
            return round.block(Subject::Volume(volume), reason);
        }
        ask.most_fill = Some(view.settings.heal_fill);
    }
    if !health.is_virgin(view) && !round.budget.has_rebuild(view) {
        return;
    }
    let found = match asked {
        Some(pool) => view.pool(pool).ok_or_else(Unplaceable::default),
        None => find(view, &mut round.budget, &ask, |_| None),
    };
    let pool = match found {
        Ok(pool) => pool,
        Err(none) => {
            let reason = format!("it wants another copy: {none}");
            return round.block(Subject::Volume(volume), reason);
        }
    };
    let to = &pool.pool.spec().node;
    let from = health.target.map_or(to, |target| &target.spec().node);
    if health.is_virgin(view) || round.budget.take_rebuild(view, [from, to]) {
        take(&mut round.budget, &ask, pool);
        let (seen, pool) = (health.volume.generation(), pool.pool.id().clone());
        round.push(Step::AddReplica { volume, seen, pool });
    }
}
