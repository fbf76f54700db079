//! What a target and the engine of a replica say to each other (`docs/protocol/replica.md`).
//!
//! Numbers are little-endian, ids big-endian as in their text. A note travels and is kept as the
//! JSON of `model::SyncMetadata`, never larger than a pool keeps with a replica: see [`fit`].

use block::{Blocks, IoError, Lba, Span};
use mirror::{Answer, Attempt};
use model::{RegionSet, SnapshotId, SyncMetadata};
use nvme::initiator::{Content, Message};

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaMessage {
    /// Ask: size and incarnation, see [`Described`].
    Describe,
    /// Ask: the note, or nothing.
    Note,
    /// Tell: a note, kept durably instead of the one before.
    Keep,
    /// Ask: runs of written blocks from the block in the argument on, see [`runs_of`].
    Written,
    /// Tell: take the snapshot with this label, durably.
    Snapshot,
    /// Tell: drop the snapshot with this id; one that is not there is dropped.
    DropSnapshot,
    /// Ask: snapshots whose ids end with the argument, and their attempts, see [`existed`].
    Taken,
    /// Tell: every copy was compared; give the unproven blocks of these a checksum, durably. See
    /// [`encode_count`].
    Accept,
    /// Tell: write this block over the one in the argument, which is damaged; durable, and the
    /// block is known to be bad until it is written. See [`repaired_of`].
    Repair,
    /// Ask: runs of blocks that a scrub found damaged and that were not told before, as
    /// [`runs_of`].
    Damaged,
    /// Ask: the same in snapshots of the replica, see [`damaged_snapshots_of`].
    DamagedSnapshots,
    /// Ask: the block in the argument of the snapshot in the object.
    ReadSnapshot,
    /// Tell: write this block over the one in the argument of the snapshot in the object, which is
    /// damaged; as [`ReplicaMessage::Repair`].
    RepairSnapshot,
    /// Tell: an operator keeps what the disk holds in these blocks although it is damaged; give
    /// them a checksum, durably. As [`ReplicaMessage::Accept`].
    AcceptDamaged,
}

impl ReplicaMessage {
    /// The topic with this number.
    pub(crate) fn of(number: u32) -> Option<ReplicaMessage> {
        use ReplicaMessage::{
            Accept, AcceptDamaged, Damaged, DamagedSnapshots, Describe, DropSnapshot, Keep, Note,
            ReadSnapshot, Repair, RepairSnapshot, Snapshot, Taken, Written,
        };
        let of_replicas = [Describe, Note, Keep, Written, Accept, AcceptDamaged, Damaged, Repair];
        let of_snapshots = [Snapshot, DropSnapshot, Taken];
        let repairs = [DamagedSnapshots, ReadSnapshot, RepairSnapshot];
        let all = of_replicas.into_iter().chain(of_snapshots).chain(repairs);
        all.into_iter().find(|topic| topic.number() == number)
    }

    fn number(self) -> u32 {
        match self {
            ReplicaMessage::Describe => 1,
            ReplicaMessage::Note => 2,
            ReplicaMessage::Keep => 3,
            ReplicaMessage::Written => 4,
            ReplicaMessage::Snapshot => 5,
            ReplicaMessage::DropSnapshot => 6,
            ReplicaMessage::Taken => 7,
            ReplicaMessage::Accept => 8,
            ReplicaMessage::Damaged => 9,
            ReplicaMessage::Repair => 10,
            ReplicaMessage::DamagedSnapshots => 11,
            ReplicaMessage::ReadSnapshot => 12,
            ReplicaMessage::RepairSnapshot => 13,
            ReplicaMessage::AcceptDamaged => 14,
        }
    }

    /// A question, with room for the largest answer.
    pub(crate) fn ask(self, argument: u64) -> Message {
        self.ask_of(0, Lba(argument))
    }

    /// A question about a snapshot.
    pub(crate) fn ask_of(self, object: u64, at: Lba) -> Message {
        let content = Content::Ask { room: MOST_ANSWER };
        Message { topic: self.number(), argument: at.0, object, content }
    }

    /// Something to be told.
    pub(crate) fn tell(self, argument: u64, bytes: &[u8]) -> Message {
        self.tell_of(0, Lba(argument), bytes)
    }

