//! Pools on the disks of a reactor: the one who drives `pool::Pool`.
//!
//! Orders go in by [`Pools::request`] and come out of [`Pools::poll_answer`]; block commands of
//! replicas come from [`crate::device::Devices`]. Every disk I/O that a pool asks for becomes an
//! operation of the reactor with a token of our kind.
//!
//! ```text
//!   Create ──► Probing ──► Making ──► Probing ──► Recovering ──► Open ──► Leaving ──► closed
//!   Import ────────────────────────────┘                          (Export; Destroy: Making)
//! ```
//!
//! Invariants:
//! - Every order is answered once, every command ends once, with its data.
//! - A disk is open in one pool of one engine only: it is locked while it is open.
//! - The pools' own I/O has memory of its own, so that it never waits for commands that wait for
//!   it. Data of commands is never copied here.
//!
//! Deliberately not here: the format and its order of writes (`pool`).

mod cipher;
mod close;
mod effects;
mod files;
#[cfg(feature = "faults")]
mod injected_faults;
mod inspect;
mod key;
mod key_file;
pub(crate) mod log_throttle;
mod maintenance;
mod open;
mod pool_command;
mod repair;
mod request;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;

use block::{Blocks, Bytes, Command, IoError};
use pool::{Change, Effect, Id, KEY_CHECK, Limits, Pool, Recovery, TornWrites};
use reactor::{Arena, Class, FileId, Io, Key, Op, PAGE, SharedBuffer, Slab, Token};

pub use request::{
    DiskWork, EntityStatus, NewDisk, NewPool, PoolCounters, PoolError, PoolRequest, PoolResponse,
    PoolStatus, Rate, Runs, ScrubStatus, Ticket,
};

use crate::clock::instant;
use crate::counters::{Counters, OpTimer, SlidingWindow};
use crate::device::Data;
use cipher::Cipher;
use close::ClosingPool;
use effects::Request;
pub use inspect::{id_of_name, inspect, new_id, superblock_of};
pub use key::{KeyError, WrappingKey};
pub use key_file::KeyFileError;
use log_throttle::LogThrottle;
use maintenance::Maintenance;
use open::{DiskProbe, PoolWrite};
pub(crate) use pool_command::CompletedCommand;
use pool_command::{PoolCommand, Submitter};
use status::{entity_status, status_of};

/// Whom a token that we give to a pool names.
const FLIGHT: u8 = 1;
const ORDER: u8 = 2;
const SCRUB: u8 = 3;
const NARROW: u8 = 4;

/// Largest piece of the pools' own I/O.
const LARGEST: usize = 256 * PAGE;

/// A replica or snapshot of an open pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    slot: Key,
    id: Id,
}

/// All pools of one reactor.
#[derive(Debug)]
pub struct Pools {
    slots: Slab<PoolSlot>,
    by_id: BTreeMap<Id, Key>,
    requests: Slab<Request>,
    flights: Slab<PoolCommand>,
    pending: Slab<Pending>,
    /// Operations that the reactor had no room for.
    refused: VecDeque<(Op, Token)>,
    /// I/O of pools that waits for memory.
    waiting_for_memory: VecDeque<(Key, Effect)>,
    ended: VecDeque<CompletedCommand>,
    answers: VecDeque<(Ticket, Result<PoolResponse, PoolError>)>,
    /// Memory for the pools' own I/O, made with the first pool.
    arena: Option<Arena>,
    #[cfg(feature = "faults")]
    struck: injected_faults::InjectedFaults,
    /// What each pool may use.
    limits: Limits,
    token_kind: u8,
    /// Who knows how a disk writes.
    traits: files::TraitsOf,
}

/// A pool: its disks, and how far it is.
#[derive(Debug)]
struct PoolSlot {
    disks: Vec<OpenDisk>,
    /// Disk I/O under way.
    outstanding: u32,
    /// Commands in it.
    flights: u32,
    /// I/O of its disks that failed, and blocks that were believed after a crash.
    failed: LogThrottle,
    believed: LogThrottle,
    state: State,
}

#[derive(Debug)]
enum State {
    Probing(DiskProbe),
    Making(PoolWrite),
    Recovering { ticket: Ticket, recovery: Box<Recovery> },
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    pool: Box<Pool>,
    maintenance: Maintenance,
    /// Of the replicas that were unlocked, by the check value of their keys: snapshots and clones
    /// have the key of their origin.
    ciphers: BTreeMap<[u8; KEY_CHECK], Rc<Cipher>>,
    leaving: Option<ClosingPool>,
    /// A disk that is being looked at before it is added.
    adding: Option<open::DiskAddition>,
    /// Another number after each opening: writes that no flush covered may be lost between two.
    incarnation: u64,
    /// What was done to its replicas and snapshots.
    counters: BTreeMap<Id, Counters>,
}

