//! What holds in every situation: see the list at the top of the crate.

use std::collections::BTreeSet;
use std::fmt::Write;

use proptest::prelude::*;

use crate::planned;
use crate::world::World;

const NODES: [&str; 8] = ["", "", "", "", "offline", "unknown", "cordoned", "draining"];
const POOLS: [&str; 6] = ["", "", "used=60G", "suspect", "cordoned", "committed=230G"];
const COPIES: [&str; 4] = ["ok", "stale", "fresh", "away=30m"];

#[derive(Clone, Debug)]
struct Wanted {
    copies: u8,
    served: bool,
    thick: bool,
    group: bool,
    states: Vec<usize>,
    first: usize,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let states = prop::collection::vec(0..COPIES.len(), 1..4);
    let parts = (1u8..4, any::<bool>(), any::<bool>(), any::<bool>(), states, 0usize..8);
    parts.prop_map(|(copies, served, thick, group, states, first)| Wanted {
        copies,
        served,
        thick,
        group,
        states,
        first,
    })
}

/// A cluster with a pool on each node, and volumes in all kinds of states.
fn health() -> impl Strategy<Value = String> {
    let nodes = prop::collection::vec((0..NODES.len(), 0..POOLS.len()), 3..8);
    let settings = (0u32..4, prop::option::of(10u32..40));
    (nodes, prop::collection::vec(wanted(), 0..6), settings).prop_map(|(nodes, volumes, set)| {
        let mut text = format!("set rebuilds={}; ", set.0 + 1);
        if let Some(above) = set.1 {
            write!(text, "set rebalance={above}; ").unwrap();
        }
        for (at, (node, pool)) in nodes.iter().enumerate() {
            write!(text, "node n{at} {}; pool n{at}/p{at} {}; ", NODES[*node], POOLS[*pool])
                .unwrap();
        }
        // Some nodes have a second pool: still one copy a node.
        for at in (0..nodes.len()).step_by(2) {
            write!(text, "pool n{at}/q{at}; ").unwrap();
        }
        for (name, volume) in volumes.iter().enumerate() {
            text += &one(name, volume, &nodes);
        }
        text
    })
}

fn one(name: usize, volume: &Wanted, nodes: &[(usize, usize)]) -> String {
    let mut text = format!("v{name} x{}", volume.copies);
    if volume.thick {
        text += " thick alloc=10G";
    }
    if volume.group {
        text += " group=g";
    }
    // A copy of a node that is off is away, and a target has one good copy at least.
    let mut members = vec![];
    let mut good = None;
    for (at, state) in volume.states.iter().enumerate().take(nodes.len()) {
        let node = (volume.first + at) % nodes.len();
        let off = matches!(NODES[nodes[node].0], "offline" | "unknown");
        let state = if off { "away=30m" } else { COPIES[*state] };
        if state == "ok" {
            good = Some(node);
        }
        members.push(format!("n{node}/p{node} {state}"));
    }
    if let (Some(node), true) = (good, volume.served) {
        write!(text, " at=n{node}").unwrap();
    }
    write!(text, ": {}; ", members.join(", ")).unwrap();
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// The simulated world refuses to remove the last copy in sync, to copy from a copy that is not
    /// in sync, to put two copies on one node, to promise or write more than there is.
    #[test]
    fn every_world_comes_to_rest_and_no_rule_is_broken_on_the_way(text in health()) {
        let mut world = World::new(&text);
        let believed: Vec<_> = world.facts.records.keys().copied().collect();
        world.settle(80);
        for volume in believed {
            prop_assert!(!world.facts.records[&volume].set().in_sync().is_empty());
        }
        prop_assert!(planned(&world).steps.is_empty());
    }

    #[test]
    fn no_two_steps_are_about_the_same(text in health()) {
        let plan = planned(&World::new(&text));
        let subjects: BTreeSet<_> = plan.steps.iter().map(planner::Step::subject).collect();
        prop_assert_eq!(subjects.len(), plan.steps.len());
    }

    #[test]
    fn the_same_situation_has_the_same_plan(text in health()) {
        prop_assert_eq!(planned(&World::new(&text)), planned(&World::new(&text)));
    }

    #[test]
    fn healthy_volumes_are_left_alone(count in 1usize..5, copies in 1usize..4, served: bool) {
        let mut text = String::new();
        for volume in 0..count {
            let members: Vec<_> =
                (0..copies).map(|n| format!("n{n}/p{n} ok")).collect();
            let at = if served { "at=n0" } else { "" };
            write!(text, "v{volume} x{copies} {at}: {}; ", members.join(", ")).unwrap();
        }
        prop_assert!(planned(&World::new(&text)).steps.is_empty());
    }
}
