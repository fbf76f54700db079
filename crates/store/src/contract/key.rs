//! Keys and what is stored under them.

use std::fmt;

use bytes::Bytes;

/// A moment in the history of a store: grows by one with each write. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub i64);

impl Revision {
    /// Before anything was written; as a create or change revision: the key does not exist.
    pub const ZERO: Revision = Revision(0);

    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a lease; shown in hexadecimal, as etcdctl does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// On the wire 0 means "no lease".
    pub(crate) fn from_wire(id: i64) -> Option<LeaseId> {
        (id != 0).then_some(LeaseId(id))
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key, its value, and its place in history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty if only keys were asked for.
    pub value: Bytes,
    /// When the key came into being; a key deleted and written again has a new one.
    pub created: Revision,
    /// When it was last written.
    pub changed: Revision,
    /// How often it was written since it came into being; 1 is the first time.
    pub version: i64,
    /// The lease it hangs on.
    pub lease: Option<LeaseId>,
}

/// Some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// This one.
    One(Bytes),
    /// All that begin with these bytes; with no bytes, all.
    Prefix(Bytes),
    /// From the first up to, not including, the second.
    Between(Bytes, Bytes),
    /// This one and all after it.
    From(Bytes),
}

impl Keys {
    /// Every key there is.
    pub const ALL: Keys = Keys::Prefix(Bytes::new());

    /// One key.
    pub fn one(key: impl Into<Bytes>) -> Keys {
        Keys::One(key.into())
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Keys {
        Keys::Prefix(prefix.into())
    }

    /// Key and range end as the protocol writes them: no end is one key, a zero byte is no bound.
    pub(crate) fn to_wire(&self) -> (Bytes, Bytes) {
        const UNBOUNDED: Bytes = Bytes::from_static(b"\0");
        match self {
            Keys::One(key) => (key.clone(), Bytes::new()),
            Keys::Prefix(prefix) if prefix.is_empty() => (UNBOUNDED, UNBOUNDED),
            Keys::Prefix(prefix) => (prefix.clone(), after_prefix(prefix).unwrap_or(UNBOUNDED)),
            Keys::Between(from, to) => (from.clone(), to.clone()),
            Keys::From(from) => (from.clone(), UNBOUNDED),
        }
    }

    /// The same keys without `last` and those before it.
    pub(crate) fn after(&self, last: &Bytes) -> Keys {
        let mut from = Vec::with_capacity(last.len() + 1);
        from.extend_from_slice(last);
        from.push(0);
        let from = Bytes::from(from);
        match self {
            Keys::One(_) => Keys::Between(from.clone(), from),
            Keys::Prefix(prefix) => match after_prefix(prefix) {
                Some(end) => Keys::Between(from, end),
                None => Keys::From(from),
            },
            Keys::Between(_, to) => Keys::Between(from, to.clone()),
            Keys::From(_) => Keys::From(from),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::One(key) => write!(f, "key {}", printable(key)),
            Keys::Prefix(prefix) if prefix.is_empty() => write!(f, "all keys"),
            Keys::Prefix(prefix) => write!(f, "keys beginning with {}", printable(prefix)),
            Keys::Between(from, to) => {
                write!(f, "keys from {} to {}", printable(from), printable(to))
            }
            Keys::From(from) => write!(f, "keys from {}", printable(from)),
        }
    }
}

/// A key as people read it: quoted, odd bytes escaped, cut when long.
pub fn printable(key: &[u8]) -> String {
    const LONGEST: usize = 120;
    let cut = if key.len() > LONGEST { "…" } else { "" };
    let head = key.get(..LONGEST).unwrap_or(key);
    format!("\"{}{cut}\"", head.escape_ascii())
}

/// The first key after all that begin with `prefix`, if there is one.
fn after_prefix(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut end = prefix.get(..=last)?.to_vec();
    *end.last_mut()? += 1;
    Some(Bytes::from(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(keys: &Keys) -> (Vec<u8>, Vec<u8>) {
        let (key, end) = keys.to_wire();
        (key.to_vec(), end.to_vec())
    }

    #[test]
    fn a_prefix_ends_where_its_last_byte_that_can_grow_has_grown() {
        assert_eq!(wire(&Keys::prefix("ab")), (b"ab".to_vec(), b"ac".to_vec()));
        assert_eq!(wire(&Keys::prefix(&b"a\xff"[..])), (b"a\xff".to_vec(), b"b".to_vec()));
        assert_eq!(wire(&Keys::prefix(&b"\xff"[..])), (b"\xff".to_vec(), b"\0".to_vec()));
        assert_eq!(wire(&Keys::ALL), (b"\0".to_vec(), b"\0".to_vec()));
    }

    #[test]
    fn what_is_left_begins_right_after_the_last_key_seen() {
        let last = Bytes::from_static(b"ab");
        assert_eq!(wire(&Keys::prefix("a").after(&last)), (b"ab\0".to_vec(), b"b".to_vec()));
        assert_eq!(wire(&Keys::ALL.after(&last)), (b"ab\0".to_vec(), b"\0".to_vec()));
    }

    #[test]
    fn odd_and_long_keys_are_shown_safely() {
        assert_eq!(printable(b"/a\n\xff"), r#""/a\n\xff""#);
        assert!(printable(&[b'x'; 5000]).len() < 200);
    }
}
