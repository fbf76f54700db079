//! What fuzzers drive, and plain tests replay: one function per parser of what is on a disk, and
//! the import of whole images.
//!
//! Each takes any bytes, and panics only if something here is wrong. What is refused must be
//! refused with an error; what is accepted must be usable in every way.

use alloc::vec;
use alloc::vec::Vec;

use block::Blocks;

use super::{BenchPool, Image};
use crate::checksum_page;
use crate::codec::{Reader, crc_around, le64, set};
use crate::entity::Entity;
use crate::journal::{self, Copies, GroupHead, Position};
use crate::layout::{BLOCK, DiskLayout, Use};
use crate::record::Record;
use crate::superblock::Superblock;
use crate::{Disk, Id, Place};

const POOL: Id = Id(7);

/// A small pool with something of everything on one disk, or on two.
pub fn sample(disks: usize) -> Option<Image> {
    let sizes = [Blocks(3600), Blocks(2600)];
    let mut stand = BenchPool::open(Image::create(sizes.get(..disks)?).ok()?).ok()?;
    stand.furnish().ok()?;
    Some(stand.image)
}

/// A superblock: what decodes can be written again, and describes a pool inside its disks.
pub fn superblock(input: &[u8]) {
    let mut block = input.to_vec();
    block.resize(BLOCK, 0);
    let _ = Superblock::decode(input);
    set(&mut block, 0, b"HOLDPOOL");
    let crc = crc32c::crc32c(&block[..BLOCK - 4]);
    set(&mut block, BLOCK - 4, &crc.to_le_bytes());
    let Ok(found) = Superblock::decode(&block) else { return };
    let again = Superblock::decode(&found.encode(found.number));
    assert_eq!(again.as_ref(), Ok(&found));
    let Some(disk_layout) = DiskLayout::new(&found.areas, found.cluster) else { return };
    let blocks = u64::from(disk_layout.clusters()) * found.cluster.blocks();
    for block in [0, blocks / 2, blocks - 1] {
        let sum = disk_layout.sum_at(block);
        for place in [disk_layout.place(block), disk_layout.page_place(sum.page, 1)] {
            let disk = found.disks.get(usize::from(place.disk.0));
            assert!(disk.is_some_and(|disk| place.block < disk.blocks.0), "{place:?}");
        }
    }
}

/// Entities, the records of replicas and snapshots: what decodes is encoded to the same bytes.
pub fn entities(input: &[u8]) {
    let mut from = Reader::new(input);
    loop {
        let before = from.rest();
        let Some(entity) = Entity::decode(&mut from) else { return };
        let mut bytes = Vec::new();
        entity.encode(&mut bytes);
        assert_eq!(bytes.len(), entity.encoded_len());
        assert_eq!(before.get(..bytes.len()), Some(&bytes[..]));
    }
}

/// Records of the journal: what decodes comes back as it was.
pub fn records(input: &[u8]) {
    let mut from = Reader::new(input);
    while let Some(record) = Record::decode(&mut from) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(Record::decode(&mut Reader::new(&bytes)), Some(record));
    }
}

/// A page of sums: what decodes comes back as it was.
pub fn sums(input: &[u8]) {
    let _ = checksum_page::decode(POOL, 0, input);
    let mut block = input.to_vec();
    block.resize(BLOCK, 0);
    set(&mut block, 0, b"HSUM");
    set(&mut block, 8, &POOL.0.to_le_bytes());
    let crc = crc_around(&block, 4);
    set(&mut block, 4, &crc.to_le_bytes());
    let number = le64(&block, 24);
    let found = checksum_page::decode(POOL, number, &block);
    assert!(found.is_some(), "a sealed page of this pool is one");
    if let Some(sums) = found {
        let again = checksum_page::encode(POOL, number, &sums);
        assert_eq!(checksum_page::decode(POOL, number, &again), Some(sums));
    }
}

/// Bytes of a block of the ring that the input gives: the fields after the pool id, and a little
/// payload.
const RING_BLOCK: usize = 48;

/// The journal as a ring of blocks. The first bytes say where the checkpoint stands.
pub fn ring(input: &[u8]) {
    let Some((position, rest)) = input.split_first_chunk::<24>() else { return };
    let from = Position {
        number: le64(position, 0),
        group: le64(position, 8),
        incarnation: le64(position, 16),
    };
    if !from.is_near() {
        return; // No checkpoint says so.
    }
    let mut copies = [vec![0; 16 * BLOCK], vec![0; 16 * BLOCK]];
    for (nth, bytes) in rest.chunks_exact(RING_BLOCK).take(32).enumerate() {
        let at = nth / 2 * BLOCK;
        let block = &mut copies[nth % 2][at..at + BLOCK];
        set(block, 0, b"HJNL");
        set(block, 8, &POOL.0.to_le_bytes());
        set(block, 24, bytes);
        let crc = crc_around(block, 4);
        set(block, 4, &crc.to_le_bytes());
    }
    let bytes = [&copies[0][..], &copies[1][..]];
    let found = Copies { pool: POOL, bytes }.find(from);
    assert!(found.incarnation >= from.incarnation);
    assert!(found.groups.len() <= 16, "more groups than blocks");
    let mut here = from;
    for group in &found.groups {
        assert_eq!(Some(group.after.group), here.group.checked_add(1));
        assert!(group.after.number > here.number);
        assert!(group.after.incarnation >= here.incarnation);
        here = group.after;
    }
}

