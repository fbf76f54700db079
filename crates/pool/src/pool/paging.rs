//! Reading pages of maps for whoever needs them.
//!
//! Nothing is planned before all that it may touch is in memory: whoever finds something missing
//! waits, and begins anew when it is there. What it waited for is held until then, so that it does
//! not go again.
//!
//! Invariants:
//! - a page is read from the current checkpoint, which nobody writes to. A read that was under way
//!   when another one became current is done again if it brought nothing good;
//! - while maps take more memory than they should, one command at a time has pages read.
//!
//! Not here: which pages are needed (`state::needs`), giving them up (`state::pages`).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use block::IoError;

use crate::checkpoint;
use crate::checkpoint_reader::CheckpointReader;
use crate::entity::LayerId;
use crate::record::Record;
use crate::state::{PageKey, Refused};

use super::Pool;
use super::effect::{Buffer, Effect};
use super::op::{self, Op, Pending, Purpose, Work};
use super::range_queue::OpId;

/// Who waits for pages, and holds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    Op(OpId),
    Collapse,
    Merge,
    Trim,
}

/// Pages that are being read, and who waits for them.
#[derive(Debug, Default)]
pub(super) struct Paging {
    loading: BTreeMap<PageKey, Loading>,
    holds: BTreeMap<Holder, HeldPages>,
    /// Commands that wait until others have what they need.
    waiting_for_pages: VecDeque<OpId>,
    /// Commands that wait for a checkpoint: too much of the maps has changed.
    pub(super) waiting_for_checkpoint: Vec<OpId>,
    /// A map that a collapse needs could not be read when it was last tried.
    pub(super) collapse_failed: bool,
    /// Layers of which what lies beyond their owner's end is still to be given up.
    trims: VecDeque<LayerId>,
    /// Changes that wait for that.
    trimmed: Vec<OpId>,
}

#[derive(Debug)]
struct Loading {
    fetch: CheckpointReader,
    /// The checkpoint that it is read from.
    generation: u64,
    waiters: Vec<Holder>,
    failed: bool,
}

#[derive(Debug, Default)]
struct HeldPages {
    pages: Vec<PageKey>,
    /// Those that are not there yet.
    left: usize,
    failed: bool,
}

impl Paging {
    pub(super) fn is_idle(&self) -> bool {
        self.loading.is_empty() && self.trims.is_empty()
    }

    /// Whether anybody waits for pages.
    fn is_reading(&self) -> bool {
        self.holds.values().any(|held| held.left > 0)
    }

    pub(super) fn is_waiting(&self, holder: Holder) -> bool {
        self.holds.get(&holder).is_some_and(|held| held.left > 0)
    }

    /// Commands that wait for what may never come now.
    pub(super) fn take_waiters(&mut self, out: &mut Vec<OpId>) {
        out.append(&mut self.waiting_for_checkpoint);
        out.append(&mut self.trimmed);
    }
}

impl Pool {
    /// Has pages read. The holder is called again when all are there; they stay until it lets go.
    pub(super) fn await_pages(&mut self, holder: Holder, pages: Vec<PageKey>) {
        if let Holder::Op(op) = holder
            && self.state.resident.is_over()
            && !self.paging.holds.contains_key(&holder)
            && self.paging.is_reading()
        {
            return self.paging.waiting_for_pages.push_back(op);
        }
        for page in pages {
            self.state.hold(page);
            let held = self.paging.holds.entry(holder).or_default();
            held.pages.push(page);
            held.left += 1;
            if let Some(loading) = self.paging.loading.get_mut(&page) {
                loading.waiters.push(holder);
            } else {
                self.load_map(page, 0, alloc::vec![holder], false);
            }
        }
    }

    /// Lets go of what was held.
    pub(super) fn let_go(&mut self, holder: Holder) {
        let Some(held) = self.paging.holds.remove(&holder) else { return };
        for page in held.pages {
            self.state.release(page);
        }
    }

    /// When nobody waits for pages, the next one that waited for others is tried.
    pub(super) fn resume_waiting_for_pages(&mut self) {
        if !self.paging.is_reading() {
            self.ready.extend(self.paging.waiting_for_pages.pop_front());
        }
    }

    /// A command was started: if nothing is missing any more, it needs no page.
    pub(super) fn was_started(&mut self, at: OpId) {
        if !self.paging.is_waiting(Holder::Op(at)) {
            self.let_go(Holder::Op(at));
        }
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.paging.holds.is_empty()
    }

    fn load_map(&mut self, key: PageKey, copy: u8, waiters: Vec<Holder>, failed: bool) {
        let bytes = self.state.page_of(key).map_or(0..0, |page| page.range());
        let mut fetch = CheckpointReader::new((self.checkpoint.slot, copy), bytes);
        let pieces = fetch.pieces(&self.superblock);
        let generation = self.checkpoint.generation();
        let is_nowhere = pieces.is_empty();
        self.paging.loading.insert(key, Loading { fetch, generation, waiters, failed });
        for piece in pieces {
            let purpose = Purpose::Map { key, at: piece.at };
            let io = op::io(self.ios.insert(Pending { purpose, bytes: Vec::new() }));
            let (place, blocks, into) = (piece.place, piece.blocks, Buffer::Own);
            self.effects.push_back(Effect::Read { io, place, blocks, into });
        }
        if is_nowhere {
            self.map_read(key, 0, None);
        }
    }

