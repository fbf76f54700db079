//! Room: thick, thin, over-committed, and pools that are full.

use planner::{Budget, View, check_resize, place_volume};

use crate::parse::{request, size};
use crate::world::World;
use crate::{check, check_blocked};

/// Whether a new volume finds room in the only pool.
#[track_caller]
pub(crate) fn fits(health: &str, wanted: &str, refused: Option<&str>) {
    let mut world = World::new(health);
    let (id, spec) = request(&mut world, wanted);
    let view = View::new(&world.facts, &world.settings, world.now);
    match (place_volume(&view, &mut Budget::new(), id, &spec), refused) {
        (Ok(_), None) => {}
        (Err(problem), Some(why)) if problem.detail.contains(why) => {
            assert_eq!(problem.kind, model::ProblemKind::NoSpace, "{problem:?}");
        }
        (found, _) => panic!("{health} | {wanted}: {found:?}"),
    }
}

#[test]
fn thick_volumes_need_all_of_their_size() {
    fits("pool n1/p1", "v1 thick 100G", None);
    fits("pool n1/p1", "v1 thick 101G", Some("it has 100GiB in all, less than the volume"));
    fits("pool n1/p1 used=41G", "v1 thick 60G", Some("it has 59GiB free, and 60GiB are needed"));
    fits("pool n1/p1; reserve p1 41G", "v1 thick 60G", Some("it has 59GiB free"));
}

#[test]
fn thin_volumes_need_a_part_of_it() {
    fits("pool n1/p1 used=95G", "v1 10G", None);
    fits("pool n1/p1 used=97G", "v1 10G", Some("it has 3GiB free, and 4112MiB are needed"));
    fits("pool n1/p1", "v1 101G", Some("it has 100GiB in all"));
}

#[test]
fn pools_are_not_promised_without_end() {
    fits("pool n1/p1 committed=150G", "v1 100G", None);
    fits(
        "pool n1/p1 committed=151G",
        "v1 100G",
        Some("251GiB would be promised of it, and 250GiB may be"),
    );
    fits(
        "set commitment=100; pool n1/p1 committed=51G",
        "v1 50G",
        Some("101GiB would be promised"),
    );
    fits("pool n1/p1 committed=100G; reserve p1 51G", "v1 100G", Some("251GiB would be promised"));
    // Copies that their pool has not shown yet are promised too.
    fits(
        "v9 100G virgin: n1/p1 making=1m; v8 100G virgin: n1/p1 making=1m",
        "v1 51G",
        Some("251GiB"),
    );
    fits("v9 60G thick virgin: n1/p1 making=1m", "v1 41G thick", Some("it has 40GiB free"));
}

#[test]
fn a_plan_does_not_promise_the_same_room_twice() {
    check(
        "pool n2/p2 25G; v1 x2 20G thick at=n1: n1/p1 ok; v2 x2 20G thick at=n1: n1/p1 ok",
        "add v1@p2",
    );
    check(
        "set commitment=100; pool n2/p2 25G; v1 x2 15G at=n1: n1/p1 ok; v2 x2 15G at=n1: n1/p1 ok",
        "add v1@p2",
    );
    // Nor the same node: two of a group's volumes go apart.
    check(
        "pool n8/p8; pool n9/p9; node n1 draining; node n2 draining; \
         v1 x1 group=g at=n5: n1/p1 ok; v2 x1 group=g at=n5: n2/p2 ok",
        "add v1@p8; add v2@p9",
    );
}

