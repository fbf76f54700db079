//! What can be asked of the pools of a reactor, and what they answer. Plain values, so that they
//! can come from another thread.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use block::{Blocks, Bytes, IoError, Span};
use pool::{
    BadPool, Change, ClusterSize, Entity, Health, Id, ImportError, Refused, Signature, Usage,
};

use super::key::{KeyError, WrappingKey};
use crate::counters::{Counters, WindowCounts};

/// The asker's name for an order, given back with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A pool to be made.
#[derive(Clone, Debug)]
pub struct NewPool {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Size of a cluster.
    pub cluster: ClusterSize,
    /// Its disks or files, with an id for each.
    pub disks: Vec<NewDisk>,
    /// Whether what is on the disks may be lost.
    pub force: bool,
}

/// A disk that becomes part of a pool.
#[derive(Clone, Debug)]
pub struct NewDisk {
    /// Where it is.
    pub path: PathBuf,
    /// Its id in the pool.
    pub id: Id,
}

/// One order.
#[derive(Clone, Debug)]
pub enum PoolRequest {
    /// Makes a pool and opens it: [`PoolResponse::Pool`].
    Create(NewPool),
    /// Opens a pool: [`PoolResponse::Pool`].
    Import {
        /// All its disks, in any order.
        paths: Vec<PathBuf>,
    },
    /// Writes everything down and closes the pool.
    Export(Id),
    /// Closes the pool and makes its disks look empty.
    Destroy(Id),
    /// Uses what its disks have more than before.
    Grow(Id),
    /// Adds a disk.
    AddDisk {
        /// To which pool.
        pool: Id,
        /// The disk.
        disk: NewDisk,
        /// Whether what is on it may be lost.
        force: bool,
    },
    /// Changes replicas or snapshots.
    Change {
        /// Of which pool.
        pool: Id,
        /// How.
        change: Change,
    },
    /// Writes good bytes over damaged blocks, durably; at most 1 MiB.
    Repair {
        /// In which pool.
        pool: Id,
        /// Of which replica or snapshot.
        id: Id,
        /// Which blocks.
        span: Span,
        /// The bytes, as hosts see them.
        bytes: Vec<u8>,
    },
    /// Reads a block of a replica or snapshot, as hosts see it: [`PoolResponse::Block`].
    ReadBlock {
        /// In which pool.
        pool: Id,
        /// Of which replica or snapshot.
        id: Id,
        /// Which block.
        span: Span,
    },
    /// Gives those of these blocks that are unproven after a crash a checksum, durably, and leaves
    /// all others as they are: for a mirror that has compared every copy.
    AcceptUnproven {
        /// In which pool.
        pool: Id,
        /// Of which replica.
        id: Id,
        /// Which blocks.
        span: Span,
    },
    /// Believes blocks whose sums were lost, at an operator's word.
    Accept {
        /// In which pool.
        pool: Id,
        /// Of which replica or snapshot.
        id: Id,
        /// Which blocks.
        span: Span,
    },
    /// Lets an encrypted replica take commands, if the key is the one that wraps its own.
    Unlock {
        /// In which pool.
        pool: Id,
        /// Which replica.
        id: Id,
        /// The key.
        key: WrappingKey,
    },
    /// Wraps the data key of a replica by another key; its data stay as they are.
    Rotate {
        /// In which pool.
        pool: Id,
        /// Which replica.
        id: Id,
        /// The key that wraps it now.
        old: WrappingKey,
        /// The key that wraps it from now on.
        new: WrappingKey,
    },
    /// Verifies every block in the background; its progress is in [`PoolStatus`].
    Scrub {
        /// Which pool.
        pool: Id,
        /// How fast at most.
        rate: Rate,
    },
    /// Ends a scrub where it is.
    StopScrub(Id),
    /// Looks through the regions that are in doubt after a crash, in the background: only blocks
    /// that match no sum stay so.
    NarrowDoubt(Id),
    /// How a pool is: [`PoolResponse::Pool`].
    Status(Id),
    /// What was done in a pool: [`PoolResponse::Measured`].
    Measure(Id),
    /// All open pools: [`PoolResponse::Pools`].
    List,
    /// A replica or snapshot: [`PoolResponse::Entity`].
    Entity {
        /// In which pool.
        pool: Id,
        /// Which one.
        id: Id,
    },
    /// Runs of written blocks: [`PoolResponse::Runs`].
    Written(Runs),
    /// Runs of blocks that differ from an older relative: [`PoolResponse::Runs`].
    ChangedSince {
        /// The older one.
        older: Id,
        /// Of which newer one, and from where on.
        runs: Runs,
    },
}

/// A question for runs of blocks, a page at a time.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    /// In which pool.
    pub pool: Id,
    /// Of which replica or snapshot.
    pub id: Id,
    /// From which block on: the end of the last run of the page before.
    pub from: Blocks,
    /// Runs of a page.
    pub most: usize,
}

/// Bytes in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub Bytes);

