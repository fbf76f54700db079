//! The writer on a disk that dies, fills up, fails and rots.

use std::{env, sync::Arc, thread};

use bytes::Bytes;

use crate::{
    proto::{
        etcdserverpb::{
            DeleteRangeRequest, LeaseGrantRequest, PutRequest, RequestOp, TxnRequest,
            request_op::Request,
        },
        mvccpb::KeyValue,
    },
    server::{
        config::Retention,
        disk::{self, Fresh, LoadError},
        index::Index,
        journal::{Damage, Identity, NAME},
        keys::KeyRange,
        machine::{Machine, Start},
        server_state::ServerState,
        settings::{AlarmCause, Setting, Settings},
        status::Refusal,
        writer::{Handle, Parts, Writer},
    },
};

use super::crashdisk::{CrashDisk, Dice, Syncs};

/// A store without sockets.
pub(super) struct Store {
    pub(super) shared: Arc<ServerState>,
    writer: Handle,
    thread: Option<thread::JoinHandle<()>>,
}

impl Store {
    pub(super) fn open(disk: &CrashDisk) -> Result<Self, LoadError> {
        let identity = Identity { cluster: 1, member: 2 };
        let loaded = disk::load(disk, Fresh { identity, salt: 3 })?;
        let (leases, settings) = (loaded.leases, loaded.settings);
        let start = Start { leases, settings: settings.clone(), quota: usize::MAX, seed: 4 };
        let machine = Machine::new(&loaded.index, start);
        let journal = loaded.journal;
        let shared =
            Arc::new(ServerState::new(loaded.index, settings, (journal.identity(), journal.len())));
        let (writer, thread) = Writer::start(Parts {
            shared: Arc::clone(&shared),
            machine,
            journal,
            folder: Arc::new(disk.clone()),
            dir: "disk".into(),
            retention: Retention { revisions: None, age: None },
        })
        .unwrap();
        Ok(Self { shared, writer, thread: Some(thread) })
    }

