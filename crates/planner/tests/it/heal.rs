//! Copies: waited for, brought in sync, replaced, added, removed.

use crate::{check, check_blocked};

const THREE: &str = "pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4; ";

/// The situation on four nodes with a pool each.
#[track_caller]
fn four(health: &str, steps: &str) {
    check(&format!("{THREE}{health}"), steps);
}

#[test]
fn a_healthy_volume_is_left_alone() {
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 ok", "-");
    four("v1 x3: n1/p1 ok, n2/p2 ok, n3/p3 ok", "-");
    four("v1 x1 virgin: n1/p1 ok", "-");
}

#[test]
fn a_lost_copy_is_waited_for() {
    four("node n2 offline; v1 x3 at=n1: n1/p1 ok, n2/p2 away=9m, n3/p3 ok", "-");
    four("node n2 offline; v1 x3 at=n1: n1/p1 ok, n2/p2 away=10m, n3/p3 ok", "add v1@p4");
    four(
        "set wait=1m; node n2 offline; v1 x3 at=n1: n1/p1 ok, n2/p2 away=2m, n3/p3 ok",
        "add v1@p4",
    );
    four("node n2 offline; v1 x3 wait=30 at=n1: n1/p1 ok, n2/p2 away=1m, n3/p3 ok", "add v1@p4");
    four("node n2 offline; v1 x3 wait=7200 at=n1: n1/p1 ok, n2/p2 away=50m, n3/p3 ok", "-");
}

#[test]
fn doubt_moves_nothing() {
    four("node n2 unknown; v1 x3 at=n1: n1/p1 ok, n2/p2 away=30m, n3/p3 ok", "-");
}

#[test]
fn what_will_not_come_back_is_replaced_at_once() {
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 bad, n3/p3 ok", "add v1@p4");
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 mismatch, n3/p3 ok", "add v1@p4");
    check(
        "pool n2/p2 faulted; pool n4/p4; v1 x3 at=n1: n1/p1 ok, n2/p2 away=1m, n3/p3 ok",
        "add v1@p4",
    );
}

#[test]
fn a_copy_that_returns_gets_what_it_missed() {
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok", "rebuild v1@p2 partial from p1+p3");
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 fresh, n3/p3 ok", "rebuild v1@p2 full from p1+p3");
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 loose, n3/p3 ok", "attach v1@p2");
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 rebuilding, n3/p3 ok", "-");
}

#[test]
fn a_copy_that_returns_too_late_is_still_better_than_a_new_one() {
    // The replacement was not made yet.
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok", "rebuild v1@p2 partial from p1+p3");
    // It was: the first to be in sync stays.
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok, n4/p4 ok", "remove v1@p2");
    four(
        "v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok, n4/p4 rebuilding",
        "rebuild v1@p2 partial from p1+p3",
    );
}

#[test]
fn a_copy_whose_rebuild_fails_again_and_again_is_replaced() {
    four(
        "failed v1@p2 2; v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok",
        "rebuild v1@p2 partial from p1+p3",
    );
    four("failed v1@p2 3; v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok", "add v1@p4");
}

#[test]
fn a_lost_copy_goes_when_it_is_replaced() {
    four("node n2 offline; v1 x3 at=n1: n1/p1 ok, n2/p2 away=20m, n3/p3 ok, n4/p4 rebuilding", "-");
    four(
        "node n2 offline; v1 x3 at=n1: n1/p1 ok, n2/p2 away=20m, n3/p3 ok, n4/p4 ok",
        "remove v1@p2",
    );
}

#[test]
fn nothing_is_copied_from_nowhere() {
    let away = "node n1 offline; v1 x2 at=n3 : n1/p1 away=20m believed, n2/p2 stale";
    four(away, "-");
    check_blocked(&format!("{THREE}{away}"), &["no copy in sync answers", "p1 on node n1"]);
    four("node n1 offline; v1 x1: n1/p1 away=9h", "-");
}

#[test]
fn the_last_copy_in_sync_stays() {
    four("v1 x1 at=n1: n1/p1 ok, n2/p2 stale", "remove v1@p2");
    four("node n2 draining; v1 x1 at=n1: n2/p2 ok, n1/p1 stale", "rebuild v1@p1 partial from p2");
    check("node n1 draining; pool n1/p1; v1 x1: n1/p1 ok", "-");
    four("v1 x2 scaling=1: n1/p1 stale, n2/p2 ok", "remove v1@p1");
    four("node n1 offline; v1 x2 scaling=1: n1/p1 away=1h, n2/p2 stale", "-");
}

