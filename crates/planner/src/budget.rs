//! What one round of planning has already given away: space, slots for rebuilds, places.

use alloc::collections::BTreeMap;

use model::{AffinityGroup, NodeName, PoolName, Size};

use crate::View;

/// What the steps decided so far will take. Each decision of a round is made with those before it
/// in mind.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    pools: BTreeMap<PoolName, PoolBudget>,
    rebuilds: u32,
    rebuilds_by_node: BTreeMap<NodeName, u32>,
    targets: BTreeMap<NodeName, u32>,
    scrubs: BTreeMap<NodeName, u32>,
    group_replicas: BTreeMap<(AffinityGroup, NodeName), u32>,
    /// How many places were looked at.
    pub(crate) looked_at: u64,
}

/// What is taken in one pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolBudget {
    pub(crate) bytes: Size,
    pub(crate) committed: Size,
    pub(crate) replicas: u32,
}

impl Budget {
    /// A round in which nothing is decided yet.
    pub fn new() -> Budget {
        Budget::default()
    }

    pub(crate) fn taken(&self, pool: &PoolName) -> PoolBudget {
        self.pools.get(pool).copied().unwrap_or_default()
    }

    /// A copy goes there and will take this much of its size.
    pub(crate) fn take_space(&mut self, pool: &PoolName, bytes: Size, committed: Size) {
        let taken = self.pools.entry(pool.clone()).or_default();
        taken.bytes = taken.bytes.plus(bytes);
        taken.committed = taken.committed.plus(committed);
        taken.replicas += 1;
    }

    /// Copies of the group's volumes that this round puts on a node.
    pub(crate) fn group_replicas(&self, group: &AffinityGroup, node: &NodeName) -> u32 {
        if self.group_replicas.is_empty() {
            return 0;
        }
        self.group_replicas.get(&(group.clone(), node.clone())).copied().unwrap_or(0)
    }

    /// A copy of one of the group's volumes goes there.
    pub(crate) fn take_group(&mut self, group: &AffinityGroup, node: &NodeName) {
        *self.group_replicas.entry((group.clone(), node.clone())).or_default() += 1;
    }

    /// Targets that this round puts on a node.
    pub(crate) fn targets(&self, node: &NodeName) -> u32 {
        self.targets.get(node).copied().unwrap_or(0)
    }

    /// A target goes there.
    pub(crate) fn take_target(&mut self, node: &NodeName) {
        *self.targets.entry(node.clone()).or_default() += 1;
    }

    /// Whether the cluster has a slot for a rebuild left.
    pub(crate) fn has_rebuild(&self, view: &View<'_>) -> bool {
        view.rebuilds.saturating_add(self.rebuilds) < view.settings.rebuilds
    }

    /// Takes a slot for a rebuild between these nodes, if one is left.
    pub(crate) fn take_rebuild(&mut self, view: &View<'_>, nodes: [&NodeName; 2]) -> bool {
        if !self.has_rebuild(view) {
            return false;
        }
        let [from, to] = nodes;
        let nodes = [Some(from), (to != from).then_some(to)];
        let full = |name: &&NodeName| {
            let running = view.node(name).map_or(0, |node| node.rebuilds);
            let begun = self.rebuilds_by_node.get(*name).copied().unwrap_or(0);
            running.saturating_add(begun) >= view.settings.rebuilds_per_node
        };
        if nodes.iter().flatten().any(full) {
            return false;
        }
        self.rebuilds += 1;
        for name in nodes.into_iter().flatten() {
            *self.rebuilds_by_node.entry(name.clone()).or_default() += 1;
        }
        true
    }

    /// Takes a slot for a scrub on a node that has so many running, if one is left.
    pub(crate) fn take_scrub(&mut self, view: &View<'_>, node: &NodeName, running: u32) -> bool {
        let begun = self.scrubs.entry(node.clone()).or_default();
        let left = running.saturating_add(*begun) < view.settings.scrubs_per_node;
        *begun += u32::from(left);
        left
    }
}
