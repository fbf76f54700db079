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

use super::Options;
use super::pool::rig::{Rig, Until};
use super::pool::{Random, read, write};
use crate::figure::{Figure, Target};
use servers::{CLIENT_CORE, Kind, Running, SERVER_CORE};

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
    let time = Duration::from_millis(if options.quick { 300 } else { 1000 });
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let mut table = Table::default();
    let mut idle = f64::NAN;
    for kind in Kind::ALL {
        let server = Running::start(*kind, folder.path())
            .with_context(|| format!("cannot start {}", kind.name()))?;
        fill(&server).context("cannot fill it")?;
        if *kind == Kind::OursMemory {
            idle = closely(&server, &mut table, options, time)?;
            continue;
        }
        for shape in SHAPES {
            let rounds = if options.quick { 1 } else { ROUNDS };
            let (mut seen, mut bare) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                seen.push(server.measure(*shape, time)?);
                if *kind == Kind::OursFile && shape.is_compared() {
                    bare.push(bare_file(&servers::file_in(folder.path()), *shape, time)?);
                }
            }
            table.add(kind.name(), *shape, median(seen)?);
            if !bare.is_empty() {
                table.add(BARE_FILE, *shape, median(bare)?);
            }
        }
    }
    table.print();
    Ok(figures(&table, idle))
}

/// Writes all of it: memory that was never written is not memory yet, and whoever writes to it
/// first waits until it is.
fn fill(server: &Running) -> Result<()> {
    let commands = ratio(servers::BYTES) / ratio(u64::try_from(FILL.bytes)?);
    let mut time = Duration::from_secs(1);
    while server.measure(FILL, time)?.iops * time.as_secs_f64() < commands {
        time *= 2;
    }
    Ok(())
}

/// Every number is the median of so many; with `--quick` only those that are compared closely.
const ROUNDS: usize = 3;

/// Measures our target beside bare sockets; returns what it uses when idle.
fn closely(server: &Running, table: &mut Table, options: Options, time: Duration) -> Result<f64> {
    for shape in SHAPES {
        let (mut ours, mut ping_pongs, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            // In turns, so that whatever else the machine does meets all alike.
            ping_pongs.push(bare(*shape, Sending::EachAlone, time)?);
            ours.push(server.measure(*shape, time)?);
            streams.push(bare(*shape, Sending::Together, time)?);
        }
        table.add(Kind::OursMemory.name(), *shape, median(ours)?);
        table.add(PING_PONG, *shape, median(ping_pongs)?);
        table.add(STREAM, *shape, median(streams)?);
        if let Some(client) = options.spdk_perf {
            table.add(WITH_SPDK, *shape, server.measure_with(client, *shape, time)?);
        }
    }
    server.idle(Duration::from_secs(if options.quick { 2 } else { 5 }))
}

fn median(mut seen: Vec<Seen>) -> Result<Seen> {
    seen.sort_by(|one, other| one.iops.total_cmp(&other.iops));
    seen.get(seen.len() / 2).copied().context("nothing was measured")
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
        ping_pong::answer(&listener, sizes, sending)
    });
    let client = std::thread::spawn(move || {
        reactor::pin_to_core(CLIENT_CORE)?;
        ping_pong::ask(address, sizes, sending, (shape.depth, time))
    });
    let panicked = |_| anyhow::anyhow!("a ping-pong thread panicked");
    let seen = client.join().map_err(panicked)?.context("cannot ask")?;
    server.join().map_err(panicked)?.context("cannot answer")?;
    let iops = ratio(seen.answers) / seen.elapsed.as_secs_f64();
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

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people to read")]
fn ratio(count: u64) -> f64 {
    count as f64
}

/// Everything that was measured.
#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, Shape, Seen)>,
}

impl Table {
    fn add(&mut self, server: &'static str, shape: Shape, seen: Seen) {
        self.rows.push((server, shape, seen));
    }

    fn get(&self, server: &str, shape: Shape) -> Option<Seen> {
        let found = self.rows.iter().find(|row| row.0 == server && row.1 == shape);
        found.map(|row| row.2)
    }

    #[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
    fn print(&self) {
        let mut text = format!(
            "{:18} {:10} {:>7} {:>4} {:>10} {:>9} {:>9} {:>9} {:>12}\n",
            "server", "what", "bytes", "qd", "IOPS", "MiB/s", "p50 us", "p99 us", "IOPS/core"
        );
        for (server, Shape { rw, bytes, depth }, seen) in &self.rows {
            let volume = seen.iops * ratio(u64::try_from(*bytes).unwrap_or(0)) / 1_048_576.0;
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

fn figures(table: &Table, idle: f64) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |name: String, value: f64, unit: &'static str, target: Target| {
        figures.push(Figure { name, value, unit, target });
    };
    let iops = |server: &str, shape: Shape| table.get(server, shape).map_or(f64::NAN, |s| s.iops);
    for shape in SHAPES {
        let label = format!("{}-{}-qd{}", shape.rw.flag(), shape.bytes, shape.depth);
        let ours = iops(Kind::OursMemory.name(), *shape);
        let share = |of| 100.0 * ours / iops(of, *shape);
        let target = if shape.depth == 1 { Target::Watched } else { Target::AtLeast(90.0) };
        add(format!("nvme-of-ping-pong-{label}"), share(PING_PONG), "%", target);
        add(format!("nvme-of-stream-{label}"), share(STREAM), "%", Target::Watched);
        if let Some(seen) = table.get(WITH_SPDK, *shape) {
            add(format!("nvme-spdk-client-{label}"), seen.iops, "IOPS", Target::Watched);
        }
        if shape.is_compared() {
            for (us, them) in [
                (Kind::OursMemory, Kind::NbdkitMemory),
                (Kind::OursMemory, Kind::QemuMemory),
                (Kind::OursFile, Kind::QemuFile),
                (Kind::OursFile, Kind::NbdkitFile),
                (Kind::OursFile, Kind::NbdkitCached),
            ] {
                let times = iops(us.name(), *shape) / iops(them.name(), *shape);
                let name = format!("nvme-over-{}-{label}", them.name().replace(' ', "-"));
                // What only reaches the page cache is another thing than what reaches the disk.
                let like = them != Kind::NbdkitCached;
                add(name, times, "x", if like { Target::AtLeast(3.0) } else { Target::Watched });
            }
            let share = 100.0 * iops(Kind::OursFile.name(), *shape) / iops(BARE_FILE, *shape);
            add(format!("nvme-of-bare-file-{label}"), share, "%", Target::Watched);
        }
        if shape.depth == 1 {
            let p50 = |server| table.get(server, *shape).map_or(f64::NAN, |seen| seen.p50);
            let more = p50(Kind::OursMemory.name()) - p50(PING_PONG);
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
            ("nvme-over-nbdkit-file-randwrite-4096-qd32", 0.9, false),
            ("nvme-of-bare-file-randwrite-4096-qd32", 90.0, true),
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
