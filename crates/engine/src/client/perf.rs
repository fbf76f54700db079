//! A load on one namespace, measured: what `fio` does for kernel devices.
//!
//! A load that follows its namespace ([`run_following`]) does what a host does when its path is
//! lost: commands that were under way are sent again by the next path. That is harmless, since no
//! two of its commands that write are ever at work in one place.
//!
//! ```text
//!   Idle ──► Load ──done──► ReadBack ──done──► Load or Idle
//!              │  ▲            │  ▲
//!        path failed │   path failed │
//!              ▼  │            ▼  │
//!            held: sent again as it was, by the next session
//! ```

mod pattern;

use std::time::Duration;

use block::{Blocks, Command, Completion, ErrorClass, Geometry, Span};
use hdrhistogram::Histogram;
use pattern::{Places, stamp, wrong_blocks};
use reactor::{MonotonicTime, SharedBuffer};

use super::session::SessionError;
use super::{ControllerEvent, Request, Session};
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
    /// The longest time in which no command completed.
    pub longest_stall: Duration,
    /// How often the namespace was connected to anew.
    pub reconnects: u64,
    /// Commands that were sent again by another path.
    pub resent: u64,
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
    /// By another path it is another namespace.
    #[error("namespace {nsid} has another size by the next path")]
    Changed {
        /// Which.
        nsid: u32,
    },
    /// The connection failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Connects anew to a namespace whose path was lost for this reason. It may take its time.
pub type Reconnect<'f> = dyn FnMut(&str) -> Result<Session, SessionError> + 'f;

/// One of the commands that are always at work.
struct Worker {
    data: Option<SharedBuffer>,
    begun: MonotonicTime,
    span: Span,
    /// How often it has written; part of what it writes.
    round: u64,
    stage: Stage,
    /// Its path failed: it is to be sent again.
    held: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Load,
    ReadBack,
    Idle,
}

struct Runner<'a, 'f> {
    session: &'a mut Session,
    follow: Option<&'a mut Reconnect<'f>>,
    load: Load,
    geometry: Geometry,
    workers: Vec<Worker>,
    places: Places,
    until: MonotonicTime,
    last_done: MonotonicTime,
    /// Commands that have not ended.
    at_work: usize,
    measured: Measured,
}

/// Runs a load on a session. When its connection is lost, so is the load.
pub fn run(session: &mut Session, load: Load) -> Result<Measured, LoadError> {
    run_with(session, load, None)
}

/// Runs a load on a session, and on the next whenever that is lost.
pub fn run_following(
    session: &mut Session,
    load: Load,
    follow: &mut Reconnect<'_>,
) -> Result<Measured, LoadError> {
    run_with(session, load, Some(follow))
}

fn run_with(
    session: &mut Session,
    load: Load,
    follow: Option<&mut Reconnect<'_>>,
) -> Result<Measured, LoadError> {
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
        workers.push(Worker { data, begun, span, round: 0, stage: Stage::Idle, held: false });
    }
    let latency = Histogram::new_with_bounds(1, 100_000_000_000, 3)
        .map_err(|_| SessionError::Nonsense("no histogram"))?;
    let measured = Measured {
        commands: 0,
        bytes: 0,
        elapsed: Duration::ZERO,
        latency,
        failed: 0,
        wrong: 0,
        longest_stall: Duration::ZERO,
        reconnects: 0,
        resent: 0,
    };
    let last_done = session.now();
    let until = last_done.after(load.time);
    let at_work = workers.len();
    let runner = Runner {
        session,
        follow,
        load,
        geometry,
        workers,
        places,
        until,
        last_done,
        at_work,
        measured,
    };
    runner.run()
}