    fn put(&self, key: &str, value: &str) -> Result<i64, Refusal> {
        let request = PutRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value.as_bytes()),
            ..PutRequest::default()
        };
        let call = self.writer.call(0, move |machine, index, _| machine.put(index, &request));
        Ok(block_on(call)?.header.unwrap().revision)
    }

    pub(super) fn step(&self, step: Step) -> Result<(), Refusal> {
        let put = |key: &'static str, value: String| PutRequest {
            key: key.into(),
            value: value.into(),
            ..PutRequest::default()
        };
        match step {
            Step::Put(key, value) => {
                let request = put(key, format!("{value}").repeat(200));
                let call = self.writer.call(0, move |m, index, _| m.put(index, &request));
                block_on(call).map(drop)
            }
            Step::Pair(value) => {
                let op = |key| RequestOp {
                    request: Some(Request::RequestPut(put(key, value.to_string()))),
                };
                let success = vec![op("pair/a"), op("pair/b")];
                let request = TxnRequest { success, ..TxnRequest::default() };
                let call = self.writer.call(0, move |m, index, _| m.txn(index, &request));
                block_on(call).map(drop)
            }
            Step::Delete(key) => {
                let request = DeleteRangeRequest { key: key.into(), ..Default::default() };
                let call = self.writer.call(0, move |m, index, _| m.delete_range(index, &request));
                block_on(call).map(drop)
            }
            Step::Grant(id) => {
                let request = LeaseGrantRequest { id, ttl: 1000 };
                let call = self.writer.call(0, move |m, i, now| m.lease_grant(i, &request, now));
                block_on(call).map(drop)
            }
            Step::Revoke(id) => {
                block_on(self.writer.call(0, move |m, index, _| m.lease_revoke(index, id)))
                    .map(drop)
            }
            Step::User(name) => self.change(move |machine| {
                let user = machine.auth().user_add(name, Bytes::from("hash"))?;
                let range = (Bytes::from("a"), Bytes::from("b"));
                let role =
                    Setting::Role { name: name.to_owned(), permissions: [(range, 2)].into() };
                machine.set_auth([user, role]);
                let granted = machine.auth().grant_role(name, name)?;
                machine.set_auth([granted]);
                Ok(())
            }),
            Step::Enable(enabled) => self.change(move |machine| {
                machine.auth().check_enable()?;
                let revision = machine.auth().revision;
                machine.set_auth([Setting::Auth { enabled, revision }]);
                Ok(())
            }),
            Step::Alarm(up) => self.change(move |machine| {
                let raised = up.then_some(AlarmCause::Client);
                // Of a kind that refuses nothing.
                machine.set(Setting::Alarm { kind: 9, raised });
                machine.set(Setting::PeerUrls { urls: vec![format!("http://{up}:1")] });
                Ok(())
            }),
            Step::Compact(revision) => block_on(self.writer.compact(revision)).map(drop),
            Step::Rewrite => block_on(self.writer.rewrite()).map(drop),
        }
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Machine) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        block_on(self.writer.call(0, move |machine, _, _| change(machine)))
    }

    /// All that a client can see.
    pub(super) fn view(&self) -> View {
        let index = self.shared.index();
        let revision = self.shared.published();
        let from = index.compacted().max(1);
        let keys = (from..=revision).map(|at| keys(&index, at)).collect();
        drop(index);
        let leases = block_on(self.writer.head()).map(|head| head.leases).unwrap_or_default();
        View { revision, from, keys, leases, settings: self.shared.settings() }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.writer.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn keys(index: &Index, at: i64) -> Vec<KeyValue> {
    let zero = Bytes::from_static(&[0]);
    index.range(&KeyRange::new(&zero, &zero), at).map(|record| record.to_key_value()).collect()
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    revision: i64,
    from: i64,
    /// The keys at each revision from `from` on.
    pub(super) keys: Vec<Vec<KeyValue>>,
    leases: Vec<(i64, i64)>,
    settings: Arc<Settings>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Put(&'static str, u32),
    Pair(u32),
    Delete(&'static str),
    Grant(i64),
    Revoke(i64),
    Compact(i64),
    Rewrite,
    User(&'static str),
    Enable(bool),
    Alarm(bool),
}

const STORY: &[Step] = &[
    Step::Put("a", 1),
    Step::User("root"),
    Step::Pair(1),
    Step::Grant(7),
    Step::Put("a", 2),
    Step::Delete("a"),
    Step::Pair(2),
    Step::Enable(true),
    Step::Alarm(true),
    Step::Rewrite,
    Step::User("other"),
    Step::Put("b", 1),
    Step::Compact(5),
    Step::Revoke(7),
    Step::Alarm(false),
    Step::Pair(3),
    Step::Rewrite,
    Step::Delete("b"),
    Step::Compact(9),
    Step::Enable(false),
    Step::Put("c", 1),
];

/// Tells the story until the disk dies; the views after each step that was acknowledged.
fn tell(disk: &CrashDisk) -> Vec<View> {
    let Ok(store) = Store::open(disk) else { return Vec::new() };
    let mut views = vec![store.view()];
    for step in STORY {
        if store.step(*step).is_err() {
            break;
        }
        views.push(store.view());
    }
    views
}

#[test]
fn a_crash_at_any_write_loses_nothing_acknowledged() {
    let calm = CrashDisk::new();
    let story = tell(&calm);
    assert_eq!(story.len(), STORY.len() + 1);
    let seeds = env::var("HOLDFAST_SEEDS").map_or(3, |seeds| seeds.parse().unwrap());
    for dies_at in 0..=calm.operations() {
        let disk = CrashDisk::new().dies_at(dies_at);
        let acknowledged = tell(&disk);
        assert_eq!(acknowledged[..], story[..acknowledged.len()]);
        for seed in 0..seeds {
            let found = Store::open(&disk.after_power_cut(&mut Dice::new(seed)));
            let found = found.unwrap_or_else(|error| panic!("died at {dies_at}: {error:?}"));
            let view = found.view();
            // What was in flight may have come through, but whole.
            let last = acknowledged.len().saturating_sub(1);
            let possible = &story[last..(last + 2).min(story.len())];
            assert!(possible.contains(&view), "died at {dies_at}, seed {seed}: {view:?}");
            let next = found.put("after", "the crash").unwrap();
            assert_eq!(next, view.revision + 1, "revisions go on where they were");
        }
    }
}

#[test]
fn a_store_that_was_closed_opens_as_it_was() {
    let disk = CrashDisk::new();
    let story = tell(&disk);
    assert_eq!(Store::open(&disk.copy()).unwrap().view(), *story.last().unwrap());
}

#[test]
fn damage_is_refused_or_harmless() {
    let disk = CrashDisk::new();
    let story = tell(&disk);
    let whole = story.last().unwrap();
    let mut refused = 0;
    let used = Store::open(&disk.copy()).unwrap().shared.disk_bytes();
    // All of the header, and some of everything behind it.
    let behind = (64..usize::try_from(used).unwrap()).step_by(11);
    for byte in (0..64).chain(behind) {
        let rotten = disk.copy();
        rotten.flip(NAME, byte, u8::try_from(byte % 8).unwrap());
        match Store::open(&rotten) {
            Ok(store) => assert_eq!(store.view(), *whole, "a flip at byte {byte}"),
            Err(LoadError::Damage(_)) => refused += 1,
            Err(error) => panic!("a flip at byte {byte}: {error:?}"),
        }
    }
    assert!(refused > 64, "the flips did not hit anything: {refused}");
}

#[test]
fn a_newer_format_is_named_as_such() {
    let disk = CrashDisk::new();
    tell(&disk);
    disk.flip(NAME, 8, 2);
    let error = Store::open(&disk).err().unwrap();
    assert!(matches!(error, LoadError::Damage(Damage::Newer(7))), "{error:?}");
}

#[test]
fn a_full_disk_stops_writes_and_keeps_all() {
    let disk = CrashDisk::new();
    let store = Store::open(&disk).unwrap();
    store.put("k", "before").unwrap();
    disk.set_capacity(Some(2 << 20));
    let big = "x".repeat(1 << 18);
    let mut last = store.shared.published();
    let refusal = loop {
        match store.put("big", &big) {
            Ok(revision) => last = revision,
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(&refusal, Refusal::Broken(why) if why.contains("disk")), "{refusal}");
    let before = store.view();
    assert_eq!(before.revision, last, "what failed is not seen");
    disk.set_capacity(None);
    assert_eq!(store.put("k", "after").unwrap_err(), refusal, "nothing is written after a failure");
    assert_eq!(store.view(), before);
    drop(store);
    let again = Store::open(&disk).unwrap();
    assert!(again.shared.published() >= last);
    again.put("k", "after").unwrap();
}

#[test]
fn a_sync_that_failed_is_never_tried_again() {
    let disk = CrashDisk::new();
    let store = Store::open(&disk).unwrap();
    store.put("k", "before").unwrap();
    let before = store.view();
    disk.set_syncs(Syncs::Fail);
    store.put("k", "lost").unwrap_err();
    disk.set_syncs(Syncs::Work);
    store.put("k", "too").unwrap_err();
    block_on(store.writer.compact(2)).unwrap_err();
    assert_eq!(store.view().keys, before.keys);
    assert!(store.shared.failure().is_some());
}
