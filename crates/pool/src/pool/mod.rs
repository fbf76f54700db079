//! The pool at work: commands and completions in, effects out. One owner, no I/O, no clock.
//!
//! The order of effects is the order of safety; `docs/format/pool.md` §3 numbers the rules (O1–O8)
//! that the comments here name.
//!
//! Invariants:
//! - a command that was taken ends with exactly one [`Effect::Done`] or [`Effect::Changed`];
//! - what is acknowledged as durable is in a durable group or checkpoint;
//! - after a failure of the journal or a flush nothing is acknowledged any more.
//!
//! Not here: moving bytes, encryption, timers (the engine asks for checkpoints when idle).

mod accept;
mod batch;
mod block_query;
mod change;
mod checkpoint_copy;
mod checkpointer;
mod checksum_load;
mod collapse;
mod commit;
mod data_barrier;
mod effect;
mod limits;
mod merge;
mod op;
mod overwrites;
mod own_io;
mod paging;
mod range_queue;
mod read;
mod redirect;
mod report;
mod scrub;
mod superblock_update;
mod write;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use block::{BlockSize, Command, Completion, Geometry, IoError, Span};

use crate::casts::{count, index};
use crate::checkpoint::Regions;
use crate::checksums::{ChecksumCache, sum_of};
use crate::entity::{EntityKind, Id, LayerId};
use crate::journal::Position;
use crate::layout::{BLOCK, DiskLayout, Use};
use crate::mutation::{Rule, disabled};
use crate::state::{Refused, State};
use crate::superblock::Superblock;

pub use block_query::{BlockQuery, QueryKind, Runs};
pub use change::{Change, KEY_CHECK, NewReplica, NewSnapshot};
pub use effect::{Buffer, CommandId, DiskFailed, Effect, IoId};
pub use limits::{Limits, TornWrites};
pub use report::{Health, Usage};

use batch::{Batch, GroupWrite, Sealed, Unproved, Writing};
use op::{IoTable, Op, Pending, Purpose, Table, Work, WriteMode};
use range_queue::{OpId, RangeAccess, RangeQueue};

/// Most blocks of one read or write.
const MAX_TRANSFER: u64 = 16384;

/// A pool that was opened.
#[derive(Debug)]
pub struct Pool {
    superblock: Superblock,
    disk_layout: DiskLayout,
    state: State,
    sums: ChecksumCache,
    limits: Limits,
    /// Regions that are durably marked, and those in doubt.
    regions: Regions,
    /// Regions overwritten since the last checkpoint began.
    hot: BTreeSet<u32>,
    /// How many overwrites are under way in a region; zeros are dropped at a checkpoint.
    overwriting: BTreeMap<u32, u32>,
    position: Position,
    /// Number of the first journal block that is still needed.
    tail: u64,
    ring: u64,
    /// Records that no group has yet.
    open: Batch,
    /// Records that groups are written of.
    writing: Option<Writing>,
    /// Records that are in groups, and made durable.
    sealed: Option<Sealed>,
    /// Groups being written, in order. The last has the number of the journal's position.
    flights: VecDeque<GroupWrite>,
    /// What is durable, though the journal does not say so.
    unproved: Vec<Unproved>,
    /// The last group that is known to be durable.
    proved: u64,
    ahead: data_barrier::DataBarrier,
    /// Writes that wait for a batch to be durable.
    waiting_for_commit: Vec<OpId>,
    /// Overwrites that wait for entries to be merged; idle in their lanes.
    waiting_for_pages: Vec<OpId>,
    /// Records were dropped, and no checkpoint says so yet: nobody writes to new places (O2).
    unsettled: bool,
    /// Changes whose layer is hidden but whose delete is not durable.
    hiding: BTreeSet<LayerId>,
    checkpoint: checkpointer::Checkpointer,
    merging: merge::MergeState,
    loading: BTreeMap<u64, checksum_load::ChecksumLoad>,
    paging: paging::Paging,
    /// Answers that nobody has taken yet.
    answers: BTreeMap<CommandId, Result<Runs, Refused>>,
    ops: Table<Op>,
    ios: IoTable,
    ranges_by_id: BTreeMap<Id, RangeQueue>,
    ready: Vec<OpId>,
    unlocked: BTreeSet<Id>,
    /// Replicas that nobody else has a copy of.
    sole: BTreeSet<Id>,
    effects: VecDeque<Effect>,
    /// The journal or a flush failed: nothing can be made durable any more.
    broken: bool,
    pieces: Vec<crate::state::Piece>,
    /// How far the regions in doubt were looked through.
    pass: scrub::Pass,
    /// Overwritten in place, and in no record.
    overwrites: overwrites::Overwrites,
    /// Blocks of which it is recorded that they have no sum, as far as the journal says so.
    sumless: BTreeSet<u64>,
    table: Option<superblock_update::SuperblockUpdate>,
    /// Per disk, the copy of the superblock that is written first; the other one is good.
    first_supers: Vec<u8>,
    recycler: op::OpRecycler,
    export: superblock_update::Export,
}

