//! The NVMe/TCP target measured: against NBD servers, and against bare sockets.
//!
//! Server and client each have a core of their own. Every number is compared only with numbers of
//! the same run: the machine may be slow or busy, the ratios should not care.
//!
//! Bare sockets are measured in two ways (see [`ping_pong`]): a ping-pong, message by message, is
//! what we are held against; a stream, which sends all that is owed at once, is the ceiling.

mod nbd;
mod servers;
mod spdk;

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use reactor::testing::ping_pong::{self, Sending, Sizes};

use super::pool::rig::{Rig, Until};
use super::pool::{Random, read, write};
use super::{Options, median, real};
use crate::figure::{Figure, Target};
use servers::{CLIENT_CORE, Kind, Running, SERVER_CORE, Storage};

/// One way of using a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rw: Rw,
    bytes: usize,
    depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rw {
    RandomRead,
    RandomWrite,
    Read,
    Write,
}

impl Shape {
    /// Whether other servers are compared by it.
    fn is_compared(self) -> bool {
        self.depth == 32
    }
}

impl Rw {
    fn flag(self) -> &'static str {
        match self {
            Rw::RandomRead => "randread",
            Rw::RandomWrite => "randwrite",
            Rw::Read => "read",
            Rw::Write => "write",
        }
    }

    fn is_read(self) -> bool {
        matches!(self, Rw::RandomRead | Rw::Read)
    }

    fn is_random(self) -> bool {
        matches!(self, Rw::RandomRead | Rw::RandomWrite)
    }
}

/// What a client saw of a server, and what the server used for it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    iops: f64,
    /// Microseconds.
    p50: f64,
    /// Microseconds; not known of everything.
    p99: Option<f64>,
    /// Cores that the server used.
    cores: Option<f64>,
}

const SHAPES: &[Shape] = &[
    Shape { rw: Rw::RandomRead, bytes: 4096, depth: 1 },
    Shape { rw: Rw::RandomRead, bytes: 4096, depth: 32 },
    Shape { rw: Rw::RandomRead, bytes: 4096, depth: 128 },
    Shape { rw: Rw::RandomWrite, bytes: 4096, depth: 1 },
    Shape { rw: Rw::RandomWrite, bytes: 4096, depth: 32 },
    Shape { rw: Rw::RandomWrite, bytes: 4096, depth: 128 },
    Shape { rw: Rw::Read, bytes: 128 * 1024, depth: 8 },
    Shape { rw: Rw::Write, bytes: 128 * 1024, depth: 8 },
];

/// How many times as much as an NBD server we want to do.
const TIMES: f64 = 3.0;
/// A server cannot do more than its disk. Where that does not give three times what another server
/// does, we want this much of what the same file gives without any server, in percent.
const OF_THE_DISK: f64 = 80.0;

const FILL: Shape = Shape { rw: Rw::Write, bytes: 128 * 1024, depth: 8 };
/// What bare sockets are called: one send a message, and one send for all that is owed.
const PING_PONG: &str = "ping-pong";
const STREAM: &str = "bare stream";
/// The file without a server, used by the same code: what the disk gives.
const BARE_FILE: &str = "bare file";
/// Our target with SPDK's client.
const WITH_SPDK: &str = "ours, spdk client";

/// What goes with the data of a command over NVMe/TCP: its capsule, and its data PDU's header.
const REQUEST_HEAD: usize = 72;
const ANSWER_HEAD: usize = 24;

/// Runs it.
pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let mut table = Table::default();
    let pace = Pace::of(options);
    let mut idle = f64::NAN;
    for storage in [Storage::Memory, Storage::File, Storage::PageCache] {
        let mut servers = Vec::new();
        for kind in Kind::ALL.iter().filter(|kind| kind.storage() == storage) {
            let server = Running::start(*kind, folder.path())
                .with_context(|| format!("cannot start {}", kind.name()))?;
            fill(&server).context("cannot fill it")?;
            servers.push(server);
        }
        for shape in SHAPES {
            for round in 0..pace.rounds {
                measure_all(&servers, (*shape, round), &pace, &mut table)?;
                bare_all(storage, (*shape, round), (&pace, folder.path()), &mut table)?;
            }
            if let (Some(client), Storage::Memory) = (options.spdk_perf, storage) {
                for server in servers.iter().filter(|server| server.kind().is_ours()) {
                    let seen = server.measure_with(client, *shape, pace.time)?;
                    table.add(WITH_SPDK, *shape, seen);
                }
            }
        }
        if let (Some(ours), Storage::Memory) = (servers.first(), storage) {
            idle = ours.idle(pace.idle)?;
        }
    }
    table.print();
    Ok(figures(&table, idle))
}

