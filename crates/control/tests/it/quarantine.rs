//! Copies that are set aside instead of destroyed.

use std::time::Duration;

use control::controller::{Entry, Request, RequestOutcome};
use control::testing::Sim;
use model::*;

use crate::world::*;

/// The copy that is found without anybody knowing it.
pub(crate) fn found_copy() -> ReplicaId {
    good("00000000-0000-4000-b000-000000000001")
}

/// A node without a copy of the first volume has one that nobody knows, of another volume that had
/// the same id, with higher numbers: what a disk that was thought lost brings back.
pub(crate) fn find_earlier_copy(sim: &mut Sim) -> Option<NodeName> {
    let copies = sim.cluster.copies(volume(1));
    let (like, home) = copies.iter().next()?;
    let mut copy = sim.cluster.engine(home.as_str()).replicas[like].clone();
    let label = copy.label.take()?;
    let node = sim.cluster.engines.keys().find(|name| !copies.values().any(|it| it == *name))?;
    let node = node.clone();
    let set = ReplicaSet::new([found_copy()].into()).ok()?.after(label.set.generation());
    let epoch = label.epoch.next();
    copy.label = Some(ReplicaLabel { replica: found_copy(), epoch, set, ..label });
    (copy.spec.pool, copy.spec_backup) = (pool_of(&node), None);
    copy.spec.hosts.clear();
    sim.cluster.engine(node.as_str()).replicas.insert(found_copy(), copy);
    sim.cluster.apart.insert(found_copy());
    Some(node)
}

fn set_aside(sim: &Sim) -> Vec<Quarantine> {
    let stored = sim.stored().into_iter();
    let all = stored.filter_map(|entry| match entry {
        Entry::Quarantine(quarantine) => Some(*quarantine),
        _ => None,
    });
    all.collect()
}

fn has_copy(sim: &mut Sim, node: &NodeName, replica: ReplicaId) -> bool {
    sim.cluster.engine(node.as_str()).replicas.contains_key(&replica)
}

fn is_told(sim: &Sim, replica: ReplicaId) -> bool {
    let about = Subject::Replica(replica);
    sim.told.iter().any(|it| it.name == EventName::Quarantined && it.subject == about)
}

/// A served volume, and a copy of an earlier volume of the same id, set aside.
fn with_earlier_copy() -> (Sim, NodeName) {
    let mut sim = cluster(3);
    sim.set(|settings| settings.quarantine = Duration::from_mins(1));
    sim.pass(Duration::from_secs(15));
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.pass(Duration::from_secs(15));
    let node = find_earlier_copy(&mut sim).unwrap();
    sim.pass(Duration::from_mins(2));
    (sim, node)
}

/// A disk brings back a copy of a volume that is long gone, and whose id was used again.
#[test]
fn a_copy_of_an_earlier_volume_of_the_same_id_blocks_nothing() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.pass(Duration::from_secs(15));
    find_earlier_copy(&mut sim).unwrap();
    sim.pass(Duration::from_secs(15));
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let recovered = sim.insist(&Request::Recover([volume(1)].into()));
    assert_eq!(recovered, Ok(RequestOutcome::Unchanged), "nothing is to be adopted");
    sim.pass(Duration::from_mins(2));
    assert_eq!(set_aside(&sim).len(), 1);
    settle(&mut sim);
}

#[test]
fn a_copy_of_another_history_is_kept_until_an_operator_decides() {
    let (mut sim, node) = with_earlier_copy();
    let aside = set_aside(&sim);
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!((aside[0].replica, aside[0].cause), (found_copy(), QuarantineCause::Newer));
    assert!(is_told(&sim, found_copy()));
    let blocked: Vec<_> = sim.controller.blocked().iter().map(|it| it.reason.clone()).collect();
    assert!(blocked.iter().any(|it| it.contains("quarantine restore")), "{blocked:?}");
    sim.restart();
    sim.pass(Duration::from_mins(10));
    assert_eq!(set_aside(&sim), aside, "its time is not over, whoever leads");
    assert!(has_copy(&mut sim, &node, found_copy()));
    settle(&mut sim);
    // Whoever deletes the volume does not mean what he has not seen.
    sim.insist(&unpublish(1)).unwrap();
    sim.insist(&Request::DeleteVolume(volume(1))).unwrap();
    sim.pass(Duration::from_mins(10));
    assert!(has_copy(&mut sim, &node, found_copy()));
    assert_eq!(sim.insist(&Request::Discard(found_copy())).unwrap(), RequestOutcome::Changed);
    sim.pass(Duration::from_secs(30));
    assert!(!has_copy(&mut sim, &node, found_copy()));
    assert_eq!(set_aside(&sim), []);
    assert_eq!(sim.insist(&Request::Discard(found_copy())).unwrap(), RequestOutcome::Unchanged);
}