/// What recovery hands over.
pub(crate) struct Opened {
    pub(crate) superblock: Superblock,
    pub(crate) disk_layout: DiskLayout,
    pub(crate) state: State,
    pub(crate) sums: ChecksumCache,
    pub(crate) regions: Regions,
    pub(crate) position: Position,
    pub(crate) tail: u64,
    pub(crate) generation: u64,
    pub(crate) slot: u8,
    pub(crate) limits: Limits,
    /// Blocks first written in the newest groups, which no later one proves.
    pub(crate) unproved: BTreeSet<u64>,
    /// Blocks of which the journal says that they have no sum.
    pub(crate) sumless: BTreeSet<u64>,
    /// Records of the newest group were dropped: only a checkpoint may follow it.
    pub(crate) dropped: bool,
    /// Per disk, the copy of the superblock to write first.
    pub(crate) first_supers: Vec<u8>,
}

impl Pool {
    pub(crate) fn open(from: Opened) -> Pool {
        let journal = from.superblock.area(Use::Journal { copy: 0 });
        let mut pool = Pool {
            disk_layout: from.disk_layout,
            state: from.state,
            sums: from.sums,
            limits: from.limits,
            regions: from.regions,
            hot: BTreeSet::new(),
            overwriting: BTreeMap::new(),
            position: from.position,
            tail: from.tail,
            ring: journal.map_or(0, |area| area.blocks),
            superblock: from.superblock,
            open: Batch::default(),
            writing: None,
            sealed: None,
            flights: VecDeque::new(),
            unproved: alloc::vec![Unproved { group: from.position.group, blocks: from.unproved }],
            proved: from.position.group,
            ahead: data_barrier::DataBarrier::default(),
            waiting_for_commit: Vec::new(),
            waiting_for_pages: Vec::new(),
            unsettled: from.dropped && !disabled(Rule::HoldAfterDrop),
            hiding: BTreeSet::new(),
            checkpoint: checkpointer::Checkpointer::new(from.slot, from.generation),
            merging: merge::MergeState::default(),
            loading: BTreeMap::new(),
            paging: paging::Paging::default(),
            answers: BTreeMap::new(),
            ops: Table::default(),
            ios: IoTable::default(),
            ranges_by_id: BTreeMap::new(),
            ready: Vec::new(),
            unlocked: BTreeSet::new(),
            sole: BTreeSet::new(),
            effects: VecDeque::new(),
            broken: false,
            pieces: Vec::new(),
            pass: scrub::Pass::default(),
            overwrites: overwrites::Overwrites::default(),
            sumless: from.sumless,
            table: None,
            first_supers: from.first_supers,
            recycler: op::OpRecycler::default(),
            export: superblock_update::Export::No,
        };
        pool.set_torn_writes(from.limits.torn_writes);
        if from.dropped {
            // A later group would prove the newest one, with the records that were dropped. So the
            // journal counts as full: the next thing to become durable is a checkpoint.
            pool.tail = pool.position.number.wrapping_sub(pool.ring);
            pool.checkpoint.want();
        }
        let layers = pool.state.layers.keys().copied();
        let untrimmed = layers.filter(|layer| pool.state.untrimmed(*layer).is_some());
        for layer in untrimmed.collect::<Vec<_>>() {
            pool.trim(layer);
        }
        pool.collapse_hidden();
        pool.run();
        pool
    }

    /// The next thing to do, if any.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Bytes of one of the pool's own writes.
    pub fn bytes(&self, io: IoId) -> &[u8] {
        self.ios.get(io.0).map_or(&[], |pending| &pending.bytes)
    }

    /// Takes a block command. `data` are the bytes of a write, encrypted if the replica is; they
    /// stay the caller's, and must stay as they are until the command ends. A compare is carried
    /// out as a read; the caller compares.
    pub fn submit(&mut self, token: CommandId, id: Id, command: Command, data: &[u8]) {
        let mut op = self.recycler.op(token, id, Work::Block(command));
        if let Command::Read { span } = command {
            return self.take_read(op, span);
        }
        let mut data_len = None;
        if let Command::Write { .. } = command {
            op.sums.extend(data.chunks_exact(BLOCK).map(sum_of));
            data_len = Some(data.len());
        }
        self.take(op, command, data_len);
    }

