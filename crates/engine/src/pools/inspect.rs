//! Looking at pools without opening them for use: nothing is written, no reactor is needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use block::Blocks;
use pool::{Effect, Id, Limits, Place, Pool, Probe, Recovery, Superblock, super_offset};
use reactor::PAGE;
use sha2::{Digest, Sha256};

use super::{PoolError, PoolStatus};
use crate::entropy;

/// An id that nobody else has.
pub fn new_id() -> io::Result<Id> {
    let mut bytes = [0; 16];
    entropy::fill(&mut bytes)?;
    Ok(Id(u128::from_be_bytes(bytes)))
}

/// The id of a replica that is only known by its name: always the same for the same name.
pub fn id_of_name(name: &str) -> Id {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(Sha256::digest(name.as_bytes())).for_each(|(to, from)| *to = from);
    Id(u128::from_be_bytes(bytes))
}

/// The superblock on a disk, if there is a good one.
pub fn superblock_of(path: &Path) -> Result<Option<Superblock>, PoolError> {
    let disk = Disk::open(path)?;
    if disk.blocks.0 <= super_offset(1) / 4096 {
        return Ok(None);
    }
    let supers = disk.supers()?;
    let probe = Probe { blocks: disk.blocks, supers: [&supers[0], &supers[1]] };
    Ok(probe.superblock().ok())
}

/// How the pool on these disks is. Nobody may use it meanwhile.
pub fn inspect(paths: &[PathBuf]) -> Result<PoolStatus, PoolError> {
    let disks: Vec<Disk> = paths.iter().map(|path| Disk::open(path)).collect::<Result<_, _>>()?;
    for disk in &disks {
        let free =
            rustix::fs::flock(&disk.file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        free.map_err(|_| PoolError::InUse { path: disk.path.clone() })?;
    }
    let supers: Vec<_> = disks.iter().map(Disk::supers).collect::<Result<_, _>>()?;
    let probe = |(disk, [a, b]): (&Disk, &[Vec<u8>; 2])| -> (Blocks, [Vec<u8>; 2]) {
        (disk.blocks, [a.clone(), b.clone()])
    };
    let found: Vec<_> = disks.iter().zip(&supers).map(probe).collect();
    let probes: Vec<Probe<'_>> =
        found.iter().map(|(blocks, [a, b])| Probe { blocks: *blocks, supers: [a, b] }).collect();
    let (superblock, order) = pool::assemble(&probes)?;
    let disks: Vec<&Disk> = order.iter().filter_map(|at| disks.get(*at)).collect();
    let pool = recover(superblock, &disks)?;
    let sizes = disks.iter().map(|disk| (disk.path.clone(), disk.blocks)).collect();
    Ok(super::status_of(&pool, sizes, None))
}

fn recover(superblock: Superblock, disks: &[&Disk]) -> Result<Box<Pool>, PoolError> {
    let mut recovery = Recovery::new(superblock, Limits::default())?;
    while let Some(effect) = recovery.poll() {
        match effect {
            Effect::Read { io, place, blocks, .. } => {
                let disk = disks.get(usize::from(place.disk.0));
                let bytes = disk.and_then(|disk| disk.read(place, blocks).ok());
                recovery.complete(io, bytes.as_deref().ok_or(pool::DiskFailed));
            }
            // Nothing was written that would have to last.
            Effect::Flush { io, .. } => recovery.complete(io, Ok(&[])),
            _ => {}
        }
    }
    recovery.take().ok_or(PoolError::NotFound)?.map_err(PoolError::from)
}

struct Disk {
    path: PathBuf,
    file: File,
    blocks: Blocks,
}

impl Disk {
    fn open(path: &Path) -> Result<Disk, PoolError> {
        let failed = |source| PoolError::Open { path: path.into(), source };
        let mut file = File::open(path).map_err(failed)?;
        // The size of a block device is where its end is.
        let bytes = io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(failed)?;
        Ok(Disk { path: path.into(), file, blocks: Blocks(bytes / 4096) })
    }

    fn supers(&self) -> Result<[Vec<u8>; 2], PoolError> {
        let read = |copy| {
            let place = Place { disk: pool::Disk(0), block: super_offset(copy) / 4096 };
            let failed = |source| PoolError::Disk { path: self.path.clone(), source };
            self.read(place, 1).map_err(failed)
        };
        Ok([read(0)?, read(1)?])
    }

    fn read(&self, place: Place, blocks: u32) -> io::Result<Vec<u8>> {
        let len = usize::try_from(blocks).unwrap_or(0).saturating_mul(PAGE);
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, place.block.saturating_mul(4096))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pool::testing::{Image, fuzz};
    use proptest::prelude::*;

    /// The disks of an image as files.
    fn files(image: &Image) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (nth, Blocks(blocks)) in image.sizes().iter().enumerate() {
            let path = dir.path().join(nth.to_string());
            let file = File::create(&path).unwrap();
            file.set_len(blocks * 4096).unwrap();
            for (place, bytes) in image.blocks().filter(|(at, _)| usize::from(at.disk.0) == nth) {
                file.write_all_at(bytes, place.block * 4096).unwrap();
            }
            paths.push(path);
        }
        (dir, paths)
    }

    #[test]
    fn a_pool_is_shown_as_it_is() {
        let (_dir, paths) = files(&fuzz::sample(2).unwrap());
        let status = inspect(&paths).unwrap();
        assert_eq!((status.name.as_str(), status.disks.len()), ("image", 2));
        assert_eq!(status.entities.len(), 5);
        assert_eq!(superblock_of(&paths[1]).unwrap().unwrap().pool, status.id);
        // One of two disks is not a pool.
        assert!(matches!(inspect(&paths[..1]), Err(PoolError::Bad(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever is on a disk, and wherever it ends, looking at it does no harm.
        #[test]
        fn any_disk_is_looked_at_without_harm(
            changes in prop::collection::vec(any::<u8>(), 0..60),
            sealed: bool,
            end in prop::option::of(0u64..3600 * 4096),
        ) {
            let sample = fuzz::sample(1).unwrap();
            let input = [&[u8::from(!sealed)][..], &changes].concat();
            let (_dir, paths) = files(&fuzz::patched(&sample, &input).unwrap());
            if let Some(end) = end {
                File::options().write(true).open(&paths[0]).unwrap().set_len(end).unwrap();
            }
            let _ = superblock_of(&paths[0]);
            if let Ok(status) = inspect(&paths) {
                prop_assert_eq!(status.name.as_str(), "image");
            }
        }
    }
}