#[test]
fn a_copy_set_aside_becomes_a_snapshot_and_a_volume_again() {
    let (mut sim, node) = with_earlier_copy();
    let rescue = Request::Rescue { replica: found_copy(), snapshot: snapshot(1) };
    assert_eq!(sim.insist(&rescue).unwrap(), RequestOutcome::Created);
    assert_eq!(sim.insist(&rescue).unwrap(), RequestOutcome::Unchanged, "asking again is harmless");
    let made = sim.controller.snapshot_seen(snapshot(1)).unwrap();
    let copies = made.status.unwrap().copies;
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[&pool_of(&node)].replica, found_copy());
    let source = Some(Source::Snapshot { snapshot: snapshot(1) });
    let restored = VolumeSpec { source, ..spec(2) };
    sim.insist(&Request::CreateVolume(volume(2), Box::new(restored))).unwrap();
    sim.insist(&publish(2)).unwrap();
    sim.insist(&Request::Discard(found_copy())).unwrap();
    sim.pass(Duration::from_mins(2));
    settle(&mut sim);
    assert!(sim.controller.snapshot_seen(snapshot(1)).is_some(), "it outlives the copy");
    let missing = Request::Rescue { replica: found_copy(), snapshot: snapshot(2) };
    assert_eq!(sim.insist(&missing).unwrap_err().kind, ProblemKind::NotFound);
}

/// A copy that was replaced in the ordinary way goes at once if its volume is whole. If it is not,
/// the old copy stays until it is, and its time is over.
#[test]
fn a_replaced_copy_is_kept_while_its_volume_is_not_whole() {
    let mut sim = cluster(4);
    sim.set(|settings| settings.quarantine = Duration::from_mins(2));
    sim.pass(Duration::from_secs(15));
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let target = status(&sim, 1).target.unwrap().node;
    let copies = sim.cluster.copies(volume(1));
    let (old, lost) = copies.iter().find(|(_, node)| **node != target).unwrap();
    let (old, lost) = (*old, lost.clone());
    sim.cluster.engine(lost.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_mins(3));
    let copies = sim.cluster.copies(volume(1));
    let mut new = copies.iter().filter(|(id, node)| **node != target && **id != old);
    let (_, new) = new.next().expect("it was replaced");
    sim.cluster.engine(new.as_str()).stop();
    sim.cluster.settle();
    sim.cluster.engine(lost.as_str()).start();
    sim.pass(Duration::from_secs(50));
    assert!(has_copy(&mut sim, &lost, old), "the volume has one copy that answers");
    let aside = set_aside(&sim);
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!((aside[0].replica, aside[0].cause), (old, QuarantineCause::Degraded));
    sim.cluster.engine(new.as_str()).start();
    sim.pass(Duration::from_mins(1));
    assert!(has_copy(&mut sim, &lost, old), "its time is not over");
    sim.pass(Duration::from_mins(5));
    assert!(!has_copy(&mut sim, &lost, old), "its volume is whole");
    assert_eq!(set_aside(&sim), []);
    settle(&mut sim);
}

#[test]
fn a_replaced_copy_goes_at_once_if_its_volume_is_whole() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    sim.insist(&publish(1)).unwrap();
    let target = status(&sim, 1).target.unwrap().node;
    let copies = sim.cluster.copies(volume(1));
    let (old, lost) = copies.iter().find(|(_, node)| **node != target).unwrap();
    sim.cluster.engine(lost.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_mins(3));
    sim.cluster.engine(lost.as_str()).start();
    sim.pass(Duration::from_secs(15));
    assert!(!has_copy(&mut sim, lost, *old));
    assert_eq!(set_aside(&sim), []);
    settle(&mut sim);
}

#[test]
fn a_purge_takes_what_is_set_aside_and_says_so() {
    let (mut sim, node) = with_earlier_copy();
    let refused = sim.insist(&Request::DeletePool(pool_of(&node))).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::InUse);
    assert!(refused.detail.contains("quarantine"), "{refused:?}");
    sim.cluster.engine(node.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(30));
    assert_eq!(set_aside(&sim).len(), 1, "its node is only away");
    assert_eq!(
        sim.insist(&Request::PurgeNode(node.clone(), [].into())).unwrap(),
        RequestOutcome::Gone
    );
    sim.pass(Duration::from_mins(1));
    assert_eq!(set_aside(&sim), []);
    let said = format!("with copies in quarantine: {}", found_copy());
    assert!(sim.told.iter().any(|it| it.message.contains(&said)));
    sim.cluster.engines.remove(&node);
    settle(&mut sim);
}
