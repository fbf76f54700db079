//! Changes of a volume in use, by a VolumeAttributesClass.

use api::rest::{Control, VolumeAction};
use tonic::Status;

use super::{Controller, volume_id};
use crate::parameters;
use crate::proto::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse};
use crate::status::{missing, status};

impl<C: Control> Controller<C> {
    /// Everything is checked before anything is changed.
    pub(super) async fn controller_modify_volume(
        &self,
        request: ControllerModifyVolumeRequest,
    ) -> Result<ControllerModifyVolumeResponse, Status> {
        let id = volume_id(&request.volume_id)?;
        if request.mutable_parameters.is_empty() {
            return Err(missing("mutable_parameters"));
        }
        let volume = self.existing(id, &request.volume_id).await?;
        let modification = parameters::modification(&request.mutable_parameters)?;
        let id = *volume.id();
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let spec = modification.apply(volume.spec());
        let replicas = modification.replicas.unwrap_or(spec.replicas);
        let whole = model::VolumeSpec { replicas, ..spec.clone() };
        model::Spec::validate(&whole).map_err(crate::status::invalid)?;
        if spec != *volume.spec() {
            let action = VolumeAction::Modify { spec: Box::new(spec) };
            self.control.change_volume(id, action, None).await.map_err(status)?;
        }
        if replicas != volume.spec().replicas {
            let action = VolumeAction::SetReplicas { replicas };
            self.control.change_volume(id, action, None).await.map_err(status)?;
        }
        Ok(ControllerModifyVolumeResponse {})
    }
}
