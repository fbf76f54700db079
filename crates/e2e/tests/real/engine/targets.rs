//! Targets of real engines: a volume on three nodes while each thing that can go wrong does.
//!
//! Every case runs with the embedded store and with etcd. The host verifies while it works; at the
//! end everything is read back, and the replicas are compared block for block.

use std::sync::mpsc;

use api::node::{Node, Remote, Statistics, StatisticsOf};
use api::{Effect, Paging};
use e2e::fleet::{Fleet, Plan, repaired, told};
use e2e::netns::Netns;
use e2e::process::PATIENCE;
use e2e::store::Kind as StoreKind;
use model::*;
use rustix::process::Signal;

use super::host::Host;
use super::rig::{Disk, HOST, id, kind, order};
use super::{numbered, request};

/// Runs a case with each store.
macro_rules! with_each_store {
    ($($case:ident)+) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(e2e::store::Kind::Embedded).await;
            })+
        }
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(e2e::store::Kind::Etcd).await;
            })+
        }
    };
}

pub(crate) use with_each_store;

with_each_store! {
    orders_are_followed_once_and_late_ones_refused
    a_volume_grows_and_is_snapshotted_as_a_whole
    limits_hold_and_can_be_lifted
    a_child_that_was_killed_gets_what_it_missed
    a_child_that_hangs_is_left_behind_and_comes_back
    a_child_that_is_cut_off_is_left_behind_and_comes_back
    a_full_child_is_left_behind
    silent_damage_is_read_past_and_repaired
    a_killed_target_is_made_anew_elsewhere
    a_former_owner_that_wakes_up_is_fenced
    without_the_store_nothing_is_lost
}

const TARGET: u32 = 40;

fn target() -> TargetId {
    id(TARGET)
}

async fn start(store: StoreKind) -> Fleet {
    Fleet::start(Plan::default_for(store, HOST)).await.unwrap()
}

/// Shuts the target down and compares the replicas with what was written.
pub(super) async fn close_and_compare(
    fleet: &mut Fleet,
    on: usize,
    target: TargetId,
    mut host: Host,
) {
    host.check_all();
    host.flush();
    fleet.close(target, on).await.unwrap();
    host.compare_replicas(fleet);
}

async fn orders_are_followed_once_and_late_ones_refused(store: StoreKind) {
    let mut fleet = start(store).await;
    let remote = |fleet: &Fleet| fleet.machines[0].engine().unwrap().remote.clone();
    let node = remote(&fleet);
    // Without a record nobody owns the volume.
    let early = fleet.spec(Epoch::FIRST, 0).unwrap();
    assert_eq!(kind(fleet.put(target(), 0, early).await.unwrap()), ProblemKind::InvalidArgument);
    let spec = fleet.take(target(), 0).await.unwrap();
    assert_eq!(
        kind(fleet.put(id(41), 0, spec.clone()).await.unwrap()),
        ProblemKind::InvalidArgument
    );
    assert_eq!(
        kind(fleet.put(target(), 1, spec.clone()).await.unwrap()),
        ProblemKind::InvalidArgument
    );
    let made = node.put_target(target(), order(5, spec.clone())).await.unwrap();
    assert_eq!((made.effect, made.now.generation), (Effect::Created, Generation::new(5)));
    fleet.until_open(target(), 0).await.unwrap();
    let again = node.put_target(target(), order(5, spec.clone())).await.unwrap();
    assert_eq!(again.effect, Effect::Unchanged);
    assert_eq!(
        kind(node.put_target(target(), order(4, spec.clone())).await),
        ProblemKind::StaleGeneration
    );
    let mut host = Host::of(&fleet, 0);
    host.round();
    // Fewer children, other limits, another path state, nobody who may connect; and back.
    let mut fewer = TargetSpec { ana: Ana::NonOptimized, hosts: [].into(), ..spec.clone() };
    fewer.children.pop();
    fewer.limits = QosLimits { iops: Some(100_000), bytes_per_second: None };
    assert_eq!(
        kind(node.put_target(target(), order(5, fewer.clone())).await),
        ProblemKind::GenerationReused
    );
    let changed = node.put_target(target(), order(6, fewer)).await.unwrap();
    assert_eq!((changed.effect, changed.now.status.children.len()), (Effect::Changed, 2));
    assert_eq!(fleet.record().await.unwrap().set().replicas().len(), 2);
    assert!(Disk::attach(fleet.machines[0].listen(), fleet.volume).is_err());
    let back = node.put_target(target(), order(7, spec.clone())).await.unwrap();
    assert_eq!((back.effect, back.now.status.children.len()), (Effect::Changed, 3));
    fleet.until_open(target(), 0).await.unwrap();
    host.moves_to(fleet.machines[0].listen());
    host.check_all();
    // Offline and online.
    let mut offline = spec.clone();
    offline.children[1].offline = true;
    node.put_target(target(), order(8, offline)).await.unwrap();
    fleet.until_child((target(), 0), 1, |state| state == ChildState::Offline).await.unwrap();
    host.round();
    node.put_target(target(), order(9, spec.clone())).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    // Down for good; forgotten only by a newer order.
    let down = TargetSpec { shutdown: true, ..spec.clone() };
    let found = node.put_target(target(), order(11, down)).await.unwrap().now;
    assert_eq!(found.status.state, TargetState::Shutdown { cause: StopCause::Ordered });
    assert_eq!(kind(node.put_target(target(), order(12, spec)).await), ProblemKind::Fenced);
    assert_eq!(
        kind(node.delete_target(target(), numbered(10)).await),
        ProblemKind::StaleGeneration
    );
    assert!(node.delete_target(target(), numbered(12)).await.unwrap().existed);
    assert!(!node.delete_target(target(), numbered(12)).await.unwrap().existed);
    assert_eq!(node.targets(Paging::default()).await.unwrap().items, []);
}