#[test]
fn of_a_full_pool_the_largest_copy_leaves() {
    let full = "pool n1/p1 10G used=10G; pool n2/p2; pool n3/p3 ";
    check(
        &format!(
            "{full}; v1 x2 at=n2: n1/p1 full alloc=3G, n2/p2 ok; \
                  v2 x2 at=n2: n1/p1 full alloc=6G, n2/p2 ok alloc=6G"
        ),
        "add v2@p3",
    );
    // It stays a member until the new one is in sync, then it goes.
    check(
        &format!("{full}; v2 x2 at=n2: n1/p1 full alloc=6G, n2/p2 ok alloc=6G, n3/p3 rebuilding"),
        "-",
    );
    check(
        &format!("{full}; v2 x2 at=n2: n1/p1 full alloc=6G, n2/p2 ok alloc=6G, n3/p3 ok"),
        "remove v2@p1",
    );
    // The others are brought in sync where they are, once there is room.
    check(
        "pool n1/p1 10G used=4G; pool n3/p3; v1 x2 at=n2: n1/p1 full alloc=3G, n2/p2 ok",
        "rebuild v1@p1 partial from p2",
    );
}

#[test]
fn when_all_pools_are_full_volumes_stay_degraded() {
    let full = "pool n1/p1 10G used=10G; pool n2/p2; pool n3/p3 used=100G; \
                v1 x2 at=n2: n1/p1 full, n2/p2 ok";
    check(full, "-");
    check_blocked(full, &["p3: it has 0B free"]);
}

#[test]
fn a_full_pool_does_not_hurt_thick_volumes() {
    check(
        "pool n1/p1 20G used=20G; v1 x2 thick alloc=10G at=n2: n1/p1 ok, n2/p2 ok; \
         v2 x2 at=n2: n1/p1 full, n2/p2 ok; pool n3/p3",
        "add v2@p3",
    );
}

#[track_caller]
pub(crate) fn resize(health: &str, to: &str, refused: Option<&str>) {
    let world = World::new(health);
    let view = View::new(&world.facts, &world.settings, world.now);
    match (check_resize(&view, world.get("v1"), size(to)), refused) {
        (Ok(()), None) => {}
        (Err(problem), Some(why)) if problem.detail.contains(why) => {}
        (found, _) => panic!("{health}: {found:?}"),
    }
}

#[test]
fn a_volume_can_grow() {
    resize("v1 x2: n1/p1 ok, n2/p2 ok", "20G", None);
    resize("v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "20G", None);
    resize("v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding", "20G", None);
    resize("v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "10G", None);
    resize("v1 x2: n1/p1 ok, n2/p2 ok", "9G", Some("cannot shrink"));
    resize("node n2 offline; v1 x2: n1/p1 ok, n2/p2 away=1m", "20G", Some("does not answer"));
    resize("node n2 offline; v1 x2 at=n1: n1/p1 ok, n2/p2 away=1m", "20G", Some("pool p2"));
    let full = "pool n2/p2 20G used=15G; v1 x2: n1/p1 ok, n2/p2 ok";
    resize(full, "30G", Some("p2: it has 5GiB free, and"));
    resize("v1 x1 thick: n1/p1 ok", "110G", None);
    resize("v1 x1 thick: n1/p1 ok", "111G", Some("it has 100GiB free, and 101GiB are needed"));
}

#[test]
fn copies_grow_first_and_the_target_last() {
    check("v1 x2 growing=20G at=n1: n1/p1 ok, n2/p2 ok", "resize v1@p1 20GiB; resize v1@p2 20GiB");
    check("v1 x2 growing=20G at=n1: n1/p1 ok size=20G, n2/p2 ok", "resize v1@p2 20GiB");
    check("v1 x2 growing=20G at=n1: n1/p1 ok size=20G, n2/p2 ok size=20G", "resize v1!n1 20GiB");
    check("v1 x2 20G tsize=10G at=n1: n1/p1 ok, n2/p2 ok", "resize v1!n1 20GiB");
    // What a growth that failed has left behind is taken back, but not under a target.
    check("v1 x2: n1/p1 ok size=20G, n2/p2 ok", "resize v1@p1 10GiB");
    check("v1 x2 at=n1: n1/p1 ok size=20G, n2/p2 ok", "-");
}
