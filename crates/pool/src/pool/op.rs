//! Operations and disk I/O under way, in tables whose slots are used again.

use alloc::vec::Vec;

use block::Command;

use crate::bits::Run;
use crate::casts::{count, index, low32};
use crate::entity::{Id, LayerId};
use crate::layout::Cluster;

use super::change::Change;
use super::data_barrier::BatchNumber;
use super::effect::{CommandId, IoId};
use super::range_queue::OpId;

/// What an operation is.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// A block command.
    Block(Command),
    /// A repair of these blocks: an overwrite that needs no right to write.
    Repair(block::Span),
    /// A look at these blocks, without handing them out.
    Verify(block::Span),
    /// Believes these blocks.
    Accept(block::Span, super::accept::AcceptScope),
    /// A look at blocks of a doubtful region, from this physical one on.
    Pass(u64),
    /// A step of a merge.
    Merge,
    /// A question.
    Ask(alloc::boxed::Box<super::block_query::ActiveQuery>),
    /// A change of replicas or snapshots.
    Change(alloc::boxed::Box<Change>),
}

/// How a part of a write reaches its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Over durable blocks, in a dirty region.
    InPlace,
    /// Into blocks that no map knows.
    First,
    /// Into blocks that no map knows, instead of over durable ones (O9).
    Redirect,
    /// A redirect that is in the map and recorded, or failed and is neither.
    Redirected,
    /// Not a write.
    Read,
}

/// A run of blocks of one command in one physical cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) way: WriteMode,
    pub(super) logical: u32,
    pub(super) cluster: Cluster,
    pub(super) run: Run,
    /// Blocks from the start of the command's buffer.
    pub(super) offset: u32,
    pub(super) failed: bool,
}

impl Part {
    /// Of the sums of the command's buffer, those of this part.
    pub(super) fn sums(self, all: &[u32]) -> &[u32] {
        let from = index(u64::from(self.offset));
        &all[from..from + usize::from(self.run.len)]
    }
}

/// How far a repair is. A crash that interrupts it must not make a bad block one that was being
/// written: that it has no sum is durable first.
///
/// ```text
///   Planned ──(recorded that its blocks have no sum)──► Disowned ──(durable)──► Ready: written
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Repair {
    #[default]
    Planned,
    Disowned,
    Ready,
}

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) token: CommandId,
    pub(super) id: Id,
    pub(super) work: Work,
    pub(super) layer: LayerId,
    pub(super) parts: Vec<Part>,
    /// Sums of the blocks of the buffer: of a write, of what is to be written; of a read, of what
    /// was found, and before that of what should be, as far as that is known.
    pub(super) sums: Vec<u32>,
    /// Disk I/O and pages that it waits for.
    pub(super) outstanding: u32,
    /// The batch of its record, while its data is being written.
    pub(super) ahead: Option<BatchNumber>,
    /// Its record is not written yet.
    pub(super) unrecorded: bool,
    /// Of a read: not all of it is known to be as its sums say.
    pub(super) unsure: bool,
    /// Of a discard, or a write that is done in steps, the blocks that are done.
    pub(super) done: u64,
    /// Of a repair, how far it is.
    pub(super) repair: Repair,
}

impl Work {
    /// Whether it changes what blocks hold.
    pub(super) fn is_mutation(&self) -> bool {
        match self {
            Work::Block(command) => command.is_mutation(),
            Work::Repair(_) | Work::Accept(..) => true,
            Work::Verify(_) | Work::Pass(_) | Work::Merge | Work::Ask(_) | Work::Change(_) => false,
        }
    }
}

impl Op {
    pub(super) fn new(token: CommandId, id: Id, work: Work, sums: Vec<u32>) -> Op {
        let layer = LayerId::NONE;
        let (parts, outstanding, ahead) = (Vec::new(), 0, None);
        let (unrecorded, unsure, done) = (false, true, 0);
        let repair = Repair::default();
        Op {
            token,
            id,
            work,
            layer,
            parts,
            sums,
            outstanding,
            ahead,
            unrecorded,
            unsure,
            done,
            repair,
        }
    }

    /// The blocks of a block command.
    pub(super) fn span(&self) -> Option<block::Span> {
        match &self.work {
            Work::Block(command) => command.span(),
            Work::Repair(span) | Work::Verify(span) | Work::Accept(span, _) => Some(*span),
            Work::Pass(_) | Work::Merge | Work::Ask(_) | Work::Change(_) => None,
        }
    }
}

/// Vectors of operations that have ended, for those to come: the hot path allocates nothing.
#[derive(Debug, Default)]
pub(super) struct OpRecycler {
    vectors: Vec<(Vec<Part>, Vec<u32>)>,
}

impl OpRecycler {
    /// Most vectors kept, and the most sums one may have room for.
    const MOST: usize = 256;

    pub(super) fn op(&mut self, token: CommandId, id: Id, work: Work) -> Op {
        let (parts, sums) = self.vectors.pop().unwrap_or_default();
        Op { parts, ..Op::new(token, id, work, sums) }
    }

    pub(super) fn put(&mut self, op: Op) {
        let Op { mut parts, mut sums, .. } = op;
        if self.vectors.len() < Self::MOST && sums.capacity() <= Self::MOST {
            parts.clear();
            sums.clear();
            self.vectors.push((parts, sums));
        }
    }
}

/// A table of things under way, by number.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, item: T) -> u32 {
        if let Some(at) = self.free.pop() {
            self.slots[index(u64::from(at))] = Some(item);
            return at;
        }
        self.slots.push(Some(item));
        low32(count(self.slots.len() - 1))
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(index(u64::from(at)))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(index(u64::from(at)))?.as_mut()
    }

    pub(super) fn remove(&mut self, at: u32) -> Option<T> {
        let item = self.slots.get_mut(index(u64::from(at)))?.take()?;
        self.free.push(at);
        Some(item)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// What a disk I/O is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A part of a command.
    Data { op: OpId, part: u32 },
    /// A copy of a sums page.
    Page { page: u64, copy: u8 },
    /// A copy of a journal group.
    Group { copy: u8, group: u64 },
    /// The flush after a group.
    GroupFlush,
    /// A write of a checkpoint.
    Checkpoint { copy: u8 },
    /// A flush of a checkpoint.
    CheckpointFlush,
    /// A part of a page of a map.
    Map { key: crate::state::PageKey, at: u32 },
    /// A part of pages that a checkpoint copies.
    Copy { at: u32 },
    /// A superblock, or a flush between superblocks.
    Table,
}

/// A disk I/O under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) purpose: Purpose,
    pub(super) bytes: Vec<u8>,
}

/// The I/O table.
pub(super) type IoTable = Table<Pending>;

/// The name of an I/O.
pub(super) fn io(at: u32) -> IoId {
    IoId(at)
}
