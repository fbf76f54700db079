//! The store is lost; engines and their disks are not.

use std::collections::BTreeSet;
use std::time::Duration;

use control::controller::{Entry, Input, Request, RequestOutcome, Ticket};
use control::testing::{Fault, Sim};
use model::*;
use store::contract::{Keys, Op, Txn};

use crate::world::*;

/// All that was stored is gone, and a new control plane begins.
fn lose_store(sim: &mut Sim) {
    sim.cluster.txn(Txn::new().then(Op::delete(Keys::prefix(keys::ROOT))));
    sim.restart();
    sim.pass(Duration::from_secs(15));
    assert!(sim.controller.volume_seen(volume(1)).is_none());
}

/// Asks until there is nothing more; how often something was read back.
fn recover(sim: &mut Sim, incomplete: &[u32]) -> usize {
    let incomplete: BTreeSet<VolumeId> = incomplete.iter().map(|it| volume(*it)).collect();
    let request = Request::Recover(incomplete);
    (0..100).take_while(|_| sim.insist(&request).unwrap() == RequestOutcome::Changed).count()
}

#[test]
fn pools_volumes_and_snapshots_are_read_back_from_the_disks() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&take(1, 1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    let copies = sim.cluster.copies(volume(1));
    lose_store(&mut sim);
    assert_eq!(sim.cluster.copies(volume(1)), copies, "what nobody knows is not destroyed");
    assert_eq!(recover(&mut sim, &[]), 3, "pools, then volumes, then snapshots");
    sim.pass(Duration::from_secs(15));
    assert_eq!(sim.controller.snapshot_seen(snapshot(1)).unwrap().spec().volume, volume(1));
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
    assert_eq!(sim.cluster.copies(volume(1)), copies);
}

/// It forgets which orders it had, and finds its pool on the disks.
fn restart_engine(sim: &mut Sim) {
    sim.cluster.engine("n1").stop();
    sim.cluster.engine("n1").start();
    sim.pass(Duration::from_secs(15));
}

/// Somebody who does not know that the store was lost makes the pools again. Whatever happens
/// meanwhile, those that are there stay as they are, and can be read back at once.
#[test]
fn a_pool_that_is_there_is_not_touched_by_the_attempt_to_make_it_again() {
    let faults = || (1..8).flat_map(|at| Fault::ALL.map(|fault| (at, fault)));
    let runs =
        [false, true].into_iter().flat_map(|restarts| faults().map(move |it| (restarts, it)));
    for (restarts, (at, fault)) in runs {
        let mut sim = cluster(1);
        let before = sim.cluster.engine("n1").pool_uuid(&good("p1")).unwrap();
        lose_store(&mut sim);
        if restarts {
            restart_engine(&mut sim);
        }
        sim.fault = Some((sim.done + at, fault));
        let refused = sim.insist(&create_pool(1));
        sim.controller.on(sim.now, Input::NodeChanged(good("n1")));
        sim.fault = None;
        sim.run();
        assert!(refused.is_err(), "{at} {fault:?}: {refused:?}");
        assert_eq!(sim.cluster.engine("n1").pool_uuid(&good("p1")), Some(before), "{at} {fault:?}");
        for _ in 0..200 {
            if sim.stored().iter().all(|entry| !matches!(entry, Entry::Pool(_))) {
                break;
            }
            sim.pass(Duration::from_millis(500));
        }
        sim.insist(&Request::List(good("n1"))).unwrap();
        assert_eq!(recover(&mut sim, &[]), 1, "{at} {fault:?}");
        settle(&mut sim);
        assert_eq!(sim.cluster.engine("n1").pool_uuid(&good("p1")), Some(before), "{at} {fault:?}");
    }
}

/// What it said while a pool was being made did not count that pool as unknown.
#[test]
fn what_a_node_has_is_asked_again_before_it_is_read_back() {
    let mut sim = cluster(1);
    lose_store(&mut sim);
    restart_engine(&mut sim);
    sim.fault = Some((sim.done + 2, Fault::NotSent));
    let ticket = sim.ask(create_pool(1));
    sim.run();
    sim.controller.on(sim.now, Input::NodeChanged(good("n1")));
    assert_eq!(answer(&mut sim, ticket).unwrap_err().kind, ProblemKind::AlreadyExists);
    sim.insist(&Request::List(good("n1"))).unwrap();
    assert_eq!(recover(&mut sim, &[]), 1);
}

