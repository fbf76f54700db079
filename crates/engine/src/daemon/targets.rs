//! Targets by the node API: opened, changed, shut down, deleted.
//!
//! ```text
//!   control plane: takes the epoch in the volume's record (store)
//!        │ put_target with that epoch
//!        ▼
//!   reads the record ── another owner ──► refused
//!        │ ours
//!        ▼
//!   opens the mirror ──► settles: children, hosts, size, limits, path state ──► as the order says
//!                            ▲
//!                            └── again when the target has opened, and with each order
//! ```
//!
//! Invariants:
//! - A target is opened only with the epoch that the store's record gives to it.
//! - A target that was shut down, by order or by a newer owner, never opens again.
//!
//! Deliberately not here: taking epochs and choosing children (control plane), the mirror itself,
//! what is done to an open target (`settling`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::node::{ApiResult, GenerationQuery, Observed};
use api::{Applied, Deleted, Page, Paging};
use mirror::{LONGEST_LEASE, MirrorConfig, ReadLease};
use model::{
    Ana, ChildPath, EventName, Problem, ProblemKind, ReplicaId, StopCause, Subject, TargetId,
    TargetRecord, TargetSpec, TargetState, TargetStatus, VersionedSpec, VolumeId,
};
use nvme::target::NamespaceIds;
use nvme::wire::{AnaState, Nqn};

use super::engine::Engine;
use super::pages::page_of;
use super::pool_mapping;
use super::problems::{self, in_field};
use super::target_snapshots::TargetSnapshots;
use crate::serve::Host;
use crate::volumes::{
    OpenRequest, PATIENCE, RecordStore, ReplicaPath, Status, VolumeRequest, VolumeResponse,
};

/// A target as this engine has it; what is wanted of it is in its order.
pub(super) struct Target {
    pub(super) volume: VolumeId,
    pub(super) availability: TargetAvailability,
    /// The ways it was told.
    pub(super) ways: BTreeMap<ReplicaId, ReplicaPath>,
    /// The limits it was told.
    pub(super) limits: model::QosLimits,
    /// The snapshots it took.
    pub(super) taken: TargetSnapshots,
}

/// Whether a target can be asked.
///
/// ```text
///   put ──► Open ──shutdown, or replaced here──► Down
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetAvailability {
    /// It is there, although it may have shut itself down.
    Open,
    /// It is not there any more, and will not be again.
    Down(StopCause),
}

/// Ids of controllers of one target.
const CONTROLLERS: u16 = 512;
/// How long an opening waits for copies in sync where this engine has just started: the others may
/// have, too, as after a power failure, and one that is late is not lost.
const OPEN_WAIT: Duration = PATIENCE.saturating_mul(2).saturating_add(Duration::from_secs(2));
/// How long it waits elsewhere. A volume that moves to an engine that runs has lost one copy rather
/// than all of them, and hosts wait for it.
const MOVE_WAIT: Duration = Duration::from_secs(1);
/// An engine has just started for so long.
const JUST_STARTED: Duration = Duration::from_secs(30);

fn missing_target(target: TargetId) -> Problem {
    Problem::new(ProblemKind::NotFound, format!("there is no target {target} on this node"))
}

