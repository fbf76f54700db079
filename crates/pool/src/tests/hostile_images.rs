//! Bytes that nobody should have written, with right checksums: refused with an error or usable in
//! every way, never a panic. The fuzzers' corpus, replayed and changed without a fuzzer.

use std::string::{String, ToString};
use std::sync::LazyLock;
use std::vec;
use std::vec::Vec;

use block::testing::corpus;

use super::crash::seeds as numbers;
use super::disk::Random;
use crate::checksum_page;
use crate::codec::{le16, le32, le64, nth_block};
use crate::entity::{Entity, Id, LayerId};
use crate::journal::{self, GroupHead, Position};
use crate::layout::{BLOCK, Cluster, Use};
use crate::record::{FirstWrite, Record};
use crate::testing::{Image, fuzz};
use crate::{EntityKind, Place, Superblock};

/// Two pools: on one disk, and on two.
static SAMPLES: LazyLock<[Image; 2]> =
    LazyLock::new(|| [1, 2].map(|disks| fuzz::sample(disks).expect("a pool")));

type Drive = fn(&[u8]) -> bool;

fn done(drive: impl Fn(&[u8]), input: &[u8]) -> bool {
    drive(input);
    true
}

/// Fuzz targets; each says whether it took the input for good, where it can tell.
const TARGETS: &[(&str, Drive)] = &[
    ("pool_superblock", |input| done(fuzz::superblock, input)),
    ("pool_entities", |input| done(fuzz::entities, input)),
    ("pool_records", |input| done(fuzz::records, input)),
    ("pool_sums", |input| done(fuzz::sums, input)),
    ("pool_ring", |input| done(fuzz::ring, input)),
    ("pool_replay", |input| fuzz::replay(&SAMPLES[0], input)),
    ("pool_checkpoint", |input| fuzz::checkpoint(&SAMPLES[0], input)),
    ("pool_image", |input| fuzz::image(&SAMPLES[0], input)),
    ("pool_image_two", |input| fuzz::image(&SAMPLES[1], input)),
];

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// Puts lengths in front, as the targets want it.
fn pieces(pieces: &[Vec<u8>]) -> Vec<u8> {
    let piece = |bytes: &Vec<u8>| [&(bytes.len() as u16).to_le_bytes()[..], bytes].concat();
    pieces.iter().flat_map(piece).collect()
}

fn table(image: &Image) -> Superblock {
    image.assemble().expect("a pool")
}

fn start(image: &Image, usage: Use) -> Place {
    table(image).area(usage).expect("an area").start
}

/// Block of the newest checkpoint's header.
fn newest(image: &Image) -> Place {
    let slots = [0, 1].map(|slot| start(image, Use::Checkpoint { slot, copy: 0 }));
    slots.into_iter().max_by_key(|place| le64(&image.read(*place, 1), 24)).unwrap()
}

/// Sections of the newest checkpoint: kind, id, bytes. The pages of maps count as one, of kind 3.
fn sections(image: &Image) -> Vec<(u8, u8, Vec<u8>)> {
    let place = newest(image);
    let header = image.read(place, 1);
    let (body, directory) = (le64(&header, 56), le64(&header, 64) as usize);
    let after = Place { block: place.block + 1, ..place };
    let bytes = image.read(after, body.div_ceil(4096) as u32);
    let entries = bytes[directory..body as usize].chunks_exact(32);
    let sections = entries.map(|entry| {
        let (at, len) = (le64(entry, 8) as usize, le64(entry, 16) as usize);
        (entry[0], entry[4], bytes[at..at + len].to_vec())
    });
    let pages = (3, 0, bytes[..le64(&header, 80) as usize].to_vec());
    core::iter::once(pages).chain(sections).collect()
}

/// Blocks of the journal that are in use, of copy 0.
fn journal_blocks(image: &Image) -> Vec<Vec<u8>> {
    let start = start(image, Use::Journal { copy: 0 });
    let ring = image.read(start, 64);
    (0..64)
        .map(|number| nth_block(&ring, number).to_vec())
        .filter(|block| block.starts_with(b"HJNL"))
        .collect()
}

/// Payloads of the groups behind the checkpoint.
fn payloads(image: &Image) -> Vec<Vec<u8>> {
    let header = image.read(newest(image), 1);
    let first = le64(&header, 48);
    let mut blocks = journal_blocks(image);
    blocks.retain(|block| le64(block, 24) >= first);
    blocks.sort_by_key(|block| le64(block, 24));
    let mut groups: Vec<Vec<u8>> = Vec::new();
    for block in &blocks {
        if le16(block, 48) == 0 {
            groups.push(Vec::new());
        }
        let used = le32(block, 52) as usize;
        groups.last_mut().unwrap().extend_from_slice(&block[64..64 + used]);
    }
    groups
}