    pub(super) fn map_read(&mut self, key: PageKey, at: u32, bytes: Option<&[u8]>) {
        let Some(loading) = self.paging.loading.get_mut(&key) else { return };
        if !loading.fetch.arrived(at, bytes) {
            return;
        }
        let Some(Loading { fetch, generation, waiters, failed }) = self.paging.loading.remove(&key)
        else {
            return;
        };
        let failed = failed || fetch.failed;
        let Some(page) = self.state.page_of(key) else { return self.page_is_there(waiters, false) };
        let found = fetch.get(page.range());
        let entries = checkpoint::decode_page(&page, found, self.state.size);
        if self.state.take_page(key, entries).is_ok() {
            self.page_is_there(waiters, false);
        } else if generation != self.checkpoint.generation() {
            self.load_map(key, 0, waiters, false);
        } else if fetch.copy == 0 {
            self.load_map(key, 1, waiters, failed);
        } else {
            if !failed {
                self.lose_map(key.0);
            }
            self.page_is_there(waiters, failed);
        }
    }

    /// Both copies of a page are bad: the layer and whoever sees it are damaged.
    pub(super) fn lose_map(&mut self, layer: LayerId) {
        self.checkpoint.leave_out(layer, self.state.is_cutting(layer));
        self.state.lose_map(layer);
    }

    fn page_is_there(&mut self, waiters: Vec<Holder>, failed: bool) {
        for waiter in waiters {
            let Some(held) = self.paging.holds.get_mut(&waiter) else { continue };
            held.left -= 1;
            held.failed |= failed;
            if held.left == 0 {
                let failed = held.failed;
                self.resume(waiter, failed);
            }
        }
    }

    fn resume(&mut self, holder: Holder, failed: bool) {
        match holder {
            Holder::Op(at) => {
                let id = self.ops.get(at).map(|op| op.id);
                let layer = id.and_then(|id| self.state.entities.get(&id)).map(|own| own.layer);
                if failed || layer.is_some_and(|layer| self.state.is_damaged(layer)) {
                    self.let_go(holder);
                    self.fail_damaged(at);
                } else {
                    self.ready.push(at);
                }
            }
            Holder::Collapse => {
                self.paging.collapse_failed = failed;
                if failed {
                    // Tried again after the next batch.
                    self.let_go(holder);
                } else {
                    self.collapse_hidden();
                }
            }
            Holder::Merge => self.merge_has_page(failed),
            Holder::Trim if failed => {
                self.let_go(holder);
                self.fail_trimmed();
                self.trim_ended();
            }
            Holder::Trim => {}
        }
    }

    /// A command cannot be carried out: its map cannot be read.
    fn fail_damaged(&mut self, at: OpId) {
        let span = self.ops.get(at).and_then(Op::span);
        match self.ops.get(at).map(|op| &op.work) {
            Some(Work::Change(_)) => self.changed(at, Err(Refused::Damaged)),
            Some(Work::Ask(_)) => self.answered(at, Err(Refused::Damaged)),
            Some(_) => {
                let fault = span.map_or(IoError::Internal, |span| IoError::Medium { span });
                self.done(at, Err(fault));
            }
            None => {}
        }
    }

    /// Commands that waited for a checkpoint are tried again.
    pub(super) fn end_checkpoint_wait(&mut self) {
        self.ready.append(&mut self.paging.waiting_for_checkpoint);
    }

    /// Waits until all that lies beyond the end of a replica is given up; false if nothing does.
    pub(super) fn await_trim(&mut self, at: OpId, layer: LayerId) -> bool {
        if self.state.untrimmed(layer).is_none() {
            return false;
        }
        self.trim(layer);
        self.paging.trimmed.push(at);
        true
    }

    /// Has what lies beyond the end of a layer's owner given up.
    pub(super) fn trim(&mut self, layer: LayerId) {
        if !self.paging.trims.contains(&layer) {
            self.paging.trims.push_back(layer);
        }
    }

    /// Whether a layer is being trimmed: until then its marks may hide nothing.
    pub(super) fn is_trimming(&self) -> bool {
        !self.paging.trims.is_empty()
    }

    /// Gives up what shrinking left, a window at a time.
    pub(super) fn advance_trim(&mut self) {
        while let Some(layer) = self.paging.trims.front().copied() {
            if self.broken || self.paging.is_waiting(Holder::Trim) {
                return;
            }
            let Some(window) = self.state.untrimmed(layer) else {
                self.let_go(Holder::Trim);
                self.trim_ended();
                continue;
            };
            let mut needs = Vec::new();
            self.state.absent_in(layer, window..=window, &mut needs);
            if !needs.is_empty() {
                return self.await_pages(Holder::Trim, needs);
            }
            let end = self.state.window_end(window);
            let start = self.state.window_start(window);
            self.state.discard(layer, start..end);
            self.record(&Record::Discard { layer, start, len: end - start });
            self.let_go(Holder::Trim);
        }
    }

    /// What lies beyond the end of a replica cannot be given up now: whoever waits for that is told
    /// so, and may ask again.
    fn fail_trimmed(&mut self) {
        let layer = self.paging.trims.front().copied();
        for at in core::mem::take(&mut self.paging.trimmed) {
            let id = self.ops.get(at).map(|op| op.id);
            let own = id.and_then(|id| self.state.entities.get(&id)).map(|entity| entity.layer);
            if own == layer {
                self.changed(at, Err(Refused::Damaged));
            } else {
                self.paging.trimmed.push(at);
            }
        }
    }

    fn trim_ended(&mut self) {
        self.paging.trims.pop_front();
        if self.paging.trims.is_empty() {
            self.ready.append(&mut self.paging.trimmed);
            self.open.wanted |= !self.open.freed.is_empty();
            self.collapse_hidden();
        }
    }
}
