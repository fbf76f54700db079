//! First writes whose records went ahead of their data: by the batch of the record, how many there
//! are. Nothing may prove a record, nor stand in for it, before its data has been written.

use alloc::collections::VecDeque;

use crate::casts::{count, index};

/// Names a batch, in the order of their records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchNumber(u64);

#[derive(Debug)]
pub(super) struct DataBarrier {
    /// The batch of the first count.
    first: u64,
    /// The last is of the open batch.
    counts: VecDeque<u32>,
}

impl Default for DataBarrier {
    fn default() -> DataBarrier {
        // Batch 0 is before all, and over.
        DataBarrier { first: 1, counts: VecDeque::from([0]) }
    }
}

impl DataBarrier {
    /// A write whose record is in the open batch begins.
    pub(super) fn begin(&mut self) -> BatchNumber {
        if let Some(open) = self.counts.back_mut() {
            *open += 1;
        }
        self.open()
    }

    /// Its data has been written, or that failed.
    pub(super) fn end(&mut self, batch: BatchNumber) {
        if let Some(count) = self.counts.get_mut(index(batch.0 - self.first)) {
            *count -= 1;
        }
        self.forget();
    }

    /// The open batch takes no more records.
    pub(super) fn close(&mut self) -> BatchNumber {
        let closed = self.open();
        self.counts.push_back(0);
        self.forget();
        closed
    }

    /// Forgets closed batches whose data has been written.
    fn forget(&mut self) {
        while self.counts.len() > 1 && self.counts.front() == Some(&0) {
            self.counts.pop_front();
            self.first += 1;
        }
    }

    /// Whether all data of a batch, and of those before it, has been written.
    pub(super) fn is_over(&self, batch: BatchNumber) -> bool {
        batch.0 < self.first
    }

    fn open(&self) -> BatchNumber {
        BatchNumber(self.first + count(self.counts.len()) - 1)
    }
}
