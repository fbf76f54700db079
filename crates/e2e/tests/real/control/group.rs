//! Snapshots of two volumes at one moment, while a host writes to one and then to the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use api::rest::{Control as _, Remote};
use e2e::fleet::id;
use e2e::store::{Kind, StoreServer};
use model::*;

use super::rig::{World, publish, until};
use crate::engine::rig::Disk;

/// How many groups are taken.
const GROUPS: u32 = 3;

/// Writes a number, as often as it takes: a path that is closed for a moment is tried again.
fn write(disk: &mut Disk, number: u64) {
    loop {
        disk.begin_write(0, |block| block[..8].copy_from_slice(&number.to_le_bytes())).unwrap();
        let (_, result, _) = disk.end().unwrap();
        if result.is_ok() {
            return;
        }
        std::thread::yield_now();
    }
}

fn number(disk: &mut Disk) -> u64 {
    u64::from_le_bytes(disk.read_all(0)[..8].try_into().unwrap())
}

async fn restored(remote: &Remote, (volume, snapshot): (VolumeId, SnapshotId)) -> u64 {
    let source = Some(Source::Snapshot { snapshot });
    let spec = VolumeSpec { source, ..VolumeSpec::new(Size::mib(16), 2) };
    remote.put_volume(volume, spec).await.unwrap();
    let address = publish(remote, volume).await.addresses[0];
    number(&mut Disk::attach(address, volume).unwrap())
}

/// Every number is written to the first volume, and when that is acknowledged to the second. So at
/// any one moment the first is ahead by one at most, and never behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_a_group_are_of_one_moment() {
    let store = StoreServer::start(Kind::Embedded).unwrap();
    let client = store.client().await.unwrap();
    let world = World::start(&[store.endpoint()], client, (1, 2)).await;
    let remote = world.leader().await;
    let volumes: [VolumeId; 2] = [id(1).unwrap(), id(2).unwrap()];
    let mut disks = Vec::new();
    for volume in volumes {
        remote.put_volume(volume, VolumeSpec::new(Size::mib(16), 2)).await.unwrap();
        let address = publish(&remote, volume).await.addresses[0];
        disks.push(Disk::attach(address, volume).unwrap());
    }
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (end, count) = (Arc::clone(&stop), Arc::clone(&written));
    let writer = std::thread::spawn(move || {
        for number in 1.. {
            disks.iter_mut().for_each(|disk| write(disk, number));
            count.store(number, Ordering::Relaxed);
            if end.load(Ordering::Relaxed) {
                return;
            }
        }
    });
    let mut taken = Vec::new();
    for nth in 1..=GROUPS {
        let before = written.load(Ordering::Relaxed);
        until("more is written", async || written.load(Ordering::Relaxed) > before + 20).await;
        let pair: [SnapshotId; 2] = [id(10 * nth).unwrap(), id(10 * nth + 1).unwrap()];
        let snapshots = volumes.into_iter().zip(pair).collect();
        let spec = SnapshotGroupSpec { snapshots, labels: [].into() };
        remote.put_group(id(nth).unwrap(), spec).await.unwrap();
        taken.push(pair);
    }
    let after = written.load(Ordering::Relaxed);
    until("it goes on", async || written.load(Ordering::Relaxed) > after + 20).await;
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let mut last = 0;
    for (nth, pair) in (1..).zip(taken) {
        let copies: [VolumeId; 2] = [id(100 * nth).unwrap(), id(100 * nth + 1).unwrap()];
        let first = restored(&remote, (copies[0], pair[0])).await;
        let second = restored(&remote, (copies[1], pair[1])).await;
        assert!(first == second || first == second + 1, "group {nth}: {first} and {second}");
        assert!(second > last, "group {nth} is not newer than the one before");
        last = second;
    }
}
