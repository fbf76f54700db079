//! The store goes back to an earlier state, and the disks know more.

use std::time::Duration;

use control::controller::{Request, RequestOutcome};
use control::testing::{Backup, Sim};
use model::*;
use store::contract::{Keys, Op, Txn};

use crate::seeds::{Dice, each_seed};
use crate::world::*;

/// A volume whose backup says that both copies are in sync, and which of them are by now.
struct Scene {
    sim: Sim,
    backup: Backup,
    /// The node whose copy has everything.
    newest: NodeName,
    /// The node whose copy missed what was flushed since.
    stale: NodeName,
}

/// A backup is made with both copies in sync, while the volume is served or not; one fails, and the
/// host goes on with the other.
fn scene(nodes: usize, served: bool) -> Scene {
    let mut sim = cluster(nodes);
    for request in [create(1, 2), publish(1)] {
        sim.insist(&request).unwrap();
    }
    if !served {
        sim.insist(&unpublish(1)).unwrap();
    }
    sim.pass(Duration::from_secs(15));
    let backup = sim.cluster.back_up();
    sim.insist(&publish(1)).unwrap();
    let newest = status(&sim, 1).target.unwrap().node;
    let stale = sim.cluster.copies(volume(1)).into_values().find(|it| *it != newest).unwrap();
    sim.cluster.engine(stale.as_str()).stop();
    sim.cluster.settle();
    sim.cluster.write_all();
    sim.cluster.write_all();
    // Engines are told how far the store has come.
    sim.pass(Duration::from_secs(5));
    Scene { sim, backup, newest, stale }
}

impl Scene {
    /// The store is what it was at the backup, and a control plane begins with it.
    fn go_back(&mut self) {
        self.sim.cluster.restore(&self.backup);
        self.sim.restart();
    }
}

fn recover(sim: &mut Sim) -> usize {
    let request = Request::Recover([].into());
    (0..100).take_while(|_| sim.insist(&request).unwrap() == RequestOutcome::Changed).count()
}

/// Whether people are told, by status and by an event, which copies know more.
fn assert_told(sim: &Sim, copy: ReplicaId) {
    let status = status(sim, 1);
    assert_eq!(status.state, VolumeState::Faulted, "{status:?}");
    let says = |text: &str| text.contains(&copy.to_string()) && text.contains("holdfast recover");
    assert!(status.reasons.iter().any(|reason| says(reason)), "{status:?}");
    let event =
        sim.told.iter().find(|it| it.subject == Subject::Volume(volume(1)) && says(&it.message));
    assert_eq!(event.expect("an event names the copy").severity, Severity::Error);
}

fn copy_on(sim: &Sim, node: &NodeName) -> ReplicaId {
    let copies = sim.cluster.copies(volume(1)).into_iter();
    copies.filter(|(_, on)| on == node).map(|(id, _)| id).next().unwrap()
}

/// The sequence that began this: a copy that missed days of flushed writes was read again.
#[test]
fn a_store_older_than_the_disks_is_not_believed() {
    let mut scene = scene(2, false);
    scene.sim.insist(&unpublish(1)).unwrap();
    scene.go_back();
    let Scene { mut sim, newest, stale, .. } = scene;
    sim.cluster.engine(stale.as_str()).start();
    sim.pass(Duration::from_secs(15));
    let refused = sim.insist(&publish(1));
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
    assert_eq!(refused.unwrap_err().kind, ProblemKind::StoreBehind);
    for request in [take(1, 1), Request::Resize { volume: volume(1), size: Size::gib(2) }] {
        assert_eq!(sim.insist(&request).unwrap_err().kind, ProblemKind::StoreBehind);
    }
    assert_told(&sim, copy_on(&sim, &newest));
    assert_eq!(recover(&mut sim), 1);
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
}

