//! What goes to disk, as values and as bytes. The bytes are described in `docs/format/store.md`.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    record::{Record, Revision},
    settings::Setting,
};

/// One thing that must survive a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A key was written or deleted.
    Changed(Arc<Record>),
    /// A lease was made.
    LeaseGranted {
        /// Its number.
        id: i64,
        /// Seconds to live.
        ttl: i64,
    },
    /// A lease has ended.
    LeaseEnded {
        /// Its number.
        id: i64,
    },
    /// History below `compacted` is forgotten; the store had reached `revision`.
    Compacted {
        /// The first revision that can be read.
        compacted: i64,
        /// The newest revision.
        revision: i64,
    },
    /// A user, a role, an alarm or an address was changed.
    Setting(Setting),
    /// The server was shut down in order.
    Closed,
}

const PUT: u8 = 1;
const DELETE: u8 = 2;
const LEASE_GRANTED: u8 = 3;
const LEASE_ENDED: u8 = 4;
const COMPACTED: u8 = 5;
const CLOSED: u8 = 6;

/// The bytes are no entry: we never wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoEntry;

impl Entry {
    /// Appends the bytes of this entry.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Changed(record) if record.is_tombstone() => {
                out.push(DELETE);
                encode_revision(record.revision, out);
                encode_bytes(&record.key, out);
            }
            Self::Changed(record) => {
                out.push(PUT);
                encode_revision(record.revision, out);
                for number in [record.create_revision, record.version, record.lease] {
                    out.extend(number.to_le_bytes());
                }
                encode_bytes(&record.key, out);
                encode_bytes(&record.value, out);
            }
            Self::LeaseGranted { id, ttl } => {
                out.push(LEASE_GRANTED);
                out.extend(id.to_le_bytes());
                out.extend(ttl.to_le_bytes());
            }
            Self::LeaseEnded { id } => {
                out.push(LEASE_ENDED);
                out.extend(id.to_le_bytes());
            }
            Self::Compacted { compacted, revision } => {
                out.push(COMPACTED);
                out.extend(compacted.to_le_bytes());
                out.extend(revision.to_le_bytes());
            }
            Self::Setting(setting) => setting.encode(out),
            Self::Closed => out.push(CLOSED),
        }
    }

    /// Takes one entry from the front of the bytes.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Result<Self, NoEntry> {
        let [kind] = take(bytes)?;
        Ok(match kind {
            PUT => {
                let revision = decode_revision(bytes)?;
                let create_revision = decode_number(bytes)?;
                let version = decode_number(bytes)?;
                let lease = decode_number(bytes)?;
                let key = decode_bytes(bytes)?;
                let value = decode_bytes(bytes)?;
                if version <= 0 || create_revision <= 0 {
                    return Err(NoEntry);
                }
                let record = Record { revision, key, value, create_revision, version, lease };
                Self::Changed(Arc::new(record))
            }
            DELETE => {
                let revision = decode_revision(bytes)?;
                Self::Changed(Arc::new(Record::tombstone(revision, decode_bytes(bytes)?)))
            }
            LEASE_GRANTED => {
                Self::LeaseGranted { id: decode_number(bytes)?, ttl: decode_number(bytes)? }
            }
            LEASE_ENDED => Self::LeaseEnded { id: decode_number(bytes)? },
            COMPACTED => {
                let compacted = decode_number(bytes)?;
                Self::Compacted { compacted, revision: decode_number(bytes)? }
            }
            CLOSED => Self::Closed,
            kind => Self::Setting(Setting::decode(kind, bytes)?),
        })
    }
}

fn encode_revision(revision: Revision, out: &mut Vec<u8>) {
    out.extend(revision.main.to_le_bytes());
    out.extend(revision.sub.to_le_bytes());
}

/// Appends bytes with their length in front.
pub(super) fn encode_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    // Keys and values are parts of requests, and those are at most 1.5 MiB.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend(length.to_le_bytes());
    out.extend(bytes);
}

/// Takes so many bytes from the front.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], NoEntry> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(NoEntry)?;
    *bytes = rest;
    Ok(*taken)
}

/// Takes a number from the front.
pub(super) fn decode_number(bytes: &mut &[u8]) -> Result<i64, NoEntry> {
    Ok(i64::from_le_bytes(take(bytes)?))
}

fn decode_revision(bytes: &mut &[u8]) -> Result<Revision, NoEntry> {
    let main = decode_number(bytes)?;
    if main <= 0 {
        return Err(NoEntry);
    }
    Ok(Revision { main, sub: u32::from_le_bytes(take(bytes)?) })
}

/// Takes bytes with their length from the front.
pub(super) fn decode_bytes(bytes: &mut &[u8]) -> Result<Bytes, NoEntry> {
    let length = usize::try_from(u32::from_le_bytes(take(bytes)?)).map_err(|_| NoEntry)?;
    let (taken, rest) = bytes.split_at_checked(length).ok_or(NoEntry)?;
    *bytes = rest;
    Ok(Bytes::copy_from_slice(taken))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Strategy<Value = Entry> {
        let blob = || prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
        let revision =
            || (1..i64::MAX, any::<u32>()).prop_map(|(main, sub)| Revision { main, sub });
        prop_oneof![
            (revision(), blob(), blob(), 1..i64::MAX, 1..i64::MAX, any::<i64>()).prop_map(
                |(revision, key, value, create_revision, version, lease)| {
                    let record = Record { revision, key, value, create_revision, version, lease };
                    Entry::Changed(Arc::new(record))
                }
            ),
            (revision(), blob())
                .prop_map(|(r, key)| Entry::Changed(Arc::new(Record::tombstone(r, key)))),
            (any::<i64>(), any::<i64>()).prop_map(|(id, ttl)| Entry::LeaseGranted { id, ttl }),
            any::<i64>().prop_map(|id| Entry::LeaseEnded { id }),
            (any::<i64>(), any::<i64>())
                .prop_map(|(compacted, revision)| Entry::Compacted { compacted, revision }),
            Just(Entry::Closed),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(entries in prop::collection::vec(entries(), 0..5)) {
            let mut bytes = Vec::new();
            for entry in &entries {
                entry.encode(&mut bytes);
            }
            let mut rest = &bytes[..];
            for entry in entries {
                prop_assert_eq!(Entry::decode(&mut rest), Ok(entry));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..60), kind in 0u8..15,
        ) {
            let mut bytes = bytes;
            bytes.insert(0, kind);
            let _ = Entry::decode(&mut &bytes[..]);
        }

        #[test]
        fn a_cut_entry_is_refused(entry in entries(), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            let cut = cut.index(bytes.len());
            prop_assert_eq!(Entry::decode(&mut &bytes[..cut]), Err(NoEntry));
        }
    }
}
