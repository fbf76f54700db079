//! Disks in memory, and the checksums of what is on them.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use block::{Blocks, Bytes};

use crate::casts::{count, index, low16};
use crate::codec::{crc_around, le32, le64, set};
use crate::layout::{BLOCK, Use};
use crate::{
    BadPool, ClusterSize, Disk, Id, Member, NewPool, Place, Probe, Step, Superblock, create,
};

/// The disks of a pool; what was never written is zeros. Copies share their blocks: a fuzzer makes
/// many.
#[derive(Clone, Debug)]
pub struct Image {
    blocks: BTreeMap<Place, Arc<[u8]>>,
    sizes: Vec<Blocks>,
}

/// Offsets in the header of a checkpoint and in an entry of its directory, as in
/// docs/format/pool.md.
mod at {
    pub(super) const BODY: usize = 56;
    pub(super) const DIRECTORY: usize = 64;
    pub(super) const SECTIONS: usize = 72;
    pub(super) const DIRECTORY_CRC: usize = 76;
    pub(super) const META: usize = 80;
    pub(super) const CRC: usize = 4092;
    pub(super) const ENTRY: usize = 32;
    /// An entry of an index.
    pub(super) const PAGE: usize = 32;
    pub(super) const PAGE_CRC: usize = 12;
}

/// Kinds of what a checkpoint holds: pages of maps, in front, and the index of a map.
const PAGES: u32 = 3;
const INDEX: u32 = 4;

/// How the structures that have a checksum of their own begin.
const KINDS: [&[u8]; 4] = [b"HOLDPOOL", b"HJNL", b"HSUM", b"HOLDCKPT"];

impl Image {
    /// A new pool on disks of these sizes, with clusters of 256 KiB.
    pub fn create(sizes: &[Blocks]) -> Result<Image, BadPool> {
        let member = |(nth, blocks): (u128, &Blocks)| Member { id: Id(50 + nth), blocks: *blocks };
        let new = NewPool {
            id: Id(7),
            name: String::from("image"),
            cluster: ClusterSize::of_bytes(Bytes::kib(256)).unwrap_or(ClusterSize::DEFAULT),
            disks: (0..).zip(sizes).map(member).collect(),
        };
        let mut image = Image { blocks: BTreeMap::new(), sizes: sizes.to_vec() };
        for step in create(&new)? {
            if let Step::Write { place, bytes } = step {
                image.write(place, &bytes);
            }
        }
        Ok(image)
    }

    /// Every block that was written, of every disk.
    pub fn blocks(&self) -> impl Iterator<Item = (Place, &[u8])> {
        self.blocks.iter().map(|(place, bytes)| (*place, &bytes[..]))
    }

    /// The sizes of the disks.
    pub fn sizes(&self) -> &[Blocks] {
        &self.sizes
    }

    /// Blocks from a place on; those beyond the end of the disk are zeros.
    pub fn read(&self, place: Place, blocks: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(index(u64::from(blocks)) * BLOCK);
        for nth in 0..u64::from(blocks) {
            let at = Place { block: place.block.saturating_add(nth), ..place };
            match self.blocks.get(&at) {
                Some(bytes) => out.extend_from_slice(bytes),
                None => out.resize(out.len() + BLOCK, 0),
            }
        }
        out
    }

    /// Writes whole blocks.
    pub fn write(&mut self, place: Place, bytes: &[u8]) {
        for (nth, block) in (0..).zip(bytes.chunks_exact(BLOCK)) {
            let at = Place { block: place.block.saturating_add(nth), ..place };
            let inside =
                self.sizes.get(usize::from(at.disk.0)).is_some_and(|size| at.block < size.0);
            assert!(inside, "{at:?} is not on the disks");
            self.blocks.insert(at, Arc::from(block));
        }
    }

    /// Changes bytes of a block; what reaches beyond it is left out.
    pub fn patch(&mut self, place: Place, offset: usize, bytes: &[u8]) {
        let inside =
            self.sizes.get(usize::from(place.disk.0)).is_some_and(|size| place.block < size.0);
        if inside {
            let block = self.blocks.entry(place).or_insert_with(|| Arc::from([0; BLOCK]));
            for (to, from) in Arc::make_mut(block).iter_mut().skip(offset).zip(bytes) {
                *to = *from;
            }
        }
    }

