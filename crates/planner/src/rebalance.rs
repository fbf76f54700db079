//! Moving copies from full pools to empty ones, when nothing else is to be done.

use core::time::Duration;

use model::{PoolState, Subject, Volume};

use crate::member::{Condition, VolumeHealth};
use crate::place::{Refusal, find, take};
use crate::plan::Round;
use crate::view::{PoolView, allocated, exists};
use crate::{Step, View};

/// How long after a move the next one waits: until then pools may show their use as it was.
const SETTLE: Duration = Duration::from_secs(30);

/// Moves at most one copy a round, off the fullest pool, if that brings pools closer together.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    let view = round.view;
    let Some(above) = view.settings.rebalance_above else { return };
    let is_fresh = view.facts.moved_at.is_some_and(|at| view.now.since(at) < SETTLE);
    if !round.is_quiet() || round.brake.is_some() || view.rebuilds > 0 || is_fresh {
        return;
    }
    let fullest = view.pools.values().filter(|pool| *pool.state() == PoolState::Online);
    let Some(fullest) = fullest.max_by_key(|pool| (fill(pool), pool.pool.id())) else { return };
    let replicas = view.facts.replicas.values();
    for replica in replicas.filter(|replica| replica.spec().pool == *fullest.pool.id()) {
        let volume = view.facts.volumes.get(&replica.spec().volume);
        let Some(volume) = volume.filter(|volume| is_quiet(view, volume)) else { continue };
        let health = VolumeHealth::new(view, volume);
        if health.members.iter().any(|member| !member.stays_good()) {
            continue;
        }
        let mut ask = health.ask(view);
        ask.beside.retain(|pool| pool.pool.id() != fullest.pool.id());
        let after = fullest.used.minus(allocated(replica)).percent_of(fullest.capacity);
        let closer = |pool: &PoolView<'_>| {
            let gap = fill(fullest).saturating_sub(fill(pool));
            let then = pool.used.plus(ask.need.bytes).percent_of(pool.capacity);
            (gap <= above || then > after).then_some(Refusal::NotWell("no emptier"))
        };
        let Ok(pool) = find(view, &mut round.budget, &ask, closer) else { continue };
        take(&mut round.budget, &ask, pool);
        let (volume, seen) = (*volume.id(), volume.generation());
        let (from, pool) = (*replica.id(), pool.pool.id().clone());
        return round.push(Step::MoveReplica { volume, seen, from, pool });
    }
}

fn fill(pool: &PoolView<'_>) -> u32 {
    pool.used.percent_of(pool.capacity)
}

fn is_quiet(view: &View<'_>, volume: &Volume) -> bool {
    exists(volume)
        && volume.lifecycle().is_idle()
        && !view.facts.moves.contains_key(volume.id())
        && !view.is_busy(&Subject::Volume(*volume.id()))
        && VolumeHealth::new(view, volume).good().all(|member| member.condition == Condition::Good)
}