/// How fast a limit lets commands go is proved with a clock of the test's own, in `mirror`.
async fn limits_hold_and_can_be_lifted(store: StoreKind) {
    let mut fleet = start(store).await;
    let spec = fleet.take(target(), 0).await.unwrap();
    fleet.put(target(), 0, spec.clone()).await.unwrap().unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let mut disk = Disk::attach(fleet.machines[0].listen(), fleet.volume).unwrap();
    let mut write_at_once = |blocks: u64, byte: u8| {
        for block in 0..blocks {
            disk.begin_write(block, |bytes| bytes.fill(byte)).unwrap();
        }
        for _ in 0..blocks {
            disk.end().unwrap().1.unwrap();
        }
        assert_eq!(disk.read(blocks - 1), byte);
    };
    write_at_once(32, 1);
    assert_eq!(throttled(&node).await, 0);
    let bandwidth = QosLimits { iops: None, bytes_per_second: Some(QosLimits::LEAST_BANDWIDTH) };
    let five = QosLimits { iops: Some(5), bytes_per_second: None };
    for (limits, blocks) in [(bandwidth, 64), (five, 8)] {
        let limited = TargetSpec { limits, ..spec.clone() };
        fleet.put(target(), 0, limited).await.unwrap().unwrap();
        let before = throttled(&node).await;
        // Commands that come one by one, however slow the machine makes them, need not wait.
        let until = tokio::time::Instant::now() + PATIENCE;
        while throttled(&node).await == before {
            assert!(tokio::time::Instant::now() < until, "nothing had to wait: {limits:?}");
            write_at_once(blocks, 7);
        }
    }
    fleet.put(target(), 0, spec).await.unwrap().unwrap();
    let before = throttled(&node).await;
    write_at_once(64, 8);
    assert_eq!(throttled(&node).await, before);
}

/// How many commands of hosts had to wait for a limit of the target.
async fn throttled(node: &Remote) -> u64 {
    let all = node.statistics(Paging::default()).await.unwrap().items;
    let of_target = |one: &Statistics| matches!(one.of, StatisticsOf::Target { .. });
    all.into_iter().find(of_target).unwrap().throttled
}

async fn a_volume_grows_and_is_snapshotted_as_a_whole(store: StoreKind) {
    let mut fleet = start(store).await;
    let spec = fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let mut host = Host::of(&fleet, 0);
    host.round();
    // A snapshot of all three; its label is on each.
    let snapshot = id(30);
    let taken = node.put_target_snapshot(target(), snapshot, request(5)).await.unwrap();
    assert_eq!((taken.effect, taken.now.replicas.len()), (Effect::Created, 3));
    let again = node.put_target_snapshot(target(), snapshot, request(5)).await.unwrap();
    assert_eq!(again.effect, Effect::Unchanged);
    assert_eq!(
        kind(node.put_target_snapshot(target(), snapshot, request(6)).await),
        ProblemKind::AlreadyExists
    );
    for machine in &fleet.machines {
        let all =
            machine.engine().unwrap().remote.snapshots(Paging::default()).await.unwrap().items;
        let label = SnapshotLabel {
            snapshot,
            volume: fleet.volume,
            replica: machine.replica,
            group: request(5).group,
            taken_at: request(5).taken_at,
            size: Size::mib(64),
            consistency: request(5).consistency,
        };
        assert_eq!(all.iter().map(|found| &found.label).collect::<Vec<_>>(), [&label]);
    }
    // Larger, replicas first.
    host.flush();
    let larger = TargetSpec { size: Size::mib(128), ..spec.clone() };
    assert!(node.put_target(target(), order(10, larger.clone())).await.is_err());
    for machine in &fleet.machines {
        let remote = &machine.engine().unwrap().remote;
        let found = remote.replica(machine.replica).await.unwrap();
        let grown = ReplicaSpec { size: Size::mib(128), ..found.spec };
        remote.put_replica(machine.replica, order(2, grown)).await.unwrap();
    }
    node.put_target(target(), order(10, larger.clone())).await.unwrap();
    host.round();
    host.check_all();
    let mut written = 0;
    for one in node.statistics(Paging::default()).await.unwrap().items {
        written += usize::from(one.write.commands > 0 && one.write.errors == 0);
        let counted: u64 = one.write.latency.buckets.iter().sum();
        assert_eq!(counted, one.write.commands, "{one:?}");
    }
    // The target, its three children, the local replica and its disk.
    assert_eq!(written, 6);
    let metrics = node.metrics().await.unwrap().0;
    assert!(metrics.contains("holdfast_io_seconds_count{of=\"target\""), "{metrics}");
    assert!(metrics.contains("\nholdfast_targets 1\n"), "{metrics}");
}

