//! `holdfast engine`: the data plane of a node.

mod run;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ::engine::pools::{WrappingKey, id_of_name};
use ::engine::replication::Replication;
use ::engine::serve::{
    Backing, Config, EngineLimits, Host, Namespace, Pool, Server, Subsystem, identity_of,
};
use ::nvme::auth::Keys;
use ::nvme::pdu::Digests;
use ::nvme::wire::{AnaState, Nqn};
use anyhow::{Context, Result, bail};
use block::{BlockSize, Bytes, Geometry};
use clap::{Args, Subcommand};

pub(crate) use self::run::CLOSED;
use crate::arg_parsers::{bytes, secret};
use crate::pool::{PoolText, replica};
use crate::stop;

/// Commands of the engine.
#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, from the start to the end")]
pub(crate) enum EngineCommand {
    /// Run the engine of a node of a cluster: pools and replicas by orders over its node API
    Run(run::Run),
    /// Serve files, block devices and memory over NVMe/TCP
    Serve(Serve),
}

/// Options of `engine serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Where to listen; may be given more than once. Port 0 picks a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:4420")]
    listen: Vec<SocketAddr>,
    /// Cores to run on, one reactor each, such as `0` or `2,3`
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    cores: Vec<usize>,
    /// Open a pool: NAME=PATH[,PATH…]. With `,create` it is made if there is none, then with any of
    /// `,cluster=SIZE`, `,size=SIZE` (make the files) and `,force` (lose what is on the disks)
    #[arg(long = "pool", value_name = "NAME=PATH[,PATH…][,OPTION…]")]
    pools: Vec<PoolText>,
    /// What to serve: NQN=mem:SIZE, NQN=file:PATH or NQN=replica:POOL/NAME, then any of
    /// `,size=SIZE` (make the file or replica), `,key=FILE` (of an encrypted replica),
    /// `,block=512`, `,nsid=N`, `,ana=optimized|non-optimized|inaccessible|persistent-loss|change`
    #[arg(long = "ns", value_name = "NQN=WHAT[,OPTION…]", required = true)]
    namespaces: Vec<NamespaceText>,
    /// Let only listed hosts connect to a subsystem: NQN=HOSTNQN[,SECRET[,CONTROLLER-SECRET]], a
    /// secret being DHHC-1:… or @FILE
    #[arg(long = "host", value_name = "NQN=HOSTNQN[,SECRET]")]
    hosts: Vec<HostText>,
    /// Digests to agree to when a host asks for them
    #[arg(long, value_name = "KINDS", default_value = "header,data", value_delimiter = ',')]
    digests: Vec<DigestKind>,
    /// First and last controller id; disjoint from those of other engines that serve the same
    #[arg(long, value_name = "FIRST-LAST", default_value = "1-65519")]
    cntlids: Range,
    /// Entries of a queue that hosts may use at most
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(2..=4096)
    )]
    queue_depth: u16,
    /// Memory for the cache of each pool: checksums, and places of blocks under snapshots
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = bytes)]
    pool_cache: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DigestKind {
    /// After headers
    Header,
    /// After data
    Data,
    /// Neither
    None,
}

/// `--ns` as typed.
#[derive(Clone, Debug, PartialEq)]
struct NamespaceText {
    nqn: Nqn,
    source: Source,
    size: Option<u64>,
    block: BlockSize,
    nsid: Option<u32>,
    ana: AnaState,
    key: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Memory(u64),
    File(PathBuf),
    /// Name of the pool, name of the replica.
    Replica(String, String),
}

/// `--host` as typed.
#[derive(Clone, Debug)]
struct HostText {
    nqn: Nqn,
    host: Nqn,
    keys: Option<Keys>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Range(u16, u16);

impl EngineCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            EngineCommand::Run(typed) => typed.run(),
            EngineCommand::Serve(typed) => serve(typed),
        }
    }
}

fn serve(typed: Serve) -> Result<()> {
    let server = Server::start(typed.config()?)?;
    {
        let mut out = std::io::stdout().lock();
        for address in server.addresses() {
            writeln!(out, "listening on {address}")?;
        }
        out.flush()?;
    }
    // One thread that sleeps until a signal comes; the reactors have their own.
    let waiting = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot wait for signals")?;
    waiting.block_on(stop::asked());
    tracing::info!("stopping");
    server.stop().context("the engine did not stop cleanly")
}

