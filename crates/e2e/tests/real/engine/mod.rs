//! `holdfast engine run`: the engine of a node, by orders over its node API.

mod cluster;
mod damage;
#[cfg(feature = "faults")]
mod faults;
mod host;
mod keys;
mod moments;
mod orders;
mod owners;
mod reservations;
pub(crate) mod rig;
mod rollback;
mod targets;

use api::node::{
    DeletePool, DeleteReplica, DiffQuery, GenerationQuery, JobControl, Node, PoolFilter, Range,
    Remote, ScrubState, SnapshotRequest,
};
use api::{Deleted, Effect, Paging};
use model::*;
use rig::{Disk, HOST, Rig, disk, id, kind, order, pool_spec, replica_spec};

fn request(at: u64) -> SnapshotRequest {
    let (taken_at, consistency) = (Timestamp::from_millis(at), Consistency::FileSystem);
    SnapshotRequest { group: Some(id(70)), taken_at, consistency }
}

fn label(epoch: u64) -> ReplicaLabel {
    let set = ReplicaSet::new([id(20), id(21)].into()).unwrap();
    let epoch = Epoch::new(epoch).unwrap();
    ReplicaLabel { volume: id(10), replica: id(20), size: Size::mib(16), epoch, set }
}

fn blocks(page: &[Range]) -> Vec<(u64, u64)> {
    let block = |size: Size| size.bytes().0 / 4096;
    page.iter().map(|range| (block(range.offset), block(range.length))).collect()
}

fn numbered(number: u64) -> GenerationQuery {
    GenerationQuery { generation: Generation::new(number).unwrap() }
}

fn pool_removal(uuid: u32) -> DeletePool {
    DeletePool { generation: Generation::new(9).unwrap(), uuid: id(uuid) }
}

fn removal(number: u64, pool: &PoolName) -> DeleteReplica {
    DeleteReplica { generation: Generation::new(number).unwrap(), pool: pool.clone() }
}

/// Destroys the first pool, after another one of its name, which leaves it as it is.
async fn drop_pool(node: &Remote, name: PoolName) {
    let gone = |existed| Deleted { existed };
    assert_eq!(node.delete_pool(name.clone(), pool_removal(2)).await.unwrap(), gone(false));
    assert_eq!(node.pool(name.clone()).await.unwrap().status.state, PoolState::Online);
    assert_eq!(node.delete_pool(name.clone(), pool_removal(1)).await.unwrap(), gone(true));
    assert_eq!(node.delete_pool(name, pool_removal(1)).await.unwrap(), gone(false));
}

/// Deletes a snapshot that is in the second of these pools.
async fn drop_snapshot(
    node: &Remote,
    (replica, snapshot): (ReplicaId, SnapshotId),
    [elsewhere, pool]: [PoolName; 2],
) {
    let drop = |pool: PoolName| node.delete_snapshot(replica, snapshot, PoolFilter { pool });
    assert_eq!(kind(drop(elsewhere).await), ProblemKind::NotFound);
    assert!(drop(pool.clone()).await.unwrap().existed);
    assert!(!drop(pool).await.unwrap().existed);
}

