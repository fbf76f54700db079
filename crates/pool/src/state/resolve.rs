//! Where a block is, through all layers; flattened, so that depth costs nothing.
//!
//! A flat table is the place of every block of one logical cluster as one layer sees it. It stays
//! right when ancestors are collapsed, since that moves no block; only a change of the same entry
//! changes it, and does so in place.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::bits::Run;
use crate::casts::index;
use crate::entity::LayerId;
use crate::layout::Cluster;
use crate::map::BlockState;

use super::State;

/// A flat table: the cluster of each block, or [`HOLE`].
type Flat = Box<[u32]>;
const HOLE: u32 = u32::MAX;

/// A run of blocks in one cluster, or of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) run: Run,
    pub(crate) at: Option<Cluster>,
}

/// A bounded cache of flat tables.
#[derive(Clone, Debug, Default)]
pub(super) struct FlatCache {
    tables: BTreeMap<(LayerId, u32), Flat>,
    /// The next table to give up is the first one after this.
    hand: (LayerId, u32),
    /// Most blocks that all tables together cover.
    blocks: usize,
}

impl FlatCache {
    pub(super) fn set(&mut self, key: (LayerId, u32), run: Run, at: Option<Cluster>) {
        if self.tables.is_empty() {
            return;
        }
        if let Some(table) = self.tables.get_mut(&key) {
            let at = at.map_or(HOLE, |cluster| cluster.0);
            table[usize::from(run.first)..usize::from(run.end())].fill(at);
        }
    }

    pub(super) fn forget(&mut self, layer: LayerId) {
        let mut rest = self.tables.split_off(&(layer, 0));
        if let Some(after) = layer.0.checked_add(1) {
            self.tables.append(&mut rest.split_off(&(LayerId(after), 0)));
        }
    }

    pub(super) fn forget_one(&mut self, key: (LayerId, u32)) {
        self.tables.remove(&key);
    }

    fn insert(&mut self, key: (LayerId, u32), table: Flat) {
        while !self.tables.is_empty() && (self.tables.len() + 1) * table.len() > self.blocks {
            let after = self.tables.range(self.hand..).next().or_else(|| self.tables.iter().next());
            let Some((victim, _)) = after else { break };
            let victim = *victim;
            self.tables.remove(&victim);
            self.hand = victim;
        }
        self.tables.insert(key, table);
    }
}

impl State {
    /// Sets the memory for flat tables; one may exceed it.
    pub(crate) fn limit_flat(&mut self, bytes: u64) {
        self.flat.blocks = index(bytes) / size_of::<u32>();
    }

