//! Copies that are taken while keys are written and history is compacted.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;

use crate::{
    proto::etcdserverpb::{DeleteRangeRequest, PutRequest},
    server::{
        disk::{self, Fresh, Head, write_copy},
        index::Index,
        journal::{Identity, Journal, NAME},
        keys::KeyRange,
        machine::Machine,
        server_state::ServerState,
        settings::Settings,
        storage::{Birth, Directory, StorageFile},
    },
};

use super::{
    crashdisk::{CrashDisk, Dice},
    start,
};

const IDENTITY: Identity = Identity { cluster: 1, member: 2 };
/// More than a checkpoint reads under one lock.
const KEYS: u64 = 700;

/// A store that remembers all that ever was.
struct World {
    state: ServerState,
    machine: Mutex<Machine>,
    dice: Mutex<Dice>,
    past: Mutex<Vec<(i64, String, Option<Bytes>)>>,
}

impl World {
    fn new(seed: u64) -> Arc<Self> {
        let index = Index::build(Vec::new(), 1, 0);
        let machine = Mutex::new(Machine::new(&index, start(Vec::new())));
        let state = ServerState::new(index, Settings::default(), (IDENTITY, 0));
        let (dice, past) = (Mutex::new(Dice::new(seed)), Mutex::default());
        Arc::new(Self { state, machine, dice, past })
    }

    fn roll(&self, sides: u64) -> u64 {
        self.dice.lock().unwrap().roll(sides)
    }

    fn put(&self, key: &str) {
        let revision = self.state.index().revision() + 1;
        let value = Bytes::from(format!("at {revision}"));
        let key = key.to_owned();
        self.past.lock().unwrap().push((revision, key.clone(), Some(value.clone())));
        let request = PutRequest { key: key.into(), value, ..PutRequest::default() };
        self.machine.lock().unwrap().put(&mut self.state.index_mut(), &request).unwrap();
    }

    fn delete(&self, key: &str) {
        let before = self.state.index().revision();
        let request =
            DeleteRangeRequest { key: key.to_owned().into(), ..DeleteRangeRequest::default() };
        self.machine.lock().unwrap().delete_range(&mut self.state.index_mut(), &request).unwrap();
        if self.state.index().revision() > before {
            self.past.lock().unwrap().push((before + 1, key.to_owned(), None));
        }
    }

    fn compact(&self, revision: i64) {
        let mut index = self.state.index_mut();
        if revision > index.compacted() {
            index.compact(revision);
            while !index.sweep(10) {}
        }
    }

    /// Something that clients do.
    fn act(&self) {
        for _ in 0..self.roll(40) {
            let key = format!("k{:03}", self.roll(KEYS));
            if self.roll(4) == 0 { self.delete(&key) } else { self.put(&key) }
        }
        if self.roll(3) == 0 {
            let (compacted, revision) = {
                let index = self.state.index();
                (index.compacted(), index.revision())
            };
            let further = self.roll(u64::try_from(revision - compacted).unwrap() + 1);
            self.compact(compacted + i64::try_from(further).unwrap());
        }
    }

    fn head(&self) -> Head {
        let index = self.state.index();
        Head {
            identity: IDENTITY,
            revision: index.revision(),
            compacted: index.compacted(),
            leases: Vec::new(),
            settings: self.state.settings(),
        }
    }

    fn at(&self, revision: i64) -> BTreeMap<String, Bytes> {
        let mut keys = BTreeMap::new();
        for (at, key, value) in &*self.past.lock().unwrap() {
            match value {
                Some(value) if *at <= revision => drop(keys.insert(key.clone(), value.clone())),
                None if *at <= revision => drop(keys.remove(key)),
                _ => {}
            }
        }
        keys
    }

    /// Loads a copy and compares all that can be read there with what was.
    fn check(&self, disk: &CrashDisk, head: &Head) {
        let loaded = disk::load(disk, Fresh { identity: IDENTITY, salt: 3 }).unwrap();
        assert_eq!(loaded.index.revision(), head.revision);
        let compacted = loaded.index.compacted();
        assert!(compacted <= head.revision, "nothing of the copy can be read");
        let all = KeyRange::new(&Bytes::from_static(&[0]), &Bytes::from_static(&[0]));
        for at in [compacted.max(1), i64::midpoint(compacted.max(1), head.revision), head.revision]
        {
            let found = loaded.index.range(&all, at).map(|record| {
                (String::from_utf8(record.key.to_vec()).unwrap(), record.value.clone())
            });
            assert_eq!(found.collect::<BTreeMap<_, _>>(), self.at(at), "at {at} of {head:?}");
        }
    }
}

/// A file between whose frames something happens.
struct Interrupted(Box<dyn StorageFile>, Arc<World>);

impl StorageFile for Interrupted {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn birth(&self) -> io::Result<Option<Birth>> {
        self.0.birth()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.act();
        self.0.write_at(offset, bytes)
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

#[test]
fn a_key_that_is_written_and_compacted_during_a_copy_is_in_the_copy() {
    let (world, disk) = (World::new(0), CrashDisk::new());
    for key in ["k", "l", "m"] {
        world.put(key);
    }
    let mut heads = 0;
    let begin = || {
        let head = world.head();
        heads += 1;
        if heads == 1 {
            world.put("k");
            world.delete("l");
            world.compact(world.head().revision);
        }
        Ok((head.clone(), Journal::create_copy(disk.create(NAME)?, IDENTITY, 7)?))
    };
    let (head, _) = write_copy(begin, world.state.lock()).unwrap();
    world.check(&disk, &head);
}

#[test]
fn a_copy_is_of_one_moment_whatever_is_written_and_compacted_meanwhile() {
    for seed in 0..30 {
        let (world, disk) = (World::new(seed), CrashDisk::new());
        for key in 0..KEYS {
            world.put(&format!("k{key:03}"));
        }
        let mut heads = 0;
        let begin = || {
            heads += 1;
            let file = disk.create(NAME)?;
            // The last attempts are left alone: a copy is given up in the end.
            let file =
                if heads < 3 { Box::new(Interrupted(file, Arc::clone(&world))) } else { file };
            let journal = Journal::create_copy(file, IDENTITY, 7)?;
            Ok((world.head(), journal))
        };
        let (head, _) = write_copy(begin, world.state.lock()).unwrap();
        world.check(&disk, &head);
    }
}

#[test]
fn a_copy_that_never_catches_up_says_so() {
    let (world, disk) = (World::new(0), CrashDisk::new());
    let begin = || {
        let head = world.head();
        world.put("k");
        world.compact(head.revision + 1);
        Ok((head, Journal::create_copy(disk.create(NAME)?, IDENTITY, 7)?))
    };
    let error = write_copy(begin, world.state.lock()).err().unwrap().to_string();
    assert!(error.contains("history is compacted faster"), "{error}");
}
