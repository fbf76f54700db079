//! The store is lost under a fleet that runs: what the disks hold is read back.

use api::Paging;
use api::node::Node as _;
use api::rest::{Control as _, RecoverRequest, Recovery, Remote, VolumeAction};
use e2e::fleet::id;
use e2e::store::{KINDS, Kind, StoreServer};
use model::*;

use super::rig::{World, publish, until};
use crate::engine::rig::Disk;

async fn unpublish(remote: &Remote, volume: VolumeId) {
    let request = VolumeAction::Unpublish { host: None, force: false };
    remote.change_volume(volume, request, None).await.unwrap();
}

async fn online(remote: &Remote, volume: VolumeId) -> bool {
    let found = remote.volume(volume).await;
    found.is_ok_and(|it| it.status.is_some_and(|it| it.state == VolumeState::Online))
}

fn fill(disk: &mut Disk, blocks: std::ops::Range<u64>) {
    for block in blocks {
        disk.write(block, u8::try_from(block).unwrap() + 1);
    }
}

fn holds(disk: &mut Disk, blocks: std::ops::Range<u64>) {
    for block in blocks {
        assert_eq!(disk.read(block), u8::try_from(block).unwrap() + 1, "block {block}");
    }
}

/// Waits until so many copies have what is wanted written beside them.
async fn until_noted(world: &World, (wanted, copies): (&VolumeSpec, usize)) {
    until("the disks know what is wanted", async || {
        let mut known = 0;
        for engine in &world.engines {
            let found = engine.remote.replicas(Paging::default()).await.unwrap().items;
            let spec_backups = found.into_iter().filter_map(|it| it.status.spec_backup);
            known += spec_backups.filter(|spec_backup| *spec_backup.spec == *wanted).count();
        }
        known == copies
    })
    .await;
}

/// Two volumes: one is in use all the while, the other is not.
async fn read_back(kind: Kind) {
    let mut store = StoreServer::start(kind).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (1, 3)).await;
    let remote = world.leader().await;
    let (used, idle): (VolumeId, VolumeId) = (id(1).unwrap(), id(2).unwrap());
    let snapshot: SnapshotId = id(3).unwrap();
    let wanted = VolumeSpec {
        labels: [("app".parse().unwrap(), "db".parse().unwrap())].into(),
        limits: QosLimits { iops: Some(100_000), ..QosLimits::default() },
        max_snapshots: Some(9),
        ..VolumeSpec::new(Size::mib(16), 2)
    };
    for volume in [used, idle] {
        remote.put_volume(volume, wanted.clone()).await.unwrap();
    }
    let target = publish(&remote, used).await;
    let mut disk = Disk::attach(target.addresses[0], used).unwrap();
    fill(&mut disk, 0..8);
    let spec = SnapshotSpec::new(used);
    remote.put_snapshot(snapshot, spec).await.unwrap();
    let address = publish(&remote, idle).await.addresses[0];
    fill(&mut Disk::attach(address, idle).unwrap(), 0..8);
    unpublish(&remote, idle).await;

    until_noted(&world, (&wanted, 4)).await;
    world.controls.clear();
    store.program().kill().unwrap();
    for entry in std::fs::read_dir(store.dir()).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    fill(&mut disk, 8..9);
    store.restart().unwrap();
    store.client().await.unwrap();
    world.start_control(&[store.endpoint()]).await;
    let remote = world.leader().await;
    until("everything is found", async || {
        let found = remote.recovery().await.unwrap_or_default();
        (found.pools.len(), found.volumes.len(), found.snapshots.len()) == (3, 2, 1)
    })
    .await;
    let found = remote.recover(RecoverRequest::default()).await.unwrap();
    assert_eq!(found.left, []);
    assert_eq!(found.volumes[&used].served_by.as_ref(), Some(&target.node));
    assert_eq!(found.volumes[&idle].served_by, None);
    assert_eq!(remote.recovery().await.unwrap(), Recovery::default());

    for volume in [used, idle] {
        assert_eq!(*remote.volume(volume).await.unwrap().spec(), wanted);
        until("a volume is well", async || online(&remote, volume).await).await;
    }
    let now = remote.volume(used).await.unwrap().status.unwrap().target.unwrap();
    assert_eq!((now.id, now.epoch, now.hosts), (target.id, target.epoch, target.hosts));
    fill(&mut disk, 9..10);
    holds(&mut disk, 0..10);
    drop(disk);
    unpublish(&remote, used).await;
    let again = publish(&remote, used).await;
    assert!(again.epoch > target.epoch);
    holds(&mut Disk::attach(again.addresses[0], used).unwrap(), 0..10);
    let address = publish(&remote, idle).await.addresses[0];
    holds(&mut Disk::attach(address, idle).unwrap(), 0..8);
    let found = remote.snapshot(snapshot).await.unwrap();
    assert_eq!(found.spec().volume, used);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_in_use_and_idle_are_there_again_with_their_bytes() {
    for kind in KINDS {
        read_back(kind).await;
    }
}
