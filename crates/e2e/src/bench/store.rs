//! The embedded store beside etcd, on the same disk, in turns.
//!
//! Rounds alternate between the two servers, so that a slow moment of the machine hits both; each
//! figure is the median of its rounds. A ratio above one means that the embedded server is better.

use std::num::NonZeroU32;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use store::client::Client;
use store::contract::{Compare, CompareOp, Keys, Op, Query, Store as _, StoreExt as _, Txn};
use tokio::runtime::Runtime;

use super::{Options, median};
use crate::figure::{Figure, Target};
use crate::store::{KINDS, StoreServer};

/// Keys of the range and memory figures.
const KEYS: u32 = 100_000;
/// Keys read by one call.
const PAGE: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
/// Keys written by one transaction when filling.
const BATCH: u32 = 100;

/// Compares the two servers.
pub(super) fn run(options: Options) -> Result<Vec<Figure>> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    runtime.block_on(compare(options))
}

/// The same measured on both servers: embedded, etcd.
type Both = [f64; 2];

async fn compare(options: Options<'_>) -> Result<Vec<Figure>> {
    let (rounds, time) = if options.quick { (3, 2.0) } else { (7, 5.0) };
    // Beside the program: folders for passing files are in memory on some machines.
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let disk = me.parent().context("this program is in no folder")?;
    let servers = [StoreServer::start_in(KINDS[0], disk)?, StoreServer::start_in(KINDS[1], disk)?];
    for server in &servers {
        server.client().await?;
    }
    let mut figures = Vec::new();
    for clients in [1, 64] {
        let time = Duration::from_secs_f64(time);
        let mut samples = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            for (server, samples) in servers.iter().zip(&mut samples) {
                samples.push(
                    swaps_per_second(server, clients, &format!("{clients}/{round}"), time).await?,
                );
            }
        }
        let rates = samples.map(median);
        report(&format!("compare-and-swap, {clients} clients"), rates, "txn/s");
        figures.extend(pair(&format!("store-cas-{clients}"), rates, "txn/s"));
        figures.push(Figure {
            name: format!("store-cas-{clients}-ratio"),
            value: rates[0] / rates[1],
            unit: "x",
            target: Target::AtLeast(1.0),
        });
    }
    let memory = fill(&servers).await?;
    report(&format!("memory for {KEYS} small keys"), memory, "MiB");
    figures.extend(pair("store-memory-100k", memory, "MiB"));
    figures.extend(range(&servers, rounds).await?);
    Ok(figures)
}

/// How long it takes to read all keys, on each server.
async fn range(servers: &[StoreServer; 2], rounds: u32) -> Result<Vec<Figure>> {
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (server, samples) in servers.iter().zip(&mut samples) {
            samples.push(seconds_to_read(&server.client().await?).await?);
        }
    }
    let times = samples.map(median).map(|seconds| seconds * 1000.0);
    report(&format!("range of {KEYS} keys"), times, "ms");
    let mut figures = pair("store-range-100k", times, "ms");
    figures.push(Figure {
        name: "store-range-100k-ratio".into(),
        value: times[0] / times[1],
        unit: "x",
        target: Target::AtMost(1.5),
    });
    Ok(figures)
}

/// Each client swaps a key of its own in `room`, as fast as it is answered.
async fn swaps_per_second(
    server: &StoreServer,
    clients: u32,
    room: &str,
    time: Duration,
) -> Result<f64> {
    let mut tasks = Vec::new();
    for number in 0..clients {
        let client = server.client().await?;
        let key = format!("cas/{room}/{number}");
        let mut last = client.put(key.clone(), "0").await?;
        tasks.push(async move {
            let end = Instant::now() + time;
            let mut done = 0u32;
            while Instant::now() < end {
                let swap = Txn::new()
                    .when(Compare::changed(key.clone(), CompareOp::Equal, last))
                    .then(Op::put(key.clone(), done.to_string()));
                let outcome = client.txn(swap).await?;
                ensure!(outcome.succeeded, "nobody else writes {key}, and yet it has changed");
                last = outcome.revision;
                done += 1;
            }
            Ok(done)
        });
    }
    let begin = Instant::now();
    let done: u32 = try_join_all(tasks.into_iter().map(tokio::spawn))
        .await?
        .into_iter()
        .sum::<Result<u32>>()?;
    Ok(f64::from(done) / begin.elapsed().as_secs_f64())
}

/// Writes the small keys; tells by how many MiB each server's process grew.
async fn fill(servers: &[StoreServer; 2]) -> Result<Both> {
    let mut grown = [0.0; 2];
    for (server, grown) in servers.iter().zip(&mut grown) {
        let client = server.client().await?;
        // What the swaps left behind is not what these keys cost.
        client.delete(Keys::ALL).await?;
        let now = client.status().await?.revision;
        client.compact(now).await?;
        let before = resident(server)?;
        for batch in 0..KEYS / BATCH {
            let puts = (0..BATCH).map(|n| batch * BATCH + n);
            let txn = puts.fold(Txn::new(), |txn, n| {
                txn.then(Op::put(format!("range/{n:08}"), format!("value of key {n:08}")))
            });
            client.txn(txn).await?;
        }
        *grown = resident(server)? - before;
    }
    Ok(grown)
}

async fn seconds_to_read(client: &Client) -> Result<f64> {
    let begin = Instant::now();
    let mut pages = pin!(client.pages(Query::prefix("range/"), PAGE));
    let mut keys = 0;
    while let Some(page) = pages.next().await {
        keys += page?.kvs.len();
    }
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(keys == usize::try_from(KEYS)?, "{keys} keys came back");
    Ok(seconds)
}

/// MiB of memory that the server's process holds.
fn resident(server: &StoreServer) -> Result<f64> {
    let path = format!("/proc/{}/status", server.pid().as_raw_pid());
    let status = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.trim().parse::<f64>()? / 1024.0)
}

fn pair(name: &str, values: Both, unit: &'static str) -> Vec<Figure> {
    let names = ["embedded", "etcd"];
    let figure = |(who, value): (&str, f64)| Figure {
        name: format!("{name}-{who}"),
        value,
        unit,
        target: Target::Watched,
    };
    names.into_iter().zip(values).map(figure).collect()
}

fn report(what: &str, [embedded, etcd]: Both, unit: &str) {
    #[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
    {
        println!("{what:32} embedded {embedded:10.1} {unit:6} etcd {etcd:10.1} {unit}");
    }
}
