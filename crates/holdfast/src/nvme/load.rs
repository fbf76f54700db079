//! A load on a namespace, measured; on a volume it follows its target.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::engine::client::perf::{self, Load, Measured, Pattern};
use ::engine::client::{Session, SessionError, pin_to_core};
use anyhow::{Context, Result};
use block::Blocks;
use clap::{Args, ValueEnum};
use model::Size;
use serde_json::{Value, json};

use super::{ConnectArgs, Whole};
use crate::arg_parsers::seconds;

/// A load as typed.
#[derive(Args)]
pub(crate) struct Work {
    /// Which namespace
    #[arg(long, value_name = "N", default_value_t = 1)]
    nsid: u32,
    /// What to do
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    rw: Rw,
    /// Reads in a hundred commands, for randrw
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = 50,
        value_parser = clap::value_parser!(u8).range(0..=100)
    )]
    reads: u8,
    /// Bytes of one command
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    bs: Size,
    /// Commands at work at once, over all queues
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    qd: u32,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = seconds)]
    time: Duration,
    /// Write what can be recognised, and read every write back. Overwrites the namespace
    #[arg(long)]
    verify: bool,
    /// For the random places
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Core to run on
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rw {
    Randread,
    Randwrite,
    Randrw,
    Read,
    Write,
}

/// A place to measure that was not typed.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) nqn: String,
    pub(crate) host_nqn: String,
    pub(crate) json: bool,
}

/// How often a place that does not answer is looked for again.
const AGAIN: Duration = Duration::from_millis(250);

