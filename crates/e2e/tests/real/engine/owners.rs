//! One owner at a time: the fence is at each replica, and whoever lost a volume is told.

use api::Effect;
use api::node::{Fence, FenceReset, Node as _};
use block::IoError;
use e2e::fleet::{Fleet, Plan};
use e2e::store::Kind as StoreKind;
use model::*;

use super::host::Host;
use super::rig::{Disk, HOST, id, kind};
use super::targets::close_and_compare;

fn first() -> TargetId {
    id(40)
}

fn second() -> TargetId {
    id(41)
}

async fn start() -> Fleet {
    Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap()
}

/// How a write of one block ended.
fn write(disk: &mut Disk, block: u64, byte: u8) -> block::Completion {
    disk.begin_write(block, |bytes| bytes.fill(byte)).unwrap();
    disk.end().unwrap().1
}

/// Nothing was ever asked of the first target, so nothing of what it asks is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_that_does_nothing_is_told() {
    let mut fleet = start().await;
    fleet.open(first(), 0).await.unwrap();
    fleet.until_open(first(), 0).await.unwrap();
    fleet.open(second(), 1).await.unwrap();
    let fenced = TargetState::Shutdown { cause: StopCause::Fenced };
    fleet.until(first(), 0, |status| status.state == fenced).await.unwrap();
    fleet.until_open(second(), 1).await.unwrap();
    let mut host = Host::of(&fleet, 1);
    host.round();
    close_and_compare(&mut fleet, 1, second(), host).await;
}

/// One who speaks to a replica as targets do: no target's own caution is in the way.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_has_one_owner_and_remembers_the_newest() {
    let mut fleet = start().await;
    let (at, replica) = (fleet.machines[2].listen(), fleet.machines[2].replica);
    let mut before = Disk::hold(at, replica, 1).unwrap();
    assert_eq!(write(&mut before, 9, 1), Ok(()));
    // A target of the same epoch: whoever was there has nothing more to say.
    fleet.open(first(), 0).await.unwrap();
    fleet.until_open(first(), 0).await.unwrap();
    assert_eq!(write(&mut before, 9, 2), Err(IoError::Fenced));
    before.begin_read(9).unwrap();
    assert_eq!(before.end().unwrap().1, Err(IoError::Fenced));
    let mut host = Host::of(&fleet, 0);
    host.round();
    // The next epoch: the one before is refused, also by an engine that was killed since.
    fleet.open(second(), 1).await.unwrap();
    fleet.until_open(second(), 1).await.unwrap();
    assert!(Disk::hold(at, replica, 1).is_err(), "an older epoch was let in");
    host.moves_to(fleet.machines[1].listen());
    host.round();
    fleet.machines[2].kill().unwrap();
    fleet.restart(2).await.unwrap();
    assert!(Disk::hold(at, replica, 1).is_err(), "the newest epoch was forgotten");
    fleet.until_open(second(), 1).await.unwrap();
    close_and_compare(&mut fleet, 1, second(), host).await;
}

/// An engine gone mad holds a replica with an epoch that nobody will reach.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_locked_by_an_absurd_epoch_is_released_by_an_administrator() {
    let fleet = start().await;
    let (at, replica) = (fleet.machines[2].listen(), fleet.machines[2].replica);
    assert!(Disk::hold(at, replica, u64::MAX).is_err(), "the last epoch of all was let in");
    let absurd = 1 << 30;
    drop(Disk::hold(at, replica, absurd).unwrap());
    assert!(Disk::hold(at, replica, 1).is_err(), "an older epoch was let in");

    let node = fleet.remote(2).unwrap();
    assert_eq!(node.fence(replica).await.unwrap(), Fence { epoch: absurd });
    let reset = |epoch, seen| node.reset_fence(replica, FenceReset { epoch, seen });
    assert_eq!(kind(reset(1, 7).await), ProblemKind::StaleGeneration);
    assert_eq!(kind(reset(absurd + 1, absurd).await), ProblemKind::InvalidArgument);
    assert_eq!(reset(1, absurd).await.unwrap().effect, Effect::Changed);
    assert_eq!(reset(1, absurd).await.unwrap().effect, Effect::Unchanged);
    let mut owner = Disk::hold(at, replica, 1).unwrap();
    assert_eq!(write(&mut owner, 9, 1), Ok(()));
    assert!(Disk::hold(at, replica, 0).is_err(), "the fence is gone");
}
