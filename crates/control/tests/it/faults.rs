//! Every step of every operation failed, repeated, and interrupted by a restart.
//!
//! After each of them, when time has passed, what is stored and what engines have agree, nothing is
//! left over, no volume lost its last copy in sync on the way, and each volume is whole.

use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::{Fault, Sim};
use model::*;
use store::contract::{Keys, Op, Txn};

use crate::quarantine::{find_earlier_copy, found_copy};
use crate::world::*;

pub(crate) type Script = fn(&mut Sim);

/// Wishes of a caller that asks again when that may help. Without a fault each is granted: a script
/// whose requests are refused would test nothing. With one, the caller lives with a refusal.
#[track_caller]
pub(crate) fn insist(sim: &mut Sim, wishes: &[Request]) {
    for request in wishes {
        let answer = sim.insist(request);
        assert!(answer.is_ok() || sim.fault.is_some(), "{request:?}: {answer:?}");
    }
}

/// Whoever was refused because of a fault asks once more.
#[track_caller]
fn insist_twice(sim: &mut Sim, request: Request) {
    let times = if sim.fault.is_some() { 2 } else { 1 };
    insist(sim, &vec![request; times]);
}

/// Runs a script once for each effect and each fault.
pub(crate) fn check_all(nodes: usize, script: Script) {
    let mut sim = cluster(nodes);
    let before = sim.done;
    script(&mut sim);
    settle(&mut sim);
    let steps = sim.done - before;
    assert!(steps > 4, "a script that does nothing proves nothing");
    for at in 1..=steps {
        for fault in Fault::ALL {
            let mut sim = cluster(nodes);
            sim.fault = Some((sim.done + at, fault));
            let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                script(&mut sim);
                settle(&mut sim);
            }));
            if let Err(panic) = ran {
                eprintln!("step {at} of {steps}, {fault:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn a_life_of_a_volume() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1), unpublish(1), Request::DeleteVolume(volume(1))]);
    });
}

#[test]
fn two_volumes_side_by_side() {
    check_all(3, |sim| {
        for request in [create(1, 3), create(2, 2)] {
            sim.ask(request);
        }
        insist(sim, &[create(1, 3), create(2, 2), publish(1), publish(2)]);
    });
}

#[test]
fn growth_and_more_copies() {
    check_all(3, |sim| {
        let volume = volume(1);
        let grow = Request::Resize { volume, size: Size::gib(2) };
        let more = Request::SetReplicas { volume, replicas: 3 };
        insist(sim, &[create(1, 2), publish(1), grow, more]);
        sim.pass(Duration::from_secs(10));
        insist(sim, &[Request::SetReplicas { volume, replicas: 1 }]);
    });
}

#[test]
fn snapshots_and_what_begins_with_them() {
    check_all(3, |sim| {
        let from = |source| VolumeSpec { source: Some(source), ..spec(2) };
        let restored = from(Source::Snapshot { snapshot: snapshot(1) });
        let cloned = from(Source::Volume { volume: volume(1) });
        let restore = Request::CreateVolume(volume(2), Box::new(restored));
        let clone = Request::CreateVolume(volume(3), Box::new(cloned));
        let wishes = [create(1, 2), publish(1), take(1, 1), restore, clone, publish(3)];
        insist(sim, &wishes);
        insist(sim, &[Request::DeleteSnapshot(snapshot(1))]);
    });
}

#[test]
fn snapshots_of_two_volumes_together() {
    check_all(2, |sim| {
        insist(sim, &[create(1, 1), create(2, 1), publish(1), take_group()]);
    });
}

#[test]
fn a_node_fails_and_comes_back() {
    check_all(4, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let target = sim.controller.volume_seen(volume(1)).and_then(|it| it.status.unwrap().target);
        let node = target.map_or_else(|| good("n1"), |target| target.node);
        sim.cluster.engine(node.as_str()).stop();
        sim.cluster.settle();
        sim.pass(Duration::from_secs(90));
        sim.cluster.engine(node.as_str()).start();
        sim.pass(Duration::from_secs(10));
    });
}

