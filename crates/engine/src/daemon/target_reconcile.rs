//! What is done to an open target until it is as its order says.
//!
//! Everything is compared with what the target says of itself and with what it was told, so that
//! it can be done again at any time: with each order, and when the target has opened.
//!
//! A local child is served to this engine itself: there is one fence for all, see `volumes`.

use std::collections::BTreeMap;

use api::node::ApiResult;
use model::{
    Ana, ChildPath, ChildState, EventName, NqnKind, ReplicaId, StopCause, Subject, TargetId,
    TargetSpec, TargetState, VersionedSpec,
};
use nvme::wire::Nqn;

use super::engine::Engine;
use super::replicas::{NSID, wire_name};
use super::targets::{TargetAvailability, ana_state};
use super::{pool_mapping, problems};
use crate::serve::{AdminResponse, Host};
use crate::volumes::{ReplicaPath, Status, VolumeRequest};

impl Engine {
    /// Who may connect. Nobody named: only somebody whose name nobody knows.
    pub(super) fn hosts_of(&self, spec: &TargetSpec) -> ApiResult<BTreeMap<Nqn, Host>> {
        let host = |nqn: &model::Nqn| {
            // It resends what it lost with a path, and nothing of that path may come after that.
            let single_association = matches!(nqn.named(), Some(NqnKind::Publication(_)));
            Ok((wire_name(nqn)?, Host { single_association, ..Host::default() }))
        };
        let mut hosts: BTreeMap<Nqn, Host> =
            spec.hosts.values().map(host).collect::<ApiResult<_>>()?;
        if hosts.is_empty() {
            hosts.insert(self.0.nobody.clone(), Host::default());
        }
        Ok(hosts)
    }

    pub(super) fn paths_of_children(
        &self,
        spec: &TargetSpec,
    ) -> ApiResult<BTreeMap<ReplicaId, ReplicaPath>> {
        let way = |child: &model::Child| {
            let (addresses, local) = match &child.path {
                ChildPath::Local {} => (self.0.addresses.clone(), true),
                ChildPath::Remote { addresses } => (addresses.clone(), false),
            };
            let nqn = wire_name(&model::Nqn::replica(child.replica))?;
            Ok((child.replica, ReplicaPath { addresses, nqn, local }))
        };
        spec.children.iter().map(way).collect()
    }

    /// Does what is missing until a target is as its order says. What cannot be done while it
    /// opens is done when it has opened.
    pub(super) async fn reconcile_target(
        &self,
        target: TargetId,
        spec: &TargetSpec,
    ) -> ApiResult<bool> {
        let availability = self.state().targets.get(&target).map(|here| here.availability);
        if availability != Some(TargetAvailability::Open) {
            return Ok(false);
        }
        if spec.shutdown {
            self.close_target(target, spec.volume, StopCause::Ordered).await?;
            self.tell(Subject::Target(target), EventName::StateChanged, "it was shut down");
            return Ok(true);
        }
        let Some(status) = self.status_of(target, spec.volume).await? else {
            return Err(problems::stopping());
        };
        if matches!(status.state, TargetState::Shutdown { .. } | TargetState::ShuttingDown { .. }) {
            return Ok(false);
        }
        let mut changed = self.reconcile_hosts(spec).await?;
        changed |= self.reconcile_limits(target, spec).await?;
        if status.state != TargetState::Init {
            changed |= self.reconcile_children(target, spec, &status).await?;
            let size = pool_mapping::blocks_of(spec.size);
            if status.size != size {
                let order = VolumeRequest::Mirror(mirror::MirrorRequest::Resize(size));
                self.ask_volume(spec.volume, order).await?;
                changed = true;
            }
        }
        Ok(changed)
    }

    async fn reconcile_hosts(&self, spec: &TargetSpec) -> ApiResult<bool> {
        let nqn = wire_name(&model::Nqn::volume(spec.volume))?;
        let hosts = self.0.orders.set_hosts(nqn.clone(), self.hosts_of(spec)?).await;
        let hosts = hosts.map_err(|error| problems::of_order(&error))?;
        let ana = self.0.orders.set_ana(nqn, NSID, ana_state(spec.ana)).await;
        let ana = ana.map_err(|error| problems::of_order(&error))?;
        Ok(hosts == AdminResponse::Changed || ana == AdminResponse::Changed)
    }

    async fn reconcile_limits(&self, target: TargetId, spec: &TargetSpec) -> ApiResult<bool> {
        let told = self.state().targets.get(&target).map(|here| here.limits);
        if told == Some(spec.limits) {
            return Ok(false);
        }
        let order = VolumeRequest::Mirror(mirror::MirrorRequest::Limit(spec.limits));
        self.ask_volume(spec.volume, order).await?;
        if let Some(here) = self.state().targets.get_mut(&target) {
            here.limits = spec.limits;
        }
        Ok(true)
    }

    async fn reconcile_children(
        &self,
        target: TargetId,
        spec: &TargetSpec,
        status: &Status,
    ) -> ApiResult<bool> {
        let mut changed = self.use_locally(target, spec).await?;
        for (replica, way) in self.paths_of_children(spec)? {
            let is_known = status.children.iter().any(|child| child.replica == replica);
            let told = self.reported_path(target, replica);
            let order = match told {
                Some(told) if is_known && told == way => continue,
                _ if is_known => VolumeRequest::Move(replica, way.clone()),
                _ => VolumeRequest::AddChild(replica, way.clone()),
            };
            self.ask_volume(spec.volume, order).await?;
            if let Some(here) = self.state().targets.get_mut(&target) {
                here.ways.insert(replica, way);
            }
            changed = true;
        }
        for child in &spec.children {
            let seen = status.children.iter().find(|seen| seen.replica == child.replica);
            let is_offline = seen.is_some_and(|seen| seen.state == ChildState::Offline);
            let order = match (child.offline, is_offline) {
                (true, false) => mirror::MirrorRequest::Offline(child.replica),
                (false, true) => mirror::MirrorRequest::Online(child.replica),
                (true, true) | (false, false) => continue,
            };
            self.ask_volume(spec.volume, VolumeRequest::Mirror(order)).await?;
            changed = true;
        }
        for seen in &status.children {
            if spec.child(seen.replica).is_none() {
                let order = mirror::MirrorRequest::RemoveChild(seen.replica);
                self.ask_volume(spec.volume, VolumeRequest::Mirror(order)).await?;
                if let Some(here) = self.state().targets.get_mut(&target) {
                    here.ways.remove(&seen.replica);
                }
                changed = true;
            }
        }
        Ok(changed)
    }

    fn reported_path(&self, target: TargetId, replica: ReplicaId) -> Option<ReplicaPath> {
        self.state().targets.get(&target)?.ways.get(&replica).cloned()
    }

    /// The target has opened, or shut itself down: does what had to wait for that.
    pub(super) async fn target_changed(&self, target: TargetId, now: TargetState) {
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        let (order, availability) = {
            let state = self.state();
            let availability = state.targets.get(&target).map(|here| here.availability);
            (state.target_orders.get(&target).cloned(), availability)
        };
        let (Some(VersionedSpec { spec, .. }), Some(TargetAvailability::Open)) =
            (order, availability)
        else {
            return;
        };
        let done = match now {
            TargetState::Shutdown { .. } => {
                // Hosts are to take another path.
                let ana = Ana::Inaccessible;
                self.reconcile_hosts(&TargetSpec { ana, ..spec }).await
            }
            _ => self.reconcile_target(target, &spec).await,
        };
        if let Err(problem) = done {
            tracing::warn!(%target, %problem, "target reconciliation failed; will retry");
        }
    }
}
