//! What `up` shows: the cluster on a screen that changes, or a line an event.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use api::StreamItem;
use api::rest::{Control, NodeQuery, Remote, VolumeQuery};

use super::free_space;
use crate::cli::{Format, Out, Tone, all, event_line, paint, screen};

/// How often the screen is looked at.
const AGAIN: Duration = Duration::from_secs(1);

/// The screen, until it is dropped.
pub(super) async fn live(
    remote: &Remote,
    (hello, dir): (&str, &Path),
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let colour = std::env::var_os("NO_COLOR").is_none();
    let mut last = String::new();
    loop {
        let text = match drawn(remote, colour).await {
            Ok(text) => text,
            Err(error) => format!("{error:#}\n"),
        };
        let trouble =
            free_space::trouble(dir, free_space::LEAST).map(|it| paint(&it, Tone::Bad, colour));
        let trouble = trouble.map_or_else(String::new, |it| format!("{it}\n\n"));
        let text = format!("{hello}\n\n{trouble}{text}");
        if text != last {
            write!(out, "\x1b[H\x1b[2J{text}")?;
            out.flush()?;
            last = text;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn drawn(remote: &Remote, colour: bool) -> Result<String> {
    let mut nothing = std::io::sink();
    let out = Out::new(&mut nothing, Format::Table, colour);
    let status = remote.status().await?;
    let nodes = all(|paging| remote.nodes(NodeQuery::default().at(paging))).await?;
    let volumes = all(|paging| remote.volumes(VolumeQuery::default().at(paging))).await?;
    let (nodes, volumes) = (out.table(&nodes), out.table(volumes.iter().take(20)));
    Ok(format!("{}\n{nodes}\n{volumes}", screen(&status, colour)))
}

/// A line an event, until it is dropped.
pub(super) async fn lines(remote: &Remote, out: &mut (dyn Write + Send)) -> Result<()> {
    let mut last = None;
    loop {
        let Ok(mut events) = remote.events(last.clone()).await else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        while let Ok(Some(seen)) = events.next().await {
            if let StreamItem::Event(event) = seen {
                write!(out, "{}", event_line(&event))?;
                out.flush()?;
            }
        }
        last = events.last().map(str::to_owned);
    }
}