#[tokio::test]
async fn everything_is_there_again_after_the_death_of_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let (home, file) = (folder.path().join("engine"), disk(folder.path(), "disk", 256));
    let (replica, clone, snapshot) = (id(20), id(22), id(30));
    let mut rig = Rig::start("node-1", &home, &[]);
    rig.furnish(&file, replica).await;
    let node = &rig.remote;

    // Two snapshots with writes between; what changed is told, a page at a time.
    let mut host = Disk::connect(rig.data, replica).unwrap();
    (0..4).for_each(|block| host.write(block * 10, 1));
    let taken = node.put_snapshot(replica, snapshot, request(5)).await.unwrap();
    assert_eq!((taken.effect, taken.now.label.volume), (Effect::Created, id(10)));
    host.write(10, 2);
    host.write(100, 2);
    node.put_snapshot(replica, id(31), request(6)).await.unwrap();
    let since = DiffQuery { since: Some(snapshot), limit: Some(1), after: None };
    let first = node.changed(replica, id(31), since.clone()).await.unwrap();
    assert_eq!(blocks(&first.items), [(10, 1)]);
    let next = DiffQuery { after: first.after, ..since };
    let second = node.changed(replica, id(31), next).await.unwrap();
    assert_eq!((blocks(&second.items), second.after), (vec![(100, 1)], None));
    let all = node.written(replica, Paging::default()).await.unwrap();
    assert_eq!(blocks(&all.items), [(0, 1), (10, 1), (20, 1), (30, 1), (100, 1)]);

    // A clone of the first snapshot; a larger replica, while it is used.
    let source = ReplicaSpec { source: Some(snapshot), volume: id(11), ..replica_spec(16, true) };
    node.put_replica(clone, order(1, source)).await.unwrap();
    let grown = node.put_replica(replica, order(2, replica_spec(32, true))).await.unwrap();
    assert_eq!((grown.effect, grown.now.spec.size), (Effect::Changed, Size::mib(32)));
    Disk::connect(rig.data, replica).unwrap().write(8191, 3);
    assert_eq!(node.put_label(replica, label(4)).await.unwrap().effect, Effect::Created);

    rig.program.kill().unwrap();
    let rig = Rig::start("node-1", &home, &[]);
    let node = &rig.remote;
    let pool = node.pool("tank".parse().unwrap()).await.unwrap();
    assert_eq!((pool.status.state, pool.status.uuid), (PoolState::Online, id(1)));
    assert_eq!((pool.generation, pool.status.used > Size::ZERO), (None, true));
    let found = node.replica(replica).await.unwrap();
    // Nothing is shared before the control plane says so again.
    assert_eq!((found.spec, found.generation), (replica_spec(32, false), None));
    assert_eq!(found.status.label, Some(label(4)));
    assert!(Disk::connect(rig.data, replica).is_err());
    let snapshots = node.snapshots(Paging::default()).await.unwrap().items;
    assert_eq!(snapshots.len(), 2);
    assert_eq!(snapshots[0], api::node::ObservedSnapshot { clones: [clone].into(), ..taken.now });

    // The same orders again, harmlessly.
    let again = node.put_pool("tank".parse().unwrap(), order(1, pool_spec("node-1", &file)));
    assert_eq!(again.await.unwrap().effect, Effect::Unchanged);
    let shared = node.put_replica(replica, order(2, replica_spec(32, true))).await.unwrap();
    assert_eq!(shared.effect, Effect::Changed);
    let again = node.put_replica(replica, order(2, replica_spec(32, true))).await.unwrap();
    assert_eq!(again.effect, Effect::Unchanged);
    let source = ReplicaSpec { source: Some(snapshot), volume: id(11), ..replica_spec(16, true) };
    node.put_replica(clone, order(1, source)).await.unwrap();
    let (mut host, mut other) =
        (Disk::connect(rig.data, replica).unwrap(), Disk::connect(rig.data, clone).unwrap());
    assert_eq!([0, 10, 100, 8191].map(|block| host.read(block)), [1, 2, 2, 3]);
    assert_eq!([0, 10, 100].map(|block| other.read(block)), [1, 1, 0]);
}

