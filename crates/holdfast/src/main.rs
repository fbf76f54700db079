//! The one binary: every role of a Holdfast cluster and every command for its users.
//!
//! Each noun of the command line is a module of the same name. Data goes to standard output,
//! everything else to standard error; an error is one sentence that says what to do.
//!
//! Deliberately not here: anything a role does. Roles are libraries; this crate turns what was
//! typed into their configuration and runs them.

mod agent;
mod arg_parsers;
mod attach;
mod cli;
mod control;
mod csi;
mod engine;
mod log;
mod man;
mod mesh;
mod nvme;
mod operator;
mod pool;
mod stop;
mod store;
mod up;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Replicated block volumes for Kubernetes, on the disks the nodes already have.
#[derive(Parser)]
#[command(name = "holdfast", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole cluster on this machine: store, control plane, engines, a first volume
    Up(up::UpArgs),
    /// Make a volume a block device of this machine, and mount it
    Attach(attach::Attach),
    /// Take a volume off this machine again
    Detach(attach::Detach),
    /// Volumes that are attached to this machine
    Attached(attach::List),
    /// Whether this machine can attach volumes, and what helps if not
    Preflight(attach::Preflight),
    /// The CSI driver: volumes for Kubernetes
    #[command(subcommand)]
    Csi(csi::CsiCommand),
    /// This machine as a host of volumes
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    /// The control plane
    #[command(subcommand)]
    Control(control::ControlCommand),
    /// The engine: serve disks over NVMe/TCP
    #[command(subcommand)]
    Engine(engine::EngineCommand),
    /// The kernel data path: replicated volumes with nothing but Kubernetes
    #[command(subcommand)]
    Mesh(mesh::MeshCommand),
    /// Look at NVMe/TCP targets, and measure them
    #[command(subcommand)]
    Nvme(nvme::NvmeCommand),
    /// The Kubernetes operator: disk pools as custom resources
    #[command(subcommand)]
    Operator(operator::OperatorCommand),
    /// Pools: the disks that engines own
    Pool(pool::PoolArgs),
    /// The store: serve the embedded one, move keys between it and etcd
    #[command(subcommand)]
    Store(store::StoreCommand),
    #[command(flatten)]
    Cluster(cli::ClusterCommand),
    /// Write the manual pages, one for each command
    Man(man::ManArgs),
    /// Print completions for a shell, to be sourced or put where it looks for them
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Up(typed) => block_on(typed.run()),
            Command::Attach(typed) => typed.run().map_err(cli::explained),
            Command::Detach(typed) => typed.run().map_err(cli::explained),
            Command::Attached(typed) => typed.run(),
            Command::Preflight(typed) => typed.run(),
            Command::Agent(typed) => typed.run(),
            Command::Control(typed) => block_on(typed.run()),
            Command::Csi(typed) => block_on(typed.run()),
            Command::Engine(typed) => typed.run(),
            Command::Mesh(typed) => block_on(typed.run()),
            Command::Nvme(typed) => typed.run(),
            Command::Operator(typed) => block_on(typed.run()),
            Command::Pool(typed) => typed.run(),
            Command::Store(typed) => block_on(typed.run()),
            Command::Cluster(typed) => block_on(typed.run()),
            Command::Man(typed) => typed.run(),
            Command::Completions { shell } => {
                let name = called();
                let mut cli = cli::with_words(Cli::command()).name(name);
                // It would panic when nobody reads any more.
                let mut text = Vec::new();
                clap_complete::generate(shell, &mut cli, name, &mut text);
                Ok(std::io::stdout().write_all(&text)?)
            }
        }
    }
}

/// The name it was called by: the same binary is a plugin of kubectl when it is called so.
fn called() -> &'static str {
    let path = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();
    let plugin = path.file_name().is_some_and(|name| name == "kubectl-holdfast");
    if plugin { "kubectl-holdfast" } else { "holdfast" }
}

/// Runs the control path, which is asynchronous; the data path is not.
fn block_on(work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Runtime::new().context("cannot start the runtime")?.block_on(work)
}

/// Whether it ended because nobody reads what it writes. Of connections that break, errors say
/// more.
fn is_unread(error: &anyhow::Error) -> bool {
    let direct = error.downcast_ref::<std::io::Error>();
    direct.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn main() -> ExitCode {
    let command = cli::with_words(Cli::command());
    let matches = command.bin_name(called().replace('-', " ")).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log::start(&cli.log, !matches!(cli.command, Command::Up(_)));
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output, such as `head`, has seen enough.
        Err(error) if is_unread(&error) => ExitCode::SUCCESS,
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
