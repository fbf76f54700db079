//! Carries out what a pool asks for, on simulated disks, in any order.

use std::boxed::Box;
use std::collections::BTreeMap;
use std::string::String;
use std::vec;
use std::vec::Vec;

use block::{Blocks, Bytes, Command, Completion, Lba, Span};

use super::disk::{Disks, Random};
use crate::create::{self, NewPool, Probe, Step};
use crate::layout::BLOCK;
use crate::{
    BadPool, BlockQuery, Buffer, Change, ClusterSize, CommandId, Disk, DiskFailed, Effect, Id,
    ImportError, IoId, Limits, Member, Place, Pool, QueryKind, Recovery, Refused, Runs, Superblock,
    TornWrites,
};

/// A disk I/O that was sent.
#[derive(Clone, Debug)]
enum Sent {
    Read { io: IoId, place: Place, blocks: u32, into: Buffer },
    Write { io: IoId, number: u64 },
    Flush { io: IoId, covers: Vec<u64> },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Done(CommandId, Completion),
    Changed(CommandId, Result<(), Refused>),
    Answered(CommandId, Result<Runs, Refused>),
}

/// What happened in a step.
pub(super) enum Moment {
    /// A write or flush completed, or nothing of note.
    Io,
    Ended(Ended),
    /// Nothing is under way.
    Quiet,
}

/// A pool on simulated disks.
pub(super) struct Rig {
    pub(super) pool: Box<Pool>,
    pub(super) disks: Disks,
    sent: Vec<Sent>,
    /// Buffers of commands.
    pub(super) buffers: BTreeMap<CommandId, Vec<u8>>,
    /// Blocks that were believed because nobody else has them.
    pub(super) believed: u64,
    /// Every disk I/O fails.
    pub(super) fails: bool,
    /// The next flush fails.
    pub(super) flush_fails: bool,
    /// A write of these bytes fails, and is not there.
    pub(super) refused: Vec<u8>,
    /// A write of these bytes ends when nothing else is under way.
    pub(super) slow: Vec<u8>,
    late: Vec<Sent>,
    next: u64,
}

pub(super) fn new_disks(sizes: &[u64], cluster: u64) -> Disks {
    let member =
        |(nth, blocks): (usize, &u64)| Member { id: Id(50 + nth as u128), blocks: Blocks(*blocks) };
    let new = NewPool {
        id: Id(7),
        name: "sim".into(),
        cluster: ClusterSize::of_blocks(cluster).unwrap(),
        disks: sizes.iter().enumerate().map(member).collect(),
    };
    let mut disks = Disks::default();
    disks.torn_writes = TornWrites::Impossible;
    for step in create::create(&new).unwrap() {
        match step {
            Step::Write { place, bytes } => {
                let number = disks.write(place, &bytes);
                disks.written(number);
            }
            Step::Flush => disks.flushed(&disks.completed()),
        }
    }
    disks
}

pub(super) fn import(disks: Disks, sizes: &[u64]) -> Result<Rig, String> {
    let superblock = assembled(&disks, sizes).map_err(|error| std::format!("{error}"))?;
    recover(disks, superblock).map_err(|error| std::format!("{error}"))
}

pub(super) fn open(disks: Disks, sizes: &[u64]) -> Result<Rig, ImportError> {
    let superblock = assembled(&disks, sizes).expect("the disks are one pool");
    recover(disks, superblock)
}

fn assembled(disks: &Disks, sizes: &[u64]) -> Result<Superblock, BadPool> {
    let supers: Vec<[Vec<u8>; 2]> = (0..sizes.len() as u16)
        .map(|disk| [0, 256].map(|block| disks.read(Place { disk: Disk(disk), block }, 1)))
        .collect();
    // A disk that was about to be added when the power went has no superblock, and is none.
    let probes: Vec<Probe<'_>> = supers
        .iter()
        .zip(sizes)
        .map(|([a, b], blocks)| Probe { blocks: Blocks(*blocks), supers: [a, b] })
        .filter(|probe| probe.superblock().is_ok())
        .collect();
    let (superblock, order) = create::assemble(&probes)?;
    assert!(order.iter().enumerate().all(|(number, at)| number == *at));
    Ok(superblock)
}

/// Opens a pool with this much memory.
pub(super) fn open_with(disks: Disks, sizes: &[u64], cache: Bytes) -> Rig {
    let superblock = assembled(&disks, sizes).expect("the disks are one pool");
    recover_with(disks, superblock, cache).expect("it can be opened")
}

fn recover(disks: Disks, superblock: Superblock) -> Result<Rig, ImportError> {
    // Mostly so little that what a map has is read again and again.
    let cache = if disks.is_third() { Bytes::kib(512) } else { Bytes::ZERO };
    recover_with(disks, superblock, cache)
}

