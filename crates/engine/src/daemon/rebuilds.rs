//! Rebuilds by the node API.
//!
//! A target begins a rebuild by itself as soon as a stale child answers, and gives it its id. By
//! order it waits, goes on or ends; and begins anew after it was ended by order.

use std::collections::BTreeMap;

use api::node::{ApiResult, RebuildRequest, Run};
use api::{Applied, Page, Paging};
use mirror::RebuildCommand;
use model::{
    Problem, ProblemKind, Rebuild, RebuildId, RebuildState, TargetId, VersionedSpec, VolumeId,
};

use super::engine::Engine;
use super::pages::find_all;
use super::problems::in_field;
use super::targets::TargetAvailability;
use crate::volumes::VolumeRequest;

impl Engine {
    async fn all_rebuilds(&self) -> ApiResult<BTreeMap<RebuildId, Rebuild>> {
        let status = |(target, volume)| self.status_of(target, volume);
        let all = find_all(self.open_targets(), status).await?;
        let rebuilds = all.into_iter().flatten().flat_map(|status| status.rebuilds);
        Ok(rebuilds.map(|rebuild| (rebuild.id, rebuild)).collect())
    }

    /// A page of rebuilds, by id.
    pub(super) async fn page_of_rebuilds(&self, paging: Paging) -> ApiResult<Page<Rebuild>> {
        paging.cut(self.all_rebuilds().await?.into_values(), |rebuild| rebuild.id.to_string())
    }

    /// One rebuild.
    pub(super) async fn find_rebuild(&self, rebuild: RebuildId) -> ApiResult<Rebuild> {
        self.all_rebuilds().await?.remove(&rebuild).ok_or_else(|| {
            let detail = format!("there is no rebuild {rebuild} by a target of this node");
            Problem::new(ProblemKind::NotFound, detail)
        })
    }

    /// Lets a rebuild wait, go on, end or begin anew.
    pub(super) async fn apply_rebuild(
        &self,
        rebuild: RebuildId,
        order: VersionedSpec<RebuildRequest>,
    ) -> ApiResult<Applied<Rebuild>> {
        let request = order.spec.clone();
        let target = request.target;
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        let volume = {
            let state = self.state();
            order.admit(state.rebuild_orders.get(&rebuild))?;
            let here = state
                .targets
                .get(&target)
                .filter(|here| here.availability == TargetAvailability::Open);
            here.map(|here| here.volume).ok_or_else(|| {
                let detail = format!("there is no open target {target} on this node");
                in_field("spec.target", ProblemKind::NotFound, detail)
            })?
        };
        let before = self.rebuild_of((target, volume), rebuild, &request).await?;
        {
            let mut state = self.state();
            let open: Vec<TargetId> = state.targets.keys().copied().collect();
            state.rebuild_orders.retain(|_, order| open.contains(&order.spec.target));
            state.rebuild_orders.insert(rebuild, order);
        }
        let limit = mirror::MirrorRequest::RebuildLimit(request.bytes_per_second);
        self.ask_volume(volume, VolumeRequest::Mirror(limit)).await?;
        let state = before.as_ref().map(Rebuild::state);
        let step = match (request.run, state) {
            (Run::Run, Some(RebuildState::Paused {})) => Some(RebuildCommand::Resume),
            (Run::Run, None) => Some(RebuildCommand::Start),
            (Run::Pause, Some(RebuildState::Running {})) => Some(RebuildCommand::Pause),
            (Run::Cancel, Some(state)) if !state.is_ended() => Some(RebuildCommand::Cancel),
            (Run::Run | Run::Pause | Run::Cancel, _) => None,
        };
        if let Some(step) = step {
            let step = mirror::MirrorRequest::Rebuild(request.replica, step);
            self.ask_volume(volume, VolumeRequest::Mirror(step)).await?;
        }
        let now = self.rebuild_of((target, volume), rebuild, &request).await?;
        match (before, now) {
            (_, None) => {
                let detail = "its rebuild has not begun: the copy is in sync, or does not answer";
                Err(Problem::new(ProblemKind::Unavailable, detail))
            }
            (None, Some(now)) => Ok(Applied::created(now)),
            (Some(before), Some(now)) if before.state() == now.state() => {
                Ok(Applied::unchanged(now))
            }
            (Some(_), Some(now)) => Ok(Applied::changed(now)),
        }
    }

    /// The rebuild with this id, or else the one of the copy that is under way.
    async fn rebuild_of(
        &self,
        (target, volume): (TargetId, VolumeId),
        rebuild: RebuildId,
        request: &RebuildRequest,
    ) -> ApiResult<Option<Rebuild>> {
        let Some(status) = self.status_of(target, volume).await? else { return Ok(None) };
        if !status.children.iter().any(|child| child.replica == request.replica) {
            let detail = format!("target {target} has no child {}", request.replica);
            return Err(in_field("spec.replica", ProblemKind::NotFound, detail));
        }
        let mut all = status.rebuilds.into_iter();
        let named = all.clone().find(|one| one.id == rebuild);
        let under_way = |one: &Rebuild| one.replica == request.replica && !one.state().is_ended();
        Ok(named.or_else(|| all.find(under_way)))
    }
}