/// How long, and how often.
struct Pace {
    time: Duration,
    rounds: usize,
    idle: Duration,
}

impl Pace {
    /// Many short rounds, in which everybody has a turn: whatever else the machine does meets all
    /// alike, and a ratio is the median of the ratios of the rounds.
    fn of(options: Options) -> Pace {
        let (time, rounds, idle) = if options.quick { (120, 7, 2) } else { (400, 15, 5) };
        Pace { time: Duration::from_millis(time), rounds, idle: Duration::from_secs(idle) }
    }
}

/// One turn of every server. What is not compared has a turn in the first round only.
fn measure_all(
    servers: &[Running],
    (shape, round): (Shape, usize),
    pace: &Pace,
    table: &mut Table,
) -> Result<()> {
    for server in servers {
        let kind = server.kind();
        let is_compared = match kind {
            Kind::OursMemory => true,
            Kind::NbdkitCached => false,
            _ => shape.is_compared(),
        };
        if is_compared || round == 0 {
            table.add(kind.name(), shape, server.measure(shape, pace.time)?);
        }
    }
    Ok(())
}

/// One turn of what there is without a server.
fn bare_all(
    storage: Storage,
    (shape, round): (Shape, usize),
    (pace, folder): (&Pace, &Path),
    table: &mut Table,
) -> Result<()> {
    match storage {
        Storage::Memory => {
            table.add(PING_PONG, shape, bare(shape, Sending::EachAlone, pace.time)?);
            if round == 0 {
                table.add(STREAM, shape, bare(shape, Sending::Together, pace.time)?);
            }
        }
        Storage::File if shape.is_compared() => {
            table.add(BARE_FILE, shape, bare_file(&servers::file_in(folder), shape, pace.time)?);
        }
        Storage::File | Storage::PageCache => {}
    }
    Ok(())
}

/// Writes all of it: memory that was never written is not memory yet, and whoever writes to it
/// first waits until it is.
fn fill(server: &Running) -> Result<()> {
    let commands = real(servers::BYTES) / real(u64::try_from(FILL.bytes)?);
    let mut time = Duration::from_secs(1);
    while server.measure(FILL, time)?.iops * time.as_secs_f64() < commands {
        time *= 2;
    }
    Ok(())
}

/// Requests and answers of the same sizes over bare io_uring.
fn bare(shape: Shape, sending: Sending, time: Duration) -> Result<Seen> {
    let sizes = if shape.rw.is_read() {
        Sizes { request: REQUEST_HEAD, answer: ANSWER_HEAD + shape.bytes }
    } else {
        Sizes { request: REQUEST_HEAD + shape.bytes, answer: ANSWER_HEAD }
    };
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || {
        reactor::pin_to_core(SERVER_CORE)?;
        ping_pong::answer(&listener, sizes, sending, shape.depth)
    });
    let client = std::thread::spawn(move || {
        reactor::pin_to_core(CLIENT_CORE)?;
        ping_pong::ask(address, sizes, sending, (shape.depth, time))
    });
    let panicked = |_| anyhow::anyhow!("a ping-pong thread panicked");
    let seen = client.join().map_err(panicked)?.context("cannot ask")?;
    server.join().map_err(panicked)?.context("cannot answer")?;
    let iops = real(seen.answers) / seen.elapsed.as_secs_f64();
    let p50 = seen.median.map_or(f64::NAN, |median| median.as_secs_f64() * 1e6);
    Ok(Seen { iops, p50, p99: None, cores: None })
}

/// Blocks of 4 KiB at random places of the file, around the page cache, without a server.
fn bare_file(path: &Path, shape: Shape, time: Duration) -> Result<Seen> {
    let path = path.to_owned();
    let thread = std::thread::spawn(move || {
        reactor::pin_to_core(SERVER_CORE)?;
        let mut rig = Rig::new()?;
        let device = rig.file(&path)?;
        let mut random = Random(0x5EED);
        let next = || {
            let place = random.below(servers::BYTES / 4096);
            if shape.rw.is_read() { read(place) } else { write(place) }
        };
        let seen = rig.load(device, u64::try_from(shape.depth)?, Until::Time(time), next)?;
        Ok(Seen { iops: seen.iops(), p50: f64::NAN, p99: None, cores: None })
    });
    thread.join().map_err(|_| anyhow::anyhow!("the load on the file panicked"))?
}

