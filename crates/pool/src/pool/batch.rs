//! What group commit works with: records that become durable together, and groups under way.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::entity::LayerId;
use crate::journal::Position;
use crate::layout::Cluster;

use super::data_barrier::BatchNumber;
use super::range_queue::OpId;

/// A batch is written without being asked when it has this many bytes.
const HEAVY: usize = 192 << 10;
/// Writes wait when it has this many.
const FULL: usize = 512 << 10;

/// Records that become durable together, and what waits for that.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) payload: Vec<u8>,
    /// Blocks with a first-write record in it.
    pub(super) fresh: BTreeSet<u64>,
    /// Blocks given up by its records.
    pub(super) cleared: BTreeSet<u64>,
    /// Clusters given up by its records.
    pub(super) freed: Vec<Cluster>,
    /// Regions marked by its records.
    pub(super) marks: BTreeSet<u32>,
    /// Layers hidden by its records.
    pub(super) hidden: Vec<LayerId>,
    /// Commands that end when it is durable.
    pub(super) on_durable: Vec<OpId>,
    /// Commands that end when it is written.
    pub(super) on_written: Vec<OpId>,
    /// Somebody waits for it to be durable.
    pub(super) wanted: bool,
    /// A group must be written even without records (O3).
    pub(super) needs_proof_group: bool,
}

impl Batch {
    pub(super) fn is_full(&self) -> bool {
        self.payload.len() >= FULL
    }

    pub(super) fn note_size(&mut self) {
        self.wanted |= self.payload.len() >= HEAVY;
    }

    /// Takes in another one, at a cost that depends on the other one only: of sets, `append` would
    /// go through both.
    pub(super) fn append(&mut self, mut other: Batch) {
        self.payload.append(&mut other.payload);
        self.fresh.extend(other.fresh);
        self.cleared.extend(other.cleared);
        self.freed.append(&mut other.freed);
        self.marks.extend(other.marks);
        self.hidden.append(&mut other.hidden);
        self.on_durable.append(&mut other.on_durable);
        self.on_written.append(&mut other.on_written);
        self.wanted |= other.wanted;
        self.needs_proof_group |= other.needs_proof_group;
    }
}

/// Where the batch that groups are written of stands.
///
/// ```text
///   Gathering ──(wanted durable, none is sealed)──► Sealing ──(all in groups)──► Sealed
///       │                                              │                            │
///       └──────────────(the journal is full)───────────┤            (all written: flush) ──► done
///                                                      ▼
///                        (a checkpoint has it) ──► Absorbed ──► done
/// ```
///
/// Records join it only while it gathers. Behind a sealed one the next gathers already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Gathering,
    Sealing,
    Absorbed,
}

/// A group that is being written.
#[derive(Debug)]
pub(super) struct GroupWrite {
    /// Writes under way, of each copy.
    pub(super) left: [u32; 2],
    pub(super) good: [bool; 2],
    /// Commands that end when it and all before it are written.
    pub(super) on_written: Vec<OpId>,
}

impl GroupWrite {
    /// Whether nothing of it is under way.
    pub(super) fn is_over(&self) -> bool {
        self.left == [0, 0]
    }

    /// Whether one copy is there. That is enough: recovery takes each block from either.
    pub(super) fn is_written(&self) -> bool {
        (0..2).any(|copy| self.left[copy] == 0 && self.good[copy])
    }
}

/// A batch that groups are written of.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) batch: Batch,
    /// Bytes of its payload that groups have.
    pub(super) done: usize,
    /// What its last group says to be durable, if it has one.
    pub(super) says: Option<u64>,
    pub(super) stage: Stage,
    /// The last batch of records that joined it.
    pub(super) joined: BatchNumber,
}

impl Writing {
    pub(super) fn has_rest(&self) -> bool {
        self.done < self.batch.payload.len()
    }
}

/// A batch whose records are all in groups, and which is made durable.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) batch: Batch,
    pub(super) says: Option<u64>,
    pub(super) joined: BatchNumber,
    /// Where the journal stands after it.
    pub(super) position: Position,
    /// Flushes under way, if they are.
    pub(super) flushes: Option<u32>,
}

/// Blocks whose records are durable in groups up to one that no durable group proves.
#[derive(Debug)]
pub(crate) struct Unproved {
    pub(crate) group: u64,
    pub(crate) blocks: BTreeSet<u64>,
}
