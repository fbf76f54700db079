//! Targets that must move, and where to.

use crate::{check, check_blocked};

#[test]
fn a_lost_node_loses_its_targets() {
    check(
        "node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok",
        "failover v1!n1 to n2 (lapsed)",
    );
    check(
        "node n1 left; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok",
        "failover v1!n1 to n2 (lapsed)",
    );
    // Doubt is not enough.
    check("node n1 unknown; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok", "-");
}

#[test]
fn the_new_target_goes_where_a_copy_is_and_few_targets_are() {
    let busy = "v9 x1 at=n2: n2/p2 ok; ";
    check(
        &format!("{busy}node n1 offline; pool n0/p0; v1 x2 at=n1: n1/p1 away=1m, n2/p2 ok"),
        "failover v1!n1 to n2 (lapsed)",
    );
    check(
        &format!("{busy}node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok"),
        "failover v1!n1 to n3 (lapsed)",
    );
    // Several at once are spread.
    check(
        "node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok; \
         v2 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok",
        "failover v1!n1 to n2 (lapsed); failover v2!n1 to n3 (lapsed)",
    );
    // Targets of a group keep apart rather than stay beside a copy.
    check(
        "node n1 offline; pool n4/p4; v1 x3 group=g at=n1: n1/p1 away=1m, n2/p2 ok; \
         v2 x1 group=g at=n2: n2/p2 ok",
        "failover v1!n1 to n4 (lapsed)",
    );
}

#[test]
fn not_to_cordoned_draining_or_absent_nodes() {
    let base = "node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok";
    check(&format!("node n2 cordoned; {base}"), "failover v1!n1 to n3 (lapsed)");
    check(&format!("node n2 draining; {base}"), "failover v1!n1 to n3 (lapsed)");
    let none = format!("node n2 cordoned; node n3 cordoned; {base}");
    check(&none, "-");
    check_blocked(&none, &["n2: node n2 is cordoned", "n1: node n1 does not answer"]);
}

#[test]
fn not_where_an_old_target_still_is() {
    check(
        "node n1 offline; v1 x3 old=n2 connected at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok",
        "failover v1!n1 to n3 (lapsed)",
    );
}

#[test]
fn without_a_copy_there_is_nothing_to_serve() {
    let only = "node n1 offline; pool n2/p2; v1 x1 at=n1: n1/p1 away=1m";
    check(only, "-");
    check_blocked(only, &["it wants a target, but no copy in sync answers"]);
}

#[test]
fn the_target_of_a_single_copy_stays_beside_it() {
    check("node n1 offline; pool n0/p0; v1 x1 at=n1: n2/p2 ok", "failover v1!n1 to n2 (lapsed)");
    // Unless that node takes nothing new.
    check(
        "node n1 offline; pool n0/p0; node n2 cordoned; v1 x1 at=n1: n2/p2 ok",
        "failover v1!n1 to n0 (lapsed)",
    );
}

#[test]
fn a_lost_path_moves_the_target() {
    let lost = "lost v1 h1 n1";
    let base = "v1 x2 at=n1: n1/p1 ok, n2/p2 ok";
    check(&format!("{base}; {lost}"), "failover v1!n1 to n2 (path)");
    // A path of somebody else, or of another target.
    check(&format!("{base}; lost v1 h2 n1"), "-");
    check(&format!("{base}; lost v1 h1 n2"), "-");
}

#[test]
fn a_target_that_its_engine_forgot_is_ordered_again() {
    check("v1 x2 at=n1 unseen: n1/p1 ok, n2/p2 ok", "order v1!n1");
    check("node n1 unknown; v1 x2 at=n1 unseen: n1/p1 ok, n2/p2 ok", "-");
}

#[test]
fn a_target_that_shut_itself_down_is_made_anew() {
    check("v1 x2 at=n1 down: n1/p1 ok, n2/p2 ok", "failover v1!n1 to n2 (dead)");
    check("v1 x1 at=n1 down: n1/p1 ok", "failover v1!n1 to n1 (dead)");
}

#[test]
fn a_failover_goes_on() {
    let base = "node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 ok, n3/p3 ok";
    check(&format!("{base}; failover v1 init from=n1"), "-");
    check(&format!("{base}; failover v1 republish from=n1"), "republish v1 on n2");
    check(&format!("{base}; failover v1 done from=n1"), "failover v1!n1 to n2 (lapsed)");
    // Nothing else is done to the volume meanwhile.
    let broken = "v1 x3 at=n1: n1/p1 bad, n2/p2 ok, n3/p3 ok; pool n4/p4; ";
    check(&format!("{broken} failover v1 init from=n1"), "-");
}

#[test]
fn no_free_node_then_one() {
    let base = "node n1 offline; node n2 cordoned; v1 x2 at=n1: n1/p1 away=1m, n2/p2 ok; \
                failover v1 republish from=n1; ";
    check(base, "-");
    check_blocked(base, &["n2: node n2 is cordoned"]);
    check(&format!("{base} pool n3/p3"), "republish v1 on n3");
}

#[test]
fn the_old_node_will_do_if_it_is_back_and_no_other_will() {
    check("v1 x1 at=n1: n1/p1 ok; failover v1 republish from=n1", "republish v1 on n1");
    check(
        "pool n2/p2; v1 x2 at=n1: n1/p1 ok, n2/p2 ok; failover v1 republish from=n1",
        "republish v1 on n2",
    );
}

#[test]
fn a_second_failure_on_the_way() {
    let moved = "v1 x3 old=n1 at=n2: n2/p2 ok, n3/p3 ok; failover v1 replace from=n1 to=n2; ";
    check(moved, "-");
    check(&format!("node n2 offline; {moved}"), "reroute v1");
    check(&format!("node n2 unknown; {moved}"), "-");
}

#[test]
fn the_old_target_goes_when_its_node_is_back() {
    let moved = "v1 x1 old=n1 at=n2: n2/p2 ok; failover v1 delete from=n1 to=n2; ";
    check(moved, "go on deleting v1!n1");
    check(&format!("node n1 offline; {moved}"), "-");
}