#[derive(Debug)]
struct OpenDisk {
    path: PathBuf,
    file: FileId,
    blocks: Blocks,
    /// Whether a power cut may leave a part of a block that was being written.
    torn_writes: TornWrites,
    counters: Counters,
    lately: SlidingWindow,
}

/// An order that a pool is carrying out.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    what: Carried,
}

#[derive(Debug)]
enum Carried {
    /// A change of replicas, snapshots or disks.
    Change,
    /// A question for runs of blocks.
    Question,
    /// A disk that is being added, the last of the slot's.
    AddDisk { slot: Key },
    /// A repair with these bytes.
    Repair(SharedBuffer),
    /// Writing everything down.
    Leave { slot: Key },
}

impl Pools {
    /// No pools. Tokens of its operations will be of this kind.
    pub fn new(token_kind: u8) -> Pools {
        const POOLS: u32 = 64;
        const ORDERS: u32 = 1024;
        // Never reached: pools bound their commands, and a command its parts.
        const REQUESTS: u32 = 1 << 24;
        const FLIGHTS: u32 = 16 * 1024;
        Pools {
            slots: Slab::new(POOLS),
            by_id: BTreeMap::new(),
            requests: Slab::new(REQUESTS),
            flights: Slab::new(FLIGHTS),
            pending: Slab::new(ORDERS),
            refused: VecDeque::new(),
            waiting_for_memory: VecDeque::new(),
            ended: VecDeque::new(),
            answers: VecDeque::new(),
            arena: None,
            #[cfg(feature = "faults")]
            struck: injected_faults::InjectedFaults::default(),
            limits: Limits::default(),
            token_kind,
            traits: files::kernel_traits,
        }
    }

    /// Sets the memory for the cache of each pool that is opened from now on.
    pub fn set_cache(&mut self, bytes: Bytes) {
        self.limits.cache = bytes;
    }

    /// Takes an order; its answer comes by [`Pools::poll_answer`].
    pub fn request(&mut self, ticket: Ticket, order: PoolRequest, io: &mut impl Io) {
        if let Err(error) = self.try_order(ticket, order, io) {
            self.answers.push_back((ticket, Err(error)));
        }
    }

    /// The next answer.
    pub fn poll_answer(&mut self) -> Option<(Ticket, Result<PoolResponse, PoolError>)> {
        self.answers.pop_front()
    }

    /// Tries again what had to wait for memory or operations. Returns whether something still
    /// waits.
    pub fn retry(&mut self, io: &mut impl Io) -> bool {
        for _ in 0..self.refused.len() {
            if let Some((op, token)) = self.refused.pop_front() {
                self.send(op, token, io);
            }
        }
        for _ in 0..self.waiting_for_memory.len() {
            if let Some((slot, effect)) = self.waiting_for_memory.pop_front() {
                self.carry_out(slot, effect, io);
            }
        }
        !self.refused.is_empty() || !self.waiting_for_memory.is_empty()
    }

    /// Writes down and closes all pools. Returns whether none is open any more.
    pub fn leave_all(&mut self, io: &mut impl Io) -> bool {
        let open: Vec<(Id, Key)> = self.by_id.iter().map(|(id, slot)| (*id, *slot)).collect();
        for (pool, slot) in open {
            if self.open(slot).is_some_and(|open| open.pool.health().broken) {
                // It can write nothing down; the next import finds what was durable.
                self.close(slot, io);
                continue;
            }
            // Answered when it is done; one that is leaving already stays on its way.
            let _ = self.begin_leaving(Ticket(u64::MAX), pool, false, io);
        }
        self.slots.is_empty()
    }

    /// A replica or snapshot, to give it commands.
    pub(crate) fn replica(&self, pool: Id, id: Id) -> Option<Replica> {
        let slot = *self.by_id.get(&pool)?;
        self.open(slot)?.pool.entity(id).map(|_| Replica { slot, id })
    }

    /// Says whether nobody else has a copy of a replica: what a crash leaves unproven of it is
    /// believed when it is read. Of a snapshot it is not: its replica is there to be asked.
    pub(crate) fn set_sole(&mut self, pool: Id, id: Id, is_sole: bool) {
        let is_replica =
            self.entity(pool, id).is_some_and(|one| one.kind == pool::EntityKind::Replica);
        if let Ok((_, open)) = self.find_open(pool) {
            open.pool.set_sole(id, is_sole && is_replica);
        }
    }