/// The same, but the host never stopped: its target goes on, and is taken over.
#[test]
fn a_target_that_serves_goes_on_when_the_store_goes_back() {
    let mut scene = scene(2, false);
    let before = status(&scene.sim, 1).target.unwrap();
    scene.go_back();
    let Scene { mut sim, newest, stale, .. } = scene;
    sim.cluster.engine(stale.as_str()).start();
    sim.pass(Duration::from_secs(30));
    assert_told(&sim, copy_on(&sim, &newest));
    assert_eq!(recover(&mut sim), 1);
    settle(&mut sim);
    let after = status(&sim, 1).target.unwrap();
    assert_eq!((after.id, after.epoch), (before.id, before.epoch));
}

/// The node with the newest copy comes up last: nothing is served before it was heard. The backup
/// has the volume published, so its target would be ordered without anybody asking.
#[test]
fn no_target_is_ordered_before_all_nodes_were_asked() {
    let mut sim = cluster(2);
    for request in [create(1, 2), publish(1)] {
        sim.insist(&request).unwrap();
    }
    let backup = sim.cluster.back_up();
    let stale = status(&sim, 1).target.unwrap().node;
    let newest = sim.cluster.copies(volume(1)).into_values().find(|it| *it != stale).unwrap();
    sim.cluster.engine(stale.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(40));
    assert_eq!(status(&sim, 1).target.unwrap().node, newest);
    sim.cluster.write_all();
    sim.cluster.engine(newest.as_str()).stop();
    sim.cluster.restore(&backup);
    sim.restart();
    sim.cluster.engine(stale.as_str()).start();
    sim.pass(Duration::from_secs(4));
    sim.cluster.engine(newest.as_str()).start();
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
    assert_told(&sim, copy_on(&sim, &newest));
    assert_eq!(recover(&mut sim), 1);
    settle(&mut sim);
}

/// A volume that grew after the backup: the size that the store has would cut off its end.
#[test]
fn a_volume_that_grew_since_the_backup_does_not_shrink() {
    let mut sim = cluster(2);
    for request in [create(1, 2), publish(1), unpublish(1)] {
        sim.insist(&request).unwrap();
    }
    let backup = sim.cluster.back_up();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&Request::Resize { volume: volume(1), size: Size::gib(2) }).unwrap();
    sim.insist(&unpublish(1)).unwrap();
    sim.cluster.restore(&backup);
    for engine in sim.cluster.engines.values_mut() {
        engine.stop();
        engine.start();
    }
    sim.restart();
    sim.pass(Duration::from_secs(30));
    let sizes = |sim: &Sim| {
        let copies = sim.cluster.engines.values().flat_map(|it| it.replicas.values());
        copies.map(|copy| copy.spec.size).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&sim), [Size::gib(2), Size::gib(2)]);
    assert_eq!(sim.insist(&publish(1)).unwrap_err().kind, ProblemKind::StoreBehind);
    assert_eq!(recover(&mut sim), 1);
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
    assert_eq!(seen(&sim, 1).spec().size, Size::gib(2));
    assert_eq!(sizes(&sim), [Size::gib(2), Size::gib(2)]);
}

/// Only the copy that missed everything answers, and by the store it is in sync. Nothing on its
/// disk says otherwise; but nodes were told that the store had come further.
fn only_the_stale_copy_answers() -> Scene {
    goes_back_to_the_stale_copy(scene(3, true))
}

fn goes_back_to_the_stale_copy(mut scene: Scene) -> Scene {
    scene.sim.cluster.engine(scene.newest.as_str()).stop();
    scene.go_back();
    let sim = &mut scene.sim;
    sim.cluster.engine(scene.stale.as_str()).start();
    sim.pass(Duration::from_secs(30));
    let refused = sim.insist(&Request::Republish { volume: volume(1), node: None });
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
    assert_eq!(refused.unwrap_err().kind, ProblemKind::StoreBehind);
    assert_told(sim, copy_on(sim, &scene.newest));
    scene
}

