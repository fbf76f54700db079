//! The state as it was when a checkpoint was cut, while it goes on changing.
//!
//! Invariant: an entry that the checkpoint has not written yet is as it was at the cut, or what it
//! was is kept here. So the map of a pool is written a little at a time, and nothing waits.
//!
//! Entries are written in the order of layers and logical clusters; layers made since the cut have
//! higher numbers than all of it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use crate::checkpoint::encode_entry;
use crate::entity::Layer;
use crate::map::Packed;

use super::State;

/// What is still to be written of a cut.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// Layers still to be written; the first one in part.
    layers: VecDeque<Layer>,
    /// The first logical cluster of the first layer that was not written.
    next: u64,
    /// Entries as they were, or that there was none.
    kept: BTreeMap<(Layer, u32), Option<Packed>>,
}

/// How far a walk came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// As many bytes were written as asked for.
    Far,
    /// This layer has been written.
    Layer(Layer),
    /// All layers have.
    End,
}

impl Cut {
    /// An entry is about to change.
    pub(super) fn keep(
        &mut self,
        layer: Layer,
        logical: u32,
        entry: impl FnOnce() -> Option<Packed>,
    ) {
        let (Some(first), Some(last)) = (self.layers.front(), self.layers.back()) else { return };
        let written = (layer, u64::from(logical)) < (*first, self.next);
        if !written && layer <= *last {
            self.kept.entry((layer, logical)).or_insert_with(entry);
        }
    }
}

impl State {
    /// From here on the state of this moment can be walked through.
    pub(crate) fn begin_cut(&mut self) {
        let sound = self.layers.iter().filter(|(_, tier)| !tier.damaged);
        let layers = sound.map(|(layer, _)| *layer).collect();
        self.cut = Some(Cut { layers, next: 0, kept: BTreeMap::new() });
    }

    pub(crate) fn end_cut(&mut self) {
        self.cut = None;
    }

    /// Writes the next entries of the cut, of one layer, until `out` has `most` bytes.
    pub(crate) fn walk_cut(&mut self, out: &mut Vec<u8>, most: usize) -> Walked {
        let Some(cut) = &mut self.cut else { return Walked::End };
        let Some(layer) = cut.layers.front().copied() else { return Walked::End };
        let map = self.layers.get(&layer).map(|tier| &tier.map);
        while out.len() < most {
            let from = u32::try_from(cut.next).ok();
            let now = from.and_then(|from| map?.range(from..).next());
            let kept = cut.kept.range((layer, 0)..=(layer, u32::MAX)).next();
            let kept = kept.map(|((_, logical), _)| *logical);
            match (kept, now) {
                (Some(kept), now) if now.is_none_or(|(logical, _)| kept <= *logical) => {
                    if let Some(entry) = cut.kept.remove(&(layer, kept)).flatten() {
                        encode_entry(kept, &entry, self.size, out);
                    }
                    cut.next = u64::from(kept) + 1;
                }
                (_, Some((logical, entry))) => {
                    encode_entry(*logical, entry, self.size, out);
                    cut.next = u64::from(*logical) + 1;
                }
                (_, None) => {
                    cut.layers.pop_front();
                    cut.next = 0;
                    return Walked::Layer(layer);
                }
            }
        }
        Walked::Far
    }
}