    /// What is written about a replica or snapshot of an open pool.
    pub fn entity(&self, pool: Id, id: Id) -> Option<&pool::Entity> {
        self.open(*self.by_id.get(&pool)?)?.pool.entity(id)
    }

    /// All replicas and snapshots of a pool.
    pub(crate) fn entities(&self, pool: Id) -> impl Iterator<Item = &pool::Entity> {
        let open = self.by_id.get(&pool).and_then(|slot| self.open(*slot));
        open.into_iter().flat_map(|open| open.pool.entities())
    }

    /// Changes whenever writes to the pool that no flush covered may have been lost.
    pub fn incarnation(&self, pool: Id) -> Option<u64> {
        Some(self.open(*self.by_id.get(&pool)?)?.incarnation)
    }

    /// Its size.
    pub(crate) fn size(&self, replica: Replica) -> Option<Blocks> {
        self.open(replica.slot)?.pool.entity(replica.id).map(|entity| entity.size)
    }

    /// Gives a command to a replica; hands the data back if there are as many as there may be.
    pub(crate) fn submit(
        &mut self,
        replica: Replica,
        owner: Key,
        command: Command,
        data: Data,
        io: &mut impl Io,
    ) -> Result<(), Data> {
        let Replica { slot, id } = replica;
        let Some(PoolSlot { state: State::Open(open), flights, .. }) = self.slots.get_mut(slot)
        else {
            self.ended.push_back(CompletedCommand {
                owner,
                completion: Err(IoError::Unreachable),
                data,
            });
            return Ok(());
        };
        let sealed = open.sealed(id, command);
        let counted = (id, OpTimer::new(command, instant(io)));
        let flight = PoolCommand::new((Submitter::Device(owner), counted), sealed, data, |len| {
            io.take(len)
        })?;
        let key = self.flights.insert(flight).map_err(PoolCommand::into_data)?;
        *flights += 1;
        open.maintenance.note_use();
        let given = self.flights.get(key).map_or(&[][..], |flight| flight.bytes.given());
        open.pool.submit(pool::CommandId(Token::of(FLIGHT, key).0), id, command, given);
        self.drain(slot, io);
        self.keep_watch(slot, io);
        Ok(())
    }

    /// Takes out a command that has ended.
    pub(crate) fn poll_ended(&mut self) -> Option<CompletedCommand> {
        self.ended.pop_front()
    }

