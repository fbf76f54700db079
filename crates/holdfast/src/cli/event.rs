//! `holdfast event`.

use anyhow::Result;
use api::StreamItem;
use api::rest::{Control, EventQuery, Remote};
use clap::{Subcommand, ValueEnum};
use model::{Event, NodeName, PoolName, Severity, SubjectKind, Timestamp};

use super::client_args::all;
use super::format;
use super::out::{Out, Row};
use super::reference::VolumeReference;
use super::table::{Cell, Column, Tone};
use crate::arg_parsers::moment;
use crate::stop;

/// Commands about events.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// What happened lately, the oldest first
    List {
        /// Only about this volume, its copies, targets and snapshots
        #[arg(long, value_name = "VOLUME")]
        volume: Option<VolumeReference>,
        /// Only about this node
        #[arg(long, value_name = "NODE")]
        node: Option<NodeName>,
        /// Only about this pool
        #[arg(long, value_name = "POOL")]
        pool: Option<PoolName>,
        /// Only about things of this kind
        #[arg(long, value_name = "KIND")]
        kind: Option<KindText>,
        /// Only about the thing with this name or id; the beginning of an id is enough
        #[arg(long, value_name = "THING")]
        about: Option<String>,
        /// Only what is at least so serious
        #[arg(long, value_name = "HOW")]
        severity: Option<SeverityText>,
        /// Only since then: a time ago, as 2h, or a moment, as 2026-03-01T12:00:00Z
        #[arg(long, value_name = "WHEN", value_parser = moment)]
        since: Option<Timestamp>,
        /// Only before then
        #[arg(long, value_name = "WHEN", value_parser = moment)]
        until: Option<Timestamp>,
    },
    /// What happens, as it happens, until Ctrl-C
    Follow {
        /// Go on after this event; left out: from now on
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SeverityText {
    Info,
    Warning,
    Error,
}

impl From<SeverityText> for Severity {
    fn from(text: SeverityText) -> Severity {
        match text {
            SeverityText::Info => Severity::Info,
            SeverityText::Warning => Severity::Warning,
            SeverityText::Error => Severity::Error,
        }
    }
}

/// A kind of thing, as it is typed.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum KindText {
    Node,
    Host,
    Pool,
    Volume,
    Replica,
    Target,
    Snapshot,
    Group,
    Webhook,
}

impl KindText {
    fn kind(self) -> SubjectKind {
        match self {
            KindText::Node => SubjectKind::Node,
            KindText::Host => SubjectKind::Host,
            KindText::Pool => SubjectKind::Pool,
            KindText::Volume => SubjectKind::Volume,
            KindText::Replica => SubjectKind::Replica,
            KindText::Target => SubjectKind::Target,
            KindText::Snapshot => SubjectKind::Snapshot,
            KindText::Group => SubjectKind::SnapshotGroup,
            KindText::Webhook => SubjectKind::Webhook,
        }
    }
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List { volume, node, pool, kind, about, severity, since, until } => {
                let volume = VolumeReference::find_any(volume, remote).await?;
                let (severity, kind) = (severity.map(Severity::from), kind.map(KindText::kind));
                let (name, limit, after) = (None, None, None);
                let asked = EventQuery {
                    volume,
                    node,
                    pool,
                    kind,
                    about,
                    name,
                    severity,
                    since,
                    until,
                    limit,
                    after,
                };
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.event_history(asked.clone().at(paging))).await?)
                };
                out.show(remote, show).await
            }
            Verb::Follow { after } => follow(remote, out, after).await,
        }
    }
}

/// One line an event; a stream that ends is taken up where it ended.
async fn follow(remote: &Remote, out: &mut Out<'_>, after: Option<String>) -> Result<()> {
    let mut stop = std::pin::pin!(stop::asked());
    let mut last = after;
    loop {
        let mut events = remote.events(last.clone()).await?;
        loop {
            let told = tokio::select! {
                () = &mut stop => return Ok(()),
                told = events.next() => told,
            };
            last = events.last().map(str::to_owned).or(last);
            match told {
                Ok(Some(StreamItem::Event(event))) => {
                    let text = if out.is_table() { line(&event) } else { out.value(&event)? };
                    out.text(&text)?;
                }
                Ok(Some(StreamItem::Missed)) => {
                    tracing::warn!("some events were forgotten before they were read");
                }
                Ok(None) | Err(_) => break,
            }
        }
    }
}

pub(crate) fn line(event: &Event) -> String {
    let (at, about) = (format::time(event.at), event.subject.to_string());
    format!("{at}  {}  {about}: {}\n", format::word(&event.severity), event.message)
}

impl Row for Event {
    const COLUMNS: &'static [Column] = &[
        Column::Left("AT"),
        Column::Left("SEVERITY"),
        Column::Left("ABOUT"),
        Column::Wide("EVENT"),
        Column::Left("MESSAGE"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let tone = match self.severity {
            Severity::Info => Tone::Plain,
            Severity::Warning => Tone::Warn,
            Severity::Error => Tone::Bad,
        };
        vec![
            format::time(self.at).into(),
            Cell::toned(format::word(&self.severity), tone),
            self.subject.to_string().into(),
            format::word(&self.name).into(),
            (&self.message).into(),
        ]
    }
}