async fn a_child_that_was_killed_gets_what_it_missed(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    // All of the first regions is written, so that one copied too many shows.
    let mut host = Host::of(&fleet, 0).within(2048);
    host.fill();
    host.flush();
    // Half of them are written while it is away.
    host = host.within(1024);
    fleet.machines[2].kill().unwrap();
    fleet.until_lost((target(), 0), 2).await.unwrap();
    for _ in 0..20 {
        host.round();
    }
    host.flush();
    assert!(!fleet.record().await.unwrap().set().in_sync().contains(&fleet.machines[2].replica));
    fleet.restart(2).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let rebuilds = fleet.rebuilds(0, 2).await.unwrap();
    let last = rebuilds.last().unwrap();
    assert_eq!(last.extent, RebuildKind::Partial);
    // 1024 blocks are 4 MiB; and what was not flushed before that may be lost.
    let dirty = 4 << 20;
    let copied: u64 = rebuilds.iter().map(|rebuild| rebuild.progress.copied.bytes().0).sum();
    assert!(copied > 0 && copied <= dirty + dirty / 10, "{rebuilds:?}");
    // It goes and comes while the host works.
    let working = host.keep_going();
    for nth in [1, 2, 1] {
        fleet.machines[nth].kill().unwrap();
        fleet.until_lost((target(), 0), nth).await.unwrap();
        fleet.restart(nth).await.unwrap();
        fleet.until_open(target(), 0).await.unwrap();
    }
    close_and_compare(&mut fleet, 0, target(), working.stop()).await;
}

async fn a_child_that_hangs_is_left_behind_and_comes_back(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    let working = host.keep_going();
    fleet.machines[1].engine().unwrap().program.signal(Signal::STOP).unwrap();
    fleet.until_lost((target(), 0), 1).await.unwrap();
    fleet.machines[1].engine().unwrap().program.signal(Signal::CONT).unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    close_and_compare(&mut fleet, 0, target(), working.stop()).await;
}

async fn a_child_that_is_cut_off_is_left_behind_and_comes_back(store: StoreKind) {
    let mut fleet =
        Fleet::start(Plan::default_for(store, HOST).with_network(Netns::new().unwrap()))
            .await
            .unwrap();
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    let working = host.keep_going();
    let cable = |fleet: &Fleet, act: fn(&Netns) -> anyhow::Result<()>| {
        act(fleet.machines[2].network.as_ref().unwrap()).unwrap();
    };
    cable(&fleet, Netns::cut);
    fleet.until_lost((target(), 0), 2).await.unwrap();
    cable(&fleet, Netns::mend);
    fleet.until_open(target(), 0).await.unwrap();
    close_and_compare(&mut fleet, 0, target(), working.stop()).await;
}

async fn a_full_child_is_left_behind(store: StoreKind) {
    let mut fleet = start(store).await;
    // Most of the pool of the third is promised to another.
    fleet.fill(2, Size::mib(16)).await.unwrap();
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut events = fleet.machines[0].engine().unwrap().remote.events(None).await.unwrap();
    let working = Host::of(&fleet, 0).keep_going();
    // As soon as it is lost, not only when it is tried again.
    let lost = told(&mut events, |event| event.name == EventName::ChildLost).await.unwrap();
    assert!(lost.message.ends_with("is lost: NoSpace"), "{lost:?}");
    let no_space = |state| state == ChildState::Faulted { reason: FaultReason::NoSpace };
    fleet.until_child((target(), 0), 2, no_space).await.unwrap();
    // Room is made, and it comes back.
    fleet.make_room(2).await.unwrap();
    fleet.until_child((target(), 0), 2, |state| state == ChildState::InSync).await.unwrap();
    close_and_compare(&mut fleet, 0, target(), working.stop()).await;
}

