//! What is remembered beside specs, also by the next control plane.

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