impl Serve {
    fn config(self) -> Result<Config> {
        let mut subsystems: BTreeMap<Nqn, Subsystem> = BTreeMap::new();
        let mut pools = BTreeMap::new();
        for text in &self.pools {
            if pools.insert(text.name.clone(), text.pool()?).is_some() {
                bail!("--pool gives pool {:?} twice", text.name);
            }
        }
        for text in self.namespaces {
            let cntlids = Some((self.cntlids.0, self.cntlids.1));
            let subsystem = subsystems.entry(text.nqn.clone()).or_default();
            subsystem.cntlids = cntlids;
            let next = subsystem.namespaces.last_key_value().map_or(1, |(last, _)| last + 1);
            let nsid = text.nsid.unwrap_or(next);
            let namespace = text.namespace(nsid, &mut pools)?;
            if subsystem.namespaces.insert(nsid, namespace).is_some() {
                bail!("--ns gives namespace {nsid} of {} twice; try nsid={next}", text.nqn);
            }
        }
        for HostText { nqn, host, keys } in self.hosts {
            let Some(subsystem) = subsystems.get_mut(&nqn) else {
                bail!("--host names {nqn}, which no --ns serves");
            };
            subsystem.hosts.insert(host, Host { keys, ..Host::default() });
        }
        let digests = Digests {
            header: self.digests.contains(&DigestKind::Header),
            data: self.digests.contains(&DigestKind::Data),
        };
        let (queue_depth, pool_cache) = (self.queue_depth, Bytes(self.pool_cache));
        let limits = EngineLimits { queue_depth, pool_cache, ..EngineLimits::default() };
        let pools = pools.into_values().collect();
        let (listen, cores) = (self.listen, self.cores);
        // It serves to hosts, never to targets.
        let replication = Replication::default();
        Ok(Config { listen, cores, pools, subsystems, digests, limits, replication })
    }
}

impl NamespaceText {
    fn namespace(&self, nsid: u32, pools: &mut BTreeMap<String, Pool>) -> Result<Namespace> {
        if self.key.is_some() && !matches!(self.source, Source::Replica(..)) {
            bail!("--ns {} has a key; only replicas of pools are encrypted", self.nqn);
        }
        let backing = match &self.source {
            Source::Memory(bytes) => Backing::Memory(
                Geometry::of_bytes(self.block, Bytes(*bytes))
                    .with_context(|| format!("--ns {}=mem:{bytes} makes no device", self.nqn))?,
            ),
            Source::File(path) => {
                self.make(path)?;
                Backing::File { path: path.clone(), block_size: self.block }
            }
            Source::Replica(pool, name) => {
                let Some(pool) = pools.get_mut(pool) else {
                    bail!("--ns {} is in pool {pool:?}, which no --pool opens", self.nqn);
                };
                // Without a size it must be there.
                pool.replicas.extend(self.size.map(|size| replica(name, Bytes(size))));
                let id = id_of_name(name);
                let key = self.key.as_deref().map(WrappingKey::read).transpose()?;
                pool.keys.insert(id, key);
                Backing::Replica { pool: pool.id, id }
            }
        };
        Ok(Namespace { backing, ids: identity_of(&self.nqn, nsid), ana: self.ana })
    }

    /// Makes a sparse file, if a size was given and there is none.
    fn make(&self, path: &Path) -> Result<()> {
        let shown = path.display();
        match (path.exists(), self.size) {
            (true, _) => Ok(()),
            (false, None) => {
                bail!("there is no file {shown}; to make it, write file:{shown},size=10GiB")
            }
            (false, Some(size)) => std::fs::File::create_new(path)
                .and_then(|file| file.set_len(size))
                .with_context(|| format!("cannot make {shown}")),
        }
    }
}

const EXAMPLE: &str = "write it like nqn.2026-11.io.holdfast:vol1=file:/var/lib/vol1.img";

impl FromStr for NamespaceText {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceText, String> {
        let (nqn, rest) = text.split_once('=').ok_or(EXAMPLE)?;
        let nqn = Nqn::new(nqn).map_err(|error| format!("{error}; {EXAMPLE}"))?;
        let mut parts = rest.split(',');
        let source = match parts.next().and_then(|source| source.split_once(':')) {
            Some(("mem", size)) => Source::Memory(bytes(size)?),
            Some(("file", path)) if !path.is_empty() => Source::File(path.into()),
            Some(("replica", names)) => {
                let (pool, name) = names.split_once('/').ok_or(EXAMPLE)?;
                Source::Replica(pool.into(), name.into())
            }
            _ => return Err(EXAMPLE.into()),
        };
        let mut namespace = NamespaceText {
            nqn,
            source,
            size: None,
            block: BlockSize::B4096,
            nsid: None,
            ana: AnaState::Optimized,
            key: None,
        };
        for option in parts {
            namespace.set(option)?;
        }
        Ok(namespace)
    }
}