#[test]
fn a_node_is_emptied() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let drain = NodeChange::Drain { cordon: good("test") };
        insist(sim, &[Request::ChangeNode(good("n1"), drain)]);
    });
}

/// The node of a copy of the first volume, if it has one by now.
fn home(sim: &Sim) -> NodeName {
    sim.cluster.copies(volume(1)).into_values().next().unwrap_or_else(|| good("n1"))
}

/// A node without a copy of the first volume.
fn elsewhere(sim: &Sim) -> NodeName {
    let copies = sim.cluster.copies(volume(1));
    let mut names = sim.cluster.engines.keys();
    names.find(|name| !copies.values().any(|it| it == *name)).unwrap().clone()
}

#[test]
fn a_copy_moves() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let replica = sim.cluster.copies(volume(1)).into_keys().next();
        let pool = Some(pool_of(&elsewhere(sim)));
        let Some(replica) = replica else { return };
        insist(sim, &[Request::MoveReplica { volume: volume(1), replica, pool }]);
    });
}

#[test]
fn a_copy_moves_while_nobody_uses_it() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 1), publish(1), unpublish(1)]);
        let replica = sim.cluster.copies(volume(1)).into_keys().next();
        let Some(replica) = replica else { return };
        insist(sim, &[Request::MoveReplica { volume: volume(1), replica, pool: None }]);
    });
}

#[test]
fn a_copy_is_left_alone_used_again_and_removed() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let (volume, replica) = (volume(1), sim.cluster.copies(volume(1)).into_keys().next());
        let Some(replica) = replica else { return };
        let set = |offline| Request::SetReplicaOffline { volume, replica, offline };
        insist(sim, &[set(true)]);
        sim.pass(Duration::from_secs(3));
        insist(sim, &[set(false)]);
        sim.pass(Duration::from_secs(3));
        insist(sim, &[Request::RemoveReplica { volume, replica }]);
    });
}

#[test]
fn a_target_moves_and_what_it_left_is_forgotten() {
    check_all(3, |sim| {
        let volume = volume(1);
        let move_it = Request::Republish { volume, node: None };
        insist(sim, &[create(1, 2), publish(1), move_it, Request::DropTargets(volume)]);
    });
}

#[test]
fn a_volume_is_taken_from_a_node_that_does_not_answer() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let target = sim.controller.volume_seen(volume(1)).and_then(|it| it.status?.target);
        let node = target.map_or_else(|| good("n1"), |target| target.node);
        sim.cluster.engine(node.as_str()).stop();
        sim.cluster.settle();
        let force = Request::Unpublish { volume: volume(1), host: None, force: true };
        insist(sim, &[force, publish(1)]);
        sim.cluster.engine(node.as_str()).start();
        sim.pass(Duration::from_secs(10));
    });
}

#[test]
fn a_group_is_taken_and_deleted() {
    check_all(2, |sim| {
        let wishes = [create(1, 2), create(2, 1), publish(1), publish(2), take_group()];
        insist(sim, &wishes);
        insist(sim, &[Request::DeleteGroup(group())]);
    });
}

/// On a node that has no copy of the snapshot.
#[test]
fn a_snapshot_is_restored_elsewhere() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 1), publish(1), take(1, 1)]);
        let allowed_nodes = [elsewhere(sim)].into();
        let topology = Topology { allowed_nodes, ..Topology::default() };
        let source = Some(Source::Snapshot { snapshot: snapshot(1) });
        let restored = VolumeSpec { source, topology, ..spec(1) };
        insist(sim, &[Request::CreateVolume(volume(2), Box::new(restored)), publish(2)]);
        insist(sim, &[Request::DeleteSnapshot(snapshot(1))]);
    });
}

#[test]
fn a_pool_is_carried_to_another_node() {
    check_all(4, |sim| {
        insist(sim, &[create(1, 2), publish(1), unpublish(1)]);
        let (from, to) = (home(sim), elsewhere(sim));
        let pool = pool_of(&from);
        let export = Request::ChangePool(pool.clone(), PoolChange::Export {});
        insist_twice(sim, export);
        assert!(sim.cluster.carry(&pool, &from, &to), "it was not closed");
        let change = PoolChange::Import { node: to, disks: vec![good("/dev/carried")] };
        let import = Request::ChangePool(pool, change);
        insist_twice(sim, import);
        insist(sim, &[publish(1)]);
    });
}

