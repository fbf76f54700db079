//! Orders over the node API that take their time: rebuilds wait, go on, end and begin anew as they
//! are told; what was begun goes on when nobody waits for it.

use std::collections::BTreeSet;

use api::node::{Node as _, RebuildRequest, Run};
use api::{Effect, Paging};
use e2e::fleet::{Fleet, Plan};
use e2e::process::PATIENCE;
use e2e::store::Kind as StoreKind;
use model::*;
use rustix::process::Signal;
use tokio::time::Instant;

use super::host::{Host, Working};
use super::request as snapshot_request;
use super::rig::{HOST, id, kind, order};
use super::targets::close_and_compare;

/// The copy that is rebuilt.
const STALE: usize = 1;

fn target() -> TargetId {
    id(40)
}

/// What is wanted of the rebuild, and that it is slow.
fn request(fleet: &Fleet, run: Run) -> RebuildRequest {
    let replica = fleet.machines[STALE].replica;
    RebuildRequest { target: target(), replica, bytes_per_second: Some(Size::mib(1)), run }
}

/// The copy misses all of what the host has, and is to get it, slowly because the host works.
async fn miss_everything(fleet: &mut Fleet, spec: &TargetSpec, mut host: Host) -> Working {
    let mut without = spec.clone();
    without.children[STALE].offline = true;
    fleet.put(target(), 0, without).await.unwrap().unwrap();
    host.fill();
    let working = host.keep_going();
    fleet.put(target(), 0, spec.clone()).await.unwrap().unwrap();
    working
}

/// The rebuild that is under way; none if the copy is in sync already.
async fn under_way(fleet: &Fleet) -> Option<Rebuild> {
    let begun = |status: &TargetStatus| {
        let child = &status.children[STALE];
        matches!(child.state, ChildState::Rebuilding | ChildState::InSync)
    };
    fleet.until(target(), 0, begun).await.unwrap();
    fleet.rebuilds(0, STALE).await.unwrap().into_iter().find(|one| !one.state().is_ended())
}

async fn child(fleet: &Fleet) -> ChildStatus {
    fleet.until(target(), 0, |_| true).await.unwrap().children[STALE].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilds_wait_go_on_and_end_by_order() {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    let spec = fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let mut host = Host::of(&fleet, 0).within(8192);
    // Whoever comes too late to stop it tries once more.
    let until = Instant::now() + PATIENCE;
    let (paused, mut number) = loop {
        assert!(Instant::now() < until, "every rebuild was over at once");
        let working = miss_everything(&mut fleet, &spec, host).await;
        let mut now = under_way(&fleet).await;
        if let Some(begun) = &mut now {
            let pause = order(1, request(&fleet, Run::Pause));
            *begun = node.put_rebuild(begun.id, pause).await.unwrap().now;
        }
        host = working.stop();
        if let Some(paused) = now.filter(|now| now.state() == &RebuildState::Paused {}) {
            break (paused, 1);
        }
    };
    let mut put = |rebuild: RebuildId, run| {
        number += 1;
        node.put_rebuild(rebuild, order(number, request(&fleet, run)))
    };
    // It waits, with what it has got so far, while hosts go on.
    (0..20).for_each(|_| host.round());
    let waiting = child(&fleet).await;
    let progress = waiting.progress.unwrap();
    assert_eq!(waiting.state, ChildState::Rebuilding);
    assert!(progress.done < progress.total, "{progress:?}");
    assert_eq!(node.rebuild(paused.id).await.unwrap().state(), &RebuildState::Paused {});
    assert_eq!(put(paused.id, Run::Pause).await.unwrap().effect, Effect::Unchanged);
    // It goes on, slowly; and ends.
    let going = put(paused.id, Run::Run).await.unwrap();
    assert_eq!((going.effect, going.now.state()), (Effect::Changed, &RebuildState::Running {}));
    let late = node.put_rebuild(paused.id, order(1, request(&fleet, Run::Cancel)));
    assert_eq!(kind(late.await), ProblemKind::StaleGeneration);
    let over = put(paused.id, Run::Cancel).await.unwrap().now;
    assert_eq!(over.state(), &RebuildState::Cancelled {});
    (0..20).for_each(|_| host.round());
    assert_eq!(child(&fleet).await.state, ChildState::Stale, "nobody asked for another rebuild");
    // A new one, as fast as it can, has only what is left to copy.
    let again = RebuildRequest { bytes_per_second: None, ..request(&fleet, Run::Run) };
    let begun = node.put_rebuild(id(50), order(1, again)).await.unwrap().now;
    assert!(begun.progress.total <= over.progress.total, "{begun:?} after {over:?}");
    fleet.until_open(target(), 0).await.unwrap();
    let history = fleet.rebuilds(0, STALE).await.unwrap();
    let ends: Vec<&str> = history.iter().rev().take(2).map(|one| one.state().name()).collect();
    assert_eq!(ends, ["completed", "cancelled"]);
    close_and_compare(&mut fleet, 0, target(), host).await;
}

/// The copies that have a snapshot.
async fn with_snapshot(fleet: &Fleet, snapshot: SnapshotId) -> BTreeSet<ReplicaId> {
    let mut found = BTreeSet::new();
    for machine in &fleet.machines {
        let remote = &machine.engine().unwrap().remote;
        let all = remote.snapshots(Paging::default()).await.unwrap().items;
        found.extend(
            all.iter().any(|one| one.label.snapshot == snapshot).then_some(machine.replica),
        );
    }
    found
}

/// One copy stands still, so that a snapshot cannot be taken at once.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_caller_went_away_is_carried_out() {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let (program, snapshot) = (&fleet.machines[2].engine().unwrap().program, id(30));
    program.signal(Signal::STOP).unwrap();
    let asking = node.clone();
    let ask =
        async move { asking.put_target_snapshot(target(), snapshot, snapshot_request(5)).await };
    let asked = tokio::spawn(ask);
    let second = &fleet.machines[1].engine().unwrap().remote;
    let until = Instant::now() + PATIENCE;
    while second.snapshots(Paging::default()).await.unwrap().items.is_empty() {
        assert!(Instant::now() < until, "the order was never begun");
    }
    asked.abort();
    assert!(asked.await.is_err(), "it was answered although a copy stands still");
    program.signal(Signal::CONT).unwrap();
    let taken = loop {
        assert!(Instant::now() < until, "asked again, it was never answered");
        match node.put_target_snapshot(target(), snapshot, snapshot_request(5)).await {
            Ok(taken) => break taken.now,
            // It may have stood still for too long, and is attached again first.
            Err(problem) => assert!(problem.kind != ProblemKind::AlreadyExists, "{problem}"),
        }
    };
    assert_eq!(with_snapshot(&fleet, snapshot).await, taken.replicas);
    fleet.until_open(target(), 0).await.unwrap();
    close_and_compare(&mut fleet, 0, target(), host).await;
}
