//! Names that people give: no two volumes, snapshots or groups have the same.

use control::controller::{Request, RequestOutcome};
use model::*;

use crate::world::*;

fn named(number: u32, name: &str) -> Request {
    let spec = VolumeSpec { name: Some(good(name)), ..spec(1) };
    Request::CreateVolume(volume(number), Box::new(spec))
}

fn named_snapshot(number: u32, of: u32, name: &str) -> Request {
    let spec = SnapshotSpec { name: Some(good(name)), ..SnapshotSpec::new(volume(of)) };
    Request::CreateSnapshot(snapshot(number), Box::new(spec))
}

fn taken(refused: Result<RequestOutcome, Problem>) {
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::AlreadyExists, "{refused}");
    assert_eq!(refused.field.as_deref(), Some("name"), "{refused}");
}

#[test]
fn a_name_is_given_once() {
    let mut sim = cluster(2);
    assert_eq!(sim.insist(&named(1, "orders")), Ok(RequestOutcome::Created));
    assert_eq!(sim.insist(&named(1, "orders")), Ok(RequestOutcome::Unchanged));
    taken(sim.insist(&named(2, "orders")));
    assert_eq!(sim.insist(&named(2, "bills")), Ok(RequestOutcome::Created));
    let rename = |to: &str| {
        let spec = VolumeSpec { name: Some(good(to)), ..spec(1) };
        Request::ModifyVolume(volume(2), Box::new(spec))
    };
    taken(sim.insist(&rename("orders")));
    assert_eq!(sim.insist(&rename("invoices")), Ok(RequestOutcome::Changed));
    assert_eq!(sim.insist(&named(3, "bills")), Ok(RequestOutcome::Created));

    assert_eq!(sim.insist(&named_snapshot(1, 1, "orders")), Ok(RequestOutcome::Created));
    taken(sim.insist(&named_snapshot(2, 2, "orders")));

    sim.restart();
    taken(sim.insist(&named(4, "orders")));
    assert_eq!(sim.insist(&Request::DeleteVolume(volume(1))), Ok(RequestOutcome::Gone));
    assert_eq!(sim.insist(&named(4, "orders")), Ok(RequestOutcome::Created));
}

/// Neither is in the records yet when the other is looked at.
#[test]
fn of_two_who_want_a_name_at_once_one_gets_it() {
    let mut sim = cluster(2);
    let tickets = [sim.ask(named(1, "orders")), sim.ask(named(2, "orders"))];
    settle(&mut sim);
    let [first, second] = tickets.map(|ticket| sim.answers.remove(&ticket).unwrap());
    assert_eq!(first, Ok(RequestOutcome::Created));
    taken(second);
}
