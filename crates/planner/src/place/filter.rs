//! What speaks against a pool, whatever its room.

use model::{LabelKey, LabelRules, Labels, NodeName, PoolState, Topology, VolumeSpec, Zones};

use super::{PlacementRequest, Refusal};
use crate::view::{NodeView, PoolView, exists};
use crate::{Budget, View};

/// Whether a pool takes anything new.
pub(crate) fn can_hold(view: &View<'_>, pool: &PoolView<'_>) -> Result<(), Refusal> {
    let spec = pool.pool.spec();
    takes_new(view, &spec.node)?;
    if !exists(pool.pool) {
        return Err(Refusal::NotReady(pool.pool.lifecycle().name()));
    }
    if spec.exported {
        return Err(Refusal::Exported);
    }
    match pool.state() {
        PoolState::Online => {}
        PoolState::Suspect { .. } => return Err(Refusal::NotWell("suspect: a disk is not well")),
        PoolState::Faulted { .. } => return Err(Refusal::NotWell("faulted")),
        PoolState::Offline => return Err(Refusal::NotWell("offline")),
        PoolState::Unknown => return Err(Refusal::NotWell("not seen yet")),
    }
    if spec.is_cordoned() { Err(Refusal::Cordoned) } else { Ok(()) }
}

/// Whether a node takes anything new.
pub(crate) fn takes_new<'a, 'v>(
    view: &'v View<'a>,
    name: &NodeName,
) -> Result<&'v NodeView<'a>, Refusal> {
    let Some(node) = view.node(name) else { return Err(Refusal::NodeNotKnown(name.clone())) };
    if !node.is_online() {
        return Err(Refusal::NodeAway(name.clone()));
    }
    let spec = node.node.spec();
    if spec.is_draining() {
        return Err(Refusal::NodeDraining(name.clone()));
    }
    if spec.is_cordoned() { Err(Refusal::NodeCordoned(name.clone())) } else { Ok(node) }
}

/// The first rule of the volume that a copy in this pool would break, beside the others. These
/// rules hold for life: a copy that breaks one is moved.
pub(crate) fn breaks_rule(
    view: &View<'_>,
    spec: &VolumeSpec,
    beside: &[&PoolView<'_>],
    pool: &PoolView<'_>,
) -> Option<Refusal> {
    let name = &pool.pool.spec().node;
    if beside.iter().any(|other| other.pool.spec().node == *name) {
        return Some(Refusal::HasCopy(name.clone()));
    }
    let topology = &spec.topology;
    if *topology == Topology::default() {
        return None;
    }
    let node = view.node(name)?;
    if !topology.allowed_nodes.is_empty() && !topology.allowed_nodes.contains(name) {
        return Some(Refusal::NodeNotAllowed(name.clone()));
    }
    let labels = &node.node.spec().labels;
    if !topology.nodes.admits(labels) {
        return Some(Refusal::NodeLabels(name.clone()));
    }
    if !topology.pools.admits(&pool.pool.spec().labels) {
        return Some(Refusal::Labels);
    }
    let node_labels = |pool: &&PoolView<'_>| {
        view.node(&pool.pool.spec().node).map(|node| &node.node.spec().labels)
    };
    beside
        .iter()
        .find_map(|other| {
            let of_node =
                node_labels(other).and_then(|other| clash(&topology.nodes, labels, other));
            let of_pool =
                || clash(&topology.pools, &pool.pool.spec().labels, &other.pool.spec().labels);
            of_node.or_else(of_pool)
        })
        .or_else(|| zone_clash(view, topology, beside, node))
}

/// Two things chosen together that break a rule on labels.
fn clash(rules: &LabelRules, one: &Labels, other: &Labels) -> Option<Refusal> {
    let value = |key: &LabelKey| one.get(key).filter(|value| other.get(key) == Some(*value));
    let spread = rules.spread.iter().find_map(|key| value(key).map(|value| (key, value)));
    if let Some((key, value)) = spread {
        return Some(Refusal::NotSpread { key: key.clone(), value: value.clone() });
    }
    let differs = rules.same_as.iter().find(|key| one.get(*key) != other.get(*key));
    differs.map(|key| Refusal::NotTheSame(key.clone()))
}

fn zone_clash(
    view: &View<'_>,
    topology: &Topology,
    beside: &[&PoolView<'_>],
    node: &NodeView<'_>,
) -> Option<Refusal> {
    if topology.zones != Zones::Require {
        return None;
    }
    let Some(zone) = node.node.spec().zone() else {
        return Some(Refusal::NoZone(node.node.id().clone()));
    };
    let same = |pool: &&&PoolView<'_>| zone_of(view, pool) == Some(zone);
    beside.iter().find(same).map(|_| Refusal::SameZone(zone.clone()))
}

/// The zone of the node of a pool.
pub(crate) fn zone_of<'a>(view: &View<'a>, pool: &PoolView<'_>) -> Option<&'a model::LabelValue> {
    view.node(&pool.pool.spec().node).and_then(|node| node.node.spec().zone())
}

/// Volumes with one copy each that belong together do not share a node: a node that fails would
/// take them all.
pub(crate) fn group_is_apart(
    view: &View<'_>,
    budget: &Budget,
    ask: &PlacementRequest<'_, '_>,
    pool: &PoolView<'_>,
) -> Result<(), Refusal> {
    let Some(group) = ask.spec.affinity_group.as_ref().filter(|_| ask.spec.replicas == 1) else {
        return Ok(());
    };
    let node = &pool.pool.spec().node;
    let here = view.group(group).and_then(|group| group.replicas.get(node)).copied().unwrap_or(0);
    let own = view.replicas(ask.volume).iter();
    let own = own.filter(|replica| {
        view.pool(&replica.spec().pool).is_some_and(|own| own.pool.spec().node == *node)
    });
    let own = u32::try_from(own.count()).unwrap_or(u32::MAX);
    if here > own || budget.group_replicas(group, node) > 0 {
        return Err(Refusal::HasGroup(node.clone()));
    }
    Ok(())
}