    /// Writes good bytes over damaged blocks, of a snapshot as well. Blocks that were never written
    /// stay so.
    pub fn repair(&mut self, token: CommandId, id: Id, span: Span, data: &[u8]) {
        let sums = data.chunks_exact(BLOCK).map(sum_of).collect();
        let op = Op::new(token, id, Work::Repair(span), sums);
        self.take(op, Command::Compare { span }, Some(data.len()));
    }

    fn take(&mut self, op: Op, command: Command, data_len: Option<usize>) {
        let claim = match op.work {
            Work::Repair(span) | Work::Accept(span, _) => RangeAccess::Write(span),
            _ => RangeAccess::of(command),
        };
        match self.check(&op, command, data_len) {
            Ok(_) => self.enter(op, claim),
            Err(fault) => {
                self.effects.push_back(Effect::Done { token: op.token, result: Err(fault) });
            }
        }
        self.run();
    }

    /// Whether a command can be carried out; answers the layer that it is about.
    fn check(
        &self,
        op: &Op,
        command: Command,
        data_len: Option<usize>,
    ) -> Result<LayerId, IoError> {
        let entity = self.state.entities.get(&op.id).ok_or(IoError::Unreachable)?;
        let device = Geometry::new(BlockSize::B4096, entity.size).map_err(|_| IoError::Internal)?;
        command.check(device)?;
        let blocks = command.span().map_or(0, |span| span.len().0);
        let moves_bytes = matches!(
            command,
            Command::Read { .. } | Command::Write { .. } | Command::Compare { .. }
        );
        let data_fits = data_len.is_none_or(|len| count(len) == blocks * count(BLOCK));
        // Scrub and repair see what is on the medium, and need no key.
        let opens = matches!(op.work, Work::Block(_));
        let locked = opens && entity.is_encrypted() && !self.unlocked.contains(&op.id);
        if moves_bytes && (blocks > MAX_TRANSFER || !data_fits) {
            return Err(IoError::Unsupported);
        }
        if moves_bytes && locked {
            return Err(IoError::Locked);
        }
        if op.work.is_mutation() && (self.broken || self.is_exporting())
            || command.is_mutation() && entity.kind == EntityKind::Snapshot
        {
            return Err(IoError::ReadOnly);
        }
        if self.ops.len() >= self.limits.commands {
            return Err(IoError::Busy);
        }
        match command.span() {
            Some(span) if self.state.is_damaged(entity.layer) => Err(IoError::Medium { span }),
            _ => Ok(entity.layer),
        }
    }

    fn enter(&mut self, op: Op, claim: RangeAccess) {
        let (op, may_run) = self.line_up(op, claim);
        if may_run {
            self.ready.push(op);
        }
    }

    /// Puts an operation into its lane; whether it may run now.
    fn line_up(&mut self, op: Op, claim: RangeAccess) -> (OpId, bool) {
        let id = op.id;
        let op = self.ops.insert(op);
        (op, self.ranges_by_id.entry(id).or_default().enter(op, claim))
    }

    /// Says how a disk I/O went; of a read, with the bytes.
    pub fn complete(&mut self, io: IoId, result: Result<&[u8], DiskFailed>) {
        let Some(Pending { purpose, bytes }) = self.ios.remove(io.0) else { return };
        match purpose {
            Purpose::Data { op, part } if self.is_read(op) => {
                self.data_done(op, part, result);
                return self.run_after_read();
            }
            Purpose::Data { op, part } => self.data_done(op, part, result),
            Purpose::Page { page, copy } => self.page_read(page, copy, result.ok()),
            Purpose::Group { copy, group } => self.group_written((copy, group), result.is_ok()),
            Purpose::GroupFlush => self.group_flushed(result.is_ok()),
            Purpose::Checkpoint { copy } => self.checkpoint_written(copy, result.is_ok()),
            Purpose::CheckpointFlush => self.checkpoint_flushed(result.is_ok()),
            Purpose::Map { key, at } => self.map_read(key, at, result.ok()),
            Purpose::Copy { at } => self.copy_read(at, result.ok()),
            Purpose::Table => self.table_step_done(result.is_ok()),
        }
        drop(bytes);
        self.run();
    }

    /// Starts what may be started, until nothing more happens by itself.
    fn run(&mut self) {
        loop {
            while let Some(op) = self.ready.pop() {
                self.start(op);
            }
            self.advance_table();
            self.advance_export();
            self.advance_trim();
            self.advance_merge();
            let ended = self.advance_checkpoint();
            let committed = self.advance_commit();
            self.resume_waiting_for_pages();
            if !ended && !committed && self.ready.is_empty() {
                break;
            }
        }
        if self.state.resident.is_over() {
            self.state.shed();
        }
    }

    fn start(&mut self, at: OpId) {
        let holds = self.holds_any();
        self.begin(at);
        if holds {
            self.was_started(at);
        }
    }

