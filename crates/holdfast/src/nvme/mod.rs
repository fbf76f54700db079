//! `holdfast nvme`: look at NVMe/TCP targets, ours or others, measure them, reserve namespaces.

mod reservation;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use ::engine::client::perf::{Load, Measured, Pattern, run};
use ::engine::client::{Session, pin_to_core};
use ::nvme::auth::{Accepted, Keys, Secret};
use ::nvme::initiator::{Association, Host, Namespace, Options};
use ::nvme::pdu::Digests;
use ::nvme::wire::Nqn;
use anyhow::{Context, Result};
use block::{Blocks, Bytes};
use clap::{Args, Subcommand, ValueEnum};
use model::Size;
use serde_json::{Value, json};

use crate::typed::secret;

/// Commands of the initiator.
#[derive(Subcommand)]
pub(crate) enum Typed {
    /// List what a target serves, and where
    Discover(Discover),
    /// Connect with all queues, read one block of each namespace, disconnect
    ConnectTest(Whole),
    /// Show the controller and its namespaces
    Identify(Whole),
    /// Put a load on a namespace and measure it
    Perf(Perf),
    /// Register, take, give up and show the reservation of a namespace
    #[command(subcommand)]
    Reservation(reservation::Typed),
}

/// How to reach a target, and as whom.
#[derive(Args)]
pub(crate) struct Reach {
    /// Where the target listens
    #[arg(value_name = "ADDR:PORT")]
    address: SocketAddr,
    /// Our name
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.io.holdfast:cli")]
    host_nqn: String,
    /// Our secret, if the target wants to see one: DHHC-1:… or @FILE
    #[arg(long, value_name = "SECRET", value_parser = secret)]
    secret: Option<Secret>,
    /// The secret that the target must prove to know: DHHC-1:… or @FILE
    #[arg(long, value_name = "SECRET", value_parser = secret, requires = "secret")]
    controller_secret: Option<Secret>,
    /// Protect headers with a checksum
    #[arg(long)]
    header_digest: bool,
    /// Protect data with a checksum
    #[arg(long)]
    data_digest: bool,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    Text,
    /// For machines
    Json,
}

/// Options of `nvme discover`.
#[derive(Args)]
pub(crate) struct Discover {
    #[command(flatten)]
    reach: Reach,
}

/// Options of commands on one subsystem.
#[derive(Args)]
pub(crate) struct Whole {
    #[command(flatten)]
    reach: Reach,
    /// The subsystem
    #[arg(long, value_name = "NQN")]
    nqn: String,
    /// I/O queues to connect
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    queues: u16,
}

/// Options of `nvme perf`.
#[derive(Args)]
pub(crate) struct Perf {
    #[command(flatten)]
    whole: Whole,
    #[command(flatten)]
    work: Work,
}

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
    /// For how many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    time: f64,
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

impl Typed {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Typed::Discover(typed) => discover(&typed),
            Typed::ConnectTest(typed) => connect_test(&typed),
            Typed::Identify(typed) => identify(&typed),
            Typed::Perf(typed) => perf(&typed.whole, &typed.work),
            Typed::Reservation(typed) => typed.run(),
        }
    }
}

impl Reach {
    /// Without secrets and digests.
    fn to(place: &Place) -> Reach {
        Reach {
            address: place.address,
            host_nqn: place.host_nqn.clone(),
            secret: None,
            controller_secret: None,
            header_digest: false,
            data_digest: false,
            output: if place.json { Output::Json } else { Output::Text },
        }
    }

    fn connect(&self, nqn: &str, queues: u16, depth: u16) -> Result<Session> {
        self.connect_for((0, 0), nqn, (queues, depth))
    }

    /// With memory for so many commands of that size at once.
    fn connect_for(
        &self,
        (count, bytes): (u32, usize),
        nqn: &str,
        (queues, depth): (u16, u16),
    ) -> Result<Session> {
        let name = |flag: &str, name: &str| {
            Nqn::new(name).with_context(|| format!("{flag} {name:?} is not an NQN"))
        };
        let subsystem = name("--nqn", nqn)?;
        let host = Host { nqn: name("--host-nqn", &self.host_nqn)?, id: host_id(&self.host_nqn) };
        let keys = self
            .secret
            .clone()
            .map(|host| Keys { host, controller: self.controller_secret.clone() });
        let digests = Digests { header: self.header_digest, data: self.data_digest };
        let options =
            Options { digests, io_queues: queues, queue_entries: depth, ..Options::default() };
        let association =
            Association { host, subsystem, keys, accepted: Accepted::default(), options };
        Session::connect_for(count, bytes, self.address, association)
            .with_context(|| format!("cannot use {nqn} at {}", self.address))
    }

    fn print(
        &self,
        value: &Value,
        text: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match self.output {
            Output::Json => writeln!(out, "{value}")?,
            Output::Text => text(&mut out)?,
        }
        Ok(())
    }
}

/// The same for the same name, so that reservations of this host stay its own.
fn host_id(name: &str) -> [u8; 16] {
    Nqn::new(name).map_or([1; 16], |name| ::engine::serve::identity_of(&name, 0).uuid)
}

fn discover(typed: &Discover) -> Result<()> {
    let mut session = typed.reach.connect(Nqn::DISCOVERY, 0, 32)?;
    let entries = session.discover()?;
    session.close()?;
    let value: Vec<Value> = entries
        .iter()
        .map(|entry| {
            json!({
                "subsystem": entry.subsystem.as_str(),
                "address": entry.address.to_string(),
                "port": entry.port,
                "discovery": entry.is_discovery,
                "tls": entry.needs_tls,
            })
        })
        .collect();
    typed.reach.print(&value.into(), |out| {
        for entry in entries.iter().filter(|entry| !entry.is_discovery) {
            let at = SocketAddr::new(entry.address, entry.port);
            writeln!(out, "{}  {at}", entry.subsystem)?;
        }
        Ok(())
    })
}

