//! Making and opening pools: look at the disks, write what makes them a pool, recover.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use block::Blocks;
use pool::{
    Disk, Limits, Member, OCCUPANT_BYTES, Place, Probe, Recovery, Step, TornWrites, super_offset,
};
use reactor::{Access, Io, Key, Op, Outcome, PAGE};

use super::effects::What;
use super::files::{any_torn_writes, open_all, open_disk};
use super::log_throttle::LogThrottle;
use super::maintenance::Maintenance;
use super::{
    Carried, LARGEST, NewDisk, NewPool, Open, OpenDisk, PoolError, PoolResponse, PoolSlot, Pools,
    State, Ticket,
};

/// Disks that are being looked at.
#[derive(Debug)]
pub(super) struct DiskProbe {
    ticket: Ticket,
    /// What to make of them, if they are no pool yet.
    new: Option<NewPool>,
    /// They were made a pool just now.
    is_new: bool,
    /// By disk: its first bytes, and its second superblock.
    found: Vec<[Vec<u8>; 2]>,
    left: usize,
}

/// Writes that make or destroy a pool.
#[derive(Debug)]
pub(super) struct PoolWrite {
    ticket: Ticket,
    steps: VecDeque<Step>,
    /// Bytes of the first step that were written.
    done: usize,
    is_flushing: bool,
    failed: Option<PoolError>,
    then: Then,
}

/// What follows when a pool was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Open,
    Close,
}

/// A disk that is being looked at before it is added.
#[derive(Debug)]
pub(super) struct DiskAddition {
    ticket: Ticket,
    disk: OpenDisk,
    member: Member,
    force: bool,
}

impl PoolWrite {
    pub(super) fn new(ticket: Ticket, steps: Vec<Step>, then: Then) -> PoolWrite {
        let steps = steps.into();
        PoolWrite { ticket, steps, done: 0, is_flushing: false, failed: None, then }
    }
}

impl Pools {
    pub(super) fn begin_create(
        &mut self,
        ticket: Ticket,
        new: NewPool,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let paths: Vec<PathBuf> = new.disks.iter().map(|disk| disk.path.clone()).collect();
        let disks = open_all(&paths, self.traits, io)?;
        self.add_slot(ticket, disks, Some(new), io)
    }

    pub(super) fn begin_import(
        &mut self,
        ticket: Ticket,
        paths: &[PathBuf],
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let disks = open_all(paths, self.traits, io)?;
        self.add_slot(ticket, disks, None, io)
    }

    fn add_slot(
        &mut self,
        ticket: Ticket,
        disks: Vec<OpenDisk>,
        new: Option<NewPool>,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let probing = DiskProbe { ticket, new, is_new: false, found: Vec::new(), left: 0 };
        let (failed, believed) = (LogThrottle::default(), LogThrottle::default());
        let state = State::Probing(probing);
        let slot = PoolSlot { disks, outstanding: 0, flights: 0, failed, believed, state };
        match self.slots.insert(slot) {
            Ok(slot) => {
                self.probe(slot, io);
                Ok(())
            }
            Err(slot) => {
                slot.disks.iter().for_each(|disk| io.close_file(disk.file));
                Err(PoolError::Full)
            }
        }
    }