impl Engine {
    /// Gives an order to the target of a volume.
    pub(super) async fn ask_volume(
        &self,
        volume: VolumeId,
        order: VolumeRequest,
    ) -> ApiResult<VolumeResponse> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let reply = Box::new(move |answer| {
            // Nobody is left who wants to know.
            let _ = reply.send(answer);
        });
        self.0.volumes.request(volume, order, reply);
        answer.await.map_err(|_| problems::stopping())?
    }

    /// How an open target is; none if it is not there.
    pub(super) async fn status_of(
        &self,
        target: TargetId,
        volume: VolumeId,
    ) -> ApiResult<Option<Status>> {
        match self.ask_volume(volume, VolumeRequest::Status).await {
            Ok(VolumeResponse::Status(status)) if status.target == target => Ok(Some(*status)),
            Ok(_) => Ok(None),
            Err(problem) if problem.kind == ProblemKind::NotFound => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    /// The targets that are there.
    pub(super) fn open_targets(&self) -> Vec<(TargetId, VolumeId)> {
        let state = self.state();
        let open = state
            .targets
            .iter()
            .filter(|(_, target)| target.availability == TargetAvailability::Open);
        open.map(|(id, target)| (*id, target.volume)).collect()
    }

    /// One target.
    pub(super) async fn find_target(&self, target: TargetId) -> ApiResult<Observed<TargetSpec>> {
        let (order, volume, availability) = {
            let state = self.state();
            let order = state.target_orders.get(&target).cloned();
            let here = state.targets.get(&target).map(|here| (here.volume, here.availability));
            let (order, (volume, availability)) =
                order.zip(here).ok_or_else(|| missing_target(target))?;
            (order, volume, availability)
        };
        let down = |cause| TargetStatus {
            state: TargetState::Shutdown { cause },
            children: Vec::new(),
            addresses: Vec::new(),
            connected: BTreeSet::new(),
            conflicts: Vec::new(),
        };
        let status = match availability {
            TargetAvailability::Down(cause) => down(cause),
            TargetAvailability::Open => match self.status_of(target, volume).await? {
                Some(status) => TargetStatus {
                    state: status.state,
                    children: status.children,
                    addresses: self.0.addresses.clone(),
                    connected: status.hosts.iter().filter_map(model_name).collect(),
                    conflicts: status.conflicts,
                },
                // It is just being closed.
                None => down(StopCause::Ordered),
            },
        };
        Ok(Observed { id: target, generation: Some(order.generation), spec: order.spec, status })
    }

    /// A page of targets, by id.
    pub(super) async fn page_of_targets(
        &self,
        paging: Paging,
    ) -> ApiResult<Page<Observed<TargetSpec>>> {
        let all = self.state().targets.keys().copied().collect();
        page_of(paging, all, |target| self.find_target(target)).await
    }

    /// Makes a target what the order says.
    pub(super) async fn apply_target(
        &self,
        target: TargetId,
        order: VersionedSpec<TargetSpec>,
    ) -> ApiResult<Applied<Observed<TargetSpec>>> {
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        let spec = order.spec.clone();
        let before = {
            let state = self.state();
            state.target_orders.admit(&target, &order)?;
            let before = state.target_orders.get(&target).map(|order| order.spec.clone());
            self.check_target(target, &spec, before.as_ref())?;
            before
        };
        let existed = self.state().targets.contains_key(&target);
        let mut changed = before.is_some_and(|before| before != spec);
        if !existed {
            self.open_target(target, &spec).await?;
        }
        self.state().target_orders.follow(target, order);
        changed |= self.reconcile_target(target, &spec).await?;
        let now = self.find_target(target).await?;
        if !existed {
            let message = format!("made for volume {} with epoch {}", spec.volume, spec.epoch);
            self.tell(Subject::Target(target), EventName::Created, message);
            return Ok(Applied::created(now));
        }
        if changed {
            self.tell(Subject::Target(target), EventName::Changed, "its spec changed");
            return Ok(Applied::changed(now));
        }
        Ok(Applied::unchanged(now))
    }

    /// Refuses what contradicts this node or the target that is there.
    fn check_target(
        &self,
        target: TargetId,
        spec: &TargetSpec,
        before: Option<&TargetSpec>,
    ) -> ApiResult<()> {
        let here = &self.0.info.name;
        if spec.node != *here {
            let detail = format!("this is node {here}; send the order to the engine of its node");
            return Err(in_field("spec.node", ProblemKind::InvalidArgument, detail));
        }
        let Some(before) = before else { return Ok(()) };
        let differs =
            |field, detail: String| Err(in_field(field, ProblemKind::AlreadyExists, detail));
        if before.volume != spec.volume {
            return differs("spec.volume", format!("target {target} is of {}", before.volume));
        }
        if before.epoch != spec.epoch {
            let detail = format!("target {target} has epoch {}; make a new target", before.epoch);
            return differs("spec.epoch", detail);
        }
        if before.shutdown && !spec.shutdown {
            let detail = format!("target {target} was shut down, for good; make a new one");
            return Err(in_field("spec.shutdown", ProblemKind::Fenced, detail));
        }
        Ok(())
    }

    /// Opens a target, or notes that it is to stay down.
    async fn open_target(&self, target: TargetId, spec: &TargetSpec) -> ApiResult<()> {
        let volume = spec.volume;
        let (mut availability, mut ways) =
            (TargetAvailability::Down(StopCause::Ordered), BTreeMap::new());
        if !spec.shutdown {
            let (record, recorder) = self.owned_record(target, spec).await?;
            self.close_predecessor(volume, spec).await?;
            let hosts = self.hosts_of(spec)?;
            ways = self.paths_of_children(spec)?;
            let opening = self.opening(spec, (record, recorder), (hosts, ways.clone()));
            // Local children are found only once they are served.
            self.use_locally(target, spec).await?;
            let (reply, answer) = tokio::sync::oneshot::channel();
            let reply = Box::new(move |answer| {
                // Nobody is left who wants to know.
                let _ = reply.send(answer);
            });
            self.0.volumes.open(opening, reply);
            if let Err(problem) = answer.await.map_err(|_| problems::stopping())? {
                self.use_no_longer(target).await;
                return Err(problem);
            }
            availability = TargetAvailability::Open;
        }
        let (limits, taken) = (spec.limits, TargetSnapshots::default());
        let here = Target { volume, availability, ways, limits, taken };
        self.state().targets.insert(target, here);
        Ok(())
    }

    /// The record of the volume, if it is this target's.
    async fn owned_record(
        &self,
        target: TargetId,
        spec: &TargetSpec,
    ) -> ApiResult<(TargetRecord, Arc<dyn RecordStore>)> {
        let Some(records) = &self.0.records else {
            let detail = "this engine has no store and serves no targets; start it with --store";
            return Err(Problem::new(ProblemKind::NotSupported, detail));
        };
        let volume = spec.volume;
        let Some(record) = records.read(volume).await? else {
            let detail = format!("the store has no record of volume {volume}; take its epoch");
            return Err(in_field("spec.epoch", ProblemKind::InvalidArgument, detail));
        };
        let (owner, epoch) = (record.target(), record.epoch());
        if spec.epoch > epoch || spec.epoch == epoch && owner != target {
            let detail = format!("target {owner} has epoch {epoch} of volume {volume}; take yours");
            return Err(in_field("spec.epoch", ProblemKind::InvalidArgument, detail));
        }
        if spec.epoch < epoch {
            let detail = format!("target {owner} with epoch {epoch} owns volume {volume}");
            return Err(in_field("spec.epoch", ProblemKind::Fenced, detail));
        }
        Ok((records.reopen(record).await?, Arc::new(records.clone())))
    }

    /// A former target of the same volume makes way: the store says that it is over.
    async fn close_predecessor(&self, volume: VolumeId, spec: &TargetSpec) -> ApiResult<()> {
        let former: Vec<TargetId> = {
            let state = self.state();
            let of_it = state.targets.iter().filter(|(_, one)| one.volume == volume);
            of_it
                .filter(|(_, one)| one.availability == TargetAvailability::Open)
                .map(|(id, _)| *id)
                .collect()
        };
        for target in former {
            let replaced = format!("replaced here by epoch {}", spec.epoch);
            self.tell(Subject::Target(target), EventName::Fenced, replaced);
            self.close_target(target, volume, StopCause::Fenced).await?;
        }
        Ok(())
    }

    /// How long an opening waits for copies in sync, beside what safety demands.
    fn open_wait(&self) -> Duration {
        let age = super::engine::now().since(self.0.info.started_at);
        if age < JUST_STARTED { OPEN_WAIT } else { MOVE_WAIT }
    }

    fn opening(
        &self,
        spec: &TargetSpec,
        (record, recorder): (TargetRecord, Arc<dyn RecordStore>),
        (hosts, children): (BTreeMap<Nqn, Host>, BTreeMap<ReplicaId, ReplicaPath>),
    ) -> OpenRequest {
        let uuid = *spec.volume.uuid().as_bytes();
        let size = pool_mapping::blocks_of(spec.size);
        let home = spec.children.iter().find(|child| child.path == ChildPath::Local {});
        let home = home.and_then(|child| {
            let state = self.state();
            let replica_entry = state.replicas.get(&child.replica)?;
            state.pools.get(&replica_entry.pool).map(|home| home.id)
        });
        OpenRequest {
            record,
            size,
            children,
            node: self.0.wire_name.clone(),
            hosts,
            cntlids: Some(controllers(spec.epoch.number())),
            ids: NamespaceIds { uuid, nguid: uuid, eui64: [0; 8] },
            ana: ana_state(spec.ana),
            limits: spec.limits,
            config: MirrorConfig {
                open_wait: self.open_wait(),
                lease: ReadLease { own: self.0.read_lease, longest: LONGEST_LEASE },
                ..MirrorConfig::default_for(size)
            },
            home,
            recorder,
            news: self.0.news.clone(),
        }
    }

    /// Stops a target, cleanly if that can be, and serves it no longer.
    pub(super) async fn close_target(
        &self,
        target: TargetId,
        volume: VolumeId,
        cause: StopCause,
    ) -> ApiResult<()> {
        let cause = match self.status_of(target, volume).await? {
            Some(Status { state: TargetState::Shutdown { cause }, .. }) => cause,
            _ => cause,
        };
        match self.ask_volume(volume, VolumeRequest::Close).await {
            Ok(_) => {}
            Err(problem) if problem.kind == ProblemKind::NotFound => {}
            Err(problem) => return Err(problem),
        }
        if let Some(here) = self.state().targets.get_mut(&target) {
            here.availability = TargetAvailability::Down(cause);
        }
        self.use_no_longer(target).await;
        Ok(())
    }

    /// Stops a target and forgets it.
    pub(super) async fn remove_target(
        &self,
        target: TargetId,
        order: GenerationQuery,
    ) -> ApiResult<Deleted> {
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        self.state().target_orders.admit_removal(&target, order.generation)?;
        let here = self.state().targets.get(&target).map(|here| (here.volume, here.availability));
        if let Some((volume, TargetAvailability::Open)) = here {
            self.close_target(target, volume, StopCause::Ordered).await?;
        }
        {
            let mut state = self.state();
            state.targets.remove(&target);
            state.target_orders.remove(target, order.generation);
        }
        if here.is_some() {
            self.tell(Subject::Target(target), EventName::Deleted, "it was deleted");
        }
        Ok(Deleted { existed: here.is_some() })
    }

    /// Stops every target, all at once; each says in the log how that went.
    pub(super) async fn close_all_targets(&self) {
        let mut closing = tokio::task::JoinSet::new();
        for (target, volume) in self.open_targets() {
            let engine = self.clone();
            closing.spawn(async move {
                let closed = engine.close_target(target, volume, StopCause::Ordered).await;
                if let Err(problem) = closed {
                    tracing::warn!(%target, %problem, "a target did not stop cleanly");
                }
            });
        }
        closing.join_all().await;
    }
}

/// First and last id of the controllers of a target: those of neighbouring epochs differ, so that
/// a host that has paths to both sees two controllers.
fn controllers(epoch: u64) -> (u16, u16) {
    let slots = u64::from(0xFFEF / CONTROLLERS);
    let slot = u16::try_from(epoch % slots).unwrap_or(0);
    let first = slot * CONTROLLERS + 1;
    (first, first + CONTROLLERS - 1)
}

/// What hosts are told about a path.
pub(super) fn ana_state(ana: Ana) -> AnaState {
    match ana {
        Ana::Optimized => AnaState::Optimized,
        Ana::NonOptimized => AnaState::NonOptimized,
        Ana::Inaccessible => AnaState::Inaccessible,
    }
}

fn model_name(nqn: &Nqn) -> Option<model::Nqn> {
    nqn.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_epochs_share_no_controller() {
        for epoch in 1..300 {
            let (one, next) = (controllers(epoch), controllers(epoch + 1));
            assert!(one.0 >= 1 && one.1 <= 0xFFEF, "{one:?}");
            assert!(one.1 < next.0 || next.1 < one.0, "{one:?} {next:?}");
        }
    }
}
