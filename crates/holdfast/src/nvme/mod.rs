//! `holdfast nvme`: look at NVMe/TCP targets, ours or others, measure them, reserve namespaces.

mod load;
mod reservation;

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use ::engine::client::Session;
use ::engine::client::perf::{Load, Pattern, run};
use ::nvme::auth::{Accepted, Keys, Secret};
use ::nvme::initiator::{Association, Host, Namespace, Options};
use ::nvme::pdu::Digests;
use ::nvme::wire::Nqn;
use anyhow::{Context, Result};
use block::{Blocks, Bytes};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

pub(crate) use load::{Place, Seen, Work, measure, verified};

use crate::arg_parsers::secret;

/// Commands of the initiator.
#[derive(Subcommand)]
pub(crate) enum NvmeCommand {
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
    Reservation(reservation::ReservationCommand),
}

/// How to reach a target, and as whom.
#[derive(Args)]
pub(crate) struct ConnectArgs {
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
    reach: ConnectArgs,
}

/// Options of commands on one subsystem.
#[derive(Args)]
pub(crate) struct Whole {
    #[command(flatten)]
    reach: ConnectArgs,
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

impl NvmeCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            NvmeCommand::Discover(typed) => discover(&typed),
            NvmeCommand::ConnectTest(typed) => connect_test(&typed),
            NvmeCommand::Identify(typed) => identify(&typed),
            NvmeCommand::Perf(typed) => load::measured(&typed.whole, &typed.work, None),
            NvmeCommand::Reservation(typed) => typed.run(),
        }
    }
}

impl ConnectArgs {
    /// Without secrets and digests.
    fn to(place: &Place) -> ConnectArgs {
        ConnectArgs {
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

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}
