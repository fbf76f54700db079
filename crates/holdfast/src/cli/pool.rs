//! `holdfast pool`, but for what is on disks that no engine uses.

use anyhow::Result;
use api::rest::{Control, DryRunRequest, LabelMatch, PoolQuery, Remote};
use clap::Subcommand;
use model::{
    BlockDevice, CordonName, DevicePath, DiskStatus, NodeName, Pool, PoolChange, PoolName,
    PoolSpec, PoolState, Size,
};
use std::fmt::Write as _;
use std::io::Write as _;

use super::client_args::all;
use super::create::{LabelEdit, LabelText, agreed, edited};
use super::format;
use super::node::{consent, costs};
use super::out::{Out, Row};
use super::table::{Cell, Column};
use super::try_out;

/// Commands about pools of the cluster.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All pools
    List {
        /// Only those of this node
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
        /// Only those with this label
        #[arg(short, long, value_name = "KEY[=VALUE]")]
        label: Option<LabelMatch>,
    },
    /// One pool with its disks
    Get { pool: PoolName },
    /// Make a pool; what is on its disks is lost
    Create {
        /// A name for it
        pool: PoolName,
        /// The node whose engine is to own it
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// Its disks or files; may be given more than once
        #[arg(long = "disk", value_name = "PATH", required = true)]
        disks: Vec<DevicePath>,
        /// Unit of allocation, a power of two from 256KiB to 64MiB
        #[arg(long, value_name = "SIZE")]
        cluster_size: Option<Size>,
        /// A label; may be given more than once
        #[arg(short, long = "label", value_name = "KEY=VALUE")]
        labels: Vec<LabelText>,
    },
    /// Open a pool that is on the disks of a node: one that was exported, or one nobody knows
    Import {
        /// The name it has, or is to have if nobody knows it
        pool: PoolName,
        /// The node whose engine is to own it
        #[arg(long, value_name = "NODE")]
        node: NodeName,
        /// Its disks or files there; may be given more than once
        #[arg(long = "disk", value_name = "PATH", required = true)]
        disks: Vec<DevicePath>,
    },
    /// Close a pool, so that its disks can be carried to another node
    Export { pool: PoolName },
    /// Use what the disks of a pool have gained
    Grow { pool: PoolName },
    /// Give a pool one more disk; what is on it is lost
    AddDisk {
        pool: PoolName,
        /// The disk or file, by its path on the node of the pool
        disk: DevicePath,
    },
    /// Set labels (KEY=VALUE) and take them away (KEY-)
    Label {
        pool: PoolName,
        /// What to set and what to take away, such as zone=a disk-
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        labels: Vec<LabelEdit>,
    },
    /// Put nothing new into a pool; what it has stays
    Cordon {
        pool: PoolName,
        /// Why; each reason is lifted on its own
        #[arg(long, value_name = "NAME", default_value = "admin")]
        reason: CordonName,
    },
    /// Lift one reason to cordon a pool
    Uncordon {
        pool: PoolName,
        /// Which reason
        #[arg(long, value_name = "NAME", default_value = "admin")]
        reason: CordonName,
    },
    /// Errors of the disks of a pool until now count no more: it is healthy again unless more come
    ClearErrors { pool: PoolName },
    /// Destroy a pool that has no replicas and no snapshots
    Delete {
        pool: PoolName,
        /// Yes, destroy it
        #[arg(long)]
        yes: bool,
    },
    /// Forget a pool that is lost, and everything in it
    Purge {
        pool: PoolName,
        /// Only say what that would cost
        #[arg(long)]
        preview: bool,
        /// Yes, lose what the preview names
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { node, label } => {
                let asked = PoolQuery { node, label, ..PoolQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.pools(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { pool } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.pool(pool.clone()).await?);
                out.show(remote, show).await
            }
            Verb::Create { pool, node, disks, cluster_size, labels } => {
                let labels = labels.into_iter().map(|LabelText(key, value)| (key, value)).collect();
                let spec = PoolSpec { cluster_size, labels, ..plain(node, disks) };
                let devices = all(|paging| remote.devices(spec.node.clone(), paging)).await;
                // Whether the node answers or not: the pool is made, or the refusal says why.
                warn(&warnings(&pool, &spec.disks, &devices.unwrap_or_default()))?;
                put(remote, out, pool, spec).await
            }
            Verb::Import { pool, node, disks } => import(remote, out, pool, node, disks).await,
            Verb::ClearErrors { pool } => {
                let cleared = remote.clear_pool_errors(pool.clone()).await?;
                let what = if cleared.existed { "cleared" } else { "there were none" };
                out.done(&format!("errors of pool {pool}: {what}"), &cleared)
            }
            Verb::Delete { pool, .. } if out.tries() => {
                try_out(remote, out, DryRunRequest::DeletePool { pool }).await
            }
            Verb::Delete { pool, yes } => {
                agreed(yes, &format!("this destroys pool {pool}"))?;
                let gone = remote.delete_pool(pool.clone(), None).await?;
                out.done(&format::gone(format!("pool {pool}"), gone), &gone)
            }
            Verb::Purge { pool, preview, yes } => {
                let cost = remote.pool_purge(pool.clone()).await?;
                if preview {
                    return out.done(costs(&cost).trim_end(), &cost);
                }
                let consent = consent(&cost, yes, &format!("this forgets pool {pool}"))?;
                let gone = remote.purge_pool(pool.clone(), consent).await?;
                out.done(&format::gone(format!("pool {pool}"), gone), &gone)
            }
            other => other.change(remote, out).await,
        }
    }

    /// The verbs that are one change each.
    async fn change(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let (pool, change) = match self {
            Verb::Export { pool } => (pool, PoolChange::Export {}),
            Verb::Grow { pool } => (pool, PoolChange::Grow {}),
            Verb::AddDisk { pool, disk } => (pool, PoolChange::AddDisk { disk }),
            Verb::Cordon { pool, reason } => (pool, PoolChange::Cordon { cordon: reason }),
            Verb::Uncordon { pool, reason } => (pool, PoolChange::Uncordon { cordon: reason }),
            Verb::Label { pool, labels } => {
                let have = remote.pool(pool.clone()).await?;
                (pool, PoolChange::Label { labels: edited(&have.spec().labels, labels) })
            }
            _ => return Ok(()),
        };
        if out.tries() {
            return try_out(remote, out, DryRunRequest::ChangePool { pool, change }).await;
        }
        let answer = remote.change_pool(pool.clone(), change, None).await?;
        out.done(&format::ensured(format!("pool {pool}"), &answer), &answer)
    }
}

