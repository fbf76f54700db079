//! The machine against a model so simple that it is right: a map for every revision.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;

use crate::{
    proto::{
        etcdserverpb::{
            Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp,
            TxnRequest,
            compare::{CompareTarget, TargetUnion},
            range_request::{SortOrder, SortTarget},
            request_op::Request,
        },
        mvccpb::KeyValue,
    },
    server::{
        entry::Entry, index::Index, leases::Millis, machine::Machine, query, record::Record,
        status::Refusal,
    },
};

use super::start;

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, value: u8, lease: i64 },
    Delete { from: u8, to: u8 },
    Swap { key: u8, version: i64, other: u8 },
    Grant(i64),
    Revoke(i64),
    Compact(i64),
    Reload,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..5u8, 0..4u8, 0..3i64)
            .prop_map(|(key, value, lease)| Op::Put { key, value, lease }),
        2 => (0..5u8, 0..6u8).prop_map(|(from, to)| Op::Delete { from, to }),
        3 => (0..5u8, 0..3i64, 0..5u8)
            .prop_map(|(key, version, other)| Op::Swap { key, version, other }),
        1 => (1..3i64).prop_map(Op::Grant),
        1 => (1..3i64).prop_map(Op::Revoke),
        1 => (0..4i64).prop_map(Op::Compact),
        1 => Just(Op::Reload),
    ];
    prop::collection::vec(op, 0..40)
}

type Keys = BTreeMap<Bytes, KeyValue>;

/// All revisions as maps; the first is revision 1.
struct Model {
    states: Vec<Keys>,
    compacted: i64,
    leases: BTreeMap<i64, i64>,
}

impl Model {
    fn revision(&self) -> i64 {
        self.states.len().try_into().unwrap()
    }

    fn at(&self, revision: i64) -> &Keys {
        &self.states[usize::try_from(revision - 1).unwrap()]
    }

    fn newest(&self) -> &Keys {
        self.states.last().unwrap()
    }

    fn put(state: &mut Keys, revision: i64, key: Bytes, value: Bytes, lease: i64) {
        let old = state.get(&key);
        let kv = KeyValue {
            key: key.clone(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
            value,
            lease,
        };
        state.insert(key, kv);
    }

    /// Does an operation; whether it is refused.
    fn apply(&mut self, op: &Op) -> Option<Refusal> {
        let next = self.revision() + 1;
        let mut state = self.newest().clone();
        let before = state.clone();
        match *op {
            Op::Put { lease, .. } if lease != 0 && !self.leases.contains_key(&lease) => {
                return Some(Refusal::LeaseNotFound);
            }
            Op::Put { key: k, value, lease } => {
                Self::put(&mut state, next, key(k), vec![value].into(), lease);
                self.states.push(state);
                return None;
            }
            Op::Delete { from, to } => state.retain(|k, _| *k < key(from) || *k >= key(to)),
            Op::Swap { other, key: k, .. } if other == k => return Some(Refusal::DuplicateKey),
            Op::Swap { key: k, version, other } => {
                if state.get(&key(k)).map_or(0, |kv| kv.version) == version {
                    Self::put(&mut state, next, key(k), "swapped".into(), 0);
                    state.remove(&key(other));
                }
            }
            Op::Grant(id) => {
                if self.leases.insert(id, 100).is_some() {
                    return Some(Refusal::LeaseExists);
                }
            }
            Op::Revoke(id) => {
                if self.leases.remove(&id).is_none() {
                    return Some(Refusal::LeaseNotFound);
                }
                state.retain(|_, kv| kv.lease != id);
            }
            Op::Compact(back) => self.compacted = self.compacted.max(self.revision() - back),
            Op::Reload => {}
        }
        if state != before {
            self.states.push(state);
        }
        None
    }
}

fn key(key: u8) -> Bytes {
    Bytes::from(vec![b'a' + key])
}

/// The real thing, and all that went to disk.
struct Real {
    index: Index,
    machine: Machine,
    disk: Vec<Arc<Record>>,
    leases: BTreeMap<i64, i64>,
}

impl Real {
    fn new() -> Self {
        let index = Index::build(Vec::new(), 1, 0);
        let machine = Machine::new(&index, start(Vec::new()));
        Self { index, machine, disk: Vec::new(), leases: BTreeMap::new() }
    }

    fn apply(&mut self, op: &Op) -> Option<Refusal> {
        let index = &mut self.index;
        let refused = match *op {
            Op::Put { key: k, value, lease } => {
                let (key, value) = (key(k), vec![value].into());
                let request = PutRequest { key, value, lease, ..PutRequest::default() };
                self.machine.put(index, &request).err()
            }
            Op::Delete { from, to } => {
                let (key, range_end) = (key(from), key(to));
                let request = DeleteRangeRequest { key, range_end, prev_kv: false };
                self.machine.delete_range(index, &request).err()
            }
            Op::Swap { key: k, version, other } => {
                self.machine.txn(index, &swap(k, version, other)).err()
            }
            Op::Grant(id) => {
                let request = LeaseGrantRequest { id, ttl: 100 };
                self.machine.lease_grant(index, &request, Millis(0)).err()
            }
            Op::Revoke(id) => self.machine.lease_revoke(index, id).err(),
            Op::Compact(back) => {
                let to = index.revision() - back;
                if to > index.compacted() {
                    index.compact(to);
                    while !index.sweep(2) {}
                }
                None
            }
            Op::Reload => {
                let (revision, compacted) = (index.revision(), index.compacted());
                let bytes = index.bytes();
                self.index = Index::build(self.disk.clone(), revision, compacted);
                assert_eq!(self.index.bytes(), bytes, "memory is counted the same");
                let leases: Vec<_> = self.leases.iter().map(|(id, ttl)| (*id, *ttl)).collect();
                self.machine = Machine::new(&self.index, start(leases));
                None
            }
        };
        for entry in self.machine.take_outbox() {
            match entry {
                Entry::Changed(record) => self.disk.push(record),
                Entry::LeaseGranted { id, ttl } => drop(self.leases.insert(id, ttl)),
                Entry::LeaseEnded { id } => drop(self.leases.remove(&id)),
                Entry::Compacted { .. } | Entry::Setting(_) | Entry::Closed => {}
            }
        }
        refused
    }

