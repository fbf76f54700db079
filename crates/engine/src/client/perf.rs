//! A load on one namespace, measured: what `fio` does for kernel devices.

use std::time::Duration;

use block::{Blocks, Command, Geometry, Lba, Span};
use hdrhistogram::Histogram;
use reactor::{Buffer, Frozen, Moment};

use super::session::SessionError;
use super::{Happened, Request, Session};
use crate::device::Data;

/// What to do in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
    /// Both at random places, so many reads in a hundred.
    RandomMix {
        /// Percentage of reads.
        reads: u8,
    },
    /// Reads from the start to the end, again and again.
    Read,
    /// Writes from the start to the end, again and again.
    Write,
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Which namespace.
    pub nsid: u32,
    /// What.
    pub pattern: Pattern,
    /// Blocks of one command.
    pub blocks: Blocks,
    /// Commands at work at once.
    pub depth: u32,
    /// For how long at most.
    pub time: Duration,
    /// For how many commands at most.
    pub commands: u64,
    /// Write what can be recognised, and read every write back.
    pub verify: bool,
    /// For the places.
    pub seed: u64,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Commands that completed while the clock ran.
    pub commands: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// How long the clock ran.
    pub elapsed: Duration,
    /// Latencies in nanoseconds.
    pub latency: Histogram<u64>,
    /// Commands that failed.
    pub failed: u64,
    /// Blocks that did not hold what was written.
    pub wrong: u64,
}

/// Why a load cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such namespace.
    #[error("the subsystem has no namespace {nsid}")]
    NoNamespace {
        /// Which was asked for.
        nsid: u32,
    },
    /// One command is larger than the namespace or than the controller takes.
    #[error("commands of {} blocks are too large here; the most is {}", .asked.0, .most.0)]
    TooLarge {
        /// What was asked for.
        asked: Blocks,
        /// What is possible.
        most: Blocks,
    },
    /// There is not that much memory.
    #[error("there is no memory for {depth} commands at once; lower the depth or the size")]
    NoMemory {
        /// What was asked for.
        depth: u32,
    },
    /// The connection failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// One of the commands that are always at work.
struct Worker {
    data: Option<Frozen>,
    begun: Moment,
    span: Span,
    /// How often it has written; part of what it writes.
    round: u64,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Load,
    ReadBack,
    Idle,
}

struct Runner<'a> {
    session: &'a mut Session,
    load: Load,
    geometry: Geometry,
    workers: Vec<Worker>,
    places: Places,
    until: Moment,
    measured: Measured,
}

/// Runs a load on a session.
pub fn run(session: &mut Session, load: Load) -> Result<Measured, LoadError> {
    session.tell_time();
    let namespace = session
        .controller()
        .namespaces()
        .iter()
        .find(|namespace| namespace.nsid == load.nsid)
        .ok_or(LoadError::NoNamespace { nsid: load.nsid })?;
    let geometry = namespace.geometry;
    let most = namespace.limits.transfer.min(geometry.blocks());
    if load.blocks > most || load.blocks == Blocks::ZERO {
        return Err(LoadError::TooLarge { asked: load.blocks, most });
    }
    let depth = load.depth.min(session.controller().slots()).max(1);
    let no_memory = || LoadError::NoMemory { depth: load.depth };
    let bytes = geometry.block_size().bytes_of(load.blocks).ok_or_else(no_memory)?;
    let bytes = usize::try_from(bytes.0).map_err(|_| no_memory())?;
    let places = Places::new(&load, geometry, depth);
    let mut workers = Vec::new();
    for index in 0..depth {
        let mut buffer = session.take(bytes).ok_or_else(no_memory)?;
        buffer.fill(0xA5);
        let span = places.first(index).ok_or_else(no_memory)?;
        let (data, begun) = (Some(buffer.freeze()), session.now());
        workers.push(Worker { data, begun, span, round: 0, stage: Stage::Idle });
    }
    let latency = Histogram::new_with_bounds(1, 100_000_000_000, 3)
        .map_err(|_| SessionError::Nonsense("no histogram"))?;
    let measured =
        Measured { commands: 0, bytes: 0, elapsed: Duration::ZERO, latency, failed: 0, wrong: 0 };
    let until = session.now().after(load.time);
    Runner { session, load, geometry, workers, places, until, measured }.run()
}

