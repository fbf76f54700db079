//! Checkpoints: the whole state as bytes, in sections that each have a checksum.
//!
//! Not here: writing one beside I/O (`pool::checkpoint`), choosing one (`recovery`).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::Id;
use crate::bits::Bits;
use crate::entity::{Entity, Layer};
use crate::journal::{FAR, Position};
use crate::layout::{BLOCK, Cluster, ClusterSize};
use crate::map::{Entry, Fragment, Packed};
use crate::state::{State, Walked};
use crate::widen::{count, index, low16, low32};
use crate::wire::{Put, Reader, le32, le64, le128, set};

const MAGIC: &[u8; 8] = b"HOLDCKPT";

/// Offsets, as in docs/format/pool.md.
mod at {
    pub(super) const POOL: usize = 8;
    pub(super) const GENERATION: usize = 24;
    pub(super) const INCARNATION: usize = 32;
    pub(super) const GROUP: usize = 40;
    pub(super) const NUMBER: usize = 48;
    pub(super) const BODY: usize = 56;
    pub(super) const DIRECTORY: usize = 64;
    pub(super) const SECTIONS: usize = 72;
    pub(super) const DIRECTORY_CRC: usize = 76;
    pub(super) const ZERO: usize = 80;
    pub(super) const CRC: usize = 4092;
}
const ENTRY: usize = 32;
const _: () = assert!(at::DIRECTORY_CRC + 4 == at::ZERO && at::CRC + 4 == BLOCK);

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    /// Where the journal goes on.
    pub(crate) position: Position,
    pub(crate) body: u64,
    directory: u64,
    sections: u32,
    directory_crc: u32,
}

impl Header {
    pub(crate) fn encode(&self, pool: Id) -> Vec<u8> {
        let mut block = alloc::vec![0; BLOCK];
        set(&mut block, 0, MAGIC);
        set(&mut block, at::POOL, &pool.0.to_le_bytes());
        set(&mut block, at::GENERATION, &self.generation.to_le_bytes());
        set(&mut block, at::INCARNATION, &self.position.incarnation.to_le_bytes());
        set(&mut block, at::GROUP, &self.position.group.to_le_bytes());
        set(&mut block, at::NUMBER, &self.position.number.to_le_bytes());
        set(&mut block, at::BODY, &self.body.to_le_bytes());
        set(&mut block, at::DIRECTORY, &self.directory.to_le_bytes());
        set(&mut block, at::SECTIONS, &self.sections.to_le_bytes());
        set(&mut block, at::DIRECTORY_CRC, &self.directory_crc.to_le_bytes());
        let crc = crc32c::crc32c(&block[..at::CRC]);
        set(&mut block, at::CRC, &crc.to_le_bytes());
        block
    }

    /// The header, if the block is a sound one of this pool whose body fits `room` bytes.
    pub(crate) fn decode(pool: Id, block: &[u8], room: u64) -> Option<Header> {
        let ours = block.len() == BLOCK && block.starts_with(MAGIC);
        let sound = ours
            && le128(block, at::POOL) == pool.0
            && crc32c::crc32c(&block[..at::CRC]) == le32(block, at::CRC);
        if !sound {
            return None;
        }
        let header = Header {
            generation: le64(block, at::GENERATION),
            position: Position {
                number: le64(block, at::NUMBER),
                group: le64(block, at::GROUP),
                incarnation: le64(block, at::INCARNATION),
            },
            body: le64(block, at::BODY),
            directory: le64(block, at::DIRECTORY),
            sections: le32(block, at::SECTIONS),
            directory_crc: le32(block, at::DIRECTORY_CRC),
        };
        let directory_end =
            u64::from(header.sections).checked_mul(count(ENTRY))?.checked_add(header.directory)?;
        let near = header.position.is_near() && header.generation < FAR;
        let fits = header.body <= room && directory_end == header.body;
        // One without a section is none, and recovery would read its empty body for ever.
        (near && fits && header.sections > 0).then_some(header)
    }
}

/// Regions with write intent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Regions {
    /// Overwritten since their sums were last written.
    pub(crate) dirty: BTreeSet<u32>,
    /// Dirty at a crash, and not yet read through.
    pub(crate) doubtful: BTreeSet<u32>,
}

/// What a section of a checkpoint is about.
#[derive(Clone, Copy, Debug)]
enum About {
    Pool,
    Space,
    Layer(Layer),
}

impl About {
    /// Kind and id in the directory.
    fn numbers(self) -> (u32, u32) {
        match self {
            About::Pool => (1, 0),
            About::Space => (2, 0),
            About::Layer(layer) => (3, layer.0),
        }
    }
}

/// The body of a checkpoint, made a little at a time from a cut of the state.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// Bytes that nobody has taken yet.
    out: Vec<u8>,
    /// Bytes that were taken.
    taken: u64,
    /// Where the open section begins, and the sum of its bytes that were taken.
    section: u64,
    crc: u32,
    directory: Vec<u8>,
    sections: u32,
    header: Option<Header>,
}

