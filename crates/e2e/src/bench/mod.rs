//! Benchmarks: each prints a table for people and ends with its [`Figure`] lines.

mod attach;
mod control;
mod failover;
mod mirror;
mod nvme;
mod pool;
mod store;

use std::path::Path;

use crate::figure::Figure;

/// How a benchmark is run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Under a minute, at the price of noisier numbers.
    pub quick: bool,
    /// The one part to run, of those that have parts.
    pub only: Option<&'a str>,
    /// `spdk_nvme_perf`, a second client for our NVMe/TCP target.
    pub spdk_perf: Option<&'a Path>,
}

/// A benchmark by name.
pub struct Bench {
    /// What `cargo xtask bench NAME` calls it.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(Options) -> anyhow::Result<Vec<Figure>>,
}

/// Every benchmark there is.
pub const BENCHES: &[Bench] = &[
    Bench { name: "attach", run: attach::run },
    Bench { name: "control", run: control::run },
    Bench { name: "failover", run: failover::run },
    Bench { name: "mirror", run: mirror::run },
    Bench { name: "nvme", run: nvme::run },
    Bench { name: "pool", run: pool::run },
    Bench { name: "store", run: store::run },
];

/// A count, to be printed or divided.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "for people to read")]
fn real(count: u64) -> f64 {
    count as f64
}

/// The middle one; not a number if there is none.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
