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
fn check(health: &str, steps: &str) {
    let world = World::new(health);
    let found = render(&world, &planned(&world));
    assert_eq!(found, steps, "{health}");
}

/// What cannot be done in a situation, and why.
#[track_caller]
fn check_blocked(health: &str, reasons: &[&str]) {
    let world = World::new(health);
    let plan = planned(&world);
    let blocked: Vec<_> = plan.blocked.iter().map(|blocked| blocked.reason.as_str()).collect();
    assert!(!blocked.is_empty(), "nothing is blocked: {health}");
    for reason in reasons {
        assert!(blocked.iter().any(|blocked| blocked.contains(reason)), "{reason}: {blocked:?}");
    }
}
