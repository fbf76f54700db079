//! A volume is recovered without a copy, which then comes back: it is set aside and restored.

use api::Paging;
use api::node::Node as _;
use api::rest::{Control as _, RecoverRequest, Remote, VolumeAction};
use e2e::fleet::id;
use e2e::process::holdfast;
use e2e::store::{KINDS, Kind as StoreKind, StoreServer};
use model::*;

use super::rig::{ControlProcess, World, engine, publish, until};
use crate::engine::rig::Disk;

const BLOCKS: std::ops::Range<u64> = 0..8;

async fn unpublish(remote: &Remote, volume: VolumeId) {
    let request = VolumeAction::Unpublish { host: None, force: false };
    remote.change_volume(volume, request, None).await.unwrap();
}

/// Publishes a volume and writes all of it, then withdraws it.
async fn write(remote: &Remote, volume: VolumeId, round: u8) -> NodeName {
    let target = publish(remote, volume).await;
    let mut disk = Disk::attach(target.addresses[0], volume).unwrap();
    for block in BLOCKS {
        disk.write(block, u8::try_from(block).unwrap() + round);
    }
    drop(disk);
    unpublish(remote, volume).await;
    target.node
}

async fn holds(remote: &Remote, volume: VolumeId, round: u8) {
    let target = publish(remote, volume).await;
    let mut disk = Disk::attach(target.addresses[0], volume).unwrap();
    for block in BLOCKS {
        assert_eq!(disk.read(block), u8::try_from(block).unwrap() + round, "block {block}");
    }
    drop(disk);
    unpublish(remote, volume).await;
}

/// What `holdfast quarantine` prints.
fn quarantine(control: &ControlProcess, words: &[&str]) -> String {
    let said = control.program.said();
    let server = said.lines().find_map(|it| it.split_once("listening on http://")).unwrap().1;
    let mut command = holdfast().unwrap();
    command.arg("quarantine").args(words).args(["--server", server.trim()]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The place of the engine of a node in the world, and its number.
async fn find(world: &World, node: &NodeName) -> (usize, u32) {
    for (nth, engine) in world.engines.iter().enumerate() {
        if engine.remote.node().await.unwrap().name == *node {
            return (nth, u32::try_from(nth).unwrap() + 1);
        }
    }
    panic!("no engine is {node}");
}

/// The store and the node with everything are lost; what is left is the copy that missed the
/// second round, and its owner insists on it. Returns the store, the world, and the number of the
/// engine that is away.
async fn recovered(kind: StoreKind, volume: VolumeId) -> (StoreServer, World, u32) {
    let mut store = StoreServer::start(kind).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (1, 2)).await;
    let remote = world.leader().await;
    remote.put_volume(volume, VolumeSpec::new(Size::mib(16), 2)).await.unwrap();
    let away = write(&remote, volume, 1).await;
    let (at, nth) = find(&world, &away).await;
    let left = 1 - at;
    world.engines[left].program.kill().unwrap();
    // Each time it has another owner, which nobody at hand will know of.
    for round in [70, 100] {
        assert_eq!(write(&remote, volume, round).await, away);
    }
    world.controls.clear();
    store.program().kill().unwrap();
    for entry in std::fs::read_dir(store.dir()).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    store.restart().unwrap();
    store.client().await.unwrap();
    let endpoints = [store.endpoint()];
    let other = u32::try_from(left).unwrap() + 1;
    world.engines[left] = engine(world.folder.path(), other, &endpoints);
    world.engines.remove(at);
    world.controls.push(ControlProcess::start_with(&endpoints, &["--second-look", "2s"]));
    world.show_all_engines().await;
    let remote = world.leader().await;
    let request = RecoverRequest { incomplete: [volume].into() };
    until("what is left of the volume is read back", async || {
        let _ = remote.recover(request.clone()).await;
        remote.volume(volume).await.is_ok()
    })
    .await;
    (store, world, nth)
}

async fn copy_returns(kind: StoreKind) {
    let (volume, restored): (VolumeId, VolumeId) = (id(1).unwrap(), id(2).unwrap());
    let (store, mut world, nth) = recovered(kind, volume).await;
    let remote = world.leader().await;
    holds(&remote, volume, 1).await;
    write(&remote, volume, 40).await;

    let back = engine(world.folder.path(), nth, &[store.endpoint()]);
    world.engines.push(back);
    world.show_all_engines().await;
    let aside = async || remote.quarantine(Paging::default()).await.unwrap().items;
    until("the copy that came back is set aside", async || {
        // Its pool is not known any more.
        let _ = remote.recover(RecoverRequest::default()).await;
        !aside().await.is_empty()
    })
    .await;
    let [copy] = aside().await.try_into().unwrap();
    let copy = copy.record;
    assert_eq!((copy.volume, copy.cause), (volume, QuarantineCause::Newer), "{copy:?}");
    let found = remote.recovery().await.unwrap();
    assert!(!found.volumes.contains_key(&volume), "the branch would be adopted: {found:?}");
    holds(&remote, volume, 40).await;

    let (replica, snapshot) = (copy.replica.to_string(), id::<SnapshotId>(3).unwrap());
    let listed = quarantine(&world.controls[0], &["list"]);
    assert!(listed.contains(&replica), "{listed}");
    let name = snapshot.to_string();
    quarantine(&world.controls[0], &["restore", &replica, "--snapshot", &name]);
    let source = Some(Source::Snapshot { snapshot });
    let spec = VolumeSpec { source, ..VolumeSpec::new(Size::mib(16), 1) };
    remote.put_volume(restored, spec).await.unwrap();
    holds(&remote, restored, 100).await;
    quarantine(&world.controls[0], &["delete", &replica, "--yes"]);
    until("it is destroyed", async || {
        let engine = world.engines.last().unwrap();
        let there = engine.remote.replicas(Paging::default()).await.unwrap().items;
        aside().await.is_empty() && there.iter().all(|it| it.id != copy.replica)
    })
    .await;
    holds(&remote, volume, 40).await;
    holds(&remote, restored, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_returns_after_a_recovery_without_it_is_kept_and_restored() {
    for kind in KINDS {
        copy_returns(kind).await;
    }
}
