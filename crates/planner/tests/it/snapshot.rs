//! Whether snapshots can be taken.

use planner::{SnapshotProposal, View, check_snapshot_group};

use crate::world::World;

/// The copies that snapshots of these volumes are taken of, or the kind of the refusal.
#[track_caller]
pub(crate) fn check(health: &str, volumes: &[&str], expected: &str) {
    let mut world = World::new(health);
    let ask = |(n, name): (usize, &&str)| SnapshotProposal {
        volume: world.names.id(name),
        snapshot: world.names.id(&format!("s{n}")),
    };
    let asks: Vec<_> = volumes.iter().enumerate().map(ask).collect();
    let view = View::new(&world.facts, &world.settings, world.now);
    let found = match check_snapshot_group(&view, &asks) {
        Ok(copies) => {
            let names = copies.iter().flatten().map(|id| world.names.name(id));
            names.collect::<Vec<_>>().join(" ")
        }
        Err(problem) => format!("{}", problem.kind),
    };
    assert_eq!(found, expected, "{health}");
}

#[test]
fn of_every_copy_in_sync() {
    check("v1 x1: n1/p1 ok", &["v1"], "v1@p1");
    check("v1 x3 at=n1: n1/p1 ok, n2/p2 ok, n3/p3 ok", &["v1"], "v1@p1 v1@p2 v1@p3");
    check("v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding", &["v1"], "v1@p1");
    check("node n1 cordoned; v1 x1: n1/p1 ok", &["v1"], "v1@p1");
}

#[test]
fn all_or_none() {
    check("node n2 offline; v1 x2: n1/p1 ok, n2/p2 away=1m", &["v1"], "nodeUnavailable");
    check("node n1 offline; v1 x1: n1/p1 away=1m", &["v1"], "nodeUnavailable");
    check("pool n1/p1 used=97G; v1 x2: n1/p1 ok, n2/p2 ok", &["v1"], "noSpace");
    check("pool n1/p1 committed=241G; v1 x1: n1/p1 ok", &["v1"], "noSpace");
    check("v1 x1 virgin", &["v1"], "noHealthyReplica");
    check("v1 x1 going", &["v1"], "notFound");
    check("v1 x1 making=1m", &["v1"], "busy");
}

#[test]
fn as_many_as_the_volume_may_have() {
    let one = "v1 x1 max=1: n1/p1 ok; ";
    check(one, &["v1"], "v1@p1");
    check(&format!("{one} snap s9 of=v1: p1"), &["v1"], "snapshotLimit");
    // Asked for again, it does not count twice.
    check(&format!("{one} snap s0 of=v1: p1"), &["v1"], "v1@p1");
}

#[test]
fn a_group_is_taken_together() {
    let two = "v1 x1: n1/p1 ok; v2 x1: n1/p1 ok; ";
    check(two, &["v1", "v2"], "v1@p1 v2@p1");
    check(&format!("{two} pool n1/p1"), &["v1", "v3"], "notFound");
    // Together they need more room than each.
    let tight = "pool n1/p1 used=95G; v1 x1: n1/p1 ok; v2 x1: n1/p1 ok";
    check(tight, &["v1"], "v1@p1");
    check(tight, &["v1", "v2"], "noSpace");
}