fn recover_with(
    mut disks: Disks,
    superblock: Superblock,
    cache: Bytes,
) -> Result<Rig, ImportError> {
    let limits = Limits { commands: 256, cache, torn_writes: disks.torn_writes };
    let mut recovery = Recovery::new(superblock, limits)?;
    loop {
        match recovery.poll() {
            Some(Effect::Read { io, place, blocks, .. }) if disks.strikes(place, blocks) => {
                recovery.complete(io, Err(DiskFailed));
            }
            Some(Effect::Read { io, place, blocks, .. }) => {
                recovery.complete(io, Ok(&disks.read(place, blocks)));
            }
            Some(Effect::Flush { io, .. }) => {
                disks.flushed(&disks.completed());
                recovery.complete(io, Ok(&[]));
            }
            Some(other) => panic!("recovery asks for {other:?}"),
            None => match recovery.take() {
                Some(result) => {
                    let pool = result?;
                    return Ok(Rig {
                        pool,
                        disks,
                        sent: Vec::new(),
                        buffers: BTreeMap::new(),
                        believed: 0,
                        fails: false,
                        flush_fails: false,
                        refused: Vec::new(),
                        slow: Vec::new(),
                        late: Vec::new(),
                        next: 0,
                    });
                }
                None => panic!("recovery is stuck"),
            },
        }
    }
}

impl Rig {
    pub(super) fn token(&mut self) -> CommandId {
        self.next += 1;
        CommandId(self.next)
    }

    pub(super) fn submit(&mut self, id: Id, command: Command, data: Vec<u8>) -> CommandId {
        let token = self.token();
        let data = match command {
            Command::Read { span } | Command::Compare { span } => {
                vec![0xee; span.len().0 as usize * BLOCK]
            }
            _ => data,
        };
        self.pool.submit(token, id, command, &data);
        self.buffers.insert(token, data);
        token
    }

    /// Writes good bytes over blocks, as a mirror does.
    pub(super) fn repair(&mut self, id: Id, span: Span, data: Vec<u8>) -> CommandId {
        let token = self.token();
        self.pool.repair(token, id, span, &data);
        self.buffers.insert(token, data);
        token
    }

    pub(super) fn change(&mut self, change: Change) -> CommandId {
        let token = self.token();
        self.pool.change(token, change);
        token
    }

    fn told(&mut self, token: CommandId) -> Ended {
        Ended::Answered(token, self.pool.take_answer(token))
    }

    /// Does one thing.
    pub(super) fn step(&mut self, random: &mut Random) -> Moment {
        while let Some(effect) = self.pool.poll() {
            match effect {
                Effect::Read { io, place, blocks, into } => {
                    self.sent.push(Sent::Read { io, place, blocks, into });
                }
                Effect::Write { io, place, blocks, from } => {
                    let len = blocks as usize * BLOCK;
                    let bytes = match from {
                        Buffer::Own => self.pool.bytes(io).to_vec(),
                        Buffer::Caller { token, block } => {
                            let at = block as usize * BLOCK;
                            self.buffers[&token][at..at + len].to_vec()
                        }
                    };
                    assert_eq!(bytes.len(), len);
                    if bytes == self.refused {
                        self.pool.complete(io, Err(DiskFailed));
                        continue;
                    }
                    let number = self.disks.write(place, &bytes);
                    let sent = if bytes == self.slow { &mut self.late } else { &mut self.sent };
                    sent.push(Sent::Write { io, number });
                }
                Effect::Flush { io, .. } => {
                    let covers = self.disks.completed();
                    self.sent.push(Sent::Flush { io, covers });
                }
                Effect::Zero { token, block, blocks } => {
                    let buffer = self.buffers.get_mut(&token).unwrap();
                    let at = block as usize * BLOCK;
                    buffer[at..at + blocks as usize * BLOCK].fill(0);
                }
                Effect::Believed { blocks, .. } => self.believed += blocks.0,
                Effect::Answered { token } => return Moment::Ended(self.told(token)),
                Effect::Done { token, result } => return Moment::Ended(Ended::Done(token, result)),
                Effect::Changed { token, result } => {
                    return Moment::Ended(Ended::Changed(token, result));
                }
            }
        }
        if self.sent.is_empty() {
            self.sent.append(&mut self.late);
        }
        if self.sent.is_empty() {
            return Moment::Quiet;
        }
        let at = random.below(self.sent.len() as u64) as usize;
        let sent = self.sent.swap_remove(at);
        let is_struck = match sent {
            Sent::Read { place, blocks, .. } => self.disks.is_unreadable(place, blocks),
            Sent::Flush { .. } => core::mem::take(&mut self.flush_fails),
            Sent::Write { .. } => false,
        };
        if self.fails || is_struck {
            let (Sent::Read { io, .. } | Sent::Write { io, .. } | Sent::Flush { io, .. }) = sent;
            self.pool.complete(io, Err(DiskFailed));
            return Moment::Io;
        }
        self.carry_out(sent);
        Moment::Io
    }