    /// The superblock and the order of the disks, as an import finds them.
    pub fn assemble(&self) -> Result<Superblock, BadPool> {
        let super_of = |disk, block| self.read(Place { disk: Disk(disk), block }, 1);
        let supers: Vec<[Vec<u8>; 2]> = (0..low16(count(self.sizes.len())))
            .map(|disk| [0, 256].map(|at| super_of(disk, at)))
            .collect();
        let probe =
            |([a, b], blocks): (&'_ [Vec<u8>; 2], &Blocks)| (*blocks, [a.clone(), b.clone()]);
        let found: Vec<_> = supers.iter().zip(&self.sizes).map(probe).collect();
        let probes: Vec<Probe<'_>> = found
            .iter()
            .map(|(blocks, [a, b])| Probe { blocks: *blocks, supers: [a, b] })
            .collect();
        crate::assemble(&probes).map(|(superblock, _)| superblock)
    }

    /// Gives every structure on the disks the checksum of the bytes that it has now.
    pub fn seal(&mut self) {
        let places: Vec<Place> = self.blocks.keys().copied().collect();
        for place in places {
            let Some(shared) = self.blocks.get_mut(&place) else { continue };
            if !KINDS.iter().any(|kind| shared.starts_with(kind)) {
                continue;
            }
            let block = Arc::make_mut(shared);
            if block.starts_with(b"HOLDPOOL") {
                seal_at(block, at::CRC);
            } else if block.starts_with(b"HJNL") || block.starts_with(b"HSUM") {
                let crc = crc_around(block, 4);
                set(block, 4, &crc.to_le_bytes());
            } else {
                self.seal_checkpoint(place);
            }
        }
    }

    /// Sections, directory and header of a checkpoint, as far as they make sense.
    fn seal_checkpoint(&mut self, place: Place) {
        let mut header = self.read(place, 1);
        let (body, directory) = (le64(&header, at::BODY), le64(&header, at::DIRECTORY));
        let blocks = body.div_ceil(count(BLOCK)).min(64);
        let start = Place { block: place.block + 1, ..place };
        let mut bytes = self.read(start, crate::casts::low32(blocks));
        let sections = usize::try_from(le32(&header, at::SECTIONS)).unwrap_or(0);
        let from = index(directory.min(count(bytes.len())));
        let to = index(body.min(count(bytes.len()))).max(from);
        for nth in 0..sections.min((to - from) / at::ENTRY) {
            let entry = from + nth * at::ENTRY;
            let (start, len) = (le64(&bytes, entry + 8), le64(&bytes, entry + 16));
            let end = start.checked_add(len).map(index);
            let is_index = le32(&bytes, entry) == INDEX;
            if let Some(range) = end.map(|end| index(start)..end).filter(|_| is_index) {
                seal_index(&mut bytes, range);
            }
            let crc = end.and_then(|end| bytes.get(index(start)..end)).map(crc32c::crc32c);
            if let Some(crc) = crc {
                set(&mut bytes, entry + 24, &crc.to_le_bytes());
            }
        }
        let crc = crc32c::crc32c(&bytes[from..to]);
        set(&mut header, at::DIRECTORY_CRC, &crc.to_le_bytes());
        seal_at(&mut header, at::CRC);
        for (nth, block) in (1..).zip(bytes.chunks_exact(BLOCK)) {
            self.patch(Place { block: place.block + nth, ..place }, 0, block);
        }
        self.patch(place, 0, &header);
    }

    /// Takes every block out of the journal.
    pub fn clear_journal(&mut self, superblock: &Superblock) {
        for copy in [0, 1] {
            let Some(area) = superblock.area(Use::Journal { copy }) else { continue };
            for block in area.start.block..area.start.block + area.blocks {
                self.blocks.remove(&Place { block, ..area.start });
            }
        }
    }

    /// Puts a checkpoint with these sections (kind, id, bytes) into slot 0, as the newest, and
    /// nothing into the journal. Those of kind 3 are pages of maps.
    pub fn set_checkpoint(&mut self, superblock: &Superblock, sections: &[(u32, u32, &[u8])]) {
        self.clear_journal(superblock);
        let (mut body, mut directory) = (Vec::new(), Vec::new());
        let is_page = |(kind, ..): &&(u32, u32, &[u8])| *kind == PAGES;
        sections.iter().filter(is_page).for_each(|(_, _, bytes)| body.extend_from_slice(bytes));
        body.resize(body.len().next_multiple_of(BLOCK), 0);
        let meta = count(body.len());
        for (kind, id, bytes) in sections.iter().filter(|section| !is_page(section)) {
            let (start, len) = (count(body.len()), count(bytes.len()));
            body.extend_from_slice(bytes);
            let numbers = [*kind, *id].map(u32::to_le_bytes).concat();
            directory.extend_from_slice(&numbers);
            directory.extend_from_slice(&[start, len].map(u64::to_le_bytes).concat());
            directory.extend_from_slice(&[0; 8]);
        }
        let start = count(body.len());
        body.append(&mut directory);
        let len = count(body.len());
        body.resize(body.len().next_multiple_of(BLOCK), 0);
        for copy in [0, 1] {
            let Some(area) = superblock.area(Use::Checkpoint { slot: 0, copy }) else { continue };
            let mut header = self.read(area.start, 1);
            let generation = 1u64 << 40;
            set(&mut header, 24, &generation.to_le_bytes());
            set(&mut header, at::BODY, &len.to_le_bytes());
            set(&mut header, at::DIRECTORY, &start.to_le_bytes());
            set(&mut header, at::META, &meta.to_le_bytes());
            let number = sections.len() - sections.iter().filter(is_page).count();
            let number = crate::casts::low32(count(number));
            set(&mut header, at::SECTIONS, &number.to_le_bytes());
            self.patch(area.start, 0, &header);
            for (nth, block) in (1..area.blocks).zip(body.chunks_exact(BLOCK)) {
                let place = Place { block: area.start.block + nth, ..area.start };
                self.patch(place, 0, block);
            }
        }
        self.seal();
    }
}

/// Gives the pages that an index names the checksum of the bytes that they have.
fn seal_index(body: &mut [u8], index_at: core::ops::Range<usize>) {
    for entry in index_at.step_by(at::PAGE) {
        if body.len() < entry + at::PAGE {
            break;
        }
        let start = index(u64::from(le32(body, entry + 4)) * 8);
        let end = start + index(u64::from(le32(body, entry + 8)));
        if let Some(crc) = body.get(start..end).map(crc32c::crc32c) {
            set(body, entry + at::PAGE_CRC, &crc.to_le_bytes());
        }
    }
}

fn seal_at(block: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&block[..at]);
    set(block, at, &crc.to_le_bytes());
}