impl Runner<'_, '_> {
    fn run(mut self) -> Result<Measured, LoadError> {
        let begun = self.session.now();
        for index in 0..self.workers.len() {
            self.next(index);
        }
        while self.at_work > 0 {
            match self.session.wait() {
                Ok(ControllerEvent::Done { tag, result, data }) => {
                    self.ended(usize::try_from(tag).unwrap_or(usize::MAX), result, data);
                }
                Ok(ControllerEvent::Lost { why }) | Err(SessionError::Lost(why)) => {
                    self.reconnect(&why)?;
                }
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            // A path that answers and carries nothing is none.
            if self.at_work > 0 && self.workers.iter().filter(|it| it.held).count() == self.at_work
            {
                self.reconnect("the target does not take commands any more")?;
            }
        }
        self.measured.elapsed = self.session.now().since(begun).min(self.load.time);
        Ok(self.measured)
    }

    fn ended(&mut self, index: usize, result: Completion, data: Data) {
        let is_path =
            |fault: block::IoError| matches!(fault.class(), ErrorClass::Path | ErrorClass::Owner);
        if let (Some(_), Some(worker)) = (&self.follow, self.workers.get_mut(index))
            && result.is_err_and(is_path)
        {
            worker.held = true;
            return;
        }
        let now = self.session.now();
        self.measured.failed += u64::from(result.is_err());
        let stall = now.since(self.last_done);
        self.measured.longest_stall = self.measured.longest_stall.max(stall);
        self.last_done = now;
        if self.landed(index, data, result.is_ok(), now) {
            self.at_work -= 1;
        }
    }

    /// Goes on by another path: what has not ended is sent again as it was.
    fn reconnect(&mut self, why: &str) -> Result<(), LoadError> {
        let Some(follow) = &mut self.follow else {
            return Err(SessionError::Lost(why.to_owned()).into());
        };
        *self.session = follow(why)?;
        self.session.tell_time();
        self.measured.reconnects += 1;
        let nsid = self.load.nsid;
        let mut found = self.session.controller().namespaces().iter();
        let found = found.find(|it| it.nsid == nsid).ok_or(LoadError::NoNamespace { nsid })?;
        if found.geometry != self.geometry {
            return Err(LoadError::Changed { nsid });
        }
        let no_memory = || LoadError::NoMemory { depth: self.load.depth };
        let bytes = self.geometry.block_size().bytes_of(self.load.blocks).ok_or_else(no_memory)?;
        let bytes = usize::try_from(bytes.0).map_err(|_| no_memory())?;
        for index in 0..self.workers.len() {
            // Buffers belong to the session that gave them.
            let mut buffer =
                self.session.take(bytes).ok_or(LoadError::NoMemory { depth: self.load.depth })?;
            buffer.fill(0xA5);
            let Some(worker) = self.workers.get_mut(index) else { continue };
            (worker.data, worker.held) = (Some(buffer.freeze()), false);
            let (span, is_write) = (worker.span, worker.stage == Stage::Load && worker.round > 0);
            if worker.stage == Stage::Idle {
                continue;
            }
            if is_write && self.load.verify {
                let round = worker.round;
                let data = worker.data.take();
                worker.data = data.map(|data| stamp(data, span, round, self.geometry));
            }
            let command =
                if is_write { Command::Write { span, fua: false } } else { Command::Read { span } };
            self.measured.resent += 1;
            self.send(index, command);
        }
        Ok(())
    }

    /// A command is over. Returns whether its worker rests now.
    fn landed(&mut self, index: usize, data: Data, is_good: bool, now: MonotonicTime) -> bool {
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
        let now = self.session.now();
        if let Some(worker) = self.workers.get_mut(index) {
            worker.begun = now;
        }
        self.send(index, command);
    }

    /// Sends a command, for the first time or again: its latency counts from the first.
    fn send(&mut self, index: usize, command: Command) {
        let Some(worker) = self.workers.get_mut(index) else { return };
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
            // As many as there are slots, so there is always one: only the path can be gone.
            match (&self.follow, self.workers.get_mut(index)) {
                (Some(_), Some(worker)) => worker.held = true,
                _ => self.measured.failed += 1,
            }
        }
    }
}
