//! Making the body of a checkpoint, a little at a time.

use alloc::vec::Vec;

use crate::casts::{count, index, low32};
use crate::codec::Put;
use crate::entity::LayerId;
use crate::journal::Position;
use crate::layout::{BLOCK, Cluster, ClusterSize};
use crate::space;
use crate::state::{Copy, Page, PageCounts, State, WalkResult};

use super::{About, ENTRY, Header, Index, Regions, decode_map, encode_page};

/// Numbers before everything else in the section of the pool.
const POOL_HEAD: u64 = 7 * 4;

/// The body of a checkpoint, made a little at a time from a cut of the state.
#[derive(Debug)]
pub(crate) struct Encoder {
    /// Bytes that nobody has taken yet.
    out: Vec<u8>,
    /// Bytes that were taken.
    taken: u64,
    /// The section of the pool, and the used clusters, as they were at the cut.
    pool: Vec<u8>,
    used: Vec<u64>,
    /// Clusters of pages so far, if those that were lost are looked for.
    seen: Option<Vec<u64>>,
    /// Pages of the layer that is being written, and of those that were.
    pages: Index,
    index: Vec<(LayerId, Index)>,
    header: Option<Header>,
}

/// The next part of a body.
#[derive(Debug)]
pub(crate) enum Next {
    /// These bytes; the last ones are padded to whole blocks.
    Bytes(Vec<u8>),
    /// Pages of the current checkpoint, to be handed to [`Encoder::copied`].
    Copy(Copy),
    End,
}

impl Encoder {
    /// Cuts the state.
    pub(crate) fn cut(state: &mut State, regions: &Regions) -> Encoder {
        let mut pool = Vec::new();
        encode_pool(state, regions, &mut pool);
        let used = state.space.used(state.unwritten());
        let seeks = state.lost > 0 && !state.layers.values().any(|layer_state| layer_state.damaged);
        let seen = seeks.then(|| alloc::vec![0; used.len()]);
        state.begin_cut();
        let (out, pages, index) = (Vec::new(), Vec::new(), Vec::new());
        Encoder { out, taken: 0, pool, used, seen, pages, index, header: None }
    }

    fn end(&self) -> u64 {
        self.taken + count(self.out.len())
    }

    /// The next `most` bytes, or the rest.
    pub(crate) fn next(&mut self, state: &mut State, most: usize) -> Next {
        while self.header.is_none() && self.out.len() < most {
            let from = self.out.len();
            match state.walk_cut(&mut self.out, count(most)) {
                WalkResult::Window(window, tally) => self.add_page(window, from, tally, state.size),
                WalkResult::Copy(copy) => return Next::Copy(copy),
                WalkResult::Layer(layer) => {
                    self.index.push((layer, core::mem::take(&mut self.pages)));
                }
                WalkResult::End => {
                    state.end_cut();
                    self.finish();
                }
            }
        }
        let rest = self.out.split_off(self.out.len().min(most));
        let chunk = core::mem::replace(&mut self.out, rest);
        self.taken += count(chunk.len());
        if chunk.is_empty() { Next::End } else { Next::Bytes(chunk) }
    }

    fn add_page(&mut self, window: u32, from: usize, tally: PageCounts, size: ClusterSize) {
        let bytes = &self.out[from..];
        if bytes.is_empty() {
            return;
        }
        if let Some(seen) = &mut self.seen {
            let entries = decode_map(bytes, size).unwrap_or_default();
            for cluster in entries.iter().flat_map(|(_, entry)| entry.clusters()) {
                let (word, bit) = space::place(cluster);
                seen.iter_mut().skip(word).take(1).for_each(|seen| *seen |= bit);
            }
        }
        let at = low32((self.taken + count(from)) / 8);
        let (bytes, crc) = (low32(count(bytes.len())), crc32c::crc32c(bytes));
        self.pages.push((window, Page { at, bytes, crc, tally }));
    }

    /// Takes in pages that were read.
    pub(crate) fn copied(&mut self, state: &mut State, copy: &Copy, pages: &[&[u8]]) {
        for ((window, page), bytes) in copy.pages.iter().zip(pages) {
            let from = self.out.len();
            self.out.extend_from_slice(bytes);
            self.add_page(*window, from, page.tally, state.size);
            state.was_written(copy.layer, *window);
        }
    }

    /// A layer was lost, maybe the one being written: it is left out.
    pub(crate) fn leave_out(&mut self, layer: LayerId, is_being_written: bool) {
        if is_being_written {
            self.pages.clear();
        }
        self.index.retain(|(other, _)| *other != layer);
        self.seen = None;
    }