    fn open(&self, slot: Key) -> Option<&Open> {
        match &self.slots.get(slot)?.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    fn open_mut(&mut self, slot: Key) -> Option<&mut Open> {
        match &mut self.slots.get_mut(slot)?.state {
            State::Open(open) => Some(open),
            _ => None,
        }
    }

    fn find(&self, pool: Id) -> Result<Key, PoolError> {
        self.by_id.get(&pool).copied().ok_or(PoolError::NotFound)
    }

    fn find_open(&mut self, pool: Id) -> Result<(Key, &mut Open), PoolError> {
        let slot = self.find(pool)?;
        let open = self.open_mut(slot).ok_or(PoolError::NotFound)?;
        Ok((slot, open))
    }

    /// Memory for the pools' own I/O.
    fn arena(&mut self) -> Result<&Arena, PoolError> {
        let arena = match self.arena.take() {
            Some(arena) => arena,
            None => Arena::new(&[
                Class { bytes: PAGE, count: 256 },
                Class { bytes: 64 * PAGE, count: 16 },
                Class { bytes: LARGEST, count: 16 },
            ])?,
        };
        Ok(self.arena.insert(arena))
    }

    fn try_order(
        &mut self,
        ticket: Ticket,
        order: PoolRequest,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        match order {
            PoolRequest::Create(new) => return self.begin_create(ticket, new, io),
            PoolRequest::Import { paths } => return self.begin_import(ticket, &paths, io),
            PoolRequest::Export(pool) => return self.begin_leaving(ticket, pool, false, io),
            PoolRequest::Destroy(pool) => return self.begin_leaving(ticket, pool, true, io),
            PoolRequest::AddDisk { pool, disk, force } => {
                return self.begin_adding(ticket, pool, &disk, force, io);
            }
            PoolRequest::Grow(pool) => return self.grow(ticket, pool, io),
            PoolRequest::Change { pool, change } => return self.change(ticket, pool, change, io),
            PoolRequest::Repair { pool, id, span, bytes } => {
                return self.repair(ticket, pool, (id, span), &bytes, io);
            }
            PoolRequest::ReadBlock { pool, id, span } => {
                return self.read_block(ticket, pool, (id, span), io);
            }
            PoolRequest::Scrub { pool, rate } => self.begin_scrub(pool, rate, io)?,
            PoolRequest::StopScrub(pool) => self.find_open(pool)?.1.maintenance.stop_scrub(),
            PoolRequest::NarrowDoubt(pool) => self.begin_narrowing(pool, io)?,
            PoolRequest::Unlock { pool, id, key } => self.find_open(pool)?.1.unlock(id, &key)?,
            PoolRequest::Rotate { pool, id, old, new } => {
                let entity = self.find_open(pool)?.1.pool.entity(id);
                let wrapped = &entity.ok_or(pool::Refused::NotFound)?.key;
                let key = old.rewrap(wrapped, &new)?;
                return self.change(ticket, pool, Change::Rewrap { id, key }, io);
            }
            PoolRequest::Accept { pool, id, span } => {
                let slot = self.find(pool)?;
                let token = self.pend(ticket, Carried::Change)?;
                self.find_open(pool)?.1.pool.accept(token, id, span);
                self.drain(slot, io);
                return Ok(());
            }
            PoolRequest::AcceptUnproven { pool, id, span } => {
                let slot = self.find(pool)?;
                let token = self.pend(ticket, Carried::Change)?;
                self.find_open(pool)?.1.pool.accept_unproven(token, id, span);
                self.drain(slot, io);
                return Ok(());
            }
            PoolRequest::Written(runs) => {
                return self.question(ticket, pool::QueryKind::Written(runs.id), runs, io);
            }
            PoolRequest::ChangedSince { older, runs } => {
                let about = pool::QueryKind::Changed { older, newer: runs.id };
                return self.question(ticket, about, runs, io);
            }
            question => {
                let answer = self.answer(&question, instant(io))?;
                self.answers.push_back((ticket, Ok(answer)));
                return Ok(());
            }
        }
        self.answers.push_back((ticket, Ok(PoolResponse::Done)));
        Ok(())
    }

    /// Answers what only needs looking.
    fn answer(
        &mut self,
        question: &PoolRequest,
        now: block::Instant,
    ) -> Result<PoolResponse, PoolError> {
        Ok(match question {
            PoolRequest::List => PoolResponse::Pools(
                self.by_id.values().filter_map(|slot| self.status(*slot)).collect(),
            ),
            PoolRequest::Entity { pool, id } => {
                let pool = &self.find_open(*pool)?.1.pool;
                let found = pool.entity(*id).and_then(|entity| entity_status(pool, entity));
                PoolResponse::Entity(Box::new(found.ok_or(pool::Refused::NotFound)?))
            }
            PoolRequest::Measure(pool) => {
                let slot = self.find(*pool)?;
                PoolResponse::Measured(Box::new(
                    self.measured(slot, now).ok_or(PoolError::NotFound)?,
                ))
            }
            PoolRequest::Status(pool) => {
                let slot = self.find(*pool)?;
                PoolResponse::Pool(Box::new(self.status(slot).ok_or(PoolError::NotFound)?))
            }
            _ => PoolResponse::Done,
        })
    }

    fn measured(&self, slot: Key, now: block::Instant) -> Option<PoolCounters> {
        let oldest = |nth: usize| {
            let here = self.requests.iter().filter(|(_, request)| request.slot == slot);
            let on_it = here.filter_map(|(_, request)| request.counted);
            on_it.filter(|(disk, _)| *disk == nth).map(|(_, one)| one.age(now)).max()
        };
        let disks = self.slots.get(slot)?.disks.iter().enumerate();
        let disks = disks.map(|(nth, disk)| {
            let oldest = oldest(nth).unwrap_or_default();
            let lately = disk.lately.seen(now);
            (DiskWork { path: disk.path.clone(), oldest, lately }, disk.counters)
        });
        Some(PoolCounters { disks: disks.collect(), replicas: self.open(slot)?.counters.clone() })
    }

    fn status(&self, slot: Key) -> Option<PoolStatus> {
        let open = self.open(slot)?;
        let disks = self.slots.get(slot)?.disks.iter();
        let disks = disks.map(|disk| (disk.path.clone(), disk.blocks)).collect();
        Some(status_of(&open.pool, disks, open.maintenance.scrub_status()))
    }

    fn change(
        &mut self,
        ticket: Ticket,
        pool: Id,
        change: Change,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        let token = self.pend(ticket, Carried::Change)?;
        self.find_open(pool)?.1.pool.change(token, change);
        self.drain(slot, io);
        Ok(())
    }

    /// Notes an order that a pool will end.
    fn pend(&mut self, ticket: Ticket, what: Carried) -> Result<pool::CommandId, PoolError> {
        let key = self.pending.insert(Pending { ticket, what }).map_err(|_| PoolError::Full)?;
        Ok(pool::CommandId(Token::of(ORDER, key).0))
    }
}
