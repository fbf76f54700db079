//! Which parts of the maps are in memory.
//!
//! A map is divided into *windows* of logical clusters. The current checkpoint has a page for each
//! window with entries; a window whose entries are not in memory is *absent*.
//!
//! ```text
//!             take_page                    edit
//!   Absent ──────────────► Present ──────────────────► Changed
//!      ▲                     │  ▲                          │
//!      └────── give up ──────┘  └── a checkpoint has it ───┘
//! ```
//!
//! Invariants:
//! - entries of an absent window are as its page says, and none of them is in the map;
//! - a window is absent only if nothing in it changed since the current checkpoint was cut, and
//!   nobody holds it;
//! - counters of layers count absent windows as well; a page that counts otherwise is damage.
//!
//! Not here: reading pages (`pool::paging`), writing them (`checkpoint`).

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::casts::low32;
use crate::checkpoint::Index;
use crate::entity::LayerId;
use crate::layout::ClusterSize;
use crate::map::Packed;
use crate::mutation::{Rule, disabled};

use super::window::{Page, PageCounts, Window};
use super::{Contradiction, LayerState, State};

/// Blocks of a layer that one page covers, as a power of two: 256 MiB. In tests two small clusters,
/// so that even small replicas have several.
const PAGE_BLOCKS: u8 = if cfg!(test) { 7 } else { 16 };

/// Bytes of a page in the index of a checkpoint.
pub(crate) const INDEX_BYTES: u64 = 32;

/// What an entry takes in memory beside its encoding, about.
const OVERHEAD: u64 = 32;

/// A window of a layer.
pub(crate) type PageKey = (LayerId, u32);

/// Memory that an entry takes, about.
pub(super) fn cost(encoded: u64) -> u64 {
    if encoded == 0 { 0 } else { encoded + OVERHEAD }
}

/// Logical clusters of a window, as a power of two.
pub(crate) fn page_shift(size: ClusterSize) -> u8 {
    PAGE_BLOCKS.saturating_sub(size.shift())
}

impl LayerState {
    /// Whether its map has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    pub(super) fn is_absent(&self, window: u32) -> bool {
        self.absent > 0 && self.windows.get(&window).is_some_and(|window| window.absent)
    }
}

impl State {
    /// Sets the memory for maps. What changed, or is in use, may exceed it.
    pub(crate) fn limit_maps(&mut self, bytes: u64) {
        (self.resident.limit, self.resident.any_split) = (bytes, true);
    }

    /// The window of a logical cluster.
    pub(crate) fn window_of(&self, logical: u32) -> u32 {
        logical >> self.page_shift
    }

    /// The logical clusters of a window.
    pub(crate) fn logicals(&self, window: u32) -> RangeInclusive<u32> {
        let first = window << self.page_shift;
        first..=first | ((1 << self.page_shift) - 1)
    }

    /// The window of a block; the last one for those beyond all.
    pub(crate) fn window_at(&self, block: u64) -> u32 {
        let logical = (block >> self.size.shift()).min(u64::from(u32::MAX));
        self.window_of(low32(logical))
    }

    /// The first block of a window.
    pub(crate) fn window_start(&self, window: u32) -> u64 {
        u64::from(window) << (self.page_shift + self.size.shift())
    }

    /// The first block behind a window.
    pub(crate) fn window_end(&self, window: u32) -> u64 {
        (u64::from(window) + 1) << (self.page_shift + self.size.shift())
    }

    /// Whether the entry is not in memory though there may be one.
    pub(crate) fn is_absent(&self, layer: LayerId, logical: u32) -> bool {
        let window = self.window_of(logical);
        self.layers.get(&layer).is_some_and(|layer_state| layer_state.is_absent(window))
    }