fn answer(sim: &mut Sim, ticket: Ticket) -> Result<RequestOutcome, Problem> {
    for _ in 0..100 {
        sim.run();
        if let Some(answer) = sim.answers.remove(&ticket) {
            return answer;
        }
        sim.pass(Duration::from_millis(500));
    }
    panic!("nobody answered");
}

/// Whoever has said what it has needs no second heartbeat to be there.
#[test]
fn a_node_is_online_as_soon_as_it_was_listed() {
    let sim = Sim::new(1);
    let liveness = sim.controller.node_seen(&good("n1")).unwrap().status.unwrap().liveness;
    assert_eq!(liveness, Liveness::Online);
}

#[test]
fn a_node_that_does_not_answer_keeps_nobody_waiting() {
    let mut sim = cluster(2);
    let list = |sim: &mut Sim, node: &str, stop: bool| {
        let ticket = sim.ask(Request::List(good(node)));
        if stop {
            sim.cluster.engine(node).stop();
        }
        answer(sim, ticket).map_err(|problem| problem.kind)
    };
    assert_eq!(list(&mut sim, "n9", false), Err(ProblemKind::NotFound));
    assert_eq!(list(&mut sim, "n2", true), Err(ProblemKind::NodeUnavailable));
    sim.pass(Duration::from_secs(15));
    assert_eq!(list(&mut sim, "n2", false), Err(ProblemKind::NodeUnavailable));
    assert_eq!(list(&mut sim, "n1", false), Ok(RequestOutcome::Unchanged));
}

/// What was wanted of a volume is on the disks too, as it was when the store was lost.
#[test]
fn what_was_wanted_of_a_volume_is_read_back() {
    let mut sim = cluster(3);
    let labels = |value: &str| Labels::from([(good("app"), good(value))]);
    let limits = QosLimits { iops: Some(500), ..QosLimits::default() };
    let wanted = VolumeSpec {
        labels: labels("db"),
        limits,
        max_snapshots: Some(7),
        affinity_group: Some(good("spread")),
        ..spec(2)
    };
    sim.insist(&Request::CreateVolume(volume(1), Box::new(wanted.clone()))).unwrap();
    sim.insist(&publish(1)).unwrap();
    let wanted = VolumeSpec { labels: labels("cache"), ..wanted };
    sim.insist(&Request::ModifyVolume(volume(1), Box::new(wanted.clone()))).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    sim.pass(Duration::from_secs(15));
    let on_disk = |sim: &Sim| {
        let copies = sim.cluster.engines.values().flat_map(|engine| engine.replicas.values());
        let spec_backups: Vec<SpecBackup> =
            copies.filter_map(|copy| copy.spec_backup.clone()).collect();
        assert_eq!(spec_backups.len(), 2);
        spec_backups
    };
    let before = on_disk(&sim);
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    assert_eq!(*seen(&sim, 1).spec(), wanted);
    // What is wanted next counts as newer than what was on the disks.
    let wanted = VolumeSpec { labels: labels("queue"), ..wanted };
    sim.insist(&Request::ModifyVolume(volume(1), Box::new(wanted.clone()))).unwrap();
    settle(&mut sim);
    for spec_backup in on_disk(&sim) {
        assert_eq!(*spec_backup.spec, wanted);
        assert!(
            before.iter().all(|old| old.generation < spec_backup.generation),
            "{spec_backup:?}"
        );
    }
}