    /// Something to be told of a snapshot.
    pub(crate) fn tell_of(self, object: u64, at: Lba, bytes: &[u8]) -> Message {
        let content = Content::Tell(bytes.into());
        Message { topic: self.number(), argument: at.0, object, content }
    }
}

/// Most bytes of an answer.
pub(crate) const MOST_ANSWER: u32 = 8192;
/// Most runs of written blocks in one answer.
pub(crate) const MOST_RUNS: usize = 512;
const RUN_LEN: usize = 16;
const _: () = assert!(MOST_RUNS * RUN_LEN == 8192);
/// Most blocks that are accepted at once.
pub(crate) const MOST_ACCEPTED: Blocks = Blocks(256);
/// Bytes of a block.
pub(crate) const BLOCK: usize = pool::BLOCK;
const TAKEN_LEN: usize = 32;
const DAMAGED_SNAPSHOT_LEN: usize = TAKEN_LEN + RUN_LEN;
/// Most runs of damaged blocks of snapshots in one answer.
pub(crate) const MOST_DAMAGED_SNAPSHOTS: usize = 128;
const _: () = assert!(MOST_DAMAGED_SNAPSHOTS * DAMAGED_SNAPSHOT_LEN <= 8192);
/// Most snapshots in one answer: more never have ids with the same end.
const MOST_TAKEN: usize = 64;

/// What a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// Its size.
    pub(crate) size: Blocks,
    /// Another number means that writes which no flush covered may be lost.
    pub(crate) incarnation: u64,
}

impl Described {
    pub(crate) fn encode(self) -> Vec<u8> {
        [self.size.0.to_le_bytes(), self.incarnation.to_le_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Described> {
        let (size, rest) = bytes.split_first_chunk()?;
        let (incarnation, _) = rest.split_first_chunk()?;
        let size = Blocks(u64::from_le_bytes(*size));
        Some(Described { size, incarnation: u64::from_le_bytes(*incarnation) })
    }
}

/// Runs of blocks (start, end) as they travel.
pub(crate) fn encode_runs(runs: &[(u64, u64)]) -> Vec<u8> {
    runs.iter()
        .flat_map(|(start, end)| [start.to_le_bytes(), end.to_le_bytes()])
        .flatten()
        .collect()
}

/// The runs inside `span` of an answer, and where the next page begins if there is one.
pub(crate) fn runs_of(bytes: &[u8], span: Span) -> Result<(Vec<Span>, Option<u64>), IoError> {
    let mut found = Vec::new();
    let mut last = 0;
    let (pages, rest) = bytes.as_chunks::<RUN_LEN>();
    if !rest.is_empty() {
        return Err(IoError::Internal);
    }
    for run in pages {
        let (start, end) = run.split_at(RUN_LEN / 2);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes);
        let (Ok(start), Ok(end)) = (number(start), number(end)) else {
            return Err(IoError::Internal);
        };
        last = end;
        let (from, to) = (start.max(span.start().0), end.min(span.end().0));
        found.extend(Span::between(Lba(from), Lba(to)).filter(|_| from < to));
    }
    let more = pages.len() >= MOST_RUNS && last < span.end().0;
    Ok((found, more.then_some(last)))
}

/// The number of blocks to accept, as it travels; at most [`MOST_ACCEPTED`].
pub(crate) fn encode_count(blocks: Blocks) -> [u8; 8] {
    blocks.0.to_le_bytes()
}

/// The blocks to accept: from the argument on, as many as the bytes say.
pub(crate) fn accepted_of(first: u64, bytes: &[u8]) -> Option<Span> {
    let blocks = Blocks(u64::from_le_bytes(bytes.try_into().ok()?));
    Span::new(Lba(first), blocks).filter(|_| blocks <= MOST_ACCEPTED)
}

/// The block to repair: the one in the argument, if its bytes are there.
pub(crate) fn repaired_of(at: u64, bytes: &[u8]) -> Option<Span> {
    Span::one(Lba(at)).filter(|_| bytes.len() == BLOCK)
}

/// The id of a snapshot as it travels.
pub(crate) fn encode_id(id: SnapshotId) -> [u8; 16] {
    id.uuid().into_bytes()
}

/// The end of an id, by which snapshots are asked for.
pub(crate) fn tail(id: SnapshotId) -> u64 {
    id.uuid().as_u64_pair().1
}

/// A snapshot as a replica has it. Copies of a snapshot on other replicas that are equal to it in
/// all of this are of the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotMoment {
    /// Its id.
    pub(crate) id: u128,
    /// The attempt in which a target took it; 0: no target did.
    pub(crate) attempt: u64,
    /// When it was taken, in milliseconds, as its label says.
    pub(crate) created: u64,
}

