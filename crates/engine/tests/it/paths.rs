//! One namespace by two paths, one of which goes away.

use std::net::SocketAddr;
use std::time::Duration;

use block::{Blocks, Command, Lba, Span};
use engine::client::{Remote, StandaloneHandler};
use engine::device::{Data, Finished};
use engine::serve::{AdminResponse, Server};
use nvme::initiator::{Options, PathId, Policy};
use nvme::wire::AnaState;
use reactor::{Handler as _, Io as _, Reactor};

use crate::failing::Failing;
use crate::harness::{address, association, config, file, nqn, one};

struct Bench {
    reactor: Reactor<()>,
    host: StandaloneHandler<u64>,
}

impl Bench {
    fn new(paths: &[SocketAddr]) -> Bench {
        let policy = Policy {
            reconnect_first: Duration::from_millis(10),
            reconnect_most: Duration::from_millis(50),
            ..Policy::default()
        };
        Bench::with(policy, paths)
    }

    fn with(policy: Policy, paths: &[SocketAddr]) -> Bench {
        let mut reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let mut remote = Remote::new(1, policy, 0);
        for (path, id) in paths.iter().zip(1..) {
            let association = association(nqn("a"), Options::default());
            remote.add(PathId(id), *path, association, false, &mut reactor);
        }
        Bench { reactor, host: StandaloneHandler::new(remote) }
    }

    fn start(&mut self, owner: u64, command: Command, byte: u8) {
        let mut buffer = self.reactor.take(4096).unwrap();
        buffer.fill(byte);
        let data = match command {
            Command::Read { .. } => Data::Fill(buffer),
            _ => Data::Bytes(buffer.freeze()),
        };
        self.host.remote.submit(owner, command, data, &mut self.reactor).unwrap();
        self.host.settle(&mut self.reactor);
    }

    fn finish(&mut self) -> Finished<u64> {
        loop {
            if let Some(finished) = self.host.remote.poll() {
                return finished;
            }
            self.reactor.turn(&mut self.host).unwrap();
        }
    }
}

#[test]
fn a_lost_path_costs_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let target = || Server::start(config(vec![file(&disk, 8)], 1)).unwrap();
    let (first, second) = (target(), target());
    let mut bench = Bench::new(&[address(&first), address(&second)]);
    let (mut first, mut second) = (Some(first), Some(second));
    let depth = 16;
    for block in 0..depth {
        bench.start(block, Command::Write { span: one(block), fua: false }, 1);
    }
    for done in 0..400u64 {
        let finished = bench.finish();
        assert_eq!(finished.completion, Ok(()), "request {done}");
        let block = finished.owner;
        // Each path goes once, with requests at work; a new target takes the other's place.
        match done {
            100 => first.take().unwrap().stop().unwrap(),
            250 => {
                let third = target();
                let association = association(nqn("a"), Options::default());
                let at = address(&third);
                bench.host.remote.add(PathId(3), at, association, false, &mut bench.reactor);
                first = Some(third);
                second.take().unwrap().stop().unwrap();
            }
            _ => {}
        }
        if done + depth < 400 {
            let byte = u8::try_from(done % 251).unwrap();
            bench.start(block, Command::Write { span: one(block), fua: false }, byte);
        }
    }
    for block in 0..depth {
        bench.start(block, Command::Read { span: one(block) }, 0xEE);
        let Finished { completion: Ok(()), data: Data::Fill(buffer), .. } = bench.finish() else {
            panic!("block {block} cannot be read");
        };
        assert!(buffer.iter().all(|byte| *byte == buffer[0] && *byte != 0xEE));
    }
    first.unwrap().stop().unwrap();
}

#[test]
fn requests_follow_the_usable_path() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let target = || Server::start(config(vec![file(&disk, 8)], 1)).unwrap();
    let targets = [target(), target()];
    let mut bench = Bench::new(&targets.each_ref().map(address));
    let set = |which: usize, state| {
        let answer = targets[which].orders().set_ana(nqn("a"), 1, state).wait().unwrap();
        assert_eq!(answer, AdminResponse::Changed);
    };
    set(1, AnaState::Inaccessible);
    let (depth, all) = (8, 400);
    for block in 0..depth {
        bench.start(block, Command::Write { span: one(block), fua: false }, 1);
    }
    let mut usable = 0;
    for done in 0..all {
        let Finished { owner: block, completion, .. } = bench.finish();
        assert_eq!(completion, Ok(()), "request {done}");
        if done % 100 == 50 {
            // For a moment no path is usable at all: requests wait.
            set(usable, AnaState::Inaccessible);
            usable = 1 - usable;
            set(usable, AnaState::Optimized);
        }
        if done + depth < all {
            bench.start(block, Command::Write { span: one(block), fua: false }, 2);
        }
    }
    for target in targets {
        target.stop().unwrap();
    }
}

/// The path is left alone for an hour, unless its ANA log, which is read again, says that it is
/// good.
#[test]
fn a_path_that_failed_a_request_is_asked_for_its_state() {
    let failing = Failing::start(3);
    let hour = Duration::from_hours(1);
    let policy = Policy { suspect_for: hour, hold_for: hour, ..Policy::default() };
    let mut bench = Bench::with(policy, &[failing]);
    bench.start(0, Command::Read { span: one(0) }, 0xEE);
    let finished = bench.finish();
    assert_eq!(finished.completion, Ok(()));
}

/// A planned move drops a path that works, also in the middle of a large read: what was received by
/// halves is read by another path.
#[test]
fn a_path_that_is_removed_costs_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let target = || Server::start(config(vec![file(&disk, 8)], 1)).unwrap();
    let targets = [target(), target()];
    let mut bench = Bench::new(&targets.each_ref().map(address));
    let large = Span::new(Lba(0), Blocks(256)).unwrap();
    for round in 0..60u16 {
        for owner in 0..4 {
            let buffer = bench.reactor.take(1 << 20).unwrap();
            let (command, data) = (Command::Read { span: large }, Data::Fill(buffer));
            bench.host.remote.submit(owner, command, data, &mut bench.reactor).unwrap();
        }
        bench.host.settle(&mut bench.reactor);
        for _ in 0..round % 12 {
            bench.reactor.turn(&mut bench.host).unwrap();
        }
        let which = usize::from(round % 2);
        let old = bench.host.remote.paths().find(|path| path.1 == address(&targets[which]));
        let association = association(nqn("a"), Options::default());
        bench.host.remote.remove(old.unwrap().0, &mut bench.reactor);
        let (id, at) = (PathId(10 + round), address(&targets[which]));
        bench.host.remote.add(id, at, association, false, &mut bench.reactor);
        for _ in 0..4 {
            assert_eq!(bench.finish().completion, Ok(()), "round {round}");
        }
    }
    assert_eq!(bench.host.remote.namespace().unwrap().geometry.bytes().0, 8 << 20);
    assert!(bench.host.remote.poll_timeout(&bench.reactor).is_some());
}