#[tokio::test]
async fn orders_that_come_late_or_make_no_sense_are_refused() {
    use ProblemKind::{
        AlreadyExists, Fenced, GenerationReused, InUse, InvalidArgument, NoSpace, NotFound,
        NotSupported, StaleGeneration,
    };
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let rig = Rig::start("node-1", &folder.path().join("engine"), &[]);
    let (node, replica, tank) = (&rig.remote, id(20), "tank".parse::<PoolName>().unwrap());
    // Pools.
    let put = |generation, spec| node.put_pool("tank".parse().unwrap(), order(generation, spec));
    let good = pool_spec("node-1", &file);
    let missing = folder.path().join("none");
    assert_eq!(kind(put(1, pool_spec("node-2", &file)).await), InvalidArgument);
    assert_eq!(kind(put(1, pool_spec("node-1", &missing)).await), InvalidArgument);
    assert_eq!(kind(put(2, PoolSpec { import: true, ..good.clone() }).await), NotFound);
    assert_eq!(kind(put(1, good.clone()).await), StaleGeneration);
    assert_eq!(put(3, good.clone()).await.unwrap().effect, Effect::Created);
    let other = PoolSpec { labels: [("a".parse().unwrap(), "b".parse().unwrap())].into(), ..good };
    assert_eq!(kind(put(3, other.clone()).await), GenerationReused);
    assert_eq!(put(4, other.clone()).await.unwrap().effect, Effect::Changed);
    let uuid = PoolSpec { uuid: Some(id(2)), ..other.clone() };
    assert_eq!(kind(put(5, uuid).await), AlreadyExists);
    // Replicas.
    let put = |generation, spec| node.put_replica(replica, order(generation, spec));
    let spec = replica_spec(16, true);
    let elsewhere = ReplicaSpec { pool: "other".parse().unwrap(), ..spec.clone() };
    assert_eq!(kind(put(1, elsewhere).await), NotFound);
    let thick = ReplicaSpec { thin: false, size: Size::gib(1), ..spec.clone() };
    assert_eq!(kind(put(1, thick).await), NoSpace);
    let from = ReplicaSpec { source: Some(id(30)), ..spec.clone() };
    assert_eq!(kind(put(2, from).await), NotFound);
    assert_eq!(put(3, spec.clone()).await.unwrap().effect, Effect::Created);
    let smaller = ReplicaSpec { size: Size::mib(8), ..spec.clone() };
    assert_eq!(kind(put(4, smaller.clone()).await), InUse);
    let thick = ReplicaSpec { thin: false, ..spec.clone() };
    assert_eq!(kind(put(4, thick).await), AlreadyExists);
    let unshared = ReplicaSpec { hosts: [].into(), ..smaller };
    assert_eq!(put(4, unshared).await.unwrap().now.status.addresses, []);
    // Labels: older epochs are fenced off.
    node.put_label(replica, label(4)).await.unwrap();
    assert_eq!(node.put_label(replica, label(4)).await.unwrap().effect, Effect::Unchanged);
    assert_eq!(kind(node.put_label(replica, label(3)).await), Fenced);
    let other = ReplicaLabel { volume: id(11), ..label(5) };
    assert_eq!(kind(node.put_label(replica, other).await), InvalidArgument);
    assert_eq!(kind(node.put_label(id(29), label(5)).await), NotFound);
    // Snapshots, and what holds a pool.
    node.put_snapshot(replica, id(30), request(1)).await.unwrap();
    let same = node.put_snapshot(replica, id(30), request(1)).await.unwrap();
    assert_eq!(same.effect, Effect::Unchanged);
    assert_eq!(kind(node.put_snapshot(replica, id(30), request(2)).await), AlreadyExists);
    assert_eq!(kind(node.delete_pool(tank.clone(), pool_removal(1)).await), InUse);
    assert_eq!(kind(node.delete_replica(replica, removal(3, &tank)).await), StaleGeneration);
    let elsewhere: PoolName = "other".parse().unwrap();
    assert_eq!(kind(node.delete_replica(replica, removal(5, &elsewhere)).await), NotFound);
    assert!(node.delete_replica(replica, removal(5, &tank)).await.unwrap().existed);
    assert!(!node.delete_replica(replica, removal(5, &tank)).await.unwrap().existed);
    assert_eq!(kind(put(5, spec).await), StaleGeneration);
    // A snapshot outlives its replica.
    assert_eq!(node.snapshots(Paging::default()).await.unwrap().items.len(), 1);
    drop_snapshot(node, (replica, id(30)), [elsewhere, tank.clone()]).await;
    drop_pool(node, tank).await;
    // Targets are for engines that have a store.
    assert_eq!(node.targets(Paging::default()).await.unwrap().items, []);
    assert_eq!(kind(node.target(id(40)).await), NotFound);
    let target = TargetSpec {
        volume: id(10),
        node: "node-1".parse().unwrap(),
        epoch: Epoch::FIRST,
        size: Size::mib(16),
        children: vec![Child { replica, path: ChildPath::Local {}, offline: false }],
        hosts: [].into(),
        limits: QosLimits::default(),
        ana: Ana::Optimized,
        shutdown: false,
    };
    assert_eq!(kind(node.put_target(id(40), order(1, target)).await), NotSupported);
}