impl NamespaceText {
    fn set(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=') {
            Some(("size", size)) => self.size = Some(bytes(size)?),
            Some(("block", size)) => {
                let bytes = u32::try_from(bytes(size)?).unwrap_or(u32::MAX);
                self.block = BlockSize::new(bytes).map_err(|error| error.to_string())?;
            }
            Some(("nsid", number)) => {
                let bad = |_| format!("nsid={number} is not a number from 1 on, such as nsid=2");
                self.nsid = Some(number.parse().map_err(bad)?);
            }
            Some(("ana", state)) => {
                self.ana = match state {
                    "optimized" => AnaState::Optimized,
                    "non-optimized" => AnaState::NonOptimized,
                    "inaccessible" => AnaState::Inaccessible,
                    "persistent-loss" => AnaState::PersistentLoss,
                    "change" => AnaState::Change,
                    _ => {
                        return Err(format!(
                            "ana={state} is unknown; try optimized, non-optimized, inaccessible, \
                             persistent-loss or change"
                        ));
                    }
                }
            }
            Some(("key", path)) if !path.is_empty() => self.key = Some(path.into()),
            _ => {
                let known = "try size=, block=, nsid=, ana= or key=";
                return Err(format!("{option:?} is unknown; {known}"));
            }
        }
        Ok(())
    }
}

impl FromStr for HostText {
    type Err = String;

    fn from_str(text: &str) -> Result<HostText, String> {
        const FORM: &str = "write it like NQN=HOSTNQN or NQN=HOSTNQN,DHHC-1:01:…: or …,@FILE";
        let (nqn, rest) = text.split_once('=').ok_or(FORM)?;
        let mut parts = rest.split(',');
        let name = |name: &str| Nqn::new(name).map_err(|error| format!("{error}; {FORM}"));
        let (nqn, host) = (name(nqn)?, name(parts.next().unwrap_or_default())?);
        let mut secrets = parts.map(secret);
        let keys = match (secrets.next().transpose()?, secrets.next().transpose()?) {
            (Some(host), controller) => Some(Keys { host, controller }),
            (None, _) => None,
        };
        if secrets.next().is_some() {
            return Err(FORM.into());
        }
        Ok(HostText { nqn, host, keys })
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let bad = || format!("{text:?} is not a range such as 1-1000");
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let number = |text: &str| text.parse::<u16>().map_err(|_| bad());
        match (number(first)?, number(last)?) {
            (first, last) if 0 < first && first <= last => Ok(Range(first, last)),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::nvme::auth::Secret;

    const NQN: &str = "nqn.2026-11.io.holdfast:v";

    fn namespace(rest: &str) -> Result<NamespaceText, String> {
        format!("{NQN}={rest}").parse()
    }

    #[test]
    fn namespaces_as_they_are_typed() {
        let plain = namespace("mem:1GiB").unwrap();
        assert_eq!((plain.source, plain.ana), (Source::Memory(1 << 30), AnaState::Optimized));
        let pooled = namespace("replica:tank/vol1,size=1GiB").unwrap();
        assert_eq!(pooled.source, Source::Replica("tank".into(), "vol1".into()));
        let full = namespace("file:/a/b,size=1MiB,block=512,nsid=7,ana=inaccessible").unwrap();
        assert_eq!(full.source, Source::File("/a/b".into()));
        assert_eq!((full.size, full.nsid, full.block), (Some(1 << 20), Some(7), BlockSize::B512));
        assert_eq!(full.ana, AnaState::Inaccessible);
    }

    #[test]
    fn what_makes_no_sense_is_answered_with_what_would() {
        for bad in ["", "disk:/x", "mem:much", "file:", "mem:1GiB,ana=good", "mem:1GiB,block=100"] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
        let error = "vol=mem:1GiB".parse::<NamespaceText>().unwrap_err();
        assert!(error.contains("nqn.2026-11.io.holdfast:vol1=file:"), "{error}");
        assert!("5-4".parse::<Range>().is_err() && "0-4".parse::<Range>().is_err());
        assert_eq!("1-4".parse(), Ok(Range(1, 4)));
    }

    #[test]
    fn hosts_with_and_without_secrets() {
        let plain: HostText = format!("{NQN}=nqn.2026-11.io.holdfast:host").parse().unwrap();
        assert!(plain.keys.is_none());
        let secret = Secret::new(&[3; 32], None).unwrap();
        let text = format!("{NQN}={NQN}h,{}", secret.to_text().as_str());
        assert!(text.parse::<HostText>().unwrap().keys.is_some());
        assert!(format!("{NQN}={NQN}h,@/nonexistent").parse::<HostText>().is_err());
        assert!(format!("{NQN}=somebody").parse::<HostText>().is_err());
    }
}
