//! What each copy of a volume is worth now, and whether it should stay where it is.

use alloc::vec::Vec;
use core::time::Duration;

use model::{
    ChildState, FaultReason, Lifecycle, NodeName, PoolState, Replica, ReplicaId, ReplicaState,
    Target, Volume, VolumeChange, VolumeSpec,
};

use crate::View;
use crate::place::{Need, PlacementRequest, Refusal, breaks_rule};
use crate::view::{NodeView, PoolView, allocated, is_going};

/// A volume and its copies, as they are now.
pub(crate) struct VolumeHealth<'a> {
    pub(crate) volume: &'a Volume,
    /// With the change under way.
    pub(crate) wanted: u8,
    pub(crate) target: Option<&'a Target>,
    /// Its copies that nobody wants gone.
    pub(crate) members: Vec<Member<'a>>,
}

/// One copy.
pub(crate) struct Member<'a> {
    pub(crate) replica: &'a Replica,
    /// The node of its pool; absent: nobody knows the pool.
    pub(crate) node: Option<&'a NodeName>,
    /// Whether it is recorded to hold every acknowledged write.
    pub(crate) believed: bool,
    pub(crate) condition: Condition,
    pub(crate) leave: Option<MoveReason>,
}

/// What a copy is worth now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// In sync, and it answers.
    Good,
    /// It is being brought in sync.
    Rebuilding,
    /// It answers but has missed writes.
    Stale {
        /// The target has it among its children.
        attached: bool,
        /// It was in sync once: only what it missed has to be copied.
        based: bool,
    },
    /// Its pool is full, and there will be room.
    Crowded,
    /// It is being made.
    Making,
    /// Somebody wants it left alone.
    Resting,
    /// It does not answer; it may come back.
    Away,
    /// It did not come back in time, or never will.
    Lost,
}

/// Why a copy should be somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoveReason {
    /// Its node is being emptied.
    Draining,
    /// Somebody asked for it.
    Asked,
    /// Its disk is not well.
    Suspect,
    /// Its pool is full, and it takes the most of it.
    Full,
    /// It breaks a rule of its volume.
    Misplaced(Refusal),
}

impl Member<'_> {
    pub(crate) fn id(&self) -> ReplicaId {
        *self.replica.id()
    }

    /// In sync, answering, and where it should be.
    pub(crate) fn stays_good(&self) -> bool {
        self.condition == Condition::Good && self.leave.is_none()
    }

    /// Whether it will be good if nothing more goes wrong.
    pub(crate) fn is_coming(&self) -> bool {
        use Condition::{Away, Crowded, Making, Rebuilding, Resting, Stale};
        self.leave.is_none()
            && matches!(
                self.condition,
                Rebuilding | Stale { .. } | Crowded | Making | Resting | Away
            )
    }
}

impl<'a> VolumeHealth<'a> {
    pub(crate) fn new(view: &View<'a>, volume: &'a Volume) -> VolumeHealth<'a> {
        let target = view.target(*volume.id());
        let wanted = match volume.lifecycle().operation().map(|operation| &operation.change) {
            Some(VolumeChange::SetReplicas { replicas }) => *replicas,
            _ => volume.spec().replicas,
        };
        let replicas = view.replicas(*volume.id());
        let members = replicas.iter().filter(|replica| !is_going(**replica));
        let members = members.map(|replica| member(view, volume, target, replica)).collect();
        let mut health = VolumeHealth { volume, wanted, target, members };
        health.find_leavers(view);
        health
    }

    pub(crate) fn spec(&self) -> &'a VolumeSpec {
        self.volume.spec()
    }

    /// Copies in sync that answer: what can be copied from, and served.
    pub(crate) fn good(&self) -> impl Iterator<Item = &Member<'a>> {
        self.members.iter().filter(|member| member.condition == Condition::Good)
    }

    /// How many copies are in sync, answer, and are where they should be.
    pub(crate) fn count_good(&self) -> usize {
        self.members.iter().filter(|member| member.stays_good()).count()
    }

    /// Whether nothing was ever written to it: then its copies are the same without being copied.
    pub(crate) fn is_virgin(&self, view: &View<'_>) -> bool {
        !view.facts.records.contains_key(self.volume.id()) && self.spec().source.is_none()
    }

    fn find_leavers(&mut self, view: &View<'_>) {
        let asked = view.facts.moves.get(self.volume.id()).map(|asked| asked.from);
        for member in &mut self.members {
            let draining = member.node.and_then(|name| view.node(name));
            let pool = view.pool(&member.replica.spec().pool);
            let suspect =
                pool.is_some_and(|pool| matches!(pool.state(), PoolState::Suspect { .. }));
            member.leave = if asked == Some(member.id()) {
                Some(MoveReason::Asked)
            } else if draining.is_some_and(|node| node.node.spec().is_draining()) {
                Some(MoveReason::Draining)
            } else if suspect && self.volume.spec().policy.self_heal {
                Some(MoveReason::Suspect)
            } else {
                member.leave.take()
            };
        }
        if self.volume.spec().policy.self_heal {
            self.find_misplaced(view);
        }
    }

    /// Copies that break a rule beside the others; the good ones are kept rather than the rest.
    fn find_misplaced(&mut self, view: &View<'_>) {
        let mut order: Vec<&mut Member<'a>> = self.members.iter_mut().collect();
        order.sort_by_key(|member| !member.stays_good());
        let mut kept: Vec<&PoolView<'_>> = Vec::new();
        for member in order {
            if member.leave.is_some() || member.condition == Condition::Lost {
                continue;
            }
            let Some(pool) = view.pool(&member.replica.spec().pool) else { continue };
            match breaks_rule(view, self.volume.spec(), &kept, pool) {
                Some(refusal) => member.leave = Some(MoveReason::Misplaced(refusal)),
                None => kept.push(pool),
            }
        }
    }

    /// What one more copy needs, beside those that stay.
    pub(crate) fn ask<'v>(&self, view: &'v View<'a>) -> PlacementRequest<'v, 'a>
    where
        'a: 'v,
    {
        let stays =
            |member: &&Member<'_>| member.leave.is_none() && member.condition != Condition::Lost;
        let staying = self.members.iter().filter(stays);
        PlacementRequest {
            volume: *self.volume.id(),
            spec: self.spec(),
            beside: staying.filter_map(|member| view.pool(&member.replica.spec().pool)).collect(),
            taken: self.members.iter().map(|member| &member.replica.spec().pool).collect(),
            need: Need::of_more(view, self.spec(), *self.volume.id()),
            content: None,
            most_fill: None,
        }
    }
}