    /// The window has this many entries more, and this much memory.
    pub(super) fn note(&mut self, layer: LayerId, logical: u32, more: i64, cost: (u64, u64)) {
        let at = self.window_of(logical);
        let Some(layer_state) = self.layers.get_mut(&layer) else { return };
        let window = layer_state.windows.entry(at).or_default();
        debug_assert!(!window.absent, "an entry changes that is not in memory");
        let was_used = window.entries > 0;
        window.entries = window.entries.saturating_add_signed(i32::try_from(more).unwrap_or(0));
        layer_state.entries = layer_state.entries.saturating_add_signed(more);
        let (old, new) = cost;
        window.cost = (window.cost + new).saturating_sub(old);
        self.resident.bytes = (self.resident.bytes + new).saturating_sub(old);
        if window.changed {
            self.resident.changed = (self.resident.changed + new).saturating_sub(old);
        } else {
            window.changed = true;
            self.resident.changed += window.cost;
        }
        match (was_used, window.entries > 0) {
            (false, true) => self.meta_bytes += INDEX_BYTES,
            (true, false) => self.meta_bytes -= INDEX_BYTES,
            _ => {}
        }
        if window.entries == 0 && window.page.is_none() && window.held == 0 && !window.cut {
            self.resident.changed = self.resident.changed.saturating_sub(window.cost);
            layer_state.windows.remove(&at);
        }
    }

    /// Keeps a window in memory until it is released as often.
    pub(crate) fn hold(&mut self, (layer, window): PageKey) {
        if let Some(layer_state) = self.layers.get_mut(&layer) {
            layer_state.windows.entry(window).or_default().held += 1;
        }
    }

    pub(crate) fn release(&mut self, (layer, at): PageKey) {
        let Some(layer_state) = self.layers.get_mut(&layer) else { return };
        let Some(window) = layer_state.windows.get_mut(&at) else { return };
        window.held = window.held.saturating_sub(1);
        self.resident.stuck = false;
        let is_idle = window.held == 0 && !window.is_used() && !window.cut;
        if is_idle && window.page.is_none() {
            layer_state.windows.remove(&at);
        }
    }

    /// Puts those windows of a range on the list that are absent.
    pub(crate) fn absent_in(
        &self,
        layer: LayerId,
        windows: RangeInclusive<u32>,
        out: &mut Vec<PageKey>,
    ) {
        let Some(layer_state) = self.layers.get(&layer) else { return };
        if layer_state.absent > 0 && !windows.is_empty() {
            let absent = layer_state.windows.range(windows).filter(|(_, window)| window.absent);
            out.extend(absent.map(|(window, _)| (layer, *window)));
        }
    }

