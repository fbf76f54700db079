//! All versions of all keys, and the leases.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;

use super::HERE;
use crate::contract::{
    Change, Compare, CompareOp, ErrorClass, KeyValue, Keys, LeaseId, Op, OpResponse, Operand, Page,
    Projection, Query, ReadError, Revision, Txn, TxnOutcome, WatchFrom, WriteError,
};

pub(super) struct History {
    revision: Revision,
    /// History below this revision is forgotten.
    compacted: Revision,
    /// Oldest version first.
    keys: BTreeMap<Bytes, Vec<Version>>,
    leases: BTreeMap<LeaseId, Lease>,
    next_lease: i64,
}

/// A key from one revision on.
struct Version {
    at: Revision,
    /// `None`: deleted.
    kv: Option<KeyValue>,
}

struct Lease {
    ttl: Duration,
    expires: Duration,
}

impl History {
    pub(super) fn new() -> History {
        History {
            revision: Revision(1),
            compacted: Revision::ZERO,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            next_lease: 1,
        }
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn range(&self, query: &Query) -> Result<Page, ReadError> {
        let at = query.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(ReadError::Future { what: query.to_string() });
        }
        if at < self.compacted {
            return Err(ReadError::Compacted { what: query.to_string() });
        }
        Ok(self.read(query, at))
    }

    pub(super) fn txn(&mut self, txn: &Txn) -> Result<TxnOutcome, WriteError> {
        self.check(txn)?;
        let revision = self.revision.next();
        let outcome = self.apply(txn, revision);
        // Only a transaction that changed something makes a revision.
        if outcome.wrote {
            self.revision = revision;
        }
        Ok(outcome.seen_at(self.revision))
    }

    /// Changes from `next` on, or the first revision that could be asked for.
    pub(super) fn changes(
        &self,
        from: &WatchFrom,
        next: Revision,
    ) -> Result<Vec<Change>, Revision> {
        if next < self.compacted {
            return Err(self.compacted);
        }
        let mut changes = Vec::new();
        for (key, versions) in self.keys.range(bounds(&from.keys)) {
            let mut before: Option<&KeyValue> = None;
            for version in versions {
                if version.at >= next {
                    let before = before.filter(|_| from.previous).cloned();
                    changes.push(match &version.kv {
                        Some(now) => Change::Put { now: now.clone(), before },
                        None => Change::Deleted { key: key.clone(), at: version.at, before },
                    });
                }
                before = version.kv.as_ref();
            }
        }
        changes.sort_by_key(Change::at);
        Ok(changes)
    }

    pub(super) fn compact(&mut self, revision: Revision) -> Result<(), WriteError> {
        let what = format!("compaction at {revision}");
        if revision <= self.compacted {
            return Err(WriteError::Compacted { what });
        }
        if revision > self.revision {
            return Err(refused(what, "that revision is still to come"));
        }
        self.compacted = revision;
        for versions in self.keys.values_mut() {
            let kept = versions.iter().rposition(|version| version.at <= revision).unwrap_or(0);
            versions.drain(..kept);
            if versions.first().is_some_and(|first| first.at <= revision && first.kv.is_none()) {
                versions.remove(0);
            }
        }
        self.keys.retain(|_, versions| !versions.is_empty());
        Ok(())
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Duration) -> LeaseId {
        let id = LeaseId(self.next_lease);
        self.next_lease += 1;
        self.leases.insert(id, Lease { ttl, expires: now + ttl });
        id
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Duration) -> Option<Duration> {
        let lease = self.leases.get_mut(&id)?;
        lease.expires = now + lease.ttl;
        Some(lease.ttl)
    }

    pub(super) fn revoke(&mut self, id: LeaseId) -> bool {
        if self.leases.remove(&id).is_none() {
            return false;
        }
        let hangs = |(key, versions): (&Bytes, &Vec<Version>)| {
            let kv = versions.last()?.kv.as_ref()?;
            (kv.lease == Some(id)).then(|| key.clone())
        };
        let keys: Vec<Bytes> = self.keys.iter().filter_map(hangs).collect();
        if !keys.is_empty() {
            self.revision = self.revision.next();
        }
        for key in keys {
            self.push(key, None, self.revision);
        }
        true
    }