fn plain(node: NodeName, disks: Vec<DevicePath>) -> PoolSpec {
    PoolSpec {
        node,
        disks,
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: [].into(),
        cordons: [].into(),
    }
}

/// What to know before a pool is made on these disks.
fn warnings(pool: &PoolName, disks: &[DevicePath], devices: &[BlockDevice]) -> Vec<String> {
    let mut warnings = Vec::new();
    if disks.len() > 1 {
        warnings.push(format!(
            "pool {pool} is lost with any one of its {} disks, and no disk can be taken out of it; \
             a pool for each disk loses only that disk",
            disks.len()
        ));
    }
    for disk in disks {
        let is_it = |device: &&BlockDevice| device.path == *disk || device.links.contains(disk);
        let remarks = devices.iter().find(is_it).map(|device| device.traits.remarks());
        let remarks = remarks.unwrap_or_default().into_iter();
        warnings.extend(remarks.map(|remark| format!("{disk}: {remark}")));
    }
    warnings
}

fn warn(warnings: &[String]) -> Result<()> {
    let mut stderr = std::io::stderr();
    for warning in warnings {
        writeln!(stderr, "warning: {warning}")?;
    }
    Ok(())
}

async fn put(remote: &Remote, out: &mut Out<'_>, pool: PoolName, spec: PoolSpec) -> Result<()> {
    let answer = remote.put_pool(pool.clone(), spec).await?;
    out.done(&format::ensured(format!("pool {pool}"), &answer), &answer)
}

