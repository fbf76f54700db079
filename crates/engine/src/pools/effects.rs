//! What a pool asks for, as operations of the reactor, and how they come back.

use std::io;
use std::ops::Range;

use pool::{Buffer as Whose, DiskFailed, Effect, Place};
use reactor::{Buffer, Io, Key, Op, Outcome, PAGE, Refused, SharedBuffer, Token};

use super::pool_command::{Bytes, CompletedCommand, Submitter};
use super::{
    Carried, FLIGHT, NARROW, ORDER, Pending, PoolError, PoolResponse, Pools, SCRUB, State,
};
use crate::clock::instant;
use crate::counters::{OpClass, OpTimer};
use crate::device::Data;

/// An operation of the reactor for a pool.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) slot: Key,
    pub(super) what: What,
    /// On which disk, and what counts.
    pub(super) counted: Option<(usize, OpTimer)>,
}

/// What an operation is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The pool, or its recovery, asked for it. Of a read for a command: for which, from where.
    Asked { io: pool::IoId, into: Option<(Key, usize)> },
    /// A look at a disk: its start, or its second superblock.
    Probe { disk: usize, second: bool },
    /// A step of making or destroying a pool, on this disk.
    Step { disk: usize },
    /// A look at a disk that is to be added.
    Look,
    /// Time for care.
    Tick,
}