async fn silent_damage_is_read_past_and_repaired(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0).within(2048);
    for _ in 0..40 {
        host.round();
    }
    host.flush();
    // The local copy, which reads go to first, loses some of its blocks.
    let damaged = host.damage(&fleet.machines[0].disk, 50);
    assert!(damaged > 10, "{damaged}");
    let mut events = fleet.machines[0].engine().unwrap().remote.events(None).await.unwrap();
    host.check_all();
    repaired(&mut events, damaged).await.unwrap();
    host.check_all();
    let status = fleet.machines[0].engine().unwrap().remote.target(target()).await.unwrap().status;
    assert_eq!(status.state, TargetState::Open);
    close_and_compare(&mut fleet, 0, target(), host).await;
}

async fn a_killed_target_is_made_anew_elsewhere(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    for _ in 0..5 {
        host.round();
    }
    fleet.machines[0].kill().unwrap();
    while host.try_round().is_ok() {}
    let next = id(41);
    fleet.open(next, 1).await.unwrap();
    host.moves_to(fleet.machines[1].listen());
    host.check_all();
    host.round();
    // The old engine comes back: its replica is brought in sync, its target stays away.
    fleet.restart(0).await.unwrap();
    let old = fleet.spec(Epoch::FIRST, 0).unwrap();
    assert_eq!(kind(fleet.put(target(), 0, old).await.unwrap()), ProblemKind::Fenced);
    fleet.until_open(next, 1).await.unwrap();
    host.round();
    // A clean stop of the engine records a clean end.
    host.check_all();
    host.flush();
    fleet.machines[1].stop().unwrap();
    assert_eq!(fleet.record().await.unwrap().end(), ShutdownState::Clean);
    fleet.restart(1).await.unwrap();
    fleet.open(id(42), 2).await.unwrap();
    fleet.until_open(id(42), 2).await.unwrap();
    host.moves_to(fleet.machines[2].listen());
    close_and_compare(&mut fleet, 2, id(42), host).await;
}

/// A host on a thread of its own, so that what it sends is sent while nobody answers.
struct Late {
    go: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<usize>,
}

impl Late {
    fn attach(fleet: &Fleet) -> Late {
        let (at, volume) = (fleet.machines[0].listen(), fleet.volume);
        let ((go, wait), (attached, until_attached)) = (mpsc::channel(), mpsc::channel());
        let thread = std::thread::spawn(move || {
            let mut disk = Disk::attach(at, volume).unwrap();
            attached.send(()).unwrap();
            wait.recv().unwrap();
            for block in 2040..2048 {
                disk.begin_write(block, |bytes| bytes.fill(0xEE)).unwrap();
            }
            let ended = std::iter::from_fn(|| disk.end().ok());
            ended.take(8).filter(|(_, result, _)| result.is_ok()).count()
        });
        until_attached.recv().unwrap();
        Late { go, thread }
    }

    /// Sends writes; nobody waits for their end.
    fn send(&self) {
        self.go.send(()).unwrap();
    }

    fn acknowledged(self) -> usize {
        self.thread.join().unwrap()
    }
}

async fn a_former_owner_that_wakes_up_is_fenced(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0).within(2048);
    host.fill();
    host.flush();
    // Nothing but what comes late is written to the last of these.
    host = host.within(1024);
    host.round();
    let late = Late::attach(&fleet);
    fleet.machines[0].engine().unwrap().program.pause().unwrap();
    // What was sent to it meanwhile must not land.
    late.send();
    let next = id(41);
    fleet.open(next, 1).await.unwrap();
    host.moves_to(fleet.machines[1].listen());
    host.check_all();
    host.round();
    fleet.machines[0].engine().unwrap().program.signal(Signal::CONT).unwrap();
    let fenced = TargetState::Shutdown { cause: StopCause::Fenced };
    fleet.until(target(), 0, |status| status.state == fenced).await.unwrap();
    assert_eq!(late.acknowledged(), 0, "a former owner acknowledged writes");
    fleet.until_open(next, 1).await.unwrap();
    host.round();
    close_and_compare(&mut fleet, 1, next, host).await;
}

async fn without_the_store_nothing_is_lost(store: StoreKind) {
    let mut fleet = start(store).await;
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    // Nothing needs the store while all is well.
    fleet.store.program().kill().unwrap();
    host.round();
    // A copy is lost: nothing is acknowledged before that is recorded.
    let working = host.keep_going();
    fleet.machines[2].kill().unwrap();
    fleet
        .until(target(), 0, |status| matches!(status.state, TargetState::Suspended { .. }))
        .await
        .unwrap();
    fleet.store.restart().unwrap();
    fleet.until(target(), 0, |status| status.state == TargetState::Degraded).await.unwrap();
    fleet.restart(2).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    close_and_compare(&mut fleet, 0, target(), working.stop()).await;
}
