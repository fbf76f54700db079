//! Copying pages of maps that are not in memory from the current checkpoint to the new one.

use alloc::vec::Vec;

use crate::casts::{count, low32};
use crate::checkpoint;
use crate::checkpoint_reader::CheckpointReader;
use crate::state::{Copy, Page};

use super::Pool;
use super::checkpointer::Job;
use super::effect::{Buffer, Effect};
use super::op::{self, Pending, Purpose};

/// Pages that are copied from the current checkpoint to the new one.
#[derive(Debug)]
pub(super) struct CheckpointCopy {
    copy: Copy,
    fetch: CheckpointReader,
    /// What the first copy brought, if not all of it was good.
    first: Option<CheckpointReader>,
}

impl CheckpointCopy {
    /// The bytes of a page, if a copy is good.
    fn page(&self, page: &Page) -> Option<&[u8]> {
        let fetches = [Some(&self.fetch), self.first.as_ref()];
        let found = fetches.into_iter().flatten().map(|fetch| fetch.get(page.range()));
        let mut good = found.filter(|bytes| checkpoint::is_page(page, bytes));
        good.next()
    }

    fn failed(&self) -> bool {
        self.fetch.failed || self.first.as_ref().is_some_and(|first| first.failed)
    }
}

impl Pool {
    /// Reads pages of the current checkpoint; if the first copy is not good, the second.
    pub(super) fn copy_pages(&mut self, copy: Copy, first: Option<CheckpointReader>) {
        let start = copy.pages.first().map_or(0, |(_, page)| page.range().start);
        let end = copy.pages.last().map_or(start, |(_, page)| page.range().end);
        let number = u8::from(first.is_some());
        let mut fetch = CheckpointReader::new((self.checkpoint.slot, number), start..end);
        let pieces = fetch.pieces(&self.superblock);
        let Some(run) = &mut self.checkpoint.run else { return };
        run.outstanding += low32(count(pieces.len()));
        run.pages_good &= !pieces.is_empty();
        run.copying = Some(CheckpointCopy { copy, fetch, first });
        for piece in pieces {
            let purpose = Purpose::Copy { at: piece.at };
            let io = op::io(self.ios.insert(Pending { purpose, bytes: Vec::new() }));
            let (place, blocks, into) = (piece.place, piece.blocks, Buffer::Own);
            self.effects.push_back(Effect::Read { io, place, blocks, into });
        }
    }

    /// A part of pages to be copied was read.
    pub(super) fn copy_read(&mut self, at: u32, bytes: Option<&[u8]>) {
        let Some(run) = &mut self.checkpoint.run else { return };
        run.outstanding -= 1;
        if !run.copying.as_mut().is_some_and(|copying| copying.fetch.arrived(at, bytes)) {
            return;
        }
        let Some(copying) = run.copying.take() else { return };
        let layer = copying.copy.layer;
        // It may have been lost meanwhile.
        if self.state.is_cutting(layer) {
            let pages = copying.copy.pages.iter().map(|(_, page)| copying.page(page));
            match pages.collect::<Option<Vec<_>>>() {
                Some(pages) => run.encoder.copied(&mut self.state, &copying.copy, &pages),
                None if copying.first.is_none() => {
                    return self.copy_pages(copying.copy, Some(copying.fetch));
                }
                None if copying.failed() => {
                    // The disk may come back, and then nothing is lost: until then no checkpoint
                    // can be written, and so nothing be changed.
                    (run.pages_good, self.broken) = (false, true);
                    return;
                }
                None => self.lose_map(layer),
            }
        }
        if let Some(run) = &mut self.checkpoint.run {
            run.jobs.push_back(Job::Body);
        }
    }
}
