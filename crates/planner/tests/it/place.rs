//! Where the copies of new volumes go.

use planner::{Budget, View, check_move, check_replica_count, place_volume};

use crate::parse::request;
use crate::world::World;

/// Where the copies of a new volume go, or the words of the refusal.
fn placed(health: &str, wanted: &str) -> Result<String, String> {
    let mut world = World::new(health);
    let (id, spec) = request(&mut world, wanted);
    let view = View::new(&world.facts, &world.settings, world.now);
    let places = place_volume(&view, &mut Budget::new(), id, &spec);
    let places = places.map_err(|problem| format!("{}: {}", problem.kind, problem.detail))?;
    let mark = |pool| if places.with_content.contains(pool) { "*" } else { "" };
    let pools: Vec<_> = places.pools.iter().map(|pool| format!("{pool}{}", mark(pool))).collect();
    Ok(pools.join(" "))
}

#[track_caller]
pub(crate) fn check(health: &str, wanted: &str, pools: &str) {
    assert_eq!(placed(health, wanted).as_deref(), Ok(pools), "{health} | {wanted}");
}

#[track_caller]
pub(crate) fn check_refused(health: &str, wanted: &str, reasons: &[&str]) {
    let refused = placed(health, wanted).expect_err(wanted);
    for reason in reasons {
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
}

const THREE: &str = "pool n1/p1; pool n2/p2; pool n3/p3";

#[test]
fn one_copy_a_node() {
    check(THREE, "v1 x1", "p1");
    check(THREE, "v1 x3", "p1 p2 p3");
    check("pool n1/p1; pool n1/p2; pool n2/p3", "v1 x2", "p1 p3");
    check_refused(
        "pool n1/p1; pool n1/p2; pool n2/p3",
        "v1 x3",
        &["noPlacement: volume", "needs 3 places", "p2: node n1 has a copy of the volume already"],
    );
    check_refused("", "v1 x1", &["noPlacement", "there is no pool"]);
}

#[test]
fn only_nodes_and_pools_that_take_something_new() {
    for (bad, why) in [
        ("node n1 offline; pool n1/p1", "node n1 does not answer"),
        ("node n1 left; pool n1/p1", "node n1 does not answer"),
        ("node n1 unknown; pool n1/p1", "node n1 does not answer"),
        ("node n1 cordoned; pool n1/p1", "node n1 is cordoned"),
        ("node n1 draining; pool n1/p1", "node n1 is being drained"),
        ("node n1 cordoned draining; pool n1/p1", "node n1 is being drained"),
        ("pool n1/p1 cordoned", "it is cordoned"),
        ("pool n1/p1 suspect", "it is suspect: a disk is not well"),
        ("pool n1/p1 faulted", "it is faulted"),
        ("pool n1/p1 offline", "it is offline"),
        ("pool n1/p1 unseen", "it is not seen yet"),
        ("pool n1/p1 exported", "it is exported"),
        ("pool n1/p1 going", "it is not ready: deleting"),
    ] {
        check(&format!("{bad}; pool n2/p2"), "v1 x1", "p2");
        check_refused(bad, "v1 x1", &["noPlacement", "p1: ", why]);
    }
}

#[test]
fn the_emptier_pool_then_that_with_fewer_copies() {
    check("pool n1/p1 used=50G; pool n2/p2", "v1 x1", "p2");
    check("pool n1/p1 committed=50G; pool n2/p2", "v1 x1", "p2");
    check("v9 x1: n1/p1 ok; pool n2/p2", "v1 x1", "p2");
    // A little more or less is no reason.
    check("pool n1/p1 used=3G; pool n2/p2", "v1 x1", "p1");
    // What is spoken for counts.
    check("pool n1/p1; pool n2/p2 used=20G; reserve p1 50G", "v1 x1", "p2");
    // So does what a copy behind its peers will take.
    check(
        "pool n1/p1; pool n2/p2 used=20G; pool n3/p3 cordoned; \
         v9 x2 40G alloc=38G at=n3: n3/p3 ok, n1/p1 fresh alloc=0G",
        "v1 x1",
        "p2",
    );
}

#[test]
fn allowed_and_preferred_nodes() {
    check(THREE, "v1 x2 allow=n2+n3", "p2 p3");
    check(THREE, "v1 x1 prefer=n3", "p3");
    check("pool n1/p1; pool n2/p2; pool n3/p3 used=50G", "v1 x1 prefer=n3", "p3");
    check("pool n1/p1; pool n2/p2; pool n3/p3 cordoned", "v1 x1 prefer=n3", "p1");
    check_refused(
        "pool n1/p1; pool n2/p2 cordoned; pool n3/p3",
        "v1 x2 allow=n2+n3",
        &["p1: node n1 is not one of the volume's allowed nodes", "p2: it is cordoned"],
    );
}

#[test]
fn labels_of_nodes() {
    let labelled =
        "node n1 disk=ssd; node n2 disk=hdd; node n3; pool n1/p1; pool n2/p2; pool n3/p3";
    check(labelled, "v1 x1 node.in.disk=hdd", "p2");
    check(labelled, "v1 x2 node.in.disk=*", "p1 p2");
    check(labelled, "v1 x2 node.not.disk=ssd", "p2 p3");
    check(labelled, "v1 x1 node.not.disk=*", "p3");
    let refused = ["the labels of node n1 do not fit the volume's rules", "p3: the labels"];
    check_refused(labelled, "v1 x2 node.in.disk=hdd", &refused);
}

#[test]
fn labels_of_pools() {
    let labelled = "pool n1/p1 tier=fast; pool n2/p2 tier=slow; pool n3/p3";
    check(labelled, "v1 x1 pool.in.tier=slow", "p2");
    check(labelled, "v1 x2 pool.in.tier=*", "p1 p2");
    check(labelled, "v1 x2 pool.not.tier=fast", "p2 p3");
    check_refused(labelled, "v1 x3 pool.in.tier=*", &["p3: its labels do not fit"]);
}

#[test]
fn spread_and_same() {
    let zones = "node n1 zone=a; node n2 zone=a; node n3 zone=b; node n4; \
                 pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4";
    check(zones, "v1 x2 spread=zone", "p1 p3");
    check_refused(zones, "v1 x3 spread=zone", &["p2: another copy has the same", "p4: the labels"]);
    check(zones, "v1 x2 same=zone", "p1 p2");
    check_refused(zones, "v1 x3 same=zone", &["p3: the other copies have another value of"]);
    let pools = "pool n1/p1 rack=a; pool n2/p2 rack=a; pool n3/p3 rack=b";
    check(pools, "v1 x2 poolspread=rack", "p1 p3");
    check(pools, "v1 x2 poolsame=rack", "p1 p2");
}

#[test]
fn a_first_choice_that_leaves_no_second_is_taken_back() {
    check(
        "node n1 zone=a; node n2 zone=b; node n3 zone=b; \
           pool n1/p1; pool n2/p2 used=30G; pool n3/p3 used=30G",
        "v1 x2 same=zone",
        "p2 p3",
    );
}

#[test]
fn zones_are_kept_apart_as_far_as_there_are_enough() {
    let zones = "node n1 zone=a; node n2 zone=a; node n3 zone=b; node n4; \
                 pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4 used=99G";
    check(zones, "v1 x2", "p1 p3");
    check(zones, "v1 x3", "p1 p3 p2");
    check(zones, "v1 x2 zones=ignore", "p1 p2");
    check(zones, "v1 x2 zones=require", "p1 p3");
    let refused = ["p2: another copy is in zone a", "p4: node n4 has no zone"];
    check_refused(zones, "v1 x3 zones=require", &refused);
}

#[test]
fn volumes_of_a_group_keep_apart() {
    // One copy each: never on one node.
    let one = "pool n1/p1; pool n2/p2 used=50G; v1 x1 group=g: n1/p1 ok";
    check(one, "v2 x1 group=g", "p2");
    check(one, "v2 x1 group=h", "p1");
    let two = format!("{one}; v2 x1 group=g: n2/p2 ok");
    check_refused(&two, "v3 x1 group=g", &["node n1 has a volume of the same group"]);
    // Several copies each: rather not.
    let nine = (1..=9).map(|n| format!("pool n{n}/p{n}; ")).collect::<Vec<_>>().concat();
    check(&nine, "v1 x3 group=g", "p1 p2 p3");
    let first = format!("{nine}v1 x3 group=g: n1/p1 ok, n2/p2 ok, n3/p3 ok; ");
    check(&first, "v2 x3 group=g", "p4 p5 p6");
    let second = format!("{first}v2 x3 group=g: n4/p4 ok, n5/p5 ok, n6/p6 ok; ");
    check(&second, "v3 x3 group=g", "p7 p8 p9");
    check(
        &format!("{THREE}; v1 x3 group=g: n1/p1 ok, n2/p2 ok, n3/p3 ok"),
        "v2 x3 group=g",
        "p1 p2 p3",
    );
}

#[test]
fn a_snapshot_is_restored_where_it_lies_or_copied() {
    let snap =
        "pool n1/p1 used=50G; pool n2/p2 used=50G; pool n3/p3; pool n4/p4; snap s1 of=v9: p1, p2; ";
    check(snap, "v1 x2 from=s1", "p1* p2*");
    check(snap, "v1 x1 from=s1", "p1*");
    // More copies than the snapshot has.
    check(snap, "v1 x3 from=s1", "p1* p2* p3");
    // On any node: one copy brings the content in, and leaves.
    check(snap, "v1 x1 from=s1 allow=n4", "p4 p1*");
    check(&format!("{snap}node n1 offline"), "v1 x2 from=s1", "p2* p3");
    check("pool n1/p1; pool n2/p2; snap s1 of=v9: p1 off, p2", "v1 x1 from=s1", "p2*");
    // A larger volume, a thick one.
    check(snap, "v1 x1 20G from=s1", "p1*");
    check(snap, "v1 x1 thick from=s1", "p1*");
    check_refused(snap, "v1 x1 9G from=s1", &["outOfRange: the content has 10GiB"]);
    check_refused("pool n1/p1; snap s1 of=v9: p1 off", "v1 from=s1", &["noHealthyReplica"]);
    check_refused("pool n1/p1; snap s1 of=v9 making=1m: p1", "v1 from=s1", &["notFound"]);
    check_refused("pool n1/p1", "v1 from=s1", &["notFound: there is no snapshot"]);
}

#[test]
fn a_clone_needs_no_room_where_its_content_lies() {
    let tight = "pool n1/p1 used=80G; pool n2/p2 used=80G; snap s1 of=v9 30G alloc=29G: p1";
    check(tight, "v1 x1 30G from=s1", "p1*");
    check_refused(tight, "v1 x2 30G from=s1", &["p2: it has 20GiB free, and"]);
}

#[test]
fn a_volume_is_cloned_from_its_good_copies() {
    let source = "pool n4/p4; v9 x3 at=n2: n1/p1 stale, n2/p2 ok, n3/p3 ok; ";
    check(source, "v1 x1 from=v9", "p2*");
    check(source, "v1 x3 from=v9", "p2* p3* p4");
    check_refused("node n1 offline; v9 x1: n1/p1 away=1m", "v1 from=v9", &["noHealthyReplica"]);
    check_refused("pool n1/p1", "v1 from=v9", &["notFound: there is no volume"]);
}

#[track_caller]
pub(crate) fn check_count(health: &str, count: u8, refused: Option<&str>) {
    let world = World::new(health);
    let view = View::new(&world.facts, &world.settings, world.now);
    match (check_replica_count(&view, world.get("v1"), count), refused) {
        (Ok(()), None) => {}
        (Err(problem), Some(why)) if problem.detail.contains(why) => {}
        (found, _) => panic!("{health}: {found:?}"),
    }
}

#[test]
fn the_number_of_copies() {
    check_count("pool n2/p2; v1 x1: n1/p1 ok", 2, None);
    check_count("v1 x1: n1/p1 ok", 2, Some("p1: the copy is there already"));
    check_count("pool n2/p2; v1 x1: n1/p1 ok", 3, Some("p2: node n2 has a copy"));
    check_count("v1 x2: n1/p1 ok, n2/p2 ok", 1, None);
    // The last copy of a group's volume needs a node of its own.
    let group = "v1 x2 group=g: n1/p1 ok, n2/p2 ok; v2 x2 group=g: n1/p1 ok";
    check_count(&format!("{group}, n3/p3 ok"), 1, None);
    check_count(&format!("{group}, n2/p2 ok"), 1, Some("has other volumes of its group"));
}

#[track_caller]
fn check_moved(health: &str, to: Option<&str>, expected: Result<&str, &str>) {
    let mut world = World::new(health);
    let from = world.names.id("v1@p1");
    let view = View::new(&world.facts, &world.settings, world.now);
    let pool = to.map(crate::names::good);
    let found = check_move(&view, world.get("v1"), from, pool.as_ref());
    match (&found, expected) {
        (Ok(pool), Ok(expected)) if pool.as_str() == expected => {}
        (Err(problem), Err(why)) if problem.detail.contains(why) => {}
        _ => panic!("{health}: {found:?}"),
    }
}

#[test]
fn a_copy_can_move() {
    let two = "pool n1/p9; pool n3/p3; v1 x2: n1/p1 ok, n2/p2 ok";
    check_moved(two, None, Ok("p3"));
    check_moved(two, Some("p9"), Ok("p9"));
    check_moved(two, Some("p2"), Err("p2: the copy is there already"));
    check_moved(two, Some("p4"), Err("there is no pool p4"));
    check_moved("pool n2/p3; v1 x2: n1/p1 ok, n2/p2 ok", None, Err("node n2 has a copy"));
    check_moved("pool n3/p3; v1 x1: n1/p8 ok", None, Err("is not a copy of volume"));
    let away = "node n1 offline; pool n3/p3; v1 x1: n1/p1 away=1m";
    check_moved(away, None, Err("no copy in sync"));
}
