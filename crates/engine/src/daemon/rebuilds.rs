//! Rebuilds by the node API.
//!
//! A target begins a rebuild by itself as soon as a stale child answers, and gives it its id. By
//! order it waits, goes on or ends; and begins anew after it was ended by order.

use std::collections::BTreeMap;

use api::node::{Answered, RebuildWish, Run};
use api::{Ensured, Page, Paging};
use mirror::RebuildOrder;
use model::{Kind, Order, Problem, Rebuild, RebuildId, RebuildState, TargetId, VolumeId};

use super::engine::Engine;
use super::pages::find_all;
use super::problems::in_field;
use super::targets::Door;
use crate::volumes::Order as VolumeOrder;

impl Engine {
    async fn all_rebuilds(&self) -> Answered<BTreeMap<RebuildId, Rebuild>> {
        let status = |(target, volume)| self.status_of(target, volume);
        let all = find_all(self.open_targets(), status).await?;
        let rebuilds = all.into_iter().flatten().flat_map(|status| status.rebuilds);
        Ok(rebuilds.map(|rebuild| (rebuild.id, rebuild)).collect())
    }

    /// A page of rebuilds, by id.
    pub(super) async fn page_of_rebuilds(&self, paging: Paging) -> Answered<Page<Rebuild>> {
        paging.cut(self.all_rebuilds().await?.into_values(), |rebuild| rebuild.id.to_string())
    }

    /// One rebuild.
    pub(super) async fn find_rebuild(&self, rebuild: RebuildId) -> Answered<Rebuild> {
        self.all_rebuilds().await?.remove(&rebuild).ok_or_else(|| {
            let detail = format!("there is no rebuild {rebuild} by a target of this node");
            Problem::new(Kind::NotFound, detail)
        })
    }

    /// Lets a rebuild wait, go on, end or begin anew.
    pub(super) async fn order_rebuild(
        &self,
        rebuild: RebuildId,
        order: Order<RebuildWish>,
    ) -> Answered<Ensured<Rebuild>> {
        let wish = order.spec.clone();
        let target = wish.target;
        let _alone = self.0.target_locks.of(&target).write_owned().await;
        let volume = {
            let state = self.state();
            order.admit(state.rebuild_orders.get(&rebuild))?;
            let here = state.targets.get(&target).filter(|here| here.door == Door::Open);
            here.map(|here| here.volume).ok_or_else(|| {
                let detail = format!("there is no open target {target} on this node");
                in_field("spec.target", Kind::NotFound, detail)
            })?
        };
        let before = self.rebuild_of((target, volume), rebuild, &wish).await?;
        {
            let mut state = self.state();
            let open: Vec<TargetId> = state.targets.keys().copied().collect();
            state.rebuild_orders.retain(|_, order| open.contains(&order.spec.target));
            state.rebuild_orders.insert(rebuild, order);
        }
        let limit = mirror::Order::RebuildLimit(wish.bytes_per_second);
        self.ask_volume(volume, VolumeOrder::Mirror(limit)).await?;
        let state = before.as_ref().map(Rebuild::state);
        let step = match (wish.run, state) {
            (Run::Run, Some(RebuildState::Paused {})) => Some(RebuildOrder::Resume),
            (Run::Run, None) => Some(RebuildOrder::Start),
            (Run::Pause, Some(RebuildState::Running {})) => Some(RebuildOrder::Pause),
            (Run::Cancel, Some(state)) if !state.is_ended() => Some(RebuildOrder::Cancel),
            (Run::Run | Run::Pause | Run::Cancel, _) => None,
        };
        if let Some(step) = step {
            let step = mirror::Order::Rebuild(wish.replica, step);
            self.ask_volume(volume, VolumeOrder::Mirror(step)).await?;
        }
        let now = self.rebuild_of((target, volume), rebuild, &wish).await?;
        match (before, now) {
            (_, None) => {
                let detail = "its rebuild has not begun: the copy is in sync, or does not answer";
                Err(Problem::new(Kind::Unavailable, detail))
            }
            (None, Some(now)) => Ok(Ensured::created(now)),
            (Some(before), Some(now)) if before.state() == now.state() => {
                Ok(Ensured::unchanged(now))
            }
            (Some(_), Some(now)) => Ok(Ensured::changed(now)),
        }
    }

    /// The rebuild with this id, or else the one of the copy that is under way.
    async fn rebuild_of(
        &self,
        (target, volume): (TargetId, VolumeId),
        rebuild: RebuildId,
        wish: &RebuildWish,
    ) -> Answered<Option<Rebuild>> {
        let Some(status) = self.status_of(target, volume).await? else { return Ok(None) };
        if !status.children.iter().any(|child| child.replica == wish.replica) {
            let detail = format!("target {target} has no child {}", wish.replica);
            return Err(in_field("spec.replica", Kind::NotFound, detail));
        }
        let mut all = status.rebuilds.into_iter();
        let named = all.clone().find(|one| one.id == rebuild);
        let under_way = |one: &Rebuild| one.replica == wish.replica && !one.state().is_ended();
        Ok(named.or_else(|| all.find(under_way)))
    }
}
