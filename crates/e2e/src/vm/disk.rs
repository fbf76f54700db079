//! Disks of a guest, and what a power cut leaves on them.
//!
//! Killing QEMU loses nothing that reached it: the bytes are in the host's page cache. So a disk
//! with a write cache is kept as it was before the boot, and QEMU logs every write and flush to it.
//! After the cut the image is made anew from both, without some or all writes no flush covered.
//!
//! A write that ends while a flush is under way counts as covered by it; a real disk may lose it.
//! So nothing is ever lost that a disk had to keep, and a little less than it might lose is.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::userland::command_output;

/// A disk image on the host, which outlives the machines that use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    image: PathBuf,
    cached: bool,
}

impl Disk {
    /// An empty disk without a write cache: a write that ended is on the medium.
    pub fn create(image: &Path, bytes: u64) -> Result<Disk> {
        let make = || File::create(image)?.set_len(bytes);
        make().with_context(|| format!("create {}", image.display()))?;
        Ok(Disk { image: image.to_owned(), cached: false })
    }

    /// The same disk, seen by the guest as one whose write cache a power cut empties.
    #[must_use]
    pub fn with_write_cache(self) -> Disk {
        Disk { cached: true, ..self }
    }

    /// Where its bytes are.
    pub fn image(&self) -> &Path {
        &self.image
    }
}

/// Which of the writes that no flush covered a power cut loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// None: all were already on the medium.
    Nothing,
    /// All of them.
    Unflushed,
    /// Some, by chance, in any order: what a real cache does. The same seed loses the same ones.
    Some {
        /// Start of the random numbers.
        seed: u64,
    },
}

/// A disk in use by a machine.
pub(super) struct Attached {
    disk: Disk,
    /// For a disk with a write cache: its image before the boot, and QEMU's log.
    history: Option<(PathBuf, PathBuf)>,
}

impl Attached {
    /// Makes what is needed in the machine's directory.
    pub(super) fn new(disk: Disk, dir: &Path, index: usize) -> Result<Attached> {
        if !disk.cached {
            return Ok(Attached { disk, history: None });
        }
        let before = dir.join(format!("disk{index}.before"));
        let log = dir.join(format!("disk{index}.log"));
        copy_sparse(&disk.image, &before)?;
        File::create(&log).with_context(|| format!("create {}", log.display()))?;
        Ok(Attached { disk, history: Some((before, log)) })
    }

    /// What QEMU is told about it.
    pub(super) fn arguments(&self, index: usize) -> Vec<String> {
        let image = self.disk.image.display();
        let (node, cache) = match &self.history {
            None => (format!("driver=file,filename={image}"), "off"),
            Some((_, log)) => (
                format!(
                    "driver=blklogwrites,file.driver=file,file.filename={image},\
                     file.discard=unmap,log.driver=file,log.filename={},log-sector-size=512",
                    log.display()
                ),
                "on",
            ),
        };
        vec![
            "-blockdev".to_owned(),
            format!("{node},node-name=disk{index},discard=unmap"),
            "-device".to_owned(),
            format!("virtio-blk-pci,drive=disk{index},serial=disk{index},write-cache={cache}"),
        ]
    }

    /// Leaves on the image what the medium would hold. QEMU must have ended.
    pub(super) fn after_power_cut(&self, loss: Loss) -> Result<()> {
        let Some((before, log)) = &self.history else { return Ok(()) };
        if loss == Loss::Nothing {
            return Ok(());
        }
        copy_sparse(before, &self.disk.image)?;
        let log = File::open(log).with_context(|| format!("open {}", log.display()))?;
        let image = File::options()
            .write(true)
            .open(&self.disk.image)
            .with_context(|| format!("open {}", self.disk.image.display()))?;
        replay(&log, &image, loss).with_context(|| format!("redo {}", self.disk.image.display()))
    }
}

fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let from = from.to_str().context("a path is not UTF-8")?;
    let to = to.to_str().context("a path is not UTF-8")?;
    command_output("cp", &["--sparse=always", "--reflink=auto", from, to]).map(drop)
}

const SECTOR: u64 = 512;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;

/// One record of the log: a header in a sector of its own, then the bytes written.
#[derive(Clone, Copy)]
struct Record {
    sector: u64,
    sectors: u64,
    flags: u64,
    /// Where in the log the bytes are.
    data_at: u64,
}

fn replay(log: &File, image: &File, loss: Loss) -> Result<()> {
    let records = read_log(log)?;
    let flushed = records.iter().rposition(|record| record.flags & FLUSH != 0);
    let mut chance = Chance::new(loss);
    for (index, record) in records.iter().enumerate() {
        let covered = flushed.is_some_and(|last| index <= last) || record.flags & FUA != 0;
        if covered || chance.keeps() {
            redo(record, log, image)?;
        }
    }
    Ok(())
}

