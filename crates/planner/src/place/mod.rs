//! Where new copies and targets go: filters, then one score.
//!
//! A place is refused by the first filter that objects, with the reason that people are shown. Of
//! those left the one with the smallest score is taken; scores differ by name at the latest, so a
//! decision depends on nothing but what is known.

mod filter;
mod refusal;
mod score;
mod space;
mod target;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use model::{PoolName, Size, VolumeId, VolumeSpec};

pub(crate) use filter::{breaks_rule, can_hold};
pub use refusal::{Refusal, Unplaceable};
pub(crate) use score::Score;
pub(crate) use space::{Need, fits};
pub use target::place_target;
pub(crate) use target::{NodePreference, choose as choose_target};

use crate::view::PoolView;
use crate::{Budget, View};

/// What a copy is placed for.
pub(crate) struct PlacementRequest<'v, 'a> {
    pub(crate) volume: VolumeId,
    pub(crate) spec: &'v VolumeSpec,
    /// The pools of the copies that stay.
    pub(crate) beside: Vec<&'v PoolView<'a>>,
    /// The pools of all its copies.
    pub(crate) taken: Vec<&'v PoolName>,
    pub(crate) need: Need,
    /// Where the content lies that the copy begins with: there nothing has to be copied.
    pub(crate) content: Option<&'v BTreeSet<PoolName>>,
    /// How full the pool may become, in hundredths; absent: as full as it goes.
    pub(crate) most_fill: Option<u32>,
}

impl PlacementRequest<'_, '_> {
    /// The room that a copy takes in this pool.
    pub(crate) fn need_in(&self, pool: &PoolName) -> Need {
        if self.content.is_some_and(|pools| pools.contains(pool)) && self.spec.thin {
            return Need { bytes: Size::ZERO, ..self.need };
        }
        self.need
    }
}

/// The best pool for a copy of those to which `objection` has none.
pub(crate) fn find<'v, 'a>(
    view: &'v View<'a>,
    budget: &mut Budget,
    ask: &PlacementRequest<'_, '_>,
    objection: impl Fn(&PoolView<'_>) -> Option<Refusal>,
) -> Result<&'v PoolView<'a>, Unplaceable> {
    let mut best: Option<(Score<'_>, &PoolView<'_>)> = None;
    let mut refused = Vec::new();
    for pool in view.pools.values() {
        budget.looked_at += 1;
        let objection = objection(pool).map_or(Ok(()), Err);
        match objection.and_then(|()| admit(view, budget, ask, pool)) {
            Ok(()) => {
                let score = Score::new(view, budget, ask, pool);
                if best.as_ref().is_none_or(|(best, _)| score < *best) {
                    best = Some((score, pool));
                }
            }
            Err(refusal) => refused.push((pool.pool.id(), refusal)),
        }
    }
    best.map(|(_, pool)| pool).ok_or_else(|| Unplaceable::of_pools(refused))
}

/// Notes in the budget that the copy goes there.
pub(crate) fn take(budget: &mut Budget, ask: &PlacementRequest<'_, '_>, pool: &PoolView<'_>) {
    let need = ask.need_in(pool.pool.id());
    budget.take_space(pool.pool.id(), need.bytes, need.committed);
    if let Some(group) = &ask.spec.affinity_group {
        budget.take_group(group, &pool.pool.spec().node);
    }
}

/// Whether a copy may go there, with everything that speaks against it in order.
pub(crate) fn admit(
    view: &View<'_>,
    budget: &Budget,
    ask: &PlacementRequest<'_, '_>,
    pool: &PoolView<'_>,
) -> Result<(), Refusal> {
    can_hold(view, pool)?;
    if ask.taken.contains(&pool.pool.id()) {
        return Err(Refusal::SamePool);
    }
    breaks_rule(view, ask.spec, &ask.beside, pool).map_or(Ok(()), Err)?;
    filter::group_is_apart(view, budget, ask, pool)?;
    let need = ask.need_in(pool.pool.id());
    fits(view, budget, pool, need)?;
    ask.most_fill.map_or(Ok(()), |most| space::stays_below(budget, pool, (need, most)))
}
