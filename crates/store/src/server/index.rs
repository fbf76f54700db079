//! All keys at all revisions that are not compacted, in memory.
//!
//! Two orders of the same records: by key, for reads at a revision, and by revision (the log), for
//! watches. A reader names the revision it reads at, so the writer may already add later
//! revisions that are not on disk yet: nobody sees them before they are published.
//!
//! Invariants:
//! - The versions of a key are in order of revision, and one revision changes a key at most once.
//! - For every revision from `compacted` on, a read at it finds what was there then.
//! - The log holds every change from `floor` on, and `floor <= max(compacted, 1)`.
//!
//! Deliberately not here: disk, leases, what a request means.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::{keys::KeyRange, record::Record};

/// Changes that the log keeps even when compacted, so that a watcher that is up to date is not cut
/// off by a compaction that comes between a change and its delivery.
const GRACE_CHANGES: usize = 4096;
/// The same in bytes.
const GRACE_BYTES: usize = 16 << 20;

/// One change, with what it replaced.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The key after the change.
    pub(crate) record: Arc<Record>,
    /// The key before it, if it existed.
    pub(crate) prev: Option<Arc<Record>>,
}

/// All versions of one key.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The key.
    pub(crate) key: Bytes,
    /// Its versions, in order of revision.
    pub(crate) versions: Vec<Arc<Record>>,
}

/// A part of a range.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The records in it.
    pub(crate) records: Vec<Arc<Record>>,
    /// The last key that was looked at, if there may be more behind it.
    pub(crate) last: Option<Bytes>,
}

/// All keys at all revisions that are not compacted.
#[derive(Debug)]
pub(crate) struct Index {
    keys: BTreeMap<Bytes, Vec<Arc<Record>>>,
    log: VecDeque<Change>,
    revision: i64,
    compacted: i64,
    /// Up to here compaction has dropped dead versions.
    swept: i64,
    floor: i64,
    bytes: usize,
}

impl Index {
    /// Builds the index from records in order of revision. `revision` is at least what the store
    /// had reached, `compacted` what was compacted last.
    pub(crate) fn build(records: Vec<Arc<Record>>, revision: i64, compacted: i64) -> Self {
        let mut index = Self {
            keys: BTreeMap::new(),
            log: VecDeque::new(),
            revision: revision.max(1),
            compacted,
            swept: compacted,
            floor: compacted.max(1),
            bytes: 0,
        };
        for record in records {
            index.revision = index.revision.max(record.revision.main);
            index.load(record);
        }
        index
    }

    fn load(&mut self, record: Arc<Record>) {
        let main = record.revision.main;
        if main >= self.compacted {
            self.insert(Arc::clone(&record));
        }
        if main > self.compacted {
            return;
        }
        // Nobody may read below `compacted`, so of each key only its newest version there counts.
        let versions = self.keys.entry(record.key.clone()).or_default();
        self.bytes -= versions.iter().map(|version| version.cost()).sum::<usize>();
        versions.clear();
        if record.is_tombstone() && main < self.compacted {
            self.keys.remove(&record.key);
        } else {
            self.bytes += record.cost();
            versions.push(record);
        }
    }

    /// The last revision that was applied; it may not be on disk yet.
    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Revision of the last compaction, or 0.
    pub(crate) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// The first revision of which the log holds every change.
    pub(crate) fn floor(&self) -> i64 {
        self.floor
    }

    /// About how many bytes all records take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds one change. It counts when its revision is reached.
    pub(crate) fn insert(&mut self, record: Arc<Record>) {
        self.bytes += record.cost();
        let versions = self.keys.entry(record.key.clone()).or_default();
        let prev = versions.last().filter(|prev| !prev.is_tombstone()).map(Arc::clone);
        versions.push(Arc::clone(&record));
        self.log.push_back(Change { record, prev });
    }

    /// Moves to a revision all of whose changes were added.
    pub(crate) fn reach(&mut self, revision: i64) {
        debug_assert!(revision >= self.revision, "revisions never go back");
        self.revision = revision;
    }

    /// The key as it was at a revision.
    pub(crate) fn get(&self, key: &[u8], at: i64) -> Option<&Arc<Record>> {
        live(self.keys.get(key)?, at)
    }