fn sample_entities() -> Vec<Entity> {
    let sections = sections(&SAMPLES[0]);
    let pool = &sections.iter().find(|(kind, ..)| *kind == 1).unwrap().2;
    let layers = le32(pool, 8) as usize;
    let mut from = crate::codec::Reader::new(&pool[28 + 24 * layers..]);
    core::iter::from_fn(|| Entity::decode(&mut from)).collect()
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        record.encode(&mut bytes);
    }
    bytes
}

/// One of every kind of record, in an order that the sample takes.
fn every_record() -> Vec<Record> {
    let mut entity = sample_entities().remove(0);
    (entity.id, entity.layer, entity.origin) = (Id(60), LayerId(40), Id::NONE);
    let mut taken = entity.clone();
    (taken.id, taken.kind) = (Id(61), EntityKind::Snapshot);
    let at = FirstWrite { layer: LayerId(41), logical: 1, cluster: Cluster(12), first: 3 };
    vec![
        Record::Create(entity.clone()),
        Record::Snapshot { source: Id(60), top: LayerId(41), entity: taken },
        Record::FirstWrite { at, crcs: vec![1, 2, 3] },
        Record::Discard { layer: LayerId(41), start: 66, len: 2 },
        Record::Dirty { region: 1 },
        Record::Overwrite { first: 12 * 64 + 3, crcs: vec![4, 5] },
        Record::Resize { id: Id(60), size: block::Blocks(150) },
        Record::Delete(Id(61)),
        Record::Move { layer: LayerId(40), last: 7 },
        Record::Collapse(LayerId(40)),
        Record::Update(Entity {
            layer: LayerId(41),
            share: vec![5],
            spec_backup: vec![6; 7],
            ..entity
        }),
    ]
}

fn ring_seed(groups: &[usize]) -> Vec<u8> {
    let from = Position { number: 5, group: 3, incarnation: 2 };
    let mut here = from;
    let mut seed = [5u64, 3, 2].map(u64::to_le_bytes).concat();
    seed.resize(24 + 32 * 48, 0);
    for len in groups {
        let mut blocks = Vec::new();
        let head = GroupHead { pool: Id(7), after: here, proved: here.group };
        journal::encode_group(head, &vec![1; *len], &mut blocks);
        for (number, block) in (here.number..).zip(blocks.chunks_exact(BLOCK)) {
            for copy in [0, 1] {
                let at = 24 + ((number % 16) as usize * 2 + copy) * 48;
                seed[at..at + 48].copy_from_slice(&block[24..72]);
            }
        }
        here.number += journal::group_blocks(*len);
        here.group += 1;
    }
    seed
}

/// A change of an image: area, block, offset, bytes.
fn patch(area: u8, block: u8, offset: u16, bytes: &[u8]) -> Vec<u8> {
    [&[area, block][..], &offset.to_le_bytes(), &[bytes.len() as u8], bytes].concat()
}

fn image_seeds() -> Vec<(String, Vec<u8>)> {
    let sealed = |patches: &[Vec<u8>]| [&[0][..], &patches.concat()].concat();
    let flipped = |patches: &[Vec<u8>]| [&[1][..], &patches.concat()].concat();
    vec![
        ("as_it_is".into(), sealed(&[])),
        ("a_journal_block_flipped".into(), flipped(&[patch(1, 9, 100, &[1, 2])])),
        ("one_copy_flipped".into(), flipped(&[patch(0x83, 1, 7, &[9]), patch(0x85, 1, 7, &[9])])),
        (
            "far_positions".into(),
            sealed(&[patch(3, 0, 32, &[255; 24]), patch(5, 0, 32, &[255; 24])]),
        ),
        ("a_huge_journal".into(), sealed(&[patch(0, 0, 784, &[0, 4, 0, 0, 0, 0, 0, 0])])),
        ("a_huge_body".into(), sealed(&[patch(3, 0, 56, &[255; 16]), patch(5, 0, 56, &[255; 16])])),
        ("a_layer_is_its_parent".into(), sealed(&[patch(5, 2, 32, &[1, 0, 0, 0])])),
        ("all_in_doubt".into(), sealed(&[patch(1, 9, 64, &[3, 0, 8, 0, 1, 0, 0, 0])])),
        ("no_second_superblock".into(), flipped(&[patch(0x80, 0, 0, &[0; 8])])),
        ("a_sums_page_lost".into(), flipped(&[patch(7, 0, 0, &[0; 8])])),
    ]
}