impl SnapshotMoment {
    /// Whether equal ones have equal contents. Without a target nobody vouches for that: a copy may
    /// have been set back before, or have followed the order late.
    pub(crate) fn is_of_one_moment(self) -> bool {
        self.attempt != 0
    }

    fn encode(self) -> [u8; TAKEN_LEN] {
        let mut bytes = [0; TAKEN_LEN];
        let (id, rest) = bytes.split_at_mut(16);
        let (attempt, created) = rest.split_at_mut(8);
        id.copy_from_slice(&self.id.to_be_bytes());
        attempt.copy_from_slice(&self.attempt.to_le_bytes());
        created.copy_from_slice(&self.created.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; TAKEN_LEN]) -> Option<SnapshotMoment> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let (created, _) = rest.split_first_chunk()?;
        Some(SnapshotMoment {
            id: u128::from_be_bytes(*id),
            attempt: u64::from_le_bytes(*attempt),
            created: u64::from_le_bytes(*created),
        })
    }

    /// The end of its id, by which it is named in messages.
    pub(crate) fn tail(self) -> u64 {
        uuid::Uuid::from_u128(self.id).as_u64_pair().1
    }
}

/// Snapshots, as they travel.
pub(crate) fn encode_taken(taken: impl Iterator<Item = SnapshotMoment>) -> Vec<u8> {
    taken.take(MOST_TAKEN).flat_map(SnapshotMoment::encode).collect()
}

/// The snapshots of an answer.
pub(crate) fn taken_of(bytes: &[u8]) -> Vec<SnapshotMoment> {
    bytes.as_chunks().0.iter().filter_map(SnapshotMoment::decode).collect()
}

/// That a snapshot was there, and who took it; nothing if it is not there.
pub(crate) fn existed(bytes: &[u8], id: SnapshotId) -> Option<Answer> {
    let number = id.uuid().as_u128();
    let found = taken_of(bytes).into_iter().find(|one| one.id == number)?;
    Some(Answer::WasThere((found.attempt != 0).then_some(Attempt(found.attempt))))
}

/// Damaged blocks of snapshots, as they travel; [`MOST_DAMAGED_SNAPSHOTS`] at most.
pub(crate) fn encode_damaged_snapshots(
    damaged: impl Iterator<Item = (SnapshotMoment, (u64, u64))>,
) -> Vec<u8> {
    let one = |(moment, run): (SnapshotMoment, (u64, u64))| {
        moment.encode().into_iter().chain(encode_runs(&[run]))
    };
    damaged.take(MOST_DAMAGED_SNAPSHOTS).flat_map(one).collect()
}

/// Damaged blocks of snapshots of an answer.
pub(crate) fn damaged_snapshots_of(bytes: &[u8]) -> Vec<(SnapshotMoment, Span)> {
    let one = |bytes: &[u8; DAMAGED_SNAPSHOT_LEN]| {
        let (moment, run) = bytes.split_first_chunk()?;
        let (start, end) = run.split_first_chunk()?;
        let (start, end) = (u64::from_le_bytes(*start), u64::from_le_bytes(end.try_into().ok()?));
        Some((SnapshotMoment::decode(moment)?, Span::between(Lba(start), Lba(end))?))
    };
    bytes.as_chunks().0.iter().filter_map(one).collect()
}

/// A note as it is kept, no longer than a pool keeps. Regions are made larger until it is, and if
/// that is not enough, stale copies lose their maps: what may differ or be missed then covers more
/// than it must, never less.
pub(crate) fn fit(note: &SyncMetadata) -> Option<Vec<u8>> {
    let mut note = note.clone();
    loop {
        let bytes = model::envelope::encode(&note).ok()?.into_bytes();
        if bytes.len() <= pool::Label::MOST_OPAQUE {
            return Some(bytes);
        }
        if !coarsen(&mut note) && !forget_map(&mut note) {
            return None;
        }
    }
}

/// Makes the regions of a note larger; whether there were any to be made larger.
fn coarsen(note: &mut SyncMetadata) -> bool {
    let maps = [&mut note.intents].into_iter().chain(note.missed.values_mut());
    let mut shrank = false;
    // A map of the first region alone is as short as it gets.
    for map in maps.filter(|map| map.iter().any(|region| region > 0)) {
        if let Some(wide) = coarser(map) {
            (*map, shrank) = (wide, true);
        }
    }
    shrank
}