fn identify(typed: &Whole) -> Result<()> {
    let session = typed.reach.connect(&typed.nqn, typed.queues, 32)?;
    let info = session.controller().info().context("the controller says nothing about itself")?;
    let groups = session.controller().ana();
    let state = |namespace: &Namespace| {
        groups.map_or("none".into(), |log| format!("{:?}", log.state(namespace.ana_group)))
    };
    let namespaces: Vec<Value> = session
        .controller()
        .namespaces()
        .iter()
        .map(|namespace| {
            json!({
                "nsid": namespace.nsid,
                "bytes": namespace.geometry.bytes().0,
                "block": namespace.geometry.block_size().bytes(),
                "ana": state(namespace),
                "uuid": namespace.ids.uuid.map(hex),
            })
        })
        .collect();
    let value = json!({
        "cntlid": info.cntlid,
        "serial": info.serial,
        "model": info.model,
        "firmware": info.firmware,
        "max_transfer": info.max_transfer,
        "queue_entries": info.queue_entries,
        "capsule_data": info.capsule_data,
        "io_queues": info.io_queues,
        "namespaces": namespaces,
    });
    typed.reach.print(&value, |out| {
        writeln!(
            out,
            "controller {}  {} {} ({})",
            info.cntlid, info.model, info.firmware, info.serial
        )?;
        writeln!(
            out,
            "  {} I/O queues of {} entries, transfers up to {}, {} in capsules",
            info.io_queues,
            info.queue_entries,
            Bytes(info.max_transfer.into()),
            Bytes(info.capsule_data.into()),
        )?;
        for namespace in session.controller().namespaces() {
            let geometry = namespace.geometry;
            writeln!(
                out,
                "namespace {}  {} in blocks of {}, ANA {}",
                namespace.nsid,
                geometry.bytes(),
                geometry.block_size(),
                state(namespace),
            )?;
        }
        Ok(())
    })?;
    Ok(session.close()?)
}

fn connect_test(typed: &Whole) -> Result<()> {
    let mut session = typed.reach.connect(&typed.nqn, typed.queues, 32)?;
    let nsids: Vec<u32> =
        session.controller().namespaces().iter().map(|namespace| namespace.nsid).collect();
    for nsid in &nsids {
        let load = Load {
            nsid: *nsid,
            pattern: Pattern::Read,
            blocks: Blocks(1),
            depth: 1,
            time: Duration::from_secs(30),
            commands: 1,
            verify: false,
            seed: 0,
        };
        let seen = run(&mut session, load).with_context(|| format!("namespace {nsid}"))?;
        anyhow::ensure!(seen.failed == 0, "namespace {nsid} cannot be read");
    }
    session.close()?;
    let value = json!({ "ok": true, "namespaces": nsids });
    typed.reach.print(&value, |out| writeln!(out, "ok: {} namespaces read", nsids.len()))
}

/// A place to measure that was not typed.
pub(crate) struct Place {
    pub(crate) address: SocketAddr,
    pub(crate) nqn: String,
    pub(crate) host_nqn: String,
    pub(crate) json: bool,
}

/// Puts a load on a subsystem that is known otherwise.
pub(crate) fn measure(place: Place, work: &Work) -> Result<()> {
    perf(&Whole { reach: Reach::to(&place), nqn: place.nqn, queues: 1 }, work)
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
    let mut session = Reach::to(place).connect(&place.nqn, 1, 17)?;
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
    let measured = run(&mut session, load)?;
    session.close()?;
    let Measured { failed, wrong, .. } = measured;
    let longest = Duration::from_nanos(measured.latency.max());
    Ok(Seen { commands: measured.commands, failed, wrong, longest })
}

fn perf(whole: &Whole, typed: &Work) -> Result<()> {
    if let Some(core) = typed.core {
        pin_to_core(core).with_context(|| format!("--core {core} is not a core of ours"))?;
    }
    let reach = &whole.reach;
    let queues = whole.queues.max(1);
    // One entry of a queue always stays empty.
    let depth = typed.qd.div_ceil(queues.into()).saturating_add(1);
    let depth = u16::try_from(depth).context("--qd is too large; try --queues with it")?;
    let bytes = usize::try_from(typed.bs.bytes().0).unwrap_or(usize::MAX);
    let session = reach.connect_for((typed.qd, bytes), &whole.nqn, (queues, depth.max(2)));
    let mut session = session?;
    let load = typed.load(&session)?;
    let before = cpu_time();
    let measured = run(&mut session, load)?;
    let cpu = cpu_time().saturating_sub(before);
    session.close()?;
    let value = summary(&measured, cpu);
    reach.print(&value, |out| print_summary(out, &measured, cpu))?;
    anyhow::ensure!(measured.failed == 0, "{} commands failed", measured.failed);
    anyhow::ensure!(measured.wrong == 0, "{} blocks held wrong data", measured.wrong);
    Ok(())
}

impl Work {
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
        let time = Duration::try_from_secs_f64(self.time)
            .with_context(|| format!("--time {} is not a number of seconds", self.time))?;
        Ok(Load {
            nsid: self.nsid,
            pattern,
            blocks,
            depth: self.qd,
            time,
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
    writeln!(out, ", most {:.1}", micros(measured.latency.max()))
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

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}