#[test]
fn a_pool_grows_and_is_deleted() {
    check_all(3, |sim| {
        let pool: PoolName = good("p3");
        let change = |change| Request::ChangePool(pool.clone(), change);
        let disk = PoolChange::AddDisk { disk: good("/dev/another") };
        insist(sim, &[change(PoolChange::Grow {}), change(disk), create(1, 2)]);
        insist(sim, &[change(PoolChange::Cordon { cordon: good("test") })]);
        insist(sim, &[Request::DeletePool(pool.clone())]);
        // What is in use stays; when it is emptied it goes.
        for replica in sim.cluster.engine("n3").replicas.keys().copied().collect::<Vec<_>>() {
            insist(sim, &[Request::MoveReplica { volume: volume(1), replica, pool: None }]);
        }
        sim.pass(Duration::from_secs(20));
        insist(sim, &[Request::DeletePool(pool.clone())]);
    });
}

#[test]
fn a_lost_node_is_purged_with_what_was_only_there() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 1), create(2, 2), publish(1), publish(2)]);
        let node = home(sim);
        sim.cluster.engine(node.as_str()).stop();
        sim.cluster.settle();
        sim.pass(Duration::from_secs(20));
        insist(sim, &[Request::PurgeNode(node.clone(), [volume(1)].into())]);
        sim.cluster.engines.remove(&node);
    });
}

/// A failover that cannot end yet: the node of the target is lost, and before that is certain so is
/// the node where the new one would be. The first of them, and the second, which can come back.
fn lose_both(sim: &mut Sim) -> Option<(NodeName, NodeName)> {
    insist(sim, &[create(1, 2), publish(1)]);
    let lost = sim.controller.volume_seen(volume(1)).and_then(|it| it.status?.target)?.node;
    let copies = sim.cluster.copies(volume(1));
    let other = copies.into_values().find(|node| *node != lost)?;
    sim.cluster.engine(lost.as_str()).stop();
    sim.pass(Duration::from_secs(5));
    sim.cluster.engine(other.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(30));
    let mut stored = sim.stored().into_iter();
    let waits = stored.any(|it| matches!(it, Entry::Failover(it) if !it.stage().is_ended()));
    assert!(waits || sim.fault.is_some(), "it does not happen while the volume moves");
    Some((lost, other))
}

/// Forgets what was on a lost node while the volume moves away from it; then the other comes back.
/// A volume that has its only good copy there is not given up: then the node comes back too.
fn purge_while_moving(sim: &mut Sim, purge: fn(&NodeName) -> Vec<Request>) {
    let Some((lost, other)) = lose_both(sim) else { return };
    let mut purged = Ok(RequestOutcome::Unchanged);
    for request in purge(&lost) {
        purged = sim.insist(&request);
    }
    assert!(purged.is_ok() || sim.fault.is_some(), "{purged:?}");
    if purged.is_ok() {
        sim.cluster.engines.remove(&lost);
    } else {
        sim.cluster.engine(lost.as_str()).start();
    }
    sim.cluster.engine(other.as_str()).start();
}

#[test]
fn a_lost_pool_is_purged_while_its_volume_moves() {
    check_all(3, |sim| {
        purge_while_moving(sim, |lost| {
            vec![Request::DropTargets(volume(1)), Request::PurgePool(pool_of(lost), [].into())]
        });
    });
}

#[test]
fn a_lost_node_is_purged_while_its_volume_moves() {
    check_all(3, |sim| {
        purge_while_moving(sim, |lost| vec![Request::PurgeNode(lost.clone(), [].into())]);
    });
}