/// Splits bytes into pieces with a length of 16 bits in front.
fn pieces(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    core::iter::from_fn(move || {
        let (len, rest) = input.split_first_chunk::<2>()?;
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*len))));
        input = rest;
        Some(piece)
    })
}

/// Groups of records behind the checkpoint of a pool: each piece of the input is a group.
pub fn replay(sample: &Image, input: &[u8]) -> bool {
    let mut image = sample.clone();
    let Ok(superblock) = image.assemble() else { return false };
    let Some(slot) = newest_slot(&image, &superblock) else { return false };
    image.clear_journal(&superblock);
    let header = image.read(slot, 1);
    let mut here = Position {
        number: le64(&header, 48),
        group: le64(&header, 40),
        incarnation: le64(&header, 32).saturating_add(1),
    };
    for payload in pieces(input).take(16) {
        let mut bytes = Vec::new();
        // Of two in turn, one proves all before it.
        let proved = here.group & !1;
        let head = GroupHead { pool: superblock.mark(), after: here, proved };
        journal::encode_group(head, payload, &mut bytes);
        for copy in [0, 1] {
            let Some(area) = superblock.area(Use::Journal { copy }) else { return false };
            for (number, block) in (here.number..).zip(bytes.chunks_exact(BLOCK)) {
                let block_at = area.start.block + number % area.blocks;
                image.write(Place { block: block_at, ..area.start }, block);
            }
        }
        here.number += journal::group_blocks(payload.len());
        here.group += 1;
    }
    open_and_use(image)
}

fn newest_slot(image: &Image, superblock: &Superblock) -> Option<Place> {
    let start = |slot| superblock.area(Use::Checkpoint { slot, copy: 0 }).map(|area| area.start);
    let generation = |place: &Place| le64(&image.read(*place, 1), 24);
    [start(0)?, start(1)?].into_iter().max_by_key(generation)
}

/// A checkpoint with any sections: each piece of the input is one, its first bytes kind and id.
pub fn checkpoint(sample: &Image, input: &[u8]) -> bool {
    let mut image = sample.clone();
    let Ok(superblock) = image.assemble() else { return false };
    let split = |piece: &'_ [u8]| -> Option<(u32, u32, Vec<u8>)> {
        let ([kind, id], bytes) = piece.split_first_chunk::<2>()?;
        Some((u32::from(*kind), u32::from(*id), bytes.to_vec()))
    };
    let sections: Vec<_> = pieces(input).take(32).filter_map(split).collect();
    let sections: Vec<_> =
        sections.iter().map(|(kind, id, bytes)| (*kind, *id, &bytes[..])).collect();
    image.set_checkpoint(&superblock, &sections);
    open_and_use(image)
}

/// Bytes in front of a change of an image: where, and how many bytes.
const PATCH: usize = 5;

/// An image with any changes: area 1, block 1, offset 2, length 1, bytes. The first byte of the
/// input says whether the checksums are made right.
pub fn image(sample: &Image, input: &[u8]) -> bool {
    patched(sample, input).is_some_and(open_and_use)
}

/// The image that [`image`] opens.
pub fn patched(sample: &Image, input: &[u8]) -> Option<Image> {
    let mut image = sample.clone();
    let superblock = image.assemble().ok()?;
    let (how, mut rest) = input.split_first()?;
    while let Some((head, after)) = rest.split_first_chunk::<PATCH>() {
        let [area, block, low, high, len] = *head;
        let (bytes, after) = after.split_at(after.len().min(usize::from(len)));
        rest = after;
        let offset = usize::from(u16::from_le_bytes([low, high])) % BLOCK;
        for start in places(&superblock, area) {
            let place = Place { block: start.block + u64::from(block), ..start };
            image.patch(place, offset, bytes);
        }
    }
    if how & 1 == 0 {
        image.seal();
    }
    Some(image)
}

/// Where an area begins; with all copies unless the high bit is set.
fn places(superblock: &Superblock, area: u8) -> Vec<Place> {
    let starts = |wanted: fn(&Use) -> bool| {
        let areas = superblock.areas.iter().filter(move |area| wanted(&area.usage));
        areas.map(|area| area.start).collect::<Vec<_>>()
    };
    let mut found = match area & 7 {
        0 => vec![
            Place { disk: Disk(0), block: 0 },
            Place { disk: Disk(0), block: 256 },
            Place { disk: Disk(1), block: 0 },
            Place { disk: Disk(1), block: 256 },
        ],
        1 | 2 => starts(|usage| matches!(usage, Use::Journal { .. })),
        3 | 4 => starts(|usage| matches!(usage, Use::Checkpoint { slot: 0, .. })),
        5 | 6 => starts(|usage| matches!(usage, Use::Checkpoint { slot: 1, .. })),
        _ => starts(|usage| matches!(usage, Use::Data { .. })),
    };
    if area & 0x80 != 0 {
        found.truncate(1);
    }
    found
}

/// A pool that opens can be used in every way, and opens again afterwards. Answers whether it
/// opened.
fn open_and_use(image: Image) -> bool {
    let Ok(mut stand) = BenchPool::open_on(image, crate::TornWrites::Possible) else {
        return false;
    };
    stand.use_up();
    let broken = stand.pool.health().broken;
    if stand.export().is_ok() {
        assert!(!broken);
        let again = BenchPool::open(stand.image);
        assert!(again.is_ok(), "{:?}", again.err());
    }
    true
}
