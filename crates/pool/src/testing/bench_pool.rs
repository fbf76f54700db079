//! A pool on disks in memory: everything it asks for is done at once.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use block::{Blocks, Command, Completion, IoError, Lba, Span};

use super::Image;
use crate::casts::{count, index};
use crate::layout::BLOCK;
use crate::{
    BadPool, BlockQuery, Buffer, Change, CommandId, Effect, Entity, EntityKind, Id, ImportError,
    KEY_CHECK, Label, Limits, NewReplica, NewSnapshot, Pool, QueryKind, Recovery, Refused, Runs,
    TornWrites,
};

/// A pool and its disks.
#[derive(Debug)]
pub struct BenchPool {
    /// The pool.
    pub pool: Box<Pool>,
    /// Its disks.
    pub image: Image,
    buffers: BTreeMap<CommandId, Vec<u8>>,
    ended: BTreeMap<CommandId, Ended>,
    next: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Done(Completion),
    Changed(Result<(), Refused>),
}

/// Why a pool cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOpened {
    /// The disks are no pool.
    Disks(BadPool),
    /// What they hold is refused.
    Import(ImportError),
}

/// More than any command of these tests can need.
const MOST_EFFECTS: u32 = 1_000_000;

impl BenchPool {
    /// Opens the pool on these disks, which tear no block.
    pub fn open(image: Image) -> Result<BenchPool, NotOpened> {
        BenchPool::open_on(image, TornWrites::Impossible)
    }

    /// Opens the pool on these disks.
    pub fn open_on(image: Image, torn_writes: TornWrites) -> Result<BenchPool, NotOpened> {
        let superblock = image.assemble().map_err(NotOpened::Disks)?;
        let limits = Limits { commands: 64, torn_writes, ..Limits::default() };
        let mut recovery = Recovery::new(superblock, limits).map_err(NotOpened::Import)?;
        while let Some(effect) = recovery.poll() {
            match effect {
                Effect::Read { io, place, blocks, .. } => {
                    recovery.complete(io, Ok(&image.read(place, blocks)));
                }
                Effect::Flush { io, .. } => recovery.complete(io, Ok(&[])),
                other => assert!(matches!(other, Effect::Read { .. }), "recovery: {other:?}"),
            }
        }
        let opened = recovery.take();
        assert!(opened.is_some(), "recovery ends with an answer");
        let pool = opened.unwrap_or(Err(ImportError::Layout)).map_err(NotOpened::Import)?;
        let (buffers, ended) = (BTreeMap::new(), BTreeMap::new());
        let mut stand = BenchPool { pool, image, buffers, ended, next: 0 };
        stand.settle();
        Ok(stand)
    }

    /// Does everything that the pool asks for.
    pub fn settle(&mut self) {
        let mut left = MOST_EFFECTS;
        while let Some(effect) = self.pool.poll() {
            left -= 1;
            assert!(left > 0, "a pool that is never done");
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Read { io, place, blocks, into } => {
                let bytes = self.image.read(place, blocks);
                if let Buffer::Caller { token, block } = into {
                    self.fill(token, block, &bytes);
                }
                self.pool.complete(io, Ok(&bytes));
            }
            Effect::Write { io, place, blocks, from } => {
                let bytes = match from {
                    Buffer::Own => self.pool.bytes(io).to_vec(),
                    Buffer::Caller { token, block } => self.part(token, (block, blocks)),
                };
                assert_eq!(bytes.len(), index(u64::from(blocks)) * BLOCK);
                self.image.write(place, &bytes);
                self.pool.complete(io, Ok(&[]));
            }
            Effect::Flush { io, .. } => self.pool.complete(io, Ok(&[])),
            Effect::Zero { token, block, blocks } => {
                self.fill(token, block, &vec![0; index(u64::from(blocks)) * BLOCK]);
            }
            Effect::Done { token, result } => self.end(token, Ended::Done(result)),
            Effect::Changed { token, result } => self.end(token, Ended::Changed(result)),
            Effect::Answered { .. } | Effect::Believed { .. } => {}
        }
    }

    fn end(&mut self, token: CommandId, how: Ended) {
        assert_eq!(self.ended.insert(token, how), None, "{token:?} ends twice");
    }

