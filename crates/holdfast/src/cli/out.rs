//! Where answers are written, and in which form.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use api::StreamItem;
use api::rest::Remote;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use super::table::{Cell, Column, Look, Table};
use crate::stop;

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For people with wide screens
    Wide,
    /// For programs, as REST answers
    Json,
    /// The same as YAML
    Yaml,
}

/// Something that can be a row of a table.
pub(crate) trait Row: Serialize {
    /// Its columns.
    const COLUMNS: &'static [Column];

    /// Its cells, one for each column.
    fn cells(&self) -> Vec<Cell>;

    /// What stands below the table when one thing is shown by itself.
    fn details(&self, _: &Out<'_>) -> String {
        String::new()
    }
}

/// Where answers are written.
pub(crate) struct Out<'a> {
    to: &'a mut (dyn Write + Send),
    format: Format,
    colour: bool,
    watch: bool,
    tries: bool,
}

/// How often something is looked at again while it is watched, if nothing is told.
const AGAIN: Duration = Duration::from_secs(2);

impl<'a> Out<'a> {
    pub(crate) fn new(to: &'a mut (dyn Write + Send), format: Format, colour: bool) -> Out<'a> {
        Out { to, format, colour, watch: false, tries: false }
    }

    pub(crate) fn watching(self, watch: bool) -> Out<'a> {
        Out { watch, ..self }
    }

    pub(crate) fn trying(self, tries: bool) -> Out<'a> {
        Out { tries, ..self }
    }

    /// Whether only what would be done is asked for (`--dry-run`).
    pub(crate) fn tries(&self) -> bool {
        self.tries
    }

    pub(crate) fn colour(&self) -> bool {
        self.colour
    }

    /// Whether people read it.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// A table in the form that was asked for.
    pub(crate) fn table<'t, T: Row + 't>(&self, rows: impl IntoIterator<Item = &'t T>) -> String {
        let mut table = Table::new(T::COLUMNS);
        for row in rows {
            table.push(row.cells());
        }
        table.render(Look { wide: self.format == Format::Wide, colour: self.colour })
    }

    /// Whether people read it, and not programs.
    pub(crate) fn is_for_people(&self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }

    /// Many things.
    pub(crate) fn list<T: Row>(&mut self, items: &[T]) -> Result<()> {
        let text = match self.format {
            Format::Table | Format::Wide => self.table(items),
            Format::Json | Format::Yaml => self.value(&items)?,
        };
        self.text(&text)
    }

    /// One thing, with all there is to say about it.
    pub(crate) fn one<T: Row>(&mut self, item: &T) -> Result<()> {
        let text = match self.format {
            Format::Table | Format::Wide => {
                let details = item.details(self);
                self.table([item]) + &details
            }
            Format::Json | Format::Yaml => self.value(item)?,
        };
        self.text(&text)
    }

    /// What was done: a sentence for people, the answer for programs.
    pub(crate) fn done<T: Serialize>(&mut self, said: &str, answer: &T) -> Result<()> {
        let text = match self.format {
            Format::Table | Format::Wide => format!("{said}\n"),
            Format::Json | Format::Yaml => self.value(answer)?,
        };
        self.text(&text)
    }

    /// A value as JSON or YAML.
    pub(crate) fn value(&self, value: &impl Serialize) -> Result<String> {
        if self.format == Format::Yaml {
            let mut text = String::new();
            yaml(&serde_json::to_value(value)?, 0, &mut text);
            return Ok(text);
        }
        Ok(serde_json::to_string_pretty(value)? + "\n")
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.to.write_all(text.as_bytes())?;
        Ok(self.to.flush()?)
    }

    /// Shows once; or, if that was asked for, whenever something happens, until Ctrl-C.
    pub(crate) async fn show<S>(&mut self, remote: &Remote, mut show: S) -> Result<()>
    where
        S: AsyncFnMut(&mut Out<'_>) -> Result<()>,
    {
        if !self.watch {
            return show(self).await;
        }
        let terminal = std::io::stdout().is_terminal();
        let mut events = remote.events(None).await.ok();
        let mut last = Vec::new();
        let mut stop = std::pin::pin!(stop::asked());
        loop {
            let mut text = Vec::new();
            match show(&mut Out::new(&mut text, self.format, self.colour)).await {
                Ok(()) => {}
                // What was never there is not worth waiting for.
                Err(error) if last.is_empty() => return Err(error),
                Err(error) => {
                    // Whoever watches wants to know when it is back.
                    tracing::warn!("{error:#}; trying again");
                    text.clone_from(&last);
                    events = None;
                }
            }
            if text != last {
                let between: &[u8] = match self.format {
                    _ if terminal => b"\x1b[H\x1b[2J\x1b[3J",
                    _ if last.is_empty() => b"",
                    Format::Table | Format::Wide => b"\n",
                    Format::Yaml => b"---\n",
                    Format::Json => b"",
                };
                self.to.write_all(between)?;
                self.to.write_all(&text)?;
                self.to.flush()?;
                last = text;
            }
            let told = async {
                match events.as_mut() {
                    Some(events) => events.next().await,
                    None => std::future::pending().await,
                }
            };
            let lost = tokio::select! {
                () = &mut stop => return Ok(()),
                told = told => !matches!(told, Ok(Some(StreamItem::Event(_) | StreamItem::Missed))),
                () = tokio::time::sleep(AGAIN) => events.is_none(),
            };
            if lost {
                events = remote.events(None).await.ok();
            }
        }
    }
}

/// YAML of a JSON value: every string in quotes, which YAML reads as JSON does.
pub(crate) fn yaml(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                text.extend([indent.as_str(), plain(key).as_str(), ":"]);
                below(value, depth, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                yaml(item, depth + 1, &mut inner);
                // The first line of the item stands beside its dash.
                let rest = inner.get(indent.len() + 2..).unwrap_or_default();
                text.extend([indent.as_str(), "- ", rest]);
            }
        }
        scalar => text.extend([indent.as_str(), scalar.to_string().as_str(), "\n"]),
    }
}

fn below(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            yaml(value, depth + 1, text);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            yaml(value, depth, text);
        }
        scalar => text.extend([" ", scalar.to_string().as_str(), "\n"]),
    }
}

/// A key that needs no quotes, or one in quotes.
fn plain(key: &str) -> String {
    let simple = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let bare = key.chars().all(simple) && key.starts_with(|c: char| c.is_ascii_alphabetic());
    if bare { key.to_owned() } else { Value::from(key).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_of_every_shape() {
        let value = json!({
            "a": [{ "b": 1, "c": ["x", []] }, "y: z"], "00-1": {}, "t": true, "n": null,
        });
        let mut text = String::new();
        yaml(&value, 0, &mut text);
        let wanted = concat!(
            "\"00-1\": {}\na:\n- b: 1\n  c:\n  - \"x\"\n  - []\n- \"y: z\"\n",
            "n: null\nt: true\n"
        );
        assert_eq!(text, wanted);
    }
}
