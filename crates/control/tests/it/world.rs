//! Short words for the tests of a simulated cluster.

use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::{Content, Sim};
use model::*;

pub(crate) fn good<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// The volume with this number.
pub(crate) fn volume(number: u32) -> VolumeId {
    good(&format!("00000000-0000-4000-8000-{number:012}"))
}

pub(crate) fn snapshot(number: u32) -> SnapshotId {
    good(&format!("00000000-0000-4000-9000-{number:012}"))
}

pub(crate) fn spec(replicas: u8) -> VolumeSpec {
    VolumeSpec::new(Size::gib(1), replicas)
}

/// The pool that was made on a node.
pub(crate) fn pool_of(node: &NodeName) -> PoolName {
    good(&node.as_str().replace('n', "p"))
}

pub(crate) fn create_pool(node: usize) -> Request {
    let spec = PoolSpec {
        node: good(&format!("n{node}")),
        disks: vec![good("/dev/disk")],
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: Labels::new(),
        cordons: [].into(),
    };
    Request::CreatePool(good(&format!("p{node}")), Box::new(spec))
}

pub(crate) fn create(number: u32, replicas: u8) -> Request {
    Request::CreateVolume(volume(number), Box::new(spec(replicas)))
}

pub(crate) fn publish(number: u32) -> Request {
    Request::Publish { volume: volume(number), host: Some(good("h1")), node: None }
}

pub(crate) fn unpublish(number: u32) -> Request {
    Request::Unpublish { volume: volume(number), host: None, force: false }
}

pub(crate) fn take(number: u32, of: u32) -> Request {
    let spec = SnapshotSpec::new(volume(of));
    Request::CreateSnapshot(snapshot(number), Box::new(spec))
}

pub(crate) fn group() -> SnapshotGroupId {
    good("00000000-0000-4000-a000-000000000001")
}

/// A snapshot of each of the first two volumes.
pub(crate) fn take_group() -> Request {
    let snapshots = [(volume(1), snapshot(1)), (volume(2), snapshot(2))].into();
    let spec = SnapshotGroupSpec::new(snapshots);
    Request::CreateGroup(group(), Box::new(spec))
}

/// A cluster with a pool on each node.
pub(crate) fn cluster(nodes: usize) -> Sim {
    let mut sim = Sim::new(nodes);
    for node in 1..=nodes {
        assert_eq!(sim.insist(&create_pool(node)).unwrap(), RequestOutcome::Created);
    }
    sim
}

pub(crate) fn seen(sim: &Sim, number: u32) -> Volume {
    sim.controller.volume_seen(volume(number)).unwrap()
}

pub(crate) fn status(sim: &Sim, number: u32) -> VolumeStatus {
    seen(sim, number).status.unwrap()
}

/// Lets time pass until nothing is under way any more, and checks all that must hold then.
pub(crate) fn settle(sim: &mut Sim) {
    sim.pass(Duration::from_secs(150));
    check(sim);
}