fn member<'a>(
    view: &View<'a>,
    volume: &Volume,
    target: Option<&Target>,
    replica: &'a Replica,
) -> Member<'a> {
    let believed = view.facts.is_in_sync(replica);
    let pool = view.facts.pools.get(&replica.spec().pool);
    let mut member = Member {
        replica,
        node: pool.map(|pool| &pool.spec().node),
        believed,
        condition: Condition::Away,
        leave: None,
    };
    member.condition = condition(view, volume, target, &mut member);
    member
}

fn condition(
    view: &View<'_>,
    volume: &Volume,
    target: Option<&Target>,
    member: &mut Member<'_>,
) -> Condition {
    let replica = member.replica;
    if matches!(replica.lifecycle(), Lifecycle::Creating {}) {
        return Condition::Making;
    }
    let spec = target.and_then(|target| target.spec().child(*replica.id()));
    if spec.is_some_and(|child| child.offline) {
        return Condition::Resting;
    }
    let status = target.and_then(|target| target.status.as_ref());
    let serving = status.filter(|status| status.state.serves());
    let child =
        serving.map(|status| status.children.iter().find(|child| child.replica == *replica.id()));
    let answers = view.answers(replica);
    let stale = Condition::Stale { attached: spec.is_some(), based: was_in_sync(replica) };
    let condition = match child.map(|child| child.map(|child| child.state)) {
        // The target sees for itself, whatever is heard of the node.
        Some(Some(ChildState::InSync)) if member.believed => Condition::Good,
        Some(Some(ChildState::InSync | ChildState::Rebuilding)) => Condition::Rebuilding,
        Some(Some(ChildState::Faulted { reason: FaultReason::NoSpace })) if answers => {
            crowded(view, member)
        }
        Some(Some(ChildState::Faulted { reason })) if !reason.may_return() => Condition::Lost,
        Some(Some(ChildState::Offline)) => Condition::Resting,
        None if answers && member.believed => Condition::Good,
        Some(_) | None if answers => stale,
        Some(_) | None => Condition::Away,
    };
    match condition {
        Condition::Stale { .. } if has_failed_too_often(view, replica) => Condition::Lost,
        Condition::Away if is_given_up(view, volume, member) => Condition::Lost,
        condition => condition,
    }
}

/// In a full pool the copy that takes the most leaves; the others are brought in sync again where
/// they are, once there is room for what they lack.
fn crowded(view: &View<'_>, member: &mut Member<'_>) -> Condition {
    let replica = member.replica;
    let Some(pool) = view.pool(&replica.spec().pool) else { return Condition::Away };
    if pool.free() > view.settings.watermark {
        // What it lacks is counted as used already.
        return Condition::Stale { attached: true, based: was_in_sync(replica) };
    }
    if pool.largest_full == Some((allocated(replica), *replica.id())) {
        member.leave = Some(MoveReason::Full);
    }
    Condition::Crowded
}

/// Whether the copy's own label says that it was in sync once.
fn was_in_sync(replica: &Replica) -> bool {
    let label = replica.status.as_ref().and_then(|status| status.label.as_ref());
    label.is_some_and(|label| label.set.in_sync().contains(replica.id()))
}

fn has_failed_too_often(view: &View<'_>, replica: &Replica) -> bool {
    let failed = view.facts.failed_rebuilds.get(replica.id()).copied().unwrap_or(0);
    failed >= view.settings.rebuild_attempts
}

/// Whether a copy that does not answer is waited for no longer.
fn is_given_up(view: &View<'_>, volume: &Volume, member: &Member<'_>) -> bool {
    let replica = member.replica;
    let node = view.node_of(&replica.spec().pool);
    // Doubt is no reason to move anything.
    if node.is_some_and(|node| !node.is_online() && !node.is_absent()) {
        return false;
    }
    let broken = replica
        .status
        .as_ref()
        .is_some_and(|status| matches!(status.state, ReplicaState::Faulted { .. }));
    let pool = view.pool(&replica.spec().pool);
    let dead = pool.is_none_or(|pool| matches!(pool.state(), PoolState::Faulted { .. }));
    if node.is_some_and(NodeView::is_online) && (broken || dead) {
        return true;
    }
    let policy = volume.spec().policy;
    let wait = policy.replace_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let wait = wait.unwrap_or(view.settings.replace_after);
    let since = view.facts.missing.get(replica.id());
    since.is_some_and(|since| view.now.since(*since) >= wait)
}
