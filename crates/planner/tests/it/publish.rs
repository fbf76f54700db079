//! Requests to serve volumes.

use model::{HostName, NodeName};
use planner::{Publishing, View, publish, unpublish};

use crate::names::good;
use crate::world::World;

fn shown(world: &World, publishing: &Publishing) -> String {
    match publishing {
        Publishing::Already => "already".into(),
        Publishing::Open { node } => format!("open {node}"),
        Publishing::Admit { target } => format!("admit {}", world.names.name(target)),
        Publishing::Dismiss { target } => format!("dismiss {}", world.names.name(target)),
        Publishing::Close { target } => format!("close {}", world.names.name(target)),
    }
}

#[track_caller]
pub(crate) fn check(health: &str, asked: Option<&str>, expected: &str) {
    let world = World::new(health);
    let view = View::new(&world.facts, &world.settings, world.now);
    let asked: Option<NodeName> = asked.map(good);
    let found = publish(&view, world.get("v1"), &good("h1"), asked.as_ref());
    let found = found.map_or_else(|problem| problem.kind.to_string(), |done| shown(&world, &done));
    assert_eq!(found, expected, "{health}");
}

#[test]
fn a_volume_is_published() {
    check("v1 x2: n1/p1 ok, n2/p2 ok", None, "open n1");
    check("v1 x2: n1/p1 ok, n2/p2 ok; node n3", Some("n3"), "open n3");
    check("v1 x2: n1/p1 ok, n2/p2 ok; node n3 cordoned", Some("n3"), "open n1");
    check("v1 x2: n1/p1 ok, n2/p2 ok; v9 x1 at=n1: n1/p1 ok", None, "open n2");
    // The target of a single copy stays beside it, whatever is asked for.
    check("v1 x1: n1/p1 ok; node n3", Some("n3"), "open n1");
    // Of a group each gets another node.
    let group = "v1 x2 group=g: n1/p1 ok, n2/p2 ok; v2 x2 group=g at=n1: n1/p1 ok, n2/p2 ok";
    check(group, None, "open n2");
    check("v1 x1 virgin: n1/p1 ok", None, "open n1");
}

#[test]
fn published_already() {
    check("v1 x1 at=n1 for=h1: n1/p1 ok", None, "already");
    check("v1 x1 at=n1 for=h2: n1/p1 ok", None, "alreadyPublished");
    check("v1 x1 shared at=n1 for=h2: n1/p1 ok", None, "admit v1!n1");
    check("v1 x1 at=n1 heal: n1/p1 ok", None, "admit v1!n1");
}

#[test]
fn it_cannot_be_published() {
    check("node n1 offline; v1 x1: n1/p1 away=1m", None, "noHealthyReplica");
    check("node n1 cordoned; v1 x1: n1/p1 ok", None, "noPlacement");
    check("v1 x1 going", None, "deleting");
    // A target that is there, on a node that is not.
    for state in ["offline", "unknown"] {
        let node = format!("node n1 {state}; v1 x2");
        check(&format!("{node} at=n1 heal: n1/p1 ok, n2/p2 ok"), None, "nodeUnavailable");
        let shared = format!("{node} shared at=n1 for=h2: n1/p1 ok, n2/p2 ok");
        check(&shared, None, "nodeUnavailable");
    }
}

#[track_caller]
pub(crate) fn check_un(health: &str, host: Option<&str>, force: bool, expected: &str) {
    let world = World::new(health);
    let view = View::new(&world.facts, &world.settings, world.now);
    let host: Option<HostName> = host.map(good);
    let found = unpublish(&view, world.get("v1"), host.as_ref(), force);
    let found = found.map_or_else(|problem| problem.kind.to_string(), |done| shown(&world, &done));
    assert_eq!(found, expected, "{health}");
}

#[test]
fn a_volume_is_unpublished() {
    check_un("v1 x1 at=n1 for=h1: n1/p1 ok", Some("h1"), false, "close v1!n1");
    check_un("v1 x1 at=n1 for=h1: n1/p1 ok", None, false, "close v1!n1");
    check_un("v1 x1 at=n1 for=h1: n1/p1 ok", Some("h2"), false, "already");
    check_un("v1 x1: n1/p1 ok", Some("h1"), false, "already");
    check_un("v1 x1 at=n1 heal: n1/p1 ok", None, false, "already");
    check_un("v1 x1 shared at=n1 for=h1+h2: n1/p1 ok", Some("h1"), false, "dismiss v1!n1");
    check_un("v1 x1 shared at=n1 for=h1+h2: n1/p1 ok", None, false, "close v1!n1");
    let away = "node n1 offline; v1 x1 at=n1 for=h1: n2/p2 ok";
    check_un(away, Some("h1"), false, "nodeUnavailable");
    check_un(away, Some("h1"), true, "close v1!n1");
}
