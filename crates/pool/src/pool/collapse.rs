//! Collapsing hidden layers beside I/O, some entries with each batch.

use alloc::vec::Vec;

use crate::record::Record;
use crate::state::LayerState;

use super::Pool;
use super::paging::Holder;

/// Entries of a hidden layer that move down with one batch.
/// In tests few, so that histories are cut between.
const MOVES: usize = if cfg!(test) { 2 } else { 4096 };

impl Pool {
    /// Collapses hidden layers whose delete is durable, some entries with each batch.
    pub(super) fn collapse_hidden(&mut self) {
        if self.is_trimming() || self.paging.is_waiting(Holder::Collapse) {
            return;
        }
        let merged = self.merged_layer();
        let Some(layer) = self.state.collapsible(&self.hiding).filter(|it| Some(*it) != merged)
        else {
            // One that was waited for may have been damaged meanwhile.
            return self.let_go(Holder::Collapse);
        };
        let last = self.state.next_moved(layer);
        let mut missing = Vec::new();
        self.state.needs_move(layer, last, &mut missing);
        if !missing.is_empty() {
            return self.await_pages(Holder::Collapse, missing);
        }
        let moved = self.state.move_down(layer, last, MOVES);
        self.let_go(Holder::Collapse);
        let is_empty = self.state.layers.get(&layer).is_some_and(LayerState::is_empty);
        if let Ok(Some(last)) = moved {
            self.record(&Record::Move { layer, last });
            self.open.wanted = true;
        }
        if is_empty && self.state.collapse(layer).is_ok() {
            self.record(&Record::Collapse(layer));
            self.open.wanted = true;
        }
    }

    /// Whether clusters will come from layers that are still to be collapsed. Not as long as a map
    /// that this needs cannot be read.
    pub(super) fn collapse_is_due(&self) -> bool {
        let merged = self.merged_layer();
        let next = self.state.collapsible(&self.hiding).filter(|layer| Some(*layer) != merged);
        (!self.hiding.is_empty() || next.is_some()) && !self.paging.collapse_failed
    }

    /// Whether the next layer to be collapsed waits for a merge.
    pub(super) fn collapse_awaits_merge(&self) -> bool {
        let merged = self.merged_layer();
        merged.is_some() && self.state.collapsible(&self.hiding) == merged
    }
}
