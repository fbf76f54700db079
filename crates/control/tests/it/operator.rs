//! What an operator can ask and order: explanations, cancelling, maintenance, dry runs; and the
//! events of engines.

use std::time::Duration;

use api::rest::DryRunRequest;
use control::controller::{Entry, Input, Request, RequestOutcome};
use control::testing::{Loss, Sim};
use model::*;

use crate::world::*;

fn explain(sim: &Sim, thing: &str) -> api::rest::Explanation {
    sim.controller.explain(thing).unwrap()
}

/// A volume whose node is away: what is seen, for what it waits and what can be done are named.
#[test]
fn a_lost_node_is_explained() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let well = explain(&sim, &volume(1).to_string());
    assert_eq!((&well.waits_for, &well.operation), (&vec![], &None), "{well:?}");
    let copies = sim.cluster.copies(volume(1));
    let target = status(&sim, 1).target.unwrap().node;
    let lost = copies.into_values().find(|node| *node != target).unwrap();
    sim.cluster.lose(&lost, Loss::Stopped);
    sim.pass(Duration::from_secs(20));
    let volume_now = explain(&sim, &volume(1).to_string());
    assert!(volume_now.seen.iter().any(|it| it == "it is degraded"), "{volume_now:?}");
    assert!(volume_now.waits_for.iter().any(|it| it.contains(lost.as_str())), "{volume_now:?}");
    assert!(volume_now.next.is_some(), "{volume_now:?}");
    let remedy = format!("holdfast node purge {lost}");
    assert!(volume_now.remedies.iter().any(|it| it.contains(&remedy)), "{volume_now:?}");
    let node = explain(&sim, lost.as_str());
    assert!(node.seen[0].starts_with("offline: "), "{node:?}");
    assert!(node.remedies[0].contains(&remedy), "{node:?}");
}

/// An engine that refuses: the refusal is named with its time, and when it is asked again.
#[test]
fn a_refusal_is_explained() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let node = status(&sim, 1).target.unwrap().node;
    sim.cluster.engine(node.as_str()).refuses = true;
    sim.ask(unpublish(1));
    sim.pass(Duration::from_secs(5));
    let explained = explain(&sim, &volume(1).to_string());
    let operation = explained.operation.unwrap();
    assert!(operation.what.starts_with("unpublish"), "{operation:?}");
    assert!(operation.age_seconds.unwrap() >= 4, "{operation:?}");
    let refusal = explained.refusal.unwrap();
    assert_eq!(refusal.problem.kind, ProblemKind::Overloaded);
    assert!(explained.next.unwrap().at > sim.now);
    assert!(explained.remedies.iter().any(|it| it.contains("--force")));
}

/// The beginning of an id is enough when no other begins so; names say their kind if they must.
#[test]
fn things_are_found_by_the_beginning_of_their_id() {
    let mut sim = cluster(2);
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&create(2, 1)).unwrap();
    let find = |thing: &str| sim.controller.explain(thing).map(|it| it.subject);
    assert_eq!(find("n1").unwrap(), Subject::Node(good("n1")));
    let id = volume(1).to_string();
    assert_eq!(find(&format!("volume/{id}")).unwrap(), Subject::Volume(volume(1)));
    let ambiguous = find("volume/00000000").unwrap_err();
    assert_eq!(ambiguous.kind, ProblemKind::InvalidArgument, "{ambiguous:?}");
    assert_eq!(find("nothing").unwrap_err().kind, ProblemKind::NotFound);
    assert_eq!(find("").unwrap_err().kind, ProblemKind::InvalidArgument);
}

/// During maintenance a lost target is not moved and a lost copy is not replaced; afterwards both
/// are, although nobody ended it.
#[test]
fn maintenance_pauses_failover_and_healing_and_ends_by_itself() {
    let mut sim = cluster(4);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let before = status(&sim, 1).target.unwrap();
    let pause = Request::BeginMaintenance(Duration::from_mins(10), "switch".to_owned());
    assert_eq!(sim.insist(&pause), Ok(RequestOutcome::Changed));
    sim.cluster.lose(&before.node, Loss::Stopped);
    sim.pass(Duration::from_mins(5));
    assert_eq!(status(&sim, 1).target.unwrap().node, before.node, "it was moved");
    let copies = |sim: &Sim| {
        let replicas = sim.stored().into_iter();
        replicas.filter(|it| matches!(it, Entry::Replica(_))).count()
    };
    assert_eq!(copies(&sim), 2, "a copy was made");
    let explained = explain(&sim, &volume(1).to_string());
    assert!(explained.waits_for.iter().any(|it| it.contains("switch")), "{explained:?}");
    // The next control plane holds to it.
    sim.restart();
    sim.pass(Duration::from_mins(2));
    assert_eq!(status(&sim, 1).target.unwrap().node, before.node, "it was moved");
    sim.pass(Duration::from_mins(6));
    let after = status(&sim, 1).target.unwrap();
    assert_ne!(after.node, before.node, "it was not moved in the end");
    assert!(!sim.stored().iter().any(|it| matches!(it, Entry::Maintenance(_))));
    sim.cluster.engine(before.node.as_str()).start();
    settle(&mut sim);
}

