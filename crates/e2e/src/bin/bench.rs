//! `cargo xtask bench NAME [--quick] [--only PART] [--spdk-perf PATH]`: runs a benchmark and prints
//! its figures.

#![expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;
use e2e::bench::{BENCHES, Options};

#[derive(Parser)]
struct BenchArgs {
    /// Which benchmark to run
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
}

fn main() -> Result<()> {
    let typed = BenchArgs::parse();
    let Some(bench) = BENCHES.iter().find(|bench| bench.name == typed.name) else {
        let names: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        bail!("there is no benchmark {:?}; there are: {}", typed.name, names.join(", "));
    };
    let options = Options {
        quick: typed.quick,
        only: typed.only.as_deref(),
        spdk_perf: typed.spdk_perf.as_deref(),
    };
    let figures = (bench.run)(options)?;
    println!();
    for figure in figures {
        println!("{figure}");
    }
    Ok(())
}