/// What the corpus must hold, made from real encodings.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let image = &SAMPLES[0];
    let named = |bytes: Vec<Vec<u8>>| -> Vec<(String, Vec<u8>)> {
        bytes.into_iter().enumerate().map(|(nth, bytes)| (nth.to_string(), bytes)).collect()
    };
    match target {
        "pool_superblock" => {
            let encoded = |image: &Image| table(image).encode(crate::Disk(0));
            named(vec![encoded(&SAMPLES[0]), encoded(&SAMPLES[1])])
        }
        "pool_entities" => {
            let mut bytes = Vec::new();
            for entity in &sample_entities() {
                entity.encode(&mut bytes);
            }
            named(vec![bytes])
        }
        "pool_records" => named(vec![encoded(&every_record()), payloads(image).concat()]),
        "pool_sums" => {
            let mut sums = [7; checksum_page::SUMS];
            sums.iter_mut().zip(1..).for_each(|(sum, nth)| *sum = nth);
            named(vec![checksum_page::encode(Id(7), 3, &sums)])
        }
        "pool_ring" => named(vec![
            ring_seed(&[10]),
            ring_seed(&[10, 0, 5000, 9000, 100]),
            ring_seed(&[4000; 12]),
            [&[255; 24][..], &ring_seed(&[10])[24..]].concat(),
        ]),
        "pool_replay" => {
            let alone: Vec<Vec<u8>> = every_record()
                .iter()
                .map(|record| encoded(core::slice::from_ref(record)))
                .collect();
            named(vec![
                pieces(&payloads(image)),
                pieces(&[encoded(&every_record()), Vec::new()]),
                pieces(&alone),
            ])
        }
        "pool_checkpoint" => {
            let with_head =
                |(kind, id, bytes): (u8, u8, Vec<u8>)| [&[kind, id][..], &bytes].concat();
            let all: Vec<_> = sections(image).into_iter().map(with_head).collect();
            let no_maps: Vec<_> = all.iter().filter(|bytes| bytes[0] != 3).cloned().collect();
            let no_space: Vec<_> = all.iter().filter(|bytes| bytes[0] != 2).cloned().collect();
            named(vec![pieces(&all), pieces(&no_maps), pieces(&no_space)])
        }
        _ => image_seeds(),
    }
}

#[test]
fn every_seed_and_every_find_is_survived() {
    for (target, drive) in TARGETS {
        for input in corpus(PACKAGE, target, &seeds(target)).unwrap() {
            drive(&input);
        }
    }
}

#[test]
fn the_seeds_reach_what_they_are_for() {
    let check = |target: &str, name: &str, opens: bool| {
        let drive = TARGETS.iter().find(|(name, _)| *name == target).unwrap().1;
        let seeds = seeds(target);
        let (_, bytes) = seeds.iter().find(|(other, _)| other == name).unwrap();
        assert_eq!(drive(bytes), opens, "{target}/{name}");
    };
    for seed in ["0", "1", "2"] {
        check("pool_replay", seed, true);
        check("pool_checkpoint", seed, true);
    }
    for target in ["pool_image", "pool_image_two"] {
        check(target, "as_it_is", true);
        check(target, "one_copy_flipped", true);
        check(target, "no_second_superblock", true);
        check(target, "a_sums_page_lost", true);
        check(target, "a_huge_journal", false);
        check(target, "a_huge_body", false);
        check(target, "a_layer_is_its_parent", false);
    }
}

/// Seeds with a few bytes changed, taken out, put in, or two seeds one after another.
fn changed(input: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if random.one_in(8) {
        bytes.extend_from_slice(other);
    }
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let value = [0, 1, 2, 0x7f, 0x80, 0xff, random.next() as u8][random.below(7) as usize];
        match (random.below(6), bytes.get_mut(at)) {
            (0, _) => bytes.insert(at, value),
            (1, Some(_)) => drop(bytes.remove(at)),
            (2, Some(_)) => bytes.truncate(at),
            (3, Some(byte)) => *byte ^= 1 << random.below(8),
            (_, Some(byte)) => *byte = value,
            (_, None) => bytes.push(value),
        }
    }
    bytes
}

#[test]
fn no_change_of_a_structure_makes_a_reader_panic() {
    for (target, drive) in TARGETS {
        let seeds = seeds(target);
        for number in numbers(0, 150) {
            let mut random = Random(number);
            let pick = |random: &mut Random| &seeds[random.below(seeds.len() as u64) as usize].1;
            let (one, other) = (pick(&mut random).clone(), pick(&mut random).clone());
            drive(&changed(&one, &other, &mut random));
            let any: Vec<u8> = (0..random.below(600)).map(|_| random.next() as u8).collect();
            drive(&any);
        }
    }
}
