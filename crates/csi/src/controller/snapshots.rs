//! Snapshots: taken, deleted, listed, looked at.

use api::Page;
use api::rest::{Control, SnapshotQuery};
use model::{SnapshotSpec, SnapshotState, Timestamp, VolumeId};
use tonic::Status;

use super::volumes::signed;
use super::{Controller, most, snapshot_id, started_after};
use crate::names;
use crate::proto::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot,
    list_snapshots_response,
};
use crate::status::{found, is_missing, missing, not_found, status};

impl<C: Control> Controller<C> {
    pub(super) async fn create_snapshot(
        &self,
        request: CreateSnapshotRequest,
    ) -> Result<CreateSnapshotResponse, Status> {
        let id = names::snapshot(&request.name)?;
        let source = &request.source_volume_id;
        if source.is_empty() {
            return Err(missing("source_volume_id"));
        }
        read_parameters(&request.parameters)?;
        let volume: VolumeId = source.parse().map_err(|_| not_found("volume", source))?;
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let spec = match found(self.control.snapshot(id).await)? {
            Some(there) if there.spec().volume != volume => {
                let of = there.spec().volume;
                let message = format!("snapshot {} exists, of volume {of}", request.name);
                return Err(Status::already_exists(message));
            }
            // Also when its volume is gone: a snapshot outlives it.
            Some(there) if described(&there).ready_to_use => {
                return Ok(CreateSnapshotResponse { snapshot: Some(described(&there)) });
            }
            Some(there) => there.spec().clone(),
            None => SnapshotSpec { name: request.name.parse().ok(), ..SnapshotSpec::new(volume) },
        };
        let taken = self.control.put_snapshot(id, spec).await.map_err(status)?.now;
        Ok(CreateSnapshotResponse { snapshot: Some(described(&taken)) })
    }

    pub(super) async fn delete_snapshot(
        &self,
        request: DeleteSnapshotRequest,
    ) -> Result<DeleteSnapshotResponse, Status> {
        let done = DeleteSnapshotResponse {};
        let Some(id) = snapshot_id(&request.snapshot_id)? else { return Ok(done) };
        let _exclusive = self.in_flight.claim(id.uuid())?;
        let Some(there) = found(self.control.snapshot(id).await)? else { return Ok(done) };
        if let Some(group) = there.spec().group {
            let message = format!("snapshot {id} belongs to group {group}; delete the group");
            return Err(Status::invalid_argument(message));
        }
        match self.control.delete_snapshot(id, None).await {
            Err(problem) if !is_missing(&problem) => Err(status(problem)),
            _ => Ok(done),
        }
    }

    pub(super) async fn get_snapshot(
        &self,
        request: GetSnapshotRequest,
    ) -> Result<GetSnapshotResponse, Status> {
        let text = &request.snapshot_id;
        let id = snapshot_id(text)?.ok_or_else(|| not_found("snapshot", text))?;
        let snapshot = self.control.snapshot(id).await.map_err(status)?;
        Ok(GetSnapshotResponse { snapshot: Some(described(&snapshot)) })
    }

    /// A filter that nothing can match gives an empty list.
    pub(super) async fn list_snapshots(
        &self,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let mut after = started_after::<model::SnapshotId>(&request.starting_token)?;
        let most = most(request.max_entries)?;
        if !request.snapshot_id.is_empty() {
            return self.list_one(&request).await;
        }
        let volume = match request.source_volume_id.as_str() {
            "" => None,
            text => match text.parse::<VolumeId>() {
                Ok(volume) => Some(volume),
                Err(_) => return Ok(ListSnapshotsResponse::default()),
            },
        };
        let mut entries = Vec::new();
        loop {
            let left = most.map(|most| most - entries.len());
            let limit = left.and_then(|left| u32::try_from(left.min(1000)).ok());
            let query = SnapshotQuery { volume, limit, after, ..SnapshotQuery::default() };
            let Page { items, after: next } =
                self.control.snapshots(query).await.map_err(status)?;
            entries.extend(items.iter().map(entry));
            if next.is_none() || most.is_some_and(|most| entries.len() >= most) {
                let next_token = next.unwrap_or_default();
                return Ok(ListSnapshotsResponse { entries, next_token });
            }
            after = next;
        }
    }

    async fn list_one(
        &self,
        request: &ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse, Status> {
        let found = match snapshot_id(&request.snapshot_id)? {
            Some(id) => found(self.control.snapshot(id).await)?,
            None => None,
        };
        let of = &request.source_volume_id;
        let is_asked = |it: &model::Snapshot| of.is_empty() || it.spec().volume.to_string() == *of;
        let entries = found.filter(is_asked).iter().map(entry).collect();
        Ok(ListSnapshotsResponse { entries, next_token: String::new() })
    }
}

/// Reads the parameters of a snapshot class, or of one of groups: there is nothing to choose.
pub(crate) fn read_parameters(given: &crate::parameters::Given) -> Result<(), Status> {
    for (name, text) in given {
        match name.as_str() {
            "quiesceFs" if text == "none" => {}
            "quiesceFs" if text == "freeze" => {
                let message = "parameter quiesceFs is freeze, which this driver does not do: give \
                               none; the snapshot is crash consistent, and its file system \
                               replays its log when it is mounted";
                return Err(Status::invalid_argument(message));
            }
            "quiesceFs" => {
                let message = format!("parameter quiesceFs is {text:?}; give none");
                return Err(Status::invalid_argument(message));
            }
            _ if name.starts_with("csi.storage.k8s.io/") => {}
            _ => {
                let message = format!("parameter {name} of a snapshot class is not known");
                return Err(Status::invalid_argument(message));
            }
        }
    }
    Ok(())
}

fn entry(snapshot: &model::Snapshot) -> list_snapshots_response::Entry {
    list_snapshots_response::Entry { snapshot: Some(described(snapshot)) }
}

/// A snapshot as CSI describes it.
pub(crate) fn described(snapshot: &model::Snapshot) -> Snapshot {
    let taken = snapshot.status.as_ref();
    let is_ready = |state| matches!(state, SnapshotState::Ready | SnapshotState::Degraded);
    let at = taken.map_or_else(|| snapshot.created_at(), |taken| taken.taken_at);
    Snapshot {
        size_bytes: taken.map_or(0, |taken| signed(taken.size)),
        snapshot_id: snapshot.id().to_string(),
        source_volume_id: snapshot.spec().volume.to_string(),
        creation_time: Some(time(at)),
        ready_to_use: taken.is_some_and(|taken| is_ready(taken.state)),
        group_snapshot_id: snapshot.spec().group.map_or_else(String::new, |id| id.to_string()),
        accessible_topology: Vec::new(),
    }
}

pub(crate) fn time(at: Timestamp) -> prost_types::Timestamp {
    let millis = at.millis();
    let nanos = i32::try_from(millis % 1000).unwrap_or(0) * 1_000_000;
    let seconds = i64::try_from(millis / 1000).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos }
}
