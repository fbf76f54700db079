//! The lanes of proof.

use std::time::Instant;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::packages::{self, Need};
use crate::{built, cargo, command, kubernetes, run};

/// A set of tests that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lane {
    /// Format, lints, tidy rules, unit, golden, property and crash tests
    Quick,
    /// Whole programs, a real etcd, real files
    Real,
    /// A stock Linux kernel in a virtual machine
    Kernel,
    /// A Kubernetes of several nodes on this machine, with our image and chart
    Kubernetes,
    /// Dependencies' licences and sources, and many more seeds
    Deep,
}

/// How many histories the seeded tests of the deep lane run; each quick test has its own few.
const SEEDS: &str = "300";
/// How many operations one history of the deep lane has.
const OPERATIONS: &str = "1000000";
/// How long a target lives with bad hosts in the deep lane.
const SECONDS: &str = "600";

const DEFAULT: &[Lane] = &[Lane::Quick, Lane::Real, Lane::Kernel];

/// Runs the lanes asked for, or the default ones.
pub(crate) fn run_all(asked: &[Lane]) -> Result<()> {
    let mut lanes = if asked.is_empty() { DEFAULT.to_vec() } else { asked.to_vec() };
    if asked.is_empty() {
        let missing = kubernetes::missing(&kubernetes::cache()?);
        if missing.is_empty() {
            lanes.push(Lane::Kubernetes);
        } else {
            eprintln!(
                "lane Kubernetes is left out: {} are not built yet; `cargo xtask test kubernetes` \
                 builds them and runs it",
                missing.join(", ")
            );
        }
    }
    let needs: Vec<_> = lanes.iter().flat_map(|lane| lane.needs()).copied().collect();
    packages::ensure(&needs)?;
    for lane in lanes {
        let started = Instant::now();
        lane.run()?;
        eprintln!("lane {lane:?} passed in {} s", started.elapsed().as_secs());
    }
    Ok(())
}

impl Lane {
    fn needs(self) -> &'static [Need] {
        match self {
            Lane::Quick | Lane::Deep => &[Need::Build],
            Lane::Real => &[Need::Build, Need::Peers],
            Lane::Kernel => &[Need::Build, Need::Machines],
            Lane::Kubernetes => &[Need::Build, Need::Image, Need::Kubernetes],
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Lane::Quick => {
                cargo(&["fmt", "--all", "--check"])?;
                let all = ["clippy", "--workspace", "--all-targets", "--all-features"];
                cargo(&[&all[..], &["--", "-D", "warnings"]].concat())?;
                cargo(&["test", "--workspace", "--exclude", "e2e"])?;
                cargo(&["test", "--package", "e2e", "--lib"])
            }
            Lane::Real => end_to_end("real"),
            Lane::Kernel => end_to_end("kernel"),
            Lane::Kubernetes => {
                let cache = kubernetes::cache()?;
                kubernetes::make(&cache)?;
                cargo(&["build", "--package", "holdfast"])?;
                kubernetes::images(&cache, &built("debug")?.join("holdfast"))?;
                cargo(&["test", "--package", "e2e", "--test", "kubernetes"])
            }
            Lane::Deep => {
                cargo(&["deny", "check", "bans", "licenses", "sources"])
                    .context("cargo-deny is needed: `cargo install --locked cargo-deny`")?;
                let seeded =
                    ["mirror", "nvme", "pool", "store"].map(|name| ["--package", name]).concat();
                run(command(&[&["test", "--release"], &seeded[..]].concat())
                    .env("HOLDFAST_SEEDS", SEEDS)
                    .env("HOLDFAST_OPERATIONS", OPERATIONS))?;
                cargo(&["build", "--package", "holdfast"])?;
                let rough = ["test", "--package", "e2e", "--test", "real", "a_rough_life"];
                run(command(&rough).env("HOLDFAST_SECONDS", SECONDS))
            }
        }
    }
}

/// Tests with the real program, which misbehaves when it is told to.
fn end_to_end(test: &str) -> Result<()> {
    cargo(&["build", "--package", "holdfast", "--features", "faults"])?;
    cargo(&["test", "--package", "e2e", "--features", "faults", "--test", test])
}