/// Everything that was measured: of each server and shape, its rounds.
#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, Shape, Vec<Seen>)>,
}

impl Table {
    fn add(&mut self, server: &'static str, shape: Shape, seen: Seen) {
        match self.rows.iter_mut().find(|row| row.0 == server && row.1 == shape) {
            Some(row) => row.2.push(seen),
            None => self.rows.push((server, shape, vec![seen])),
        }
    }

    fn rounds(&self, server: &str, shape: Shape) -> &[Seen] {
        let found = self.rows.iter().find(|row| row.0 == server && row.1 == shape);
        found.map_or(&[], |row| &row.2)
    }

    /// Compares two round by round, as long as both had a turn; the median of that.
    fn compare(
        &self,
        (one, other): (&str, &str),
        shape: Shape,
        by: impl Fn(Seen, Seen) -> f64,
    ) -> f64 {
        let pairs = self.rounds(one, shape).iter().zip(self.rounds(other, shape));
        median(pairs.map(|(one, other)| by(*one, *other)))
    }

    /// How many times as many commands one does.
    fn times(&self, pair: (&str, &str), shape: Shape) -> f64 {
        self.compare(pair, shape, |one, other| one.iops / other.iops)
    }

    #[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
    fn print(&self) {
        let mut text = format!(
            "{:18} {:10} {:>7} {:>4} {:>10} {:>9} {:>9} {:>9} {:>12}\n",
            "server", "what", "bytes", "qd", "IOPS", "MiB/s", "p50 us", "p99 us", "IOPS/core"
        );
        for (server, Shape { rw, bytes, depth }, rounds) in &self.rows {
            let seen = typical(rounds);
            let volume = seen.iops * real(u64::try_from(*bytes).unwrap_or(0)) / 1_048_576.0;
            let p99 = seen.p99.map_or("-".into(), |p99| format!("{p99:.1}"));
            let per_core = match seen.cores {
                Some(cores) if cores > 0.0 => format!("{:.0}", seen.iops / cores),
                _ => "-".into(),
            };
            let p50 = if seen.p50.is_nan() { "-".into() } else { format!("{:.1}", seen.p50) };
            // Writing into a string does not fail.
            let _ = writeln!(
                text,
                "{server:18} {:10} {bytes:>7} {depth:>4} {:>10.0} {volume:>9.1} {p50:>9} {p99:>9} \
                 {per_core:>12}",
                rw.flag(),
                seen.iops
            );
        }
        println!("{text}");
    }
}

/// Of every column the median.
fn typical(rounds: &[Seen]) -> Seen {
    let all = |of: fn(&Seen) -> Option<f64>| {
        let middle = median(rounds.iter().filter_map(of));
        (!middle.is_nan()).then_some(middle)
    };
    Seen {
        iops: median(rounds.iter().map(|seen| seen.iops)),
        p50: median(rounds.iter().map(|seen| seen.p50)),
        p99: all(|seen| seen.p99),
        cores: all(|seen| seen.cores),
    }
}

