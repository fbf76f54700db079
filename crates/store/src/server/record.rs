//! One key at one revision.

use bytes::Bytes;

use crate::proto::mvccpb::{Event, KeyValue, event::EventType};

/// Place of a change in the order of all changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Revision {
    /// The revision that clients see; one for each transaction.
    pub(crate) main: i64,
    /// Place within the transaction.
    pub(crate) sub: u32,
}

/// One key as one revision left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// When.
    pub(crate) revision: Revision,
    /// The key.
    pub(crate) key: Bytes,
    /// The value; empty when deleted.
    pub(crate) value: Bytes,
    /// Revision that created the key; 0 when deleted.
    pub(crate) create_revision: i64,
    /// Number of changes since then; 0 when deleted.
    pub(crate) version: i64,
    /// The lease, or 0.
    pub(crate) lease: i64,
}

impl Record {
    /// The deletion of a key.
    pub(crate) fn tombstone(revision: Revision, key: Bytes) -> Self {
        Self { revision, key, value: Bytes::new(), create_revision: 0, version: 0, lease: 0 }
    }

    /// Whether the key does not exist after this change.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// About how many bytes of memory and disk the record takes.
    pub(crate) fn cost(&self) -> usize {
        const OVERHEAD: usize = 160;
        OVERHEAD + self.key.len() + self.value.len()
    }

    /// The record as clients see it.
    pub(crate) fn to_key_value(&self) -> KeyValue {
        KeyValue {
            key: self.key.clone(),
            create_revision: self.create_revision,
            mod_revision: self.revision.main,
            version: self.version,
            value: self.value.clone(),
            lease: self.lease,
        }
    }

    /// The record as an event.
    pub(crate) fn to_event(&self, prev: Option<&Self>) -> Event {
        let kind = if self.is_tombstone() { EventType::Delete } else { EventType::Put };
        Event {
            r#type: kind.into(),
            kv: Some(self.to_key_value()),
            prev_kv: prev.map(Self::to_key_value),
        }
    }
}
