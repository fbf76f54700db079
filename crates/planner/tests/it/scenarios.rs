//! What users of such systems expect, feature by feature: one line for each scenario that is a
//! matter of planning. The rules behind them are tested one by one in the other files.

use crate::drain::progress;
use crate::gc::second_look;
use crate::place::{check as places, check_count as count, check_refused as refused};
use crate::publish::{check as publish, check_un as unpublish};
use crate::snapshot::check as snapshot;
use crate::space::{fits, resize};
use crate::{check, check_blocked};

/// Thin pools that fill up.
#[test]
fn capacity() {
    let full = "pool n1/p1 10G used=10G; pool n3/p3; ";
    // The largest copy leaves, the other is brought in sync in its place when there is room.
    check(
        &format!(
            "{full} v1 x2 at=n2: n1/p1 full alloc=3G, n2/p2 ok; \
             v2 x2 at=n2: n1/p1 full alloc=6G, n2/p2 ok alloc=6G"
        ),
        "add v2@p3",
    );
    check(
        "pool n1/p1 10G used=4G; v1 x2 at=n2: n1/p1 full alloc=3G, n2/p2 ok",
        "rebuild v1@p1 partial from p2",
    );
    // No room anywhere: degraded, and served.
    let all_full = "pool n1/p1 10G used=10G; v1 x2 at=n2: n1/p1 full, n2/p2 ok";
    check(all_full, "-");
    check_blocked(all_full, &["no pool will do"]);
    // Thick, too large; thin, and promised more than there is.
    fits("pool n1/p1", "v1 thick 100G", None);
    fits("pool n1/p1", "v1 thick 101G", Some("100GiB in all"));
    fits("pool n1/p1 committed=100G", "v1 100G", None);
    // Numbers that people can read.
    resize("v1 x1: n1/p1 ok", "102400G", Some("it has 100GiB free, and 40TiB are needed"));
    // Thick copies do not suffer from a pool without room.
    check(
        "pool n1/p1 20G used=20G; v1 x2 thick alloc=10G at=n2: n1/p1 ok, n2/p2 ok; \
         v2 x2 at=n2: n1/p1 full, n2/p2 ok",
        "-",
    );
}