impl Encoder {
    /// Cuts the state.
    pub(crate) fn cut(state: &mut State, regions: &Regions) -> Encoder {
        let (out, directory) = (Vec::new(), Vec::new());
        let (section, crc, sections, header) = (0, 0, 0, None);
        let mut encoder = Encoder { out, taken: 0, section, crc, directory, sections, header };
        encode_pool(state, regions, &mut encoder.out);
        encoder.close(About::Pool);
        state.space.encode(&mut encoder.out);
        encoder.close(About::Space);
        state.begin_cut();
        encoder
    }

    fn end(&self) -> u64 {
        self.taken + count(self.out.len())
    }

    /// Bytes of the open section that were not taken.
    fn open(&self) -> &[u8] {
        let from = self.section.saturating_sub(self.taken);
        self.out.get(index(from)..).unwrap_or_default()
    }

    fn close(&mut self, about: About) {
        let (kind, id) = about.numbers();
        let crc = crc32c::crc32c_append(self.crc, self.open());
        let (from, end) = (self.section, self.end());
        self.directory.put32(kind);
        self.directory.put32(id);
        self.directory.put64(from);
        self.directory.put64(end - from);
        self.directory.put32(crc);
        self.directory.put32(0);
        self.sections += 1;
        (self.section, self.crc) = (end, 0);
    }

    /// The next bytes: `most` of them, or the rest, padded to whole blocks. Nothing at the end.
    pub(crate) fn next(&mut self, state: &mut State, most: usize) -> Option<Vec<u8>> {
        while self.header.is_none() && self.out.len() < most {
            match state.walk_cut(&mut self.out, most) {
                Walked::Far => {}
                Walked::Layer(layer) => self.close(About::Layer(layer)),
                Walked::End => {
                    state.end_cut();
                    self.finish();
                }
            }
        }
        let len = self.out.len().min(most);
        // The sum of the open section goes on over what is taken now.
        let from = index(self.section.saturating_sub(self.taken)).min(len);
        self.crc = crc32c::crc32c_append(self.crc, &self.out[from..len]);
        let rest = self.out.split_off(len);
        let chunk = core::mem::replace(&mut self.out, rest);
        self.taken += count(chunk.len());
        (!chunk.is_empty()).then_some(chunk)
    }

    fn finish(&mut self) {
        let directory = self.end();
        let directory_crc = crc32c::crc32c(&self.directory);
        self.out.append(&mut self.directory);
        let body = self.end();
        self.section = u64::MAX;
        self.out.resize(self.out.len() + index(body.next_multiple_of(count(BLOCK)) - body), 0);
        let position = Position { number: 0, group: 0, incarnation: 0 };
        let (generation, sections) = (0, self.sections);
        let header = Header { generation, position, body, directory, sections, directory_crc };
        self.header = Some(header);
    }

    /// The header, when all has been written.
    pub(crate) fn header(&self) -> Option<Header> {
        self.header.filter(|_| self.out.is_empty())
    }
}

/// Writes the whole body of a checkpoint, and its header.
pub(crate) fn encode(state: &mut State, regions: &Regions) -> Option<(Header, Vec<u8>)> {
    let mut encoder = Encoder::cut(state, regions);
    let mut body = Vec::new();
    while let Some(mut chunk) = encoder.next(state, 1 << 20) {
        body.append(&mut chunk);
    }
    encoder.header().map(|header| (header, body))
}

fn encode_pool(state: &State, regions: &Regions, out: &mut Vec<u8>) {
    out.put32(state.next_layer);
    let lens =
        [state.layers.len(), state.entities.len(), regions.dirty.len(), regions.doubtful.len()];
    for len in lens {
        out.put32(low32(count(len)));
    }
    for (layer, tier) in &state.layers {
        out.put32(layer.0);
        out.put32(tier.parent.0);
        out.put64(0);
        out.put64(tier.limit);
    }
    state.entities.values().for_each(|entity| entity.encode(out));
    regions.dirty.iter().chain(&regions.doubtful).for_each(|region| out.put32(*region));
}

/// Writes one entry of a map.
pub(crate) fn encode_entry(logical: u32, packed: &Packed, size: ClusterSize, out: &mut Vec<u8>) {
    let entry = packed.entry();
    // A fragment without a valid block has its first write under way: it is not there yet.
    let fragments = || entry.fragments.iter().filter(|part| !part.valid.is_empty());
    let zero = match entry.zero {
        Bits::None => 0,
        Bits::Some(_) => 1,
        Bits::All => 2,
    };
    let parts = fragments().count();
    if parts == 0 && zero == 0 {
        return;
    }
    out.put32(logical);
    out.put16(low16(count(parts)));
    out.put16(zero);
    for Fragment { cluster, valid } in fragments() {
        out.put32(cluster.0);
        out.put32(u32::from(*valid == Bits::All));
        if *valid != Bits::All {
            valid.encode(size, out);
        }
    }
    if zero == 1 {
        entry.zero.encode(size, out);
    }
}

