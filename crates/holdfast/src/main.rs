//! The one binary: every role of a Holdfast cluster and every command for its users.
//!
//! Each noun of the command line is a module of the same name. Data goes to standard output,
//! everything else to standard error; an error is one sentence that says what to do.
//!
//! Deliberately not here: anything a role does. Roles are libraries; this crate turns what was
//! typed into their configuration and runs them.

mod log;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Replicated block volumes for Kubernetes, on the disks the nodes already have.
#[derive(Parser)]
#[command(name = "holdfast", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    log: log::Typed,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print completions for a shell, to be sourced or put where it looks for them
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Completions { shell } => {
                let mut cli = Cli::command();
                clap_complete::generate(shell, &mut cli, "holdfast", &mut std::io::stdout());
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::start(&cli.log);
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // `{:#}` prints the chain of causes on one line.
            #[expect(clippy::print_stderr, reason = "this is where errors reach the user")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
