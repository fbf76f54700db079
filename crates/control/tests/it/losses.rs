//! Every operation, and the loss of every node at every step of it.
//!
//! Whoever asked is answered within a bound, nothing is under way any more then, and what can be
//! served is. When the node is back, all is as it should be.

use std::time::Duration;

use control::controller::{Entry, Request};
use control::testing::{Loss, Sim};
use model::*;

use crate::faults::insist;
use crate::quarantine::{find_earlier_copy, found_copy};
use crate::world::*;

/// An operation ends within this time whatever is lost.
const BOUND: Duration = Duration::from_mins(3);

struct Operation {
    nodes: usize,
    prepare: fn(&mut Sim),
    request: fn(&Sim) -> Request,
}

/// Runs an operation once for each step, each node, and each way to lose it.
fn check_all(operation: &Operation) {
    let (mut sim, request) = prepared(operation);
    let before = sim.done;
    sim.insist(&request).unwrap();
    let steps = sim.done - before;
    for node in 1..=operation.nodes {
        let node: NodeName = good(&format!("n{node}"));
        for at in 1..=steps {
            for loss in [Loss::Stopped, Loss::Hung] {
                let ran = std::panic::catch_unwind(|| check_one(operation, (at, &node, loss)));
                if let Err(panic) = ran {
                    eprintln!("node {node} {loss:?} before step {at} of {steps}");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

fn prepared(operation: &Operation) -> (Sim, Request) {
    let mut sim = cluster(operation.nodes);
    (operation.prepare)(&mut sim);
    sim.pass(Duration::from_secs(5));
    let request = (operation.request)(&sim);
    (sim, request)
}

fn check_one(operation: &Operation, (at, node, loss): (usize, &NodeName, Loss)) {
    let (mut sim, request) = prepared(operation);
    sim.loss = Some((sim.done + at, node.clone(), loss));
    let ticket = sim.ask(request);
    sim.pass(BOUND);
    assert!(sim.answers.contains_key(&ticket), "nobody was answered");
    check_ended(&sim);
    sim.loss = None;
    sim.cluster.engine(node.as_str()).start();
    settle(&mut sim);
}

/// Nothing is under way, and each volume with a host is served if a copy in sync is there.
fn check_ended(sim: &Sim) {
    for entry in sim.stored() {
        match entry {
            Entry::Volume(volume) => {
                let running = volume.lifecycle().operation();
                assert!(running.is_none(), "it is still under way: {running:?}");
                assert!(!matches!(volume.lifecycle(), Lifecycle::Creating {}), "{volume:?}");
            }
            Entry::Pool(pool) => {
                let running = pool.lifecycle().operation();
                assert!(running.is_none(), "it is still under way: {running:?}");
                assert!(!matches!(pool.lifecycle(), Lifecycle::Creating {}), "{pool:?}");
            }
            Entry::Snapshot(snapshot) => {
                assert!(!matches!(snapshot.lifecycle(), Lifecycle::Creating {}), "{snapshot:?}");
            }
            Entry::Group(group) => {
                assert!(!matches!(group.lifecycle(), Lifecycle::Creating {}), "{group:?}");
            }
            Entry::Quarantine(aside) => assert_eq!(aside.rescue, None, "{aside:?}"),
            Entry::TargetRecord(record) => check_served(sim, &record),
            _ => {}
        }
    }
}

fn check_served(sim: &Sim, record: &TargetRecord) {
    let volume = sim.controller.volume_seen(record.volume());
    let target = volume.and_then(|volume| volume.status?.target);
    let Some(target) = target.filter(|target| !target.hosts.is_empty()) else { return };
    let works = |node: &NodeName| sim.cluster.engines.get(node).is_some_and(|it| it.up && !it.hung);
    let copies = sim.cluster.copies(record.volume());
    let mut good = record.set().in_sync().iter().filter_map(|replica| copies.get(replica));
    if good.any(works) {
        let serves = target.state.is_some_and(TargetState::serves);
        assert!(serves && works(&target.node), "it is not served: {target:?}");
    }
}

fn serve_one(sim: &mut Sim) {
    insist(sim, &[create(1, 2), publish(1)]);
}

fn serve_none(_: &mut Sim) {}

macro_rules! operations {
    ($($(#[doc = $doc:literal])* $name:ident: $nodes:literal, $prepare:expr,
        $request:expr;)+) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            check_all(&Operation { nodes: $nodes, prepare: $prepare, request: $request });
        }
    )+};
}

operations! {
    a_volume_is_made: 3, serve_none, |_| create(1, 2);
    a_volume_is_deleted: 3, |sim| insist(sim, &[create(1, 2)]),
        |_| Request::DeleteVolume(volume(1));
    a_volume_is_published: 3, |sim| insist(sim, &[create(1, 2)]), |_| publish(1);
    a_volume_is_unpublished: 3, serve_one, |_| unpublish(1);
    a_volume_grows: 3, serve_one, |_| Request::Resize { volume: volume(1), size: Size::gib(2) };
    a_volume_that_is_not_served_grows: 3, |sim| insist(sim, &[create(1, 2)]),
        |_| Request::Resize { volume: volume(1), size: Size::gib(2) };
    a_target_moves: 3, serve_one, |_| Request::Republish { volume: volume(1), node: None };
    a_snapshot_is_taken: 3, serve_one, |_| take(1, 1);
    a_snapshot_of_a_volume_at_rest_is_taken: 3,
        |sim| insist(sim, &[create(1, 2), publish(1), unpublish(1)]), |_| take(1, 1);
    a_snapshot_is_deleted: 3, |sim| insist(sim, &[create(1, 2), publish(1), take(1, 1)]),
        |_| Request::DeleteSnapshot(snapshot(1));
    a_group_is_taken: 3,
        |sim| insist(sim, &[create(1, 2), create(2, 2), publish(1), publish(2)]),
        |_| take_group();
    a_group_is_deleted: 3, |sim| insist(sim, &[create(1, 2), create(2, 2), take_group()]),
        |_| Request::DeleteGroup(group());
    a_volume_is_cloned: 3, serve_one, |_| {
        let source = Some(Source::Volume { volume: volume(1) });
        Request::CreateVolume(volume(2), Box::new(VolumeSpec { source, ..spec(2) }))
    };
    a_snapshot_is_restored: 3, |sim| insist(sim, &[create(1, 2), publish(1), take(1, 1)]), |_| {
        let source = Some(Source::Snapshot { snapshot: snapshot(1) });
        Request::CreateVolume(volume(2), Box::new(VolumeSpec { source, ..spec(2) }))
    };
    a_volume_gets_more_copies: 3, serve_one,
        |_| Request::SetReplicas { volume: volume(1), replicas: 3 };
    a_copy_moves: 4, serve_one, |sim| {
        let replica = sim.cluster.copies(volume(1)).into_keys().next().unwrap();
        Request::MoveReplica { volume: volume(1), replica, pool: None }
    };
    a_copy_is_removed: 3, |sim| insist(sim, &[create(1, 3), publish(1)]), |sim| {
        let replica = sim.cluster.copies(volume(1)).into_keys().next().unwrap();
        Request::RemoveReplica { volume: volume(1), replica }
    };
    a_pool_grows: 2, serve_none, |_| Request::ChangePool(good("p1"), PoolChange::Grow {});
    a_pool_is_exported: 2, serve_none, |_| Request::ChangePool(good("p1"), PoolChange::Export {});
    a_copy_set_aside_is_restored: 3,
        |sim| {
            serve_one(sim);
            sim.pass(Duration::from_secs(15));
            find_earlier_copy(sim).unwrap();
            sim.pass(Duration::from_mins(1));
        },
        |_| Request::Rescue { replica: found_copy(), snapshot: snapshot(1) };
}

/// A pool that was being made is forgotten; what its engine made of it is named in the status.
#[test]
fn a_pool_is_made() {
    for loss in [Loss::Stopped, Loss::Hung] {
        let mut sim = Sim::new(1);
        let node: NodeName = good("n1");
        sim.loss = Some((sim.done + 2, node.clone(), loss));
        let ticket = sim.ask(create_pool(1));
        sim.pass(BOUND);
        assert!(sim.answers.remove(&ticket).is_some_and(|it| it.is_err()), "{loss:?}");
        check_ended(&sim);
        sim.cluster.engine("n1").start();
        sim.pass(Duration::from_secs(10));
        sim.insist(&create_pool(1)).unwrap();
        settle(&mut sim);
    }
}
