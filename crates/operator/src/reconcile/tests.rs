use model::{Size, Spec as _, Timestamp as ModelTimestamp};
use serde_json::json;

use super::*;

const UUID: &str = "0a0a0a0a-0000-4000-8000-000000000001";
const OTHER: &str = "0b0b0b0b-0000-4000-8000-000000000002";

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

/// A resource in words: `new`, `kept` (has the finalizer), `owns` (and a pool), `going` (being
/// deleted); the rest changes the spec.
fn resource(words: &str) -> DiskPool {
    let spec = json!({ "node": "n1", "disks": ["/dev/a"] });
    let mut resource = DiskPool::new("tank", serde_json::from_value(spec).unwrap());
    resource.metadata.generation = Some(1);
    let mut status = DiskPoolStatus::default();
    for word in words.split(' ') {
        match word {
            "new" => {}
            "kept" => resource.metadata.finalizers = Some(vec![FINALIZER.to_owned()]),
            "owns" => status.uuid = Some(UUID.to_owned()),
            "going" => {
                let at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now());
                resource.metadata.deletion_timestamp = Some(at);
            }
            "labelled" => {
                resource.spec.labels = Some([("tier".to_owned(), "fast".to_owned())].into());
            }
            "two-disks" => resource.spec.disks.push("/dev/b".to_owned()),
            "elsewhere" => resource.spec.node = "n2".to_owned(),
            "other-disk" => resource.spec.disks = vec!["/dev/z".to_owned()],
            "odd" => resource.spec.cluster_size = Some("3MiB".to_owned()),
            other => panic!("no such word: {other}"),
        }
    }
    resource.status = Some(status);
    resource
}

/// What is observed in words: `away`, `absent`, or `pool` with what is special about it.
fn observed(words: &str) -> Observed {
    let mut spec = resource("new").spec.pool_spec().unwrap();
    spec.uuid = Some(UUID.parse().unwrap());
    let (mut volumes, mut going, mut state) = (Vec::new(), false, Some(PoolState::Online));
    for word in words.split(' ') {
        match word {
            "away" => return Observed::Unreachable { reason: "no answer".to_owned() },
            "absent" => return Observed::Absent,
            "pool" => {}
            "other" => spec.uuid = Some(OTHER.parse().unwrap()),
            "holds" => volumes = vec!["v1".to_owned(), "v2".to_owned()],
            "unseen" => state = None,
            "offline" => state = Some(PoolState::Offline),
            "faulted" => {
                let kind = model::DiskFindingKind::IoErrors;
                let detail = "12 errors".to_owned();
                let symptoms = vec![DiskFinding { disk: "/dev/a".parse().unwrap(), kind, detail }];
                state = Some(PoolState::Faulted { symptoms });
            }
            "deleting" => going = true,
            other => panic!("no such word: {other}"),
        }
    }
    spec.validate().unwrap();
    let at = ModelTimestamp::EPOCH;
    let mut pool = Pool::new("tank".parse().unwrap(), spec, at).unwrap();
    pool.made().unwrap();
    if going {
        pool.delete().unwrap();
    }
    pool.status = state.map(|state| PoolStatus {
        state,
        uuid: pool.spec().uuid.unwrap(),
        capacity: Size::gib(10),
        used: Size::gib(1),
        committed: Size::gib(20),
        cluster_size: Size::mib(1),
        disks: Vec::new(),
    });
    Observed::Present { pool: Box::new(pool), volumes }
}

fn shown(decision: &Decision) -> String {
    let action = match &decision.action {
        None => "nothing".to_owned(),
        Some(Action::AddFinalizer) => "keep".to_owned(),
        Some(Action::RemoveFinalizer) => "let go".to_owned(),
        Some(Action::Create(spec)) => format!("create on {}", spec.node),
        Some(Action::Change(PoolChange::AddDisk { disk })) => format!("add {disk}"),
        Some(Action::Change(PoolChange::Label { labels })) => format!("label {}", labels.len()),
        Some(Action::Change(_)) => "change".to_owned(),
        Some(Action::Delete) => "delete".to_owned(),
    };
    let ready = decision.status.condition(READY).unwrap();
    let next = match decision.next {
        Next::Soon => "soon",
        Next::Poll => "poll",
        Next::BackOff => "back off",
    };
    format!("{action}; {}, {} {}; {next}", decision.status.state, ready.status, ready.reason)
}

fn check(what: &str, seen: &str, wanted: &str) {
    let decision = decide(&resource(what), &observed(seen), now());
    assert_eq!(shown(&decision), wanted, "{what} / {seen}");
}