#[test]
fn a_copy_is_not_believed_while_one_that_may_know_more_is_away() {
    let Scene { mut sim, newest, .. } = only_the_stale_copy_answers();
    assert_eq!(recover(&mut sim), 0, "a copy is missing");
    sim.cluster.engine(newest.as_str()).start();
    sim.pass(Duration::from_secs(15));
    assert_eq!(recover(&mut sim), 1);
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
    let newest = status(&sim, 1).target.unwrap().node;
    // The store may be believed again: the next failure is no reason to wait for anybody.
    sim.cluster.engine(newest.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(40));
    assert!(status(&sim, 1).target.unwrap().state.is_some_and(TargetState::serves));
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
}

/// The backup is from a time before the store had a number.
#[test]
fn a_backup_without_a_number_is_older_than_what_engines_were_told() {
    let mut scene = scene(3, true);
    scene.backup = scene.backup.without(&keys::of::<StoreSequence>(StoreSequence::ID));
    goes_back_to_the_stale_copy(scene);
}

/// Whoever knows that the other copy will not come back says so.
#[test]
fn what_is_left_is_served_if_its_owner_insists() {
    let Scene { mut sim, newest, .. } = only_the_stale_copy_answers();
    sim.cluster.engines.remove(&newest);
    assert_eq!(sim.insist(&Request::Recover([volume(1)].into())).unwrap(), RequestOutcome::Changed);
    // What only the lost copy had is gone, as was said.
    sim.cluster.forget_history(volume(1));
    sim.insist(&publish(1)).unwrap();
    // The lost copy is not waited for: another takes its place.
    assert_eq!(status(&sim, 1).state, VolumeState::Degraded);
    assert!(status(&sim, 1).target.unwrap().state.is_some_and(TargetState::serves));
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
}

/// The same store, read again: a new term is no step back.
#[test]
fn a_store_that_did_not_go_back_is_believed() {
    let mut scene = scene(3, false);
    for _ in 0..3 {
        scene.sim.restart();
        scene.sim.pass(Duration::from_secs(15));
    }
    let Scene { mut sim, stale, .. } = scene;
    assert_eq!(status(&sim, 1).state, VolumeState::Degraded);
    assert!(sim.told.iter().all(|it| !it.message.contains("older than the disks")));
    sim.cluster.engine(stale.as_str()).start();
    settle(&mut sim);
}

/// Backups are made and put back at any moment while nodes fail and return, targets die, and
/// volumes are served and moved. One node at most is down, so one that was told is always there.
fn live(seed: u64) {
    let mut dice = Dice(seed);
    let mut sim = cluster(4);
    sim.seed = seed;
    for request in [create(1, 2), create(2, 3), publish(1)] {
        sim.insist(&request).unwrap();
    }
    let mut backup = sim.cluster.back_up();
    let mut down: Option<String> = None;
    for _ in 0..25 {
        let number = dice.small(2) + 1;
        let id = volume(number);
        match dice.roll(12) {
            0 | 1 => {
                if let Some(name) = down.take() {
                    sim.cluster.engine(&name).start();
                } else {
                    let name = format!("n{}", dice.roll(4) + 1);
                    sim.cluster.engine(&name).stop();
                    down = Some(name);
                }
                sim.cluster.settle();
            }
            2 => backup = sim.cluster.back_up(),
            3 => {
                sim.pass(Duration::from_secs(5));
                sim.cluster.restore(&backup);
                sim.restart();
            }
            4 => drop(sim.cluster.tear(id)),
            5 => sim.pass(Duration::from_secs(dice.roll(40))),
            6 => drop(sim.insist(&Request::Recover([].into()))),
            7 => drop(sim.insist(&unpublish(number))),
            8 => drop(sim.insist(&Request::Republish { volume: id, node: None })),
            9 => {
                let replicas = u8::try_from(dice.roll(3) + 1).unwrap();
                drop(sim.insist(&Request::SetReplicas { volume: id, replicas }));
            }
            _ => drop(sim.insist(&publish(number))),
        }
        assert_eq!(sim.cluster.broken, Vec::<String>::new());
    }
    if let Some(name) = down {
        sim.cluster.engine(&name).start();
    }
    sim.pass(Duration::from_mins(1));
    for _ in 0..5 {
        // Labels may name copies that were removed since they were written: nothing is away now.
        let request = Request::Recover([volume(1), volume(2)].into());
        while sim.insist(&request).unwrap() == RequestOutcome::Changed {}
        sim.pass(Duration::from_secs(30));
    }
    for number in [1, 2] {
        drop(sim.insist(&unpublish(number)));
        let served = sim.insist(&publish(number));
        assert!(served.is_ok(), "volume {number}: {served:?}: {:?}", status(&sim, number));
    }
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
}

