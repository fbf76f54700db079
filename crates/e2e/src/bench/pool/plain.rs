//! A pool on a file without a reactor: what it writes of its own goes to the file, the data of
//! replicas does not go anywhere. All data is zeros, which is what a hole of the file reads as, so
//! such a file is one that a real engine can open.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use block::{Blocks, Command};
use pool::{
    BLOCK, Buffer, Change, ClusterSize, CommandId, Effect, Id, IoId, Label, Limits, Member,
    NewPool, NewReplica, Place, Pool, Probe, Recovery, Step, TornWrites,
};

use super::rig::POOL;

/// Who the replica is.
pub(super) const REPLICA: Id = Id(100);

/// A pool with one replica.
pub(super) struct Plain {
    pool: Box<Pool>,
    file: File,
    zeros: Vec<u8>,
}

impl Plain {
    /// Makes a pool that fills the file, and a thin replica in it.
    pub(super) fn new(path: &Path, bytes: u64, replica: Blocks) -> Result<Plain> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.context("cannot make a file")?;
        file.set_len(bytes).context("the file system has no files of that size")?;
        let member = Member { id: Id(2), blocks: Blocks(bytes / 4096) };
        let (name, cluster) = ("bench".to_owned(), ClusterSize::DEFAULT);
        for step in pool::create(&NewPool { id: POOL, name, cluster, disks: vec![member] })? {
            if let Step::Write { place, bytes } = step {
                put(&file, place, &bytes)?;
            }
        }
        let supers = [get(&file, at(0), 1)?, get(&file, at(256), 1)?];
        let probe = Probe { blocks: member.blocks, supers: [&supers[0], &supers[1]] };
        let (superblock, _) = pool::assemble(&[probe])?;
        // Blocks are overwritten in place, as on disks that write them atomically.
        let limits = Limits { torn_writes: TornWrites::Impossible, ..Limits::default() };
        let mut recovery = Recovery::new(superblock, limits)?;
        let pool = loop {
            match recovery.poll() {
                Some(Effect::Read { io, place, blocks, .. }) => {
                    recovery.complete(io, Ok(&get(&file, place, blocks)?));
                }
                Some(Effect::Flush { io, .. }) => recovery.complete(io, Ok(&[])),
                Some(_) => {}
                None => break recovery.take().context("recovery is stuck")??,
            }
        };
        let mut plain = Plain { pool, file, zeros: vec![0; 256 * BLOCK] };
        let (origin, label, key) = (Id::NONE, Label::default(), Vec::new());
        let (id, size) = (REPLICA, replica);
        let new = NewReplica { id, origin, size, thick: false, created: 0, label, key };
        plain.pool.change(CommandId(0), Change::Create(new));
        plain.settle()?;
        Ok(plain)
    }

    /// Carries out commands on at most a cluster each, or flushes, all at once.
    pub(super) fn run_all(&mut self, commands: impl Iterator<Item = Command>) -> Result<()> {
        for command in commands {
            self.submit(command)?;
        }
        self.settle()
    }

    /// Carries out a command on at most a cluster, or a flush.
    pub(super) fn run(&mut self, command: Command) -> Result<()> {
        self.submit(command)?;
        self.settle()
    }

    fn submit(&mut self, command: Command) -> Result<()> {
        let blocks = command.span().filter(|_| command.is_mutation()).map_or(0, |it| it.len().0);
        let bytes = self.zeros.get(..usize::try_from(blocks)? * BLOCK).unwrap_or_default();
        self.pool.submit(CommandId(1), REPLICA, command, bytes);
        Ok(())
    }

    /// Has a checkpoint written.
    pub(super) fn checkpoint(&mut self) -> Result<()> {
        self.pool.request_checkpoint();
        self.settle()
    }

    /// Has the kernel write everything to the disk, so that whoever reads it need not.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_all().context("cannot flush the pool")
    }

    fn settle(&mut self) -> Result<()> {
        while let Some(effect) = self.pool.poll() {
            match effect {
                Effect::Read { io, blocks, into: Buffer::Caller { .. }, .. } => {
                    let bytes = self.zeros.get(..usize::try_from(blocks)? * BLOCK);
                    self.pool.complete(io, Ok(bytes.unwrap_or_default()));
                }
                Effect::Read { io, place, blocks, into: Buffer::Own } => {
                    let bytes = get(&self.file, place, blocks)?;
                    self.pool.complete(io, Ok(&bytes));
                }
                Effect::Write { io, place, from, .. } => {
                    self.write(io, place, from)?;
                    self.pool.complete(io, Ok(&[]));
                }
                Effect::Flush { io, .. } => self.pool.complete(io, Ok(&[])),
                Effect::Done { result, .. } => result?,
                Effect::Changed { result, .. } => result?,
                Effect::Zero { .. } => {}
                Effect::Answered { .. } => bail!("nobody asked the pool anything"),
                Effect::Believed { .. } => bail!("a new pool has an unproven block"),
            }
        }
        Ok(())
    }

    fn write(&self, io: IoId, place: Place, from: Buffer) -> Result<()> {
        match from {
            Buffer::Caller { .. } => Ok(()),
            Buffer::Own => put(&self.file, place, self.pool.bytes(io)),
        }
    }
}

fn at(block: u64) -> Place {
    Place { disk: pool::Disk(0), block }
}

fn get(file: &File, place: Place, blocks: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(blocks)? * BLOCK];
    file.read_exact_at(&mut bytes, place.block * 4096).context("cannot read the pool")?;
    Ok(bytes)
}

fn put(file: &File, place: Place, bytes: &[u8]) -> Result<()> {
    file.write_all_at(bytes, place.block * 4096).context("cannot write the pool")
}
