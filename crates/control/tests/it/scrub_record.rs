//! What is remembered beside specs, also by the next control plane.

use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::Sim;
use model::*;

use crate::world::*;

fn failovers(sim: &Sim) -> Vec<Failover> {
    let stored = sim.stored().into_iter();
    let failover = |entry| match entry {
        Entry::Failover(failover) => Some(*failover),
        _ => None,
    };
    stored.filter_map(failover).collect()
}

#[test]
fn a_failover_that_ended_is_remembered_until_its_volume_goes() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let from = status(&sim, 1).target.unwrap().id;
    sim.insist(&Request::Republish { volume: volume(1), node: None }).unwrap();
    let to = status(&sim, 1).target.unwrap().id;
    sim.restart();
    settle(&mut sim);
    let [kept] = &failovers(&sim)[..] else { panic!("{:?}", failovers(&sim)) };
    assert_eq!((kept.from(), kept.stage()), (from, &FailoverStage::Successful { to }));
    sim.insist(&Request::Republish { volume: volume(1), node: None }).unwrap();
    assert_eq!(failovers(&sim).len(), 2);
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&Request::DeleteVolume(volume(1))).unwrap();
    assert_eq!(failovers(&sim), []);
}

#[test]
fn when_a_copy_was_checked_is_remembered_as_long_as_it_is_there() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let copy = *sim.cluster.copies(volume(1)).keys().next().unwrap();
    assert_eq!(sim.insist(&Request::Scrub(copy)).unwrap(), RequestOutcome::Changed);
    let scrubs = |sim: &Sim| {
        let stored = sim.stored().into_iter();
        stored.filter(|entry| matches!(entry, Entry::ScrubRecord(_))).count()
    };
    settle(&mut sim);
    assert_eq!(scrubs(&sim), 1);
    sim.restart();
    settle(&mut sim);
    assert_eq!(scrubs(&sim), 1);
    sim.insist(&Request::DeleteVolume(volume(1))).unwrap();
    assert_eq!(scrubs(&sim), 0);
}

/// What a scrub finds on a copy of a volume that nobody uses is repaired by a target that is opened
/// for that, and closed again.
#[test]
fn rot_in_a_volume_that_nobody_uses_is_repaired() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    let (copy, node) = sim.cluster.copies(volume(1)).into_iter().next().unwrap();
    sim.cluster.engine(node.as_str()).rot.insert(copy, 7);
    sim.insist(&Request::Scrub(copy)).unwrap();
    settle(&mut sim);
    let ended = sim.told.iter().find(|event| event.name == EventName::ScrubEnded).unwrap();
    assert!(ended.message.contains("7 repaired"), "{}", ended.message);
    assert!(sim.cluster.engine(node.as_str()).rot.is_empty());
    sim.pass(Duration::from_mins(3));
    settle(&mut sim);
    assert!(status(&sim, 1).target.is_none(), "its target is closed again");
}

/// All blocks are compared once in each period, of volumes in use and of others, across restarts.
#[test]
fn copies_are_compared_on_a_schedule() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&create(2, 2)).unwrap();
    sim.insist(&publish(2)).unwrap();
    sim.insist(&unpublish(2)).unwrap();
    let hour = Duration::from_hours(1);
    sim.set(|settings| settings.compare_every = Some(hour));
    let compared =
        |sim: &Sim| -> u64 { sim.cluster.engines.values().map(|engine| engine.compared).sum() };
    settle(&mut sim);
    assert_eq!(compared(&sim), 0);
    let blocks = Size::gib(1).bytes().0 / 4096;
    for round in 1..=2 {
        sim.pass(hour);
        settle(&mut sim);
        assert_eq!(compared(&sim), round * 2 * blocks);
        sim.restart();
    }
    settle(&mut sim);
    let records = sim.stored().into_iter();
    let records = records.filter(|entry| matches!(entry, Entry::ComparisonRecord(_))).count();
    assert_eq!(records, 2);
    assert!(status(&sim, 2).target.is_none(), "its target is closed again");
    sim.insist(&Request::DeleteVolume(volume(2))).unwrap();
    let left = sim.stored().into_iter();
    assert_eq!(left.filter(|entry| matches!(entry, Entry::ComparisonRecord(_))).count(), 1);
}

/// The copies of a volume may be left alone, one by one, but never all.
#[test]
fn a_copy_is_left_alone_and_used_again_as_asked() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let copies: Vec<ReplicaId> = sim.cluster.copies(volume(1)).into_keys().collect();
    let set = |replica, offline| Request::SetReplicaOffline { volume: volume(1), replica, offline };
    assert_eq!(sim.insist(&set(copies[0], true)).unwrap_err().kind, ProblemKind::NotPublished);
    sim.insist(&publish(1)).unwrap();
    assert_eq!(sim.insist(&set(copies[0], true)).unwrap(), RequestOutcome::Changed);
    assert_eq!(sim.insist(&set(copies[0], true)).unwrap(), RequestOutcome::Unchanged);
    assert_eq!(sim.insist(&set(copies[1], true)).unwrap_err().kind, ProblemKind::LastReplica);
    assert_eq!(sim.insist(&set(copies[0], false)).unwrap(), RequestOutcome::Changed);
    settle(&mut sim);
}
