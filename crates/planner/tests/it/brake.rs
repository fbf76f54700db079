//! Many nodes lost at once: what was on them is not copied into what is left.

use std::fmt::Write as _;

use crate::world::World;
use crate::{check, check_blocked, planned};

/// Six nodes with a pool each, in three zones of two.
const RACKS: &str = "node n1 zone=a; node n2 zone=a; node n3 zone=b; node n4 zone=b; \
                     node n5 zone=c; node n6 zone=c; ";
const POOLS: &str = "pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4; pool n5/p5; pool n6/p6; ";

/// Volumes with a copy on two of the nodes each, after those nodes were lost.
fn lost(nodes: &str, lost: &[u32]) -> String {
    let mut text = String::new();
    for at in 1..=6 {
        let state = if lost.contains(&at) { "offline" } else { "" };
        let zone = nodes.split("; ").find(|it| it.starts_with(&format!("node n{at} ")));
        let zone = zone.and_then(|it| it.split_once("zone=")).map(|(_, zone)| zone);
        let zone = zone.map_or(String::new(), |zone| format!("zone={zone}"));
        write!(text, "node n{at} {state} {zone}; ").unwrap();
    }
    text += POOLS;
    let copy = |at: u32| {
        let state = if lost.contains(&at) { "away=20m" } else { "ok" };
        format!("n{at}/p{at} {state}")
    };
    for (number, (one, other)) in (1..).zip([(1, 3), (2, 5), (4, 6)]) {
        let good = [one, other].into_iter().find(|at| !lost.contains(at));
        let at = good.map_or(String::new(), |at| format!("at=n{at}"));
        write!(text, "v{number} x2 {at}: {}, {}; ", copy(one), copy(other)).unwrap();
    }
    text
}

#[test]
fn a_lost_rack_is_waited_for() {
    let rack = lost(RACKS, &[5, 6]);
    check(&rack, "-");
    check_blocked(&rack, &["2 of 2 nodes of zone c do not answer (n5, n6)", "node drain"]);
    assert_eq!(planned(&World::new(&rack)).brake.unwrap().held, 2);
}

/// A rack is lost, and a single disk elsewhere: what was on the disk is replaced.
#[test]
fn the_brake_of_a_zone_holds_no_other_zone() {
    let rack = lost(RACKS, &[5, 6]) + "v4 x2 at=n1: n1/p1 ok, n3/p3 away=20m; ";
    check(&rack, "add v4@p4");
    assert_eq!(planned(&World::new(&rack)).brake.unwrap().held, 2);
}

#[test]
fn half_of_the_nodes_lost_are_waited_for() {
    check(&lost("", &[4, 5, 6]), "-");
    check_blocked(&lost("", &[4, 5, 6]), &["3 of 6 nodes do not answer (n4, n5, n6)"]);
    check(&lost("", &[3, 4, 5, 6]), "-");
}

#[test]
fn a_third_without_zones_is_healed_as_ever() {
    check(&lost("", &[5, 6]), "add v2@p1; add v3@p2");
    assert_eq!(planned(&World::new(&lost("", &[5, 6]))).brake, None);
}

#[test]
fn one_node_is_never_a_rack() {
    check(&lost(RACKS, &[6]), "add v3@p1");
    check(
        "pool n1/p1; pool n2/p2; node n1 offline zone=a; node n2 zone=b; pool n3/p3;
           v1 x2 at=n2: n1/p1 away=20m, n2/p2 ok",
        "add v1@p3",
    );
}

/// Nodes of a rack come back one after the other.
#[test]
fn the_last_nodes_of_a_rack_are_waited_for() {
    let one_is_back = lost(RACKS, &[6]);
    check(&format!("braked 9m; {one_is_back}"), "-");
    check_blocked(&format!("braked 9m; {one_is_back}"), &["(n6)", "for another 60 s"]);
    check(&format!("braked 10m; {one_is_back}"), "add v3@p1");
}

/// Whoever drains or forgets a lost node says that nobody waits for it.
#[test]
fn an_operators_word_lifts_the_brake() {
    let drained = lost("", &[4, 5, 6]).replace("offline", "offline draining");
    check(&drained, "add v2@p1");
    let purged = "node n1; node n2; node n3 offline; node n4 offline; pool n1/p1; pool n2/p2; \
                  v1 x2 at=n1: n1/p1 ok";
    check(purged, "add v1@p2");
    check(&format!("set share=0; {}", lost("", &[4, 5, 6])), "add v2@p1");
}

/// Where a target goes, and what returns, is no new copy.
#[test]
fn failover_and_what_returns_are_not_braked() {
    check(
        "node n3 offline; node n4 offline; pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4; \
         v1 x2 at=n3 for=h1: n1/p1 ok, n3/p3 away=20m; v2 x2 at=n1: n1/p1 ok, n2/p2 stale",
        "failover v1!n3 to n1 (lapsed); rebuild v2@p2 partial from p1",
    );
}

#[test]
fn pools_are_not_filled_by_healing() {
    let full = "node n1; node n2 offline; pool n1/p1; pool n2/p2; pool n3/p3 used=85G; \
                v1 x2 at=n1 alloc=8G: n1/p1 ok, n2/p2 away=20m";
    check(full, "-");
    check_blocked(full, &["would be used", "copies that are healed"]);
    check(&format!("set fill=95; {full}"), "add v1@p3");
    // Somebody wants more copies than there were.
    check("pool n3/p3 used=85G; v1 x2 at=n1 alloc=8G: n1/p1 ok", "add v1@p3");
}

#[test]
fn rebuilds_are_bounded_in_the_whole_cluster() {
    let mut text = String::new();
    for at in 1..=40 {
        write!(text, "v{at} x2 at=n{at}: n{at}/p{at} ok, m{at}/q{at} stale; ").unwrap();
    }
    assert_eq!(planned(&World::new(&text)).steps.len(), 16);
}
