//! Every codec gives back what it was given, and survives any bytes.

use std::vec;
use std::vec::Vec;

use block::Blocks;
use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use crate::checksum_page;
use crate::codec::Reader;
use crate::entity::{Entity, EntityKind, Id, Label, LayerId};
use crate::journal::{self, Copies, GroupHead, Position};
use crate::layout::{self, BLOCK, Cluster, ClusterSize, Disk, DiskLayout};
use crate::record::{FirstWrite, Record};
use crate::superblock::{Member, NotSuper, Superblock};

const POOL: Id = Id(0x1234_5678_9abc_def0_1122_3344_5566_7788);

fn superblock(sizes: &[u64]) -> Superblock {
    let disks: Vec<_> = sizes.iter().map(|blocks| Blocks(*blocks)).collect();
    let member =
        |(nth, blocks): (usize, &Blocks)| Member { id: Id(100 + nth as u128), blocks: *blocks };
    Superblock {
        pool: POOL,
        name: "disk pool one".into(),
        cluster: ClusterSize::DEFAULT,
        generation: 7,
        compatible: 1 << 40,
        number: Disk(0),
        disks: disks.iter().enumerate().map(member).collect(),
        areas: layout::plan(&disks, ClusterSize::DEFAULT).unwrap(),
    }
}

#[test]
fn superblocks_come_back_as_written() {
    for sizes in [&[10_000][..], &[10_000, 20_000], &[2_684_354_560, 50_000, 9_000]] {
        let written = superblock(sizes);
        for number in 0..sizes.len() {
            let number = Disk(number as u16);
            let expected = Superblock { number, ..written.clone() };
            assert_eq!(Superblock::decode(&written.encode(number)), Ok(expected));
        }
    }
}

#[test]
fn any_flipped_bit_of_a_superblock_is_seen() {
    let block = superblock(&[10_000]).encode(Disk(0));
    for bit in 0..BLOCK * 8 {
        let mut block = block.clone();
        block[bit / 8] ^= 1 << (bit % 8);
        let found = Superblock::decode(&block);
        assert!(matches!(found, Err(NotSuper::Foreign | NotSuper::Damaged)), "bit {bit}");
    }
}

fn resealed(mut block: Vec<u8>, at: usize, byte: u8) -> Result<Superblock, NotSuper> {
    block[at] = byte;
    let crc = crc32c::crc32c(&block[..4092]);
    block[4092..].copy_from_slice(&crc.to_le_bytes());
    Superblock::decode(&block)
}

#[test]
fn another_format_and_unknown_features_are_refused_by_name() {
    let block = superblock(&[10_000]).encode(Disk(0));
    for version in [2, 4] {
        let refused = Err(NotSuper::Version { version: u32::from(version) });
        assert_eq!(resealed(block.clone(), 8, version), refused);
    }
    assert_eq!(resealed(block.clone(), 57, 1), Err(NotSuper::Features { features: 256 }));
    assert_eq!(resealed(block, 65, 1).unwrap().compatible, (1 << 40) + 256);
}

#[test]
fn every_cluster_and_page_has_a_place_of_its_own() {
    let plan = layout::plan(&[Blocks(9_000), Blocks(8_500)], ClusterSize::DEFAULT).unwrap();
    let disk_layout = DiskLayout::new(&plan, ClusterSize::DEFAULT).unwrap();
    let mut places = std::collections::BTreeSet::new();
    for block in 0..u64::from(disk_layout.clusters()) * 256 {
        assert!(places.insert(disk_layout.place(block)));
        let sum = disk_layout.sum_at(block);
        for copy in [0, 1] {
            let fresh = places.insert(disk_layout.page_place(sum.page, copy));
            assert_eq!(fresh, sum.slot == 0);
        }
    }
}

fn entities() -> impl Strategy<Value = Entity> {
    let ids = || vec_of(1u128.., 0..5).prop_map(|ids| ids.into_iter().map(Id).collect::<Vec<_>>());
    let bytes = || vec_of(any::<u8>(), 0..100);
    let label = (any::<[u64; 2]>(), any::<[u128; 2]>(), ids(), ids(), bytes()).prop_map(
        |([epoch, generation], [volume, transaction], set, in_sync, opaque)| Label {
            volume: Id(volume),
            epoch,
            generation,
            transaction: Id(transaction),
            set,
            in_sync,
            opaque,
        },
    );
    let flags = any::<[bool; 2]>();
    let strings = [bytes(), bytes(), bytes()];
    (1u128.., any::<u128>(), 1u32.., flags, 1u64.., any::<u64>(), label, strings).prop_map(
        |(
            id,
            origin,
            layer,
            [snapshot, thick],
            size,
            created,
            label,
            [key, share, spec_backup],
        )| Entity {
            id: Id(id),
            origin: Id(origin),
            kind: if snapshot { EntityKind::Snapshot } else { EntityKind::Replica },
            layer: LayerId(layer),
            size: Blocks(size),
            thick,
            created,
            label,
            key,
            share,
            spec_backup,
        },
    )
}

