//! What is cleared away, and what is not.

use crate::world::World;
use crate::{check, check_blocked, planned};

/// Named in the list of suspects, and removed only once it has been there long enough.
#[track_caller]
pub(crate) fn second_look(health: &str, suspect: &str, step: &str) {
    check(health, "-");
    let mut world = World::new(health);
    let subject = world.subject(suspect);
    assert!(planned(&world).suspects.contains(&subject), "{health}");
    check(&format!("{health}; suspect {suspect} 4m"), "-");
    check(&format!("{health}; suspect {suspect} 5m"), step);
}

#[test]
fn copies_without_a_volume() {
    second_look("v1 x1 gone: n1/p1 ok", "v1@p1", "delete v1@p1");
    // Never before its targets are gone: they may still write.
    let target = "suspect v1!n1 9m; suspect v1@p1 9m; v1 x1 gone at=n1: n1/p1 ok";
    check(target, "delete v1!n1");
}

#[test]
fn a_volume_goes_from_the_top_down() {
    check("v1 x2 going at=n1: n1/p1 ok, n2/p2 ok", "delete v1!n1");
    check("v1 x2 going: n1/p1 ok, n2/p2 ok", "delete v1@p1; delete v1@p2");
    check("v1 x2 going: n1/p1 going, n2/p2 going", "go on deleting v1@p1; go on deleting v1@p2");
    // What cannot be asked waits for its node.
    check("node n2 offline; v1 x2 going: n1/p1 going, n2/p2 going", "go on deleting v1@p1");
    check("pool n2/p2 offline; node n2 unknown; v1 x1 going: n2/p2 going", "-");
    check("v1 x2 going", "go on deleting v1");
    check("busy v1; v1 x2 going", "-");
}

#[test]
fn what_was_left_half_made() {
    second_look("v1 x2 making=11m virgin: n1/p1 ok", "v1", "delete v1");
    check("suspect v1 9m; v1 x2 making=9m virgin: n1/p1 ok", "-");
    check("suspect v1 9m; busy v1; v1 x2 making=11m virgin: n1/p1 ok", "-");
    // All of it is there: it only was not said.
    check("v1 x2 making=1m virgin: n1/p1 ok, n2/p2 ok", "finish v1");
    second_look("v1 x1 at=n1: n1/p1 ok, n2/p2 making=11m", "v1@p2", "delete v1@p2");
    check("suspect v1@p2 9m; busy v1; v1 x1 at=n1: n1/p1 ok, n2/p2 making=11m", "-");
    // It is counted in sync: never.
    check("suspect v1@p2 9m; v1 x2: n1/p1 ok, n2/p2 making=11m ok", "-");
}

#[test]
fn targets_that_were_replaced() {
    second_look("v1 x1 old=n2 at=n1: n1/p1 ok", "v1!n2", "delete v1!n2");
    // Hosts are still connected, or on their way.
    check("suspect v1!n2 9m; v1 x1 old=n2 connected at=n1: n1/p1 ok", "-");
    check("suspect v1!n2 9m; v1 x1 old=n2 at=n1: n1/p1 ok; failover v1 replace from=n2 to=n1", "-");
}

#[test]
fn copies_that_nobody_asked_for() {
    let known = "v1 x1 at=n1: n1/p1 ok; pool n9/p9; ";
    second_look(&format!("{known} stray v1@p9"), "v1@p9", "destroy v1@p9");
    let going = "node n1 offline; v1 x1 going: n1/p1 going; pool n9/p9; stray v1@p9";
    second_look(going, "v1@p9", "destroy v1@p9");
    check(&format!("node n9 offline; {known} stray v1@p9; suspect v1@p9 9m"), "-");
    for (orphan, why) in [
        // The store may be older than the disks.
        ("stray v2@p9", "nothing proves that it is not needed"),
        ("stray v1@p9 foreign", "holds it without a label"),
    ] {
        let health = format!("{known}{orphan}; suspect v1@p9 9m; suspect v2@p9 9m");
        check(&health, "-");
        check_blocked(&health, &[why]);
    }
}