    fn begin(&mut self, at: OpId) {
        let Some(op) = self.ops.get(at) else { return };
        if self.broken && op.work.is_mutation() {
            // What memory says may never have been written: nothing is done on its account.
            return self.done(at, Err(IoError::ReadOnly));
        }
        if let Some(span) = op.span() {
            // The replica may have been shrunk or deleted since the command was taken.
            match self.state.entities.get(&op.id) {
                None => return self.done(at, Err(IoError::Unreachable)),
                Some(entity) if span.end().0 > entity.size.0 => {
                    return self.done(at, Err(IoError::OutOfRange { span }));
                }
                Some(entity) if self.state.is_damaged(entity.layer) => {
                    return self.done(at, Err(IoError::Medium { span }));
                }
                Some(_) => {}
            }
        }
        match &op.work {
            Work::Ask(_) => self.start_ask(at),
            Work::Change(change) => self.apply_change(at, Change::clone(change)),
            Work::Repair(span) => self.start_write(at, *span),
            Work::Verify(span) => self.start_read(at, *span),
            Work::Accept(span, _) => self.start_accept(at, *span),
            Work::Pass(first) => self.start_pass(at, *first),
            Work::Merge => self.merge_entered(at),
            Work::Block(command) => match *command {
                Command::Read { span } | Command::Compare { span } => self.start_read(at, span),
                Command::Write { span, .. } => self.start_write(at, span),
                Command::Discard { span } => self.start_discard(at, span, false),
                Command::WriteZeroes { span, fua, .. } => self.start_discard(at, span, fua),
                Command::Flush => self.wait_for_commit(at),
            },
        }
    }

    /// A part of a command was read or written.
    fn data_done(&mut self, at: OpId, part: u32, result: Result<&[u8], DiskFailed>) {
        let Some(op) = self.ops.get_mut(at) else { return };
        op.outstanding -= 1;
        let part = &mut op.parts[index(u64::from(part))];
        match result {
            Err(DiskFailed) => (part.failed, op.unsure) = (true, true),
            Ok(bytes) if part.way == WriteMode::Read => {
                let from = index(u64::from(part.offset));
                let blocks = bytes.chunks_exact(BLOCK).map(sum_of);
                let sums = &mut op.sums[from..from + usize::from(part.run.len)];
                let mut found = 0;
                for (sum, crc) in sums.iter_mut().zip(blocks) {
                    op.unsure |= *sum != crc;
                    *sum = crc;
                    found += 1;
                }
                part.failed = found < part.run.len;
                op.unsure |= part.failed;
                if let Work::Merge = op.work {
                    let offset = part.offset;
                    self.keep_merged(offset, bytes);
                }
            }
            Ok(_) => {}
        }
        let over = self.ops.get_mut(at).filter(|op| op.outstanding == 0);
        if let Some(batch) = over.and_then(|op| op.ahead.take()) {
            self.ahead.end(batch);
        }
        self.step_op(at);
    }

    /// Goes on with a command when all it waited for is there.
    fn step_op(&mut self, at: OpId) {
        let Some(op) = self.ops.get(at) else { return };
        if op.outstanding > 0 || op.unrecorded {
            return;
        }
        match op.work {
            Work::Pass(first) => return self.step_pass(at, first),
            Work::Accept(span, belief) => return self.step_accept(at, (span, belief)),
            Work::Merge => return self.step_merge(at),
            _ => {}
        }
        match op.parts.first().map(|part| part.way) {
            Some(WriteMode::Read) | None => self.finish_read(at),
            Some(_) => self.finish_write(at),
        }
    }

    /// Ends a block command.
    fn done(&mut self, at: OpId, result: Completion) {
        if let Some(op) = self.leave(at) {
            self.effects.push_back(Effect::Done { token: op.token, result });
            self.recycler.put(op);
        }
    }

    /// Ends a change.
    fn changed(&mut self, at: OpId, result: Result<(), Refused>) {
        if let Some(op) = self.leave(at) {
            self.effects.push_back(Effect::Changed { token: op.token, result });
        }
    }

    fn leave(&mut self, at: OpId) -> Option<Op> {
        let op = self.ops.remove(at)?;
        self.leave_ranges(at, op.id);
        Some(op)
    }

    fn leave_ranges(&mut self, at: OpId, id: Id) {
        if let Some(ranges) = self.ranges_by_id.get_mut(&id) {
            ranges.leave(at, &mut self.ready);
            // Lanes of live replicas stay, so that the next command need not make one.
            if ranges.is_empty() && !self.state.entities.contains_key(&id) {
                self.ranges_by_id.remove(&id);
            }
        }
    }
}
