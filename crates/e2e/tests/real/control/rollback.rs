//! The store goes back to an earlier backup under engines whose disks know more.

use api::node::Node as _;
use api::rest::{Backup, Control as _, EventQuery, RecoverRequest, Remote, VolumeAction};
use e2e::fleet::id;
use e2e::process::holdfast;
use e2e::store::{KINDS, Kind as StoreKind, StoreServer};
use model::*;
use store::export::{Onto, import};

use super::rig::{ControlProcess, World, engine, publish, publish_on, until};
use crate::engine::rig::Disk;

const BLOCKS: std::ops::Range<u64> = 0..8;

async fn unpublish(remote: &Remote, volume: VolumeId) {
    let request = VolumeAction::Unpublish { host: None, force: false };
    remote.change_volume(volume, request, None).await.unwrap();
}

fn fill(disk: &mut Disk, round: u8) {
    for block in BLOCKS {
        disk.write(block, u8::try_from(block).unwrap() + round);
    }
}

fn holds(disk: &mut Disk, round: u8) {
    for block in BLOCKS {
        assert_eq!(disk.read(block), u8::try_from(block).unwrap() + round, "block {block}");
    }
}

/// The store holds what was in the backup, and nothing else.
async fn restore(store: &mut StoreServer, Backup(backup): Backup) {
    store.program().kill().unwrap();
    for entry in std::fs::read_dir(store.dir()).unwrap() {
        std::fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    store.restart().unwrap();
    let client = store.client().await.unwrap();
    let mut backup = std::io::Cursor::new(backup);
    import(&client, &mut backup, Onto::Empty, &mut |_| {}).await.unwrap();
}

/// What `holdfast recover` prints.
fn recover(control: &ControlProcess, more: &[&str]) -> String {
    let said = control.program.said();
    let server = said.lines().find_map(|it| it.split_once("listening on http://")).unwrap().1;
    let mut command = holdfast().unwrap();
    command.args(["recover", "--server", server.trim()]).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Status and events name the volume and the copy that knows more, and what to do.
async fn is_told(remote: &Remote, volume: VolumeId, copy: ReplicaId) {
    let says = |text: &str| text.contains(&copy.to_string()) && text.contains("holdfast recover");
    until("the status names the volume and the copy", async || {
        let issues = remote.status().await.map_or(Vec::new(), |status| status.issues);
        let is_it = |subject: &Subject| *subject == Subject::Volume(volume);
        issues.iter().any(|it| is_it(&it.subject) && says(&it.message))
    })
    .await;
    until("an event names the volume and the copy", async || {
        let asked = EventQuery { severity: Some(Severity::Error), ..EventQuery::default() };
        let events = remote.event_history(asked).await.unwrap().items;
        events.iter().any(|it| it.subject == Subject::Volume(volume) && says(&it.message))
    })
    .await;
}

async fn store_goes_back(kind: StoreKind) {
    let mut store = StoreServer::start(kind).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (1, 2)).await;
    let remote = world.leader().await;
    let volume: VolumeId = id(1).unwrap();
    remote.put_volume(volume, VolumeSpec::new(Size::mib(16), 2)).await.unwrap();
    let target = publish(&remote, volume).await;
    fill(&mut Disk::attach(target.addresses[0], volume).unwrap(), 1);
    unpublish(&remote, volume).await;
    let backup = remote.backup().await.unwrap();

    let target = publish(&remote, volume).await;
    let mut stale = 0;
    for (nth, engine) in world.engines.iter().enumerate() {
        if engine.remote.node().await.unwrap().name != target.node {
            stale = nth;
        }
    }
    world.engines[stale].program.kill().unwrap();
    fill(&mut Disk::attach(target.addresses[0], volume).unwrap(), 100);
    unpublish(&remote, volume).await;

    world.controls.clear();
    restore(&mut store, backup).await;
    let nth = u32::try_from(stale).unwrap() + 1;
    world.engines[stale] = engine(world.folder.path(), nth, &[store.endpoint()]);
    world.start_control(&[store.endpoint()]).await;
    let remote = world.leader().await;
    let copies = remote.volume(volume).await.unwrap().status.unwrap().replicas;
    let newest = copies.iter().find(|(_, copy)| copy.node == target.node).unwrap();
    is_told(&remote, volume, *newest.0).await;
    let request = VolumeAction::Publish { host: Some("node-9".parse().unwrap()), node: None };
    let refused = remote.change_volume(volume, request, None).await.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::StoreBehind, "{refused}");

    until("the disks are found to be newer", async || {
        remote.recovery().await.is_ok_and(|found| found.volumes.contains_key(&volume))
    })
    .await;
    let offered = recover(&world.controls[0], &[]);
    assert!(offered.contains("newer than the store"), "{offered}");
    let adopted = remote.recover(RecoverRequest::default()).await.unwrap();
    assert!(adopted.volumes[&volume].newer_than_store, "{adopted:?}");
    let target = publish(&remote, volume).await;
    holds(&mut Disk::attach(target.addresses[0], volume).unwrap(), 100);
    until("both copies are in sync", async || {
        let found = remote.volume(volume).await;
        found.is_ok_and(|it| it.status.is_some_and(|it| it.state == VolumeState::Online))
    })
    .await;
    // Each copy is read by a target beside it.
    for node in copies.values().map(|copy| copy.node.clone()) {
        unpublish(&remote, volume).await;
        let target = publish_on(&remote, volume, Some(node.clone())).await;
        assert_eq!(target.node, node);
        holds(&mut Disk::attach(target.addresses[0], volume).unwrap(), 100);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_older_than_the_disks_is_not_believed() {
    for kind in KINDS {
        store_goes_back(kind).await;
    }
}