fn records() -> impl Strategy<Value = Record> {
    let first = (any::<[u32; 3]>(), any::<u16>(), vec_of(any::<u32>(), 1..600));
    prop_oneof![
        first.prop_map(|([layer, logical, cluster], first, crcs)| Record::FirstWrite {
            at: FirstWrite { layer: LayerId(layer), logical, cluster: Cluster(cluster), first },
            crcs,
        }),
        any::<(u32, u32, u32)>().prop_map(|(layer, start, len)| Record::Discard {
            layer: LayerId(layer),
            start: start.into(),
            len: len.into(),
        }),
        any::<u32>().prop_map(|region| Record::Dirty { region }),
        entities().prop_map(Record::Create),
        entities().prop_map(Record::Update),
        (any::<u128>(), any::<u32>(), entities()).prop_map(|(source, top, entity)| {
            Record::Snapshot { source: Id(source), top: LayerId(top), entity }
        }),
        any::<u128>().prop_map(|id| Record::Delete(Id(id))),
        any::<u32>().prop_map(|layer| Record::Collapse(LayerId(layer))),
        any::<(u32, u32)>().prop_map(|(layer, last)| Record::Move { layer: LayerId(layer), last }),
        (0..1u64 << 60, vec_of(any::<u32>(), 1..600))
            .prop_map(|(first, crcs)| Record::Overwrite { first, crcs }),
        any::<(u128, u64)>()
            .prop_map(|(id, size)| Record::Resize { id: Id(id), size: Blocks(size) }),
    ]
}

proptest! {
    #[test]
    fn records_come_back_as_written(records in vec_of(records(), 0..20)) {
        let mut bytes = Vec::new();
        for record in &records {
            record.encode(&mut bytes);
        }
        let mut from = Reader::new(&bytes);
        for record in records {
            prop_assert_eq!(Record::decode(&mut from), Some(record));
        }
        prop_assert!(from.is_empty());
    }

    #[test]
    fn a_ring_gives_back_its_groups(
        lens in vec_of(0usize..20_000, 1..12), start in 0u64..1000, lost in any::<u64>(),
    ) {
        let mut ring = [vec![0; 64 * BLOCK], vec![0; 64 * BLOCK]];
        let from = Position { number: start, group: 9, incarnation: 3 };
        let mut here = from;
        let mut written = Vec::new();
        for (nth, len) in lens.iter().enumerate() {
            let payload = vec![nth as u8; *len];
            let mut blocks = Vec::new();
            let proved = here.group;
            let head = GroupHead { pool: POOL, after: here, proved };
            journal::encode_group(head, &payload, &mut blocks);
            for (at, block) in (here.number..).zip(blocks.chunks_exact(BLOCK)) {
                let at = (at % 64) as usize * BLOCK;
                // Each block is lost in one of the copies.
                let copy = (lost >> (at / BLOCK)) & 1;
                ring[copy as usize][at..at + BLOCK].copy_from_slice(block);
            }
            here.number += journal::group_blocks(*len);
            here.group += 1;
            written.push(journal::Group { payload, after: here, proved });
        }
        let copies = Copies { pool: POOL, bytes: [&ring[0], &ring[1]] };
        let found = copies.find(from);
        if here.number - start <= 64 {
            prop_assert_eq!(found.groups, written);
            prop_assert!(!found.gap);
        } else {
            prop_assert!(found.gap);
        }
    }

    #[test]
    fn sums_pages_come_back_as_written(seed in any::<u32>(), number in any::<u64>()) {
        let mut sums = [seed; checksum_page::SUMS];
        sums.iter_mut().enumerate().for_each(|(nth, sum)| *sum ^= nth as u32);
        let block = checksum_page::encode(POOL, number, &sums);
        prop_assert_eq!(*checksum_page::decode(POOL, number, &block).unwrap(), sums);
        prop_assert!(checksum_page::decode(POOL, number ^ 1, &block).is_none());
        prop_assert!(checksum_page::decode(Id(1), number, &block).is_none());
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(
        bytes in vec_of(any::<u8>(), 0..300),
        mut block in vec_of(any::<u8>(), BLOCK),
        kind in 0u8..12,
    ) {
        let _ = Entity::decode(&mut Reader::new(&bytes));
        let mut record = vec![kind, 0, (bytes.len() & 0xfc) as u8, (bytes.len() >> 8) as u8];
        record.extend_from_slice(&bytes);
        let _ = Record::decode(&mut Reader::new(&record));
        let _ = Record::decode(&mut Reader::new(&bytes));
        let _ = Superblock::decode(&block);
        block[..8].copy_from_slice(b"HOLDPOOL");
        block[8..12].copy_from_slice(&1u32.to_le_bytes());
        block[12..16].copy_from_slice(&256u32.to_le_bytes());
        block[56..64].fill(0);
        block[74..78].copy_from_slice(&[1, 0, 7, 0]);
        let _ = resealed(block.clone(), 80, 0);
        let ring = [&block[..], &block[..]];
        let from = Position { number: 0, group: 0, incarnation: 0 };
        Copies { pool: POOL, bytes: ring }.find(from);
        let _ = checksum_page::decode(POOL, 0, &block);
    }
}
