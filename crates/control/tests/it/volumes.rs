//! Volumes from intent to healed, in a simulated cluster.

use std::time::Duration;

use control::controller::{Request, RequestOutcome};
use model::*;

use crate::world::*;

#[test]
fn a_volume_is_made_served_and_deleted() {
    let mut sim = cluster(3);
    assert_eq!(sim.insist(&create(1, 2)).unwrap(), RequestOutcome::Created);
    assert_eq!(sim.insist(&create(1, 2)).unwrap(), RequestOutcome::Unchanged);
    assert_eq!(status(&sim, 1).state, VolumeState::Online);
    assert_eq!(sim.insist(&publish(1)).unwrap(), RequestOutcome::Changed);
    assert_eq!(sim.insist(&publish(1)).unwrap(), RequestOutcome::Unchanged);
    let target = status(&sim, 1).target.unwrap();
    assert_eq!(target.state, Some(TargetState::Open));
    settle(&mut sim);
    let refused = sim.insist(&Request::DeleteVolume(volume(1))).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::InUse);
    assert_eq!(sim.insist(&unpublish(1)).unwrap(), RequestOutcome::Changed);
    settle(&mut sim);
    assert_eq!(sim.insist(&Request::DeleteVolume(volume(1))).unwrap(), RequestOutcome::Gone);
    assert_eq!(sim.insist(&Request::DeleteVolume(volume(1))).unwrap(), RequestOutcome::Unchanged);
    settle(&mut sim);
    assert!(sim.cluster.copies(volume(1)).is_empty());
}

#[test]
fn a_volume_outlives_the_node_of_its_target() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let before = status(&sim, 1).target.unwrap();
    sim.cluster.engine(before.node.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(20));
    let after = status(&sim, 1).target.unwrap();
    assert_ne!(before.node, after.node);
    assert!(after.epoch > before.epoch);
    assert!(after.state.is_some_and(TargetState::serves), "{after:?}");
    // A copy elsewhere takes the place of the lost one, in time.
    sim.pass(Duration::from_secs(100));
    assert_eq!(status(&sim, 1).state, VolumeState::Online);
    sim.cluster.engine(before.node.as_str()).start();
    settle(&mut sim);
}

/// The node that is to serve a volume dies without a word: whoever waits is told as soon as there
/// is doubt, long before the node is given up, and the next try finds another.
#[test]
fn nobody_waits_for_a_node_in_doubt() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let node = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    sim.cluster.engine(node.as_str()).stop();
    let Request::Publish { volume, host, .. } = publish(1) else { panic!("it publishes") };
    let ticket = sim.ask(Request::Publish { volume, host, node: Some(node.clone()) });
    let began = sim.now;
    while !sim.answers.contains_key(&ticket) {
        sim.pass(Duration::from_millis(500));
    }
    let refused = sim.answers.remove(&ticket).unwrap().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::NodeUnavailable);
    assert!(refused.detail.contains(node.as_str()), "{refused:?}");
    assert!(sim.now.since(began) <= Duration::from_secs(5), "{:?}", sim.now.since(began));
    sim.insist(&publish(1)).unwrap();
    assert_ne!(status(&sim, 1).target.unwrap().node, node);
    sim.cluster.engine(node.as_str()).start();
    settle(&mut sim);
}

#[test]
fn a_copy_that_comes_back_is_brought_in_sync() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 3)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let target = status(&sim, 1).target.unwrap();
    let copies = sim.cluster.copies(volume(1));
    let other = copies.values().find(|node| **node != target.node).unwrap().clone();
    sim.cluster.engine(other.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(20));
    assert_eq!(status(&sim, 1).state, VolumeState::Degraded);
    sim.cluster.engine(other.as_str()).start();
    settle(&mut sim);
    assert_eq!(sim.cluster.copies(volume(1)), copies, "no copy was made elsewhere");
}

#[test]
fn a_volume_heals_also_when_nobody_uses_it() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    let lost = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    sim.cluster.engine(lost.as_str()).stop();
    sim.pass(Duration::from_secs(200));
    assert_eq!(status(&sim, 1).state, VolumeState::Online, "{:?}", status(&sim, 1));
    sim.cluster.engine(lost.as_str()).start();
    settle(&mut sim);
}

