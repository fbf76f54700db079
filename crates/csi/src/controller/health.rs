//! How well volumes are: as version 1.13 asks, and as earlier ones did.

use api::rest::Control;
use model::VolumeState;
use tonic::Status;

use super::{Controller, most, started_after, volume_id};
use crate::proto::volume_health::VolumeHealthEntry;
use crate::proto::{
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, VolumeCondition,
    VolumeHealth, VolumeHealthErrorType,
};

impl<C: Control> Controller<C> {
    pub(super) async fn controller_get_volume_health(
        &self,
        request: ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        let volume = self.existing(id, &request.volume_id).await?;
        Ok(ControllerGetVolumeHealthResponse { volume_health: Some(health(&volume)) })
    }

    /// Only volumes that are not well are listed; pages are counted in those.
    pub(super) async fn controller_list_volume_health(
        &self,
        request: ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Status> {
        let after = started_after::<model::VolumeId>(&request.starting_token)?;
        let most = most(request.max_entries)?;
        let (volumes, _) = self.some_volumes(None, after).await?;
        let mut unwell =
            volumes.iter().map(health).filter(|health| !health.health_statuses.is_empty());
        let entries: Vec<_> = unwell.by_ref().take(most.unwrap_or(usize::MAX)).collect();
        let last = unwell.next().and(entries.last()).map(|last| last.volume_id.clone());
        Ok(ControllerListVolumeHealthResponse { entries, next_token: last.unwrap_or_default() })
    }
}

fn health(volume: &model::Volume) -> VolumeHealth {
    let state = volume.status.as_ref().map(|status| status.state);
    let entry = match state {
        Some(VolumeState::Degraded) => Some((VolumeHealthErrorType::Degraded, "FewerCopiesInSync")),
        Some(VolumeState::Faulted) => Some((VolumeHealthErrorType::Inaccessible, "NoCopyInSync")),
        Some(VolumeState::Online | VolumeState::Unknown) | None => None,
    };
    let entry = entry.map(|(status, reason)| VolumeHealthEntry {
        status: status.into(),
        reason: reason.to_owned(),
        message: message(volume),
    });
    VolumeHealth {
        volume_id: volume.id().to_string(),
        health_statuses: entry.into_iter().collect(),
    }
}

/// What versions before 1.13 ask for.
pub(super) fn condition(volume: &model::Volume) -> VolumeCondition {
    let abnormal = !health(volume).health_statuses.is_empty();
    VolumeCondition { abnormal, message: message(volume) }
}

fn message(volume: &model::Volume) -> String {
    let Some(status) = &volume.status else { return "nothing was seen of it yet".to_owned() };
    if !status.reasons.is_empty() {
        return status.reasons.join("; ");
    }
    match status.state {
        VolumeState::Online => "all copies are in sync",
        VolumeState::Degraded => "fewer copies are in sync than wanted",
        VolumeState::Faulted => "no copy in sync can be reached",
        VolumeState::Unknown => "not enough of it was seen yet",
    }
    .to_owned()
}
