//! Checkpoints: the whole state as bytes, in pages and sections that each have a checksum.
//!
//! Pages of maps come first; an import reads only what follows them.
//!
//! Not here: writing one beside I/O (`pool::checkpointer`), choosing one (`recovery`), reading
//! pages (`pool::paging`).

mod encoder;

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::Id;
use crate::bits::Bits;
use crate::casts::{count, index, low16};
use crate::codec::{Put, Reader, le32, le64, le128, set};
use crate::entity::{Entity, LayerId};
use crate::journal::{FAR, Position};
use crate::layout::{BLOCK, Cluster, ClusterSize};
use crate::map::{Entry, Fragment, Packed};
use crate::state::{INDEX_BYTES, Page, PageCounts, State};

pub(crate) use encoder::{Encoder, Next, encode, fixed_bytes};

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
    pub(super) const META: usize = 80;
    pub(super) const ZERO: usize = 88;
    pub(super) const CRC: usize = 4092;
}
const ENTRY: usize = 32;
const _: () = assert!(at::DIRECTORY_CRC + 4 == at::META && at::META + 8 == at::ZERO);
const _: () = assert!(at::CRC + 4 == BLOCK && INDEX_BYTES == 32);

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) generation: u64,
    /// Where the journal goes on.
    pub(crate) position: Position,
    pub(crate) body: u64,
    /// Where in the body the pages of maps end, and what an import reads begins.
    pub(crate) meta: u64,
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
        set(&mut block, at::META, &self.meta.to_le_bytes());
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
            meta: le64(block, at::META),
            directory: le64(block, at::DIRECTORY),
            sections: le32(block, at::SECTIONS),
            directory_crc: le32(block, at::DIRECTORY_CRC),
        };
        let directory_end =
            u64::from(header.sections).checked_mul(count(ENTRY))?.checked_add(header.directory)?;
        let near = header.position.is_near() && header.generation < FAR;
        let fits = header.body <= room
            && directory_end == header.body
            && header.meta <= header.directory
            && header.meta.is_multiple_of(count(BLOCK));
        // One without a section is none, and recovery would read its empty body for ever.
        (near && fits && header.sections > 0).then_some(header)
    }
}

/// Most logical clusters of a page, as a power of two.
const MAX_PAGE_SHIFT: u8 = 12;

/// Regions with write intent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Regions {
    /// Overwritten since their sums were last written.
    pub(crate) dirty: BTreeSet<u32>,
    /// Dirty at a crash, and not yet read through: a block there that does not match its sum may
    /// have been being written.
    pub(crate) doubtful: BTreeSet<u32>,
    /// Blocks of regions that were read through which may be so, or could not be read.
    pub(crate) unproven: BTreeSet<u64>,
}

impl Regions {
    /// Most blocks that are listed one by one: a checkpoint has room for them, whatever else it
    /// holds. In tests few.
    pub(crate) const MOST_UNPROVEN: usize = if cfg!(test) { 24 } else { 8192 };
}

/// What a section of a checkpoint is about.
#[derive(Clone, Copy, Debug)]
enum About {
    Pool,
    Space,
    Index(LayerId),
}

impl About {
    /// Kind and id in the directory.
    fn numbers(self) -> (u32, u32) {
        match self {
            About::Pool => (1, 0),
            About::Space => (2, 0),
            About::Index(layer) => (4, layer.0),
        }
    }
}

/// Where the pages of a layer are.
pub(crate) type Index = Vec<(u32, Page)>;

fn encode_page(window: u32, page: &Page, out: &mut Vec<u8>) {
    let Page { at, bytes, crc, tally } = page;
    for number in [window, *at, *bytes, *crc, tally.clusters, tally.blocks] {
        out.put32(number);
    }
    for number in [tally.entries, tally.held, tally.split, 0] {
        out.put16(number);
    }
}

fn decode_index(bytes: &[u8], meta: u64) -> Option<Index> {
    let from = &mut Reader::new(bytes);
    let mut pages = Vec::new();
    while !from.is_empty() {
        let (window, at, bytes, crc) = (from.u32()?, from.u32()?, from.u32()?, from.u32()?);
        let (clusters, blocks) = (from.u32()?, from.u32()?);
        let (entries, held, split) = (from.u16()?, from.u16()?, from.u16()?);
        from.u16()?;
        let tally = PageCounts { clusters, blocks, entries, held, split };
        let page = Page { at, bytes, crc, tally };
        pages.push((window, page));
        if page.range().end > meta {
            return None;
        }
    }
    Some(pages)
}

/// The entries of a page, if it is what the index says.
pub(crate) fn decode_page(
    page: &Page,
    bytes: &[u8],
    size: ClusterSize,
) -> Option<Vec<(u32, Packed)>> {
    is_page(page, bytes).then(|| decode_map(bytes, size)).flatten()
}

/// Whether these bytes are the page.
pub(crate) fn is_page(page: &Page, bytes: &[u8]) -> bool {
    count(bytes.len()) == u64::from(page.bytes) && crc32c::crc32c(bytes) == page.crc
}

/// Writes one entry of a map; false if there is nothing to write.
pub(crate) fn encode_entry(
    logical: u32,
    packed: &Packed,
    size: ClusterSize,
    out: &mut Vec<u8>,
) -> bool {
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
        return false;
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
    true
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
    /// Nothing was missing.
    pub(crate) is_whole: bool,
}

struct Section {
    kind: u32,
    id: u32,
    at: u64,
    len: u64,
    crc: u32,
}

/// Reads a checkpoint into an empty state, from copies of its body behind the maps.
pub(crate) fn restore(
    header: &Header,
    copies: [&[u8]; 2],
    mut state: State,
) -> Result<Restored, BadCheckpoint> {
    let part = |copy: usize, at: u64, len: u64, crc: u32| {
        let end = at.checked_add(len).filter(|end| *end <= header.body)?;
        let range = index(at.checked_sub(header.meta)?)..index(end - header.meta);
        let bytes = copies[copy].get(range)?;
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
        let bytes = bytes_of(About::Index(layer));
        let pages = bytes.and_then(|bytes| decode_index(bytes, header.meta));
        if pages.is_none_or(|pages| state.restore_index(layer, pages).is_err()) {
            state.lose_map(layer);
            damaged.push(layer);
        }
    }
    let used = bytes_of(About::Space);
    let is_whole = damaged.is_empty() && used.is_some();
    state.restore_space(used).ok_or(BadCheckpoint::Pool)?;
    Ok(Restored { state, regions, is_whole })
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
    state.page_shift = u8::try_from(from.u32()?).ok().filter(|shift| *shift <= MAX_PAGE_SHIFT)?;
    let [layers, entities, dirty, doubtful] = [from.u32()?, from.u32()?, from.u32()?, from.u32()?];
    let unproven = from.u32()?;
    for _ in 0..layers {
        let (layer, parent) = (LayerId(from.u32()?), LayerId(from.u32()?));
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
    for _ in 0..unproven {
        regions.unproven.insert(from.u64()?);
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