    /// Where one block is; by walking, for rare questions.
    pub(crate) fn find(&self, layer: LayerId, logical: u32, block: u16) -> Option<Cluster> {
        let number = (u64::from(logical) << self.size.shift()) + u64::from(block);
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            match layer_state
                .map
                .get(&logical)
                .map_or(BlockState::Nothing, |entry| entry.says(block))
            {
                BlockState::At(cluster) => return Some(cluster),
                BlockState::Zero => return None,
                BlockState::Nothing if number >= layer_state.limit => return None,
                BlockState::Nothing => here = layer_state.parent,
            }
        }
        None
    }

    /// The cluster that has all blocks of a run, if that is one, and known without reading.
    pub(crate) fn covering(&self, layer: LayerId, logical: u32, run: Run) -> Option<Cluster> {
        let layer_state = self.layers.get(&layer)?;
        if layer_state.parent == LayerId::NONE {
            return layer_state.map.get(&logical)?.covering(run);
        }
        let table = self.flat.tables.get(&(layer, logical))?;
        let (first, rest) =
            table.get(usize::from(run.first)..usize::from(run.end()))?.split_first()?;
        (*first != HOLE && rest.iter().all(|at| at == first)).then_some(Cluster(*first))
    }

    /// The pieces of a run, in order; false if a part of a map must be read first.
    pub(crate) fn pieces(
        &mut self,
        layer: LayerId,
        logical: u32,
        run: Run,
        out: &mut Vec<Piece>,
    ) -> bool {
        out.clear();
        let Some(layer_state) = self.layers.get(&layer) else { return true };
        if layer_state.parent == LayerId::NONE {
            let Some(entry) = layer_state.map.get(&logical) else {
                out.push(Piece { run, at: None });
                return !layer_state.is_absent(self.window_of(logical));
            };
            if let Some(cluster) = entry.covering(run) {
                out.push(Piece { run, at: Some(cluster) });
                return true;
            }
            let says = |block| match entry.says(block) {
                BlockState::At(cluster) => Some(cluster),
                BlockState::Zero | BlockState::Nothing => None,
            };
            join(run, says, out);
            return true;
        }
        let key = (layer, logical);
        if !self.flat.tables.contains_key(&key) {
            if self.misses(layer, logical) {
                return false;
            }
            let table = self.flatten(layer, logical);
            self.flat.insert(key, table);
        }
        if let Some(table) = self.flat.tables.get(&key) {
            let at = |block: u16| Some(table[usize::from(block)]).filter(|at| *at != HOLE);
            join(run, |block| at(block).map(Cluster), out);
        }
        true
    }

    /// Whether something that the layer shows of a logical cluster is not in memory.
    fn misses(&self, layer: LayerId, logical: u32) -> bool {
        let window = self.window_of(logical);
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            if layer_state.is_absent(window) {
                return true;
            }
            let seen = layer_state.limit.checked_sub(1).map(|limit| self.window_at(limit));
            if seen.is_none_or(|last| last < window) {
                return false;
            }
            here = layer_state.parent;
        }
        false
    }

    fn flatten(&self, layer: LayerId, logical: u32) -> Flat {
        let blocks = index(self.size.blocks());
        let mut table = alloc::vec![HOLE; blocks].into_boxed_slice();
        let mut open = alloc::vec![true; blocks];
        let base = u64::from(logical) << self.size.shift();
        let mut visible = blocks;
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            if let Some(entry) = layer_state.map.get(&logical) {
                for (block, (open, at)) in open.iter_mut().zip(&mut table).enumerate() {
                    if !*open || block >= visible {
                        continue;
                    }
                    let says = entry.says(crate::casts::low16(crate::casts::count(block)));
                    *open = says == BlockState::Nothing;
                    if let BlockState::At(cluster) = says {
                        *at = cluster.0;
                    }
                }
            }
            visible = visible.min(index(layer_state.limit.saturating_sub(base)));
            here = layer_state.parent;
        }
        table
    }

    /// Runs of blocks that are written, from `start`, at most `most` of them; for "which ranges are
    /// written". A range that is only zero marks is not.
    pub(crate) fn written(
        &mut self,
        layer: LayerId,
        range: (u64, u64),
        most: usize,
    ) -> Vec<(u64, u64)> {
        self.select(layer, range, most, |state, logical, run, out| {
            state.pieces(layer, logical, run, out);
            out.retain(|piece| piece.at.is_some());
        })
    }

    /// Runs of blocks that this very layer has; all layers together have every block once.
    pub(crate) fn own(
        &self,
        layer: LayerId,
        (from, end): (u64, u64),
        most: usize,
    ) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        let Some(layer_state) = self.layers.get(&layer) else { return found };
        let shift = self.size.shift();
        let first = crate::casts::low32((from >> shift).min(u64::from(u32::MAX)));
        for (logical, entry) in layer_state.map.range(first..) {
            let base = u64::from(*logical) << shift;
            if found.len() > most || base >= end {
                break;
            }
            let skip = from.saturating_sub(base);
            let mut pieces = Vec::new();
            let says = |block| match entry.says(block) {
                BlockState::At(cluster) => Some(cluster),
                BlockState::Zero | BlockState::Nothing => None,
            };
            join(Run::of(skip..self.size.blocks().min(end - base)), says, &mut pieces);
            for piece in pieces.iter().filter(|piece| piece.at.is_some()) {
                let from = base + u64::from(piece.run.first);
                push_run(&mut found, (from, from + u64::from(piece.run.len)));
            }
        }
        found.truncate(most);
        found
    }

    /// Runs of blocks whose place is another one in `newer` than in `older`.
    pub(crate) fn changed(
        &mut self,
        older: LayerId,
        newer: LayerId,
        range: (u64, u64),
    ) -> Vec<(u64, u64)> {
        let mut before = Vec::new();
        // All of them: what only one of the two has is known of all of the range, or of none.
        let most = usize::MAX;
        let mut found = self.select(newer, range, most, |state, logical, run, out| {
            state.pieces(newer, logical, run, out);
            state.pieces(older, logical, run, &mut before);
            *out = differences(out, &before);
        });
        let gone = self.select(older, range, most, |state, logical, run, out| {
            state.pieces(newer, logical, run, out);
            state.pieces(older, logical, run, &mut before);
            *out = differences(out, &before);
        });
        found.extend(gone);
        merged(found)
    }

    /// Asks `pick` about each logical cluster that the layer or one below has anything of.
    fn select(
        &mut self,
        layer: LayerId,
        (start, end): (u64, u64),
        most: usize,
        mut pick: impl FnMut(&mut State, u32, Run, &mut Vec<Piece>),
    ) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut pieces = Vec::new();
        let shift = self.size.shift();
        let mut next = Some(crate::casts::low32((start >> shift).min(u64::from(u32::MAX))));
        while let Some(logical) = next.and_then(|from| self.next_logical(layer, from)) {
            let base = u64::from(logical) << shift;
            let (from, to) = (start.max(base) - base, end.min(base + self.size.blocks()));
            if to <= base + from || found.len() > most {
                break;
            }
            pick(self, logical, Run::of(from..to - base), &mut pieces);
            for piece in &pieces {
                let from = base + u64::from(piece.run.first);
                push_run(&mut found, (from, from + u64::from(piece.run.len)));
            }
            next = logical.checked_add(1);
        }
        found.truncate(most);
        found
    }

    fn next_logical(&self, layer: LayerId, from: u32) -> Option<u32> {
        let mut best: Option<u32> = None;
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            let first = layer_state.map.range(from..).next().map(|(logical, _)| *logical);
            best = [best, first].into_iter().flatten().min();
            here = layer_state.parent;
        }
        best
    }
}

fn join(run: Run, at: impl Fn(u16) -> Option<Cluster>, out: &mut Vec<Piece>) {
    for block in run.blocks() {
        let at = at(block);
        match out.last_mut() {
            Some(last) if last.at == at => last.run.len += 1,
            _ => out.push(Piece { run: Run { first: block, len: 1 }, at }),
        }
    }
}

fn differences(newer: &[Piece], older: &[Piece]) -> Vec<Piece> {
    let flat = |pieces: &[Piece]| -> Vec<(u16, Option<Cluster>)> {
        pieces.iter().flat_map(|piece| piece.run.blocks().map(|block| (block, piece.at))).collect()
    };
    let mut out = Vec::new();
    for ((block, new), (_, old)) in flat(newer).into_iter().zip(flat(older)) {
        if new != old {
            out.push(Piece { run: Run { first: block, len: 1 }, at: new });
        }
    }
    out
}

fn push_run(found: &mut Vec<(u64, u64)>, (from, to): (u64, u64)) {
    match found.last_mut() {
        Some(last) if last.1 == from => last.1 = to,
        _ => found.push((from, to)),
    }
}

fn merged(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (from, to) in runs {
        match out.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}
