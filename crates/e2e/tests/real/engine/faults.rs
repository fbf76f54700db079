//! Disks and children that misbehave as they are told: hosts notice nothing but time.
//!
//! Only with the feature `faults`, and a `holdfast` that was built with it.

use api::node::{
    Fault, FaultKind, FaultPlace, Faults, Node as _, Remote, Statistics, StatisticsOf,
};
use api::{Paging, Subscription};
use e2e::fleet::{Fleet, Plan, told};
use e2e::process::PATIENCE;
use e2e::store::Kind as StoreKind;
use model::*;

use super::host::Host;
use super::rig::{HOST, id};
use super::targets::close_and_compare;

const ROUNDS: usize = 20;

fn target() -> TargetId {
    id(40)
}

fn fault(place: FaultPlace, kind: FaultKind, count: u64) -> Fault {
    Fault { place, kind, range: None, skip: 0, count: Some(count), hits: 0 }
}

fn child(fleet: &Fleet, nth: usize) -> FaultPlace {
    FaultPlace::Child { target: target(), replica: fleet.machines[nth].replica }
}

fn disk(fleet: &Fleet, nth: usize) -> FaultPlace {
    FaultPlace::Disk { disk: fleet.machines[nth].disk.to_str().unwrap().parse().unwrap() }
}

fn remote(fleet: &Fleet, nth: usize) -> Remote {
    fleet.machines[nth].engine().unwrap().remote.clone()
}

/// An open target on the first node, and a host that has written something.
async fn start() -> (Fleet, Host) {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0).within(1024);
    (0..ROUNDS).for_each(|_| host.round());
    host.flush();
    (fleet, host)
}

/// Injects a fault on a node, lets the host work, and tells how often it hit.
async fn work_under(fleet: &Fleet, host: &mut Host, nth: usize, fault: Fault) -> u64 {
    let node = remote(fleet, nth);
    node.put_faults(Faults { faults: vec![fault] }).await.unwrap();
    host.check_all();
    (0..ROUNDS).for_each(|_| host.round());
    host.check_all();
    let hits = node.faults().await.unwrap().faults[0].hits;
    node.put_faults(Faults::default()).await.unwrap();
    hits
}