#[test]
fn a_resource_becomes_a_pool() {
    check("new", "absent", "keep; Creating, False Accepted; soon");
    check("kept", "absent", "create on n1; Creating, False Creating; soon");
    check("kept", "pool unseen", "nothing; Creating, False Opening; soon");
    check("kept", "pool", "nothing; Online, True Online; poll");
    check("kept owns", "pool offline", "nothing; Offline, False Offline; poll");
    check("kept owns", "pool faulted", "nothing; Faulted, False Faulted; poll");
    check("kept", "away", "nothing; Unknown, Unknown ControlPlaneUnavailable; back off");
    check("kept odd", "absent", "nothing; Invalid, False InvalidSpec; back off");
}

#[test]
fn a_pool_that_somebody_deleted_is_not_created_again() {
    check("kept owns", "absent", "nothing; NotFound, False NotFound; back off");
    check("kept owns", "pool deleting", "nothing; NotFound, False BeingDeleted; back off");
}

#[test]
fn labels_and_disks_of_the_resource_reach_the_pool() {
    check("kept owns labelled", "pool", "label 1; Online, True Online; soon");
    check("kept owns two-disks", "pool", "add /dev/b; Online, True Online; soon");
}

#[test]
fn a_resource_that_contradicts_its_pool_changes_nothing() {
    check("kept elsewhere", "pool", "nothing; Conflict, False Conflict; back off");
    check("kept other-disk", "pool", "nothing; Conflict, False Conflict; back off");
    check("kept owns", "pool other", "nothing; Conflict, False Conflict; back off");
    check("kept elsewhere going", "pool", "let go; Terminating, False Destroyed; soon");
}

#[test]
fn only_the_pool_that_a_resource_owns_is_destroyed_with_it() {
    check("kept owns going", "pool", "delete; Terminating, False Destroying; soon");
    check("kept owns going", "pool deleting", "nothing; Terminating, False Destroying; back off");
    check("kept owns going", "absent", "let go; Terminating, False Destroyed; soon");
    check("kept owns going", "pool other", "let go; Terminating, False Destroyed; soon");
    check("kept going", "pool", "let go; Terminating, False Destroyed; soon");
    let unavailable = "nothing; Terminating, Unknown ControlPlaneUnavailable; back off";
    check("kept owns going", "away", unavailable);
}

#[test]
fn a_pool_that_holds_copies_is_not_destroyed_and_names_their_volumes() {
    check("kept owns going", "pool holds", "nothing; Terminating, False InUse; back off");
    let decision = decide(&resource("kept owns going"), &observed("pool holds"), now());
    let message = &decision.status.condition(READY).unwrap().message;
    assert!(message.contains("2 volumes: v1, v2"), "{message}");
}

#[test]
fn a_refusal_is_shown_and_tried_again_later() {
    let decision = decide(&resource("kept"), &observed("absent"), now());
    let problem = Problem::new(ProblemKind::NodeUnavailable, "node n1 is not known");
    let decision = refused(decision, &problem, now());
    assert_eq!(decision.next, Next::BackOff);
    let ready = decision.status.condition(READY).unwrap();
    assert_eq!((&*ready.reason, &*ready.status), ("CreateFailed", "False"));
    assert!(ready.message.contains("node n1 is not known"), "{}", ready.message);
}

#[test]
fn an_event_tells_each_distinct_thing_once() {
    let first = decide(&resource("kept owns"), &observed("pool"), now()).status;
    assert_eq!(event(None, &first).unwrap().reason, "Online");
    let mut later = resource("kept owns");
    later.status = Some(first.clone());
    let again = decide(&later, &observed("pool"), Timestamp::from_second(2_000_000).unwrap());
    assert_eq!(again.status, first, "the status changes only with what it says");
    assert_eq!(event(Some(&first), &again.status), None);
    let offline = decide(&later, &observed("pool offline"), now()).status;
    assert_eq!(event(Some(&first), &offline).unwrap().reason, "Offline");
}

#[test]
fn pools_without_a_resource_get_one_that_never_formats() {
    let Observed::Present { pool, .. } = observed("pool") else { panic!("it is there") };
    let Observed::Present { pool: going, .. } = observed("pool deleting") else { panic!("too") };
    let made = missing(&[(*pool).clone()], &[]);
    assert_eq!(made.len(), 1);
    assert!(made[0].spec.import);
    assert_eq!(made[0].spec.disks, ["/dev/a"]);
    assert_eq!(missing(&[(*pool).clone()], &made), []);
    assert_eq!(missing(&[*going], &[]), []);
    // The operator finds its own resource in order.
    let mut adopted = made[0].clone();
    adopted.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    let decision = decide(&adopted, &observed("pool"), now());
    assert_eq!(shown(&decision), "nothing; Online, True Online; poll");
}
