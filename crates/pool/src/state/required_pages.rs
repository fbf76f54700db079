//! Which parts of the maps must be in memory before something is done. Whoever does it asks again
//! until nothing is missing: what is known may show that more is needed.

use alloc::vec::Vec;
use core::ops::Range;

use crate::entity::{Id, LayerId};
use crate::map::Packed;
use crate::record::Record;

use super::{PageKey, State};

/// Windows of a hidden layer that move down in one go. In tests one, so that histories are cut
/// between.
const MOVED: usize = if cfg!(test) { 1 } else { 16 };

impl State {
    /// Of a change of these blocks to zeros.
    pub(crate) fn needs_discard(&self, layer: LayerId, blocks: Range<u64>, out: &mut Vec<PageKey>) {
        if blocks.is_empty() {
            return;
        }
        let windows = self.window_at(blocks.start)..=self.window_at(blocks.end - 1);
        self.absent_in(layer, windows.clone(), out);
        let Some(layer_state) = self.layers.get(&layer) else { return };
        let seen = blocks.end.min(layer_state.limit);
        if blocks.start < seen {
            self.absent_below(layer_state.parent, *windows.start()..=self.window_at(seen - 1), out);
        }
    }

    /// The last logical cluster of the windows of a hidden layer that move down next.
    pub(crate) fn next_moved(&self, layer: LayerId) -> u32 {
        let Some(layer_state) = self.layers.get(&layer) else { return u32::MAX };
        let used = layer_state.windows.iter().filter(|(_, window)| window.is_used());
        let last = used.take(MOVED).last();
        last.map_or(u32::MAX, |(window, _)| *self.logicals(*window).end())
    }

    /// Of moving the entries of a hidden layer up to a logical cluster into its child.
    pub(crate) fn needs_move(&self, layer: LayerId, last: u32, out: &mut Vec<PageKey>) {
        let Some(layer_state) = self.layers.get(&layer) else { return };
        let windows = 0..=self.window_of(last);
        self.absent_in(layer, windows.clone(), out);
        let child = if layer_state.children == 1 { self.child_of(layer) } else { None };
        let Some((child, into)) = child.and_then(|child| self.layers.get_key_value(&child)) else {
            return;
        };
        let used =
            || layer_state.windows.range(windows.clone()).filter(|(_, window)| window.is_used());
        for (window, _) in used() {
            self.absent_in(*child, *window..=*window, out);
        }
        for (window, _) in used() {
            // Marks are kept where they hide something of the layers below.
            let logicals = self.logicals(*window);
            let mut entries =
                layer_state.map.range(logicals.clone()).chain(into.map.range(logicals));
            if entries.any(|(_, entry): (&u32, &Packed)| entry.has_marks())
                && let Some(limit) = layer_state.limit.checked_sub(1)
                && *window <= self.window_at(limit)
            {
                self.absent_below(layer_state.parent, *window..=*window, out);
            }
        }
    }

    /// Of shrinking a replica: what lies beyond the new end in the same window.
    pub(crate) fn needs_resize(&self, id: Id, size: u64, out: &mut Vec<PageKey>) {
        if let Some(entity) = self.entities.get(&id).filter(|entity| size < entity.size.0) {
            let window = self.window_at(size);
            self.absent_in(entity.layer, window..=window, out);
        }
    }

    /// Of replaying a record.
    pub(crate) fn needs(&self, record: &Record, out: &mut Vec<PageKey>) {
        match record {
            Record::FirstWrite { at, .. } => {
                let window = self.window_of(at.logical);
                self.absent_in(at.layer, window..=window, out);
            }
            Record::Discard { layer, start, len } => {
                self.needs_discard(*layer, *start..start.saturating_add(*len), out);
            }
            Record::Move { layer, last } => self.needs_move(*layer, *last, out),
            Record::Collapse(layer) => self.needs_move(*layer, u32::MAX, out),
            Record::Resize { id, size } => self.needs_resize(*id, size.0, out),
            Record::Dirty { .. }
            | Record::Overwrite { .. }
            | Record::Create(_)
            | Record::Snapshot { .. }
            | Record::Delete(_)
            | Record::Update(_) => {}
        }
    }

    /// The first window of a layer that lies wholly beyond what its owner sees, if there is one: a
    /// replica was shrunk, and not all that was there is gone yet.
    pub(crate) fn untrimmed(&self, layer: LayerId) -> Option<u32> {
        let layer_state = self.layers.get(&layer)?;
        let size = self.entities.get(&layer_state.owner)?.size.0;
        let inside = self.window_at(size.saturating_sub(1));
        let mut beyond = layer_state.windows.range(inside.checked_add(1)?..);
        beyond.find(|(_, window)| window.is_used()).map(|(window, _)| *window)
    }
}
