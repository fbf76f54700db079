//! Commands and options about pools.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use ::engine::pools::{self, NewDisk, NewPool, PoolRequest, PoolStatus};
use ::engine::serve::Pool;
use anyhow::{Context, Result, bail};
use block::{Blocks, Bytes};
use clap::{Args, Subcommand};
use pool::{ClusterSize, Id, Label, NewReplica};

use crate::arg_parsers::bytes;
use crate::block_on;
use crate::cli::{ClientArgs, PoolVerb, Shows as _, Tries as _, explained};

/// `pool` with what is typed after it.
#[derive(Args)]
pub(crate) struct PoolArgs {
    #[command(flatten)]
    ask: ClientArgs,
    #[command(subcommand)]
    verb: Verb,
}

/// Commands about pools.
#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    Cluster(PoolVerb),
    /// Show what is on the disks of a pool that no engine uses
    Inspect {
        /// All disks or files of the pool
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
    },
}

impl PoolArgs {
    pub(crate) fn run(self) -> Result<()> {
        match self.verb {
            Verb::Inspect { paths } => {
                self.ask.once()?;
                show(&pools::inspect(&paths)?)
            }
            Verb::Cluster(verb) => block_on(async {
                let mut stdout = std::io::stdout();
                self.ask.may_try(verb.tries())?;
                let (remote, mut out) = self.ask.open(&mut stdout, verb.shows())?;
                verb.run(&remote, &mut out).await.map_err(explained)
            }),
        }
    }
}

fn show(status: &PoolStatus) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let PoolStatus { id, name, cluster, usage, health, .. } = status;
    writeln!(out, "pool       {name}  {:032x}", id.0)?;
    for (path, bytes) in &status.disks {
        writeln!(out, "disk       {}  {bytes}", path.display())?;
    }
    writeln!(out, "clusters   {cluster}, {} of {} in use", usage.own, usage.size)?;
    writeln!(out, "written    {}, promised {}", usage.written, usage.promised)?;
    writeln!(
        out,
        "health     {} regions dirty, {} in doubt, {} damaged",
        health.dirty_regions,
        health.doubtful_regions,
        health.damaged.len()
    )?;
    for one in &status.entities {
        let entity = &one.entity;
        let kind = if entity.kind == pool::EntityKind::Snapshot { "snapshot" } else { "replica " };
        let name = String::from_utf8_lossy(&entity.label.opaque);
        let encrypted = if entity.is_encrypted() { ", encrypted" } else { "" };
        let label = &entity.label;
        writeln!(
            out,
            "{kind}   {:032x}  {name}  {} written of {}, volume {:032x}, epoch {}, \
             generation {}{encrypted}",
            entity.id.0,
            one.usage.written,
            one.usage.size,
            label.volume.0,
            label.epoch,
            label.generation
        )?;
    }
    Ok(())
}

/// `--pool` as typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PoolText {
    pub(crate) name: String,
    paths: Vec<PathBuf>,
    create: bool,
    force: bool,
    cluster: ClusterSize,
    size: Option<u64>,
}

const EXAMPLE: &str = "write it like tank=/dev/sdb,/dev/sdc or \
                       tank=/var/lib/tank.img,create,size=100GiB";

impl FromStr for PoolText {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolText, String> {
        let (name, rest) = text.split_once('=').ok_or(EXAMPLE)?;
        let mut pool = PoolText {
            name: name.to_owned(),
            paths: Vec::new(),
            create: false,
            force: false,
            cluster: ClusterSize::DEFAULT,
            size: None,
        };
        for part in rest.split(',') {
            match part.split_once('=') {
                None if part == "create" => pool.create = true,
                None if part == "force" => pool.force = true,
                None if !part.is_empty() => pool.paths.push(part.into()),
                Some(("cluster", size)) => {
                    let bytes = Bytes(bytes(size)?);
                    let bad = "a cluster is a power of two from 256KiB to 64MiB";
                    pool.cluster = ClusterSize::of_bytes(bytes).ok_or(bad)?;
                }
                Some(("size", size)) => pool.size = Some(bytes(size)?),
                _ => return Err(format!("{part:?} is unknown; {EXAMPLE}")),
            }
        }
        if name.is_empty() || pool.paths.is_empty() {
            return Err(EXAMPLE.into());
        }
        Ok(pool)
    }
}

impl PoolText {
    /// The pool that is on the disks; or one to be made, if that was asked for.
    pub(crate) fn pool(&self) -> Result<Pool> {
        self.make_files()?;
        let first = self.paths.first().context(EXAMPLE)?;
        let paths = self.paths.clone();
        match pools::superblock_of(first)? {
            Some(found) if found.name != self.name => bail!(
                "the pool on {} is called {:?}; write --pool {}=…",
                first.display(),
                found.name,
                found.name
            ),
            Some(found) => {
                let open = PoolRequest::Import { paths };
                Ok(Pool { id: found.pool, open, replicas: Vec::new(), keys: BTreeMap::new() })
            }
            None if self.create => {
                let id = pools::new_id()?;
                let disk = |path| Ok(NewDisk { path, id: pools::new_id()? });
                let disks = paths.into_iter().map(disk).collect::<Result<_>>()?;
                let (name, cluster, force) = (self.name.clone(), self.cluster, self.force);
                let open = PoolRequest::Create(NewPool { id, name, cluster, disks, force });
                Ok(Pool { id, open, replicas: Vec::new(), keys: BTreeMap::new() })
            }
            None => bail!(
                "there is no pool on {}; to make one, write --pool {}={},create",
                first.display(),
                self.name,
                first.display()
            ),
        }
    }

    /// Makes sparse files, if a size was given and there are none.
    fn make_files(&self) -> Result<()> {
        for path in self.paths.iter().filter(|path| !path.exists()) {
            let shown = path.display();
            let Some(size) = self.size.filter(|_| self.create) else {
                bail!("there is no disk {shown}; to make a file, add ,create,size=100GiB");
            };
            std::fs::File::create_new(path)
                .and_then(|file| file.set_len(size))
                .with_context(|| format!("cannot make {shown}"))?;
        }
        Ok(())
    }
}

/// A thin replica that is known by its name.
pub(crate) fn replica(name: &str, size: Bytes) -> NewReplica {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    NewReplica {
        id: pools::id_of_name(name),
        origin: Id::NONE,
        size: Blocks(size.0 / 4096),
        thick: false,
        created: u64::try_from(now.as_millis()).unwrap_or(0),
        label: Label { opaque: name.as_bytes().to_vec(), ..Label::default() },
        key: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_as_they_are_typed() {
        let plain: PoolText = "tank=/dev/sdb,/dev/sdc".parse().unwrap();
        assert_eq!((plain.paths.len(), plain.create), (2, false));
        let full: PoolText = "tank=/a,create,force,cluster=4MiB,size=1GiB".parse().unwrap();
        assert_eq!((full.create, full.force, full.size), (true, true, Some(1 << 30)));
        assert_eq!(full.cluster.blocks(), 1024);
        for bad in ["", "tank", "tank=", "=/a", "tank=/a,cluster=3MiB", "tank=/a,colour=red"] {
            assert!(bad.parse::<PoolText>().is_err(), "{bad}");
        }
    }
}