/// Puts a load on a subsystem that is known otherwise, and follows it as a host does: when its path
/// is lost, `find` says where it is now, again and again for so long.
pub(crate) fn measure(
    place: &Place,
    work: &Work,
    patience: Duration,
    mut find: impl FnMut() -> Result<Place>,
) -> Result<()> {
    let whole =
        |place: &Place| Whole { reach: ConnectArgs::to(place), nqn: place.nqn.clone(), queues: 1 };
    let mut follow = |why: &str| {
        say(&format!("the path was lost ({why}); looking for the volume"));
        let begun = Instant::now();
        loop {
            let next = find().and_then(|place| {
                let session = work.connect(&whole(&place))?;
                work.load(&session)?;
                Ok((place.address, session))
            });
            match next {
                Ok((address, session)) => {
                    let waited = begun.elapsed().as_secs_f64();
                    say(&format!("the volume is at {address} after {waited:.1} s"));
                    return Ok(session);
                }
                Err(error) if begun.elapsed() >= patience => {
                    return Err(SessionError::Lost(format!(
                        "the path was lost ({why}), and in {} s no other was found: {error:#}",
                        patience.as_secs()
                    )));
                }
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    };
    measured(&whole(place), work, Some(&mut follow))
}

/// Tells the user what happens meanwhile. That nobody listens is no reason to end a load.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// What a load that reads every write again has met.
pub(crate) struct Seen {
    pub(crate) commands: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
    pub(crate) longest: Duration,
}

/// Writes what can be recognised and reads every write back.
pub(crate) fn verified(place: &Place, time: Duration) -> Result<Seen> {
    let mut session = ConnectArgs::to(place).connect(&place.nqn, 1, 17)?;
    let load = Load {
        nsid: 1,
        pattern: Pattern::RandomMix { reads: 30 },
        blocks: Blocks(1),
        depth: 16,
        time,
        commands: u64::MAX,
        verify: true,
        seed: 1,
    };
    let measured = perf::run(&mut session, load)?;
    session.close()?;
    let Measured { failed, wrong, .. } = measured;
    let longest = Duration::from_nanos(measured.latency.max());
    Ok(Seen { commands: measured.commands, failed, wrong, longest })
}

/// Puts a load on a subsystem and prints what was seen.
pub(super) fn measured(
    whole: &Whole,
    work: &Work,
    follow: Option<&mut perf::Reconnect<'_>>,
) -> Result<()> {
    if let Some(core) = work.core {
        pin_to_core(core).with_context(|| format!("--core {core} is not a core of ours"))?;
    }
    let mut session = work.connect(whole)?;
    let load = work.load(&session)?;
    let before = cpu_time();
    let follows = follow.is_some();
    let measured = match follow {
        Some(follow) => perf::run_following(&mut session, load, follow)?,
        None => perf::run(&mut session, load)?,
    };
    let cpu = cpu_time().saturating_sub(before);
    // All is measured by now; a target that goes at this moment takes nothing away from it.
    if let Err(error) = session.close()
        && !follows
    {
        return Err(error.into());
    }
    let value = summary(&measured, cpu);
    whole.reach.print(&value, |out| print_summary(out, &measured, cpu))?;
    anyhow::ensure!(measured.failed == 0, "{} commands failed", measured.failed);
    anyhow::ensure!(measured.wrong == 0, "{} blocks held wrong data", measured.wrong);
    Ok(())
}

impl Work {
    fn connect(&self, whole: &Whole) -> Result<Session> {
        let queues = whole.queues.max(1);
        // One entry of a queue always stays empty.
        let depth = self.qd.div_ceil(queues.into()).saturating_add(1);
        let depth = u16::try_from(depth).context("--qd is too large; try --queues with it")?;
        let bytes = usize::try_from(self.bs.bytes().0).unwrap_or(usize::MAX);
        whole.reach.connect_for((self.qd, bytes), &whole.nqn, (queues, depth.max(2)))
    }

    fn load(&self, session: &Session) -> Result<Load> {
        let mut namespaces = session.controller().namespaces().iter();
        let namespace = namespaces
            .find(|namespace| namespace.nsid == self.nsid)
            .with_context(|| format!("--nsid {} is not served here", self.nsid))?;
        let block_size = namespace.geometry.block_size();
        let blocks = block_size
            .blocks_of(self.bs.bytes())
            .with_context(|| format!("--bs must be a multiple of {block_size}, such as 4KiB"))?;
        let pattern = match self.rw {
            Rw::Randread => Pattern::RandomRead,
            Rw::Randwrite => Pattern::RandomWrite,
            Rw::Randrw => Pattern::RandomMix { reads: self.reads },
            Rw::Read => Pattern::Read,
            Rw::Write => Pattern::Write,
        };
        Ok(Load {
            nsid: self.nsid,
            pattern,
            blocks,
            depth: self.qd,
            time: self.time,
            commands: u64::MAX,
            verify: self.verify,
            seed: self.seed,
        })
    }
}

const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

fn summary(measured: &Measured, cpu: Duration) -> Value {
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    let mut latency = serde_json::Map::new();
    for (name, percentile) in PERCENTILES {
        let nanos = measured.latency.value_at_percentile(percentile);
        latency.insert(name.into(), json!(micros(nanos)));
    }
    json!({
        "commands": measured.commands,
        "seconds": seconds,
        "iops": per_second(measured.commands, seconds),
        "bytes_per_second": per_second(measured.bytes, seconds),
        "latency_us": latency,
        "cpu": cpu.as_secs_f64() / seconds,
        "failed": measured.failed,
        "wrong": measured.wrong,
        "longest_stall_ms": measured.longest_stall.as_millis(),
        "reconnects": measured.reconnects,
        "resent": measured.resent,
    })
}

fn print_summary(out: &mut dyn Write, measured: &Measured, cpu: Duration) -> std::io::Result<()> {
    let seconds = measured.elapsed.as_secs_f64().max(1e-9);
    writeln!(
        out,
        "{:.0} IOPS, {:.1} MiB/s, {} commands in {seconds:.2} s, {:.0}% of a core",
        per_second(measured.commands, seconds),
        per_second(measured.bytes, seconds) / 1_048_576.0,
        measured.commands,
        100.0 * cpu.as_secs_f64() / seconds,
    )?;
    write!(out, "latency in µs:")?;
    for (name, percentile) in PERCENTILES {
        write!(out, " {name} {:.1}", micros(measured.latency.value_at_percentile(percentile)))?;
    }
    writeln!(out, ", most {:.1}", micros(measured.latency.max()))?;
    if measured.reconnects > 0 {
        writeln!(
            out,
            "longest stall {:.2} s; connected anew {} times, {} commands sent again",
            measured.longest_stall.as_secs_f64(),
            measured.reconnects,
            measured.resent
        )?;
    }
    Ok(())
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people to read")]
fn per_second(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people to read")]
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1000.0
}

/// What this process has used so far.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let whole = Duration::from_secs(u64::try_from(now.tv_sec).unwrap_or(0));
    whole + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}
