//! `holdfast status`: the whole cluster on one screen.

use std::fmt::Write as _;
use std::io::Write;

use anyhow::Result;
use api::rest::{Control, Counts, Status};
use clap::Args;
use model::Severity;

use super::client_args::ClientArgs;
use super::format;
use super::out::Out;
use super::table::{Tone, paint};

/// Options of `status`.
#[derive(Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    ask: ClientArgs,
}

impl StatusArgs {
    pub(crate) async fn run(self, to: &mut (dyn Write + Send)) -> Result<()> {
        let (remote, mut out) = self.ask.open(to, true)?;
        let show = async |out: &mut Out<'_>| {
            let status = remote.status().await?;
            out.done(screen(&status, out.colour()).trim_end(), &status)
        };
        out.show(&remote, show).await
    }
}

/// The screen.
pub(crate) fn screen(status: &Status, colour: bool) -> String {
    let Status { volumes, capacity, .. } = status;
    let verdict = match status.issues.iter().map(|trouble| trouble.severity).max() {
        Some(Severity::Error) => paint("not well", Tone::Bad, colour),
        Some(_) => paint("worth a look", Tone::Warn, colour),
        None => paint("well", Tone::Good, colour),
    };
    let leader = match (&status.leader.here, &status.leader.name) {
        (true, _) => "this control plane decides".to_owned(),
        (false, Some(name)) => format!("{name} decides"),
        (false, None) => "nobody decides: no control plane holds the lease".to_owned(),
    };
    let mut text = String::new();
    let mut line = |name: &str, rest: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<10}{rest}");
    };
    line("cluster", format!("{verdict}  (Holdfast {}, {leader})", status.version));
    line("nodes", tally(status.nodes, "online", colour));
    line("pools", tally(status.pools, "online", colour));
    line("hosts", tally(status.hosts, "online", colour));
    let all = volumes.online + volumes.degraded + volumes.faulted + volumes.unknown;
    let mut parts = vec![format!("{all} in all, {} published", volumes.published)];
    for (count, word, tone) in [
        (volumes.online, "online", Tone::Good),
        (volumes.degraded, "degraded", Tone::Warn),
        (volumes.faulted, "faulted", Tone::Bad),
        (volumes.unknown, "unknown", Tone::Warn),
    ] {
        if count > 0 {
            parts.push(paint(&format!("{count} {word}"), tone, colour));
        }
    }
    line("volumes", parts.join(", "));
    line("snapshots", status.snapshots.to_string());
    let percent = capacity.used.percent_of(capacity.capacity);
    let percent = if percent == u32::MAX { 0 } else { percent };
    let room = format!("{} of {} used ({percent} %)", capacity.used, capacity.capacity);
    line("room", format!("{room}, {} promised", capacity.committed));
    line("at work", format!("{} rebuilds, {} failovers", status.rebuilds, status.failovers));
    let aside = status.quarantine;
    if aside.replicas > 0 {
        let mut text = format!("{} copies set aside ({})", aside.replicas, aside.used);
        if aside.newer > 0 {
            let newer = format!("{} may hold newer data than their volumes", aside.newer);
            text = format!("{text}, {}", paint(&newer, Tone::Bad, colour));
        }
        line("quarantine", format!(" {text}; see `holdfast quarantine list`"));
    }
    if let Some(brake) = &status.brake {
        let held = format!("healing of {} volumes waits", brake.held);
        line("", format!("{}: {}", paint(&held, Tone::Warn, colour), brake.reason));
    }
    if !status.issues.is_empty() {
        text.push('\n');
    }
    for trouble in &status.issues {
        let tone = match trouble.severity {
            Severity::Info => Tone::Plain,
            Severity::Warning => Tone::Warn,
            Severity::Error => Tone::Bad,
        };
        let word = paint(&format!("{:<8}", format::word(&trouble.severity)), tone, colour);
        let _ = writeln!(text, "{word}{}: {}", trouble.subject, trouble.message);
    }
    if status.more_troubles > 0 {
        let _ = writeln!(text, "… and {} more", status.more_troubles);
    }
    text
}

fn tally(tally: Counts, word: &str, colour: bool) -> String {
    let tone = if tally.well == tally.all { Tone::Good } else { Tone::Bad };
    paint(&format!("{} of {} {word}", tally.well, tally.all), tone, colour)
}
