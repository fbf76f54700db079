//! Where the records of volumes are kept: who owns each, and which copies may be believed.
//!
//! A reactor never waits for a store: a [`RecordStore`] takes a record and answers later, from any
//! thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mirror::StoreFault;
use model::{TargetRecord, VolumeId};

/// What is called with the outcome, once.
pub type Recorded = Box<dyn FnOnce(Result<(), StoreFault>) + Send>;

/// Stores records of volumes by compare-and-swap.
pub trait RecordStore: Send + Sync {
    /// Stores a record in place of the one of the same target with a lower generation, or of one
    /// that is equal. It is well if the store now holds exactly this; [`StoreFault::Fenced`] if it
    /// holds a later epoch or a later generation, [`StoreFault::Behind`] if it holds an earlier
    /// owner. Must not block: if it has too much to do already, the answer is
    /// [`StoreFault::Away`].
    fn record(&self, record: TargetRecord, done: Recorded);
}

/// Whether `new` may take the place of `old`. One generation never stands for two sets: of a set
/// that somebody else changed meanwhile this target does not know.
pub fn may_replace(old: &TargetRecord, new: &TargetRecord) -> bool {
    old.epoch() == new.epoch()
        && old.target() == new.target()
        && (old.set().generation() < new.set().generation() || old.set() == new.set())
}

/// Records in memory, for tests and for trying things out: lost with the process.
#[derive(Clone, Debug, Default)]
pub struct MemoryRecordStore {
    records: Arc<Mutex<BTreeMap<VolumeId, TargetRecord>>>,
}

impl MemoryRecordStore {
    /// The record of a volume.
    pub fn get(&self, volume: VolumeId) -> Option<TargetRecord> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).get(&volume).cloned()
    }

    /// Puts a record there, whatever was there: an epoch is taken.
    pub fn put(&self, record: TargetRecord) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.insert(record.volume(), record);
    }
}

impl RecordStore for MemoryRecordStore {
    fn record(&self, record: TargetRecord, done: Recorded) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ours = records.get(&record.volume()).is_some_and(|old| may_replace(old, &record));
        if is_ours {
            records.insert(record.volume(), record);
        }
        drop(records);
        done(if is_ours { Ok(()) } else { Err(StoreFault::Fenced) });
    }
}