/// Nodes that take nothing new.
#[test]
fn cordon() {
    let three = "pool n1/p1; pool n2/p2; pool n3/p3; ";
    places(&format!("{three} node n1 cordoned"), "v1 x2", "p2 p3");
    refused(&format!("{three} node n1 cordoned"), "v1 x3", &["p1: node n1 is cordoned"]);
    // What is there stays, can be deleted, and is used again when the cordon is lifted.
    check("node n1 cordoned; v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "-");
    check("node n1 cordoned; v1 x1 going: n1/p1 going", "go on deleting v1@p1");
    places(three, "v1 x3", "p1 p2 p3");
    // No target goes there either.
    publish("node n1 cordoned; v1 x2: n1/p1 ok, n2/p2 ok", None, "open n2");
}

/// Hosts keep their device when the target moves.
#[test]
fn high_availability() {
    let killed = "node n1 offline; v1 x2 at=n1: n1/p1 away=1m, n2/p2 ok";
    check(killed, "failover v1!n1 to n2 (lapsed)");
    check("v1 x2 at=n1: n1/p1 ok, n2/p2 ok; lost v1 h1 n1", "failover v1!n1 to n2 (path)");
    // Again and again.
    check("v1 x2 at=n2: n1/p1 ok, n2/p2 ok; lost v1 h1 n2", "failover v1!n2 to n1 (path)");
    // The new node fails too; nobody is free, then somebody is; the old node is back.
    let moved = "v1 x3 old=n1 at=n2: n2/p2 ok, n3/p3 ok; failover v1 replace from=n1 to=n2; ";
    check(&format!("node n2 offline; {moved}"), "reroute v1");
    let nobody = "node n1 offline; node n2 cordoned; v1 x2 at=n1: n1/p1 away=1m, n2/p2 ok; \
                  failover v1 republish from=n1; ";
    check(nobody, "-");
    check(&format!("{nobody} pool n3/p3"), "republish v1 on n3");
    check("v1 x1 at=n1: n1/p1 ok; failover v1 republish from=n1", "republish v1 on n1");
    // A target that faulted is made anew.
    check("v1 x1 at=n1 down: n1/p1 ok", "failover v1!n1 to n1 (dead)");
}

/// Nodes that are emptied.
#[test]
fn drain() {
    let node = "node n1 draining; ";
    check(&format!("{node} v1 x2 at=n1: n2/p2 ok, n3/p3 ok"), "failover v1!n1 to n2 (drain)");
    // Cordoned as well, or drained for two reasons, makes no difference.
    check(
        "node n1 cordoned draining; v1 x2 at=n1: n2/p2 ok, n3/p3 ok",
        "failover v1!n1 to n2 (drain)",
    );
    // Not enough room at the start, or on the way; it goes on when there is.
    let stuck = format!("{node} v1 x2 at=n2: n1/p1 ok, n2/p2 ok; ");
    check(&stuck, "-");
    progress(&stuck, (0, 1), &["copy of volume"]);
    check(&format!("{stuck} pool n3/p3"), "add v1@p3");
    // Called off: what is there stays.
    check("node n1; v1 x2 at=n1: n1/p1 ok, n2/p2 ok; pool n3/p3", "-");
    // The node is started anew meanwhile.
    check(
        "node n1 draining offline; pool n3/p3; v1 x2 at=n2: n1/p1 away=1m, n2/p2 ok",
        "add v1@p3",
    );
    // Nothing new goes there, while it is emptied and when it is empty.
    refused("node n1 draining; pool n1/p1", "v1 x1", &["node n1 is being drained"]);
    publish("node n1 draining; v1 x2: n1/p1 ok, n2/p2 ok", None, "open n2");
}

/// Copies brought in sync.
#[test]
fn rebuild() {
    // Back within the time: what it missed. Not back: a new copy, all of it.
    let base = "pool n4/p4; v1 x3 at=n1: n1/p1 ok, n3/p3 ok, ";
    check(&format!("{base} n2/p2 stale"), "rebuild v1@p2 partial from p1+p3");
    check(&format!("node n2 offline; {base} n2/p2 away=9m"), "-");
    check(&format!("node n2 offline; {base} n2/p2 away=11m"), "add v1@p4");
    check(&format!("{base} n4/p4 fresh"), "rebuild v1@p4 full from p1+p3");
    // It dies again while it gets what it missed: it is waited for again.
    check(&format!("node n2 offline; {base} n2/p2 away=1m"), "-");
    // The target's node dies meanwhile: another serves, and goes on.
    check(
        "node n1 offline; v1 x3 at=n1: n1/p1 away=1m, n2/p2 stale, n3/p3 ok",
        "failover v1!n1 to n3 (lapsed)",
    );
    // So many at once, when copies are added and when they are replaced.
    check("set rebuilds=0; pool n2/p2; v1 x2 scaling=3 at=n1: n1/p1 ok, n3/p3 ok", "-");
    check("set rebuilds=0; pool n4/p4; v1 x2 at=n1: n1/p1 ok, n2/p2 bad", "-");
}

#[test]
fn snapshots() {
    // Of one copy or of several, used or not.
    for used in ["", "at=n1"] {
        snapshot(&format!("v1 x1 {used}: n1/p1 ok"), &["v1"], "v1@p1");
        snapshot(&format!("v1 x2 {used}: n1/p1 ok, n2/p2 ok"), &["v1"], "v1@p1 v1@p2");
    }
    // A copy does not answer.
    let away = "node n2 offline; v1 x2: n1/p1 ok, n2/p2 away=1m";
    snapshot(away, &["v1"], "nodeUnavailable");
    // It outlives its volume; a volume that is gone has no new one.
    check("pool n1/p1; snap s1 of=v9: p1", "-");
    snapshot("v1 x1 going", &["v1"], "notFound");
    // What an attempt left behind is cleared away.
    second_look("pool n1/p1; pool n2/p2; snap s1 of=v9: p1; stray s1 p2", "s1", "destroy s1@p2");
    second_look("snap s1 of=v9 making=1m", "s1", "delete s1");
    // Restored: once, twice, from what was restored, with a node down, larger, not smaller, thick,
    // with more copies than it has.
    let one = "pool n1/p1; pool n2/p2; snap s1 of=v9: p1, p2; ";
    places(one, "v1 x1 from=s1", "p1*");
    places(&format!("{one} v2 x1: n1/p1 ok"), "v1 x2 from=s1", "p2* p1*");
    places(&format!("{one} v2 x1: n1/p1 ok; snap s2 of=v2: p1"), "v1 x1 from=s2", "p1*");
    places(&format!("node n1 offline; {one}"), "v1 x1 from=s1", "p2*");
    places(one, "v1 x1 20G from=s1", "p1*");
    refused(one, "v1 x1 5G from=s1", &["outOfRange"]);
    places(one, "v1 x1 thick from=s1", "p1*");
    places("pool n1/p1; pool n2/p2; snap s1 of=v9: p1", "v1 x2 from=s1", "p1* p2");
}

#[test]
fn volumes() {
    let two = "pool n1/p1; pool n2/p2; ";
    places(two, "v1 x2", "p1 p2");
    refused(two, "v1 x3", &["needs 3 places"]);
    refused("node n1 offline; pool n1/p1", "v1 x1", &["does not answer"]);
    // Deleted: used by nobody, used, a node away.
    check("v1 x1 going: n1/p1 ok", "delete v1@p1");
    check("v1 x1 going at=n1: n1/p1 ok", "delete v1!n1");
    check("node n2 offline; v1 x2 going: n1/p1 going, n2/p2 going", "go on deleting v1@p1");
    // Published and unpublished twice, elsewhere, from a node that is away.
    publish("v1 x1 at=n1 for=h1: n1/p1 ok", None, "already");
    publish("v1 x2: n1/p1 ok, n2/p2 ok", Some("n2"), "open n2");
    unpublish("v1 x1: n1/p1 ok", Some("h1"), false, "already");
    let away = "node n1 offline; v1 x1 at=n1 for=h1: n2/p2 ok";
    unpublish(away, Some("h1"), true, "close v1!n1");
    // More copies, fewer, as many as there are.
    count("pool n2/p2; v1 x1: n1/p1 ok", 2, None);
    count("v1 x2: n1/p1 ok, n2/p2 ok", 1, None);
    check("v1 x1: n1/p1 ok, n2/p2 ok", "remove v1@p1");
    check("v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "-");
    // Copies that nobody needs.
    second_look("v1 x1 at=n1: n1/p1 ok; pool n9/p9; stray v1@p9", "v1@p9", "destroy v1@p9");
}

#[test]
fn growth() {
    for used in ["", "at=n1"] {
        let both = format!("v1 x2 {used}: n1/p1 ok, n2/p2 ok");
        resize(&both, "20G", None);
        resize(&both, "9G", Some("cannot shrink"));
        let away = format!("node n2 offline; v1 x2 {used}: n1/p1 ok, n2/p2 away=1m");
        resize(&away, "20G", Some("does not answer"));
        // Snapshots of it keep their size.
        resize(&format!("{both}; snap s1 of=v1: p1, p2"), "20G", None);
    }
    resize("v1 x2 at=n1: n1/p1 ok, n2/p2 rebuilding", "20G", None);
}

/// Labels of nodes and pools, kept when copies are added.
#[test]
fn topology() {
    let pools = "pool n1/p1 tier=fast; pool n2/p2 tier=fast; pool n3/p3 tier=slow; pool n4/p4; ";
    places(pools, "v1 x2 pool.in.tier=fast", "p1 p2");
    refused(pools, "v1 x3 pool.in.tier=fast", &["p3: its labels do not fit"]);
    refused("pool n1/p1", "v1 x1 pool.in.tier=fast", &["p1: its labels do not fit"]);
    places(pools, "v1 x3 pool.in.tier=*", "p1 p2 p3");
    check(&format!("{pools} v1 x2 pool.in.tier=fast at=n1: n1/p1 ok"), "add v1@p2");
    check(&format!("{pools} v1 x3 pool.in.tier=fast at=n1: n1/p1 ok, n2/p2 ok"), "-");
    let nodes = "node n1 rack=a; node n2 rack=a; node n3 rack=b; \
                 pool n1/p1; pool n2/p2; pool n3/p3; pool n4/p4; ";
    places(nodes, "v1 x2 spread=rack", "p1 p3");
    places(nodes, "v1 x2 node.in.rack=a", "p1 p2");
    places(nodes, "v1 x3 node.in.rack=*", "p1 p2 p3");
    check(&format!("{nodes} v1 x2 spread=rack at=n1: n1/p1 ok"), "add v1@p3");
}

/// Volumes that belong together and must not fail together.
#[test]
fn groups() {
    let pools = |count: u32| {
        let each = (1..=count).map(|n| format!("pool n{n}/p{n}; "));
        each.collect::<Vec<_>>().concat()
    };
    // Three with one copy, on three nodes; not on two.
    let one = |n: u32| format!("v{n} x1 group=g: n{n}/p{n} ok; ");
    places(&format!("{}{}{}", pools(3), one(1), one(2)), "v3 x1 group=g", "p3");
    refused(
        &format!("{}{}{}", pools(2), one(1), one(2)),
        "v3 x1 group=g",
        &["node n1 has a volume of the same group", "node n2 has a volume of the same group"],
    );
    // Three with three copies, on nine, five and three nodes.
    let first = "v1 x3 group=g: n1/p1 ok, n2/p2 ok, n3/p3 ok; ";
    places(&format!("{}{first}", pools(9)), "v2 x3 group=g", "p4 p5 p6");
    places(&format!("{}{first}", pools(5)), "v2 x3 group=g", "p4 p5 p1");
    let second = "v2 x3 group=g: n4/p4 ok, n5/p5 ok, n1/p1 ok; ";
    places(&format!("{}{first}{second}", pools(5)), "v3 x3 group=g", "p2 p3 p4");
    places(&format!("{}{first}", pools(3)), "v2 x3 group=g", "p1 p2 p3");
    // Targets keep apart, when they are opened and when they move.
    let served = "v1 x3 group=g at=n1: n1/p1 ok, n2/p2 ok, n3/p3 ok; ";
    let other = "v2 x3 group=g at=n2: n1/p1 ok, n2/p2 ok, n3/p3 ok; ";
    publish(&format!("{} {other}", served.replace(" at=n1", "")), None, "open n1");
    check(
        &format!("node n1 offline; {}{other}", served.replace("n1/p1 ok", "n1/p1 away=1m")),
        "failover v1!n1 to n3 (lapsed)",
    );
    // More copies, then fewer; the last needs a node of its own.
    check(
        &format!("{} v1 x2 group=g at=n1: n1/p1 ok; v2 x1 group=g: n2/p2 ok", pools(3)),
        "add v1@p3",
    );
    let both = "v1 x2 group=g: n1/p1 ok, n2/p2 ok; v2 x2 group=g: n1/p1 ok, n2/p2 ok";
    count(both, 1, Some("has other volumes of its group"));
}

#[test]
fn pools_and_nodes() {
    // Opened again after a restart; a deletion goes on.
    check("pool n1/p1 offline", "open n1/p1");
    check("pool n1/p1 going", "go on deleting p1");
    // A pool without a place: not seen, exported, suspect.
    refused("pool n1/p1 exported", "v1 x1", &["p1: it is exported"]);
    // What is in a pool on a dying disk moves away in time.
    check("pool n2/p2 suspect; pool n3/p3; v1 x2 at=n1: n1/p1 ok, n2/p2 ok", "add v1@p3");
}
