//! A control plane in memory: what is asked for is so at once. For tests of those who call one.
//!
//! It keeps the promises of the contract (same request again, other request under the same id,
//! generations, what is busy, going or in use) by the machines of the model, and knows of nodes and
//! room as much as it was told. It places copies without any policy.

mod collection;
mod control;
mod statuses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{
    BlockDevice, Epoch, Event, Failover, Generation, Host, Node, NodeName, Nqn, Pool, Problem,
    ProblemKind, Rebuild, RebuildId, Replica, Snapshot, SnapshotGroup, Target, TargetId,
    TargetState, Timestamp, Volume, VolumeChange, VolumeId, VolumeSpec, VolumeTarget,
};

use super::{ApiResult, Issue, Purge, Quarantined, VolumeAction};
use crate::Applied;
use crate::node::Scrub;
use collection::Collection;

/// What a fake control plane has.
#[derive(Clone, Debug, Default)]
pub struct FakeState {
    nodes: Collection<model::NodeSpec>,
    hosts: Collection<model::HostSpec>,
    pools: Collection<model::PoolSpec>,
    volumes: Collection<VolumeSpec>,
    snapshots: Collection<model::SnapshotSpec>,
    groups: Collection<model::SnapshotGroupSpec>,
    replicas: Collection<model::ReplicaSpec>,
    targets: Collection<model::TargetSpec>,
    webhooks: Collection<model::WebhookSpec>,
    rebuilds: BTreeMap<RebuildId, Rebuild>,
    failovers: Vec<Failover>,
    scrubs: BTreeMap<model::ReplicaId, Scrub>,
    devices: BTreeMap<NodeName, Vec<BlockDevice>>,
    events: Vec<Event>,
    issues: Vec<Issue>,
    quarantine: BTreeMap<model::ReplicaId, Quarantined>,
    maintenance: Option<model::Maintenance>,
    purges: BTreeMap<String, Purge>,
    busy: BTreeSet<VolumeId>,
}

/// A control plane in memory.
#[derive(Debug)]
pub struct Fake {
    held: Mutex<FakeState>,
    now: Timestamp,
}

impl Fake {
    /// An empty one, at whose moment everything happens.
    pub fn at(now: Timestamp) -> Fake {
        Fake { held: Mutex::default(), now }
    }

    fn held(&self) -> MutexGuard<'_, FakeState> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the purge of a node or pool would lose: nothing, unless it was told otherwise.
    fn purge_of(&self, name: &str) -> Purge {
        self.held().purges.get(name).cloned().unwrap_or_default()
    }

    /// It has these, too.
    pub fn has(&self, one: impl One) -> &Fake {
        one.keep(&mut self.held());
        self
    }

    /// An operation of this volume is under way until it is said to be over.
    pub fn set_busy(&self, volume: VolumeId, busy: bool) {
        let mut held = self.held();
        if busy {
            held.busy.insert(volume);
        } else {
            held.busy.remove(&volume);
        }
    }
}

impl FakeState {
    fn must_be_free(&self, volume: VolumeId) -> Result<(), Problem> {
        if !self.busy.contains(&volume) {
            return Ok(());
        }
        let detail = format!("volume {volume} has an operation under way; try again when it ended");
        Err(Problem::new(ProblemKind::Busy, detail))
    }

    /// Whether a volume of this size has a place for each copy.
    fn room(&self, spec: &VolumeSpec) -> Result<(), Problem> {
        let wanted = usize::from(spec.replicas);
        let nodes: BTreeSet<_> = self.pools.all().map(|pool| &pool.spec().node).collect();
        if nodes.len() < wanted {
            let detail = format!(
                "{wanted} copies need {wanted} nodes with a pool, and there are {}; add a pool or \
                 ask for fewer copies",
                nodes.len()
            );
            return Err(Problem::new(ProblemKind::NoPlacement, detail));
        }
        let free = |pool: &&Pool| {
            let status = pool.status.as_ref();
            status.is_some_and(|status| status.capacity.minus(status.used) >= spec.size)
        };
        if self.pools.all().filter(free).count() < wanted {
            let detail = format!("no {wanted} pools have {} free; add disks", spec.size);
            return Err(Problem::new(ProblemKind::NoSpace, detail));
        }
        Ok(())
    }

    fn request(
        &mut self,
        id: VolumeId,
        request: VolumeAction,
        if_match: Option<Generation>,
        now: Timestamp,
    ) -> ApiResult<Applied<Volume>> {
        let change = match request {
            VolumeAction::Resize { size } => VolumeChange::Resize { size },
            VolumeAction::SetReplicas { replicas } => VolumeChange::SetReplicas { replicas },
            VolumeAction::Modify { spec } => VolumeChange::Modify { spec },
            other => return self.serve(id, other, if_match),
        };
        self.volumes.change(&id, change, if_match, now)
    }

