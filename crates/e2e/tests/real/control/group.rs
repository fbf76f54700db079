//! Snapshots of two volumes at one moment, while a host writes to one and then to the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::rest::{Control as _, Remote};
use e2e::fleet::id;
use e2e::process::PATIENCE;
use e2e::store::{Kind, StoreServer};
use model::*;

use super::rig::{World, publish, publish_on, until};
use crate::engine::rig::Disk;

/// How many groups are taken.
const GROUPS: u32 = 6;
/// How many write at once, each to a block of its own.
const WRITERS: u64 = 8;

/// A volume as a host has it, who connects again when the connection was lost.
struct Path {
    served: (SocketAddr, VolumeId),
    disk: Option<Disk>,
}

impl Path {
    /// Writes a number, as often as it takes: a path that is closed for a moment is tried again.
    fn write(&mut self, block: u64, number: u64) {
        let deadline = Instant::now() + PATIENCE * 2;
        while !self.try_write(block, number).unwrap_or(false) {
            assert!(Instant::now() < deadline, "{number} cannot be written");
            // Whoever is to open it needs the processor more than this loop.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it was written; an error: there is no connection.
    fn try_write(&mut self, block: u64, number: u64) -> anyhow::Result<bool> {
        let (address, volume) = self.served;
        let mut disk = match self.disk.take() {
            Some(disk) => disk,
            None => Disk::attach(address, volume)?,
        };
        let fill = |block: &mut [u8]| block[..8].copy_from_slice(&number.to_le_bytes());
        disk.begin_write(block, fill).map_err(anyhow::Error::msg)?;
        let (_, result, _) = disk.end()?;
        self.disk = Some(disk);
        Ok(result.is_ok())
    }
}

/// What each block says.
fn numbers(disk: &mut Disk) -> Vec<u64> {
    let number = |block| u64::from_le_bytes(disk.read_all(block)[..8].try_into().unwrap());
    (0..WRITERS).map(number).collect()
}

async fn restored(remote: &Remote, (volume, snapshot): (VolumeId, SnapshotId)) -> Vec<u64> {
    let source = Some(Source::Snapshot { snapshot });
    let spec = VolumeSpec { source, ..VolumeSpec::new(Size::mib(16), 2) };
    remote.put_volume(volume, spec).await.unwrap();
    let address = publish(remote, volume).await.addresses[0];
    numbers(&mut Disk::attach(address, volume).unwrap())
}

/// Every number is written to a block of the first volume, and when that is acknowledged to the
/// same block of the second. So at any one moment the first is ahead by one at most, and never
/// behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_of_a_group_are_of_one_moment() {
    let store = StoreServer::start(Kind::Embedded).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (1, 2)).await;
    let remote = world.leader().await;
    let volumes: [VolumeId; 2] = [id(1).unwrap(), id(2).unwrap()];
    let mut served = Vec::new();
    for volume in volumes {
        remote.put_volume(volume, VolumeSpec::new(Size::mib(16), 2)).await.unwrap();
        let node = format!("node-{}", served.len() + 1).parse().unwrap();
        let address = publish_on(&remote, volume, Some(node)).await.addresses[0];
        served.push((address, volume));
    }
    // The second volume hears of everything much later than the first: without the hold its
    // snapshot would be of another moment.
    world.slow_down(1, Duration::from_millis(300)).await;
    let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|block| {
            let (served, end, count) = (served.clone(), Arc::clone(&stop), Arc::clone(&written));
            std::thread::spawn(move || {
                let path = |served| Path { served, disk: None };
                let mut paths: Vec<Path> = served.into_iter().map(path).collect();
                for number in 1.. {
                    for path in &mut paths {
                        path.write(block, number);
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    if end.load(Ordering::Relaxed) {
                        return;
                    }
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for nth in 1..=GROUPS {
        let before = written.load(Ordering::Relaxed);
        until("more is written", async || written.load(Ordering::Relaxed) > before + 100).await;
        let pair: [SnapshotId; 2] = [id(10 * nth).unwrap(), id(10 * nth + 1).unwrap()];
        let snapshots = volumes.into_iter().zip(pair).collect();
        let spec = SnapshotGroupSpec::new(snapshots);
        // On a machine that stands still for a while it is undone, and can be asked for again.
        let group = id(nth).unwrap();
        until("a group is taken", async || remote.put_group(group, spec.clone()).await.is_ok())
            .await;
        taken.push(pair);
    }
    let after = written.load(Ordering::Relaxed);
    until("it goes on", async || written.load(Ordering::Relaxed) > after + 100).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
    for (nth, pair) in (1..).zip(taken) {
        let copies: [VolumeId; 2] = [id(100 * nth).unwrap(), id(100 * nth + 1).unwrap()];
        let first = restored(&remote, (copies[0], pair[0])).await;
        let second = restored(&remote, (copies[1], pair[1])).await;
        for (one, two) in first.into_iter().zip(second) {
            assert!(one == two || one == two + 1, "group {nth}: {one} and {two}");
        }
    }
}