/// A pool that is known was exported; one that is not is on the disks only.
async fn import(
    remote: &Remote,
    out: &mut Out<'_>,
    pool: PoolName,
    node: NodeName,
    disks: Vec<DevicePath>,
) -> Result<()> {
    match remote.pool(pool.clone()).await {
        Ok(_) => {
            let change = PoolChange::Import { node, disks };
            let answer = remote.change_pool(pool.clone(), change, None).await?;
            out.done(&format::ensured(format!("pool {pool}"), &answer), &answer)
        }
        Err(problem) if problem.kind == model::ProblemKind::NotFound => {
            put(remote, out, pool, PoolSpec { import: true, ..plain(node, disks) }).await
        }
        Err(problem) => Err(problem.into()),
    }
}

impl Row for Pool {
    const COLUMNS: &'static [Column] = &[
        Column::Left("POOL"),
        Column::Left("NODE"),
        Column::Left("STATE"),
        Column::Right("CAPACITY"),
        Column::Right("USED"),
        Column::Right("PROMISED"),
        Column::Left("CORDONS"),
        Column::Left("OPERATION"),
        Column::Wide("DISKS"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        vec![
            self.id().into(),
            (&spec.node).into(),
            format::pool_state(status.map(|status| &status.state), spec.exported),
            Cell::maybe(status.map(|status| status.capacity)),
            Cell::maybe(status.map(|status| status.used)),
            Cell::maybe(status.map(|status| status.committed)),
            format::list(&spec.cordons),
            format::life(self),
            format::list(&spec.disks),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, out: &Out<'_>) -> String {
        let Some(status) = &self.status else { return String::new() };
        let mut text = String::new();
        if let PoolState::Suspect { symptoms } | PoolState::Faulted { symptoms } = &status.state {
            for one in symptoms {
                // Writing to a string cannot fail.
                let _ =
                    write!(text, "\n{}: {} ({})", one.disk, format::word(&one.kind), one.detail);
            }
            text.push('\n');
        }
        if !status.disks.is_empty() {
            text.push('\n');
            text.push_str(&out.table(&status.disks));
        }
        text
    }
}

impl Row for DiskStatus {
    const COLUMNS: &'static [Column] = &[
        Column::Left("DISK"),
        Column::Right("SIZE"),
        Column::Right("IO ERRORS"),
        Column::Right("CHECKSUM ERRORS"),
        Column::Right("STALLS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            (&self.path).into(),
            self.size.into(),
            self.io_errors.into(),
            self.checksum_errors.into(),
            self.stalls.into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{DeviceKind, DiskTraits, WriteCache};

    fn disk(path: &str, traits: DiskTraits) -> BlockDevice {
        BlockDevice {
            path: path.parse().unwrap(),
            links: vec![format!("/dev/disk/by-id/{}", path.replace('/', "-")).parse().unwrap()],
            kind: DeviceKind::Disk,
            size: Size::gib(1),
            traits,
            model: None,
            serial: None,
            parent: None,
            obstacles: vec![],
        }
    }

    #[test]
    fn what_a_pool_is_made_of_is_warned_about() {
        let good = DiskTraits {
            atomic_write_unit: 4096,
            write_cache: WriteCache::Protected,
            ..DiskTraits::UNKNOWN
        };
        let devices = [disk("/dev/sda", good), disk("/dev/sdb", DiskTraits::UNKNOWN)];
        let check = |disks: &[&str], expected: &[&str]| {
            let disks: Vec<DevicePath> = disks.iter().map(|disk| disk.parse().unwrap()).collect();
            let found = warnings(&"tank".parse().unwrap(), &disks, &devices);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.contains(expected), "{found}");
            }
        };
        check(&["/dev/sda"], &[]);
        check(&["/var/lib/tank.img"], &[]);
        check(&["/dev/sda", "/var/b"], &["tank is lost with any one of its 2 disks"]);
        check(
            &["/dev/disk/by-id/-dev-sdb"],
            &["survives a loss of power", "write 4 KiB as a whole"],
        );
    }
}