/// What an order leads to.
#[derive(Clone, Debug)]
pub enum PoolResponse {
    /// It is done.
    Done,
    /// A pool.
    Pool(Box<PoolStatus>),
    /// What was done in a pool.
    Measured(Box<PoolCounters>),
    /// All pools.
    Pools(Vec<PoolStatus>),
    /// A replica or snapshot.
    Entity(Box<EntityStatus>),
    /// Runs of blocks (start, end).
    Runs(Vec<(u64, u64)>),
    /// A block.
    Block(Vec<u8>),
}

/// How a pool is.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Its id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// Its disks, in order.
    pub disks: Vec<(PathBuf, Bytes)>,
    /// Size of a cluster.
    pub cluster: Bytes,
    /// Its space.
    pub usage: Usage,
    /// How well it is.
    pub health: Health,
    /// The last scrub, if there was one since it was opened.
    pub scrub: Option<ScrubStatus>,
    /// Its replicas and snapshots, by id.
    pub entities: Vec<EntityStatus>,
}

/// A disk of a pool at work.
#[derive(Clone, Debug)]
pub struct DiskWork {
    /// Where it is.
    pub path: PathBuf,
    /// How long its oldest command has been at work.
    pub oldest: Duration,
    /// What ended lately.
    pub lately: WindowCounts,
}

/// What was done in a pool since it was opened.
#[derive(Clone, Debug)]
pub struct PoolCounters {
    /// To its disks, in order.
    pub disks: Vec<(DiskWork, Counters)>,
    /// To its replicas and snapshots.
    pub replicas: BTreeMap<Id, Counters>,
}

/// A replica or snapshot.
#[derive(Clone, Debug)]
pub struct EntityStatus {
    /// What is written about it.
    pub entity: Entity,
    /// Its space.
    pub usage: Usage,
}

/// How far a scrub is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Whether it is under way.
    pub is_running: bool,
    /// What it has looked at.
    pub checked: Bytes,
    /// What there was to look at when it began.
    pub total: Bytes,
    /// Damaged blocks that it found.
    pub bad: Blocks,
    /// Blocks that were being written at a crash and are not proven: the target of the volume
    /// compares its copies when it reads them.
    pub unproven: Blocks,
    /// How many damaged ones are in each replica or snapshot: all, however many there are.
    pub bad_of: BTreeMap<Id, u64>,
    /// How many of these were rewritten by their targets before it ended.
    pub repaired_of: BTreeMap<Id, u64>,
    /// Where those are that are still bad, at most [`ScrubStatus::PLACES`].
    pub places: Vec<(Id, Span)>,
}

impl ScrubStatus {
    /// Most places that are kept.
    pub const PLACES: usize = 4096;
}

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The system refused.
    #[error("cannot open {}", .path.display())]
    Open {
        /// Which disk.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Somebody else has it.
    #[error("{} is in use by another engine, another pool or a file system", .path.display())]
    InUse {
        /// Which disk.
        path: PathBuf,
    },
    /// Its blocks are too large.
    #[error(
        "{} needs I/O in units of {alignment} bytes; a pool has blocks of 4096",
        .path.display()
    )]
    Alignment {
        /// Which disk.
        path: PathBuf,
        /// The unit.
        alignment: u32,
    },
    /// It cannot hold even the superblocks.
    #[error("{} is too small for a pool: {bytes}", .path.display())]
    TooSmall {
        /// Which disk.
        path: PathBuf,
        /// Its size.
        bytes: Bytes,
    },
    /// Something is on it.
    #[error("{} holds {occupant}; to lose that, force it", .path.display())]
    Occupied {
        /// Which disk.
        path: PathBuf,
        /// What is on it.
        occupant: Signature,
    },
    /// A disk failed while the pool was made or opened.
    #[error("I/O on {} failed", .path.display())]
    Disk {
        /// Which disk.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The disks make no pool.
    #[error("the disks make no pool")]
    Bad(#[from] BadPool),
    /// Its metadata cannot be read.
    #[error("the pool cannot be imported")]
    Import(#[from] ImportError),
    /// There is none.
    #[error("no pool with this id is open here; import it first")]
    NotFound,
    /// There is one.
    #[error("the pool is open already")]
    AlreadyOpen,
    /// The pool refused it.
    #[error("the pool refused")]
    Refused(#[from] Refused),
    /// A repair did not succeed.
    #[error("the blocks could not be written")]
    Fault(#[from] IoError),
    /// Its data key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No key was given.
    #[error("the replica is encrypted; give the file of its key, as key=FILE")]
    NeedsKey,
    /// There is nothing that a key could open.
    #[error("the replica is not encrypted, for good; leave out its key")]
    NotEncrypted,
    /// Too many pools, orders or bytes.
    #[error("too much at once; try again, with less")]
    Full,
    /// The reactor failed.
    #[error("the reactor failed")]
    Reactor(#[source] io::Error),
    /// No memory for buffers.
    #[error("cannot make the buffers of the pools")]
    Buffers(#[from] reactor::ArenaError),
}