/// The superblock counts records only now and then, so the log is read until a sector is empty.
fn read_log(log: &File) -> Result<Vec<Record>> {
    const MAGIC: u64 = 0x006a_7366_7773_6872;
    let end = log.metadata().context("size of the log")?.len();
    if end < SECTOR {
        return Ok(Vec::new());
    }
    // QEMU writes the superblock with the first flush.
    let [magic, ..] = read_numbers(log, 0)?;
    if magic != MAGIC && magic != 0 {
        bail!("QEMU's log of writes does not start as such a log does");
    }
    let mut records = Vec::new();
    let mut at = SECTOR;
    while at + SECTOR <= end {
        let [sector, sectors, flags, _] = read_numbers(log, at)?;
        if sectors == 0 && flags == 0 {
            break;
        }
        let record = Record { sector, sectors, flags, data_at: at + SECTOR };
        at = record.data_at;
        if flags & DISCARD == 0 {
            at += sectors * SECTOR;
        }
        // The cut may have hit the log itself: that write never ended.
        if at <= end {
            records.push(record);
        }
    }
    Ok(records)
}

fn read_numbers(log: &File, at: u64) -> Result<[u64; 4]> {
    let mut header = [0; 32];
    log.read_exact_at(&mut header, at).context("read the log")?;
    let mut numbers = [0; 4];
    for (number, bytes) in numbers.iter_mut().zip(header.chunks_exact(8)) {
        *number = u64::from_le_bytes(bytes.try_into().context("eight bytes")?);
    }
    Ok(numbers)
}

/// A discard promises nothing about the bytes, so it leaves them alone.
fn redo(record: &Record, log: &File, image: &File) -> Result<()> {
    if record.flags & DISCARD != 0 || record.sectors == 0 {
        return Ok(());
    }
    let length = usize::try_from(record.sectors * SECTOR).context("a write fits memory")?;
    let mut bytes = vec![0; length];
    log.read_exact_at(&mut bytes, record.data_at).context("read the log")?;
    image.write_all_at(&bytes, record.sector * SECTOR).context("write the image")
}

/// Decides about writes that no flush covered.
struct Chance {
    state: Option<u64>,
}

impl Chance {
    fn new(loss: Loss) -> Chance {
        match loss {
            Loss::Some { seed } => Chance { state: Some(seed) },
            Loss::Unflushed | Loss::Nothing => Chance { state: None },
        }
    }

    fn keeps(&mut self) -> bool {
        let Some(state) = &mut self.state else { return false };
        // Knuth's linear congruential generator; its high bits are good enough for a coin.
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, fs::File};

    use super::{DISCARD, FLUSH, FUA, Loss, SECTOR, replay};

    /// A log with a superblock of zeroes, as QEMU leaves it before the first flush.
    #[derive(Default)]
    struct Log {
        bytes: Vec<u8>,
    }

    impl Log {
        fn record(mut self, sector: u64, flags: u64, data: &[u8]) -> Log {
            if self.bytes.is_empty() {
                self.bytes.resize(512, 0);
            }
            let sectors = u64::try_from(data.len()).unwrap() / SECTOR;
            let start = self.bytes.len();
            for number in [sector, sectors, flags, 0] {
                self.bytes.extend(number.to_le_bytes());
            }
            self.bytes.resize(start + 512, 0);
            self.bytes.extend(data);
            self
        }
    }

    /// First letters of the sectors of a disk of dots after the log was replayed.
    fn check(log: &Log, loss: Loss, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let (log_path, image_path) = (dir.path().join("log"), dir.path().join("image"));
        fs::write(&log_path, &log.bytes).unwrap();
        fs::write(&image_path, vec![b'.'; 512 * expected.len()]).unwrap();
        let image = File::options().write(true).open(&image_path).unwrap();
        replay(&File::open(&log_path).unwrap(), &image, loss).unwrap();
        let bytes = fs::read(&image_path).unwrap();
        let letters: String = bytes.chunks(512).map(|sector| char::from(sector[0])).collect();
        assert_eq!(letters, expected);
    }

    fn letters(letter: u8, sectors: usize) -> Vec<u8> {
        vec![letter; 512 * sectors]
    }

    #[test]
    fn what_a_flush_covered_stays_and_the_rest_goes() {
        let log = Log::default()
            .record(0, 0, &letters(b'a', 2))
            .record(1, 0, &letters(b'b', 1))
            .record(0, FLUSH, &[])
            .record(3, 0, &letters(b'c', 1))
            .record(4, FUA, &letters(b'd', 1));
        check(&log, Loss::Unflushed, "ab..d");
    }

    #[test]
    fn without_a_flush_nothing_is_sure() {
        let log = Log::default().record(0, 0, &letters(b'a', 1));
        check(&log, Loss::Unflushed, ".");
        check(&Log::default(), Loss::Unflushed, ".");
    }

    #[test]
    fn chance_keeps_some() {
        let mut log = Log::default();
        for sector in 0..8 {
            log = log.record(sector, 0, &letters(b'a', 1));
        }
        check(&log, Loss::Some { seed: 1 }, ".aa.aaa.");
    }

    #[test]
    fn a_discard_and_a_torn_end_of_the_log_change_nothing() {
        let mut log = Log::default()
            .record(0, 0, &letters(b'a', 1))
            .record(0, DISCARD, &[])
            .record(0, FLUSH, &[])
            .record(1, FUA, &letters(b'b', 2));
        log.bytes.truncate(log.bytes.len() - 100);
        check(&log, Loss::Unflushed, "a..");
    }
}