    fn finish(&mut self) {
        let meta = self.end().next_multiple_of(count(BLOCK));
        self.out.resize(index(meta - self.taken), 0);
        let mut directory = Vec::new();
        let pool = core::mem::take(&mut self.pool);
        self.put_section(About::Pool, &pool, &mut directory);
        let used: Vec<u8> = self.used.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put_section(About::Space, &used, &mut directory);
        for nth in 0..self.index.len() {
            let (layer, pages) = &self.index[nth];
            let (layer, mut bytes) = (*layer, Vec::new());
            for (window, page) in pages {
                encode_page(*window, page, &mut bytes);
            }
            self.put_section(About::Index(layer), &bytes, &mut directory);
        }
        let (at, sections) = (self.end(), low32(count(directory.len() / ENTRY)));
        let directory_crc = crc32c::crc32c(&directory);
        self.out.append(&mut directory);
        let body = self.end();
        self.out.resize(self.out.len() + index(body.next_multiple_of(count(BLOCK)) - body), 0);
        let position = Position { number: 0, group: 0, incarnation: 0 };
        let (generation, directory) = (0, at);
        let header =
            Header { generation, position, body, meta, directory, sections, directory_crc };
        self.header = Some(header);
    }

    fn put_section(&mut self, about: About, bytes: &[u8], directory: &mut Vec<u8>) {
        let (kind, id) = about.numbers();
        directory.put32(kind);
        directory.put32(id);
        directory.put64(self.end());
        directory.put64(count(bytes.len()));
        directory.put32(crc32c::crc32c(bytes));
        directory.put32(0);
        self.out.extend_from_slice(bytes);
    }

    /// The header, when all has been written.
    pub(crate) fn header(&self) -> Option<Header> {
        self.header.filter(|_| self.out.is_empty())
    }

    /// Where the pages are, and the clusters that no map has, if they were looked for.
    pub(crate) fn into_parts(self) -> (Vec<(LayerId, Index)>, Option<Vec<Cluster>>) {
        let unseen = |seen: &Vec<u64>| {
            let words = seen.iter().zip(&self.used).map(|(seen, used)| used & !seen);
            let numbers = (0u32..).zip(words).flat_map(|(word, bits)| {
                (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
            });
            numbers.map(Cluster).collect()
        };
        let lost = self.seen.as_ref().map(unseen);
        (self.index, lost)
    }
}

/// Writes the whole body of a checkpoint, and its header, of a state that is all in memory.
pub(crate) fn encode(state: &mut State, regions: &Regions) -> Option<(Header, Vec<u8>)> {
    let mut encoder = Encoder::cut(state, regions);
    let mut body = Vec::new();
    loop {
        match encoder.next(state, 1 << 20) {
            Next::Bytes(mut chunk) => body.append(&mut chunk),
            Next::Copy(_) => return None,
            Next::End => return encoder.header().map(|header| (header, body)),
        }
    }
}

/// The most bytes of a body that are there whatever a pool holds: the ends of both of its parts,
/// two entries of the directory, the used clusters, every region as dirty and as doubtful, and the
/// unproven blocks.
pub(crate) fn fixed_bytes(clusters: u32, size: ClusterSize) -> u64 {
    let used = u64::from(clusters.div_ceil(64)) * 8;
    let regions = clusters / size.per_region() + 1;
    let unproven = 8 * count(Regions::MOST_UNPROVEN);
    2 * count(BLOCK) + 2 * count(ENTRY) + POOL_HEAD + used + 8 * u64::from(regions) + unproven
}

fn encode_pool(state: &State, regions: &Regions, out: &mut Vec<u8>) {
    out.put32(state.next_layer);
    out.put32(u32::from(state.page_shift));
    let lens =
        [state.layers.len(), state.entities.len(), regions.dirty.len(), regions.doubtful.len()];
    for len in lens.into_iter().chain([regions.unproven.len()]) {
        out.put32(low32(count(len)));
    }
    for (layer, layer_state) in &state.layers {
        out.put32(layer.0);
        out.put32(layer_state.parent.0);
        out.put64(0);
        out.put64(layer_state.limit);
    }
    state.entities.values().for_each(|entity| entity.encode(out));
    regions.dirty.iter().chain(&regions.doubtful).for_each(|region| out.put32(*region));
    regions.unproven.iter().for_each(|block| out.put64(*block));
}