#[test]
fn a_store_that_goes_back_at_any_moment_costs_nothing_that_was_flushed() {
    each_seed(live);
}

/// The store was lost, and another took its place, of which engines were told; then a backup of the
/// first one is put back. It is older than the disks, though no engine remembers its number.
#[test]
fn a_backup_is_not_believed_after_another_store_was_used() {
    let mut scene = scene(2, false);
    scene.sim.insist(&unpublish(1)).unwrap();
    let sim = &mut scene.sim;
    sim.cluster.engine(scene.newest.as_str()).cut_off = true;
    sim.cluster.txn(Txn::new().then(Op::delete(Keys::prefix(keys::ROOT))));
    sim.restart();
    sim.pass(Duration::from_secs(5));
    // The new store has a number of its own before an engine comes. That of the stale copy is told
    // it, and no longer knows how far the first store had come; nobody hears of the newest copy.
    sim.cluster.engine(scene.stale.as_str()).start();
    sim.pass(Duration::from_secs(30));
    scene.go_back();
    let Scene { mut sim, newest, .. } = scene;
    sim.pass(Duration::from_secs(30));
    let refused = sim.insist(&publish(1)).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::StoreBehind, "{refused:?}");
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
    sim.cluster.engine(newest.as_str()).cut_off = false;
    sim.pass(Duration::from_secs(30));
    assert_eq!(recover(&mut sim), 1);
    sim.insist(&publish(1)).unwrap();
    settle(&mut sim);
}

/// What engines were told of a store that was lost keeps them from nothing for ever: they are told
/// of the one in its place as soon as its volumes were compared, and no later leader takes that
/// for a store that was put back.
#[test]
fn engines_learn_of_a_store_that_took_the_place_of_a_lost_one() {
    let mut sim = cluster(3);
    for request in [create(1, 2), publish(1)] {
        sim.insist(&request).unwrap();
    }
    sim.pass(Duration::from_secs(15));
    let lost = sim.cluster.engine("n1").told.unwrap();
    // The new store has a number of its own before an engine comes.
    sim.cluster.engines.values_mut().for_each(|engine| engine.cut_off = true);
    sim.cluster.txn(Txn::new().then(Op::delete(Keys::prefix(keys::ROOT))));
    sim.restart();
    sim.pass(Duration::from_secs(5));
    sim.cluster.engines.values_mut().for_each(|engine| engine.cut_off = false);
    sim.pass(Duration::from_secs(30));
    while recover(&mut sim) > 0 {
        sim.pass(Duration::from_secs(15));
    }
    sim.insist(&publish(1)).unwrap();
    sim.pass(Duration::from_secs(30));
    for engine in sim.cluster.engines.values() {
        assert_ne!(engine.told.unwrap().store, lost.store, "{} was told nothing", engine.name);
    }
    // The leader changes because the node of the target dies.
    let target = status(&sim, 1).target.unwrap().node;
    sim.cluster.engine(target.as_str()).stop();
    sim.told.clear();
    sim.restart();
    sim.pass(Duration::from_mins(1));
    assert!(!sim.told.iter().any(|it| it.message.contains("put back")), "{:?}", sim.told);
    let after = status(&sim, 1).target.unwrap();
    assert!(after.node != target && after.state.is_some_and(TargetState::serves), "{after:?}");
    sim.cluster.engine(target.as_str()).start();
    settle(&mut sim);
}
