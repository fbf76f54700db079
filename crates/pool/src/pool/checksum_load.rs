//! Reading sums pages: both copies, once for everybody who waits.

use alloc::vec::Vec;

use crate::checksum_page::{self, Page};

use super::Pool;
use super::effect::{Buffer, Effect};
use super::op::{self, Pending, Purpose};
use super::range_queue::OpId;

/// A page that is being read.
#[derive(Debug, Default)]
pub(super) struct ChecksumLoad {
    copies: [Option<Page>; 2],
    arrived: u8,
    /// The disk failed to read a copy, which may be good.
    failed: bool,
    waiters: Vec<OpId>,
    /// The page was written since the reads were sent: they may show what was there before.
    stale: bool,
}

impl Pool {
    /// Has a page read; `waiter` goes on when it is there.
    pub(super) fn load_page(&mut self, page: u64, waiter: Option<OpId>) {
        let is_new = !self.loading.contains_key(&page);
        self.loading.entry(page).or_default().waiters.extend(waiter);
        if let Some(op) = waiter.and_then(|waiter| self.ops.get_mut(waiter)) {
            op.outstanding += 1;
        }
        if is_new {
            self.read_copies(page);
        }
    }

    /// A page was written; whoever reads it now must read it again.
    pub(super) fn page_was_written(&mut self, page: u64) {
        if let Some(loading) = self.loading.get_mut(&page) {
            loading.stale = true;
        }
    }

    fn read_copies(&mut self, page: u64) {
        for copy in [0, 1] {
            let place = self.disk_layout.page_place(page, copy);
            let pending = Pending { purpose: Purpose::Page { page, copy }, bytes: Vec::new() };
            let io = op::io(self.ios.insert(pending));
            self.effects.push_back(Effect::Read { io, place, blocks: 1, into: Buffer::Own });
        }
    }

    pub(super) fn page_read(&mut self, page: u64, copy: u8, bytes: Option<&[u8]>) {
        let mark = self.superblock.mark();
        let Some(loading) = self.loading.get_mut(&page) else { return };
        let sums = bytes.and_then(|bytes| checksum_page::decode(mark, page, bytes));
        loading.copies[usize::from(copy)] = sums;
        loading.arrived += 1;
        loading.failed |= bytes.is_none();
        if loading.arrived < 2 {
            return;
        }
        if loading.stale {
            let waiters = core::mem::take(&mut loading.waiters);
            *loading = ChecksumLoad { waiters, ..ChecksumLoad::default() };
            return self.read_copies(page);
        }
        let Some(ChecksumLoad { copies, waiters, failed, .. }) = self.loading.remove(&page) else {
            return;
        };
        let lost = failed && copies.iter().all(Option::is_none);
        if !lost {
            self.sums.load(page, copies);
        }
        for waiter in waiters {
            if let Some(op) = self.ops.get_mut(waiter) {
                op.outstanding -= 1;
                op.parts.iter_mut().for_each(|part| part.failed |= lost);
            }
            self.step_op(waiter);
        }
        if lost {
            self.checkpoint_page_failed(page);
        } else {
            self.checkpoint_page_loaded(page);
        }
    }
}
