//! Our multipath initiator against the kernel's target, whose paths change under load.
//!
//! Each worker has a block of its own: it writes it, reads it back, and so on; every read must give
//! what was written last.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use block::{Blocks, Command, Lba, Span};
use e2e::vm::Kernel;
use engine::client::{Remote, StandaloneHandler};
use engine::device::Data;
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options, PathId, Policy};
use nvme::wire::Nqn;
use reactor::{Handler as _, Io as _, Reactor};

use crate::lab::{PATIENCE, Target, Way};
use crate::nvmet::Nvmet;
use crate::shared::with_kernel;

/// Writes and reads at work at once.
const WORKERS: u64 = 16;
/// Requests that must end after each change.
const REQUESTS: u64 = 400;
const BLOCK: usize = 4096;

#[test]
fn states_of_the_kernels_target_are_switched_under_load() -> Result<()> {
    with_kernel(Kernel::V6_12, |vm| {
        let nvmet = Nvmet::start(vm, None)?;
        let [first, second] = nvmet.ports();
        let mut load = Load::begin(nvmet.nqn(), [vm.forward(first)?, vm.forward(second)?])?;
        load.go_on(REQUESTS)?;
        let states = [
            (Way::Second, "inaccessible"),
            (Way::Second, "optimized"),
            (Way::First, "inaccessible"),
            (Way::Second, "non-optimized"),
            (Way::First, "non-optimized"),
            (Way::Second, "inaccessible"),
            (Way::First, "optimized"),
            (Way::Second, "optimized"),
        ];
        for (way, state) in states.iter().chain(&states) {
            nvmet.set_ana(vm, *way, state)?;
            load.go_on(REQUESTS).with_context(|| format!("the {way:?} path is {state}"))?;
        }
        load.end()?;
        Box::new(nvmet).remove(vm)
    })
}

/// A namespace by two paths, and who works on it.
struct Load {
    reactor: Reactor<()>,
    driven: StandaloneHandler<u64>,
    workers: Vec<Worker>,
    at_work: u64,
}

#[derive(Clone, Copy, Default)]
struct Worker {
    /// Part of what it writes.
    round: u64,
    reads: bool,
}

impl Load {
    fn begin(nqn: &str, paths: [SocketAddr; 2]) -> Result<Load> {
        let mut reactor = Reactor::new(&reactor::Config::default()).context("make a reactor")?;
        let mut remote = Remote::new(1, Policy::default(), 0);
        for (address, id) in paths.into_iter().zip(1..) {
            let host = Host { nqn: Nqn::new("nqn.2026-11.test:multipath")?, id: [9; 16] };
            let association = Association {
                host,
                subsystem: Nqn::new(nqn)?,
                keys: None,
                accepted: Accepted::default(),
                options: Options::default(),
            };
            remote.add(PathId(id), address, association, false, &mut reactor);
        }
        let driven = StandaloneHandler::new(remote);
        let workers = (0..WORKERS).map(|_| Worker::default()).collect();
        let mut load = Load { reactor, driven, workers, at_work: 0 };
        for owner in 0..WORKERS {
            load.next(owner)?;
        }
        Ok(load)
    }

    /// Lets so many requests end, each well, and begins as many.
    fn go_on(&mut self, requests: u64) -> Result<()> {
        for _ in 0..requests {
            let owner = self.finish()?;
            self.next(owner)?;
        }
        Ok(())
    }

    /// Lets what is at work end.
    fn end(mut self) -> Result<()> {
        while self.at_work > 0 {
            self.finish()?;
        }
        Ok(())
    }

    /// Begins the next request of a worker: after a write a read, after a read a write.
    fn next(&mut self, owner: u64) -> Result<()> {
        let mut buffer = self.reactor.take(BLOCK).context("no buffer is free")?;
        let span = Span::new(Lba(owner), Blocks(1)).context("no such blocks")?;
        let worker = self.worker(owner)?;
        worker.reads = !worker.reads && worker.round > 0;
        let (command, data) = if worker.reads {
            (Command::Read { span }, Data::Fill(buffer))
        } else {
            worker.round += 1;
            stamp(&mut buffer, owner, worker.round);
            (Command::Write { span, fua: false }, Data::Bytes(buffer.freeze()))
        };
        let remote = &mut self.driven.remote;
        match remote.submit(owner, command, data, &mut self.reactor) {
            Ok(()) => self.at_work += 1,
            Err((fault, _)) => bail!("a request of worker {owner} was refused: {fault}"),
        }
        self.driven.settle(&mut self.reactor);
        Ok(())
    }

    /// Waits for the end of a request, and checks what came of it.
    fn finish(&mut self) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        let finished = loop {
            if let Some(finished) = self.driven.remote.poll() {
                break finished;
            }
            if Instant::now() > deadline {
                bail!("no request ended in {PATIENCE:?}");
            }
            self.reactor.turn(&mut self.driven)?;
        };
        self.at_work -= 1;
        let owner = finished.owner;
        let round = self.worker(owner)?.round;
        finished.completion.with_context(|| format!("worker {owner} in round {round}"))?;
        if let Data::Fill(found) = finished.data {
            let mut right = [0; BLOCK];
            stamp(&mut right, owner, round);
            if *found != right {
                bail!("worker {owner} read something else than it wrote in round {round}");
            }
        }
        Ok(owner)
    }

    fn worker(&mut self, owner: u64) -> Result<&mut Worker> {
        self.workers.get_mut(usize::try_from(owner)?).context("no such worker")
    }
}

/// What a worker writes in a round: different everywhere.
fn stamp(block: &mut [u8], owner: u64, round: u64) {
    for (word, place) in block.chunks_exact_mut(8).zip(0u64..) {
        let number = (owner << 48 | round << 16 | place).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&number.to_le_bytes());
    }
}