    /// Reads the start and the second superblock of every disk.
    fn probe(&mut self, slot: Key, io: &mut impl Io) {
        let Some(PoolSlot { disks, state: State::Probing(probing), .. }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let count = disks.len();
        probing.found = (0..count).map(|_| [Vec::new(), Vec::new()]).collect();
        probing.left = 2 * count;
        for disk in 0..count {
            for second in [false, true] {
                let what = What::Probe { disk, second };
                if !self.look(slot, disk, second, what, io) {
                    return self.give_up(slot, PoolError::Full, io);
                }
            }
        }
    }

    fn look(&mut self, slot: Key, disk: usize, second: bool, what: What, io: &mut impl Io) -> bool {
        let len = if second { PAGE } else { OCCUPANT_BYTES };
        let Some(buffer) = self.own(len) else { return false };
        let block = if second { super_offset(1) / 4096 } else { 0 };
        let place = Place { disk: number(disk), block };
        self.ask(slot, what, place, |(file, at)| Op::Read { file, at, buffer }, io);
        true
    }

    pub(super) fn probed(
        &mut self,
        slot: Key,
        disk: usize,
        second: bool,
        outcome: Outcome,
        io: &mut impl Io,
    ) {
        let Some(PoolSlot { disks, state: State::Probing(probing), .. }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let Outcome::Read { buffer, result } = outcome else { return };
        if let Err(source) = result {
            let path = disks.get(disk).map(|disk| disk.path.clone()).unwrap_or_default();
            return self.give_up(slot, PoolError::Disk { path, source }, io);
        }
        if let Some(found) = probing.found.get_mut(disk) {
            found[usize::from(second)] = buffer.to_vec();
        }
        probing.left = probing.left.saturating_sub(1);
        if probing.left == 0
            && let Err(error) = self.judge(slot, io)
        {
            self.give_up(slot, error, io);
        }
    }

    /// All disks were looked at.
    fn judge(&mut self, slot: Key, io: &mut impl Io) -> Result<(), PoolError> {
        let Some(PoolSlot { disks, state, .. }) = self.slots.get_mut(slot) else { return Ok(()) };
        let State::Probing(DiskProbe { ticket, new, is_new, found, .. }) = state else {
            return Ok(());
        };
        let (ticket, is_new) = (*ticket, *is_new);
        if let Some(new) = new.take() {
            for (disk, [start, _]) in disks.iter().zip(&*found) {
                refuse_occupied(&disk.path, start, new.force)?;
            }
            let member =
                |(disk, new): (&OpenDisk, &NewDisk)| Member { id: new.id, blocks: disk.blocks };
            let members = disks.iter().zip(&new.disks).map(member).collect();
            let NewPool { id, name, cluster, .. } = new;
            let steps = pool::create(&pool::NewPool { id, name, cluster, disks: members })?;
            *state = State::Making(PoolWrite::new(ticket, steps, Then::Open));
            self.make(slot, io);
            return Ok(());
        }
        let probes: Vec<Probe<'_>> = disks
            .iter()
            .zip(&*found)
            .map(|(disk, [start, second])| Probe {
                blocks: disk.blocks,
                supers: [start.get(..PAGE).unwrap_or_default(), second],
            })
            .collect();
        let (superblock, order) = pool::assemble(&probes)?;
        if self.by_id.contains_key(&superblock.pool) {
            return Err(PoolError::AlreadyOpen);
        }
        let id = superblock.pool;
        let begin = if is_new { Recovery::of_new } else { Recovery::new };
        let limits = Limits { torn_writes: any_torn_writes(disks), ..self.limits };
        let recovery = begin(superblock, limits)?;
        self.recover(slot, ticket, (id, recovery), &order, io);
        Ok(())
    }

    fn recover(
        &mut self,
        slot: Key,
        ticket: Ticket,
        (id, recovery): (pool::Id, Recovery),
        order: &[usize],
        io: &mut impl Io,
    ) {
        let Some(PoolSlot { disks, state, .. }) = self.slots.get_mut(slot) else { return };
        let mut given: Vec<Option<OpenDisk>> =
            core::mem::take(disks).into_iter().map(Some).collect();
        disks.extend(order.iter().filter_map(|at| given.get_mut(*at).and_then(Option::take)));
        // Disks that the pool no longer knows are not needed.
        given.into_iter().flatten().for_each(|disk| io.close_file(disk.file));
        *state = State::Recovering { ticket, recovery: Box::new(recovery) };
        self.by_id.insert(id, slot);
        self.drain(slot, io);
    }

    /// If recovery is over, opens the pool.
    pub(super) fn recovered(&mut self, slot: Key, io: &mut impl Io) {
        let Some(PoolSlot { state, .. }) = self.slots.get_mut(slot) else { return };
        let State::Recovering { ticket, recovery } = state else { return };
        let ticket = *ticket;
        match recovery.take() {
            None => {}
            Some(Ok(pool)) => {
                let maintenance = Maintenance::default();
                let ciphers = BTreeMap::new();
                let incarnation = crate::entropy::number();
                let (leaving, adding) = (None, None);
                let counters = BTreeMap::new();
                let open =
                    Open { pool, maintenance, ciphers, leaving, adding, incarnation, counters };
                *state = State::Open(Box::new(open));
                self.drain(slot, io);
                if let Some(status) = self.status(slot) {
                    self.answers.push_back((ticket, Ok(PoolResponse::Pool(Box::new(status)))));
                }
            }
            Some(Err(error)) => self.give_up(slot, error.into(), io),
        }
    }

    /// Writes the next steps of making or destroying a pool.
    pub(super) fn make(&mut self, slot: Key, io: &mut impl Io) {
        while let Some(PoolSlot { disks, outstanding, state: State::Making(making), .. }) =
            self.slots.get_mut(slot)
        {
            let count = disks.len();
            let idle = *outstanding == 0;
            if (making.is_flushing && !idle) || making.failed.is_some() {
                break;
            }
            making.is_flushing = false;
            match making.steps.front() {
                Some(Step::Flush) if idle => {
                    making.steps.pop_front();
                    making.is_flushing = true;
                    for disk in 0..count {
                        let place = Place { disk: number(disk), block: 0 };
                        let sync = |(file, _)| Op::Sync { file };
                        self.ask(slot, What::Step { disk }, place, sync, io);
                    }
                }
                Some(Step::Write { place, bytes }) => {
                    let (place, done) = (*place, making.done);
                    let rest = bytes.get(done..).unwrap_or_default();
                    let piece = rest.get(..rest.len().min(LARGEST)).unwrap_or_default().to_vec();
                    let Some(mut buffer) = self.own(piece.len()) else { break };
                    buffer.copy_from_slice(&piece);
                    self.advance_step(slot, piece.len());
                    let block = place.block + u64::try_from(done / PAGE).unwrap_or(0);
                    let what = What::Step { disk: usize::from(place.disk.0) };
                    let payload = buffer.freeze();
                    let write = |(file, at)| Op::Write { file, at, payload, durable: false };
                    self.ask(slot, what, Place { block, ..place }, write, io);
                }
                Some(Step::Flush) | None => break,
            }
        }
        self.made(slot, io);
    }

    fn advance_step(&mut self, slot: Key, by: usize) {
        let Some(PoolSlot { state: State::Making(making), .. }) = self.slots.get_mut(slot) else {
            return;
        };
        making.done += by;
        if let Some(Step::Write { bytes, .. }) = making.steps.front()
            && making.done >= bytes.len()
        {
            making.steps.pop_front();
            making.done = 0;
        }
    }

    pub(super) fn stepped(&mut self, slot: Key, disk: usize, outcome: Outcome, io: &mut impl Io) {
        let Some(PoolSlot { disks, state: State::Making(making), .. }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let result = match outcome {
            Outcome::Written { result, .. } | Outcome::Synced(result) => result,
            _ => Ok(()),
        };
        if let Err(source) = result {
            let path = disks.get(disk).map(|disk| disk.path.clone()).unwrap_or_default();
            making.failed.get_or_insert(PoolError::Disk { path, source });
        }
        self.make(slot, io);
    }

    /// If all steps are done, goes on with what follows.
    fn made(&mut self, slot: Key, io: &mut impl Io) {
        let Some(PoolSlot { outstanding: 0, state, .. }) = self.slots.get_mut(slot) else { return };
        let State::Making(making) = state else { return };
        let ticket = making.ticket;
        if let Some(error) = making.failed.take() {
            return self.give_up(slot, error, io);
        }
        if !making.steps.is_empty() {
            return;
        }
        match making.then {
            Then::Open => {
                let (new, is_new, found) = (None, true, Vec::new());
                let probing = DiskProbe { ticket, new, is_new, found, left: 0 };
                *state = State::Probing(probing);
                self.probe(slot, io);
            }
            Then::Close => {
                self.close(slot, io);
                self.answers.push_back((ticket, Ok(PoolResponse::Done)));
            }
        }
    }

    /// A pool that could not be opened or made.
    fn give_up(&mut self, slot: Key, error: PoolError, io: &mut impl Io) {
        let ticket = match self.slots.get(slot).map(|slot| &slot.state) {
            Some(State::Probing(probing)) => probing.ticket,
            Some(State::Making(making)) => making.ticket,
            Some(State::Recovering { ticket, .. }) => *ticket,
            Some(State::Open(_)) | None => return,
        };
        self.close(slot, io);
        self.answers.push_back((ticket, Err(error)));
    }

    /// Forgets a pool and closes its disks; what is under way on them ends first.
    pub(super) fn close(&mut self, slot: Key, io: &mut impl Io) {
        if let Some(gone) = self.slots.remove(slot) {
            gone.disks.iter().for_each(|disk| io.close_file(disk.file));
        }
        self.by_id.retain(|_, of| *of != slot);
        self.waiting_for_memory.retain(|(of, _)| *of != slot);
    }

    pub(super) fn begin_adding(
        &mut self,
        ticket: Ticket,
        pool: pool::Id,
        disk: &NewDisk,
        force: bool,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        if self.find_open(pool)?.1.adding.is_some() {
            return Err(PoolError::Full);
        }
        let opened = open_disk(&disk.path, self.traits, io)?;
        let Some(buffer) = self.own(OCCUPANT_BYTES) else {
            io.close_file(opened.file);
            return Err(PoolError::Full);
        };
        let member = Member { id: disk.id, blocks: opened.blocks };
        let file = opened.file;
        let (_, open) = self.find_open(pool)?;
        open.adding = Some(DiskAddition { ticket, disk: opened, member, force });
        let place = Place { disk: number(0), block: 0 };
        self.ask(slot, What::Look, place, |_| Op::Read { file, at: 0, buffer }, io);
        Ok(())
    }

    /// The disk that is to be added was looked at.
    pub(super) fn looked(&mut self, slot: Key, outcome: Outcome, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        let Some(DiskAddition { ticket, disk, member, force }) = open.adding.take() else { return };
        let judged = match outcome {
            Outcome::Read { buffer, result: Ok(()) } => refuse_occupied(&disk.path, &buffer, force),
            Outcome::Read { result: Err(source), .. } => {
                Err(PoolError::Disk { path: disk.path.clone(), source })
            }
            _ => Err(PoolError::Full),
        };
        let token = judged.and_then(|()| self.pend(ticket, Carried::AddDisk { slot }));
        match token {
            Ok(token) => {
                let torn_writes = disk.torn_writes;
                if let Some(home) = self.slots.get_mut(slot) {
                    home.disks.push(disk);
                }
                if let Some(open) = self.open_mut(slot) {
                    if torn_writes == TornWrites::Possible {
                        // Before anything is written there; it stays so until the next import.
                        open.pool.set_torn_writes(torn_writes);
                    }
                    open.pool.add_disk(token, member);
                }
                self.drain(slot, io);
            }
            Err(error) => {
                io.close_file(disk.file);
                self.answers.push_back((ticket, Err(error)));
            }
        }
    }

    /// The pool took the disk, or not.
    pub(super) fn added(&mut self, slot: Key, is_added: bool, io: &mut impl Io) {
        if !is_added
            && let Some(home) = self.slots.get_mut(slot)
            && let Some(disk) = home.disks.pop()
        {
            io.close_file(disk.file);
        }
    }

    pub(super) fn grow(
        &mut self,
        ticket: Ticket,
        pool: pool::Id,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        let mut sizes = Vec::new();
        for disk in self.slots.get_mut(slot).map_or(&mut [][..], |slot| &mut slot.disks) {
            let opened = io
                .open(&disk.path, Access::ReadOnly)
                .map_err(|source| PoolError::Open { path: disk.path.clone(), source })?;
            io.close_file(opened.file);
            disk.blocks = disk.blocks.max(Blocks(opened.bytes / 4096));
            sizes.push(disk.blocks);
        }
        let token = self.pend(ticket, Carried::Change)?;
        self.find_open(pool)?.1.pool.grow(token, &sizes);
        self.drain(slot, io);
        Ok(())
    }
}

fn number(disk: usize) -> Disk {
    Disk(u16::try_from(disk).unwrap_or(u16::MAX))
}

fn refuse_occupied(path: &Path, start: &[u8], force: bool) -> Result<(), PoolError> {
    match pool::find_signature(start) {
        Some(occupant) if !force => Err(PoolError::Occupied { path: path.into(), occupant }),
        _ => Ok(()),
    }
}