/// Engines that have no key yet cannot say which one they need; what is wanted says it.
#[test]
fn the_key_of_a_volume_is_read_back_where_none_was_there_to_open_it() {
    let mut sim = cluster(3);
    let encryption = Some(Encryption { key: good("tenant-a") });
    let wanted = VolumeSpec { encryption: encryption.clone(), ..spec(2) };
    sim.insist(&Request::CreateVolume(volume(1), Box::new(wanted.clone()))).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    sim.pass(Duration::from_secs(15));
    for engine in sim.cluster.engines.values_mut() {
        for copy in engine.replicas.values_mut() {
            copy.spec.encryption = None;
        }
    }
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    assert_eq!(*seen(&sim, 1).spec(), wanted);
    settle(&mut sim);
    let copies = sim.cluster.engines.values().flat_map(|engine| engine.replicas.values());
    let keys: Vec<_> = copies.map(|copy| copy.spec.encryption.clone()).collect();
    assert_eq!(keys, [encryption.clone(), encryption]);
}

/// Snapshots stay where they were taken when the copies of their volume move away.
#[test]
fn snapshots_whose_copies_have_moved_are_read_back() {
    let mut sim = cluster(4);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&take(1, 1)).unwrap();
    let places = |sim: &Sim| {
        let copies = sim.controller.snapshot_seen(snapshot(1)).unwrap().status.unwrap().copies;
        copies.into_iter().map(|(pool, copy)| (pool, copy.replica)).collect::<Vec<_>>()
    };
    let before = places(&sim);
    for replica in sim.cluster.copies(volume(1)).into_keys() {
        sim.insist(&Request::MoveReplica { volume: volume(1), replica, pool: None }).unwrap();
        sim.pass(Duration::from_secs(20));
    }
    let copies = sim.cluster.copies(volume(1));
    assert!(before.iter().all(|(_, of)| !copies.contains_key(of)), "{copies:?}");
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    assert_eq!(places(&sim), before);
    settle(&mut sim);
}

#[test]
fn groups_of_snapshots_are_put_together_again() {
    let mut sim = cluster(3);
    for number in [1, 2] {
        sim.insist(&create(number, 2)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    sim.insist(&take(3, 1)).unwrap();
    sim.insist(&take_group()).unwrap();
    let spec = |sim: &Sim| {
        let stored = sim.stored();
        let groups = stored.into_iter().filter_map(|entry| match entry {
            Entry::Group(group) => Some(group),
            _ => None,
        });
        groups.map(|it| (*it.id(), it.spec().clone())).collect::<Vec<_>>()
    };
    let before = spec(&sim);
    assert_eq!(before.len(), 1);
    lose_store(&mut sim);
    assert_eq!(recover(&mut sim, &[]), 4, "pools, volumes, snapshots, the group");
    assert_eq!(spec(&sim), before);
    let alone = sim.controller.snapshot_seen(snapshot(3)).unwrap();
    assert_eq!(alone.spec().group, None);
    sim.insist(&Request::DeleteGroup(group())).unwrap();
    settle(&mut sim);
    assert_eq!(spec(&sim), []);
}

#[test]
fn a_volume_that_is_served_goes_on_being_served() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let before = status(&sim, 1).target.unwrap();
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    settle(&mut sim);
    let after = status(&sim, 1).target.unwrap();
    assert_eq!((after.id, after.epoch, &after.hosts), (before.id, before.epoch, &before.hosts));
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
}

/// The copy at hand is stale and does not know it: only the other one does.
#[test]
fn a_volume_of_which_a_copy_is_missing_is_not_read_back_unless_its_owner_insists() {
    let mut sim = cluster(2);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let newer = status(&sim, 1).target.unwrap().node;
    let stale = sim.cluster.copies(volume(1)).into_values().find(|it| *it != newer).unwrap();
    sim.cluster.engine(stale.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(15));
    sim.cluster.engine(newer.as_str()).stop();
    sim.cluster.engine(stale.as_str()).start();
    lose_store(&mut sim);
    assert_eq!(recover(&mut sim, &[]), 1, "the pool");
    assert!(sim.controller.volume_seen(volume(1)).is_none());
    sim.cluster.engine(newer.as_str()).start();
    sim.pass(Duration::from_secs(15));
    assert_eq!(recover(&mut sim, &[]), 2, "the other pool, and the volume");
    settle(&mut sim);
    let (_, record) = sim.cluster.record(volume(1)).unwrap();
    assert!(record.epoch() > Epoch::FIRST);
}

#[test]
fn a_volume_is_read_back_from_what_is_left_if_its_owner_insists() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    let gone = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    sim.cluster.engines.remove(&gone);
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    assert!(sim.controller.volume_seen(volume(1)).is_none());
    assert_eq!(recover(&mut sim, &[1]), 1);
    settle(&mut sim);
    assert_eq!(status(&sim, 1).state, VolumeState::Online, "a new copy was made");
}