/// What is under way is called off: a publication that does not come about, a move.
#[test]
fn what_is_under_way_is_cancelled() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    assert_eq!(sim.insist(&Request::Cancel(volume(1))), Ok(RequestOutcome::Unchanged));
    let others = status(&sim, 1).replicas.into_values().map(|it| it.node).collect::<Vec<_>>();
    let free = ["n1", "n2", "n3"].into_iter().find(|it| !others.contains(&good(it))).unwrap();
    sim.insist(&create(2, 2)).unwrap();
    for node in ["n1", "n2", "n3"] {
        sim.cluster.engine(node).refuses = true;
    }
    let published = sim.ask(publish(2));
    sim.pass(Duration::from_millis(600));
    assert_eq!(sim.answers.get(&published), None, "it came about");
    let cancelled = sim.ask(Request::Cancel(volume(2)));
    sim.pass(Duration::from_millis(600));
    assert_eq!(sim.answers.remove(&cancelled), Some(Ok(RequestOutcome::Changed)));
    for node in ["n1", "n2", "n3"] {
        sim.cluster.engine(node).refuses = false;
    }
    sim.pass(Duration::from_secs(10));
    let refused = sim.answers.remove(&published).unwrap().unwrap_err();
    assert!(refused.detail.contains("cancelled"), "{refused:?}");
    assert!(seen(&sim, 2).lifecycle().is_idle());
    let replica = sim.cluster.copies(volume(1)).into_keys().next().unwrap();
    sim.cluster.engine(free).refuses = true;
    sim.ask(Request::MoveReplica { volume: volume(1), replica, pool: None });
    sim.pass(Duration::from_secs(5));
    assert_eq!(sim.insist(&Request::Cancel(volume(1))), Ok(RequestOutcome::Changed));
    sim.cluster.engine(free).refuses = false;
    settle(&mut sim);
    assert!(sim.cluster.copies(volume(1)).contains_key(&replica), "the copy has moved");
}

/// A dry run says what would be written and what would follow, and nothing is done.
#[test]
fn a_dry_run_does_nothing() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let done = sim.done;
    let new = DryRunRequest::CreateVolume { volume: volume(2), spec: Box::new(spec(2)) };
    let made = sim.controller.try_out(new).unwrap();
    assert_eq!(made.changes.iter().filter(|it| it.starts_with("copy ")).count(), 2, "{made:?}");
    let node = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    let change = NodeChange::Drain { cordon: good("admin") };
    let drained = sim.controller.try_out(DryRunRequest::ChangeNode { node, change }).unwrap();
    assert!(drained.steps.iter().any(|it| it.contains("gets a")), "{drained:?}");
    let none = DryRunRequest::DeleteVolume { volume: volume(9) };
    assert_eq!(sim.controller.try_out(none).unwrap(), api::rest::DryRun::default());
    sim.insist(&publish(1)).unwrap();
    let used = DryRunRequest::DeleteVolume { volume: volume(1) };
    assert_eq!(sim.controller.try_out(used).unwrap_err().kind, ProblemKind::InUse);
    assert!(sim.done > done);
    assert!(sim.controller.volume_seen(volume(2)).is_none(), "it was made");
}

fn event(name: EventName, severity: Severity, subject: Subject) -> Event {
    let (at, message) = (Timestamp::EPOCH, "something".to_owned());
    Event { number: 1, at, subject, name, severity, message, origin: None }
}

/// Warnings of engines are stored with where they came from; a storm of them is cut off, and said
/// to be.
#[test]
fn events_of_engines_are_stored_and_a_storm_is_cut_off() {
    let mut sim = cluster(2);
    let node: NodeName = good("n1");
    let about = Subject::Pool(good("p1"));
    for at in 0..150 {
        let suspect = event(EventName::StateChanged, Severity::Warning, about.clone());
        sim.controller
            .on(sim.now, Input::Reported(node.clone(), format!("x.{at}"), suspect.into()));
    }
    sim.run();
    let reported = |sim: &Sim| sim.told.iter().filter(|it| it.origin.is_some()).count();
    assert_eq!(reported(&sim), 100);
    let first = sim.told.iter().find_map(|it| it.origin.clone()).unwrap();
    assert_eq!(first, EventOrigin { node: node.clone(), place: "x.0".into() });
    sim.pass(Duration::from_secs(61));
    let fault = event(EventName::StateChanged, Severity::Error, about);
    sim.controller.on(sim.now, Input::Reported(node, "x.150".into(), fault.into()));
    sim.run();
    assert_eq!(reported(&sim), 101);
    assert!(sim.told.iter().any(|it| it.message.starts_with("50 more events")));
}
