//! Operations that once hung, or ended the term of whoever led, again and again.

use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::{Fault, Loss, Sim};
use model::*;

use crate::world::*;

/// A published volume, and all nodes lost at once: its target cannot move. The node of the target.
fn lose_all_nodes(sim: &mut Sim) -> NodeName {
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let lost = status(sim, 1).target.unwrap().node;
    for node in sim.cluster.engines.keys().cloned().collect::<Vec<_>>() {
        sim.cluster.lose(&node, Loss::Stopped);
    }
    sim.pass(Duration::from_secs(20));
    lost
}

/// The other nodes come back.
fn bring_others_back(sim: &mut Sim, lost: &NodeName) {
    sim.cluster.engines.remove(lost);
    for engine in sim.cluster.engines.values_mut() {
        engine.start();
    }
}

/// The target and its child on the lost node both change with the purge: in one transaction a key
/// must not be written twice.
#[test]
fn a_node_with_a_live_target_is_purged_in_one_term() {
    let mut sim = cluster(4);
    let lost = lose_all_nodes(&mut sim);
    let restarts = sim.restarts;
    let ticket = sim.ask(Request::PurgeNode(lost.clone(), [].into()));
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.restarts, restarts, "the leader resigned");
    assert_eq!(sim.answers.remove(&ticket), Some(Ok(RequestOutcome::Gone)));
    bring_others_back(&mut sim, &lost);
    settle(&mut sim);
}

/// Nobody asks again: whoever leads next goes on with the purge.
#[test]
fn a_purge_goes_on_after_a_change_of_leaders() {
    let mut sim = cluster(4);
    let lost = lose_all_nodes(&mut sim);
    sim.ask(Request::PurgeNode(lost.clone(), [].into()));
    sim.run();
    sim.restart();
    sim.pass(Duration::from_mins(1));
    let nodes = sim.stored().into_iter().filter_map(|entry| match entry {
        Entry::Node(node) => Some(node.id().clone()),
        _ => None,
    });
    assert!(!nodes.collect::<Vec<_>>().contains(&lost), "the purge of {lost} was forgotten");
    bring_others_back(&mut sim, &lost);
    settle(&mut sim);
}

/// The engine still sends heartbeats, but answers nobody: after a while it counts as absent, and
/// its targets move.
#[test]
fn a_hung_engine_is_failed_over() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let before = status(&sim, 1).target.unwrap();
    sim.cluster.lose(&before.node, Loss::Hung);
    sim.pass(Duration::from_secs(90));
    let liveness = sim.controller.node_seen(&before.node).unwrap().status.unwrap().liveness;
    assert_eq!(liveness, Liveness::Offline { reason: OfflineReason::Unresponsive });
    let after = status(&sim, 1).target.unwrap();
    assert_ne!(after.node, before.node);
    assert!(after.state.is_some_and(TargetState::serves), "{after:?}");
    sim.cluster.engine(before.node.as_str()).start();
    settle(&mut sim);
}

/// An unpublish that waits for an engine which does not answer is forced later.
#[test]
fn an_unpublish_under_way_is_forced_later() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let node = status(&sim, 1).target.unwrap().node;
    sim.cluster.lose(&node, Loss::Hung);
    let first = sim.ask(unpublish(1));
    sim.pass(Duration::from_secs(3));
    assert_eq!(sim.answers.get(&first), None);
    let forced = sim.ask(Request::Unpublish { volume: volume(1), host: None, force: true });
    sim.pass(Duration::from_secs(1));
    assert_eq!(sim.answers.remove(&forced), Some(Ok(RequestOutcome::Changed)));
    assert_eq!(sim.answers.remove(&first), Some(Ok(RequestOutcome::Changed)));
    sim.cluster.engine(node.as_str()).start();
    settle(&mut sim);
}

/// Whoever asks again after an unpublish that took too long waits again, and is not told that
/// nothing is left to do while the target still serves.
#[test]
fn an_unpublish_that_took_too_long_is_waited_for_again() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let node = status(&sim, 1).target.unwrap().node;
    // It answers what it has, and nothing else.
    sim.cluster.engine(node.as_str()).refuses = true;
    let first = sim.ask(unpublish(1));
    sim.pass(Duration::from_secs(70));
    let refused = sim.answers.remove(&first).unwrap().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::TimedOut, "{refused:?}");
    let again = sim.ask(unpublish(1));
    sim.pass(Duration::from_secs(5));
    assert_eq!(sim.answers.get(&again), None, "the target still serves");
    sim.cluster.engine(node.as_str()).refuses = false;
    sim.pass(Duration::from_secs(70));
    assert_eq!(sim.answers.remove(&again), Some(Ok(RequestOutcome::Changed)));
    settle(&mut sim);
}

