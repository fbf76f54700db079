//! Requests that place copies: new volumes, clones, restored snapshots, more copies, moved ones.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec::Vec;

use model::{
    PoolName, Problem, ProblemKind, ReplicaId, Size, Source, Topology, ValidationError, Volume,
    VolumeId, VolumeSpec, Zones,
};

use crate::member::{Condition, VolumeHealth};
use crate::place::{Need, PlacementRequest, Refusal, Score, Unplaceable, admit, find, fits, take};
use crate::view::{NodeView, PoolView, exists};
use crate::{Budget, View};

/// Where the copies of a new volume go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlaces {
    /// The pools of its copies, the best first. There may be one more than the volume wants: then
    /// it only brings the content in, and leaves once others have it.
    pub pools: Vec<PoolName>,
    /// Those of the pools where the content lies already. In the others copies begin empty, not in
    /// sync, and are rebuilt.
    pub with_content: BTreeSet<PoolName>,
}

/// Where the copies of a new volume go, taken in the budget; all of them, or none.
pub fn place_volume(
    view: &View<'_>,
    budget: &mut Budget,
    volume: VolumeId,
    spec: &VolumeSpec,
) -> Result<VolumePlaces, Problem> {
    let content = content(view, spec)?;
    let written = content.as_ref().map(|content| content.written);
    let need = Need::of_new(view, spec, written.unwrap_or(Size::ZERO));
    let pools = content.as_ref().map(|content| &content.pools);
    let (beside, taken, most_fill) = (Vec::new(), Vec::new(), None);
    let ask = PlacementRequest { volume, spec, beside, taken, need, content: pools, most_fill };
    let (mut pools, after) = place_all(view, budget, &ask)?;
    *budget = after;
    let Some(content) = content else {
        return Ok(VolumePlaces { pools, with_content: BTreeSet::new() });
    };
    let mut with_content: BTreeSet<_> =
        pools.iter().filter(|pool| content.pools.contains(*pool)).cloned().collect();
    if with_content.is_empty() {
        let seed = seed(view, budget, Need { bytes: Size::ZERO, ..need }, &content.pools)?;
        with_content.insert(seed.clone());
        pools.push(seed);
    }
    Ok(VolumePlaces { pools, with_content })
}

/// What a volume begins with, and where that lies.
struct Content {
    pools: BTreeSet<PoolName>,
    /// What a copy of it takes elsewhere.
    written: Size,
}

fn content(view: &View<'_>, spec: &VolumeSpec) -> Result<Option<Content>, Problem> {
    let facts = view.facts;
    match spec.source {
        None => Ok(None),
        Some(Source::Volume { volume }) => {
            let source = facts.volumes.get(&volume).filter(|volume| exists(*volume));
            let Some(source) = source else {
                let detail = format!("there is no volume {volume} to clone");
                return Err(Problem::new(ProblemKind::NotFound, detail));
            };
            large_enough(spec, source.spec().size)?;
            same_key(spec, source)?;
            let health = VolumeHealth::new(view, source);
            let pools: BTreeSet<_> =
                health.good().map(|member| member.replica.spec().pool.clone()).collect();
            if pools.is_empty() {
                let detail = format!("no copy in sync of volume {volume} answers");
                return Err(Problem::new(ProblemKind::NoHealthyReplica, detail));
            }
            Ok(Some(Content { pools, written: view.written(volume) }))
        }
        Some(Source::Snapshot { snapshot }) => {
            let source = facts.snapshots.get(&snapshot).filter(|snapshot| exists(*snapshot));
            let Some(status) = source.and_then(|snapshot| snapshot.status.as_ref()) else {
                let detail = format!("there is no snapshot {snapshot}, or it is not taken yet");
                return Err(Problem::new(ProblemKind::NotFound, detail));
            };
            large_enough(spec, status.size)?;
            // Of a volume that has gone the engine knows.
            let volume = source.and_then(|snapshot| facts.volumes.get(&snapshot.spec().volume));
            volume.map_or(Ok(()), |volume| same_key(spec, volume))?;
            let online = status.copies.iter().filter(|(pool, copy)| {
                copy.online && view.pool(pool).is_some_and(|pool| is_up(view, pool))
            });
            let pools: BTreeSet<_> = online.map(|(pool, _)| pool.clone()).collect();
            if pools.is_empty() {
                let detail = format!("no copy of snapshot {snapshot} answers");
                return Err(Problem::new(ProblemKind::NoHealthyReplica, detail));
            }
            let written = status.copies.values().map(|copy| copy.usage.allocated).max();
            Ok(Some(Content { pools, written: written.unwrap_or(Size::ZERO) }))
        }
    }
}