impl Runner<'_> {
    fn run(mut self) -> Result<Measured, LoadError> {
        let begun = self.session.now();
        for index in 0..self.workers.len() {
            self.next(index);
        }
        let mut at_work = self.workers.len();
        while at_work > 0 {
            match self.session.wait()? {
                Happened::Done { tag, result, data } => {
                    let index = usize::try_from(tag).unwrap_or(usize::MAX);
                    let now = self.session.now();
                    self.measured.failed += u64::from(result.is_err());
                    if self.landed(index, data, result.is_ok(), now) {
                        at_work -= 1;
                    }
                }
                Happened::Lost { why } => return Err(SessionError::Lost(why).into()),
                _ => {}
            }
        }
        self.measured.elapsed = self.session.now().since(begun).min(self.load.time);
        Ok(self.measured)
    }

    /// A command is over. Returns whether its worker rests now.
    fn landed(&mut self, index: usize, data: Data, is_good: bool, now: Moment) -> bool {
        let Some(worker) = self.workers.get_mut(index) else { return false };
        let came_back = match data {
            Data::Fill(buffer) => Some(buffer.freeze()),
            Data::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        if worker.stage == Stage::ReadBack
            && is_good
            && let Some(bytes) = &came_back
        {
            self.measured.wrong += wrong_blocks(bytes, worker.span, worker.round, self.geometry);
        }
        worker.data = came_back;
        if now <= self.until {
            self.measured.commands += 1;
            let moved = u64::try_from(worker.data.as_ref().map_or(0, |data| data.len()));
            self.measured.bytes += moved.unwrap_or(0);
            let nanos = u64::try_from(now.since(worker.begun).as_nanos()).unwrap_or(u64::MAX);
            self.measured.latency.saturating_record(nanos.max(1));
        }
        let was_write = worker.stage == Stage::Load && worker.round > 0 && self.load.verify;
        if was_write && is_good {
            worker.stage = Stage::ReadBack;
            let span = worker.span;
            self.submit(index, Command::Read { span });
            return false;
        }
        if now >= self.until || self.measured.commands >= self.load.commands {
            worker.stage = Stage::Idle;
            return true;
        }
        self.next(index);
        false
    }

    fn next(&mut self, index: usize) {
        let is_read = self.places.is_read(self.load.pattern);
        let Some(worker) = self.workers.get_mut(index) else { return };
        worker.span = self.places.next(index, worker.span);
        worker.stage = Stage::Load;
        let span = worker.span;
        if is_read {
            worker.round = 0;
            self.submit(index, Command::Read { span });
        } else {
            worker.round = self.places.round();
            if self.load.verify {
                let round = worker.round;
                worker.data =
                    worker.data.take().map(|data| stamp(data, span, round, self.geometry));
            }
            self.submit(index, Command::Write { span, fua: false });
        }
    }

    fn submit(&mut self, index: usize, command: Command) {
        let Some(worker) = self.workers.get_mut(index) else { return };
        worker.begun = self.session.now();
        let data = match (command, worker.data.take()) {
            // The frozen buffer is nobody else's once its write is over.
            (Command::Read { .. }, Some(data)) => match data.thaw() {
                Ok(buffer) => Data::Fill(buffer),
                Err(shared) => match self.session.take(shared.len()) {
                    Some(buffer) => Data::Fill(buffer),
                    None => Data::None,
                },
            },
            (_, Some(data)) => Data::Bytes(data),
            (_, None) => Data::None,
        };
        let tag = u64::try_from(index).unwrap_or(u64::MAX);
        let request = Request { tag, nsid: self.load.nsid, command, data };
        if self.session.submit(request).is_err() {
            // As many as there are slots, so there is always one.
            self.measured.failed += 1;
        }
    }
}

/// Fills each block with its address and the round of its writer.
fn stamp(data: Frozen, span: Span, round: u64, geometry: Geometry) -> Frozen {
    match data.thaw() {
        Ok(mut buffer) => {
            stamp_blocks(&mut buffer, span, round, geometry);
            buffer.freeze()
        }
        Err(shared) => shared,
    }
}

fn stamp_blocks(buffer: &mut Buffer, span: Span, round: u64, geometry: Geometry) {
    let size = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
    for (block, lba) in buffer.chunks_mut(size).zip(span.start().0..) {
        for (word, place) in block.chunks_mut(8).zip(0u64..) {
            word.copy_from_slice(&word_of(lba, round, place).to_le_bytes()[..word.len()]);
        }
    }
}

fn wrong_blocks(bytes: &[u8], span: Span, round: u64, geometry: Geometry) -> u64 {
    let size = usize::try_from(geometry.block_size().bytes()).unwrap_or(usize::MAX);
    let is_wrong = |block: &[u8], lba: u64| {
        let words = block.chunks(8).zip(0u64..);
        words.into_iter().any(|(word, place)| word != word_of(lba, round, place).to_le_bytes())
    };
    let blocks = bytes.chunks(size).zip(span.start().0..);
    blocks.map(|(block, lba)| u64::from(is_wrong(block, lba))).sum()
}

fn word_of(lba: u64, round: u64, place: u64) -> u64 {
    mix(lba ^ round.rotate_left(32) ^ (place << 48))
}

/// A permutation of 64-bit numbers without visible order.
fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Where commands go. With verification each worker has its own part of the namespace, so that no
/// write meets another one.
struct Places {
    blocks: u64,
    /// Command-sized places in the namespace, or in a worker's part of it.
    count: u64,
    parts: bool,
    sequential: bool,
    cursor: u64,
    state: u64,
    rounds: u64,
}

impl Places {
    fn new(load: &Load, geometry: Geometry, depth: u32) -> Places {
        let all = geometry.blocks().0 / load.blocks.0;
        let count = if load.verify { all / u64::from(depth) } else { all };
        Places {
            blocks: load.blocks.0,
            count: count.max(1),
            parts: load.verify,
            sequential: matches!(load.pattern, Pattern::Read | Pattern::Write),
            cursor: 0,
            state: load.seed,
            rounds: 0,
        }
    }

    fn first(&self, index: u32) -> Option<Span> {
        let base = if self.parts { u64::from(index) * self.count } else { 0 };
        Span::new(Lba(base * self.blocks), Blocks(self.blocks))
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(1);
        mix(self.state)
    }

    fn round(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    fn is_read(&mut self, pattern: Pattern) -> bool {
        match pattern {
            Pattern::RandomRead | Pattern::Read => true,
            Pattern::RandomWrite | Pattern::Write => false,
            Pattern::RandomMix { reads } => self.random() % 100 < u64::from(reads),
        }
    }

    fn next(&mut self, index: usize, now: Span) -> Span {
        let place = if self.sequential {
            self.cursor += 1;
            self.cursor % self.count
        } else {
            self.random() % self.count
        };
        let index = u64::try_from(index).unwrap_or(0);
        let base = if self.parts { index * self.count } else { 0 };
        Span::new(Lba((base + place) * self.blocks), Blocks(self.blocks)).unwrap_or(now)
    }
}
