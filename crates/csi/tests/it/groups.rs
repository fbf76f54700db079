//! Groups of snapshots.

use csi::proto::{
    CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, ListSnapshotsRequest, Volume,
};
use tonic::Code;

use crate::driver::{Driver, code};

#[tokio::test]
async fn a_group_is_taken_looked_at_and_deleted_as_a_whole() {
    let driver = Driver::start().await;
    let (one, two) = (driver.volume("one").await, driver.volume("two").await);
    let volumes = |ids: &[&Volume]| CreateVolumeGroupSnapshotRequest {
        name: "group".to_owned(),
        source_volume_ids: ids.iter().map(|volume| volume.volume_id.clone()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    };
    let mut groups = driver.groups();
    let made = groups.create_volume_group_snapshot(volumes(&[&one, &two])).await.unwrap();
    let made = made.into_inner().group_snapshot.unwrap();
    assert!(made.ready_to_use && made.snapshots.len() == 2);
    let again = groups.create_volume_group_snapshot(volumes(&[&two, &one])).await.unwrap();
    assert_eq!(again.into_inner().group_snapshot.unwrap(), made);
    let other = groups.create_volume_group_snapshot(volumes(&[&one])).await;
    assert_eq!(code(other), Code::AlreadyExists);
    let mut unknown = volumes(&[&one, &two]);
    unknown.parameters.insert("colour".to_owned(), "blue".to_owned());
    let unknown = groups.create_volume_group_snapshot(unknown).await;
    assert_eq!(code(unknown), Code::InvalidArgument);
    let nobody = groups.create_volume_group_snapshot(volumes(&[])).await;
    assert_eq!(code(nobody), Code::InvalidArgument);

    let ids: Vec<String> = made.snapshots.iter().map(|it| it.snapshot_id.clone()).collect();
    let alone =
        DeleteSnapshotRequest { snapshot_id: ids[0].clone(), ..DeleteSnapshotRequest::default() };
    let refused = driver.controller().delete_snapshot(alone).await;
    assert_eq!(code(refused), Code::InvalidArgument, "it goes with its group");

    let get = |id: &str, ids: &[String]| GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: ids.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    let id = made.group_snapshot_id.clone();
    let seen = groups.get_volume_group_snapshot(get(&id, &ids)).await.unwrap().into_inner();
    assert_eq!(seen.group_snapshot.unwrap(), made);
    let fewer = groups.get_volume_group_snapshot(get(&id, &ids[..1])).await;
    assert_eq!(code(fewer), Code::InvalidArgument);
    assert_eq!(code(groups.get_volume_group_snapshot(get("none", &[])).await), Code::NotFound);

    let delete = |id: &str| DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: ids.clone(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    for id in [id.as_str(), id.as_str(), "fake-vol-id"] {
        assert!(groups.delete_volume_group_snapshot(delete(id)).await.is_ok());
    }
    let left = driver.controller().list_snapshots(ListSnapshotsRequest::default()).await.unwrap();
    assert!(left.into_inner().entries.is_empty());
}