/// A node is purged after its copies were replaced: those that wait for it are forgotten.
#[test]
fn copies_on_their_way_out_go_with_the_pool_that_is_given_up() {
    let away = "node n2 offline; v1 x1 at=n1: n1/p1 ok, n2/p2 going; pool n2/p2";
    check(away, "-");
    check(&format!("{away} going"), "go on deleting v1@p2");
}

/// Only what is certainly superseded is destroyed: the others are set aside.
#[test]
fn copies_that_may_hold_what_no_other_has_are_set_aside() {
    let whole = "v1 x1 at=n1: n1/p1 ok; pool n9/p9; ";
    second_look(&format!("{whole} stray v1@p9 newer"), "v1@p9", "quarantine v1@p9");
    // Its volume was read back without it: newer numbers of the record prove nothing.
    second_look(&format!("{whole} stray v1@p9 abandoned"), "v1@p9", "quarantine v1@p9");
    // Its volume is another one that has the same id.
    second_look(&format!("{whole} stray v1@p9 earlier"), "v1@p9", "quarantine v1@p9");
    let broken = "v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding; pool n9/p9; ";
    second_look(&format!("{broken} stray v1@p9"), "v1@p9", "quarantine v1@p9");
    let away = "node n2 unknown; v1 x2 at=n1: n1/p1 ok, n2/p2 away=1m believed; pool n9/p9; ";
    second_look(&format!("{away} stray v1@p9"), "v1@p9", "quarantine v1@p9");
    // Its volume has no copy that answers: an old one is better than none.
    let none = "node n1 unknown; v1 x1: n1/p1 away=1m believed; pool n9/p9; ";
    second_look(&format!("{none} stray v1@p9"), "v1@p9", "quarantine v1@p9");
    // Whoever deletes a volume does not mean a copy that is newer than all he knows of.
    let going = "node n1 offline; v1 x1 going: n1/p1 going; pool n9/p9; stray v1@p9 newer";
    second_look(going, "v1@p9", "quarantine v1@p9");
}

#[test]
fn copies_that_are_set_aside_go_when_their_time_is_over_and_they_are_not_needed() {
    let whole = "v1 x1 at=n1: n1/p1 ok; pool n9/p9; stray v1@p9; suspect v1@p9 9m; ";
    check(&format!("{whole} aside v1@p9 6d"), "-");
    check(&format!("{whole} aside v1@p9 7d"), "destroy v1@p9");
    check(&format!("node n9 offline; {whole} aside v1@p9 9d"), "-");
    let broken = "v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding; pool n9/p9; stray v1@p9; ";
    check(&format!("{broken} suspect v1@p9 9m; aside v1@p9 70d"), "-");
    // Never, whatever becomes of its volume.
    let newer = format!("{whole} aside v1@p9 90d newer");
    check(&newer, "-");
    check_blocked(&newer, &["holdfast quarantine restore", "holdfast quarantine delete"]);
    let going = "node n1 offline; v1 x1 going: n1/p1 going; pool n9/p9; stray v1@p9; ";
    check(&format!("{going} suspect v1@p9 9m; aside v1@p9 9d newer"), "-");
    check(&format!("{going} suspect v1@p9 9m; aside v1@p9 1d"), "destroy v1@p9");
    // What an operator wants is done at once, once its pool is there.
    check(&format!("{whole} aside v1@p9 1m newer discard"), "go on deleting v1@p9");
    check(&format!("{whole} aside v1@p9 1m newer rescue"), "go on deleting v1@p9");
    check(&format!("node n9 offline; {whole} aside v1@p9 1m newer discard"), "-");
}

#[test]
fn targets_that_nobody_asked_for() {
    let known = "node n9; v1 x1 at=n1: n1/p1 ok; ";
    second_look(&format!("{known} stray v1!n9 epoch=1"), "v1!n9", "stop v1!n9");
    let newer = format!("{known} stray v1!n9 epoch=2; suspect v1!n9 9m");
    check(&newer, "-");
    check_blocked(&newer, &["nobody knows it"]);
}