    fn fill(&mut self, token: CommandId, block: u32, bytes: &[u8]) {
        let at = index(u64::from(block)) * BLOCK;
        let buffer =
            self.buffers.get_mut(&token).and_then(|buffer| buffer.get_mut(at..at + bytes.len()));
        assert!(buffer.is_some(), "{token:?} has no block {block}");
        if let Some(buffer) = buffer {
            buffer.copy_from_slice(bytes);
        }
    }

    fn part(&self, token: CommandId, (block, blocks): (u32, u32)) -> Vec<u8> {
        let at = index(u64::from(block)) * BLOCK;
        let part = self.buffers.get(&token).and_then(|buffer| buffer.get(at..));
        let len = index(u64::from(blocks)) * BLOCK;
        part.and_then(|part| part.get(..len)).unwrap_or_default().to_vec()
    }

    fn token(&mut self) -> CommandId {
        self.next += 1;
        CommandId(self.next)
    }

    /// Carries out a block command; of a read with the bytes.
    pub fn command(&mut self, id: Id, command: Command, data: &[u8]) -> Result<Vec<u8>, IoError> {
        let token = self.token();
        let mut buffer = data.to_vec();
        if let Command::Read { span } = command {
            buffer = vec![0xee; index(span.len().0) * BLOCK];
        }
        self.buffers.insert(token, buffer);
        self.pool.submit(token, id, command, data);
        self.settle();
        let buffer = self.buffers.remove(&token).unwrap_or_default();
        match self.ended.remove(&token) {
            Some(Ended::Done(result)) => result.map(|()| buffer),
            other => {
                assert_eq!(other, None, "a block command ends as one");
                assert!(self.pool.health().broken, "{command:?} never ends");
                Err(IoError::Internal)
            }
        }
    }

    /// Carries out a change.
    pub fn change(&mut self, change: Change) -> Result<(), Refused> {
        let token = self.token();
        self.pool.change(token, change);
        self.settle();
        self.changed(token)
    }

    fn changed(&mut self, token: CommandId) -> Result<(), Refused> {
        let ended = self.ended.remove(&token);
        assert!(matches!(ended, Some(Ended::Changed(_))), "a change ends as one: {ended:?}");
        let Some(Ended::Changed(result)) = ended else { return Err(Refused::Busy) };
        result
    }

    /// Writes everything down.
    pub fn export(&mut self) -> Result<(), Refused> {
        let token = self.token();
        self.pool.export(token);
        self.settle();
        self.changed(token)
    }

    /// A pool with something of everything: replicas thin, thick and encrypted, snapshots, a clone,
    /// discards, labels, a hidden layer; some of it in a checkpoint, some in the journal.
    pub fn furnish(&mut self) -> Result<(), Refused> {
        let (thin, thick, secret) = (Id(1), Id(2), Id(3));
        self.change(Change::Create(replica(thin, Id::NONE)))?;
        self.change(Change::Create(NewReplica { thick: true, ..replica(thick, Id::NONE) }))?;
        let key = [[9; KEY_CHECK].as_slice(), b"wrapped"].concat();
        self.change(Change::Create(NewReplica { key, ..replica(secret, Id::NONE) }))?;
        self.unlock_all();
        for id in [thin, thick, secret] {
            self.write(id, (0, 70));
        }
        self.change(Change::Snapshot { of: thin, snapshot: snapshot(Id(11)) })?;
        self.write(thin, (10, 3));
        self.discard(thin, (20, 9));
        self.discard(thin, (64, 64));
        self.pool.request_checkpoint();
        self.settle();
        self.change(Change::Snapshot { of: thin, snapshot: snapshot(Id(12)) })?;
        self.change(Change::Create(replica(Id(4), Id(12))))?;
        self.write(Id(4), (5, 2));
        self.write(thick, (3, 4));
        self.change(Change::Delete(Id(11)))?;
        let label = Label { epoch: 4, set: vec![Id(1), Id(9)], in_sync: vec![Id(1)], ..label() };
        self.change(Change::Label { id: thin, label })?;
        self.change(Change::Share { id: thin, share: vec![1, 2] })?;
        self.change(Change::SpecBackup { id: thin, spec_backup: vec![3; 5] })?;
        self.change(Change::Resize { id: thin, size: Blocks(130) })?;
        self.write(thin, (100, 5));
        self.flush(thin);
        Ok(())
    }