/// The copy at hand is stale and does not know it; its owner insists, and the other one, with all
/// that was written since, comes back: it is kept, however healthy the volume is by then.
#[test]
fn a_newer_copy_that_returns_after_an_incomplete_recovery_is_not_destroyed() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let newer = status(&sim, 1).target.unwrap().node;
    let copies = sim.cluster.copies(volume(1));
    let (kept, _) = copies.iter().find(|(_, node)| **node == newer).unwrap();
    let stale = copies.values().find(|it| **it != newer).unwrap();
    sim.cluster.engine(stale.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(15));
    sim.cluster.engine(newer.as_str()).stop();
    sim.cluster.engine(stale.as_str()).start();
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    recover(&mut sim, &[1]);
    sim.pass(Duration::from_mins(3));
    assert_eq!(status(&sim, 1).state, VolumeState::Online, "a new copy was made");
    sim.cluster.engine(newer.as_str()).start();
    sim.pass(Duration::from_secs(15));
    // Its pool is known again.
    recover(&mut sim, &[]);
    sim.pass(Duration::from_mins(10));
    let there = sim.cluster.engine(newer.as_str()).replicas.contains_key(kept);
    assert!(there, "copy {kept} on {newer} was destroyed");
}

/// The copy that is away goes through more owners than anybody here can know of. When it comes back
/// its numbers are higher than those of every copy that was found: it must not look newer.
#[test]
fn an_abandoned_branch_never_looks_newer_than_the_recovered_one() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let away = status(&sim, 1).target.unwrap().node;
    let copies = sim.cluster.copies(volume(1));
    let (kept, _) = copies.iter().find(|(_, node)| **node == away).unwrap();
    let stale = copies.values().find(|it| **it != away).unwrap();
    sim.cluster.engine(stale.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(15));
    sim.cluster.engine(away.as_str()).stop();
    // Somebody else owned it, again and again.
    let branch = sim.cluster.engine(away.as_str()).replicas.get_mut(kept).unwrap();
    let label = branch.label.as_mut().unwrap();
    (0..1000).for_each(|_| label.epoch = label.epoch.next());
    (0..1000).for_each(|_| label.set = label.set.after(label.set.generation()));
    label.size = label.size.plus(Size::gib(1));
    sim.cluster.engine(stale.as_str()).start();
    lose_store(&mut sim);
    recover(&mut sim, &[]);
    recover(&mut sim, &[1]);
    // What only the lost copy had is gone, as was said.
    sim.cluster.forget_history(volume(1));
    sim.insist(&publish(1)).unwrap();
    sim.pass(Duration::from_mins(3));
    let size = sim.controller.volume_seen(volume(1)).unwrap().spec().size;
    sim.cluster.engine(away.as_str()).start();
    sim.pass(Duration::from_secs(15));
    recover(&mut sim, &[]);
    sim.pass(Duration::from_mins(10));
    let blocked: Vec<_> = sim.controller.blocked().iter().map(|it| it.reason.clone()).collect();
    assert!(!blocked.iter().any(|it| it.contains("older than the disks")), "{blocked:?}");
    let again = sim.insist(&Request::Recover([volume(1)].into()));
    assert_eq!(again, Ok(RequestOutcome::Unchanged), "the branch was adopted");
    assert!(sim.controller.quarantined().any(|it| it.replica == *kept), "{blocked:?}");
    assert_eq!(status(&sim, 1).state, VolumeState::Online);
    assert_eq!(sim.controller.volume_seen(volume(1)).unwrap().spec().size, size);
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
}
