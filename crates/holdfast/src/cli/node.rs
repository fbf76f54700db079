//! `holdfast node`.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, bail};
use api::rest::{Control, DryRunRequest, LabelMatch, NodeQuery, Purge, PurgeConfirmation, Remote};
use clap::Subcommand;
use model::{CordonName, DrainStatus, Node, NodeChange, NodeName};

use super::client_args::all;
use super::create::{LabelEdit, agreed, edited};
use super::format;
use super::out::{Out, Row};
use super::progress::ProgressBar;
use super::table::{Cell, Column, Tone};
use super::try_out;

/// Commands about nodes.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All nodes
    List {
        /// Only those with this label
        #[arg(short, long, value_name = "KEY[=VALUE]")]
        label: Option<LabelMatch>,
    },
    /// One node, with what its drain waits for
    Get { node: NodeName },
    /// Put nothing new on a node; what it has stays
    Cordon {
        node: NodeName,
        /// Why; each reason is lifted on its own
        #[arg(long, value_name = "NAME", default_value = "admin")]
        reason: CordonName,
    },
    /// Lift one reason to cordon or drain a node
    Uncordon {
        node: NodeName,
        /// Which reason
        #[arg(long, value_name = "NAME", default_value = "admin")]
        reason: CordonName,
    },
    /// Move targets and copies away from a node
    Drain {
        node: NodeName,
        /// Why; `uncordon` lifts it
        #[arg(long, value_name = "NAME", default_value = "admin")]
        reason: CordonName,
        /// Show how far it is until nothing is left
        #[arg(long)]
        wait: bool,
    },
    /// Set labels (KEY=VALUE) and take them away (KEY-)
    Label {
        node: NodeName,
        /// What to set and what to take away, such as zone=a disk-
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        labels: Vec<LabelEdit>,
    },
    /// Forget a node that is lost, and everything on it
    Purge {
        node: NodeName,
        /// Only say what that would cost
        #[arg(long)]
        preview: bool,
        /// Yes, lose what the preview names
        #[arg(long)]
        yes: bool,
    },
}

/// How often a drain is looked at.
const AGAIN: Duration = Duration::from_millis(500);

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let (node, change) = match self {
            Verb::List { label } => {
                let asked = NodeQuery { label, ..NodeQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.nodes(asked.clone().at(paging))).await?)
                };
                return out.show(remote, show).await;
            }
            Verb::Get { node } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.node(node.clone()).await?);
                return out.show(remote, show).await;
            }
            Verb::Purge { node, preview, yes } => {
                let cost = remote.node_purge(node.clone()).await?;
                if preview {
                    return out.done(costs(&cost).trim_end(), &cost);
                }
                let consent = consent(&cost, yes, &format!("this forgets node {node}"))?;
                let gone = remote.purge_node(node.clone(), consent).await?;
                return out.done(&format::gone(format!("node {node}"), gone), &gone);
            }
            Verb::Drain { node, reason, .. } if out.tries() => {
                (node, NodeChange::Drain { cordon: reason })
            }
            Verb::Drain { node, reason, wait } => {
                let drain = NodeChange::Drain { cordon: reason };
                let answer = remote.change_node(node.clone(), drain, None).await?;
                if wait {
                    let said = match drained(remote, &node).await?.join("; ") {
                        stays if stays.is_empty() => format!("node {node} is empty"),
                        stays => format!("node {node} has no copy and no target left; {stays}"),
                    };
                    return out.done(&said, &answer);
                }
                return out.done(&format::ensured(format!("node {node}"), &answer), &answer);
            }
            Verb::Label { node, labels } => {
                let have = remote.node(node.clone()).await?;
                (node, NodeChange::Label { labels: edited(&have.spec().labels, labels) })
            }
            Verb::Cordon { node, reason } => (node, NodeChange::Cordon { cordon: reason }),
            Verb::Uncordon { node, reason } => (node, NodeChange::Uncordon { cordon: reason }),
        };
        if out.tries() {
            return try_out(remote, out, DryRunRequest::ChangeNode { node, change }).await;
        }
        let answer = remote.change_node(node.clone(), change, None).await?;
        out.done(&format::ensured(format!("node {node}"), &answer), &answer)
    }
}