#[test]
fn a_drained_node_is_empty() {
    let mut sim = cluster(4);
    for number in 1..=4 {
        sim.insist(&create(number, 2)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    let drain = NodeChange::Drain { cordon: good("upgrade") };
    sim.insist(&Request::ChangeNode(good("n1"), drain)).unwrap();
    settle(&mut sim);
    let engine = sim.cluster.engine("n1");
    assert!(engine.replicas.is_empty() && engine.targets.is_empty(), "{engine:?}");
}

#[test]
fn copies_follow_the_number_that_is_wanted() {
    let mut sim = cluster(4);
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    for replicas in [3, 2, 4, 1] {
        sim.insist(&Request::SetReplicas { volume: volume(1), replicas }).unwrap();
        settle(&mut sim);
        assert_eq!(sim.cluster.copies(volume(1)).len(), usize::from(replicas));
    }
}

#[test]
fn a_copy_moves_where_it_is_asked_to() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let copies = sim.cluster.copies(volume(1));
    let (from, _) = copies.first_key_value().unwrap();
    let free = (1..=3).map(|n| good::<NodeName>(&format!("n{n}")));
    let free = free.into_iter().find(|node| !copies.values().any(|it| it == node)).unwrap();
    let pool = Some(good(&free.as_str().replace('n', "p")));
    sim.insist(&Request::MoveReplica { volume: volume(1), replica: *from, pool }).unwrap();
    settle(&mut sim);
    let after = sim.cluster.copies(volume(1));
    assert!(after.values().any(|node| *node == free) && !after.contains_key(from), "{after:?}");
}

/// A move takes as long as a rebuild: everything else goes on meanwhile.
#[test]
fn a_volume_is_used_while_a_copy_moves() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    let copies = sim.cluster.copies(volume(1));
    let [first, second] = copies.keys().copied().collect::<Vec<_>>()[..] else { panic!() };
    let go = |replica| Request::MoveReplica { volume: volume(1), replica, pool: None };
    let ticket = sim.ask(go(first));
    let others = [go(first), go(second), publish(1), take(1, 1)].map(|request| sim.ask(request));
    let grow = sim.ask(Request::Resize { volume: volume(1), size: Size::gib(2) });
    sim.pass(Duration::from_secs(5));
    let mut said = |ticket| sim.answers.remove(&ticket).unwrap();
    assert_eq!(said(ticket).unwrap(), RequestOutcome::Changed);
    let [again, other, published, taken] = others;
    assert_eq!(said(again).unwrap(), RequestOutcome::Unchanged);
    assert_eq!(said(other).unwrap_err().kind, ProblemKind::Busy);
    for (what, ticket) in [("publish", published), ("snapshot", taken), ("growth", grow)] {
        let said = said(ticket);
        // One after another: a caller asks again.
        let is_well =
            said.as_ref().map_or_else(|problem| problem.kind == ProblemKind::Busy, |_| true);
        assert!(is_well, "{what}: {said:?}");
    }
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
    let after = sim.cluster.copies(volume(1));
    assert!(!after.contains_key(&first) && after.contains_key(&second), "{after:?}");
    assert_eq!(status(&sim, 1).reasons, Vec::<String>::new());
}

#[test]
fn a_volume_grows_while_it_is_served() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&Request::Resize { volume: volume(1), size: Size::gib(2) }).unwrap();
    settle(&mut sim);
    assert_eq!(seen(&sim, 1).spec().size, Size::gib(2));
    for engine in sim.cluster.engines.values() {
        for id in engine.replicas.keys() {
            assert_eq!(sim.controller.replica_seen(*id).unwrap().spec().size, Size::gib(2));
        }
    }
    let refused =
        sim.insist(&Request::Resize { volume: volume(1), size: Size::gib(1) }).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::OutOfRange);
}