    /// The keys of a range as they were at a revision, in order.
    pub(crate) fn range(&self, range: &KeyRange, at: i64) -> impl Iterator<Item = &Arc<Record>> {
        range
            .bounds()
            .into_iter()
            .flat_map(|bounds| self.keys.range::<[u8], _>(bounds))
            .filter_map(move |(_, versions)| live(versions, at))
    }

    /// The live records among the first `limit` keys of a range, as they were at a revision.
    pub(crate) fn piece(&self, range: &KeyRange, limit: usize, at: i64) -> Piece {
        let bounds = range.bounds().into_iter();
        let keys = bounds.flat_map(|bounds| self.keys.range::<[u8], _>(bounds));
        let (mut records, mut last, mut seen) = (Vec::new(), None, 0);
        for (key, versions) in keys.take(limit) {
            records.extend(live(versions, at).map(Arc::clone));
            seen += 1;
            last = Some(key);
        }
        let last = last.filter(|_| seen == limit).cloned();
        Piece { records, last }
    }

    /// How many keys there are, deleted ones that are not compacted too.
    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Up to `limit` keys of a range, each with all its versions up to a revision.
    pub(crate) fn histories(&self, range: &KeyRange, limit: usize, up_to: i64) -> Vec<History> {
        let history = |(key, versions): (&Bytes, &Vec<Arc<Record>>)| {
            let known = versions.iter().filter(|version| version.revision.main <= up_to);
            History { key: key.clone(), versions: known.map(Arc::clone).collect() }
        };
        let bounds = range.bounds().into_iter();
        let keys = bounds.flat_map(|bounds| self.keys.range::<[u8], _>(bounds));
        keys.take(limit).map(history).collect()
    }

    /// The changes from a revision on, in order. Complete only from `floor` on.
    pub(crate) fn changes_from(&self, revision: i64) -> impl Iterator<Item = &Change> {
        let first = self.log.partition_point(|change| change.record.revision.main < revision);
        self.log.range(first..)
    }

    /// Begins to forget history below a revision: reads there are refused from now on. Call
    /// [`Self::sweep`] until it says that it is done.
    pub(crate) fn compact(&mut self, revision: i64) {
        debug_assert!(revision > self.compacted && revision <= self.revision);
        self.compacted = revision;
    }

    /// Drops dead versions, looking at about `budget` changes. Whether it is done.
    pub(crate) fn sweep(&mut self, budget: usize) -> bool {
        let (from, to) = (self.swept, self.compacted);
        let mut dead = Vec::new();
        let mut reached = to;
        for (looked_at, change) in self.changes_from(from).enumerate() {
            let main = change.record.revision.main;
            if main > to {
                break;
            }
            if looked_at >= budget && main > reached {
                break;
            }
            reached = main;
            if let Some(prev) = &change.prev {
                dead.push(Arc::clone(prev));
            }
            if change.record.is_tombstone() && main < to {
                dead.push(Arc::clone(&change.record));
            }
        }
        let done =
            self.changes_from(reached + 1).next().is_none_or(|c| c.record.revision.main > to);
        for record in dead {
            self.drop_version(&record);
        }
        self.swept = if done { to } else { reached + 1 };
        if done {
            self.trim_log();
        }
        done
    }

    fn drop_version(&mut self, record: &Record) {
        let Some(versions) = self.keys.get_mut(&record.key) else { return };
        let Ok(at) = versions.binary_search_by_key(&record.revision, |version| version.revision)
        else {
            return;
        };
        versions.remove(at);
        self.bytes -= record.cost();
        if versions.is_empty() {
            self.keys.remove(&record.key);
        }
    }

    fn trim_log(&mut self) {
        let mut bytes = 0;
        let cost = |change: &Change| {
            change.record.cost() + change.prev.as_ref().map_or(0, |prev| prev.cost())
        };
        let recent = self.log.iter().rev().take(GRACE_CHANGES).take_while(|change| {
            bytes += cost(change);
            bytes <= GRACE_BYTES
        });
        let mut spare = self.log.len() - recent.count();
        while let Some(front) = self.log.front()
            && front.record.revision.main < self.compacted
            && spare > 0
        {
            self.floor = front.record.revision.main + 1;
            self.log.pop_front();
            spare -= 1;
        }
    }
}

fn live(versions: &[Arc<Record>], at: i64) -> Option<&Arc<Record>> {
    let version = versions.iter().rev().find(|version| version.revision.main <= at)?;
    (!version.is_tombstone()).then_some(version)
}
