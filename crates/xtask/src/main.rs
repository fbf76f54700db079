//! Every chore of the project: `cargo xtask up`, `cargo xtask test`, `cargo xtask bench`.
//!
//! Each command first makes sure of the system packages it needs, then calls cargo the way a person
//! would. The tidy rules are tests of this crate.
//!
//! Deliberately not here: logic of the product. Nothing depends on this crate.

#![expect(clippy::print_stderr, reason = "chores say what they do")]

mod image;
mod kubernetes;
mod lanes;
mod packages;
#[cfg(test)]
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use lanes::Lane;
use packages::Need;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Every chore of the project")]
struct XtaskArgs {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Run Holdfast on this machine, on its embedded default; Ctrl-C stops it
    Up {
        /// Arguments for `holdfast up`, such as `--dir DIR`; `-- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Make the container image: an OCI archive for containerd, podman or a registry
    Image {
        /// Where to write it
        #[arg(long, value_name = "FILE", default_value = "target/holdfast-image.tar")]
        output: PathBuf,
        /// Its name and tag; left out: `holdfast` and the version
        #[arg(long, value_name = "NAME:TAG")]
        name: Option<String>,
        /// Take the debug build
        #[arg(long)]
        debug: bool,
    },
    /// Run the tests: the lanes named, or quick, real and kernel, and kubernetes once it was made
    Test {
        /// Which lanes to run
        lanes: Vec<Lane>,
    },
    /// Measure speed: prints a table, then one `figure` line a number
    Bench {
        /// Which benchmark: `store`, `nvme`, `pool`, `mirror`, `control`, `attach`, `failover`
        name: String,
        /// Finish within a minute, with noisier numbers
        #[arg(long)]
        quick: bool,
        /// With `mirror`: only this part of it
        #[arg(long, value_name = "PART")]
        only: Option<String>,
        /// With `nvme`: a `spdk_nvme_perf` to load our target with as well
        #[arg(long, value_name = "PATH")]
        spdk_perf: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match XtaskArgs::parse().chore {
        Chore::Up { rest } => up(&rest),
        Chore::Image { output, name, debug } => image(&output, name.as_deref(), debug),
        Chore::Test { lanes } => lanes::run_all(&lanes),
        Chore::Bench { name, quick, only, spdk_perf } => {
            bench(&name, quick, only.as_deref(), spdk_perf.as_deref())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn up(rest: &[String]) -> Result<()> {
    packages::ensure(&[Need::Build])?;
    // The build the tests use: there in a fraction of the time a release build takes.
    cargo(&["build", "--package", "holdfast"])?;
    run(Command::new(built("debug")?.join("holdfast")).arg("up").args(rest))
}

fn bench(name: &str, quick: bool, only: Option<&str>, spdk_perf: Option<&Path>) -> Result<()> {
    packages::ensure(&[Need::Build, Need::Peers])?;
    cargo(&["build", "--release", "--package", "holdfast", "--package", "e2e", "--bins"])?;
    let mut command = Command::new(built("release")?.join("bench"));
    command.arg(name);
    if quick {
        command.arg("--quick");
    }
    if let Some(part) = only {
        command.args(["--only", part]);
    }
    if let Some(path) = spdk_perf {
        command.arg("--spdk-perf").arg(path);
    }
    run(&mut command)
}

fn image(output: &Path, name: Option<&str>, debug: bool) -> Result<()> {
    packages::ensure(&[Need::Build, Need::Image])?;
    let (profile, flag): (_, &[&str]) =
        if debug { ("debug", &[]) } else { ("release", &["--release"]) };
    cargo(&[&["build", "--package", "holdfast"], flag].concat())?;
    let usual = concat!("holdfast:", env!("CARGO_PKG_VERSION"));
    image::holdfast(&built(profile)?.join("holdfast"), name.unwrap_or(usual), output)?;
    eprintln!("{} holds {}", output.display(), name.unwrap_or(usual));
    Ok(())
}

/// Runs cargo at the root of the workspace.
fn cargo(args: &[&str]) -> Result<()> {
    run(&mut command(args))
}

/// A call of cargo at the root of the workspace.
fn command(args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(args).current_dir(root());
    command
}

/// Runs a command to its end; anything but success is an error that names it.
fn run(command: &mut Command) -> Result<()> {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let line = words.join(" ");
    eprintln!("> {line}");
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}

/// Root of the workspace.
fn root() -> PathBuf {
    // As cargo says now: a build cache may have this program from another checkout.
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    package.map_or(PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from).join("../..")
}

/// Where cargo puts what it builds for `profile`: this program lies in such a place itself.
fn built(profile: &str) -> Result<PathBuf> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let target = me.ancestors().nth(2).context("this program is not in a cargo target folder")?;
    Ok(target.join(profile))
}