/// An engine forgets the numbers of its orders when it is started again. An order of a store that
/// went back must not cut off the end of a volume all the same.
#[tokio::test]
async fn a_replica_is_never_cut_below_its_label() {
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let home = folder.path().join("engine");
    let replica = id(20);
    let mut rig = Rig::start("node-1", &home, &[]);
    rig.furnish(&file, replica).await;
    let sized = |mib| replica_spec(mib, false);
    rig.remote.put_replica(replica, order(7, sized(32))).await.unwrap();
    let label = ReplicaLabel { size: Size::mib(32), ..label(4) };
    rig.remote.put_label(replica, label).await.unwrap();
    rig.program.kill().unwrap();
    let rig = Rig::start("node-1", &home, &[]);
    let put = |generation, mib| rig.remote.put_replica(replica, order(generation, sized(mib)));
    assert_eq!(kind(put(2, 16).await), ProblemKind::StoreBehind);
    let found = rig.remote.replica(replica).await.unwrap();
    assert_eq!(found.spec.size, Size::mib(32));
    // What grew in vain may shrink again.
    put(8, 64).await.unwrap();
    assert_eq!(put(9, 32).await.unwrap().now.spec.size, Size::mib(32));
}

#[tokio::test]
async fn only_the_listed_hosts_reach_a_replica() {
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let rig = Rig::start("node-1", &folder.path().join("engine"), &[]);
    let replica = id(20);
    rig.furnish(&file, replica).await;
    Disk::connect(rig.data, replica).unwrap().write(0, 1);
    assert!(Disk::hold_served(rig.data, replica).is_err(), "without the secret of the cluster");
    let hosts = [format!("{HOST}0").parse().unwrap()].into();
    let spec = ReplicaSpec { hosts, ..replica_spec(16, true) };
    rig.remote.put_replica(replica, order(2, spec)).await.unwrap();
    assert!(Disk::connect(rig.data, replica).is_err());
    rig.remote.put_replica(replica, order(3, replica_spec(16, true))).await.unwrap();
    assert_eq!(Disk::connect(rig.data, replica).unwrap().read(0), 1);
}

#[tokio::test]
async fn a_pool_grows_with_its_disks_and_is_scrubbed() {
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let mut rig = Rig::start("node-1", &folder.path().join("engine"), &[]);
    let replica = id(20);
    rig.furnish(&file, replica).await;
    let node = &rig.remote;
    let tank = || "tank".parse::<PoolName>().unwrap();
    let capacity = |found: &api::node::Observed<PoolSpec>| found.status.capacity;
    let small = capacity(&node.pool(tank()).await.unwrap());
    // Its disk becomes larger, and the same request is sent anew.
    disk(folder.path(), "disk", 192);
    let spec = pool_spec("node-1", &file);
    let grown = node.put_pool(tank(), order(2, spec.clone())).await.unwrap();
    assert!(grown.effect == Effect::Changed && capacity(&grown.now) > small, "{grown:?}");
    let same = node.put_pool(tank(), order(3, spec.clone())).await.unwrap();
    assert_eq!((same.effect, capacity(&same.now)), (Effect::Unchanged, capacity(&grown.now)));
    // One disk more; none less.
    let more = disk(folder.path(), "more", 128).to_str().unwrap().parse().unwrap();
    let disks = [&spec.disks[..], &[more]].concat();
    let wider = PoolSpec { disks, ..spec.clone() };
    let wide = node.put_pool(tank(), order(4, wider)).await.unwrap().now;
    assert!(wide.status.disks.len() == 2 && capacity(&wide) > capacity(&grown.now), "{wide:?}");
    assert_eq!(kind(node.put_pool(tank(), order(5, spec)).await), ProblemKind::NotSupported);
    // A scrub reads what was written.
    Disk::connect(rig.data, replica).unwrap().write(7, 7);
    let run = || order(1, JobControl::default());
    assert_eq!(kind(node.scrub(replica).await), ProblemKind::NotFound);
    node.put_scrub(replica, run()).await.unwrap();
    let done = loop {
        let scrub = node.scrub(replica).await.unwrap();
        if scrub.state != (ScrubState::Running {}) {
            break scrub;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((done.state, done.bad_blocks), (ScrubState::Completed {}, 0));
    assert_eq!(done.progress.done, Size::BLOCK);
    assert_eq!(node.put_scrub(replica, run()).await.unwrap().effect, Effect::Unchanged);
    // It stops cleanly: nothing is in doubt afterwards.
    assert!(rig.program.stop().unwrap().success());
}