fn large_enough(spec: &VolumeSpec, size: Size) -> Result<(), Problem> {
    if spec.size >= size {
        return Ok(());
    }
    let detail = format!("the content has {size}; a volume that begins with it needs that much");
    Err(Problem::new(ProblemKind::OutOfRange, detail))
}

/// What begins with the content of a volume shares its data key: another key for it would be
/// another key for that volume too.
fn same_key(spec: &VolumeSpec, source: &Volume) -> Result<(), Problem> {
    let key = |spec: &VolumeSpec| spec.encryption.as_ref().map(|it| it.key.clone());
    let (asked, has) = (key(spec), key(source.spec()));
    if asked == has {
        return Ok(());
    }
    let remedy = match has {
        Some(key) => format!("name the key {key} of volume {}", source.id()),
        None => format!("leave it out: volume {} is not encrypted", source.id()),
    };
    let shown = asked.map_or_else(|| "left out".into(), |key| format!("key {key}"));
    Err(ValidationError::new("encryption", shown, remedy).into())
}

fn is_up(view: &View<'_>, pool: &PoolView<'_>) -> bool {
    pool.works() && view.node(&pool.pool.spec().node).is_some_and(NodeView::is_online)
}

/// A pool that has the content, for a copy that only brings it in: no rule of the volume counts,
/// since it leaves again.
fn seed(
    view: &View<'_>,
    budget: &mut Budget,
    need: Need,
    pools: &BTreeSet<PoolName>,
) -> Result<PoolName, Problem> {
    let mut refused = Vec::new();
    for name in pools {
        let Some(pool) = view.pool(name) else { continue };
        match fits(view, budget, pool, need) {
            Ok(()) => {
                budget.take_space(name, need.bytes, need.committed);
                return Ok(name.clone());
            }
            Err(refusal) => refused.push((name, refusal)),
        }
    }
    Err(Unplaceable::of_pools(refused).into())
}

/// How many first choices are tried before it is given up: each rules out another value of a label
/// that all copies must share.
const FIRST_CHOICES: usize = 64;

/// One place after another, each the best beside those before it. Where rules tie copies together
/// the first choice may leave no second one; then another is tried.
fn place_all<'v>(
    view: &'v View<'_>,
    budget: &Budget,
    ask: &PlacementRequest<'v, '_>,
) -> Result<(Vec<PoolName>, Budget), Problem> {
    let mut not_first: BTreeSet<PoolName> = BTreeSet::new();
    let mut failure = None;
    let PlacementRequest { volume, spec, need, content, most_fill, .. } = *ask;
    for _ in 0..FIRST_CHOICES {
        let mut budget = budget.clone();
        let mut beside: Vec<&PoolView<'_>> = Vec::new();
        while beside.len() < usize::from(spec.replicas) {
            let (beside_it, taken) = (beside.clone(), Vec::new());
            let ask = PlacementRequest {
                volume,
                spec,
                beside: beside_it,
                taken,
                need,
                content,
                most_fill,
            };
            let first = beside.is_empty();
            let tried = |pool: &PoolView<'_>| {
                (first && not_first.contains(pool.pool.id())).then_some(Refusal::SamePool)
            };
            match find(view, &mut budget, &ask, tried) {
                Ok(pool) => {
                    take(&mut budget, &ask, pool);
                    beside.push(pool);
                }
                Err(none) => {
                    // The first attempt says most clearly what is in the way.
                    failure.get_or_insert(none);
                    break;
                }
            }
        }
        match beside.first() {
            Some(_) if beside.len() == usize::from(spec.replicas) => {
                return Ok((beside.iter().map(|pool| pool.pool.id().clone()).collect(), budget));
            }
            Some(first) if is_tied(&spec.topology) => not_first.insert(first.pool.id().clone()),
            _ => break,
        };
    }
    let placed = format!("volume {volume} needs {} places", spec.replicas);
    let problem = Problem::from(failure.unwrap_or_default());
    Err(Problem::new(problem.kind, format!("{placed}: {}", problem.detail)))
}

