//! What was done and how long it took: counters of one target, child, replica or disk.
//!
//! They begin at zero, only grow, and cost no memory beyond their own: counting is part of the I/O
//! path.

use std::time::Duration;

use block::{Command, Completion, IoError};

/// Buckets of a histogram: bucket `n` counts those that took less than 2^n microseconds and not
/// less than the bucket before; the last one all that took longer.
pub const BUCKETS: usize = 28;

/// What sort of command is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpClass {
    /// Read, or compare.
    Read,
    /// Write.
    Write,
    /// Deallocate, or write zeroes.
    Discard,
    /// Flush.
    Flush,
}

impl OpClass {
    /// The sort of a block command.
    pub fn of(command: Command) -> OpClass {
        match command {
            Command::Write { .. } => OpClass::Write,
            Command::Discard { .. } | Command::WriteZeroes { .. } => OpClass::Discard,
            Command::Flush => OpClass::Flush,
            Command::Read { .. } | Command::Compare { .. } => OpClass::Read,
        }
    }
}

/// Commands of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// How many ended well.
    pub commands: u64,
    /// What they moved.
    pub bytes: u64,
    /// How many ended with an error.
    pub errors: u64,
    /// How many of those because blocks were not what was written.
    pub checksums: u64,
    /// What those that ended well took together, in microseconds.
    pub micros: u64,
    /// How many took how long.
    pub buckets: [u64; BUCKETS],
}

/// The counters of one thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads.
    pub read: Counter,
    /// Writes.
    pub write: Counter,
    /// Deallocations and writes of zeroes.
    pub discard: Counter,
    /// Flushes.
    pub flush: Counter,
    /// How many commands had to wait for a limit.
    pub throttled: u64,
}

/// What has to be remembered of a command until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTimer {
    sort: OpClass,
    bytes: u64,
    begun: block::Instant,
}

impl OpTimer {
    /// A block command that begins now.
    pub fn new(command: Command, begun: block::Instant) -> OpTimer {
        let blocks = command.span().map_or(0, |span| span.len().0);
        OpTimer::of(OpClass::of(command), blocks.saturating_mul(4096), begun)
    }

    /// Something of this sort that begins now.
    pub fn of(sort: OpClass, bytes: u64, begun: block::Instant) -> OpTimer {
        OpTimer { sort, bytes, begun }
    }

    /// How long it has been at work.
    pub fn age(&self, now: block::Instant) -> Duration {
        now.since(self.begun)
    }
}

/// Commands that ended within a while, and how many of them were slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// All of them.
    pub all: u64,
    /// Those that took a second and more.
    pub slow: u64,
    /// Those that took eight seconds and more.
    pub endless: u64,
}

/// What ended in the last five to ten minutes: in this window of five and the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    since: block::Instant,
    now: WindowCounts,
    before: WindowCounts,
}

/// How long a window is.
const WINDOW: Duration = Duration::from_mins(5);

impl SlidingWindow {
    /// A command has ended that took so long.
    pub fn ended(&mut self, took: Duration, now: block::Instant) {
        if now.since(self.since) >= WINDOW {
            let is_next = now.since(self.since) < WINDOW * 2;
            self.before = if is_next { self.now } else { WindowCounts::default() };
            (self.now, self.since) = (WindowCounts::default(), now);
        }
        // As the buckets of counters: powers of two, in microseconds.
        self.now.all += 1;
        self.now.slow += u64::from(took >= Duration::from_micros(1 << 20));
        self.now.endless += u64::from(took >= Duration::from_micros(1 << 23));
    }

    /// What is still of interest.
    pub fn seen(&self, now: block::Instant) -> WindowCounts {
        let age = now.since(self.since);
        if age >= WINDOW * 2 {
            return WindowCounts::default();
        }
        let before = if age < WINDOW { self.before } else { WindowCounts::default() };
        WindowCounts {
            all: self.now.all + before.all,
            slow: self.now.slow + before.slow,
            endless: self.now.endless + before.endless,
        }
    }
}

impl Counters {
    /// A command has ended.
    pub fn ended(&mut self, counted: OpTimer, result: Completion, now: block::Instant) {
        let counter = match counted.sort {
            OpClass::Read => &mut self.read,
            OpClass::Write => &mut self.write,
            OpClass::Discard => &mut self.discard,
            OpClass::Flush => &mut self.flush,
        };
        counter.ended(counted, result, now);
    }

    /// All four sorts, with their names.
    pub fn each(&self) -> [(&'static str, &Counter); 4] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("discard", &self.discard),
            ("flush", &self.flush),
        ]
    }

    /// How many ended with an error.
    pub fn errors(&self) -> u64 {
        self.each().iter().fold(0, |sum, (_, one)| one.errors.saturating_add(sum))
    }
}

impl Counter {
    fn ended(&mut self, counted: OpTimer, result: Completion, now: block::Instant) {
        if let Err(fault) = result {
            self.errors = self.errors.saturating_add(1);
            let is_wrong = matches!(fault, IoError::Checksum { .. });
            self.checksums = self.checksums.saturating_add(u64::from(is_wrong));
            return;
        }
        let micros = u64::try_from(counted.age(now).as_micros()).unwrap_or(u64::MAX);
        self.commands = self.commands.saturating_add(1);
        self.bytes = self.bytes.saturating_add(counted.bytes);
        self.micros = self.micros.saturating_add(micros);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(micros)) {
            *bucket = bucket.saturating_add(1);
        }
    }
}

fn bucket_of(micros: u64) -> usize {
    let bits = u64::BITS - micros.leading_zeros();
    usize::try_from(bits).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_is_forgotten_after_two_windows() {
        let at = |minutes| block::Instant::since_start(Duration::from_mins(minutes));
        let seconds = Duration::from_secs;
        let share = |all, slow, endless| WindowCounts { all, slow, endless };
        let mut lately = SlidingWindow::default();
        lately.ended(seconds(0), at(1));
        lately.ended(seconds(2), at(2));
        lately.ended(seconds(9), at(4));
        assert_eq!(lately.seen(at(4)), share(3, 2, 1));
        assert_eq!(lately.seen(at(9)), share(3, 2, 1));
        assert_eq!(lately.seen(at(10)), share(0, 0, 0));
        // The next window begins with what ends first in it.
        lately.ended(seconds(0), at(6));
        assert_eq!(lately.seen(at(10)), share(4, 2, 1));
        assert_eq!(lately.seen(at(11)), share(1, 0, 0));
        lately.ended(seconds(3), at(30));
        assert_eq!(lately.seen(at(30)), share(1, 1, 0));
    }
}
