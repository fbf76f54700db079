//! Nodes that are emptied, and copies that are moved for order's sake.

use planner::{View, drain_status};

use crate::check;
use crate::world::World;

#[test]
fn targets_move_away() {
    check("node n1 draining; v1 x2 at=n1: n2/p2 ok, n3/p3 ok", "failover v1!n1 to n2 (drain)");
    check("node n1 draining; v1 x2 at=n1 heal: n2/p2 ok, n3/p3 ok", "close v1!n1");
    // Cordoned only: what is there stays.
    check("node n1 cordoned; v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "-");
}

#[test]
fn copies_move_away_before_they_are_dropped() {
    check("node n1 draining; pool n3/p3; v1 x2: n1/p1 ok, n2/p2 ok", "add v1@p3");
    check("node n1 draining; v1 x2 at=n2: n1/p1 ok, n2/p2 ok, n3/p3 rebuilding", "-");
    check("node n1 draining; v1 x2 at=n2: n1/p1 ok, n2/p2 ok, n3/p3 ok", "remove v1@p1");
    // A copy that is behind is not brought in sync there.
    check("node n1 draining; pool n3/p3; v1 x2 at=n2: n1/p1 stale, n2/p2 ok", "add v1@p3");
}

#[test]
fn a_single_copy_takes_its_target_along() {
    let drain = "node n1 draining; ";
    check(&format!("{drain} pool n2/p2; v1 x1 at=n1: n1/p1 ok"), "add v1@p2");
    check(&format!("{drain} v1 x1 at=n1: n1/p1 ok, n2/p2 rebuilding"), "-");
    check(&format!("{drain} v1 x1 at=n1: n1/p1 ok, n2/p2 ok"), "failover v1!n1 to n2 (drain)");
    check(&format!("{drain} v1 x1 at=n2: n1/p1 ok, n2/p2 ok"), "remove v1@p1");
}

#[test]
fn a_drain_does_not_wait_for_a_node_that_is_off() {
    check(
        "node n1 draining offline; pool n3/p3; v1 x2 at=n2: n1/p1 away=1m, n2/p2 ok",
        "add v1@p3",
    );
}

#[test]
fn healing_comes_before_draining() {
    check(
        "set rebuilds=1; node n1 draining; pool n4/p4; v1 x2 at=n2: n1/p1 ok, n2/p2 ok; \
         v2 x2 at=n2: n3/p3 bad, n2/p2 ok",
        "add v2@p4",
    );
}

#[track_caller]
pub(crate) fn progress(health: &str, counts: (usize, usize), blocked: &[&str]) {
    let world = World::new(health);
    let view = View::new(&world.facts, &world.settings, world.now);
    let status = drain_status(&view, &crate::names::good("n1"));
    assert_eq!((status.targets.len(), status.replicas.len()), counts, "{health}");
    assert_eq!(status.blocked.len(), blocked.len(), "{:?}", status.blocked);
    for reason in blocked {
        let found = status.blocked.iter().any(|blocked| blocked.contains(reason));
        assert!(found, "{reason}: {:?}", status.blocked);
    }
}

#[test]
fn progress_and_what_blocks_it() {
    let node = "node n1 draining; ";
    progress(&format!("{node} v1 x2: n2/p2 ok, n3/p3 ok"), (0, 0), &[]);
    progress(&format!("{node} v1 x2 at=n1: n1/p1 ok, n2/p2 ok; pool n3/p3"), (1, 1), &[]);
    let stuck = format!("{node} v1 x2 at=n1: n1/p1 ok, n2/p2 ok; node n2 cordoned");
    progress(&stuck, (1, 1), &["target of volume", "copy of volume 00000000"]);
    progress(&format!("{stuck}; node n3; pool n3/p3"), (1, 1), &[]);
    progress(&format!("{node} v1 x2 at=n2: n1/p1 ok, n2/p2 ok, n3/p3 rebuilding"), (0, 1), &[]);
    // An old target counts until it is gone.
    progress(&format!("{node} v1 x1 old=n1 at=n2: n2/p2 ok"), (1, 0), &[]);
    let only = format!("{node} node n2 offline; v1 x2: n1/p1 stale, n2/p2 away=1m");
    progress(&only, (0, 1), &["no copy in sync answers"]);
}

/// Copies of snapshots do not move; whoever empties a node learns what is lost with it.
#[test]
fn snapshots_that_stay_are_told_when_all_else_is_gone() {
    let node = "node n1 draining; pool n1/p1; v1 x2: n2/p2 ok, n3/p3 ok; ";
    progress(&format!("{node} snap s1 of=v1: p2"), (0, 0), &[]);
    let elsewhere = "snapshots do not move, and 1 keep a copy here; all have copies";
    progress(&format!("{node} snap s1 of=v1: p1, p2"), (0, 0), &[elsewhere]);
    let last = "1 of them have no other copy that answers";
    progress(&format!("{node} snap s1 of=v1: p1"), (0, 0), &[last]);
    progress(&format!("{node} snap s1 of=v1: p1, p2 off"), (0, 0), &[last]);
    // What can still move comes first.
    let moving = "node n1 draining; pool n3/p3; v1 x2: n1/p1 ok, n2/p2 ok; snap s1 of=v1: p1";
    progress(moving, (0, 1), &[]);
}

#[test]
fn copies_move_off_the_fullest_pool() {
    let two = "pool n1/p1 used=80G; pool n2/p2 used=10G; v1 x1: n1/p1 ok";
    check(two, "-");
    check(&format!("set rebalance=20; {two}"), "move v1@p1 to p2");
    check(&format!("set rebalance=90; {two}"), "-");
    check("set rebalance=20; pool n1/p1 used=30G; pool n2/p2 used=10G; v1 x1: n1/p1 ok", "-");
    // Not while anything else is to be done, nor with copies that are not well.
    check(&format!("set rebalance=20; {two}; v2 x2: n3/p3 ok, n4/p4 stale"), "heal v2 on n3");
    check(&format!("set rebalance=20; {two}; v2 x2 at=n3: n3/p3 ok, n4/p4 rebuilding"), "-");
    // Not onto a node that has a copy.
    check("set rebalance=20; pool n1/p1 used=80G; v1 x2: n1/p1 ok, n2/p2 ok", "-");
    // Not if that would only turn the difference around.
    check(
        "set rebalance=20; pool n1/p1 used=80G; pool n2/p2 used=50G; v1 x1 40G alloc=39G: n1/p1 ok",
        "-",
    );
}

#[test]
fn pools_are_opened_first() {
    check("pool n1/p1 offline", "open n1/p1");
    check("pool n1/p1 unseen", "open n1/p1");
    check("node n1 offline; pool n1/p1 offline", "-");
    check("pool n1/p1 offline exported", "-");
    check("pool n1/p1 going", "go on deleting p1");
    check("node n1 offline; pool n1/p1 going", "-");
}