impl Pools {
    /// An operation with a token of our kind came back.
    pub fn on(&mut self, key: Key, outcome: Outcome, io: &mut impl Io) {
        #[cfg(feature = "faults")]
        let Some(outcome) = self.struck(key, outcome, io) else { return };
        let Some(Request { slot, what, counted }) = self.requests.remove(key) else { return };
        self.count(slot, counted, &outcome, instant(io));
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.outstanding = slot.outstanding.saturating_sub(1);
        }
        match what {
            What::Asked { io: name, into } => {
                self.answered(slot, name, into, outcome);
                self.drain(slot, io);
            }
            What::Probe { disk, second } => self.probed(slot, disk, second, outcome, io),
            What::Step { disk } => self.stepped(slot, disk, outcome, io),
            What::Look => self.looked(slot, outcome, io),
            What::Tick => self.tick(slot, io),
        }
        self.leave_if_over(slot, io);
    }

    fn count(
        &mut self,
        slot: Key,
        counted: Option<(usize, OpTimer)>,
        outcome: &Outcome,
        now: block::Instant,
    ) {
        let Some((disk, counted)) = counted else { return };
        let disk = self.slots.get_mut(slot).and_then(|slot| slot.disks.get_mut(disk));
        let Some(disk) = disk else { return };
        let well = match outcome {
            Outcome::Read { result, .. }
            | Outcome::Written { result, .. }
            | Outcome::Synced(result) => result.is_ok(),
            _ => false,
        };
        let result = if well { Ok(()) } else { Err(block::IoError::Internal) };
        disk.counters.ended(counted, result, now);
        disk.lately.ended(counted.age(now), now);
    }

    fn answered(
        &mut self,
        slot: Key,
        name: pool::IoId,
        into: Option<(Key, usize)>,
        outcome: Outcome,
    ) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        let (result, buffer) = match outcome {
            Outcome::Read { buffer, result } => (result, Some(buffer)),
            Outcome::Written { result, .. } | Outcome::Synced(result) => (result, None),
            _ => (Err(io::ErrorKind::Unsupported.into()), None),
        };
        if let Err(error) = &result
            && let Some(times) = slot.failed.again()
        {
            let disks: Vec<_> = slot.disks.iter().map(|disk| disk.path.display()).collect();
            tracing::error!(%error, ?disks, times, "a disk of a pool failed");
        }
        let bytes = buffer.as_deref().unwrap_or_default();
        let result = result.map(|()| bytes).map_err(|_| DiskFailed);
        match &mut slot.state {
            State::Recovering { recovery, .. } => recovery.complete(name, result),
            State::Open(open) => open.pool.complete(name, result),
            State::Probing(_) | State::Making(_) => {}
        }
        if let (Some((flight, start)), Some(buffer)) = (into, buffer)
            && let Some(flight) = self.flights.get_mut(flight)
        {
            flight.arrived(start, buffer);
        }
    }

    /// Carries out everything that a pool asks for.
    pub(super) fn drain(&mut self, slot: Key, io: &mut impl Io) {
        while let Some(effect) = self.next_effect(slot) {
            self.carry_out(slot, effect, io);
        }
        self.recovered(slot, io);
    }

    fn next_effect(&mut self, slot: Key) -> Option<Effect> {
        match &mut self.slots.get_mut(slot)?.state {
            State::Recovering { recovery, .. } => recovery.poll(),
            State::Open(open) => open.pool.poll(),
            State::Probing(_) | State::Making(_) => None,
        }
    }

    pub(super) fn carry_out(&mut self, slot: Key, effect: Effect, io: &mut impl Io) {
        match effect {
            Effect::Read { io: name, place, blocks, into } => {
                let (into, buffer) = match into {
                    Whose::Caller { token, block } => {
                        let (_, flight) = Token(token.0).parts();
                        let part = range_of((block, blocks));
                        (Some((flight, part.start)), self.fragment(flight, part))
                    }
                    Whose::Own => (None, self.own(bytes_of(blocks))),
                };
                match buffer {
                    Some(buffer) => {
                        let read = |(file, at)| Op::Read { file, at, buffer };
                        self.ask(slot, What::Asked { io: name, into }, place, read, io);
                    }
                    None => self.waiting_for_memory.push_back((slot, effect)),
                }
            }
            Effect::Write { io: name, place, blocks, from } => {
                let payload = match from {
                    Whose::Caller { token, block } => self.given(token, range_of((block, blocks))),
                    Whose::Own => self.own_bytes(slot, name, bytes_of(blocks)),
                };
                match payload {
                    Some(payload) => {
                        let write = |(file, at)| Op::Write { file, at, payload, durable: false };
                        self.ask(slot, What::Asked { io: name, into: None }, place, write, io);
                    }
                    None => self.waiting_for_memory.push_back((slot, effect)),
                }
            }
            Effect::Flush { io: name, disk } => {
                let place = Place { disk, block: 0 };
                let sync = |(file, _)| Op::Sync { file };
                self.ask(slot, What::Asked { io: name, into: None }, place, sync, io);
            }
            Effect::Zero { token, block, blocks } => {
                let (_, flight) = Token(token.0).parts();
                if let Some(flight) = self.flights.get_mut(flight)
                    && let Bytes::Fill(fragments) = &mut flight.bytes
                {
                    fragments.zero(range_of((block, blocks)));
                }
            }
            Effect::Done { token, result } => self.done(slot, token, result, io),
            Effect::Changed { token, result } => {
                let (_, key) = Token(token.0).parts();
                if let Some(Pending { ticket, what }) = self.pending.remove(key) {
                    self.changed(ticket, &what, result, io);
                }
            }
            Effect::Answered { token } => self.told(slot, token, io),
            Effect::Believed { id, span, blocks } => {
                let times = self.slots.get_mut(slot).and_then(|slot| slot.believed.again());
                if let Some(times) = times {
                    tracing::warn!(
                        replica = format_args!("{:032x}", id.0), %span, %blocks, times,
                        "blocks that were being written at a crash hold old or new data, and no \
                         other copy can tell; they are believed"
                    );
                }
            }
        }
    }

    /// Ends a command of a pool.
    fn done(
        &mut self,
        slot: Key,
        token: pool::CommandId,
        result: block::Completion,
        io: &mut impl Io,
    ) {
        match Token(token.0).parts() {
            (FLIGHT, key) => {
                let Some(flight) = self.flights.remove(key) else { return };
                if let Some(home) = self.slots.get_mut(slot) {
                    home.flights = home.flights.saturating_sub(1);
                }
                let submitter = flight.owner;
                let (replica, counted) = flight.counted;
                if let Some(open) = self.open_mut(slot) {
                    let counters = open.counters.entry(replica).or_default();
                    counters.ended(counted, result, instant(io));
                }
                match (submitter, flight.into_data()) {
                    (Submitter::Device(owner), data) => {
                        self.ended.push_back(CompletedCommand { owner, completion: result, data });
                    }
                    (Submitter::Order(ticket), data) => {
                        let bytes = match data {
                            Data::Fill(buffer) => buffer.to_vec(),
                            _ => Vec::new(),
                        };
                        let answer = result.map(|()| PoolResponse::Block(bytes));
                        self.answers.push_back((ticket, answer.map_err(PoolError::from)));
                    }
                }
            }
            (ORDER, key) => {
                if let Some(Pending { ticket, .. }) = self.pending.remove(key) {
                    let answer = result.map(|()| PoolResponse::Done).map_err(PoolError::from);
                    self.answers.push_back((ticket, answer));
                }
            }
            (SCRUB, _) => self.scrubbed(slot, result, io),
            (NARROW, _) => self.narrow_doubt(slot, io),
            _ => {}
        }
    }

    /// Asks what may need reads.
    pub(super) fn question(
        &mut self,
        ticket: super::Ticket,
        about: pool::QueryKind,
        super::Runs { pool, from, most, .. }: super::Runs,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        let token = self.pend(ticket, Carried::Question)?;
        self.find_open(pool)?.1.pool.ask(token, pool::BlockQuery { about, from, most });
        self.drain(slot, io);
        Ok(())
    }

    /// Ends a question of a pool.
    fn told(&mut self, slot: Key, token: pool::CommandId, io: &mut impl Io) {
        let Some(open) = self.open_mut(slot) else { return };
        let runs = open.pool.take_answer(token);
        match Token(token.0).parts() {
            (SCRUB, _) => self.scrub_told(slot, runs, io),
            (_, key) => {
                let Some(Pending { ticket, what }) = self.pending.remove(key) else { return };
                let answer = runs.map(|runs| match what {
                    Carried::Question => PoolResponse::Runs(runs),
                    _ => PoolResponse::Done,
                });
                self.answers.push_back((ticket, answer.map_err(PoolError::from)));
            }
        }
    }

    fn changed(
        &mut self,
        ticket: super::Ticket,
        what: &Carried,
        result: Result<(), pool::Refused>,
        io: &mut impl Io,
    ) {
        match what {
            Carried::Change | Carried::Question | Carried::Repair(_) => {}
            Carried::AddDisk { slot } => self.added(*slot, result.is_ok(), io),
            Carried::Leave { slot } => return self.written_down(*slot, result, io),
        }
        let answer = result.map(|()| PoolResponse::Done).map_err(PoolError::from);
        self.answers.push_back((ticket, answer));
    }

    /// Submits an operation on a disk of a slot.
    pub(super) fn ask(
        &mut self,
        slot: Key,
        what: What,
        place: Place,
        op: impl FnOnce((reactor::FileId, u64)) -> Op,
        io: &mut impl Io,
    ) {
        let Some(home) = self.slots.get_mut(slot) else { return };
        // The superblock that names disks was checked against those that were given.
        let Some(disk) = home.disks.get(usize::from(place.disk.0)) else { return };
        let op = op((disk.file, place.block.saturating_mul(PAGE_BYTES)));
        #[cfg(feature = "faults")]
        let path = disk.path.clone();
        // There is room: see `Pools::new`.
        let counted = Some((usize::from(place.disk.0), counted_of(&op, instant(io))));
        let Ok(key) = self.requests.insert(Request { slot, what, counted }) else { return };
        home.outstanding += 1;
        #[cfg(feature = "faults")]
        let Some(op) = self.strike((key, &path), op, io) else { return };
        self.send(op, Token::of(self.token_kind, key), io);
    }

    pub(super) fn send(&mut self, op: Op, token: Token, io: &mut impl Io) {
        match io.submit(op, token) {
            Ok(_) | Err(Refused::NoSocket(_)) => {}
            Err(Refused::Busy(op)) => self.refused.push_back((op, token)),
            Err(Refused::Closed(op)) => {
                // A slot's files are open as long as it is.
                tracing::error!(?op, "a disk of a pool is closed");
            }
        }
    }

    /// Memory for the pool's own I/O.
    pub(super) fn own(&mut self, len: usize) -> Option<Buffer> {
        self.arena().ok()?.take(len)
    }

    fn own_bytes(&mut self, slot: Key, name: pool::IoId, len: usize) -> Option<SharedBuffer> {
        let mut buffer = self.own(len)?;
        let bytes = self.open(slot).map_or(&[][..], |open| open.pool.bytes(name));
        // A pool asks for what it has the bytes of.
        if bytes.len() == buffer.len() {
            buffer.copy_from_slice(bytes);
        }
        Some(buffer.freeze())
    }

    fn fragment(&mut self, flight: Key, part: Range<usize>) -> Option<Buffer> {
        match &mut self.flights.get_mut(flight)?.bytes {
            Bytes::Fill(fragments) => fragments.take(part),
            _ => None,
        }
    }

    fn given(&self, token: pool::CommandId, part: Range<usize>) -> Option<SharedBuffer> {
        let bytes = match Token(token.0).parts() {
            (FLIGHT, key) => match &self.flights.get(key)?.bytes {
                Bytes::Given(bytes) => bytes,
                _ => return None,
            },
            (_, key) => match &self.pending.get(key)?.what {
                Carried::Repair(bytes) => bytes,
                _ => return None,
            },
        };
        bytes.part(part.start, part.len())
    }
}

fn counted_of(op: &Op, now: block::Instant) -> OpTimer {
    let bytes = |len: usize| u64::try_from(len).unwrap_or(0);
    match op {
        Op::Read { buffer, .. } => OpTimer::of(OpClass::Read, bytes(buffer.len()), now),
        Op::Write { payload, .. } => OpTimer::of(OpClass::Write, bytes(payload.len()), now),
        _ => OpTimer::of(OpClass::Flush, 0, now),
    }
}

/// Bytes of a block.
const PAGE_BYTES: u64 = 4096;
const _: () = assert!(PAGE == pool::BLOCK);

fn bytes_of(blocks: u32) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX).saturating_mul(PAGE)
}

/// The bytes of some blocks of a command: from which on, and how many.
fn range_of((first, blocks): (u32, u32)) -> Range<usize> {
    let start = bytes_of(first);
    start..start.saturating_add(bytes_of(blocks))
}
