//! `holdfast webhook`.

use anyhow::Result;
use api::rest::{Control, Remote};
use clap::{Args, Subcommand};
use model::{
    CallbackUrl, NodeName, PoolName, Severity, Subject, Webhook, WebhookChange, WebhookName,
    WebhookSpec,
};

use super::client_args::all;
use super::create::agreed;
use super::event::SeverityText;
use super::format;
use super::out::{Out, Row};
use super::reference::VolumeReference;
use super::table::{Cell, Column, Tone};

/// Commands about webhooks.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// All webhooks
    List,
    /// One webhook with what became of its calls
    Get {
        #[arg(value_name = "WEBHOOK")]
        name: WebhookName,
    },
    /// Have an address called when something happens
    Create {
        /// A name for it
        #[arg(value_name = "WEBHOOK")]
        name: WebhookName,
        /// Where each event is posted to, as JSON
        #[arg(long)]
        url: CallbackUrl,
        #[command(flatten)]
        about: About,
        /// Only events that are at least so serious
        #[arg(long, value_name = "HOW")]
        severity: Option<SeverityText>,
    },
    /// Have another address called, or filter by something else
    Set {
        #[arg(value_name = "WEBHOOK")]
        name: WebhookName,
        /// Where each event is posted to from now on
        #[arg(long)]
        url: Option<CallbackUrl>,
        #[command(flatten)]
        about: About,
        /// All things, not only the one it was about
        #[arg(long, conflicts_with_all = ["volume", "node", "pool"])]
        anything: bool,
        /// Only events that are at least so serious
        #[arg(long, value_name = "HOW")]
        severity: Option<SeverityText>,
        /// All events, however serious
        #[arg(long, conflicts_with = "severity")]
        any_severity: bool,
    },
    /// Call an address no more
    Delete {
        #[arg(value_name = "WEBHOOK")]
        name: WebhookName,
        /// Yes, give it up
        #[arg(long)]
        yes: bool,
    },
}

/// What it filters by.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct About {
    /// Only events about this volume
    #[arg(long)]
    volume: Option<VolumeReference>,
    /// Only events about this node
    #[arg(long)]
    node: Option<NodeName>,
    /// Only events about this pool
    #[arg(long)]
    pool: Option<PoolName>,
}

impl About {
    async fn subject(self, remote: &Remote) -> Result<Option<Subject>> {
        let volume = VolumeReference::find_any(self.volume, remote).await?.map(Subject::Volume);
        Ok(volume.or(self.node.map(Subject::Node)).or(self.pool.map(Subject::Pool)))
    }
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        match self {
            Verb::List => {
                let show = async |out: &mut Out<'_>| {
                    out.list(&all(|paging| remote.webhooks(paging)).await?)
                };
                out.show(remote, show).await
            }
            Verb::Get { name } => {
                let show = async |out: &mut Out<'_>| out.one(&remote.webhook(name.clone()).await?);
                out.show(remote, show).await
            }
            Verb::Create { name, url, about, severity } => {
                let about = about.subject(remote).await?;
                let spec = WebhookSpec { url, about, severity: severity.map(Into::into) };
                let answer = remote.put_webhook(name.clone(), spec).await?;
                out.done(&format::ensured(format!("webhook {name}"), &answer), &answer)
            }
            Verb::Set { name, url, about, anything, severity, any_severity } => {
                let have = remote.webhook(name.clone()).await?.spec().clone();
                let spec = WebhookSpec {
                    url: url.unwrap_or(have.url),
                    about: about.subject(remote).await?.or(have.about.filter(|_| !anything)),
                    severity: severity.map(Into::into).or(have.severity.filter(|_| !any_severity)),
                };
                let change = WebhookChange::Modify { spec };
                let answer = remote.change_webhook(name.clone(), change, None).await?;
                out.done(&format::ensured(format!("webhook {name}"), &answer), &answer)
            }
            Verb::Delete { name, yes } => {
                agreed(yes, &format!("this gives up webhook {name}"))?;
                let gone = remote.delete_webhook(name.clone(), None).await?;
                out.done(&format::gone(format!("webhook {name}"), gone), &gone)
            }
        }
    }
}

impl Row for Webhook {
    const COLUMNS: &'static [Column] = &[
        Column::Left("WEBHOOK"),
        Column::Left("ABOUT"),
        Column::Left("FROM"),
        Column::Right("CALLED"),
        Column::Right("MISSED"),
        Column::Left("URL"),
        Column::Wide("LAST"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let (spec, status) = (self.spec(), self.status.as_ref());
        vec![
            self.id().into(),
            spec.about.as_ref().map_or("anything".into(), |about| about.to_string().into()),
            format::word(&spec.severity.unwrap_or(Severity::Info)).into(),
            Cell::maybe(status.map(|status| status.delivered)),
            match status.map(|status| status.missed) {
                Some(missed) if missed > 0 => Cell::toned(missed.to_string(), Tone::Bad),
                missed => Cell::maybe(missed),
            },
            (&spec.url).into(),
            Cell::maybe(status.and_then(|status| status.delivered_at).map(format::time)),
        ]
    }

    fn details(&self, _: &Out<'_>) -> String {
        let failure = self.status.as_ref().and_then(|status| status.failure.as_ref());
        failure.map_or_else(String::new, |why| format!("\nthe last call failed: {why}\n"))
    }
}
