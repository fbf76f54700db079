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
    AlarmType, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, PutResponse, TxnRequest,
    TxnResponse,
};

use super::{
    auth::{Auth, Caller},
    entry::Entry,
    index::Index,
    keys::KeyRange,
    leases::{Leases, Millis},
    query::{header, length},
    record::{Record, Revision},
    settings::{AlarmCause, Setting, Settings},
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
    settings: Settings,
    outbox: Vec<Entry>,
    quota: usize,
    lease_ids: LeaseIds,
}

/// What a machine begins with.
#[derive(Debug)]
pub(crate) struct Start {
    /// The leases that were granted before: number and seconds.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Users, roles, alarms and addresses.
    pub(crate) settings: Settings,
    /// About the most bytes of all records.
    pub(crate) quota: usize,
    /// Makes lease numbers differ.
    pub(crate) seed: u64,
}

impl Machine {
    /// A machine over the keys of an index.
    pub(crate) fn new(index: &Index, start: Start) -> Self {
        let mut leases = Leases::default();
        for (id, ttl) in start.leases {
            leases.grant(id, ttl, Millis(0));
        }
        let everything = KeyRange::new(&Bytes::from_static(&[0]), &Bytes::from_static(&[0]));
        for record in index.range(&everything, i64::MAX) {
            leases.attach(&record.key, 0, record.lease);
        }
        let Start { settings, quota, seed, .. } = start;
        Self { leases, settings, outbox: Vec::new(), quota, lease_ids: LeaseIds(seed) }
    }

    /// Users, roles, alarms and addresses.
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Users and roles.
    pub(crate) fn auth(&self) -> &Auth {
        &self.settings.auth
    }

    /// Makes a change that was checked.
    pub(crate) fn set(&mut self, setting: Setting) {
        self.settings.apply(&setting);
        self.outbox.push(Entry::Setting(setting));
    }

    /// Makes changes of users and roles that were checked, and counts them as one.
    pub(crate) fn set_auth(&mut self, changes: impl IntoIterator<Item = Setting>) {
        changes.into_iter().for_each(|change| self.set(change));
        let Auth { enabled, revision, .. } = self.settings.auth;
        self.set(Setting::Auth { enabled, revision: revision + 1 });
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
        self.check_sound()?;
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
        self.check_sound()?;
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
        self.check_sound()?;
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
        self.check_sound()?;
        if self.settings.alarms.contains_key(&AlarmType::Nospace.into()) {
            return Err(Refusal::NoSpace);
        }
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

    /// Whether a caller may end a lease, which deletes its keys.
    pub(crate) fn permit_lease(&self, caller: &Caller, id: i64) -> Result<(), Refusal> {
        let keys = self.leases.get(id).into_iter().flat_map(|lease| &lease.keys);
        self.auth().permit_lease(caller, keys)
    }

    /// Whether a caller may be told the keys of a lease.
    pub(crate) fn permit_lease_keys(&self, caller: &Caller, id: i64) -> Result<(), Refusal> {
        let mut keys = self.leases.get(id).into_iter().flat_map(|lease| &lease.keys);
        keys.try_for_each(|key| self.auth().permit_range(caller, key, &Bytes::new()))
    }

    /// Counts a renewal from when it arrived, unless the lease was over by then.
    pub(crate) fn lease_arrived(&mut self, id: i64, at: Millis) {
        self.leases.renew_in_time(id, at);
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

    /// Refuses to add to a full store. The first refusal raises the alarm, as in etcd: from then on
    /// only deletions and compactions are done.
    fn check_quota(&mut self, index: &Index) -> Result<(), Refusal> {
        let kind = AlarmType::Nospace.into();
        if self.settings.alarms.contains_key(&kind) {
            return Err(Refusal::NoSpace);
        }
        if index.bytes() > self.quota {
            self.set(Setting::Alarm { kind, raised: Some(AlarmCause::Quota) });
            return Err(Refusal::NoSpace);
        }
        Ok(())
    }

    /// Clears the alarm that the quota raised, once a tenth of it is free again.
    pub(crate) fn relieve(&mut self, index: &Index) {
        let kind = AlarmType::Nospace.into();
        let raised = self.settings.alarms.get(&kind) == Some(&AlarmCause::Quota);
        if raised && index.bytes() <= self.quota - self.quota / 10 {
            self.set(Setting::Alarm { kind, raised: None });
        }
    }

    /// How near the quota is.
    pub(crate) fn pressure(&self, index: &Index) -> Pressure {
        if self.settings.alarms.get(&AlarmType::Nospace.into()) == Some(&AlarmCause::Quota) {
            Pressure::Full
        } else if index.bytes() > self.quota - self.quota / 4 {
            Pressure::High
        } else {
            Pressure::None
        }
    }

    /// Refuses to change a store of which somebody says that it is damaged.
    fn check_sound(&self) -> Result<(), Refusal> {
        let damaged = self.settings.alarms.contains_key(&AlarmType::Corrupt.into());
        if damaged { Err(Refusal::Corrupt) } else { Ok(()) }
    }
}

/// How near the quota is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pressure {
    /// Far away.
    None,
    /// Three quarters are used: old history goes first.
    High,
    /// Nothing can be added any more: all history goes.
    Full,
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
