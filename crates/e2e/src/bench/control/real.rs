//! A control plane as a process, over an embedded store on disk, asked over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use control::testing::{Cluster, fill};
use model::Timestamp;
use store::contract::{Op, Store as _, Txn};
use tokio::runtime::Runtime;

use crate::process::{Program, holdfast};
use crate::store::{Kind, StoreServer};

/// Records written at once.
const AT_ONCE: usize = 100;
/// How often the page is asked for.
const PAGES: usize = 30;

/// What was measured.
pub(super) struct Real {
    /// Seconds from the start of the process to its first answer as the leader.
    pub(super) restart: f64,
    /// Seconds for a page of a thousand volumes, each.
    pub(super) pages: Vec<f64>,
}

/// A cluster of so many volumes is stored; the store and a control plane are started over that.
pub(super) fn measure((nodes, crowd): (usize, usize), volumes: usize) -> Result<Real> {
    let runtime = Runtime::new().context("cannot start a runtime")?;
    // Beside the program: folders for passing files are in memory on some machines.
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    let disk = me.parent().context("this program is in no folder")?;
    let mut store = StoreServer::start_in(Kind::Embedded, disk)?;
    let mut cluster = Cluster::new(nodes);
    fill(&mut cluster, (volumes, crowd), Timestamp::from_millis(1_000_000_000));
    runtime.block_on(async {
        let client = store.client().await?;
        for chunk in cluster.records().chunks(AT_ONCE) {
            let puts = chunk.iter().map(|kv| Op::put(kv.key.clone(), kv.value.clone()));
            client.txn(puts.fold(Txn::new(), Txn::then)).await?;
        }
        anyhow::Ok(())
    })?;
    ensure!(store.program().stop()?.success(), "the store did not stop well");
    store.restart()?;
    runtime.block_on(store.client())?;
    let began = Instant::now();
    let mut command = holdfast()?;
    command.args(["control", "serve", "--listen", "127.0.0.1:0", "--store", &store.endpoint()]);
    let program = Program::start(&mut command)?;
    let after =
        |line: &str| line.split_once("listening on http://").map(|(_, at)| at.trim().to_owned());
    let address = program.wait_for("where it listens", after)?;
    while !get(&address, "/v1/status")?.starts_with(b"HTTP/1.1 200") {
        std::thread::yield_now();
    }
    let restart = began.elapsed().as_secs_f64();
    let mut pages = Vec::new();
    for _ in 0..PAGES {
        let began = Instant::now();
        let page = get(&address, "/v1/volumes?limit=1000")?;
        pages.push(began.elapsed().as_secs_f64());
        ensure!(page.starts_with(b"HTTP/1.1 200") && page.len() > 100_000, "{} bytes", page.len());
    }
    Ok(Real { restart, pages })
}

/// A whole answer, over a connection of its own.
fn get(address: &str, path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
