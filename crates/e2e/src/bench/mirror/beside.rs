//! What a rebuild costs a host: turns with it running take turns with it paused.
//!
//! In both the same host writes one block at a time to the same volume, all of whose copies take
//! its writes. Between two turns the host goes on without being measured, so that the rebuild
//! yields to it from the first to the last moment.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use api::node::{Node as _, RebuildRequest, Run};
use engine::client::perf::Pattern;
use model::{ChildState, Generation, Rebuild, VersionedSpec};

use super::turns::{Client, print_median};
use super::{Bench, Shape, THREE, fill, real, volume};
use crate::bench::median;
use crate::figure::Target;
use crate::fleet::{self, Fleet};

/// The node whose copy is rebuilt.
const LOST: usize = 2;

/// A fleet whose last copy is rebuilt, and the one host of its volume.
struct Rebuilt<'a> {
    bench: &'a Bench,
    fleet: Fleet,
    host: Client,
    orders: u64,
    /// What rebuilds copied in the turns in which they ran, in MiB.
    copied: f64,
}

impl Bench {
    pub(super) fn beside_rebuild(&mut self) -> Result<()> {
        let (turns, millis) = if self.quick { (15, 300) } else { (25, 1000) };
        let time = Duration::from_millis(millis);
        let what = Shape::new(Pattern::RandomWrite, 1);
        let mut rebuilt = Rebuilt::start(self)?;
        let (mut quiet, mut beside) = (Vec::new(), Vec::new());
        for seed in 1..=turns {
            rebuilt.order(Run::Pause)?;
            quiet.push(rebuilt.host.run(what.load(time, seed))?);
            rebuilt.order(Run::Run)?;
            let before = rebuilt.done()?;
            beside.push(rebuilt.host.run(what.load(time, seed))?);
            rebuilt.copied += (rebuilt.done()? - before).max(0.0);
        }
        let seconds = time.as_secs_f64() * real(turns);
        println_copied(rebuilt.copied, seconds);
        print_median("beside a paused rebuild", what, &quiet);
        print_median("beside a rebuild", what, &beside);
        let pairs = quiet.iter().zip(&beside);
        let ratio = median(pairs.map(|(quiet, beside)| beside.p99 / quiet.p99));
        self.add("mirror-rebuild-user-p99", ratio, "x", Target::AtMost(2.0));
        Ok(())
    }
}

impl Rebuilt<'_> {
    fn start(bench: &Bench) -> Result<Rebuilt<'_>> {
        let mut fleet = bench.fleet(THREE)?;
        let address: SocketAddr = bench.open(&mut fleet)?;
        let id = fleet.volume;
        let host = Client::start(move || volume(address, id));
        let mut rebuilt = Rebuilt { bench, fleet, host, orders: 0, copied: 0.0 };
        rebuilt.lose()?;
        Ok(rebuilt)
    }

    /// Does something while the host writes unmeasured.
    fn meanwhile<T: Send>(
        &mut self,
        work: impl FnOnce(&Bench, &mut Fleet) -> Result<T> + Send,
    ) -> Result<T> {
        let Rebuilt { bench, fleet, host, .. } = self;
        let load = Shape::new(Pattern::RandomWrite, 1).load(Duration::from_millis(20), 1);
        thread::scope(|scope| {
            let working = scope.spawn(move || work(bench, fleet));
            while !working.is_finished() {
                host.run(load)?;
            }
            working.join().map_err(|_| anyhow!("it panicked"))?
        })
    }

    /// The copy is lost, misses everything, and comes back.
    fn lose(&mut self) -> Result<()> {
        let target = fleet::id(40)?;
        self.fleet.machines.get_mut(LOST).context("three nodes")?.kill()?;
        self.bench.runtime.block_on(self.fleet.until_lost((target, 0), LOST))?;
        self.host.run(fill(2))?;
        self.meanwhile(|bench, fleet| {
            bench.runtime.block_on(async {
                fleet.restart(LOST).await?;
                let is_rebuilt = |state| state == ChildState::Rebuilding;
                fleet.until_child((target, 0), LOST, is_rebuilt).await
            })
        })
    }

    /// The rebuild that is under way or was the last.
    fn rebuild(bench: &Bench, fleet: &Fleet) -> Result<Rebuild> {
        let all = bench.runtime.block_on(fleet.rebuilds(0, LOST))?;
        all.into_iter().next_back().context("nothing was rebuilt")
    }

    /// How far it came, in MiB.
    fn done(&self) -> Result<f64> {
        let rebuild = Rebuilt::rebuild(self.bench, &self.fleet)?;
        Ok(real(rebuild.progress.done.bytes().0) / 1_048_576.0)
    }

    /// Lets it run or wait; one that has ended is begun anew before.
    fn order(&mut self, run: Run) -> Result<()> {
        if Rebuilt::rebuild(self.bench, &self.fleet)?.state().is_ended() {
            self.lose()?;
        }
        self.orders += 1;
        let generation = Generation::new(self.orders).context("generations begin at 1")?;
        self.meanwhile(move |bench, fleet| {
            let rebuild = Rebuilt::rebuild(bench, fleet)?;
            let spec = RebuildRequest {
                target: rebuild.target,
                replica: rebuild.replica,
                bytes_per_second: None,
                run,
            };
            let ordering =
                fleet.remote(0)?.put_rebuild(rebuild.id, VersionedSpec { generation, spec });
            bench.runtime.block_on(ordering).map_err(|problem| anyhow!("{problem}"))?;
            Ok(())
        })
    }
}

#[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
fn println_copied(mib: f64, seconds: f64) {
    println!("rebuilt beside the host: {mib:.0} MiB in {seconds:.1} s");
}
