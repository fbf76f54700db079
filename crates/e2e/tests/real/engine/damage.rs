//! Blocks that copies do not hold as they were written: found by scrubs and checks, and mended.

use std::time::Duration;

use api::node::{BlockRange, CheckReport, CheckRequest, JobControl, Node, Remote, ScrubState};
use e2e::fleet::{Fleet, Plan};
use e2e::store::Kind as StoreKind;
use model::{ReplicaId, TargetId};

use super::host::Host;
use super::rig::{Disk, HOST, id, order};
use super::targets::close_and_compare;

fn target() -> TargetId {
    id(40)
}

/// A volume with three copies that is served, and a host that wrote into its first blocks.
async fn written(store: StoreKind, most: u64) -> (Fleet, Host) {
    let mut fleet = Fleet::start(Plan::default_for(store, HOST)).await.unwrap();
    fleet.open(target(), 0).await.unwrap();
    fleet.until_open(target(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0).within(most);
    for _ in 0..10 {
        host.round();
    }
    host.flush();
    (fleet, host)
}

/// A scrub of a replica, to its end: blocks that were bad, and that were repaired.
async fn scrubbed(node: &Remote, replica: ReplicaId, nth: u64) -> (u64, u64) {
    node.put_scrub(replica, order(nth, JobControl::default())).await.unwrap();
    loop {
        let scrub = node.scrub(replica).await.unwrap();
        if scrub.state != (ScrubState::Running {}) {
            assert_eq!(scrub.state, ScrubState::Completed {});
            return (scrub.bad_blocks, scrub.repaired_blocks);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn mend_by_scrub(store: StoreKind) {
    let (mut fleet, host) = written(store, 2048).await;
    // Reads go to the local copy; another one loses some of its blocks.
    let damaged = u64::try_from(host.damage(&fleet.machines[1].disk, 20)).unwrap();
    assert!(damaged > 10, "{damaged}");
    let node = fleet.machines[1].engine().unwrap().remote.clone();
    let replica = fleet.machines[1].replica;
    assert_eq!(scrubbed(&node, replica, 1).await, (damaged, damaged));
    assert_eq!(scrubbed(&node, replica, 2).await, (0, 0));
    close_and_compare(&mut fleet, 0, target(), host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_mends_the_copy_that_is_not_read() {
    mend_by_scrub(StoreKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_mends_the_copy_that_is_not_read_with_etcd() {
    mend_by_scrub(StoreKind::Etcd).await;
}

/// What only a snapshot holds is rewritten from the same snapshot on another copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_mends_snapshots() {
    let (mut fleet, mut host) = written(StoreKind::Embedded, 2048).await;
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    node.put_target_snapshot(target(), id(30), super::request(5)).await.unwrap();
    let older = host.moment();
    for _ in 0..10 {
        host.round();
    }
    host.flush();
    let damaged = host.damage_older(&fleet.machines[1].disk, &older, 20);
    assert!(damaged > 0, "{damaged}");
    let damaged = u64::try_from(damaged).unwrap();
    let node = fleet.machines[1].engine().unwrap().remote.clone();
    let replica = fleet.machines[1].replica;
    assert_eq!(scrubbed(&node, replica, 1).await, (damaged, damaged));
    assert_eq!(scrubbed(&node, replica, 2).await, (0, 0));
    close_and_compare(&mut fleet, 0, target(), host).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_copy_can_give_is_kept_when_somebody_says_so() {
    let (fleet, host) = written(StoreKind::Embedded, 64).await;
    let disks: Vec<_> = fleet.machines.iter().map(|machine| machine.disk.clone()).collect();
    let block = host.damage_everywhere(&disks);
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let check = |keep| {
        let (first_block, blocks, believe, accept_loss) = (0, 64, None, false);
        let request = CheckRequest { first_block, blocks, believe, accept_loss, keep };
        node.check_target(target(), request)
    };
    let lost = BlockRange { first_block: block, blocks: 1 };
    assert_eq!(check(None).await.unwrap().unreadable, [lost]);
    assert_eq!(check(Some(fleet.machines[1].replica)).await.unwrap().unreadable, [lost]);
    assert_eq!(check(None).await.unwrap(), CheckReport::default());
    let mut disk = Disk::attach(fleet.machines[0].listen(), fleet.volume).unwrap();
    // It is what the disk held, not zeroes.
    assert_ne!(disk.read_all(block), vec![0; 4096]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_copy_can_give_is_named_and_can_be_given_up() {
    let (fleet, host) = written(StoreKind::Embedded, 64).await;
    let disks: Vec<_> = fleet.machines.iter().map(|machine| machine.disk.clone()).collect();
    let block = host.damage_everywhere(&disks);
    let node = fleet.machines[0].engine().unwrap().remote.clone();
    let check = |accept_loss| {
        let (first_block, blocks, believe, keep) = (0, 64, None, None);
        let request = CheckRequest { first_block, blocks, believe, accept_loss, keep };
        node.check_target(target(), request)
    };
    let found = check(false).await.unwrap();
    let lost = BlockRange { first_block: block, blocks: 1 };
    assert_eq!((&found.unreadable[..], found.repaired_blocks), (&[lost][..], 0), "{found:?}");
    assert_eq!(check(true).await.unwrap().unreadable, [lost]);
    assert_eq!(check(false).await.unwrap(), CheckReport::default());
    let mut disk = Disk::attach(fleet.machines[0].listen(), fleet.volume).unwrap();
    assert_eq!(disk.read_all(block), vec![0; 4096]);
}