#[test]
fn volumes_heal_when_nobody_uses_them() {
    four("v1 x2: n1/p1 ok, n2/p2 stale", "heal v1 on n1");
    four("v1 x2 at=n1 heal: n1/p1 ok, n2/p2 stale", "rebuild v1@p2 partial from p1");
    four("v1 x2 at=n1 heal: n1/p1 ok, n2/p2 rebuilding", "-");
    four("v1 x2 at=n1 heal: n1/p1 ok, n2/p2 ok", "close v1!n1");
    four("node n2 offline; v1 x2: n1/p1 ok, n2/p2 away=20m", "add v1@p3");
    four("node n2 offline; v1 x2: n1/p1 ok, n2/p2 away=20m, n3/p3 fresh", "heal v1 on n1");
    four("node n1 offline; v1 x2 at=n1 heal: n1/p1 away=1m, n2/p2 ok", "close v1!n1 by force");
}

#[test]
fn a_volume_never_written_needs_no_copying() {
    four("node n2 offline; v1 x2 virgin: n1/p1 ok, n2/p2 away=20m", "add v1@p3");
    four("node n2 offline; v1 x2 virgin: n1/p1 ok, n2/p2 away=20m, n3/p3 ok", "remove v1@p2");
}

#[test]
fn who_does_not_want_healing_gets_none() {
    four("node n2 offline; v1 x3 noheal at=n1: n1/p1 ok, n2/p2 away=20m, n3/p3 ok", "-");
    four("v1 x3 noheal at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok", "rebuild v1@p2 partial from p1+p3");
    four("v1 x2 noheal at=n1: n1/p1 ok", "add v1@p2");
    four("node n2 draining; v1 x2 noheal at=n1: n1/p1 ok, n2/p2 ok", "add v1@p3");
}

#[test]
fn resting_copies_and_busy_volumes_are_left_alone() {
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 resting, n3/p3 ok", "-");
    four("busy v1; v1 x3 at=n1: n1/p1 ok, n2/p2 bad, n3/p3 ok", "-");
    four("v1 x3 growing=10G at=n1: n1/p1 ok, n2/p2 bad, n3/p3 ok", "-");
    four("v1 x2 at=n1: n1/p1 ok, n2/p2 making=1m", "-");
}

#[test]
fn more_copies() {
    four("v1 x3 at=n1: n1/p1 ok, n2/p2 ok", "add v1@p3");
    four("v1 x2 scaling=3 at=n1: n1/p1 ok, n2/p2 ok", "add v1@p3");
    four("v1 x2 scaling=3 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 rebuilding", "finish v1");
}

#[test]
fn fewer_copies_the_worst_first() {
    four("v1 x2 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 stale", "remove v1@p3");
    four("v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding, n3/p3 stale, n4/p4 ok", "remove v1@p3");
    // Of good ones, that beside the target stays.
    four("v1 x1 at=n2: n1/p1 ok, n2/p2 ok", "remove v1@p1");
    four("node n2 cordoned; v1 x2 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 ok", "remove v1@p2");
    four("pool n2/p9 cordoned; v1 x1 : n1/p1 ok, n2/p9 ok", "remove v1@p9");
    // The fuller pool is relieved.
    check("pool n1/p1; pool n2/p2 used=50G; v1 x1: n1/p1 ok, n2/p2 ok", "remove v1@p2");
    // With other volumes of its group on the node.
    four("v1 x1 group=g: n1/p1 ok, n2/p2 ok; v2 x1 group=g: n2/p2 ok", "remove v1@p2");
    // Removed already.
    four("v1 x2 scaling=1 at=n1: n1/p1 ok", "finish v1");
}

#[test]
fn copies_with_the_fewest_peers_are_healed_first() {
    check(
        "set rebuilds=1; v1 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok; \
         v2 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 stale",
        "rebuild v2@p2 partial from p1",
    );
    // What is there comes before what is new.
    check(
        "set rebuilds=1; pool n4/p4; v1 x2 at=n1: n1/p1 ok; \
         v2 x3 at=n1: n1/p1 ok, n2/p2 stale, n3/p3 ok",
        "rebuild v2@p2 partial from p1+p3",
    );
}