    fn keys(&self, revision: i64) -> Result<Vec<KeyValue>, Refusal> {
        let all = Bytes::from_static(&[0]);
        let (key, range_end) = (all.clone(), all);
        let request = RangeRequest { key, range_end, revision, ..RangeRequest::default() };
        Ok(query::range(&self.index, &request, self.index.revision())?.kvs)
    }
}

fn swap(k: u8, version: i64, other: u8) -> TxnRequest {
    let compare = Compare {
        target: CompareTarget::Version.into(),
        key: key(k),
        target_union: Some(TargetUnion::Version(version)),
        ..Compare::default()
    };
    let put = PutRequest { key: key(k), value: "swapped".into(), ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: key(other), ..DeleteRangeRequest::default() };
    let op = |request| RequestOp { request: Some(request) };
    TxnRequest {
        compare: vec![compare],
        success: vec![op(Request::RequestPut(put)), op(Request::RequestDeleteRange(delete))],
        failure: Vec::new(),
    }
}

/// Replays the log from the compaction on; each revision must come out as the model has it.
fn check_log(real: &Real, model: &Model) {
    let start = model.compacted.max(1);
    let mut keys = model.at(start).clone();
    let mut revision = start;
    let mut seen = revision;
    for change in real.index.changes_from(start + 1) {
        let main = change.record.revision.main;
        assert!(main >= seen, "in order");
        if main > revision {
            assert_eq!(&keys, model.at(revision));
            revision = main;
        }
        seen = main;
        let prev = keys.remove(&change.record.key);
        assert_eq!(prev, change.prev.as_ref().map(|prev| prev.to_key_value()));
        if !change.record.is_tombstone() {
            keys.insert(change.record.key.clone(), change.record.to_key_value());
        }
    }
    assert_eq!(&keys, model.newest());
}

proptest! {
    #[test]
    fn the_machine_does_what_the_model_does(ops in ops()) {
        let mut real = Real::new();
        let mut model =
            Model { states: vec![Keys::new()], compacted: 0, leases: BTreeMap::new() };
        for op in &ops {
            prop_assert_eq!(real.apply(op), model.apply(op));
            prop_assert_eq!(real.index.revision(), model.revision());
            prop_assert_eq!(&real.leases, &model.leases);
            for revision in 1..=model.revision() {
                if revision < model.compacted {
                    prop_assert_eq!(real.keys(revision), Err(Refusal::Compacted));
                } else {
                    let want: Vec<_> = model.at(revision).values().cloned().collect();
                    prop_assert_eq!(real.keys(revision), Ok(want));
                }
            }
            prop_assert_eq!(real.keys(model.revision() + 1), Err(Refusal::FutureRevision));
            check_log(&real, &model);
        }
    }

    #[test]
    fn sorted_and_cut_as_a_sorted_list_is(
        ops in ops(), target in 0..5i32, order in 0..3i32, limit in 0..4i64, min in 0..9i64,
    ) {
        let mut real = Real::new();
        for op in &ops {
            real.apply(op);
        }
        let all = Bytes::from_static(&[0]);
        let request = RangeRequest {
            key: all.clone(), range_end: all, limit, sort_target: target, sort_order: order,
            min_mod_revision: min, ..RangeRequest::default()
        };
        let current = real.index.revision();
        let response = query::range(&real.index, &request, current).unwrap();
        let mut want = real.keys(0).unwrap();
        prop_assert_eq!(response.count, query::length(want.len()));
        want.retain(|kv| kv.mod_revision >= min);
        let number = |kv: &KeyValue| match request.sort_target() {
            SortTarget::Version => kv.version,
            SortTarget::Create => kv.create_revision,
            SortTarget::Mod => kv.mod_revision,
            SortTarget::Key | SortTarget::Value => 0,
        };
        match request.sort_target() {
            SortTarget::Key => want.sort_by(|a, b| a.key.cmp(&b.key)),
            SortTarget::Value => want.sort_by(|a, b| a.value.cmp(&b.value)),
            _ => want.sort_by_key(number),
        }
        if request.sort_order() == SortOrder::Descend {
            match request.sort_target() {
                SortTarget::Key => want.sort_by(|a, b| b.key.cmp(&a.key)),
                SortTarget::Value => want.sort_by(|a, b| b.value.cmp(&a.value)),
                _ => want.sort_by_key(|kv| -number(kv)),
            }
        }
        let most = usize::try_from(limit).unwrap();
        prop_assert_eq!(response.more, limit > 0 && want.len() > most);
        if limit > 0 {
            want.truncate(most);
        }
        if request.sort_order() == SortOrder::Descend {
            // Equal ones may come in any order: compare what they were sorted by.
            let values = |kvs: &[KeyValue]| kvs.iter().map(number).collect::<Vec<_>>();
            prop_assert_eq!(values(&response.kvs), values(&want));
        } else {
            prop_assert_eq!(response.kvs, want);
        }
    }
}
