//! The state machine: what each request does to keys and leases.
//!
//! Every method checks first and changes after, so a refused request changes nothing. Changes go
//! into the index at once, where readers do not see them before they are published, and as
//! [`Entry`]s into the outbox, from where the writer takes them to disk.
//!
//! Deliberately not here: disk, threads, the clock, gRPC.

use std::{mem, sync::Arc};

use bytes::Bytes;

use crate::proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, PutResponse, TxnRequest,
    TxnResponse,
};

use super::{
    entry::Entry,
    index::Index,
    keys::KeyRange,
    leases::{Leases, Millis},
    query::{header, length},
    record::{Record, Revision},
    status::Refusal,
    txn, validate,
};

/// Longest time that a lease may live, in seconds.
const MAX_TTL: i64 = 9_000_000_000;
/// Shortest time that a lease lives, in seconds.
const MIN_TTL: i64 = 2;
/// Most leases that end at one time; the rest follow in the next batch.
const EXPIRE_AT_ONCE: usize = 1000;

/// Keys and leases, and what each request does to them.
#[derive(Debug)]
pub(crate) struct Machine {
    leases: Leases,
    outbox: Vec<Entry>,
    quota: usize,
    lease_ids: LeaseIds,
}

impl Machine {
    /// A machine with the leases that were granted before. `seed` makes lease numbers differ.
    pub(crate) fn new(index: &Index, granted: &[(i64, i64)], quota: usize, seed: u64) -> Self {
        let mut leases = Leases::default();
        for (id, ttl) in granted {
            leases.grant(*id, *ttl, Millis(0));
        }
        let everything = KeyRange::new(&Bytes::from_static(&[0]), &Bytes::from_static(&[0]));
        for record in index.range(&everything, i64::MAX) {
            leases.attach(&record.key, 0, record.lease);
        }
        Self { leases, outbox: Vec::new(), quota, lease_ids: LeaseIds(seed) }
    }

    /// The leases.
    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Takes what must go to disk.
    pub(crate) fn take_outbox(&mut self) -> Vec<Entry> {
        mem::take(&mut self.outbox)
    }

    /// Writes one key.
    pub(crate) fn put(
        &mut self,
        index: &mut Index,
        request: &PutRequest,
    ) -> Result<PutResponse, Refusal> {
        validate::put(request)?;
        self.check_quota(index)?;
        let mut step = self.begin(index);
        step.check_put(request)?;
        let response = step.put(request);
        step.finish();
        Ok(response)
    }

    /// Deletes keys.
    pub(crate) fn delete_range(
        &mut self,
        index: &mut Index,
        request: &DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Refusal> {
        validate::delete(request)?;
        let mut step = self.begin(index);
        let response = step.delete_range(request);
        step.finish();
        Ok(response)
    }

    /// Compares, then does one of two lists of operations, all in one revision.
    pub(crate) fn txn(
        &mut self,
        index: &mut Index,
        request: &TxnRequest,
    ) -> Result<TxnResponse, Refusal> {
        validate::txn(request)?;
        let path = txn::path(index, request, index.revision());
        if txn::puts(&path) {
            self.check_quota(index)?;
        }
        let mut step = self.begin(index);
        txn::check(&step, &path)?;
        let mut response = txn::apply(&mut step, &path)?;
        response.header = header(step.finish());
        Ok(response)
    }

    /// Makes a lease.
    pub(crate) fn lease_grant(
        &mut self,
        index: &Index,
        request: &LeaseGrantRequest,
        now: Millis,
    ) -> Result<LeaseGrantResponse, Refusal> {
        if request.ttl > MAX_TTL {
            return Err(Refusal::LeaseTooLong);
        }
        let ttl = request.ttl.max(MIN_TTL);
        let id = if request.id == 0 { self.lease_ids.next(&self.leases) } else { request.id };
        if !self.leases.grant(id, ttl, now) {
            return Err(Refusal::LeaseExists);
        }
        self.outbox.push(Entry::LeaseGranted { id, ttl });
        let error = String::new();
        Ok(LeaseGrantResponse { header: header(index.revision()), id, ttl, error })
    }

    /// Ends a lease and deletes its keys.
    pub(crate) fn lease_revoke(
        &mut self,
        index: &mut Index,
        id: i64,
    ) -> Result<LeaseRevokeResponse, Refusal> {
        let lease = self.leases.remove(id).ok_or(Refusal::LeaseNotFound)?;
        let mut step = self.begin(index);
        for key in lease.keys {
            step.delete(key);
        }
        let revision = step.finish();
        self.outbox.push(Entry::LeaseEnded { id });
        Ok(LeaseRevokeResponse { header: header(revision) })
    }

    /// Renews a lease; 0 seconds to live says that there is none.
    pub(crate) fn lease_renew(
        &mut self,
        index: &Index,
        id: i64,
        now: Millis,
    ) -> LeaseKeepAliveResponse {
        let ttl = self.leases.renew(id, now).unwrap_or(0);
        LeaseKeepAliveResponse { header: header(index.revision()), id, ttl }
    }

    /// Tells how long a lease has to live; -1 says that there is none.
    pub(crate) fn lease_time_to_live(
        &self,
        index: &Index,
        request: &LeaseTimeToLiveRequest,
        now: Millis,
    ) -> LeaseTimeToLiveResponse {
        let id = request.id;
        let header = header(index.revision());
        let Some(lease) = self.leases.get(id) else {
            return LeaseTimeToLiveResponse { header, id, ttl: -1, ..Default::default() };
        };
        let keys = if request.keys { lease.keys.iter().cloned().collect() } else { Vec::new() };
        LeaseTimeToLiveResponse { header, id, ttl: lease.left(now), granted_ttl: lease.ttl, keys }
    }

    /// Lists the leases, those that end first in front.
    pub(crate) fn lease_leases(&self, index: &Index) -> LeaseLeasesResponse {
        let leases = self.leases.by_deadline().map(|id| LeaseStatus { id }).collect();
        LeaseLeasesResponse { header: header(index.revision()), leases }
    }

    /// Ends leases whose time is over.
    pub(crate) fn expire(&mut self, index: &mut Index, now: Millis) {
        for _ in 0..EXPIRE_AT_ONCE {
            let Some(id) = self.leases.expired(now) else { return };
            // It exists: it was just found.
            let _ = self.lease_revoke(index, id);
        }
    }

    fn begin<'a>(&'a mut self, index: &'a mut Index) -> Step<'a> {
        let next = Revision { main: index.revision() + 1, sub: 0 };
        Step { index, leases: &mut self.leases, outbox: &mut self.outbox, next }
    }

    fn check_quota(&self, index: &Index) -> Result<(), Refusal> {
        if index.bytes() > self.quota { Err(Refusal::NoSpace) } else { Ok(()) }
    }
}

/// One revision in the making.
pub(crate) struct Step<'a> {
    index: &'a mut Index,
    leases: &'a mut Leases,
    outbox: &'a mut Vec<Entry>,
    next: Revision,
}