    /// What is done to the target and the copies, which here are only seen.
    fn serve(
        &mut self,
        id: VolumeId,
        request: VolumeAction,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Volume>> {
        let first = self.nodes.all().next().map(|node| node.id().clone());
        let volume = self.volumes.get_mut(&id)?;
        let shared = volume.spec().shared;
        if_match.map_or(Ok(()), |if_match| volume.expect(if_match))?;
        let missing = || Problem::new(ProblemKind::NotFound, "the volume has no such copy");
        let status = volume.status.as_mut().ok_or_else(missing)?;
        match request {
            VolumeAction::Publish { host, node } => {
                let no_node = || Problem::new(ProblemKind::NodeUnavailable, "no node can serve it");
                let node = node.or(first).ok_or_else(no_node)?;
                let fresh = served(id, node)?;
                let target = status.target.get_or_insert(fresh);
                let mut others = target.hosts.iter().filter(|have| Some(*have) != host.as_ref());
                if let Some(other) = others.next().filter(|_| !shared) {
                    let detail = format!("volume {id} is published to {other}; unpublish it first");
                    return Err(Problem::new(ProblemKind::AlreadyPublished, detail));
                }
                target.hosts.extend(host);
            }
            VolumeAction::Unpublish { host, .. } => {
                status.target = status.target.take().filter(|_| host.is_some());
                if let (Some(target), Some(host)) = (&mut status.target, &host) {
                    target.hosts.remove(host);
                }
                status.target = status.target.take().filter(|target| !target.hosts.is_empty());
            }
            VolumeAction::Republish { node } => {
                let not = || Problem::new(ProblemKind::NotPublished, "publish the volume first");
                let target = status.target.as_mut().ok_or_else(not)?;
                target.node = node.unwrap_or_else(|| target.node.clone());
                target.epoch = target.epoch.next();
            }
            VolumeAction::MoveReplica { replica, pool } => {
                let copy = status.replicas.get_mut(&replica).ok_or_else(missing)?;
                copy.pool = pool.unwrap_or_else(|| copy.pool.clone());
            }
            VolumeAction::RemoveReplica { replica } => {
                status.replicas.remove(&replica).ok_or_else(missing)?;
            }
            _ => {}
        }
        Ok(Applied::changed(volume.clone()))
    }
}

/// A target that serves nobody yet.
fn served(volume: VolumeId, node: NodeName) -> ApiResult<VolumeTarget> {
    // Any id will do; that of the volume is at hand.
    let id: TargetId = volume.to_string().parse()?;
    Ok(VolumeTarget {
        id,
        node,
        epoch: Epoch::FIRST,
        state: Some(TargetState::Open),
        nqn: Nqn::volume(volume),
        addresses: Vec::new(),
        hosts: BTreeSet::new(),
        host_nqns: BTreeMap::new(),
    })
}

/// Something a fake control plane can have.
pub trait One {
    /// Puts it where it belongs.
    fn keep(self, held: &mut FakeState);
}

macro_rules! ones {
    ($($type:ty: |$held:ident, $one:pat_param| $keep:expr;)+) => {$(
        impl One for $type {
            fn keep(self, $held: &mut FakeState) {
                let $one = self;
                $keep;
            }
        }
    )+};
}

ones! {
    Node: |held, node| held.nodes.have(node);
    Host: |held, host| held.hosts.have(host);
    Pool: |held, pool| held.pools.have(pool);
    Volume: |held, volume| held.volumes.have(volume);
    Snapshot: |held, snapshot| held.snapshots.have(snapshot);
    SnapshotGroup: |held, group| held.groups.have(group);
    Replica: |held, replica| held.replicas.have(replica);
    Target: |held, target| held.targets.have(target);
    model::Webhook: |held, webhook| held.webhooks.have(webhook);
    Rebuild: |held, rebuild| held.rebuilds.insert(rebuild.id, rebuild);
    Failover: |held, failover| held.failovers.push(failover);
    Event: |held, event| held.events.push(event);
    Quarantined: |held, one| held.quarantine.insert(one.record.replica, one);
    Issue: |held, trouble| held.issues.push(trouble);
    (NodeName, BlockDevice): |held, (node, device)| {
        held.devices.entry(node).or_default().push(device);
    };
    // The name of a node or a pool, and what its purge would cost.
    (&str, Purge): |held, (what, purge)| held.purges.insert(what.to_owned(), purge);
}