/// Waits until nothing is left to move, and says what stays; ends when what is left cannot be
/// moved.
async fn drained(remote: &Remote, node: &NodeName) -> Result<Vec<String>> {
    let mut bar = ProgressBar::new(format!("drain of {node}"));
    loop {
        let now = remote.node(node.clone()).await?;
        if !now.spec().is_draining() {
            bar.end();
            bail!("the drain of node {node} was lifted by somebody");
        }
        // Absent: the control plane has not looked yet.
        if let Some(drain) = now.status.as_ref().and_then(|status| status.drain.as_ref()) {
            let left = drain.targets.len() + drain.replicas.len();
            bar.count(left);
            if drain.is_drained() {
                bar.end();
                return Ok(drain.blocked.clone());
            }
            if left > 0 && drain.blocked.len() >= left {
                bar.end();
                bail!("what is left on node {node} cannot be moved: {}", drain.blocked.join("; "));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn each<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

/// What a purge costs, for people.
pub(crate) fn costs(cost: &Purge) -> String {
    let mut text = String::new();
    let mut say = |what: &str, items: Vec<String>| {
        if !items.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{what}: {}", items.join(", "));
        }
    };
    say("cannot be purged", cost.blocked.clone());
    say("VOLUMES LOST", each(&cost.lost_volumes));
    say("SNAPSHOTS LOST", each(&cost.lost_snapshots));
    say("volumes that lose a copy and are healed", each(&cost.degraded));
    say("pools forgotten", each(&cost.pools));
    say("replicas given up", each(&cost.replicas));
    say("copies in quarantine given up", each(&cost.quarantined));
    say("targets given up", each(&cost.targets));
    if text.is_empty() { "nothing is lost\n".to_owned() } else { text }
}

/// Consent to lose exactly what the preview names.
pub(crate) fn consent(cost: &Purge, yes: bool, what: &str) -> Result<PurgeConfirmation> {
    if !cost.blocked.is_empty() {
        bail!("{}", cost.blocked.join("; "));
    }
    agreed(yes, &format!("{what}: {}", costs(cost).trim_end().replace('\n', "; ")))?;
    let (lost_volumes, lost_snapshots) = (cost.lost_volumes.clone(), cost.lost_snapshots.clone());
    Ok(PurgeConfirmation { lost_volumes, lost_snapshots })
}

impl Row for Node {
    const COLUMNS: &'static [Column] = &[
        Column::Left("NODE"),
        Column::Left("STATE"),
        Column::Left("CORDONS"),
        Column::Left("DRAIN"),
        Column::Left("VERSION"),
        Column::Wide("API"),
        Column::Wide("DATA"),
        Column::Wide("SEEN"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        let drain = status.and_then(|status| status.drain.as_ref());
        let left = |drain: &DrainStatus| drain.targets.len() + drain.replicas.len();
        let drain = match (spec.is_draining(), drain) {
            (false, _) => Cell::maybe(None::<String>),
            (true, Some(drain)) if drain.is_drained() => Cell::toned("drained", Tone::Good),
            (true, Some(drain)) => Cell::toned(format!("{} left", left(drain)), Tone::Warn),
            (true, None) => Cell::toned("draining", Tone::Warn),
        };
        vec![
            self.id().into(),
            format::liveness(status.map(|status| status.liveness)),
            format::list(&spec.cordons),
            drain,
            Cell::maybe(status.and_then(|status| status.version.as_ref())),
            spec.address.api.into(),
            format::list(&spec.address.data),
            Cell::maybe(status.and_then(|status| status.seen_at).map(format::time)),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, _: &Out<'_>) -> String {
        let drain = self.status.as_ref().and_then(|status| status.drain.as_ref());
        let Some(drain) = drain.filter(|drain| !drain.is_drained() || !drain.blocked.is_empty())
        else {
            return String::new();
        };
        let mut text = String::from("\n");
        if !drain.is_drained() {
            text.push_str("still there:\n");
        }
        for target in &drain.targets {
            let _ = writeln!(text, "  target {target}");
        }
        for replica in &drain.replicas {
            let _ = writeln!(text, "  replica {replica}");
        }
        for why in &drain.blocked {
            let word = if drain.is_drained() { "note" } else { "blocked" };
            let _ = writeln!(text, "{word}: {why}");
        }
        text
    }
}