/// Why a checkpoint cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCheckpoint {
    /// Both copies of the directory are damaged.
    #[error("both copies of the checkpoint's directory are damaged")]
    Directory,
    /// Both copies of the pool section are damaged.
    #[error("both copies of the list of replicas are damaged")]
    Pool,
}

/// What a checkpoint holds.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) state: State,
    pub(crate) regions: Regions,
    /// Layers whose map is lost.
    pub(crate) damaged: Vec<Layer>,
}

struct Section {
    kind: u32,
    id: u32,
    at: u64,
    len: u64,
    crc: u32,
}

/// Reads a checkpoint from its copies into an empty state.
pub(crate) fn restore(
    header: &Header,
    copies: [&[u8]; 2],
    mut state: State,
) -> Result<Restored, BadCheckpoint> {
    let part = |copy: usize, at: u64, len: u64, crc: u32| {
        let end = at.checked_add(len).filter(|end| *end <= header.body)?;
        let bytes = copies[copy].get(index(at)..index(end))?;
        (crc32c::crc32c(bytes) == crc).then_some(bytes)
    };
    let either = |at, len, crc| part(0, at, len, crc).or_else(|| part(1, at, len, crc));
    let len = header.body - header.directory;
    let directory = either(header.directory, len, header.directory_crc);
    let directory = sections(directory.ok_or(BadCheckpoint::Directory)?);
    let directory = directory.ok_or(BadCheckpoint::Directory)?;
    let bytes_of = |about: About| {
        let is_it = |section: &&Section| (section.kind, section.id) == about.numbers();
        let found = directory.iter().find(is_it)?;
        either(found.at, found.len, found.crc)
    };
    let pool = bytes_of(About::Pool).ok_or(BadCheckpoint::Pool)?;
    let regions = decode_pool(pool, &mut state).ok_or(BadCheckpoint::Pool)?;
    let mut damaged = Vec::new();
    let layers: Vec<_> = state.layers.keys().copied().collect();
    for layer in layers {
        let map = bytes_of(About::Layer(layer)).and_then(|bytes| decode_map(bytes, state.size));
        if map.is_none_or(|map| state.restore_map(layer, map).is_err()) {
            state.lose_map(layer);
            damaged.push(layer);
        }
    }
    if !damaged.is_empty() {
        state.keep_lost(bytes_of(About::Space));
    }
    Ok(Restored { state, regions, damaged })
}

fn sections(bytes: &[u8]) -> Option<Vec<Section>> {
    let mut from = Reader::new(bytes);
    let mut found = Vec::new();
    while !from.is_empty() {
        let (kind, id) = (from.u32()?, from.u32()?);
        let (at, len) = (from.u64()?, from.u64()?);
        let crc = from.u32()?;
        from.u32()?;
        found.push(Section { kind, id, at, len, crc });
    }
    Some(found)
}

fn decode_pool(bytes: &[u8], state: &mut State) -> Option<Regions> {
    let from = &mut Reader::new(bytes);
    let next_layer = from.u32()?;
    let [layers, entities, dirty, doubtful] = [from.u32()?, from.u32()?, from.u32()?, from.u32()?];
    for _ in 0..layers {
        let (layer, parent) = (Layer(from.u32()?), Layer(from.u32()?));
        from.u64()?;
        state.restore_layer(layer, parent, from.u64()?)?;
    }
    for _ in 0..entities {
        state.restore_entity(Entity::decode(from)?)?;
    }
    let mut regions = Regions::default();
    for _ in 0..dirty {
        regions.dirty.insert(from.u32()?);
    }
    for _ in 0..doubtful {
        regions.doubtful.insert(from.u32()?);
    }
    state.next_layer = state.next_layer.max(next_layer);
    (from.is_empty() && state.is_tree()).then_some(regions)
}

fn decode_map(bytes: &[u8], size: ClusterSize) -> Option<Vec<(u32, Packed)>> {
    let from = &mut Reader::new(bytes);
    let mut map = Vec::new();
    while !from.is_empty() {
        let logical = from.u32()?;
        let (parts, zero) = (from.u16()?, from.u16()?);
        let mut entry = Entry::default();
        // A count that the bytes cannot hold ends the loop, not the memory.
        entry.fragments.reserve_exact(usize::from(parts.min(1)));
        for _ in 0..parts {
            let cluster = Cluster(from.u32()?);
            let valid = match from.u32()? {
                0 => Bits::decode(from.take(size.bitmap_bytes())?),
                1 => Bits::All,
                _ => return None,
            };
            entry.fragments.push(Fragment { cluster, valid });
        }
        entry.zero = match zero {
            0 => Bits::None,
            1 => Bits::decode(from.take(size.bitmap_bytes())?),
            2 => Bits::All,
            _ => return None,
        };
        map.push((logical, Packed::new(entry)));
    }
    Some(map)
}