/// What must hold whenever nothing is under way and all nodes answer.
pub(crate) fn check(sim: &Sim) {
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
    let mut wanted: Vec<String> = vec![];
    for entry in sim.stored() {
        match entry {
            Entry::Volume(volume) => {
                assert!(volume.lifecycle().is_idle(), "{volume:?}");
                whole(sim, &volume);
            }
            Entry::Replica(replica) => {
                let node = node_of(sim, &replica.spec().pool);
                assert!(replica.lifecycle().is_idle(), "{replica:?}");
                wanted.push(format!("copy {} on {node}", replica.id()));
            }
            Entry::Target(target) => {
                assert!(target.lifecycle().is_idle(), "{target:?}");
                assert_eq!(target.spec().ana, Ana::Optimized, "hosts wait: {target:?}");
                wanted.push(format!("target {} on {}", target.id(), target.spec().node));
            }
            Entry::Snapshot(snapshot) => {
                assert!(snapshot.lifecycle().is_idle(), "{snapshot:?}");
                // A clone begins with a snapshot that has its id, and needs it no more.
                let clone = VolumeId::new(snapshot.id().uuid()).unwrap();
                assert!(
                    sim.controller.volume_seen(clone).is_none(),
                    "left of a clone: {snapshot:?}"
                );
                same("snapshot", snapshot.id(), sim.cluster.contents_of(*snapshot.id()));
                for (pool, copy) in &snapshot.status.as_ref().unwrap().copies {
                    let node = node_of(sim, pool);
                    wanted.push(format!(
                        "snapshot {} of {} on {node}",
                        snapshot.id(),
                        copy.replica
                    ));
                }
            }
            Entry::Node(node) => assert!(node.lifecycle().is_idle(), "{node:?}"),
            Entry::Pool(pool) => assert!(pool.lifecycle().is_idle(), "{pool:?}"),
            Entry::Group(group) => {
                assert!(group.lifecycle().is_idle(), "{group:?}");
                for snapshot in group.spec().snapshots.values() {
                    assert!(
                        sim.controller.snapshot_seen(*snapshot).is_some(),
                        "part of {group:?} lacks"
                    );
                }
            }
            Entry::Quarantine(aside) => {
                let node = node_of(sim, &aside.pool);
                assert!(!aside.discard && aside.rescue.is_none(), "{aside:?}");
                wanted.push(format!("copy {} on {node}", aside.replica));
            }
            Entry::MoveRecord(moving) => panic!("still moving: {moving:?}"),
            Entry::Failover(failover) if !failover.stage().is_ended() => {
                panic!("still moving: {failover:?}")
            }
            _ => {}
        }
    }
    let mut found = vec![];
    for (name, engine) in &sim.cluster.engines {
        found.extend(engine.replicas.keys().map(|id| format!("copy {id} on {name}")));
        found.extend(engine.targets.keys().map(|id| format!("target {id} on {name}")));
        let snapshots = engine.snapshot_ids();
        found.extend(snapshots.map(|(of, id)| format!("snapshot {id} of {of} on {name}")));
    }
    wanted.sort();
    found.sort();
    assert_eq!(wanted, found, "what is stored and what engines have differ");
}

fn node_of(sim: &Sim, pool: &PoolName) -> NodeName {
    sim.controller.pool_seen(pool).unwrap().spec().node.clone()
}

/// Copies of one thing hold the same.
fn same(
    what: &str,
    id: &dyn std::fmt::Display,
    copies: impl IntoIterator<Item = (ReplicaId, Content)>,
) {
    let copies: Vec<_> = copies.into_iter().collect();
    let first = copies.first().map(|(_, content)| *content);
    let differ = copies.iter().any(|(_, content)| Some(*content) != first);
    assert!(!differ, "the copies of {what} {id} differ: {copies:?}");
}

/// A volume has its copies, in sync, each on a node of its own, and a target only if it has hosts.
fn whole(sim: &Sim, stored: &Volume) {
    let id = *stored.id();
    let seen = sim.controller.volume_seen(id).unwrap();
    let status = seen.status.unwrap();
    assert_eq!(status.state, VolumeState::Online, "{status:?}");
    let aside: Vec<_> = sim.controller.quarantined().map(|it| it.replica).collect();
    let mut copies = sim.cluster.copies(id);
    copies.retain(|id, _| !aside.contains(id));
    assert_eq!(copies.len(), usize::from(stored.spec().replicas), "{copies:?}");
    let nodes: std::collections::BTreeSet<_> = copies.values().collect();
    assert_eq!(nodes.len(), copies.len(), "two copies on one node: {copies:?}");
    let mut settled = true;
    if let Some((_, record)) = sim.cluster.record(id) {
        let members: std::collections::BTreeSet<_> = copies.keys().copied().collect();
        assert_eq!(*record.set().in_sync(), members, "{record:?}");
        settled = record.end() == ShutdownState::Clean || status.target.is_some();
    }
    if settled {
        let content = |replica| (replica, sim.cluster.content(replica).unwrap());
        same("volume", &id, copies.keys().copied().map(content));
    }
    if let Some(target) = status.target {
        assert!(target.state.is_some_and(TargetState::serves), "{target:?}");
        assert!(!target.hosts.is_empty(), "nobody needs {target:?}");
    }
}