/// Whether the choice of one place rules out others beyond its own node.
fn is_tied(topology: &Topology) -> bool {
    let rules = [&topology.nodes, &topology.pools];
    rules.iter().any(|rules| !rules.same_as.is_empty() || !rules.spread.is_empty())
        || topology.zones == Zones::Require
}

/// Whether a volume can have so many copies.
pub fn check_replica_count(view: &View<'_>, volume: &Volume, replicas: u8) -> Result<(), Problem> {
    let health = VolumeHealth::new(view, volume);
    let has = health.members.len();
    if replicas == 1 && health.wanted > 1 {
        return stays_apart(view, volume, &health);
    }
    let mut budget = Budget::new();
    let mut ask = health.ask(view);
    for _ in has..usize::from(replicas) {
        let pool = find(view, &mut budget, &ask, |_| None)?;
        take(&mut budget, &ask, pool);
        ask.beside.push(pool);
    }
    Ok(())
}

/// A group's volumes with one copy each must not share a node: the last copy needs one of its own.
fn stays_apart(view: &View<'_>, volume: &Volume, health: &VolumeHealth<'_>) -> Result<(), Problem> {
    let group = volume.spec().affinity_group.as_ref().and_then(|group| view.group(group));
    let Some(group) = group else { return Ok(()) };
    let mut nodes = health.good().filter_map(|member| member.node);
    if nodes.any(|node| group.replicas.get(node).is_none_or(|count| *count <= 1)) {
        return Ok(());
    }
    let detail = format!(
        "each node with a copy of volume {} has other volumes of its group too; \
         the last copy would share a node with them",
        volume.id()
    );
    Err(Problem::new(ProblemKind::NoPlacement, detail))
}

/// For each pool, its place among those that could take one more copy of a volume now, from 1, or
/// why it could not.
pub fn rank(view: &View<'_>, volume: &Volume) -> BTreeMap<PoolName, Result<u32, Refusal>> {
    let (ask, budget) = (VolumeHealth::new(view, volume).ask(view), Budget::new());
    let mut ranks = BTreeMap::new();
    let mut good = Vec::new();
    for pool in view.pools.values() {
        match admit(view, &budget, &ask, pool) {
            Ok(()) => good.push((Score::new(view, &budget, &ask, pool), pool.pool.id())),
            Err(refusal) => drop(ranks.insert(pool.pool.id().clone(), Err(refusal))),
        }
    }
    good.sort_by_key(|(score, _)| *score);
    ranks.extend((1..).zip(good).map(|(rank, (_, pool))| (pool.clone(), Ok(rank))));
    ranks
}

/// Where a copy of a volume can move to: the pool that is asked for, or the best.
pub fn check_move(
    view: &View<'_>,
    volume: &Volume,
    from: ReplicaId,
    asked: Option<&PoolName>,
) -> Result<PoolName, Problem> {
    let health = VolumeHealth::new(view, volume);
    let Some(member) = health.members.iter().find(|member| member.id() == from) else {
        let detail = format!("replica {from} is not a copy of volume {}", volume.id());
        return Err(Problem::new(ProblemKind::NotFound, detail));
    };
    if health.good().next().is_none() || member.condition == Condition::Making {
        let detail = format!("no copy in sync of volume {} answers", volume.id());
        return Err(Problem::new(ProblemKind::NoHealthyReplica, detail));
    }
    let mut ask = health.ask(view);
    ask.beside.retain(|pool| *pool.pool.id() != member.replica.spec().pool);
    let mut budget = Budget::new();
    let Some(asked) = asked else {
        return Ok(find(view, &mut budget, &ask, |_| None)?.pool.id().clone());
    };
    let Some(pool) = view.pool(asked) else {
        return Err(Problem::new(ProblemKind::NotFound, format!("there is no pool {asked}")));
    };
    match admit(view, &budget, &ask, pool) {
        Ok(()) => Ok(asked.clone()),
        Err(refusal) => Err(Unplaceable::of_pools([(asked, refusal)].into()).into()),
    }
}