#[test]
fn rebuilds_are_limited() {
    let three = "v1 x2 at=n1: n1/p1 ok, n2/p2 stale; v2 x2 at=n3: n3/p3 ok, n2/p2 stale; \
                 v3 x2 at=n1: n1/p1 ok, n4/p4 stale";
    let [a, b, c] = [
        "rebuild v1@p2 partial from p1",
        "rebuild v2@p2 partial from p3",
        "rebuild v3@p4 partial from p1",
    ];
    check(three, &format!("{a}; {b}; {c}"));
    check(&format!("set rebuilds=2; {three}"), &format!("{a}; {b}"));
    check(&format!("set rebuilds=0; {three}"), "-");
    check(&format!("set pernode=1; {three}"), a);
    let running = "v9 x2 at=n1: n1/p1 ok, n5/p5 rebuilding; ";
    check(&format!("set rebuilds=1; {running}{three}"), "-");
    check(&format!("set pernode=1; {running}{three}"), b);
    // New copies wait for their turn too, or there would be many and none in sync.
    check("set rebuilds=0; pool n2/p2; v1 x2 at=n1: n1/p1 ok", "-");
    check("set rebuilds=0; v1 x2: n1/p1 ok, n2/p2 stale", "-");
}

#[test]
fn rules_hold_for_life() {
    // A replacement is spread as the first copies were.
    let zones = "node n1 zone=a; node n2 zone=b; node n3 zone=b; node n4 zone=c; ";
    check(&format!("{zones}{THREE}v1 x2 spread=zone at=n1: n1/p1 ok, n2/p2 bad"), "add v1@p3");
    check(&format!("{zones}{THREE}v1 x3 spread=zone at=n1: n1/p1 ok, n2/p2 ok, n4/p4 bad"), "-");
    // A label that changed: the copy moves, the good one first.
    check(&format!("{zones}{THREE}v1 x2 spread=zone at=n2: n2/p2 ok, n3/p3 ok"), "add v1@p1");
    check(
        &format!("{zones}{THREE}v1 x2 spread=zone at=n2: n2/p2 ok, n3/p3 ok, n1/p1 ok"),
        "remove v1@p3",
    );
    four("v1 x1 allow=n3+n4: n1/p1 ok", "add v1@p3");
    four("v1 x1 allow=n3+n4: n1/p1 ok, n3/p3 ok", "remove v1@p1");
    four("v1 x1 allow=n3+n4 noheal: n1/p1 ok", "-");
    // Two on one node, whoever put them there.
    check("pool n3/p3; v1 x2 at=n1: n1/p1 ok, n1/p9 ok", "add v1@p3");
    check("v1 x2 at=n1: n1/p1 ok, n1/p9 ok", "-");
}

#[test]
fn a_dying_disk_is_left_in_time() {
    check("pool n2/p2 suspect; pool n3/p3; v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "add v1@p3");
    check("pool n2/p2 suspect; v1 x2 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 ok", "remove v1@p2");
    check("pool n2/p2 suspect; v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "-");
}

#[test]
fn another_pool_of_the_same_node_will_do_for_a_lost_one() {
    check("pool n2/p2 faulted; pool n2/p9; v1 x2 at=n1: n1/p1 ok, n2/p2 away=1m", "add v1@p9");
}

#[test]
fn a_copy_moves_where_it_was_asked_to() {
    let four_pools =
        |text: &str, steps: &str| four(&format!("v1 x2 moving=p2>p4 at=n1: {text}"), steps);
    four_pools("n1/p1 ok, n2/p2 ok", "add v1@p4");
    four_pools("n1/p1 ok, n2/p2 ok, n4/p4 fresh", "rebuild v1@p4 full from p1+p2");
    four_pools("n1/p1 ok, n2/p2 ok, n4/p4 rebuilding", "-");
    four_pools("n1/p1 ok, n2/p2 ok, n4/p4 ok", "remove v1@p2");
    four_pools("n1/p1 ok, n4/p4 ok", "finish v1");
    four_pools("n1/p1 ok, n2/p2 going, n4/p4 ok", "finish v1; go on deleting v1@p2");
}

#[test]
fn there_is_no_place() {
    let full = "pool n3/p3 used=95G; pool n4/p4 cordoned; node n5 offline; pool n5/p5; \
                v1 x3 at=n1: n1/p1 ok, n2/p2 ok";
    check(full, "-");
    check_blocked(
        full,
        &[
            "it wants another copy: no pool will do:",
            "p1: the copy is there already",
            "p3: it has 5GiB free, and 8208MiB are needed",
            "p4: it is cordoned",
            "p5: node n5 does not answer",
        ],
    );
}
