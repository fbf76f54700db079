//! Reads, conditions and operations, and their answers.

use std::fmt;

use bytes::Bytes;

use super::{KeyValue, Keys, LeaseId, Revision, printable};

/// Which keys to read, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// These keys, in their order.
    pub keys: Keys,
    /// As they were at this revision; without one, as they are.
    pub at: Option<Revision>,
    /// At most so many; 0 is all.
    pub limit: u32,
    /// How much of each key to answer.
    pub of: Projection,
}

/// How much of each key to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Keys with values.
    Values,
    /// Keys without values.
    Keys,
    /// Only their number.
    Count,
}

impl Query {
    /// One key.
    pub fn key(key: impl Into<Bytes>) -> Query {
        Query::keys(Keys::one(key))
    }

    /// All keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Query {
        Query::keys(Keys::prefix(prefix))
    }

    /// These keys.
    pub fn keys(keys: Keys) -> Query {
        Query { keys, at: None, limit: 0, of: Projection::Values }
    }

    /// As they were at `revision`.
    #[must_use]
    pub fn at(self, revision: Revision) -> Query {
        Query { at: Some(revision), ..self }
    }

    /// At most so many.
    #[must_use]
    pub fn limit(self, limit: u32) -> Query {
        Query { limit, ..self }
    }

    /// Without values.
    #[must_use]
    pub fn keys_only(self) -> Query {
        Query { of: Projection::Keys, ..self }
    }

    /// Only their number.
    #[must_use]
    pub fn count_only(self) -> Query {
        Query { of: Projection::Count, ..self }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(revision) => write!(f, "read of {} at revision {revision}", self.keys),
            None => write!(f, "read of {}", self.keys),
        }
    }
}

/// The keys read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Revision of the store when it answered; a read at an older revision answers this one too.
    pub revision: Revision,
    /// The keys, in order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut keys off.
    pub more: bool,
    /// How many keys there are without the limit.
    pub count: u64,
}

/// One condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// About which key.
    pub key: Bytes,
    /// How its side must relate to the operand.
    pub is: CompareOp,
    /// What of it is compared, and with what.
    pub with: Operand,
}

/// How the key's side must relate to the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    /// The same.
    Equal,
    /// Greater than the operand.
    Greater,
    /// Less than the operand.
    Less,
    /// Anything else.
    NotEqual,
}

/// What of a key is compared, and with what. A key that does not exist has 0 everywhere, and its
/// value never compares true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// How often it was written.
    Version(i64),
    /// When it came into being.
    Created(Revision),
    /// When it was last written.
    Changed(Revision),
    /// Its value.
    Value(Bytes),
    /// Its lease.
    Lease(Option<LeaseId>),
}

impl Compare {
    fn new(key: impl Into<Bytes>, is: CompareOp, with: Operand) -> Compare {
        Compare { key: key.into(), is, with }
    }

    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Compare {
        Compare::created(key, CompareOp::Equal, Revision::ZERO)
    }

    /// The key exists.
    pub fn present(key: impl Into<Bytes>) -> Compare {
        Compare::created(key, CompareOp::Greater, Revision::ZERO)
    }

    /// The key was not written since it was read.
    pub fn unchanged(read: &KeyValue) -> Compare {
        Compare::changed(read.key.clone(), CompareOp::Equal, read.changed)
    }

    /// How often the key was written.
    pub fn version(key: impl Into<Bytes>, is: CompareOp, version: i64) -> Compare {
        Compare::new(key, is, Operand::Version(version))
    }

    /// When the key came into being.
    pub fn created(key: impl Into<Bytes>, is: CompareOp, at: Revision) -> Compare {
        Compare::new(key, is, Operand::Created(at))
    }

    /// When the key was last written.
    pub fn changed(key: impl Into<Bytes>, is: CompareOp, at: Revision) -> Compare {
        Compare::new(key, is, Operand::Changed(at))
    }

