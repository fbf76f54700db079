//! Snapshots, what is made from them, and which blocks they have.

use csi::proto::volume_content_source::{SnapshotSource, Type};
use csi::proto::{
    BlockMetadata, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    GetMetadataAllocatedRequest, GetMetadataDeltaRequest, GetSnapshotRequest, ListSnapshotsRequest,
    Snapshot, Volume, VolumeContentSource,
};
use tonic::Code;

use crate::driver::{Driver, GIB, code, create, range};

fn take(volume: &str, name: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest {
        source_volume_id: volume.to_owned(),
        name: name.to_owned(),
        ..CreateSnapshotRequest::default()
    }
}

async fn taken(driver: &Driver, volume: &Volume, name: &str) -> Snapshot {
    let answer = driver.controller().create_snapshot(take(&volume.volume_id, name)).await;
    answer.unwrap().into_inner().snapshot.unwrap()
}

fn list() -> ListSnapshotsRequest {
    ListSnapshotsRequest::default()
}

#[tokio::test]
async fn a_snapshot_is_taken_once_and_names_are_not_shared() {
    let driver = Driver::start().await;
    let (one, two) = (driver.volume("one").await, driver.volume("two").await);
    let first = taken(&driver, &one, "daily").await;
    assert!(first.ready_to_use && first.size_bytes == GIB);
    assert_eq!(first.creation_time.unwrap().seconds, 1_794_778_258);
    assert_eq!(taken(&driver, &one, "daily").await, first);
    let mut controller = driver.controller();
    let other = controller.create_snapshot(take(&two.volume_id, "daily")).await;
    assert_eq!(code(other), Code::AlreadyExists);
    for (volume, name, wanted) in [
        ("", "x", Code::InvalidArgument),
        (one.volume_id.as_str(), "", Code::InvalidArgument),
        ("fake-vol-id", "x", Code::NotFound),
    ] {
        assert_eq!(code(controller.create_snapshot(take(volume, name)).await), wanted);
    }
    let mut class = take(&one.volume_id, "frozen");
    for text in ["maybe", "freeze"] {
        class.parameters.insert("quiesceFs".to_owned(), text.to_owned());
        let refused = controller.create_snapshot(class.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("give none"), "{refused}");
    }
    for _ in 0..2 {
        let snapshot_id = first.snapshot_id.clone();
        let gone = DeleteSnapshotRequest { snapshot_id, ..DeleteSnapshotRequest::default() };
        assert!(controller.delete_snapshot(gone).await.is_ok());
    }
    let snapshot_id = first.snapshot_id;
    let get = GetSnapshotRequest { snapshot_id, ..GetSnapshotRequest::default() };
    assert_eq!(code(controller.get_snapshot(get).await), Code::NotFound);
}

#[tokio::test]
async fn snapshots_are_listed_by_volume_by_id_and_in_pages() {
    let driver = Driver::start().await;
    let (one, two) = (driver.volume("one").await, driver.volume("two").await);
    for nth in 0..3 {
        taken(&driver, &one, &format!("one-{nth}")).await;
    }
    let last = taken(&driver, &two, "two").await;
    let mut controller = driver.controller();
    let mut count = async |request| {
        let page = controller.list_snapshots(request).await.unwrap().into_inner();
        (page.entries.len(), page.next_token)
    };
    assert_eq!(count(list()).await.0, 4);
    let of = |volume: &str| ListSnapshotsRequest { source_volume_id: volume.to_owned(), ..list() };
    assert_eq!(count(of(&one.volume_id)).await.0, 3);
    assert_eq!(count(of("none-exist-id")).await.0, 0);
    let by_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.to_owned(), ..list() };
    assert_eq!(count(by_id(&last.snapshot_id)).await.0, 1);
    assert_eq!(count(by_id("none-exist-id")).await.0, 0);
    let (some, token) = count(ListSnapshotsRequest { max_entries: 3, ..list() }).await;
    assert_eq!(some, 3);
    let rest = ListSnapshotsRequest { starting_token: token, ..list() };
    assert_eq!(count(rest).await, (1, String::new()));
}

#[tokio::test]
async fn a_volume_from_a_snapshot_has_at_least_its_size() {
    let driver = Driver::start().await;
    let source = driver.volume("source").await;
    let snapshot = taken(&driver, &source, "snap").await;
    let from = |name: &str, required, limit| {
        let snapshot_id = snapshot.snapshot_id.clone();
        let source = Some(Type::Snapshot(SnapshotSource { snapshot_id }));
        CreateVolumeRequest {
            capacity_range: Some(range(required, limit)),
            volume_content_source: Some(VolumeContentSource { r#type: source }),
            ..create(name)
        }
    };
    let mut controller = driver.controller();
    let same = controller.create_volume(from("same", 0, 0)).await.unwrap().into_inner();
    let same = same.volume.unwrap();
    assert_eq!(same.capacity_bytes, GIB);
    assert!(same.content_source.is_some());
    let larger = controller.create_volume(from("larger", 3 * GIB, 0)).await.unwrap().into_inner();
    assert_eq!(larger.volume.unwrap().capacity_bytes, 3 * GIB);
    let smaller = controller.create_volume(from("smaller", 1, GIB / 2)).await;
    assert_eq!(code(smaller), Code::OutOfRange);
    let other = controller.create_volume(create("same")).await;
    assert_eq!(code(other), Code::AlreadyExists, "another source under the same name");
}

#[tokio::test]
async fn blocks_of_a_snapshot_are_streamed() {
    let driver = Driver::start().await;
    let volume = driver.volume("tracked").await;
    let (old, new) = (taken(&driver, &volume, "old").await, taken(&driver, &volume, "new").await);
    let mut metadata = driver.metadata();
    let asked = |offset| GetMetadataAllocatedRequest {
        snapshot_id: old.snapshot_id.clone(),
        starting_offset: offset,
        ..GetMetadataAllocatedRequest::default()
    };
    let mut stream = metadata.get_metadata_allocated(asked(0)).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.volume_capacity_bytes, GIB);
    assert_eq!(first.block_metadata, [BlockMetadata { byte_offset: 1 << 20, size_bytes: 4096 }]);
    assert!(stream.message().await.unwrap().is_none());
    let mut beyond = metadata.get_metadata_allocated(asked(2 << 20)).await.unwrap().into_inner();
    assert!(beyond.message().await.unwrap().is_none(), "everything lies before");
    for offset in [-1, GIB + 1] {
        assert_eq!(code(metadata.get_metadata_allocated(asked(offset)).await), Code::OutOfRange);
    }
    let delta = |base: &str| GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: new.snapshot_id.clone(),
        ..GetMetadataDeltaRequest::default()
    };
    let mut stream =
        metadata.get_metadata_delta(delta(&old.snapshot_id)).await.unwrap().into_inner();
    assert_eq!(stream.message().await.unwrap().unwrap().block_metadata.len(), 1);
    assert_eq!(code(metadata.get_metadata_delta(delta("gone")).await), Code::NotFound);
    assert_eq!(code(metadata.get_metadata_delta(delta("")).await), Code::InvalidArgument);
}
