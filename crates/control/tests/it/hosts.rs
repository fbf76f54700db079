//! Hosts: which machine a name belongs to, and what each publication of a volume admits.

use std::time::Duration;

use control::controller::{Input, Request};
use control::testing::Sim;
use model::*;

use crate::world::*;

fn machine(number: u32) -> MachineId {
    good(&format!("00000000-0000-4000-b000-{number:012}"))
}

fn beat(machine: Option<MachineId>) -> Heartbeat<HostAddress> {
    Heartbeat {
        instance: good("00000000-0000-4000-8000-000000000001"),
        version: "1".into(),
        address: HostAddress { nqn: good("nqn.2026-11.io.example:host"), agent: None, machine },
        told: None,
    }
}

fn hear(sim: &mut Sim, machine: Option<MachineId>) {
    sim.controller.on(sim.now, Input::HostHeard(good("h1"), beat(machine)));
    sim.run();
}

fn known(sim: &Sim) -> Option<MachineId> {
    sim.controller.host_seen(&good("h1")).unwrap().spec().address.machine
}

fn admitted(sim: &Sim) -> Nqn {
    status(sim, 1).target.unwrap().host_nqns[&good::<HostName>("h1")].clone()
}

fn republish() -> Request {
    Request::Republish { volume: volume(1), node: None }
}

/// What a host connected before it was dismissed has caches that are older than what others wrote.
#[test]
fn each_publication_to_a_machine_has_a_name_of_its_own_and_keeps_it_while_it_lasts() {
    let mut sim = cluster(3);
    hear(&mut sim, Some(machine(1)));
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let first = admitted(&sim);
    assert!(matches!(first.named(), Some(NqnKind::Publication(_))), "{first}");
    sim.insist(&publish(1)).unwrap();
    assert_eq!(admitted(&sim), first, "the same publication");
    sim.insist(&republish()).unwrap();
    assert_eq!(admitted(&sim), first, "a target that moves keeps its hosts");
    let lost = status(&sim, 1).target.unwrap().node;
    sim.cluster.engine(lost.as_str()).stop();
    sim.pass(Duration::from_mins(1));
    assert_ne!(status(&sim, 1).target.unwrap().node, lost);
    assert_eq!(admitted(&sim), first, "a failover, too");
    sim.cluster.engine(lost.as_str()).start();
    settle(&mut sim);
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    assert_ne!(admitted(&sim), first, "it was dismissed in between");
}

#[test]
fn a_host_that_connects_by_hand_keeps_the_name_it_has() {
    let mut sim = cluster(2);
    hear(&mut sim, None);
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    assert_eq!(admitted(&sim), beat(None).address.nqn);
}

#[test]
fn a_second_machine_of_the_same_name_is_refused_while_the_first_one_is_there() {
    let mut sim = cluster(2);
    hear(&mut sim, None);
    hear(&mut sim, Some(machine(1)));
    assert_eq!(known(&sim), Some(machine(1)));
    hear(&mut sim, None);
    assert_eq!(known(&sim), Some(machine(1)), "who says nothing changes nothing");
    hear(&mut sim, Some(machine(2)));
    assert_eq!(known(&sim), Some(machine(1)), "the first one runs");
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.pass(Duration::from_mins(1));
    hear(&mut sim, Some(machine(2)));
    assert_eq!(known(&sim), Some(machine(1)), "it is silent, but may use a volume");
    sim.insist(&unpublish(1)).unwrap();
    hear(&mut sim, Some(machine(2)));
    assert_eq!(known(&sim), Some(machine(2)), "the name is free");
}

/// The process of an engine has ended, and its machine says so: nobody waits for its heartbeats.
#[test]
fn what_an_engine_served_moves_as_soon_as_its_machine_refuses_connections() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let lost = status(&sim, 1).target.unwrap().node;
    sim.cluster.engine(lost.as_str()).stop();
    sim.controller.on(sim.now, Input::NodeRefused(lost.clone()));
    sim.run();
    let node = sim.controller.node_seen(&lost).unwrap().status.unwrap();
    assert_eq!(node.liveness, Liveness::Offline { reason: OfflineReason::Refused });
    sim.pass(Duration::from_secs(2));
    let target = status(&sim, 1).target.unwrap();
    assert_ne!(target.node, lost, "its heartbeats are not late yet");
    sim.cluster.engine(lost.as_str()).start();
    settle(&mut sim);
}

/// The node of a target falls silent, and a host that uses it has lost its path: two who do not
/// know of each other. Either alone moves nothing before the deadline of heartbeats.
#[test]
fn what_a_host_has_lost_moves_when_the_heartbeats_of_its_node_are_late_as_well() {
    let moved_after = |reports: bool, silent: bool| {
        let mut sim = cluster(3);
        sim.insist(&create(1, 2)).unwrap();
        sim.insist(&publish(1)).unwrap();
        let target = status(&sim, 1).target.unwrap();
        if silent {
            sim.cluster.engine(target.node.as_str()).stop();
        }
        let report =
            PathReport { lost: [(volume(1), target.addresses[0])].into(), ..PathReport::default() };
        for second in 0..8 {
            if reports {
                sim.controller.on(sim.now, Input::PathsReported(good("h1"), report.clone()));
            }
            sim.pass(Duration::from_secs(1));
            if status(&sim, 1).target.unwrap().node != target.node {
                return Some(second);
            }
        }
        None
    };
    assert_eq!(moved_after(true, false), None, "the host's own cable");
    assert_eq!(moved_after(false, true), None, "the deadline has not come");
    let moved = moved_after(true, true);
    assert!(moved.is_some(), "both agree");
    let stranger =
        PathReport { lost: [(volume(9), good("127.0.0.1:1"))].into(), ..PathReport::default() };
    let mut sim = cluster(1);
    sim.controller.on(sim.now, Input::PathsReported(good("h2"), stranger));
    sim.run();
}
