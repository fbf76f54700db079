//! A host of a mirrored volume that knows what it wrote.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use e2e::fleet::{Fleet, damage};
use engine::device::Data;
use model::VolumeId;

use super::rig::Disk;

/// What a block holds.
fn content(block: u64, stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    fill(&mut bytes, block, stamp);
    bytes
}

fn fill(bytes: &mut [u8], block: u64, stamp: u64) {
    if stamp > 0 {
        for (nth, word) in (0_u64..).zip(bytes.chunks_exact_mut(8)) {
            let value = if nth % 2 == 0 { block } else { stamp.wrapping_mul(nth) };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Commands at once.
const DEPTH: usize = 16;

/// A host that knows what it wrote.
pub(crate) struct Host {
    disk: Disk,
    known: Known,
}

/// What it knows; a connection stays on its thread, this goes along.
struct Known {
    volume: VolumeId,
    address: SocketAddr,
    /// By block: what it may hold. One, unless a write failed.
    written: BTreeMap<u64, Vec<u64>>,
    last: u64,
    seed: u64,
    /// Blocks that are written.
    most: u64,
}

impl Host {
    /// A host of the target on a node.
    pub(crate) fn of(fleet: &Fleet, on: usize) -> Host {
        Host::of_volume(fleet.volume, fleet.machines[on].listen())
    }

    /// A host of a volume whose target is there.
    pub(crate) fn of_volume(volume: VolumeId, address: SocketAddr) -> Host {
        // Of 64 MiB.
        let most = 64 * 256;
        Host::with(Known { volume, address, written: BTreeMap::new(), last: 0, seed: 7, most })
    }

    fn with(known: Known) -> Host {
        Host { disk: Disk::attach(known.address, known.volume).unwrap(), known }
    }

    /// Every replica holds what was written, block for block; no target is open.
    pub(crate) fn compare_replicas(&self, fleet: &Fleet) {
        for machine in &fleet.machines {
            let mut disk = Disk::connect(machine.listen(), machine.replica).unwrap();
            for (block, stamps) in &self.known.written {
                let found = disk.read_all(*block);
                let fits = |stamp: &u64| found == content(*block, *stamp);
                let (name, begins) = (&machine.name, &found[..16]);
                assert!(
                    stamps.iter().any(fits),
                    "block {block} on {name} begins with {begins:?}, not as written: {stamps:?}"
                );
            }
        }
    }

    /// Uses the first blocks only.
    pub(crate) fn within(self, most: u64) -> Host {
        Host { known: Known { most, ..self.known }, ..self }
    }

    /// Goes on with another target.
    pub(crate) fn moves_to(&mut self, address: SocketAddr) {
        self.known.address = address;
        self.wake();
    }

    fn place(&mut self) -> u64 {
        self.known.seed = self.known.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (self.known.seed >> 20) % self.known.most
    }

    /// Writes some blocks and reads others back; all must be well.
    pub(crate) fn round(&mut self) {
        self.wake();
        assert_eq!(self.try_round(), Ok(0), "commands failed");
    }

    /// A host that did nothing for long, not even keep its connection alive, connects again.
    fn wake(&mut self) {
        self.disk = Disk::attach(self.known.address, self.known.volume).unwrap();
    }

    /// The same; what fails may be there or not. How many failed, or why the target is gone.
    pub(crate) fn try_round(&mut self) -> Result<usize, String> {
        let mut writes = BTreeMap::new();
        while writes.len() < DEPTH {
            let (block, stamp) = (self.place(), self.stamp());
            writes.insert(block, stamp);
        }
        let failed = self.write_all(&writes)?;
        let start = self.place();
        let some: Vec<u64> =
            self.known.written.range(start..).take(DEPTH).map(|(block, _)| *block).collect();
        Ok(failed + self.check(&some)?)
    }

    /// Writes every block it uses.
    pub(crate) fn fill(&mut self) {
        self.wake();
        let all: Vec<u64> = (0..self.known.most).collect();
        for some in all.chunks(DEPTH) {
            let writes = some.iter().map(|block| (*block, self.stamp())).collect();
            assert_eq!(self.write_all(&writes), Ok(0), "writes failed");
        }
    }

    fn stamp(&mut self) -> u64 {
        self.known.last += 1;
        self.known.last
    }

    /// Writes blocks at once. How many failed: those may be there or not.
    fn write_all(&mut self, writes: &BTreeMap<u64, u64>) -> Result<usize, String> {
        for (block, stamp) in writes {
            self.disk.begin_write(*block, |bytes| fill(bytes, *block, *stamp))?;
            self.known.written.entry(*block).or_insert_with(|| vec![0]).push(*stamp);
        }
        let mut failed = 0;
        for _ in 0..writes.len() {
            let (block, result, _) = self.disk.end().map_err(|error| error.to_string())?;
            match result {
                // Nothing else can be there now.
                Ok(()) => drop(self.known.written.insert(block, vec![writes[&block]])),
                Err(_) => failed += 1,
            }
        }
        Ok(failed)
    }

    fn check(&mut self, blocks: &[u64]) -> Result<usize, String> {
        let mut failed = 0;
        for some in blocks.chunks(DEPTH) {
            some.iter().try_for_each(|block| self.disk.begin_read(*block))?;
            for _ in some {
                let (block, result, data) = self.disk.end().map_err(|error| error.to_string())?;
                let Data::Fill(bytes) = data else { panic!("no buffer") };
                if result.is_err() {
                    failed += 1;
                    continue;
                }
                let stamps = &self.known.written[&block];
                let found = stamps.iter().copied().find(|stamp| *bytes == content(block, *stamp));
                let found = found.unwrap_or_else(|| panic!("block {block} is wrong: {stamps:?}"));
                // It cannot become something else any more.
                self.known.written.insert(block, vec![found]);
            }
        }
        Ok(failed)
    }

    /// Reads everything back.
    pub(crate) fn check_all(&mut self) {
        self.wake();
        let all: Vec<u64> = self.known.written.keys().copied().collect();
        assert_eq!(self.check(&all), Ok(0), "reads failed");
    }

    pub(crate) fn flush(&mut self) {
        self.wake();
        self.disk.flush();
    }

    /// Spoils up to so many of the blocks it wrote, on a disk. How many.
    pub(crate) fn damage(&self, disk: &Path, most: usize) -> usize {
        let is_ours = |found: &[u8]| {
            let block = u64::from_le_bytes(found[..8].try_into().unwrap());
            let stamps = self.known.written.get(&block);
            stamps.is_some_and(|stamps| found == content(block, stamps[0]))
        };
        damage(disk, most, is_ours).unwrap()
    }

    /// What blocks hold now, for [`Host::damage_older`].
    pub(crate) fn moment(&self) -> BTreeMap<u64, Vec<u64>> {
        self.known.written.clone()
    }

    /// Spoils up to so many of the blocks that held something else at that moment, where a snapshot
    /// of that moment still has them. How many.
    pub(crate) fn damage_older(
        &self,
        disk: &Path,
        older: &BTreeMap<u64, Vec<u64>>,
        most: usize,
    ) -> usize {
        let is_older = |found: &[u8]| {
            let block = u64::from_le_bytes(found[..8].try_into().unwrap());
            let stamps =
                older.get(&block).filter(|old| self.known.written.get(&block) != Some(old));
            stamps.is_some_and(|stamps| stamps[0] != 0 && found == content(block, stamps[0]))
        };
        damage(disk, most, is_older).unwrap()
    }

    /// Spoils one block that it wrote on every disk. Which one.
    pub(crate) fn damage_everywhere(&self, disks: &[std::path::PathBuf]) -> u64 {
        let whole = self.known.written.iter().find(|(_, stamps)| stamps[..] != [0]);
        let (block, stamps) = whole.expect("it wrote something");
        for disk in disks {
            let is_it = |found: &[u8]| found == content(*block, stamps[0]);
            assert_eq!(damage(disk, 1, is_it).unwrap(), 1, "block {block} of {}", disk.display());
        }
        *block
    }

    /// Works until it is told to stop; all must be well.
    pub(crate) fn keep_going(self) -> Working {
        self.work(|result| assert_eq!(result, Ok(0), "commands failed"))
    }

    /// Works until its target is gone.
    pub(crate) fn until_gone(self) -> Working {
        self.work(|_| {})
    }

    fn work(self, see: impl Fn(Result<usize, String>) + Send + 'static) -> Working {
        let going = Arc::new(AtomicBool::new(true));
        let (keep, known) = (Arc::clone(&going), self.known);
        let thread = std::thread::spawn(move || {
            let mut host = Host::with(known);
            while keep.load(Ordering::Relaxed) {
                let result = host.try_round();
                let is_gone = result.is_err();
                see(result);
                if is_gone {
                    break;
                }
            }
            host.known
        });
        Working { going, thread }
    }
}

/// A host at work on a thread of its own.
pub(crate) struct Working {
    going: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Known>,
}

impl Working {
    /// Ends it, and hands the host back.
    pub(crate) fn stop(self) -> Host {
        self.going.store(false, Ordering::Relaxed);
        Host::with(self.known())
    }

    /// When its target is gone, it goes on with another.
    pub(crate) fn follows(self, address: SocketAddr) -> Host {
        Host::with(Known { address, ..self.known() })
    }

    fn known(self) -> Known {
        self.thread.join().expect("the host was well served")
    }
}