fn figures(table: &Table, idle: f64) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: String, value: f64, unit: &'static str, target: Target| {
        figures.push(Figure { name, value, unit, target });
    };
    let (memory, file) = (Kind::OursMemory.name(), Kind::OursFile.name());
    for shape in SHAPES {
        let label = format!("{}-{}-qd{}", shape.rw.flag(), shape.bytes, shape.depth);
        let share = |of| 100.0 * table.times((memory, of), *shape);
        let target = if shape.depth == 1 { Target::Watched } else { Target::AtLeast(90.0) };
        add(format!("nvme-of-ping-pong-{label}"), share(PING_PONG), "%", target);
        add(format!("nvme-of-stream-{label}"), share(STREAM), "%", Target::Watched);
        for seen in table.rounds(WITH_SPDK, *shape) {
            add(format!("nvme-spdk-client-{label}"), seen.iops, "IOPS", Target::Watched);
        }
        if shape.is_compared() {
            let mut disk_is_the_limit = false;
            for them in Kind::ALL.iter().filter(|kind| !kind.is_ours()) {
                let us = if them.storage() == Storage::Memory { memory } else { file };
                let name = format!("nvme-over-{}-{label}", them.name().replace(' ', "-"));
                let target = match them.storage() {
                    Storage::Memory => Target::AtLeast(TIMES),
                    Storage::File => {
                        let possible = table.times((BARE_FILE, them.name()), *shape);
                        let is_limit = possible * OF_THE_DISK / 100.0 < TIMES;
                        disk_is_the_limit |= is_limit;
                        if is_limit { Target::Watched } else { Target::AtLeast(TIMES) }
                    }
                    // What only reaches the page cache is another thing than what reaches the disk.
                    Storage::PageCache => Target::Watched,
                };
                add(name, table.times((us, them.name()), *shape), "x", target);
            }
            let share = 100.0 * table.times((file, BARE_FILE), *shape);
            let target =
                if disk_is_the_limit { Target::AtLeast(OF_THE_DISK) } else { Target::Watched };
            add(format!("nvme-of-bare-file-{label}"), share, "%", target);
        }
        if shape.depth == 1 {
            let more = table.compare((memory, PING_PONG), *shape, |us, them| us.p50 - them.p50);
            add(format!("nvme-beyond-ping-pong-{label}"), more, "us", Target::AtMost(15.0));
        }
    }
    add("nvme-idle-core".into(), 100.0 * idle, "%", Target::AtMost(1.0));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up run: everybody does 100 a second, our target in memory 300, from a file 90.
    fn made_up() -> Vec<Figure> {
        let mut table = Table::default();
        let kinds = Kind::ALL.iter().map(|kind| kind.name());
        for server in kinds.chain([PING_PONG, STREAM, BARE_FILE]) {
            for shape in SHAPES {
                let iops = match server {
                    "ours memory" => 300.0,
                    "ours file" => 90.0,
                    "qemu-nbd file" => 20.0,
                    _ => 100.0,
                };
                let p50 = if server == PING_PONG { 10.0 } else { 26.0 };
                table.add(server, *shape, Seen { iops, p50, p99: None, cores: None });
            }
        }
        figures(&table, 0.005)
    }

    #[test]
    fn what_is_promised_is_measured() {
        let figures = made_up();
        for (name, value, met) in [
            ("nvme-over-nbdkit-memory-randread-4096-qd32", 3.0, true),
            ("nvme-over-qemu-nbd-memory-randread-4096-qd32", 3.0, true),
            ("nvme-over-nbdkit-memory-randwrite-4096-qd32", 3.0, true),
            ("nvme-over-qemu-nbd-memory-randwrite-4096-qd32", 3.0, true),
            ("nvme-over-nbdkit-file-randread-4096-qd32", 0.9, true),
            ("nvme-over-qemu-nbd-file-randread-4096-qd32", 4.5, true),
            ("nvme-of-bare-file-randread-4096-qd32", 90.0, true),
            // The disk gives as much as nbdkit does: so not three times that, but most of it.
            ("nvme-over-nbdkit-file-randwrite-4096-qd32", 0.9, true),
            ("nvme-of-bare-file-randwrite-4096-qd32", 90.0, true),
            // It gives five times what qemu-nbd does.
            ("nvme-over-qemu-nbd-file-randwrite-4096-qd32", 4.5, true),
            ("nvme-of-ping-pong-randread-4096-qd32", 300.0, true),
            ("nvme-of-ping-pong-randwrite-4096-qd32", 300.0, true),
            ("nvme-of-ping-pong-read-131072-qd8", 300.0, true),
            ("nvme-of-ping-pong-write-131072-qd8", 300.0, true),
            ("nvme-beyond-ping-pong-randread-4096-qd1", 16.0, false),
            ("nvme-beyond-ping-pong-randwrite-4096-qd1", 16.0, false),
            ("nvme-idle-core", 0.5, true),
        ] {
            let found = figures.iter().find(|figure| figure.name == name);
            let found = found.unwrap_or_else(|| panic!("there is no figure {name}"));
            assert!((found.value - value).abs() < 1e-9, "{found}");
            assert_eq!(found.met(), met, "{found}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        let all = figures(&Table::default(), f64::NAN);
        let with_target = all.iter().filter(|figure| figure.target != Target::Watched);
        assert!(with_target.clone().count() > 10);
        assert!(with_target.clone().all(|figure| !figure.met()));
    }
}
