//! What the programs say about themselves, on standard error.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Options of logging, common to all commands.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// What to log: a level, or levels by module, such as `info` or `store=debug,info`
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_LOG",
        default_value = "info",
        value_name = "FILTER",
        help_heading = "Logging"
    )]
    log: EnvFilterText,
    /// How to write log lines
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    log_format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object a line, for machines
    Json,
}

/// A filter that was checked when it was typed.
#[derive(Clone)]
struct EnvFilterText(String);

impl std::str::FromStr for EnvFilterText {
    type Err = String;

    fn from_str(text: &str) -> Result<EnvFilterText, String> {
        match EnvFilter::try_new(text) {
            Ok(_) => Ok(EnvFilterText(text.to_owned())),
            Err(error) => Err(format!("{error}; try `info` or `store=debug,info`")),
        }
    }
}

/// Where lines go instead of standard error, once there is such a place.
static FILE: OnceLock<File> = OnceLock::new();

/// Starts logging. Called once, before anything else runs. Colours are for terminals only, and
/// not for what may go to a file later.
pub(crate) fn start(typed: &LogArgs, colours: bool) {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&typed.log.0))
        .with_writer(place)
        .with_target(false);
    match typed.log_format {
        Format::Text => lines.with_ansi(colours && std::io::stderr().is_terminal()).init(),
        Format::Json => lines.json().init(),
    }
}

/// From now on lines are added to this file: something else is shown on the terminal.
pub(crate) fn to(path: &Path) -> Result<()> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    // A second call changes nothing: there is one screen.
    let _ = FILE.set(file);
    Ok(())
}

fn place() -> Box<dyn Write> {
    match FILE.get() {
        Some(file) => Box::new(file),
        None => Box::new(std::io::stderr()),
    }
}
