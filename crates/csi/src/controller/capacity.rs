//! How much room there is for a class: what a volume could really get.

use std::collections::BTreeMap;

use api::Page;
use api::rest::{Control, NodeQuery, PoolQuery};
use model::{Liveness, Node, NodeName, Pool, PoolState, Size};
use tonic::Status;

use super::Controller;
use super::volumes::{signed, sized};
use crate::parameters::{self, Class};
use crate::proto::{GetCapacityRequest, GetCapacityResponse};
use crate::status::status;
use crate::topology;

impl<C: Control> Controller<C> {
    /// Schedulers choose nodes by this, so it is what is free and not what there is. Each copy goes
    /// to another node.
    pub(super) async fn get_capacity(
        &self,
        request: GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Status> {
        let class = parameters::class(&request.parameters)?;
        let asked = request.accessible_topology.as_ref();
        let near = asked.map(topology::node).transpose()?.flatten();
        let nodes = self.all_nodes().await?;
        let pools = self.all_pools().await?;
        let room = room(&class, near.as_ref(), &nodes, &pools);
        Ok(GetCapacityResponse {
            available_capacity: signed(room.total),
            maximum_volume_size: Some(signed(room.largest)),
            minimum_volume_size: Some(signed(model::VolumeSpec::LEAST_SIZE)),
        })
    }

    async fn all_nodes(&self) -> Result<BTreeMap<NodeName, Node>, Status> {
        let mut all = BTreeMap::new();
        let mut query = NodeQuery::default();
        loop {
            let Page { items, after } = self.control.nodes(query).await.map_err(status)?;
            all.extend(items.into_iter().map(|node| (node.id().clone(), node)));
            if after.is_none() {
                return Ok(all);
            }
            query = NodeQuery { after, ..NodeQuery::default() };
        }
    }

    async fn all_pools(&self) -> Result<Vec<Pool>, Status> {
        let mut all = Vec::new();
        let mut query = PoolQuery::default();
        loop {
            let Page { items, after } = self.control.pools(query).await.map_err(status)?;
            all.extend(items);
            if after.is_none() {
                return Ok(all);
            }
            query = PoolQuery { after, ..PoolQuery::default() };
        }
    }
}

/// Room for volumes of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// For all that could be made.
    total: Size,
    /// For the largest one.
    largest: Size,
}

fn room(
    class: &Class,
    near: Option<&NodeName>,
    nodes: &BTreeMap<NodeName, Node>,
    pools: &[Pool],
) -> Room {
    let copies = usize::from(class.replicas.unwrap_or(1));
    let mut by_node: BTreeMap<&NodeName, (u64, u64)> = BTreeMap::new();
    for pool in pools {
        let Some(free) = free(class, nodes, pool) else { continue };
        let (sum, best) = by_node.entry(&pool.spec().node).or_default();
        *sum = sum.saturating_add(free);
        *best = free.max(*best);
    }
    // A volume that is asked for near a node has a copy there, if that node has any room.
    let first = near.and_then(|near| by_node.get(near)).map(|(_, best)| *best);
    if near.is_some() && first.is_none() {
        return Room { total: Size::default(), largest: Size::default() };
    }
    let mut best: Vec<u64> = by_node.values().map(|(_, best)| *best).collect();
    best.sort_unstable_by(|a, b| b.cmp(a));
    let largest = best.get(copies.saturating_sub(1)).copied().unwrap_or(0);
    let largest = first.map_or(largest, |first| largest.min(first));
    let sums: Vec<u64> = by_node.values().map(|(sum, _)| *sum).collect();
    let total = together(&sums, copies);
    let total = near.and_then(|near| by_node.get(near)).map_or(total, |(sum, _)| total.min(*sum));
    Room { total: sized(total), largest: sized(largest) }
}

/// What a pool has free for a class; nothing, if the class may not use it.
fn free(class: &Class, nodes: &BTreeMap<NodeName, Node>, pool: &Pool) -> Option<u64> {
    let node = nodes.get(&pool.spec().node)?;
    let topology = &class.topology;
    let is_allowed =
        topology.allowed_nodes.is_empty() || topology.allowed_nodes.contains(node.id());
    let is_open = node.spec().cordons.is_empty() && pool.spec().cordons.is_empty();
    let is_online = node.status.as_ref().is_some_and(|it| it.liveness == Liveness::Online);
    let status = pool.status.as_ref().filter(|status| status.state == PoolState::Online)?;
    let admits =
        topology.nodes.admits(&node.spec().labels) && topology.pools.admits(&pool.spec().labels);
    let is_thin = class.thin.unwrap_or(true);
    let taken = if is_thin { status.used } else { status.used.max(status.committed) };
    let free = status.capacity.minus(taken).bytes().0;
    (is_allowed && is_open && is_online && admits).then_some(free)
}

/// The most that can be made of so much free on each node, if each byte goes to so many of them:
/// the largest `t` for which the nodes, each with `t` at most, hold `copies × t`.
fn together(free: &[u64], copies: usize) -> u64 {
    let copies = u128::try_from(copies.max(1)).unwrap_or(u128::MAX);
    let all: u128 = free.iter().map(|free| u128::from(*free)).sum();
    let fits = |total: u64| {
        let held: u128 = free.iter().map(|free| u128::from(*free.min(&total))).sum();
        held >= copies.saturating_mul(u128::from(total))
    };
    let (mut low, mut high) = (0, u64::try_from(all / copies).unwrap_or(u64::MAX));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_copy_needs_another_node() {
        assert_eq!(together(&[100, 100, 100], 3), 100);
        assert_eq!(together(&[100, 100, 100], 2), 150);
        assert_eq!(together(&[100, 100, 100], 1), 300);
        assert_eq!(together(&[1000, 10], 2), 10);
        assert_eq!(together(&[1000, 10, 10], 2), 20);
        assert_eq!(together(&[5], 2), 0);
        assert_eq!(together(&[], 1), 0);
    }
}
