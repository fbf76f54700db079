//! What the programs say about themselves, on standard error.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// Options of logging, common to all commands.
#[derive(Args)]
pub(crate) struct Typed {
    /// What to log: a level, or levels by module, such as `info` or `store=debug,info`
    #[arg(
        long,
        global = true,
        env = "HOLDFAST_LOG",
        default_value = "info",
        value_name = "FILTER"
    )]
    log: EnvFilterText,
    /// How to write log lines
    #[arg(long, global = true, env = "HOLDFAST_LOG_FORMAT", default_value = "text")]
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

/// Starts logging. Called once, before anything else runs.
pub(crate) fn start(typed: &Typed) {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&typed.log.0))
        .with_writer(std::io::stderr)
        .with_target(false);
    match typed.log_format {
        Format::Text => lines.with_ansi(std::io::stderr().is_terminal()).init(),
        Format::Json => lines.json().init(),
    }
}
