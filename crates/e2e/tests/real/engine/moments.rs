//! Snapshots that targets of one volume leave to each other: one id is one moment, or refused.

use api::Paging;
use api::node::{Node as _, PoolFilter, Remote};
use e2e::fleet::{Fleet, Plan};
use e2e::store::Kind as StoreKind;
use model::*;

use super::host::Host;
use super::request;
use super::rig::{HOST, id, kind};
use super::targets::close_and_compare;

fn remote(fleet: &Fleet, nth: usize) -> Remote {
    fleet.machines[nth].engine().unwrap().remote.clone()
}

/// The copies that have a snapshot.
async fn holders(fleet: &Fleet, snapshot: SnapshotId) -> Vec<usize> {
    let mut holders = Vec::new();
    for nth in 0..fleet.machines.len() {
        let all = remote(fleet, nth).snapshots(Paging::default()).await.unwrap().items;
        holders.extend(all.iter().any(|one| one.label.snapshot == snapshot).then_some(nth));
    }
    holders
}

/// The first copy has it from one attempt, the others from a later one in which the first was away.
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_two_attempts_are_no_snapshot() {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    let [first, second, third] = [40, 41, 42].map(id::<TargetId>);
    let [whole, mixed] = [30, 31].map(id::<SnapshotId>);
    fleet.open(first, 0).await.unwrap();
    fleet.until_open(first, 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    for snapshot in [whole, mixed] {
        remote(&fleet, 0).put_target_snapshot(first, snapshot, request(5)).await.unwrap();
    }
    let place = PoolFilter { pool: "tank".parse().unwrap() };
    for nth in [1, 2] {
        let replica = fleet.machines[nth].replica;
        remote(&fleet, nth).delete_snapshot(replica, mixed, place.clone()).await.unwrap();
    }
    // The next target knows nothing of it.
    let mut spec = fleet.open(second, 1).await.unwrap();
    fleet.until_open(second, 1).await.unwrap();
    spec.children[0].offline = true;
    fleet.put(second, 1, spec.clone()).await.unwrap().unwrap();
    fleet.until_child((second, 1), 0, |state| state == ChildState::Offline).await.unwrap();
    host.moves_to(fleet.machines[1].listen());
    host.round();
    let taken = remote(&fleet, 1).put_target_snapshot(second, mixed, request(5)).await.unwrap();
    assert_eq!(taken.now.replicas.len(), 2);
    spec.children[0].offline = false;
    fleet.put(second, 1, spec).await.unwrap().unwrap();
    fleet.until_open(second, 1).await.unwrap();
    // All copies have both then; one of them is of one moment.
    fleet.open(third, 2).await.unwrap();
    fleet.until_open(third, 2).await.unwrap();
    assert_eq!(holders(&fleet, mixed).await, [0, 1, 2]);
    let node = remote(&fleet, 2);
    let refused = node.put_target_snapshot(third, mixed, request(5)).await;
    assert_eq!(kind(refused), ProblemKind::AlreadyExists);
    assert_eq!(holders(&fleet, mixed).await, [0, 1, 2]);
    let again = node.put_target_snapshot(third, whole, request(5)).await.unwrap();
    assert_eq!(again.now.replicas.len(), 3);
    host.moves_to(fleet.machines[2].listen());
    close_and_compare(&mut fleet, 2, third, host).await;
}
