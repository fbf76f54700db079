//! Decisions, one line each: a situation in a small language, and the steps it comes to.
#![cfg(test)]

mod brake;
mod drain;
mod failover;
mod gc;
mod heal;
mod names;
mod parse;
mod place;
mod property;
mod publish;
mod render;
mod scale;
mod scenarios;
mod sim;
mod snapshot;
mod space;
mod world;

use planner::{Plan, View, plan};
use render::render;
use world::World;

/// The plan of a situation.
fn planned(world: &World) -> Plan {
    plan(&View::new(&world.facts, &world.settings, world.now))
}

/// The steps that a situation comes to.
#[track_caller]
fn check(situation: &str, steps: &str) {
    let world = World::new(situation);
    let found = render(&world, &planned(&world));
    assert_eq!(found, steps, "{situation}");
}

/// What cannot be done in a situation, and why.
#[track_caller]
fn check_blocked(situation: &str, reasons: &[&str]) {
    let world = World::new(situation);
    let plan = planned(&world);
    let blocked: Vec<_> = plan.blocked.iter().map(|blocked| blocked.reason.as_str()).collect();
    assert!(!blocked.is_empty(), "nothing is blocked: {situation}");
    for reason in reasons {
        assert!(blocked.iter().any(|blocked| blocked.contains(reason)), "{reason}: {blocked:?}");
    }
}
