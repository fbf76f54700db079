//! Racks, halves of a cluster and more, lost and back: what was on them is not copied into what is
//! left, and goes on being served.

use std::collections::BTreeSet;
use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::Sim;
use model::*;

use crate::world::*;

const VOLUMES: u32 = 8;

/// Six nodes in three zones of two, if zones are named, with volumes of two copies that are served.
fn racks(zones: bool) -> Sim {
    let mut sim = cluster(6);
    for node in (1..=6).filter(|_| zones) {
        let zone = ["a", "b", "c"][(node - 1) / 2];
        let labels = Labels::from([(good(LabelKey::ZONE), good(zone))]);
        let change = NodeChange::Label { labels };
        sim.insist(&Request::ChangeNode(good(&format!("n{node}")), change)).unwrap();
    }
    for number in 1..=VOLUMES {
        sim.insist(&create(number, 2)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    sim
}

fn stop(sim: &mut Sim, nodes: &[usize]) {
    for node in nodes {
        sim.cluster.engine(&format!("n{node}")).stop();
    }
    sim.cluster.settle();
}

fn start(sim: &mut Sim, nodes: &[usize]) {
    for node in nodes {
        sim.cluster.engine(&format!("n{node}")).start();
    }
}

/// The copies that are recorded.
fn copies(sim: &Sim) -> BTreeSet<ReplicaId> {
    let stored = sim.stored().into_iter();
    stored
        .filter_map(|entry| if let Entry::Replica(it) = entry { Some(*it.id()) } else { None })
        .collect()
}

fn is_told(sim: &Sim, name: EventName) -> usize {
    sim.told.iter().filter(|draft| draft.name == name).count()
}

/// Every volume with a copy in sync that answers is served, wherever its target was.
fn all_that_can_be_are_served(sim: &Sim) -> usize {
    let mut served = 0;
    for number in 1..=VOLUMES {
        let status = status(sim, number);
        if status.state == VolumeState::Faulted {
            continue;
        }
        let target = status.target.unwrap();
        assert!(target.state.is_some_and(TargetState::serves), "{target:?}");
        served += 1;
    }
    served
}

fn lost_and_back(zones: bool, nodes: &[usize]) {
    let mut sim = racks(zones);
    let before = copies(&sim);
    stop(&mut sim, nodes);
    sim.pass(Duration::from_mins(15));
    assert_eq!(copies(&sim), before, "new copies were begun: {nodes:?}");
    let brake = sim.controller.brake().expect("a reason is shown");
    assert!(brake.reason.contains("do not answer"), "{}", brake.reason);
    assert!(all_that_can_be_are_served(&sim) > 0, "failover is not braked");
    assert_eq!(is_told(&sim, EventName::HealingPaused), 1);
    start(&mut sim, nodes);
    sim.pass(Duration::from_mins(3));
    settle(&mut sim);
    assert_eq!(copies(&sim), before, "what was there is used again");
    assert_eq!(sim.controller.brake(), None);
    assert_eq!(is_told(&sim, EventName::HealingResumed), 1);
}

#[test]
fn a_lost_rack_begins_no_full_copy() {
    lost_and_back(true, &[5, 6]);
}

#[test]
fn half_of_the_nodes_lost_begin_no_full_copy() {
    lost_and_back(false, &[4, 5, 6]);
}

#[test]
fn two_thirds_of_the_nodes_lost_begin_no_full_copy() {
    lost_and_back(true, &[3, 4, 5, 6]);
}

/// A new control plane brakes as the last one did.
#[test]
fn a_restart_does_not_lift_the_brake() {
    let mut sim = racks(true);
    let before = copies(&sim);
    stop(&mut sim, &[5, 6]);
    sim.pass(Duration::from_mins(5));
    sim.restart();
    sim.pass(Duration::from_mins(10));
    assert_eq!(copies(&sim), before);
    assert!(sim.controller.brake().is_some());
}

#[test]
fn a_third_of_the_nodes_without_zones_is_replaced() {
    let mut sim = cluster(6);
    for number in 1..=VOLUMES {
        sim.insist(&create(number, 3)).unwrap();
        sim.insist(&publish(number)).unwrap();
    }
    let before = copies(&sim);
    stop(&mut sim, &[5, 6]);
    sim.pass(Duration::from_mins(15));
    assert_ne!(copies(&sim), before);
    assert_eq!(sim.controller.brake(), None);
}

/// Whoever drains or purges a lost node does not wait for it.
#[test]
fn an_operator_lifts_the_brake() {
    let mut sim = racks(true);
    stop(&mut sim, &[5, 6]);
    sim.pass(Duration::from_mins(5));
    let lost: BTreeSet<VolumeId> = (1..=VOLUMES)
        .filter(|number| status(&sim, *number).state == VolumeState::Faulted)
        .map(volume)
        .collect();
    let drain = NodeChange::Drain { cordon: good("gone") };
    sim.insist(&Request::ChangeNode(good("n5"), drain)).unwrap();
    sim.pass(Duration::from_mins(5));
    let on = |sim: &Sim, pool: &str| {
        let is_there = |entry: &Entry| match entry {
            Entry::Replica(it) => it.spec().pool.as_str() == pool && it.lifecycle().is_idle(),
            _ => false,
        };
        sim.stored().iter().filter(|entry| is_there(entry)).count()
    };
    assert_eq!(on(&sim, "p5"), lost.len(), "all that have another copy were replaced");
    let purged = sim.insist(&Request::PurgeNode(good("n6"), lost.clone())).unwrap();
    assert_eq!(purged, RequestOutcome::Gone);
    sim.cluster.engines.remove(&good::<NodeName>("n6"));
    sim.pass(Duration::from_mins(5));
    assert_eq!(sim.controller.brake(), None);
    for number in (1..=VOLUMES).filter(|number| !lost.contains(&volume(*number))) {
        assert_eq!(status(&sim, number).state, VolumeState::Online);
    }
}

/// The flag that lifts it for good.
#[test]
fn who_wants_no_brake_has_none() {
    let mut sim = racks(true);
    let before = copies(&sim);
    sim.set(|settings| settings.heal_share = 0);
    sim.pass(Duration::from_secs(15));
    stop(&mut sim, &[5, 6]);
    sim.pass(Duration::from_mins(15));
    assert_ne!(copies(&sim), before);
}
