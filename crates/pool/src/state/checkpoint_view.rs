//! The state as it was when a checkpoint was cut, while it goes on changing.
//!
//! Invariant: an entry that the checkpoint has not written yet is as it was at the cut, or what it
//! was is kept here. So the map of a pool is written a window at a time, and nothing waits.
//! One that is not in memory has not changed since the current checkpoint, and is copied from it.
//!
//! Windows are written in the order of layers and logical clusters; layers made since the cut have
//! higher numbers than all of it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::checkpoint::encode_entry;
use crate::entity::LayerId;
use crate::map::Packed;

use super::{Page, PageCounts, State};

/// What is still to be written of a cut.
#[derive(Clone, Debug)]
pub(super) struct CheckpointView {
    /// Layers still to be written; the first one in part.
    layers: VecDeque<LayerId>,
    /// The first window of the first layer that was not written.
    next: u64,
    /// Entries as they were, or that there was none.
    kept: BTreeMap<(LayerId, u32), Option<Packed>>,
}

/// How far a walk came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WalkResult {
    /// A window was written, if it has entries.
    Window(u32, PageCounts),
    /// These windows are to be copied from the current checkpoint.
    Copy(Copy),
    /// This layer has been written.
    Layer(LayerId),
    /// All layers have.
    End,
}

/// Windows of a layer whose pages lie in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) layer: LayerId,
    pub(crate) pages: Vec<(u32, Page)>,
}

impl CheckpointView {
    /// An entry is about to change.
    pub(super) fn keep(
        &mut self,
        layer: LayerId,
        (logical, window): (u32, u32),
        entry: impl FnOnce() -> Option<Packed>,
    ) {
        let (Some(first), Some(last)) = (self.layers.front(), self.layers.back()) else { return };
        let written = (layer, u64::from(window)) < (*first, self.next);
        if !written && layer <= *last {
            self.kept.entry((layer, logical)).or_insert_with(entry);
        }
    }
}

impl State {
    /// From here on the state of this moment can be walked through.
    pub(crate) fn begin_cut(&mut self) {
        let sound = self.layers.iter().filter(|(_, layer_state)| !layer_state.damaged);
        let layers = sound.map(|(layer, _)| *layer).collect();
        self.cut = Some(CheckpointView { layers, next: 0, kept: BTreeMap::new() });
        self.cut_windows();
    }

    /// Nobody will walk any further.
    pub(crate) fn end_cut(&mut self) {
        self.cut = None;
    }

    /// Writes the next window of the cut; at most `most` bytes are to be copied at once.
    pub(crate) fn walk_cut(&mut self, out: &mut Vec<u8>, most: u64) -> WalkResult {
        let Some(cut) = &mut self.cut else { return WalkResult::End };
        let Some(layer) = cut.layers.front().copied() else { return WalkResult::End };
        let layer_state = self.layers.get(&layer);
        let kept = cut.kept.range((layer, 0)..=(layer, u32::MAX)).next();
        let kept = kept.map(|((_, logical), _)| logical >> self.page_shift);
        let from = u32::try_from(cut.next).ok();
        let used = from.zip(layer_state).and_then(|(from, layer_state)| {
            layer_state.windows.range(from..).find(|(_, window)| window.is_used())
        });
        let Some(at) = [kept, used.map(|(at, _)| *at)].into_iter().flatten().min() else {
            cut.layers.pop_front();
            cut.next = 0;
            return WalkResult::Layer(layer);
        };
        if let Some(layer_state) = layer_state.filter(|layer_state| layer_state.is_absent(at)) {
            let mut pages: Vec<(u32, Page)> = Vec::new();
            for (at, window) in
                layer_state.windows.range(at..).filter(|(_, window)| window.is_used())
            {
                let Some(page) = window.page.filter(|_| window.absent) else { break };
                let in_a_row = pages.last().is_none_or(|(_, last)| last.is_before(&page));
                let first = pages.first().map_or(page, |(_, first)| *first);
                let bytes = page.range().end.saturating_sub(first.range().start);
                if !in_a_row || (!pages.is_empty() && bytes > most) {
                    break;
                }
                pages.push((*at, page));
            }
            return WalkResult::Copy(Copy { layer, pages });
        }
        let tally = self.write_window(layer, at, out);
        self.was_written(layer, at);
        WalkResult::Window(at, tally)
    }

    /// Writes the entries of a window as they were at the cut.
    fn write_window(&mut self, layer: LayerId, at: u32, out: &mut Vec<u8>) -> PageCounts {
        let range = self.logicals(at);
        let (first, last) = (*range.start(), *range.end());
        let mut tally = PageCounts::default();
        let size = self.size;
        let Some(cut) = &mut self.cut else { return tally };
        let keys = cut.kept.range((layer, first)..=(layer, last)).map(|(key, _)| *key);
        let keys: Vec<(LayerId, u32)> = keys.collect();
        let kept = keys.into_iter().filter_map(|key| Some((key.1, cut.kept.remove(&key)?)));
        let kept: Vec<(u32, Option<Packed>)> = kept.collect();
        let mut put = |logical: u32, entry: &Packed| {
            if encode_entry(logical, entry, size, out) {
                tally.add(&entry.written(), size);
            }
        };
        let mut kept = kept.into_iter().peekable();
        let map = self.layers.get(&layer).map(|layer_state| &layer_state.map);
        for (logical, entry) in map.into_iter().flat_map(|map| map.range(range.clone())) {
            while let Some((before, old)) = kept.next_if(|(before, _)| before < logical) {
                if let Some(old) = &old {
                    put(before, old);
                }
            }
            match kept.next_if(|(same, _)| same == logical) {
                Some((_, Some(old))) => put(*logical, &old),
                Some((_, None)) => {}
                None => put(*logical, entry),
            }
        }
        for (logical, old) in kept {
            if let Some(old) = &old {
                put(logical, old);
            }
        }
        tally
    }

    /// Whether this layer is the one being written.
    pub(crate) fn is_cutting(&self, layer: LayerId) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.layers.front() == Some(&layer))
    }

    /// Everything up to this window has been written.
    pub(crate) fn was_written(&mut self, layer: LayerId, at: u32) {
        let last = *self.logicals(at).end();
        let Some(cut) = &mut self.cut else { return };
        cut.next = u64::from(at) + 1;
        while let Some(kept) = cut.kept.first_entry() {
            if *kept.key() > (layer, last) {
                break;
            }
            kept.remove();
        }
    }

    /// The layer being written cannot be: it is left out.
    pub(crate) fn leave_out_of_cut(&mut self, layer: LayerId) {
        let Some(cut) = &mut self.cut else { return };
        if cut.layers.front() == Some(&layer) {
            cut.next = 0;
        }
        cut.layers.retain(|other| *other != layer);
        cut.kept.retain(|(other, _), _| *other != layer);
    }
}