/// Forgets the map of one stale copy, which then lacks everything, and so need not be compared with
/// what it had; whether there was one.
fn forget_map(note: &mut SyncMetadata) -> bool {
    let last = note.missed.keys().next_back().max(note.left.keys().next_back()).copied();
    last.is_some_and(|replica| {
        note.left.remove(&replica);
        note.missed.remove(&replica);
        true
    })
}

fn coarser(regions: &RegionSet) -> Option<RegionSet> {
    let mut wide = RegionSet::new(regions.blocks().checked_mul(2.try_into().ok()?)?);
    wide.add(regions);
    Some(wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ReplicaLabel, ReplicaSet};
    use std::collections::BTreeMap;

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(number: u8) -> T {
        format!("5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a{number:02x}").parse().unwrap()
    }

    fn note(regions: impl Iterator<Item = u64>) -> SyncMetadata {
        let set = ReplicaSet::new([id(1), id(2), id(3)].into()).unwrap();
        let mut intents = RegionSet::new(256.try_into().unwrap());
        regions.for_each(|region| intents.insert(region));
        let label = ReplicaLabel {
            volume: id(9),
            replica: id(1),
            size: model::Size::mib(1 << 20),
            epoch: model::Epoch::FIRST,
            set,
        };
        let missed = BTreeMap::from([(id(2), intents.clone())]);
        SyncMetadata {
            label,
            owner: id(40),
            sequence: 7,
            settled: None,
            incarnation: u64::MAX,
            loss: 0,
            intents,
            missed,
            left: BTreeMap::new(),
            reservations: Box::default(),
        }
    }

    #[test]
    fn a_note_that_fits_is_kept_as_it_is() {
        let small = note([0, 5, 4000].into_iter());
        let kept: SyncMetadata = model::envelope::decode(&fit(&small).unwrap()).unwrap();
        assert_eq!(kept, small);
    }

    #[test]
    fn a_note_that_is_too_large_covers_more_and_fits() {
        let large = note((0..65536).step_by(7));
        let bytes = fit(&large).unwrap();
        assert!(bytes.len() <= pool::Label::MOST_OPAQUE);
        let kept: SyncMetadata = model::envelope::decode(&bytes).unwrap();
        assert_eq!((&kept.label, kept.sequence), (&large.label, large.sequence));
        for (kept, had) in
            [(&kept.intents, &large.intents), (&kept.missed[&id(2)], &large.missed[&id(2)])]
        {
            assert!(kept.blocks() > had.blocks());
            for region in had.iter() {
                let span = had.span(region, Blocks(u64::MAX)).unwrap();
                assert!(kept.touched(span).all(|region| kept.contains(region)));
            }
        }
    }

    fn last_epoch() -> model::Epoch {
        serde_json::from_str(&u64::MAX.to_string()).unwrap()
    }

    #[test]
    fn a_note_with_the_most_of_everything_fits() {
        let most = model::VolumeSpec::MOST_REPLICAS + 1;
        let mut note = note((0..65536).step_by(7));
        note.label.set = ReplicaSet::new((1..=most).map(id).collect()).unwrap();
        note.missed = (1..=most).map(|number| (id(number), note.intents.clone())).collect();
        let stamp = model::SyncStamp { epoch: last_epoch(), sequence: u64::MAX };
        (note.label.epoch, note.sequence, note.loss) = (stamp.epoch, stamp.sequence, u64::MAX);
        note.settled = Some(stamp);
        note.left = (1..=most).map(|number| (id(number), stamp)).collect();
        let host = |number: usize| model::HostIdentifier([u8::try_from(number).unwrap(); 16]);
        *note.reservations = model::HostReservations {
            generation: u32::MAX,
            persist: false,
            registrants: (0..model::HostReservations::MAX_REGISTRANTS)
                .map(|number| model::Registrant { host: host(number), key: u64::MAX })
                .collect(),
            held: Some(model::HeldReservation {
                kind: model::ReservationKind::ExclusiveAccessRegistrants,
                holder: Some(host(1)),
            }),
        };
        let kept: SyncMetadata = model::envelope::decode(&fit(&note).unwrap()).unwrap();
        assert_eq!(kept.reservations, note.reservations);
        assert_eq!((&kept.label, kept.settled), (&note.label, note.settled));
        // One without a map lacks everything; one with a map was not rolled back unseen.
        assert!(kept.missed.len() >= 5, "{} maps are left", kept.missed.len());
        assert!(kept.missed.keys().eq(kept.left.keys()));
        assert!(kept.missed.values().all(|map| map.contains(0)));
    }

    #[test]
    fn runs_are_cut_to_the_span_and_paged() {
        let span = Span::new(Lba(10), Blocks(2000)).unwrap();
        let between = |from, to| Span::between(Lba(from), Lba(to)).unwrap();
        let bytes = encode_runs(&[(0, 12), (15, 16), (2005, 3000), (4000, 4001)]);
        let expected = vec![between(10, 12), between(15, 16), between(2005, 2010)];
        assert_eq!(runs_of(&bytes, span), Ok((expected, None)));
        let full: Vec<_> = (0..512).map(|at| (at * 2, at * 2 + 1)).collect();
        let (found, more) = runs_of(&encode_runs(&full), span).unwrap();
        assert_eq!((found.len(), more), (507, Some(1023)));
        assert_eq!(runs_of(&[0; 15], span), Err(IoError::Internal));
        let described = Described { size: Blocks(5), incarnation: 6 };
        assert_eq!(Described::decode(&described.encode()), Some(described));
        assert_eq!(Described::decode(&[0; 15]), None);
    }

    #[test]
    fn blocks_to_accept_are_bounded() {
        let span = |first, blocks| Span::new(Lba(first), Blocks(blocks));
        assert_eq!(encode_count(Blocks(0x0102)), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(accepted_of(7, &encode_count(Blocks(3))), span(7, 3));
        assert_eq!(accepted_of(7, &encode_count(MOST_ACCEPTED)), span(7, 256));
        assert_eq!(accepted_of(7, &encode_count(Blocks(257))), None);
        assert_eq!(accepted_of(7, &encode_count(Blocks(0))), None);
        assert_eq!(accepted_of(u64::MAX, &encode_count(Blocks(2))), None);
        assert_eq!(accepted_of(7, &[1; 7]), None);
        let number = ReplicaMessage::Accept.tell(0, &[]).topic;
        assert_eq!((number, ReplicaMessage::of(number)), (8, Some(ReplicaMessage::Accept)));
    }

    #[test]
    fn a_repair_is_of_one_block() {
        assert_eq!(repaired_of(7, &[1; 4096]), Span::one(Lba(7)));
        assert_eq!(repaired_of(7, &[1; 4095]), None);
        assert_eq!(repaired_of(7, &[1; 8192]), None);
        assert_eq!(repaired_of(u64::MAX, &[1; 4096]), None);
        let number = ReplicaMessage::Repair.tell(0, &[]).topic;
        assert_eq!((number, ReplicaMessage::of(number)), (10, Some(ReplicaMessage::Repair)));
    }

    #[test]
    fn a_snapshot_is_found_by_its_whole_id() {
        let number = |one: SnapshotId| one.uuid().as_u128();
        let (mine, other, none): (SnapshotId, SnapshotId, SnapshotId) = (id(1), id(2), id(3));
        let moment = |id, attempt| SnapshotMoment { id: number(id), attempt, created: 9 };
        let all = [moment(other, 5), moment(mine, 6), moment(none, 0)];
        let bytes = encode_taken(all.into_iter());
        assert_eq!(taken_of(&bytes), all);
        assert_eq!(existed(&bytes, mine), Some(Answer::WasThere(Some(Attempt(6)))));
        assert_eq!(existed(&bytes, none), Some(Answer::WasThere(None)));
        assert_eq!(existed(&bytes, id(4)), None);
        assert_eq!(existed(&bytes[..63], mine), None);
        assert_eq!(moment(mine, 6).tail(), tail(mine));
        let places = [(all[0], (3, 5)), (all[1], (7, 8))];
        let found = damaged_snapshots_of(&encode_damaged_snapshots(places.into_iter()));
        let run = |from, to| Span::between(Lba(from), Lba(to)).unwrap();
        assert_eq!(found, [(all[0], run(3, 5)), (all[1], run(7, 8))]);
        assert_eq!(tail(mine).to_be_bytes(), encode_id(mine)[8..]);
    }
}