async fn state_of(fleet: &Fleet, nth: usize) -> (TargetState, ChildState) {
    let status = remote(fleet, 0).target(target()).await.unwrap().status;
    let replica = fleet.machines[nth].replica;
    let child = status.children.iter().find(|child| child.replica == replica).unwrap();
    (status.state, child.state)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_passing_read_error_of_one_copy_is_read_past() {
    let (mut fleet, mut host) = start().await;
    let errors = fault(child(&fleet, 0), FaultKind::ReadError {}, 8);
    assert_eq!(work_under(&fleet, &mut host, 0, errors).await, 8);
    assert_eq!(state_of(&fleet, 0).await, (TargetState::Open, ChildState::InSync));
    close_and_compare(&mut fleet, 0, target(), host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_disk_reads_wrong_for_a_while_is_read_past() {
    let (mut fleet, mut host) = start().await;
    let wrong = fault(disk(&fleet, 0), FaultKind::Corrupt {}, 8);
    assert_eq!(work_under(&fleet, &mut host, 0, wrong).await, 8);
    assert_eq!(state_of(&fleet, 0).await, (TargetState::Open, ChildState::InSync));
    close_and_compare(&mut fleet, 0, target(), host).await;
}

/// What was seen of the disk of the first node.
async fn symptoms(fleet: &Fleet) -> Vec<DiskFindingKind> {
    let pool = remote(fleet, 0).pool("tank".parse().unwrap()).await.unwrap();
    match pool.status.state {
        PoolState::Online => Vec::new(),
        PoolState::Suspect { symptoms } => symptoms.iter().map(|one| one.kind).collect(),
        state => panic!("{state:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_errs_makes_its_pool_suspect_and_hosts_do_not_notice() {
    let (mut fleet, mut host) = start().await;
    assert_eq!(symptoms(&fleet).await, []);
    let errors = fault(disk(&fleet, 0), FaultKind::ReadError {}, 20);
    assert_eq!(work_under(&fleet, &mut host, 0, errors).await, 20);
    assert_eq!(symptoms(&fleet).await, [DiskFindingKind::IoErrors]);
    let wrong = fault(disk(&fleet, 0), FaultKind::Corrupt {}, 20);
    assert_eq!(work_under(&fleet, &mut host, 0, wrong).await, 20);
    assert_eq!(symptoms(&fleet).await, [DiskFindingKind::IoErrors, DiskFindingKind::Checksum]);
    close_and_compare(&mut fleet, 0, target(), host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_child_is_waited_for() {
    let (mut fleet, mut host) = start().await;
    let before = fleet.record().await.unwrap().set().generation();
    let slow = fault(child(&fleet, 1), FaultKind::Delay { millis: 300 }, 8);
    assert_eq!(work_under(&fleet, &mut host, 0, slow).await, 8);
    let slow = fault(disk(&fleet, 2), FaultKind::Delay { millis: 300 }, 8);
    assert_eq!(work_under(&fleet, &mut host, 2, slow).await, 8);
    let after = fleet.record().await.unwrap().set().generation();
    assert_eq!(after, before, "it was left behind");
    close_and_compare(&mut fleet, 0, target(), host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_cannot_write_or_never_answers_is_left_behind_and_comes_back() {
    let (mut fleet, mut host) = start().await;
    for kind in [FaultKind::WriteError {}, FaultKind::Stall {}] {
        let before = fleet.record().await.unwrap().set().generation();
        let failing = fault(child(&fleet, 1), kind, 1);
        assert_eq!(work_under(&fleet, &mut host, 0, failing).await, 1);
        fleet.until_open(target(), 0).await.unwrap();
        let after = fleet.record().await.unwrap().set().generation();
        assert!(after > before, "it was never recorded stale");
    }
    close_and_compare(&mut fleet, 0, target(), host).await;
}

/// Waits until something is told of a subject, with these words.
async fn until_said(
    events: &mut Subscription<Event>,
    (subject, severity): (Subject, Severity),
    words: &str,
) -> String {
    let is_it = |event: &Event| {
        event.subject == subject && event.severity == severity && event.message.contains(words)
    };
    told(events, is_it).await.unwrap().message
}

/// The only copy of a volume is on a disk that does not answer for longer than anybody waits; the
/// volume beside it, in the same engine, notices nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_command_is_told_and_stops_nobody_else() {
    let (mut fleet, host) = start().await;
    let node = remote(&fleet, 0);
    let neighbour = fleet.neighbour(0).await.unwrap();
    let mut stuck = Host::of_volume(neighbour.volume, fleet.machines[0].listen()).within(1024);
    (0..ROUNDS).for_each(|_| stuck.round());
    stuck.flush();
    let mut events = node.events(None).await.unwrap();
    let disk = FaultPlace::Disk { disk: neighbour.disk.to_str().unwrap().parse().unwrap() };
    // Longer than it takes to be seen, and shorter than hosts are let wait.
    let late = Fault { count: None, ..fault(disk, FaultKind::Delay { millis: 45_000 }, 0) };
    node.put_faults(Faults { faults: vec![late] }).await.unwrap();
    let (stuck, going) = (stuck.keep_going(), host.keep_going());
    let until = tokio::time::Instant::now() + PATIENCE;
    while node.faults().await.unwrap().faults[0].hits == 0 {
        assert!(tokio::time::Instant::now() < until, "the disk was not used");
    }
    // What is asked of it from now on waits for nothing but what was asked before.
    node.put_faults(Faults::default()).await.unwrap();
    let before = of_target(&node, target()).await;
    // Both are seen when it is looked next, which of them first is not said.
    let pool = (Subject::Pool(neighbour.pool.clone()), Severity::Warning);
    let target = (Subject::Target(neighbour.target), Severity::Warning);
    let mut more = node.events(None).await.unwrap();
    let (of_pool, of_it) = tokio::join!(
        until_said(&mut events, pool, "a command waits for "),
        until_said(&mut more, target, "a command of a host has been at work for "),
    );
    assert!(of_pool.starts_with("it is suspect"), "{of_pool}, {of_it}");
    // One waits; the other has worked all the while, and nothing of it waits.
    let waits = of_target(&node, neighbour.target).await.oldest_micros;
    assert!(waits >= Some(30_000_000), "{waits:?}");
    let beside = of_target(&node, self::target()).await;
    assert!(beside.oldest_micros < Some(30_000_000), "{beside:?}");
    assert!(beside.write.commands > before.write.commands + 100, "{before:?}, {beside:?}");
    // The disk answers.
    let target = (Subject::Target(neighbour.target), Severity::Info);
    until_said(&mut more, target, "commands of hosts end again").await;
    let mut stuck = stuck.stop();
    stuck.check_all();
    let status = node.pool(neighbour.pool).await.unwrap().status;
    assert!(status.disks[0].stalls > 0, "{status:?}");
    assert_eq!(symptoms(&fleet).await, []);
    close_and_compare(&mut fleet, 0, self::target(), going.stop()).await;
}

async fn statistics(node: &Remote, of: StatisticsOf) -> Statistics {
    let all = node.statistics(Paging::default()).await.unwrap().items;
    all.into_iter().find(|one| one.of == of).unwrap()
}

async fn of_target(node: &Remote, target: TargetId) -> Statistics {
    statistics(node, StatisticsOf::Target { target }).await
}

/// How many writes of the target a copy has carried out.
async fn writes_of(fleet: &Fleet, nth: usize) -> u64 {
    let of = StatisticsOf::Child { target: target(), replica: fleet.machines[nth].replica };
    statistics(&remote(fleet, 0), of).await.write.commands
}

/// The disk of the local copy writes nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_errs_on_faults_its_pool_and_no_other() {
    let (mut fleet, host) = start().await;
    let node = remote(&fleet, 0);
    let neighbour = fleet.neighbour(0).await.unwrap();
    let beside = Host::of_volume(neighbour.volume, fleet.machines[0].listen()).within(1024);
    let (going, beside) = (host.keep_going(), beside.keep_going());
    let mut events = node.events(None).await.unwrap();
    let errors = |kind| Fault { count: None, ..fault(disk(&fleet, 0), kind, 0) };
    let faults = vec![errors(FaultKind::WriteError {}), errors(FaultKind::FlushError {})];
    node.put_faults(Faults { faults }).await.unwrap();
    fleet.until_lost((target(), 0), 0).await.unwrap();
    let tank: PoolName = "tank".parse().unwrap();
    let faulted = (Subject::Pool(tank.clone()), Severity::Error);
    let said = until_said(&mut events, faulted, "it is faulted; ").await;
    assert!(
        said.contains("its journal or a flush failed") && said.contains("replace it"),
        "{said}"
    );
    let PoolState::Faulted { symptoms } = node.pool(tank).await.unwrap().status.state else {
        panic!("it is well")
    };
    let kinds: Vec<DiskFindingKind> = symptoms.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [DiskFindingKind::Damaged, DiskFindingKind::IoErrors]);
    // Nothing but time passes by itself: a disk that is well again is imported anew.
    let (mut host, mut beside) = (going.stop(), beside.stop());
    for _ in 0..ROUNDS {
        host.round();
        beside.round();
    }
    beside.check_all();
    let shelf = node.pool(neighbour.pool).await.unwrap().status;
    assert_eq!((shelf.state, shelf.disks[0].io_errors), (PoolState::Online, 0));
    assert_eq!(fleet.record().await.unwrap().set().in_sync().len(), 2);
    fleet.machines[0].kill().unwrap();
    fleet.restart(0).await.unwrap();
    fleet.open(id(41), 1).await.unwrap();
    fleet.until_open(id(41), 1).await.unwrap();
    host.moves_to(fleet.machines[1].listen());
    close_and_compare(&mut fleet, 1, id(41), host).await;
}

/// The target dies when the second copy has what the third one has not.
#[tokio::test(flavor = "multi_thread")]
async fn copies_that_differ_when_their_target_dies_are_made_equal() {
    let (mut fleet, mut host) = start().await;
    host.round();
    let stall = Fault { count: None, ..fault(disk(&fleet, 2), FaultKind::Stall {}, 0) };
    remote(&fleet, 2).put_faults(Faults { faults: vec![stall] }).await.unwrap();
    let before = writes_of(&fleet, 1).await;
    let working = host.until_gone();
    let until = tokio::time::Instant::now() + PATIENCE;
    while writes_of(&fleet, 1).await == before {
        assert!(tokio::time::Instant::now() < until, "no copy was written to");
    }
    fleet.machines[0].kill().unwrap();
    fleet.machines[2].kill().unwrap();
    fleet.restart(2).await.unwrap();
    fleet.open(id(41), 1).await.unwrap();
    let mut host = working.follows(fleet.machines[1].listen());
    host.check_all();
    fleet.restart(0).await.unwrap();
    fleet.until_open(id(41), 1).await.unwrap();
    close_and_compare(&mut fleet, 1, id(41), host).await;
}