/// Whoever asks once hears of the end, though a failover is in the way.
#[test]
fn a_purge_while_its_volume_moves_goes_on_by_itself() {
    let mut sim = cluster(3);
    let (lost, other) = lose_both(&mut sim).unwrap();
    let ticket = sim.ask(Request::PurgeNode(lost.clone(), [].into()));
    sim.pass(Duration::from_secs(10));
    sim.cluster.engine(other.as_str()).start();
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.answers.remove(&ticket), Some(Ok(RequestOutcome::Gone)));
    sim.cluster.engines.remove(&lost);
    settle(&mut sim);
}

#[test]
fn copies_move_from_a_full_pool_to_an_empty_one() {
    check_all(2, |sim| {
        for engine in sim.cluster.engines.values_mut() {
            engine.written = Size::gib(20);
        }
        sim.set(|settings| settings.rebalance_above = Some(10));
        sim.pass(Duration::from_secs(3));
        let (n2, cordon) = (good::<NodeName>("n2"), good::<CordonName>("full"));
        insist(
            sim,
            &[Request::ChangeNode(n2.clone(), NodeChange::Cordon { cordon: cordon.clone() })],
        );
        insist(sim, &[create(1, 1), create(2, 1), publish(1)]);
        insist(sim, &[Request::ChangeNode(n2, NodeChange::Uncordon { cordon })]);
        sim.pass(Duration::from_mins(3));
        let counts: Vec<_> = sim.cluster.engines.values().map(|it| it.replicas.len()).collect();
        assert!(counts.iter().all(|count| *count < 2), "{counts:?}");
    });
}

/// Whoever wants a node emptied may change their mind in the middle.
#[test]
fn a_drain_is_called_off() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let (node, cordon) = (home(sim), good::<CordonName>("test"));
        let drain = NodeChange::Drain { cordon: cordon.clone() };
        insist(sim, &[Request::ChangeNode(node.clone(), drain)]);
        sim.pass(Duration::from_millis(600));
        insist(sim, &[Request::ChangeNode(node, NodeChange::Uncordon { cordon })]);
    });
}

#[test]
fn limits_and_labels_change_and_copies_are_checked() {
    check_all(2, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let limits = QosLimits { iops: Some(100), ..QosLimits::default() };
        let labels = Labels::from([(good("app"), good("db"))]);
        let changed = VolumeSpec { limits, labels, ..spec(2) };
        insist(sim, &[Request::ModifyVolume(volume(1), Box::new(changed))]);
        for replica in sim.cluster.copies(volume(1)).into_keys() {
            insist(sim, &[Request::Scrub(replica)]);
        }
    });
}

/// A copy that is newer than the record of its volume is set aside, made a snapshot of, and
/// destroyed.
#[test]
fn a_copy_set_aside_is_restored_and_deleted() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        sim.pass(Duration::from_secs(15));
        if find_earlier_copy(sim).is_none() {
            return;
        }
        sim.pass(Duration::from_mins(1));
        let replica = found_copy();
        if sim.controller.quarantined().count() == 0 {
            assert!(sim.fault.is_some(), "it is not set aside");
            sim.pass(Duration::from_mins(2));
        }
        insist(sim, &[Request::Rescue { replica, snapshot: snapshot(1) }]);
        insist(sim, &[Request::Discard(replica)]);
        sim.pass(Duration::from_mins(1));
        assert_eq!(sim.controller.quarantined().count(), 0);
    });
}

/// The store is lost, and a control plane reads back what the disks hold.
#[test]
fn what_is_on_the_disks_is_read_back() {
    check_all(3, |sim| {
        insist(sim, &[create(1, 2), publish(1), take(1, 1)]);
        // A volume that was never served is empty, and nothing on the disks says whose it is.
        let mut copies = sim.cluster.engines.values().flat_map(|it| it.replicas.values());
        if sim.cluster.copies(volume(1)).is_empty() || copies.any(|copy| copy.label.is_none()) {
            return;
        }
        sim.cluster.txn(Txn::new().then(Op::delete(Keys::prefix(keys::ROOT))));
        sim.restart();
        sim.pass(Duration::from_secs(15));
        for _ in 0..6 {
            insist(sim, &[Request::Recover([].into())]);
        }
        assert!(sim.controller.volume_seen(volume(1)).is_some());
    });
}