    /// What the key holds.
    pub fn value(key: impl Into<Bytes>, is: CompareOp, value: impl Into<Bytes>) -> Compare {
        Compare::new(key, is, Operand::Value(value.into()))
    }

    /// What lease the key hangs on.
    pub fn lease(key: impl Into<Bytes>, is: CompareOp, lease: Option<LeaseId>) -> Compare {
        Compare::new(key, is, Operand::Lease(lease))
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read.
    Get(Query),
    /// Write.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
        /// The lease to hang it on; without one it is taken off its lease.
        lease: Option<LeaseId>,
    },
    /// Delete.
    Delete(Keys),
    /// A transaction in the transaction.
    Txn(Txn),
}

impl Op {
    /// Writes a key.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    /// Reads one key.
    pub fn get(key: impl Into<Bytes>) -> Op {
        Op::Get(Query::key(key))
    }

    /// Deletes keys.
    pub fn delete(keys: Keys) -> Op {
        Op::Delete(keys)
    }

    /// The same write, hung on a lease. Other operations are left as they are.
    #[must_use]
    pub fn leased(self, lease: LeaseId) -> Op {
        match self {
            Op::Put { key, value, .. } => Op::Put { key, value, lease: Some(lease) },
            other => other,
        }
    }

    fn writes(&self) -> bool {
        match self {
            Op::Get(_) => false,
            Op::Put { .. } | Op::Delete(_) => true,
            Op::Txn(txn) => txn.writes(),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Get(query) => query.fmt(f),
            Op::Put { key, .. } => write!(f, "write of key {}", printable(key)),
            Op::Delete(keys) => write!(f, "deletion of {keys}"),
            Op::Txn(txn) => txn.fmt(f),
        }
    }
}

/// If all of `when` hold, `then`, else `otherwise`; at once and in one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions.
    pub when: Vec<Compare>,
    /// What to do if all hold.
    pub then: Vec<Op>,
    /// What to do if not.
    pub otherwise: Vec<Op>,
}

impl Txn {
    /// Does nothing, always.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Txn {
        self.when.push(compare);
        self
    }

    /// Adds something to do if all conditions hold.
    #[must_use]
    pub fn then(mut self, op: Op) -> Txn {
        self.then.push(op);
        self
    }

    /// Adds something to do if a condition does not hold.
    #[must_use]
    pub fn otherwise(mut self, op: Op) -> Txn {
        self.otherwise.push(op);
        self
    }

    /// Whether it may change anything.
    pub fn writes(&self) -> bool {
        self.then.iter().chain(&self.otherwise).any(Op::writes)
    }
}

impl fmt::Display for Txn {
    /// Names the first thing it would do: enough to find it by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.then.as_slice(), self.when.first()) {
            ([only], None) => only.fmt(f),
            ([first, ..], _) => write!(f, "transaction ({first})"),
            ([], Some(compare)) => write!(f, "transaction on key {}", printable(&compare.key)),
            ([], None) => write!(f, "transaction"),
        }
    }
}

/// What a transaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnOutcome {
    /// Revision of the store after it.
    pub revision: Revision,
    /// Whether all conditions held.
    pub succeeded: bool,
    /// One answer for each operation done.
    pub answers: Vec<OpResponse>,
}

impl TxnOutcome {
    /// The first key of the first read.
    pub fn first_read(&self) -> Option<&KeyValue> {
        self.answers.iter().find_map(|answer| match answer {
            OpResponse::Read(page) => page.kvs.first(),
            _ => None,
        })
    }

    /// How many keys were deleted in all.
    pub fn deleted(&self) -> u64 {
        let each = self.answers.iter().map(|answer| match answer {
            OpResponse::Deleted(count) => *count,
            OpResponse::Txn(inner) => inner.deleted(),
            OpResponse::Read(_) | OpResponse::Put => 0,
        });
        each.sum()
    }
}

/// Answer to one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpResponse {
    /// What was read.
    Read(Page),
    /// It was written.
    Put,
    /// So many keys were deleted.
    Deleted(u64),
    /// What the inner transaction did.
    Txn(TxnOutcome),
}