#[test]
fn snapshots_are_restored_anywhere_and_outlive_their_volume() {
    let mut sim = cluster(4);
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    assert_eq!(sim.insist(&take(1, 1)).unwrap(), RequestOutcome::Created);
    sim.insist(&unpublish(1)).unwrap();
    assert_eq!(sim.insist(&take(2, 1)).unwrap(), RequestOutcome::Created);
    settle(&mut sim);
    let source = Some(Source::Snapshot { snapshot: snapshot(1) });
    let restored = VolumeSpec { source, ..spec(3) };
    sim.insist(&Request::CreateVolume(volume(2), Box::new(restored))).unwrap();
    sim.insist(&Request::DeleteVolume(volume(1))).unwrap();
    sim.insist(&publish(2)).unwrap();
    settle(&mut sim);
    let source = Some(Source::Volume { volume: volume(2) });
    let cloned = VolumeSpec { source, ..spec(2) };
    sim.insist(&Request::CreateVolume(volume(3), Box::new(cloned))).unwrap();
    settle(&mut sim);
    for number in [1, 2] {
        assert_eq!(
            sim.insist(&Request::DeleteSnapshot(snapshot(number))).unwrap(),
            RequestOutcome::Gone
        );
    }
    settle(&mut sim);
}

#[test]
fn a_snapshot_of_a_group_goes_with_its_group() {
    let mut sim = cluster(2);
    for request in [create(1, 1), create(2, 1), take_group()] {
        sim.insist(&request).unwrap();
    }
    let refused = sim.insist(&Request::DeleteSnapshot(snapshot(1))).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::InUse);
    assert!(refused.detail.contains("delete the group"), "{refused:?}");
    assert_eq!(sim.insist(&Request::DeleteGroup(group())).unwrap(), RequestOutcome::Gone);
    assert_eq!(
        sim.insist(&Request::DeleteSnapshot(snapshot(1))).unwrap(),
        RequestOutcome::Unchanged
    );
    settle(&mut sim);
}

#[test]
fn a_node_that_is_gone_for_good_is_purged() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let node = status(&sim, 1).target.unwrap().node;
    let purge = Request::PurgeNode(node.clone(), [].into());
    assert_eq!(sim.insist(&purge).unwrap_err().kind, ProblemKind::InUse);
    sim.cluster.engine(node.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(20));
    // Asked once, it goes on to its end.
    let ticket = sim.ask(purge);
    sim.pass(Duration::from_secs(10));
    assert_eq!(sim.answers.remove(&ticket), Some(Ok(RequestOutcome::Gone)));
    let engine = sim.cluster.engines.remove(&node).unwrap();
    settle(&mut sim);
    // It comes back with its pool: somebody is to say what to do with it.
    sim.cluster.engines.insert(node.clone(), engine);
    sim.cluster.engine(node.as_str()).start();
    sim.pass(Duration::from_mins(1));
    let pool = Subject::Pool(pool_of(&node));
    let why = sim.controller.blocked().iter().find(|blocked| blocked.subject == pool);
    assert!(why.is_some_and(|why| why.reason.contains("nobody knows it")), "{why:?}");
}

/// A pool that works is not forgotten: its copies would be left behind on its disks for good.
#[test]
fn a_pool_is_purged_only_when_it_is_away() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let node = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    let pool: PoolName = good(&node.as_str().replace('n', "p"));
    let purge = Request::PurgePool(pool.clone(), [].into());
    let refused = sim.insist(&purge).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::InUse);
    assert!(refused.detail.contains(node.as_str()), "{refused:?}");
    sim.cluster.engine(node.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(20));
    assert_eq!(sim.insist(&purge).unwrap(), RequestOutcome::Gone);
    sim.cluster.engines.remove(&node);
    sim.pass(Duration::from_mins(3));
    assert!(sim.controller.pool_seen(&pool).is_none());
    assert_eq!(status(&sim, 1).state, VolumeState::Online, "{:?}", status(&sim, 1));
}

#[test]
fn snapshots_of_several_volumes_are_taken_together() {
    let mut sim = cluster(3);
    for number in [1, 2] {
        sim.insist(&create(number, 2)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    let take = take_group();
    assert_eq!(sim.insist(&take).unwrap(), RequestOutcome::Created);
    assert_eq!(sim.insist(&take).unwrap(), RequestOutcome::Unchanged);
    settle(&mut sim);
    assert_eq!(sim.insist(&Request::DeleteGroup(group())).unwrap(), RequestOutcome::Gone);
    settle(&mut sim);
}

#[test]
fn without_room_a_volume_is_refused_with_the_reason() {
    let mut sim = cluster(2);
    let refused = sim.insist(&create(1, 3)).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::NoPlacement, "{refused:?}");
    assert!(refused.detail.contains("3 places"), "{}", refused.detail);
    settle(&mut sim);
}