    /// The disk does what it was sent.
    fn carry_out(&mut self, sent: Sent) {
        match sent {
            Sent::Write { io, number } => {
                self.disks.written(number);
                self.pool.complete(io, Ok(&[]));
            }
            Sent::Flush { io, covers } => {
                self.disks.flushed(&covers);
                self.pool.complete(io, Ok(&[]));
            }
            Sent::Read { io, place, blocks, into } => {
                let bytes = self.disks.read(place, blocks);
                if let Buffer::Caller { token, block } = into {
                    let at = block as usize * BLOCK;
                    let buffer = self.buffers.get_mut(&token).unwrap();
                    buffer[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                self.pool.complete(io, Ok(&bytes));
            }
        }
    }

    /// Runs until this command has ended, and answers how.
    pub(super) fn finish(&mut self, token: CommandId) -> Ended {
        let random = &mut Random(1);
        for _ in 0..1_000_000 {
            match self.step(random) {
                Moment::Ended(ended) => match &ended {
                    Ended::Done(done, _) | Ended::Changed(done, _) | Ended::Answered(done, _)
                        if *done == token =>
                    {
                        return ended;
                    }
                    _ => {}
                },
                Moment::Io => {}
                Moment::Quiet => break,
            }
        }
        panic!("{token:?} never ends")
    }

    pub(super) fn settle(&mut self) {
        let random = &mut Random(2);
        let quiet = (0..1_000_000).any(|_| matches!(self.step(random), Moment::Quiet));
        assert!(quiet, "it never comes to rest");
    }

    pub(super) fn read(&mut self, id: Id, start: u64, len: u64) -> Result<Vec<u8>, block::IoError> {
        let span = Span::new(Lba(start), Blocks(len)).unwrap();
        let token = self.submit(id, Command::Read { span }, Vec::new());
        match self.finish(token) {
            Ended::Done(_, Ok(())) => Ok(self.buffers.remove(&token).unwrap()),
            Ended::Done(_, Err(fault)) => Err(fault),
            other => panic!("a read ended as {other:?}"),
        }
    }

    /// The stamps of blocks, each of which must be of one piece.
    pub(super) fn stamps(
        &mut self,
        id: Id,
        start: u64,
        len: u64,
    ) -> Result<Vec<u64>, block::IoError> {
        let bytes = self.read(id, start, len)?;
        Ok(bytes.chunks_exact(BLOCK).map(|block| super::model::stamp_of(block).unwrap()).collect())
    }

    pub(super) fn write(&mut self, id: Id, start: u64, data: &[u8]) -> Completion {
        let span = Span::new(Lba(start), Blocks((data.len() / BLOCK) as u64)).unwrap();
        let token = self.submit(id, Command::Write { span, fua: false }, data.to_vec());
        match self.finish(token) {
            Ended::Done(_, result) => result,
            other => panic!("a write ended as {other:?}"),
        }
    }

    /// Believes unproven blocks, as a mirror does that has compared every copy.
    pub(super) fn accept_unproven(&mut self, id: Id, start: u64, len: u64) -> Completion {
        let token = self.token();
        let span = Span::new(Lba(start), Blocks(len)).unwrap();
        self.pool.accept_unproven(token, id, span);
        match self.finish(token) {
            Ended::Done(_, result) => result,
            other => panic!("an accept ended as {other:?}"),
        }
    }

    pub(super) fn flush(&mut self, id: Id) -> Completion {
        let token = self.submit(id, Command::Flush, Vec::new());
        match self.finish(token) {
            Ended::Done(_, result) => result,
            other => panic!("a flush ended as {other:?}"),
        }
    }

    /// Asks a question.
    pub(super) fn ask(
        &mut self,
        about: QueryKind,
        from: Blocks,
        most: usize,
    ) -> Result<Runs, Refused> {
        let token = self.token();
        self.pool.ask(token, BlockQuery { about, from, most });
        match self.finish(token) {
            Ended::Answered(_, answer) => answer,
            other => panic!("a question ended as {other:?}"),
        }
    }

    pub(super) fn must(&mut self, change: Change) {
        let token = self.change(change);
        assert_eq!(self.finish(token), Ended::Changed(token, Ok(())));
    }
}
