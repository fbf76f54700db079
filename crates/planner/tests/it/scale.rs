//! What planning costs, counted in places looked at: no clock is needed for that.

use std::fmt::Write;

use crate::planned;
use crate::world::World;

/// A cluster of so many nodes with 30 volumes of two copies on each, one node lost.
fn looked_at(nodes: usize) -> (u64, usize) {
    let mut text = String::from("node n0 offline; ");
    for node in 0..nodes {
        write!(text, "pool n{node}/p{node} 9000G; ").unwrap();
    }
    for volume in 0..nodes * 30 {
        let (one, two) = (volume % nodes, (volume + 1 + volume / nodes % (nodes - 1)) % nodes);
        let state = |node| if node == 0 { "away=30m" } else { "ok" };
        let (a, b) = (state(one), state(two));
        write!(text, "v{volume} x2: n{one}/p{one} {a}, n{two}/p{two} {b}; ").unwrap();
    }
    let mut world = World::new(&text);
    (world.settings.rebuilds, world.settings.rebuilds_per_node) = (1000, 1000);
    let plan = planned(&world);
    (plan.looked_at, plan.steps.len())
}

#[test]
fn a_lost_node_costs_its_copies_times_the_places() {
    for nodes in [20, 40, 80] {
        let (looked_at, steps) = looked_at(nodes);
        assert_eq!(steps, 60, "each copy on the lost node is replaced");
        assert_eq!(looked_at, 60 * u64::try_from(nodes).unwrap());
    }
}

#[test]
fn healthy_volumes_cost_no_look_at_any_place() {
    let mut text = String::new();
    for volume in 0..200 {
        write!(text, "v{volume} x2 at=n1: n1/p1 ok, n2/p2 ok; ").unwrap();
    }
    assert_eq!(planned(&World::new(&text)).looked_at, 0);
}

/// While all slots for rebuilds are taken, places for the rest are not even looked for.
#[test]
fn what_must_wait_for_a_slot_costs_no_look_at_any_place() {
    let mut text = String::from("set rebuilds=2; node n0 offline; ");
    for node in 0..20 {
        write!(text, "pool n{node}/p{node}; ").unwrap();
    }
    for volume in 1..19 {
        write!(text, "v{volume} x2: n0/p0 away=30m, n{volume}/p{volume} ok; ").unwrap();
    }
    assert_eq!(planned(&World::new(&text)).looked_at, 2 * 20);
}
