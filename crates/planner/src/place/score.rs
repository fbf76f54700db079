//! Which of several good pools is the best.

use model::{PoolName, Zones};

use super::PlacementRequest;
use super::filter::zone_of;
use crate::view::PoolView;
use crate::{Budget, View};

/// How good a pool is for a copy: smaller is better, and the order of the fields is the policy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Score<'v> {
    /// The content would have to be copied there.
    without_content: bool,
    /// The volume does not prefer the node.
    not_preferred: bool,
    /// Copies of the volume in the same zone.
    zone_shared: u32,
    /// Copies of volumes of the same group on the node.
    group_shared: u32,
    /// How full it will be, in steps of ten hundredths: less than that is no reason.
    fill: u32,
    /// How much of it will be promised, in the same steps.
    promised: u32,
    /// How many copies it has.
    replicas: u32,
    /// The same decision each time.
    name: &'v PoolName,
}

impl<'v> Score<'v> {
    pub(crate) fn new(
        view: &View<'_>,
        budget: &Budget,
        ask: &PlacementRequest<'_, '_>,
        pool: &PoolView<'v>,
    ) -> Score<'v> {
        let name = pool.pool.id();
        let node = &pool.pool.spec().node;
        let (taken, need) = (budget.taken(name), ask.need_in(name));
        let used = pool.used.plus(taken.bytes).plus(need.bytes);
        let committed = pool.committed.plus(taken.committed).plus(need.committed);
        let preferred = &ask.spec.topology.preferred_nodes;
        Score {
            without_content: ask.content.is_some_and(|pools| !pools.contains(name)),
            not_preferred: !preferred.is_empty() && !preferred.contains(node),
            zone_shared: zone_shared(view, ask, pool),
            group_shared: group_shared(view, budget, ask, pool),
            fill: used.percent_of(pool.capacity) / 10,
            promised: committed.percent_of(pool.capacity) / 10,
            replicas: pool.replicas.saturating_add(taken.replicas),
            name,
        }
    }
}

fn zone_shared(view: &View<'_>, ask: &PlacementRequest<'_, '_>, pool: &PoolView<'_>) -> u32 {
    if ask.spec.topology.zones == Zones::Ignore {
        return 0;
    }
    let Some(zone) = zone_of(view, pool) else { return 0 };
    let same = ask.beside.iter().filter(|other| zone_of(view, other) == Some(zone));
    u32::try_from(same.count()).unwrap_or(u32::MAX)
}

fn group_shared(
    view: &View<'_>,
    budget: &Budget,
    ask: &PlacementRequest<'_, '_>,
    pool: &PoolView<'_>,
) -> u32 {
    let Some(group) = &ask.spec.affinity_group else { return 0 };
    let node = &pool.pool.spec().node;
    let here = view.group(group).and_then(|group| group.replicas.get(node)).copied().unwrap_or(0);
    here.saturating_add(budget.group_replicas(group, node))
}