    fn write(&mut self, id: Id, (first, blocks): (u64, u64)) {
        if let Some(span) = Span::new(Lba(first), Blocks(blocks)) {
            let byte = u8::try_from((id.0 + u128::from(first)) % 251).unwrap_or(0);
            let data = vec![byte; index(blocks) * BLOCK];
            let _ = self.command(id, Command::Write { span, fua: false }, &data);
        }
    }

    fn discard(&mut self, id: Id, (first, blocks): (u64, u64)) {
        if let Some(span) = Span::new(Lba(first), Blocks(blocks)) {
            let _ = self.command(id, Command::Discard { span }, &[]);
        }
    }

    fn flush(&mut self, id: Id) {
        let _ = self.command(id, Command::Flush, &[]);
    }

    fn unlock_all(&mut self) {
        for entity in self.entities() {
            if let Some((check, _)) = entity.key.split_first_chunk::<KEY_CHECK>() {
                let _ = self.pool.unlock(entity.id, *check);
            }
        }
    }

    fn entities(&self) -> Vec<Entity> {
        self.pool.entities().cloned().collect()
    }

    /// Asks everything and does everything, whatever the pool holds; in the end it is empty.
    pub fn use_up(&mut self) {
        self.pool.check_state();
        self.unlock_all();
        self.ask();
        for entity in self.entities() {
            let Entity { id, size, .. } = entity;
            for first in [0, size.0 / 2, size.0 - 1] {
                let blocks = 66.min(size.0 - first);
                if let Some(span) = Span::new(Lba(first), Blocks(blocks)) {
                    let _ = self.command(id, Command::Read { span }, &[]);
                }
                self.write(id, (first, blocks.min(3)));
                self.discard(id, (first, blocks));
            }
            self.flush(id);
        }
        self.pool.check_state();
        for (nth, entity) in (1..).zip(self.entities()) {
            if entity.kind == EntityKind::Replica {
                let of = entity.id;
                let _ =
                    self.change(Change::Snapshot { of, snapshot: snapshot(Id(u128::MAX - nth)) });
                let _ = self.change(Change::Resize { id: of, size: Blocks(40) });
                self.write(of, (30, 9));
            }
        }
        self.pool.check_state();
        self.pool.request_checkpoint();
        self.settle();
        for entity in self.entities() {
            let _ = self.change(Change::Delete(entity.id));
        }
        self.pool.check_state();
    }

    /// Asks a question.
    pub fn runs(&mut self, about: QueryKind, from: Blocks, most: usize) -> Result<Runs, Refused> {
        let token = self.token();
        self.pool.ask(token, BlockQuery { about, from, most });
        self.settle();
        self.pool.take_answer(token)
    }

    fn ask(&mut self) {
        let health = self.pool.health();
        let usage = self.pool.usage();
        assert!(usage.own.0 + usage.pending.0 <= usage.size.0, "{usage:?}");
        let entities = self.entities();
        for Entity { id, size, .. } in &entities {
            assert!(self.pool.usage_of(*id).is_some());
            for from in [0, size.0 / 3] {
                let written = self.runs(QueryKind::Written(*id), Blocks(from), 50);
                // That it is damaged may have been found out just now.
                let damaged =
                    health.damaged.contains(id) || self.pool.health().damaged.contains(id);
                assert_eq!(written.is_err(), damaged, "{id:?}");
                for (first, end) in written.unwrap_or_default() {
                    assert!(from <= first && first < end && end <= size.0);
                }
                let _ = self.runs(QueryKind::Own(*id), Blocks(from), 50);
            }
            if let Some(other) = entities.first() {
                let about = QueryKind::Changed { older: other.id, newer: *id };
                let _ = self.runs(about, Blocks(0), 50);
            }
        }
        for _ in 0..8 {
            let token = self.token();
            if self.pool.narrow_doubt(token) {
                self.settle();
                self.ended.remove(&token);
            }
        }
        assert_eq!(count(self.ended.len()), 0);
    }
}

fn label() -> Label {
    Label { volume: Id(77), opaque: b"text of the engine".to_vec(), ..Label::default() }
}

fn replica(id: Id, origin: Id) -> NewReplica {
    let (size, label) = (Blocks(200), label());
    NewReplica { id, origin, size, thick: false, created: 1, label, key: Vec::new() }
}

fn snapshot(id: Id) -> NewSnapshot {
    NewSnapshot { id, created: 2, label: label() }
}