    /// As [`State::absent_in`], of the layer and all that it shows of those below.
    pub(crate) fn absent_below(
        &self,
        layer: LayerId,
        windows: RangeInclusive<u32>,
        out: &mut Vec<PageKey>,
    ) {
        let (first, mut last) = windows.into_inner();
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            self.absent_in(here, first..=last, out);
            let Some(limit) = layer_state.limit.checked_sub(1) else { break };
            last = last.min(self.window_at(limit));
            here = layer_state.parent;
        }
    }

    /// The next window that the layer, or one it shows something of, has anything in.
    pub(crate) fn next_window(&self, layer: LayerId, from: u32) -> Option<u32> {
        let mut best: Option<u32> = None;
        let mut here = layer;
        while let Some(layer_state) = self.layers.get(&here) {
            let mut used = layer_state.windows.range(from..).filter(|(_, window)| window.is_used());
            best = [best, used.next().map(|(window, _)| *window)].into_iter().flatten().min();
            here = layer_state.parent;
        }
        best
    }

    /// Where the current checkpoint has a window that is absent.
    pub(crate) fn page_of(&self, (layer, window): PageKey) -> Option<Page> {
        let window = self.layers.get(&layer)?.windows.get(&window)?;
        window.page.filter(|_| window.absent)
    }

    /// Takes in the entries of an absent window. If they are not what they should be, nothing has
    /// changed.
    pub(crate) fn take_page(
        &mut self,
        (layer, at): PageKey,
        entries: Option<Vec<(u32, Packed)>>,
    ) -> Result<(), Contradiction> {
        let page = self.page_of((layer, at)).ok_or(Contradiction)?;
        let entries = entries.ok_or(Contradiction)?;
        self.check_page(layer, at, &page, &entries)?;
        let size = self.size;
        let Some(layer_state) = self.layers.get_mut(&layer) else { return Err(Contradiction) };
        let window = layer_state.windows.entry(at).or_default();
        window.absent = false;
        window.entries = u32::from(page.tally.entries);
        window.cost = entries.iter().map(|(_, entry)| cost(entry.encoded_len(size))).sum();
        self.resident.bytes += window.cost;
        self.resident.stuck = false;
        layer_state.absent -= 1;
        for (logical, entry) in entries {
            if entry.clusters().count() > 1 {
                self.split.insert((layer, logical));
            }
            layer_state.map.insert(logical, entry);
        }
        Ok(())
    }

    fn check_page(
        &mut self,
        layer: LayerId,
        at: u32,
        page: &Page,
        entries: &[(u32, Packed)],
    ) -> Result<(), Contradiction> {
        let (size, range) = (self.size, self.logicals(at));
        let has_parent = self.layer_state(layer)?.parent != LayerId::NONE;
        let mut tally = PageCounts::default();
        let mut encoded = 0;
        for (logical, entry) in entries {
            let sound = entry.is_sound(size) && (has_parent || !entry.has_marks());
            if !sound || !range.contains(logical) || tally.entries == u16::MAX {
                return Err(Contradiction);
            }
            tally.add(entry, size);
            encoded += entry.encoded_len(size);
        }
        let ascending = entries.is_sorted_by(|(before, _), (after, _)| before < after);
        if !ascending || tally != page.tally || encoded != u64::from(page.bytes) {
            return Err(Contradiction);
        }
        let parts = || entries.iter().flat_map(|(_, entry)| entry.clusters());
        for (nth, cluster) in parts().enumerate() {
            if !self.space.claim(cluster) {
                parts().take(nth).for_each(|cluster| self.space.forget(cluster));
                return Err(Contradiction);
            }
        }
        Ok(())
    }

    /// Gives windows up until the maps take no more memory than they may.
    pub(crate) fn shed(&mut self) {
        if self.resident.stuck || disabled(Rule::GiveUpPages) {
            return;
        }
        let mut wrapped = false;
        while self.resident.is_over() {
            match self.next_to_go(self.resident.hand) {
                Some(key) => {
                    self.resident.hand = (key.0, key.1.saturating_add(1));
                    self.give_up(key);
                }
                None if wrapped => {
                    self.resident.stuck = true;
                    return;
                }
                None => {
                    wrapped = true;
                    self.resident.hand = (LayerId::NONE, 0);
                }
            }
        }
    }

    /// Whether these pages can be in memory beside what is there, about.
    pub(crate) fn has_memory_for(&self, pages: &[PageKey]) -> bool {
        let bytes = |page: Page| cost(u64::from(page.bytes));
        let wanted: u64 = pages.iter().filter_map(|key| self.page_of(*key).map(bytes)).sum();
        self.resident.bytes + wanted < self.resident.limit
    }

    fn next_to_go(&self, (layer, from): PageKey) -> Option<PageKey> {
        for (here, layer_state) in self.layers.range(layer..) {
            let from = if *here == layer { from } else { 0 };
            let mut windows = layer_state.windows.range(from..);
            if let Some((window, _)) = windows.find(|(_, window)| window.may_go()) {
                return Some((*here, *window));
            }
        }
        None
    }

    fn give_up(&mut self, (layer, at): PageKey) {
        let range = self.logicals(at);
        let Some(layer_state) = self.layers.get_mut(&layer) else { return };
        let Some(window) = layer_state.windows.get_mut(&at) else { return };
        self.resident.bytes = self.resident.bytes.saturating_sub(window.cost);
        (window.absent, window.entries, window.cost) = (true, 0, 0);
        self.resident.any_split |= window.page.is_some_and(|page| page.tally.split > 0);
        layer_state.absent += 1;
        let gone: Vec<u32> = layer_state.map.range(range).map(|(logical, _)| *logical).collect();
        for logical in gone {
            self.split.remove(&(layer, logical));
            let entry = layer_state.map.remove(&logical).unwrap_or_default();
            entry.clusters().for_each(|cluster| self.space.forget(cluster));
        }
    }

    /// A checkpoint is cut: it has everything that has changed.
    pub(super) fn cut_windows(&mut self) {
        for window in
            self.layers.values_mut().flat_map(|layer_state| layer_state.windows.values_mut())
        {
            window.cut |= core::mem::take(&mut window.changed);
        }
        self.resident.cut += core::mem::take(&mut self.resident.changed);
    }

    /// The checkpoint that was cut is the current one, and has these pages; or it was given up.
    pub(crate) fn settle_windows(&mut self, index: Option<Vec<(LayerId, Index)>>) {
        let Some(index) = index else {
            let mut changed = 0;
            for window in
                self.layers.values_mut().flat_map(|layer_state| layer_state.windows.values_mut())
            {
                window.changed |= core::mem::take(&mut window.cut);
                changed += if window.changed { window.cost } else { 0 };
            }
            (self.resident.changed, self.resident.cut) = (changed, 0);
            return;
        };
        for layer_state in self.layers.values_mut() {
            for window in layer_state.windows.values_mut() {
                (window.page, window.cut, window.tried) = (None, false, false);
            }
        }
        for (layer, pages) in index {
            let Some(layer_state) =
                self.layers.get_mut(&layer).filter(|layer_state| !layer_state.damaged)
            else {
                continue;
            };
            for (window, page) in pages {
                layer_state.windows.entry(window).or_default().page = Some(page);
            }
        }
        for layer_state in self.layers.values_mut() {
            layer_state.windows.retain(|_, window| {
                debug_assert!(!window.absent || window.page.is_some(), "a page is lost");
                window.page.is_some() || window.held > 0 || window.is_used()
            });
        }
        (self.resident.cut, self.resident.stuck, self.resident.any_split) = (0, false, true);
    }

    /// Windows that are not in memory and have entries to be merged, of layers with an owner.
    pub(crate) fn absent_split(&mut self) -> Option<PageKey> {
        if !self.resident.any_split {
            return None;
        }
        let stays = |layer_state: &LayerState| {
            layer_state.owner != crate::entity::Id::NONE || layer_state.children > 1
        };
        let owned = |layer_state: &&LayerState| layer_state.absent > 0 && stays(layer_state);
        let layers = self.layers.iter().filter(|(_, layer_state)| owned(layer_state));
        let mut windows = layers.flat_map(|(layer, layer_state)| {
            layer_state.windows.iter().map(move |(at, window)| ((*layer, *at), window))
        });
        let wanted = |window: &Window| {
            let split = window.page.map_or(0, |page| page.tally.split);
            window.absent && !window.tried && split > 0
        };
        let found = windows.find(|(_, window)| wanted(window)).map(|(key, _)| key);
        self.resident.any_split = found.is_some();
        found
    }

    /// A window has nothing more that can be merged now.
    pub(crate) fn tried(&mut self, (layer, window): PageKey) {
        let layer_state = self.layers.get_mut(&layer);
        if let Some(window) =
            layer_state.and_then(|layer_state| layer_state.windows.get_mut(&window))
        {
            window.tried = true;
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl State {
    /// What must hold of the windows; answers bytes of the index and of absent pages.
    pub(super) fn check_windows(&self, layer_state: &LayerState) -> u64 {
        let mut bytes = 0;
        let mut entries = 0;
        for (at, window) in &layer_state.windows {
            let here = layer_state.map.range(self.logicals(*at)).map(|(_, entry)| entry);
            let cost: u64 = here.clone().map(|entry| cost(entry.encoded_len(self.size))).sum();
            let found = crate::casts::count(here.count());
            assert_eq!((u64::from(window.entries), window.cost), (found, cost));
            let may_be_absent = window.entries == 0 && !window.changed;
            assert!(!window.absent || may_be_absent);
            entries += u64::from(window.entries);
            bytes += if window.is_used() { INDEX_BYTES } else { 0 };
            if let Some(page) = window.page.filter(|_| window.absent) {
                entries += u64::from(page.tally.entries);
                bytes += u64::from(page.bytes);
            }
        }
        let absent = layer_state.windows.values().filter(|window| window.absent).count();
        assert_eq!((layer_state.entries, layer_state.absent), (entries, absent));
        bytes
    }
}
