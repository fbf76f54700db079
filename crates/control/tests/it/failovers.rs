//! Failovers with hosts that have agents: each stage waits for what it is about, and ends.

use std::time::Duration;

use control::controller::{Entry, Input, Request};
use control::testing::{HostAgent, HostConduct, Sim};
use model::*;

use crate::faults::{check_all, insist};
use crate::world::*;

fn host() -> HostName {
    good("h1")
}

/// The first volume with two copies, attached to a host that has an agent.
fn attach(sim: &mut Sim) {
    sim.hosts.insert(host(), HostAgent::new(&host()).unwrap());
    sim.pass(Duration::from_secs(1));
    insist(sim, &[create(1, 2), publish(1)]);
    if let Some(target) = target(sim) {
        let path = PathStatus { address: target.addresses[0], state: PathState::Live };
        sim.hosts.get_mut(&host()).unwrap().attached.insert(volume(1), vec![path]);
    }
    sim.pass(Duration::from_secs(1));
}

/// Where the volume is served, if what happened allowed to publish it.
fn target(sim: &Sim) -> Option<VolumeTarget> {
    let seen = sim.controller.volume_seen(volume(1))?;
    seen.status?.target.filter(|target| !target.addresses.is_empty())
}

fn conduct(sim: &mut Sim, conduct: HostConduct) {
    sim.hosts.get_mut(&host()).unwrap().conduct = conduct;
}

fn republish() -> Request {
    Request::Republish { volume: volume(1), node: None }
}

fn failover(sim: &Sim) -> Failover {
    let stored = sim.stored().into_iter().filter_map(|entry| match entry {
        Entry::Failover(failover) if failover.volume() == volume(1) => Some(*failover),
        _ => None,
    });
    stored.max_by_key(Failover::started_at).unwrap()
}

fn targets(sim: &Sim) -> usize {
    sim.cluster.engines.values().map(|engine| engine.targets.len()).sum()
}

/// How long until the failover is in a stage.
fn until(sim: &mut Sim, is_there: impl Fn(&FailoverStage) -> bool) -> Duration {
    let begun = sim.now;
    for _ in 0..200 {
        if is_there(failover(sim).stage()) {
            return sim.now.since(begun);
        }
        sim.pass(Duration::from_millis(500));
    }
    panic!("{:?}", failover(sim));
}

fn is_successful(stage: &FailoverStage) -> bool {
    matches!(stage, FailoverStage::Successful { .. })
}

/// The only path of the host leads to where the target is.
fn check_followed(sim: &Sim) {
    let target = status(sim, 1).target.unwrap();
    let path = PathStatus { address: target.addresses[0], state: PathState::Live };
    assert_eq!(sim.hosts[&host()].attached[&volume(1)], [path]);
    let shown = sim.controller.host_seen(&host()).unwrap().status.unwrap().attached;
    assert_eq!(shown, [(volume(1), vec![path])].into());
}

#[test]
fn the_old_target_goes_when_the_host_uses_the_new_one() {
    let mut sim = cluster(3);
    attach(&mut sim);
    let former = status(&sim, 1).target.unwrap();
    conduct(&mut sim, HostConduct::Stays);
    sim.insist(&republish()).unwrap();
    assert_ne!(status(&sim, 1).target.unwrap().node, former.node, "it serves elsewhere");
    sim.pass(Duration::from_secs(5));
    assert!(matches!(failover(&sim).stage(), FailoverStage::ReplacePath { .. }));
    assert_eq!(targets(&sim), 2, "the host has its path to the old one");
    let again = sim.ask(republish());
    sim.run();
    assert_eq!(sim.answers.remove(&again).unwrap().unwrap_err().kind, ProblemKind::Busy);
    conduct(&mut sim, HostConduct::Follows);
    let took = until(&mut sim, is_successful);
    assert!(took < Duration::from_secs(5), "{took:?}");
    check_followed(&sim);
    assert_eq!(targets(&sim), 1);
    settle(&mut sim);
}

#[test]
fn a_control_plane_that_begins_anew_waits_for_hosts_that_it_has_not_heard_yet() {
    let mut sim = cluster(3);
    attach(&mut sim);
    conduct(&mut sim, HostConduct::Stays);
    sim.insist(&republish()).unwrap();
    sim.pass(Duration::from_secs(2));
    conduct(&mut sim, HostConduct::Silent);
    sim.restart();
    sim.pass(Duration::from_secs(5));
    assert!(matches!(failover(&sim).stage(), FailoverStage::ReplacePath { .. }));
    conduct(&mut sim, HostConduct::Follows);
    until(&mut sim, is_successful);
    check_followed(&sim);
    settle(&mut sim);
}

#[test]
fn a_report_that_comes_before_the_first_heartbeat_is_waited_for() {
    let mut sim = cluster(3);
    attach(&mut sim);
    conduct(&mut sim, HostConduct::Stays);
    sim.insist(&republish()).unwrap();
    sim.pass(Duration::from_secs(2));
    conduct(&mut sim, HostConduct::Silent);
    sim.restart();
    let attached = sim.hosts[&host()].attached.clone();
    let report = PathReport { attached, ..PathReport::default() };
    sim.controller.on(sim.now, Input::PathsReported(host(), report));
    sim.run();
    assert!(matches!(failover(&sim).stage(), FailoverStage::ReplacePath { .. }));
    assert_eq!(targets(&sim), 2, "the host uses the old one");
    conduct(&mut sim, HostConduct::Follows);
    until(&mut sim, is_successful);
    check_followed(&sim);
    settle(&mut sim);
}