/// More rebuilds have ended than are remembered, and the engine tells of all of them at each
/// listing: each is told and counted once, and then nothing is written and nothing planned.
#[test]
fn ended_rebuilds_are_told_and_counted_once() {
    let mut sim = cluster(2);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let replica = sim.cluster.copies(volume(1)).into_keys().next().unwrap();
    sim.cluster.end_rebuilds(volume(1), replica, 1300);
    sim.pass(Duration::from_mins(5));
    let ended = |sim: &Sim| {
        let told = sim.told.iter().filter(|it| it.name == EventName::RebuildEnded);
        told.count()
    };
    // Those that were already older than all that are remembered when they were first seen are not
    // told at all.
    assert_eq!(ended(&sim), 1300, "each is told once");
    let (written, failed) = (sim.done, sim.controller.failed_rebuilds(replica));
    sim.pass(Duration::from_mins(1));
    assert_eq!((sim.done, ended(&sim)), (written, 1300), "something goes on for ever");
    assert_eq!(
        (failed, sim.controller.failed_rebuilds(replica)),
        (3, 3),
        "failures are counted once"
    );
    sim.restart();
    sim.pass(Duration::from_mins(1));
    assert_eq!(ended(&sim), 1300, "the next leader tells none of them again");
    assert_eq!(sim.controller.failed_rebuilds(replica), 3);
}

/// As many volumes as a group may have are more than one transaction takes.
#[test]
fn the_largest_group_is_taken_and_deleted() {
    let mut sim = cluster(2);
    let mut snapshots = std::collections::BTreeMap::new();
    for number in 1..=64 {
        sim.insist(&create(number, 1)).unwrap();
        sim.insist(&publish(number)).unwrap();
        snapshots.insert(volume(number), snapshot(number));
    }
    let restarts = sim.restarts;
    let spec = SnapshotGroupSpec::new(snapshots);
    let taken = sim.insist(&Request::CreateGroup(group(), Box::new(spec)));
    assert_eq!((taken, sim.restarts), (Ok(RequestOutcome::Created), restarts));
    settle(&mut sim);
    assert_eq!(sim.insist(&Request::DeleteGroup(group())), Ok(RequestOutcome::Gone));
    assert_eq!(sim.restarts, restarts, "the leader resigned");
    settle(&mut sim);
}

/// An engine writes the record of its volume while the control plane writes it too, and the watch
/// tells of it before the store says that the write was refused. Nothing is in doubt then: the
/// leader goes on from the record as it is.
#[test]
fn a_record_that_was_heard_of_first_does_not_end_the_term() {
    for at in 1..30 {
        let mut sim = cluster(3);
        sim.insist(&create(1, 2)).unwrap();
        sim.insist(&publish(1)).unwrap();
        let (restarts, node) = (sim.restarts, status(&sim, 1).target.unwrap().node);
        sim.cluster.lose(&node, Loss::Stopped);
        sim.fault = Some((sim.done + at, Fault::Overtaken));
        sim.pass(Duration::from_mins(1));
        assert_eq!(sim.restarts, restarts, "overtaken at {at}: the leader resigned");
        assert_ne!(status(&sim, 1).target.unwrap().node, node, "overtaken at {at}");
    }
}

/// A store that is full refuses what is asked for, and the control plane goes on to lead. When it
/// has room again, what waited is done.
#[test]
fn a_full_store_does_not_end_the_term() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let (restarts, node) = (sim.restarts, status(&sim, 1).target.unwrap().node);
    sim.store_is_full = true;
    let ticket = sim.ask(create(2, 2));
    sim.pass(Duration::from_secs(5));
    let refused = sim.answers.remove(&ticket).unwrap().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::NoSpace, "{refused:?}");
    sim.cluster.lose(&node, Loss::Stopped);
    let before = sim.done;
    sim.pass(Duration::from_mins(1));
    let writes = sim.done - before;
    assert!(writes < 60, "the store is asked {writes} times in a minute");
    assert_eq!(sim.restarts, restarts, "the leader resigned");
    sim.store_is_full = false;
    sim.pass(Duration::from_mins(1));
    let target = status(&sim, 1).target.unwrap();
    assert_ne!(target.node, node);
    assert!(target.state.is_some_and(TargetState::serves), "{target:?}");
    assert_eq!(sim.restarts, restarts);
    sim.cluster.engine(node.as_str()).start();
    settle(&mut sim);
}