    /// Ends the leases whose time is over.
    pub(super) fn expire(&mut self, now: Duration) {
        let over = |(id, lease): (&LeaseId, &Lease)| (lease.expires <= now).then_some(*id);
        let over: Vec<LeaseId> = self.leases.iter().filter_map(over).collect();
        for id in over {
            self.revoke(id);
        }
    }

    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.leases.values().map(|lease| lease.expires).min()
    }

    fn at(&self, key: &Bytes, revision: Revision) -> Option<&KeyValue> {
        self.keys.get(key)?.iter().rfind(|version| version.at <= revision)?.kv.as_ref()
    }

    fn read(&self, query: &Query, at: Revision) -> Page {
        let keys = self.keys.range(bounds(&query.keys));
        let live: Vec<&KeyValue> = keys.filter_map(|(key, _)| self.at(key, at)).collect();
        let limit = match query.limit {
            0 => live.len(),
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let more = live.len() > limit && query.of != Projection::Count;
        let count = u64::try_from(live.len()).unwrap_or(u64::MAX);
        let shown = |kv: &KeyValue| match query.of {
            Projection::Keys => KeyValue { value: Bytes::new(), ..kv.clone() },
            Projection::Values | Projection::Count => kv.clone(),
        };
        let kvs = match query.of {
            Projection::Count => Vec::new(),
            Projection::Values | Projection::Keys => {
                live.into_iter().take(limit).map(shown).collect()
            }
        };
        Page { revision: self.revision, kvs, more, count }
    }

    fn push(&mut self, key: Bytes, kv: Option<KeyValue>, at: Revision) {
        let versions = self.keys.entry(key).or_default();
        versions.retain(|version| version.at != at);
        versions.push(Version { at, kv });
    }

    /// Whether all conditions hold now.
    fn holds(&self, when: &[Compare]) -> bool {
        when.iter().all(|compare| {
            let kv = self.at(&compare.key, self.revision);
            holds(kv, compare)
        })
    }

    fn apply(&mut self, txn: &Txn, revision: Revision) -> Applied {
        // All conditions, also those of inner transactions, look at the state before the first
        // write: writes get a revision that conditions do not see.
        let succeeded = self.holds(&txn.when);
        let ops = if succeeded { &txn.then } else { &txn.otherwise };
        let mut applied = Applied { wrote: false, succeeded, answers: Vec::new() };
        for op in ops {
            let answer = match op {
                Op::Get(query) => OpResponse::Read(self.read(query, query.at.unwrap_or(revision))),
                Op::Put { key, value, lease } => {
                    applied.wrote = true;
                    let old = self.at(key, revision);
                    let kv = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        created: old.map_or(revision, |old| old.created),
                        changed: revision,
                        version: old.map_or(1, |old| old.version + 1),
                        lease: *lease,
                    };
                    self.push(key.clone(), Some(kv), revision);
                    OpResponse::Put
                }
                Op::Delete(keys) => {
                    let live = self.read(&Query::keys(keys.clone()), revision).kvs;
                    applied.wrote |= !live.is_empty();
                    let count = u64::try_from(live.len()).unwrap_or(u64::MAX);
                    for kv in live {
                        self.push(kv.key, None, revision);
                    }
                    OpResponse::Deleted(count)
                }
                Op::Txn(inner) => {
                    let inner = self.apply(inner, revision);
                    applied.wrote |= inner.wrote;
                    OpResponse::Txn(inner.seen_at(Revision::ZERO))
                }
            };
            applied.answers.push(answer);
        }
        applied
    }

    /// Refuses what etcd refuses, before anything is done.
    fn check(&self, txn: &Txn) -> Result<(), WriteError> {
        let what = txn.to_string();
        for ops in [&txn.then, &txn.otherwise] {
            if written(ops).is_err() {
                return Err(refused(what, "etcdserver: duplicate key given in txn request"));
            }
        }
        // Only the branch that is taken must find its leases.
        let taken = if self.holds(&txn.when) { &txn.then } else { &txn.otherwise };
        for op in taken {
            match op {
                Op::Put { lease: Some(lease), .. } if !self.leases.contains_key(lease) => {
                    return Err(WriteError::LeaseGone { what });
                }
                Op::Txn(inner) => self.check(inner)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// What a transaction did, before its revision is known.
struct Applied {
    wrote: bool,
    succeeded: bool,
    answers: Vec<OpResponse>,
}

impl Applied {
    fn seen_at(self, revision: Revision) -> TxnOutcome {
        let mut outcome = TxnOutcome { revision, succeeded: self.succeeded, answers: self.answers };
        for answer in &mut outcome.answers {
            if let OpResponse::Read(page) = answer {
                page.revision = revision;
            }
        }
        outcome
    }
}

fn refused(what: String, reason: &str) -> WriteError {
    let (endpoint, reason) = (HERE.to_owned(), reason.to_owned());
    WriteError::Refused { what, endpoint, reason, class: ErrorClass::Caller }
}

/// A key is written twice.
struct Twice;

/// The keys that `ops` write and delete, unless one is written twice.
fn written(ops: &[Op]) -> Result<(BTreeSet<Bytes>, Vec<Keys>), Twice> {
    let mut puts = BTreeSet::new();
    let mut deletes: Vec<Keys> = Vec::new();
    for op in ops {
        if let Op::Delete(keys) = op {
            deletes.push(keys.clone());
        }
    }
    for op in ops {
        let fresh = match op {
            Op::Get(_) | Op::Delete(_) => continue,
            Op::Put { key, .. } => BTreeSet::from([key.clone()]),
            Op::Txn(inner) => {
                // Only one of the two branches is taken: they may write the same keys.
                let (mut then, deleted) = written(&inner.then)?;
                let (otherwise, deleted_otherwise) = written(&inner.otherwise)?;
                then.extend(otherwise);
                deletes.extend(deleted);
                deletes.extend(deleted_otherwise);
                then
            }
        };
        for key in fresh {
            let deleted = deletes.iter().any(|keys| contains(keys, &key));
            if deleted || !puts.insert(key) {
                return Err(Twice);
            }
        }
    }
    Ok((puts, deletes))
}

fn holds(kv: Option<&KeyValue>, compare: &Compare) -> bool {
    let order = match &compare.with {
        Operand::Version(version) => kv.map_or(0, |kv| kv.version).cmp(version),
        Operand::Created(at) => kv.map_or(Revision::ZERO, |kv| kv.created).cmp(at),
        Operand::Changed(at) => kv.map_or(Revision::ZERO, |kv| kv.changed).cmp(at),
        Operand::Lease(lease) => {
            let number = |lease: Option<LeaseId>| lease.map_or(0, |lease| lease.0);
            number(kv.and_then(|kv| kv.lease)).cmp(&number(*lease))
        }
        Operand::Value(value) => match kv {
            Some(kv) => kv.value.cmp(value),
            // A key that does not exist has no value to compare.
            None => return false,
        },
    };
    match compare.is {
        CompareOp::Equal => order.is_eq(),
        CompareOp::Greater => order.is_gt(),
        CompareOp::Less => order.is_lt(),
        CompareOp::NotEqual => order.is_ne(),
    }
}

fn bounds(keys: &Keys) -> (Bound<Bytes>, Bound<Bytes>) {
    let (from, to) = keys.to_wire();
    let end = match keys {
        Keys::One(key) => Bound::Included(key.clone()),
        _ if to.as_ref() == b"\0" => Bound::Unbounded,
        // An empty or backward range holds nothing, and must not be asked of a map.
        _ if to <= from => return (Bound::Included(Bytes::new()), Bound::Excluded(Bytes::new())),
        _ => Bound::Excluded(to),
    };
    (Bound::Included(from), end)
}

fn contains(keys: &Keys, key: &Bytes) -> bool {
    let (from, to) = bounds(keys);
    let after = match from {
        Bound::Included(from) => *key >= from,
        Bound::Excluded(from) => *key > from,
        Bound::Unbounded => true,
    };
    let before = match to {
        Bound::Included(to) => *key <= to,
        Bound::Excluded(to) => *key < to,
        Bound::Unbounded => true,
    };
    after && before
}
