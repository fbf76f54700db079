//! Every step of every operation failed, repeated, and interrupted by a restart.
//!
//! After each of them, when time has passed, what is stored and what engines have agree, nothing is
//! left over, no volume lost its last copy in sync on the way, and each volume is whole.

use std::time::Duration;

use control::core::Wish;
use control::testing::{Fault, Sim};
use model::*;

use crate::world::*;

type Script = fn(&mut Sim);

/// Wishes of a caller that asks again when that may help, and lives with a refusal.
fn insist(sim: &mut Sim, wishes: &[Wish]) {
    for wish in wishes {
        drop(sim.insist(wish));
    }
}

/// Runs a script once for each effect and each fault.
fn check_all(nodes: usize, script: Script) {
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
        insist(sim, &[create(1, 2), publish(1), unpublish(1), Wish::DeleteVolume(volume(1))]);
    });
}

#[test]
fn two_volumes_side_by_side() {
    check_all(3, |sim| {
        for wish in [create(1, 3), create(2, 2)] {
            sim.ask(wish);
        }
        insist(sim, &[create(1, 3), create(2, 2), publish(1), publish(2)]);
    });
}

#[test]
fn growth_and_more_copies() {
    check_all(3, |sim| {
        let volume = volume(1);
        let grow = Wish::Resize { volume, size: Size::gib(2) };
        let more = Wish::SetReplicas { volume, replicas: 3 };
        insist(sim, &[create(1, 2), publish(1), grow, more]);
        sim.pass(Duration::from_secs(10));
        insist(sim, &[Wish::SetReplicas { volume, replicas: 1 }]);
    });
}

#[test]
fn snapshots_and_what_begins_with_them() {
    check_all(3, |sim| {
        let from = |source| VolumeSpec { source: Some(source), ..spec(2) };
        let restored = from(Source::Snapshot { snapshot: snapshot(1) });
        let cloned = from(Source::Volume { volume: volume(1) });
        let restore = Wish::CreateVolume(volume(2), Box::new(restored));
        let clone = Wish::CreateVolume(volume(3), Box::new(cloned));
        let wishes = [create(1, 2), publish(1), take(1, 1), restore, clone, publish(3)];
        insist(sim, &wishes);
        insist(sim, &[Wish::DeleteSnapshot(snapshot(1))]);
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
        let target = sim.core.volume_seen(volume(1)).and_then(|it| it.status.unwrap().target);
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
        insist(sim, &[Wish::ChangeNode(good("n1"), drain)]);
    });
}
