//! Alarms, leases that are renewed late, and long reads.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    proto::etcdserverpb::{DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest},
    server::{
        index::Index,
        journal::Identity,
        leases::Millis,
        machine::{Machine, Pressure, Start},
        query,
        server_state::ServerState,
        settings::Settings,
        status::Refusal,
        storage::{Directory as _, RealDirectory},
    },
};

use super::start;

fn put(key: &str, bytes: usize) -> PutRequest {
    let value = vec![b'x'; bytes].into();
    PutRequest { key: Bytes::copy_from_slice(key.as_bytes()), value, ..PutRequest::default() }
}

#[test]
fn a_full_store_takes_deletions_and_recovers_by_itself() {
    let mut index = Index::build(Vec::new(), 1, 0);
    let start = Start { quota: 10_000, ..start(Vec::new()) };
    let mut machine = Machine::new(&index, start);
    let mut keys = 0;
    let refusal = loop {
        match machine.put(&mut index, &put(&format!("k{keys}"), 1000)) {
            Ok(_) => keys += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!((refusal, machine.pressure(&index)), (Refusal::NoSpace, Pressure::Full));
    let grant = LeaseGrantRequest { ttl: 60, id: 0 };
    let granted = machine.lease_grant(&index, &grant, Millis(0));
    assert_eq!(granted.unwrap_err(), Refusal::NoSpace);
    let all = DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: false };
    assert_eq!(machine.delete_range(&mut index, &all).unwrap().deleted, keys);
    machine.relieve(&index);
    // Deleting frees nothing before the history is gone.
    assert_eq!(machine.put(&mut index, &put("k", 1)).unwrap_err(), Refusal::NoSpace);
    let revision = index.revision();
    index.compact(revision);
    while !index.sweep(10) {}
    machine.relieve(&index);
    assert_eq!(machine.settings(), &Settings::default());
    machine.put(&mut index, &put("k", 1)).unwrap();
}

#[test]
fn a_renewal_that_arrived_in_time_counts_however_late_it_is_read() {
    for (arrives, lives) in [(Millis(9_999), true), (Millis(10_000), false)] {
        let mut index = Index::build(Vec::new(), 1, 0);
        let mut machine = Machine::new(&index, start(vec![(7, 10)]));
        machine.lease_arrived(7, arrives);
        machine.expire(&mut index, Millis(12_000));
        assert_eq!(machine.leases().get(7).is_some(), lives, "{arrives:?}");
    }
}

fn shared(keys: usize) -> (Arc<ServerState>, Machine) {
    let index = Index::build(Vec::new(), 1, 0);
    let machine = Machine::new(&index, start(Vec::new()));
    let on_disk = (Identity { cluster: 1, member: 1 }, 0);
    let state = Arc::new(ServerState::new(index, Settings::default(), on_disk));
    let mut machine = machine;
    for key in 0..keys {
        machine.put(&mut state.index_mut(), &put(&format!("k{key:05}"), 1)).unwrap();
    }
    let revision = state.index().revision();
    state.publish(revision);
    (state, machine)
}

#[test]
fn a_long_range_lets_writers_in_and_is_of_one_revision() {
    const KEYS: usize = 5000;
    let (state, mut machine) = shared(KEYS);
    let at = state.published();
    let everything =
        RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
    let range = crate::server::keys::KeyRange::new(&everything.key, &everything.range_end);
    let (mut seen, mut written) = (0, 0);
    query::scan(&state, (&range, at), |record| {
        assert!(record.revision.main <= at, "a later revision was seen");
        seen += 1;
        // The reader holds no lock here, or this would wait for ever.
        if seen % 1000 == 1 {
            let change = put(&format!("k{:05}", KEYS - seen), 9);
            machine.put(&mut state.index_mut(), &change).unwrap();
            written += 1;
        }
    })
    .unwrap();
    assert_eq!((seen, written), (KEYS, 5));
    let answer = query::range_in_pieces(&state, &everything).unwrap();
    assert_eq!((answer.kvs.len(), answer.count), (KEYS, 5000));
    let page = RangeRequest { limit: 7, ..everything };
    let answer = query::range_in_pieces(&state, &page).unwrap();
    assert_eq!((answer.kvs.len(), answer.count, answer.more), (7, 5000, true));
}

#[test]
fn a_revision_that_is_compacted_while_it_is_read_is_not_half_answered() {
    let (state, _) = shared(3000);
    let at = state.published() - 1;
    let everything = Bytes::from_static(&[0]);
    let range = crate::server::keys::KeyRange::new(&everything, &everything);
    let mut seen = 0;
    let read = query::scan(&state, (&range, at), |_| {
        seen += 1;
        if seen == 1000 {
            state.index_mut().compact(at + 1);
        }
    });
    assert_eq!((read.unwrap_err(), seen), (Refusal::Compacted, 1000));
}

#[test]
fn users_are_not_required_while_root_has_no_password() {
    let mut machine = Machine::new(&Index::build(Vec::new(), 1, 0), start(Vec::new()));
    let root = machine.auth().user_add("root", Bytes::new()).unwrap();
    machine.set_auth([root]);
    let root = machine.auth().grant_role("root", "root").unwrap();
    machine.set_auth([root]);
    assert_eq!(machine.auth().check_enable(), Err(Refusal::InvalidAuthChange));
    let root = machine.auth().change_password("root", Bytes::from("hash")).unwrap();
    machine.set_auth([root]);
    assert_eq!(machine.auth().check_enable(), Ok(()));
}

#[test]
fn files_of_the_store_are_its_owners_alone() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = tempfile::tempdir().unwrap();
    let folder = RealDirectory::new(dir.path().to_owned());
    folder.create("store.journal").unwrap();
    let mode = std::fs::metadata(dir.path().join("store.journal")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}
