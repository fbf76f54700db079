//! `holdfast host`.

use anyhow::Result;
use api::rest::{Control, HostQuery, LabelMatch, Remote};
use clap::Subcommand;
use model::{Host, HostChange, HostName};
use std::fmt::Write as _;

use super::client_args::all;
use super::create::{LabelEdit, agreed, edited};
use super::format;
use super::out::{Out, Row};
use super::table::{Cell, Column};

/// Commands about hosts.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All hosts
    List {
        /// Only those with this label
        #[arg(short, long, value_name = "KEY[=VALUE]")]
        label: Option<LabelMatch>,
    },
    /// One host with the volumes it uses
    Get { host: HostName },
    /// Set labels (KEY=VALUE) and take them away (KEY-)
    Label {
        host: HostName,
        /// What to set and what to take away, such as zone=a disk-
        #[arg(required = true, value_name = "KEY=VALUE|KEY-")]
        labels: Vec<LabelEdit>,
    },
    /// Forget a host that is gone and uses nothing
    Delete {
        host: HostName,
        /// Yes, forget it
        #[arg(long)]
        yes: bool,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { label } => {
                let asked = HostQuery { label, ..HostQuery::default() };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.hosts(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { host } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.host(host.clone()).await?);
                out.show(remote, show).await
            }
            Verb::Label { host, labels } => {
                let have = remote.host(host.clone()).await?;
                let change = HostChange::Label { labels: edited(&have.spec().labels, labels) };
                let answer = remote.change_host(host.clone(), change, None).await?;
                out.done(&format::ensured(format!("host {host}"), &answer), &answer)
            }
            Verb::Delete { host, yes } => {
                agreed(yes, &format!("this forgets host {host}"))?;
                let gone = remote.delete_host(host.clone(), None).await?;
                out.done(&format::gone(format!("host {host}"), gone), &gone)
            }
        }
    }
}

impl Row for Host {
    const COLUMNS: &'static [Column] = &[
        Column::Left("HOST"),
        Column::Left("STATE"),
        Column::Right("VOLUMES"),
        Column::Left("NQN"),
        Column::Wide("AGENT"),
        Column::Wide("SEEN"),
        Column::Wide("LABELS"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        vec![
            self.id().into(),
            format::liveness(status.map(|status| status.liveness)),
            Cell::maybe(status.map(|status| status.attached.len())),
            (&spec.address.nqn).into(),
            Cell::maybe(spec.address.agent),
            Cell::maybe(status.and_then(|status| status.seen_at).map(format::time)),
            format::labels(&spec.labels),
        ]
    }

    fn details(&self, _: &Out<'_>) -> String {
        let mut text = String::new();
        for (volume, paths) in self.status.iter().flat_map(|status| &status.attached) {
            let paths =
                paths.iter().map(|path| format!("{} {}", path.address, format::word(&path.state)));
            // Writing to a string cannot fail.
            let _ = write!(text, "\nvolume {volume}: {}", paths.collect::<Vec<_>>().join(", "));
        }
        if text.is_empty() { text } else { text + "\n" }
    }
}