/// The former leader's clock was an hour ahead, or behind.
#[test]
fn limits_do_not_trust_the_clock_of_a_former_leader() {
    for is_ahead in [true, false] {
        let mut sim = cluster(3);
        attach(&mut sim);
        conduct(&mut sim, HostConduct::Stays);
        sim.insist(&republish()).unwrap();
        sim.pass(Duration::from_secs(2));
        let hour = 3_600_000;
        let now = sim.now.millis();
        let now = if is_ahead { now - hour } else { now + hour };
        sim.now = Timestamp::from_millis(now);
        sim.restart();
        sim.pass(Duration::from_secs(20));
        assert!(matches!(failover(&sim).stage(), FailoverStage::ReplacePath { .. }));
        let took = until(&mut sim, is_successful);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}

/// A host that is down, or hangs, or has another network, keeps no volume from being healed.
#[test]
fn a_host_that_is_down_or_does_not_follow_blocks_nothing_for_ever() {
    for (conducts, longest) in [(HostConduct::Silent, 20), (HostConduct::Stays, 35)] {
        let mut sim = cluster(3);
        attach(&mut sim);
        conduct(&mut sim, conducts);
        sim.insist(&republish()).unwrap();
        let took = until(&mut sim, is_successful);
        assert!(took <= Duration::from_secs(longest), "{conducts:?}: {took:?}");
        let warned = sim.told.iter().any(|it| it.message.contains("hosts h1 do not use the new"));
        assert_eq!(warned, conducts == HostConduct::Stays);
        assert_eq!(targets(&sim), 1);
        settle(&mut sim);
    }
}

#[test]
fn a_host_that_is_down_does_not_block_others() {
    let mut sim = cluster(3);
    attach(&mut sim);
    let down: HostName = good("h2");
    sim.hosts.insert(down.clone(), HostAgent::new(&down).unwrap());
    sim.pass(Duration::from_secs(1));
    insist(&mut sim, &[create(2, 2)]);
    insist(
        &mut sim,
        &[Request::Publish { volume: volume(2), host: Some(down.clone()), node: None }],
    );
    let old = status(&sim, 2).target.unwrap().addresses[0];
    let path = PathStatus { address: old, state: PathState::Live };
    let there = sim.hosts.get_mut(&down).unwrap();
    there.attached.insert(volume(2), vec![path]);
    sim.pass(Duration::from_secs(1));
    sim.hosts.get_mut(&down).unwrap().conduct = HostConduct::Silent;
    sim.insist(&Request::Republish { volume: volume(2), node: None }).unwrap();
    sim.insist(&republish()).unwrap();
    let took = until(&mut sim, is_successful);
    assert!(took < Duration::from_secs(3), "{took:?}");
    check_followed(&sim);
    settle(&mut sim);
}

/// The new target is lost while hosts still connect to it.
#[test]
fn a_second_failure_while_paths_are_replaced_finds_a_third_place() {
    let mut sim = cluster(4);
    attach(&mut sim);
    insist(&mut sim, &[Request::SetReplicas { volume: volume(1), replicas: 3 }]);
    sim.pass(Duration::from_secs(30));
    conduct(&mut sim, HostConduct::Stays);
    let first = status(&sim, 1).target.unwrap().node;
    sim.cluster.engine(first.as_str()).stop();
    sim.controller.on(sim.now, Input::NodeRefused(first.clone()));
    sim.pass(Duration::from_secs(3));
    let second = status(&sim, 1).target.unwrap().node;
    assert!(matches!(failover(&sim).stage(), FailoverStage::ReplacePath { .. }));
    sim.cluster.engine(second.as_str()).stop();
    sim.controller.on(sim.now, Input::NodeRefused(second.clone()));
    conduct(&mut sim, HostConduct::Follows);
    sim.pass(Duration::from_secs(10));
    let third = status(&sim, 1).target.unwrap().node;
    assert!(third != first && third != second, "{third}");
    check_followed(&sim);
    for node in [first, second] {
        sim.cluster.engine(node.as_str()).start();
    }
    settle(&mut sim);
}

/// Each effect of a planned move failed, repeated, and interrupted by a restart.
#[test]
fn a_planned_move_with_a_host_comes_to_its_end_whatever_step_fails() {
    check_all(3, |sim| {
        attach(sim);
        insist(sim, &[republish()]);
        sim.pass(Duration::from_mins(2));
        if target(sim).is_some() && sim.hosts[&host()].attached.contains_key(&volume(1)) {
            check_followed(sim);
        }
    });
}

/// The same of the loss of the node of the target.
#[test]
fn a_failover_with_a_host_comes_to_its_end_whatever_step_fails() {
    check_all(3, |sim| {
        attach(sim);
        let Some(lost) = target(sim) else { return };
        sim.cluster.engine(lost.node.as_str()).stop();
        sim.pass(Duration::from_mins(2));
        if target(sim).is_some() && sim.hosts[&host()].attached.contains_key(&volume(1)) {
            check_followed(sim);
        }
        sim.cluster.engine(lost.node.as_str()).start();
    });
}
