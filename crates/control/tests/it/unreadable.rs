//! Records that this release cannot read.

use std::time::Duration;

use control::controller::Request;
use control::testing::Sim;
use model::*;
use store::contract::{Op, Txn};

use crate::world::*;

/// Two volumes that are served; the record of this key gets a field of a newer release.
fn scene(key: impl FnOnce(&Sim) -> String) -> (Sim, String) {
    let mut sim = cluster(3);
    for number in 1..=2 {
        sim.insist(&create(number, 2)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    sim.pass(Duration::from_secs(15));
    let key = key(&sim);
    let records = sim.cluster.records();
    let found = records.iter().find(|record| *record.key == *key.as_bytes()).unwrap();
    let text = String::from_utf8(found.value.to_vec()).unwrap();
    let newer = text.replacen("\"record\":{", "\"record\":{\"ofANewerRelease\":1,", 1);
    assert_ne!(newer, text);
    sim.cluster.txn(Txn::new().then(Op::put(key.clone(), newer)));
    sim.restart();
    sim.pass(Duration::from_secs(30));
    (sim, key)
}

fn stored(sim: &Sim, key: &str) -> String {
    let records = sim.cluster.records();
    let found = records.iter().find(|record| *record.key == *key.as_bytes()).unwrap();
    String::from_utf8(found.value.to_vec()).unwrap()
}

/// The first volume is left alone whatever becomes of it, and its record stays; the second is used,
/// changed and moved as ever.
fn check_isolated((mut sim, key): (Sim, String)) {
    let before = (stored(&sim, &key), sim.cluster.copies(volume(1)));
    let is_named = |sim: &Sim| {
        let mut blocked = sim.controller.blocked().iter();
        blocked.any(|it| it.reason.contains(&key) && it.reason.contains("ofANewerRelease"))
    };
    assert!(is_named(&sim), "{:?}", sim.controller.blocked());
    for request in [publish(1), take(1, 1), Request::DeleteVolume(volume(1))] {
        let refused = sim.insist(&request).unwrap_err();
        assert!(!refused.detail.is_empty(), "{request:?}");
    }
    sim.insist(&take(2, 2)).unwrap();
    sim.insist(&create(3, 2)).unwrap();
    let grow = Request::Resize { volume: volume(2), size: Size::gib(2) };
    sim.insist(&grow).unwrap();
    sim.pass(Duration::from_mins(10));
    assert_eq!((stored(&sim, &key), sim.cluster.copies(volume(1))), before);
    let targets = sim.cluster.engines.values().flat_map(|engine| engine.targets.values());
    let served = targets.filter(|it| it.status.state.serves()).count();
    assert_eq!(served, 2, "what served goes on to serve");
    assert_eq!(sim.cluster.broken, Vec::<String>::new());
}

#[test]
fn a_volume_is_left_alone() {
    check_isolated(scene(|_| keys::of::<Volume>(volume(1))));
}

#[test]
fn a_record_of_who_owns_a_volume_isolates_it() {
    check_isolated(scene(|_| keys::target_record(volume(1))));
}

#[test]
fn a_copy_isolates_its_volume() {
    check_isolated(scene(|sim| {
        let replica = sim.cluster.copies(volume(1)).into_keys().next().unwrap();
        keys::of::<Replica>(replica)
    }));
}

#[test]
fn a_target_isolates_its_volume() {
    check_isolated(scene(|sim| keys::of::<Target>(status(sim, 1).target.unwrap().id)));
}

/// What lies in a pool or on a node that nobody can read is neither replaced nor cleared away.
#[test]
fn a_pool_and_a_node_isolate_what_lies_there() {
    for of_pool in [true, false] {
        let (mut sim, key) = scene(|sim| {
            let home = sim.cluster.copies(volume(1)).into_values().next().unwrap();
            if of_pool { keys::of::<Pool>(pool_of(&home)) } else { keys::of::<Node>(home) }
        });
        let before = (stored(&sim, &key), sim.cluster.copies(volume(1)));
        sim.pass(Duration::from_mins(10));
        assert_eq!((stored(&sim, &key), sim.cluster.copies(volume(1))), before);
        let targets = sim.cluster.engines.values().flat_map(|engine| engine.targets.values());
        assert_eq!(targets.filter(|it| it.status.state.serves()).count(), 2);
        assert_eq!(sim.cluster.broken, Vec::<String>::new());
    }
}