impl Step<'_> {
    /// The index, with the changes so far.
    pub(crate) fn index(&self) -> &Index {
        self.index
    }

    /// The newest revision that this step itself sees.
    pub(crate) fn current(&self) -> i64 {
        if self.next.sub > 0 { self.next.main } else { self.next.main - 1 }
    }

    /// Whether a checked put can be done.
    pub(crate) fn check_put(&self, request: &PutRequest) -> Result<(), Refusal> {
        let keeps = request.ignore_value || request.ignore_lease;
        if keeps && self.index.get(&request.key, i64::MAX).is_none() {
            return Err(Refusal::KeyNotFound);
        }
        if request.lease != 0 && self.leases.get(request.lease).is_none() {
            return Err(Refusal::LeaseNotFound);
        }
        Ok(())
    }

    /// Writes one key.
    pub(crate) fn put(&mut self, request: &PutRequest) -> PutResponse {
        let prev = self.index.get(&request.key, i64::MAX).map(Arc::clone);
        let revision = self.take_revision();
        // Own copies: what came in shares the buffer of the whole request.
        let record = match &prev {
            Some(prev) => Record {
                revision,
                key: prev.key.clone(),
                value: if request.ignore_value {
                    prev.value.clone()
                } else {
                    Bytes::copy_from_slice(&request.value)
                },
                create_revision: prev.create_revision,
                version: prev.version + 1,
                lease: if request.ignore_lease { prev.lease } else { request.lease },
            },
            None => Record {
                revision,
                key: Bytes::copy_from_slice(&request.key),
                value: Bytes::copy_from_slice(&request.value),
                create_revision: revision.main,
                version: 1,
                lease: request.lease,
            },
        };
        let old_lease = prev.as_ref().map_or(0, |prev| prev.lease);
        self.leases.attach(&record.key, old_lease, record.lease);
        self.add(record);
        let prev_kv = prev.filter(|_| request.prev_kv).map(|prev| prev.to_key_value());
        PutResponse { header: header(revision.main), prev_kv }
    }

    /// Deletes keys.
    pub(crate) fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let range = KeyRange::new(&request.key, &request.range_end);
        let found: Vec<_> = self.index.range(&range, i64::MAX).map(Arc::clone).collect();
        for record in &found {
            self.leases.attach(&record.key, record.lease, 0);
            self.delete(record.key.clone());
        }
        let deleted = length(found.len());
        let prev_kvs = if request.prev_kv {
            found.iter().map(|record| record.to_key_value()).collect()
        } else {
            Vec::new()
        };
        DeleteRangeResponse { header: header(self.current()), deleted, prev_kvs }
    }

    /// Deletes one key that exists and hangs on no lease any more.
    fn delete(&mut self, key: Bytes) {
        let revision = self.take_revision();
        self.add(Record::tombstone(revision, key));
    }

    /// Ends the step; the revision of the store after it.
    pub(crate) fn finish(self) -> i64 {
        let current = self.current();
        self.index.reach(current);
        current
    }

    fn take_revision(&mut self) -> Revision {
        let revision = self.next;
        self.next.sub += 1;
        revision
    }

    fn add(&mut self, record: Record) {
        let record = Arc::new(record);
        self.outbox.push(Entry::Changed(Arc::clone(&record)));
        self.index.insert(record);
    }
}

/// Numbers for leases that clients did not number: positive, and not to be guessed in advance.
#[derive(Debug)]
struct LeaseIds(u64);

impl LeaseIds {
    fn next(&mut self, taken: &Leases) -> i64 {
        loop {
            // SplitMix64: every seed of 64 bits leads to another number.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let id = ((mixed ^ (mixed >> 31)) >> 1).cast_signed();
            if id != 0 && taken.get(id).is_none() {
                return id;
            }
        }
    }
}