#[test]
fn pools_that_nobody_knows() {
    let seen_twice = "stray n9/p9; suspect p9 9m";
    let why = ["node n9 holds it, but nobody knows it"];
    check_blocked(&format!("node n9; {seen_twice}"), &why);
    for other in ["node n9; stray n9/p9", &format!("node n9 offline; {seen_twice}")] {
        assert_eq!(planned(&World::new(other)).blocked, [], "{other}");
    }
}

#[test]
fn snapshots() {
    check("pool n1/p1; snap s1 of=v9 going: p1", "go on deleting s1");
    check("node n1 offline; pool n1/p1; snap s1 of=v9 going: p1", "-");
    // It outlives its volume, unless it was not taken yet.
    check("pool n1/p1; snap s1 of=v9: p1", "-");
    second_look("snap s1 of=v9 making=1m", "s1", "delete s1");
    second_look("v9 x1: n1/p1 ok; snap s1 of=v9 making=11m", "s1", "delete s1");
    check("suspect s1 9m; v9 x1: n1/p1 ok; snap s1 of=v9 making=9m", "-");
    // Copies that an attempt left behind.
    let left = "pool n1/p1; pool n2/p2; snap s1 of=v9: p1; stray s1 p2";
    second_look(left, "s1", "destroy s1@p2");
    check("suspect s1 9m; pool n1/p1; snap s1 of=v9: p1; stray s1 p1", "-");
    check(
        "busy s1; suspect s1 9m; pool n1/p1; v9 x1: n1/p1 ok; snap s1 of=v9 making=1m; stray s1 p1",
        "-",
    );
    check_blocked("pool n1/p1; stray s1 p1; suspect s1 9m", &["nobody knows it"]);
}

#[test]
fn scrubs_come_round() {
    let due = "set scrub=30d; v1 x1: n1/p1 ok; ";
    check(due, "scrub v1@p1");
    check(&format!("{due} scrubbed v1@p1 29d"), "-");
    check(&format!("{due} scrubbed v1@p1 31d"), "scrub v1@p1");
    check(&format!("{due} scrubbed v1@p1 running"), "-");
    // The one that waited longest, one on each node.
    check(&format!("{due} v2 x1: n1/p1 ok; scrubbed v2@p1 60d; scrubbed v1@p1 31d"), "scrub v2@p1");
    check(&format!("{due} v2 x1: n1/p1 ok; scrubbed v2@p1 running"), "-");
    check(&format!("{due} v2 x1: n2/p2 ok; scrubbed v2@p2 running"), "scrub v1@p1");
    // Not of volumes that are not well.
    check("set scrub=30d; v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding", "-");
}

/// Copies are compared with each other in turn, a volume at a time.
#[test]
fn comparisons_come_round() {
    let due = "set compare=90d; v1 x2 at=n1: n1/p1 ok, n2/p2 ok; ";
    check(due, "compare v1");
    check(&format!("{due} compared v1 89d"), "-");
    check(&format!("{due} compared v1 91d"), "compare v1");
    check(&format!("{due} compared v1 running"), "-");
    // The one that waited longest, one in the cluster.
    let two = format!("{due} v2 x2 at=n3: n3/p3 ok, n4/p4 ok; ");
    check(&format!("{two} compared v2 95d; compared v1 91d"), "compare v2");
    check(&format!("{two} compared v2 running"), "-");
    // Not of volumes that are not well, or that have nothing to compare with.
    check("set compare=90d; v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding", "-");
    check("set compare=90d; v1 x1 at=n1: n1/p1 ok", "-");
}

/// A volume whose copies are compared or repaired has a target for that time, also if nobody uses
/// it.
#[test]
fn a_volume_that_is_attended_has_a_target() {
    check("v1 x2: n1/p1 ok, n2/p2 ok; attended v1", "heal v1 on n1");
    check("v1 x2: n1/p1 ok, n2/p2 ok; attended v1 over", "-");
    check("v1 x2 at=n1 heal: n1/p1 ok, n2/p2 ok; attended v1", "-");
    check("v1 x2 at=n1 heal: n1/p1 ok, n2/p2 ok; attended v1 over", "close v1!n1");
    check("v1 x2 at=n1: n1/p1 ok, n2/p2 ok; attended v1 over", "-");
}
