//! The target's cores and a host on reactors without a kernel, in one thread.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use block::{BlockSize, Blocks, Bytes, Command, Geometry, Lba, Span};
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options, PathId, Policy};
use nvme::pdu::Digests;
use nvme::target::NamespaceIds;
use nvme::wire::{AnaState, Nqn};
use reactor::testing::simulation::{SimulatedReactor, World};
use reactor::{Handler as _, Io as _};

use super::config::{Backing, Config, EngineLimits, Namespace, Subsystem};
use super::directory::SubsystemDirectory;
use super::shard::{Message, Shard};
use super::{DEVICE, POOL};
use crate::client::{Remote, StandaloneHandler};
use crate::device::{Data, Devices, Finished, TokenKinds};
use crate::replication::Replication;

const DISK: &str = "/disk";
const MIB: u32 = 4;
/// Requests at work at once, each on blocks of its own.
const WORKERS: u64 = 8;
/// Requests of a run, and after how many of them connections are cut.
const REQUESTS: u64 = 150;
const CUT_EVERY: u64 = 40;
/// More than one transfer of the protocol holds, so that data take every way there is.
const LENGTHS: [u64; 4] = [1, 3, 16, 64];

/// A target of two cores: connections are accepted on one and served on the other.
struct Target {
    cores: Vec<(SimulatedReactor<Message>, Shard)>,
    address: std::net::SocketAddr,
}

fn config(backing: Backing) -> Config {
    let ids = NamespaceIds { uuid: [1; 16], ..NamespaceIds::default() };
    let namespace = Namespace { backing, ids, ana: AnaState::Optimized };
    let subsystem = Subsystem { namespaces: [(1, namespace)].into(), ..Subsystem::default() };
    Config {
        pools: Vec::new(),
        listen: vec!["127.0.0.1:4420".parse().unwrap()],
        cores: vec![0, 1],
        subsystems: [(name(), subsystem)].into(),
        digests: Digests { header: true, data: true },
        limits: EngineLimits::default(),
        replication: Replication::default(),
    }
}

fn name() -> Nqn {
    Nqn::new("nqn.2026-11.io.holdfast:simulated").unwrap()
}

impl Target {
    fn start(world: &World, config: &Config) -> Target {
        let directory = Arc::new(SubsystemDirectory::new(config.cores.len()));
        for (nqn, subsystem) in &config.subsystems {
            // On the core that does not accept connections.
            directory.pin_or_choose(nqn.clone(), Some(1)).tell(Some(subsystem.hosts()));
        }
        let mut cores = Vec::new();
        let mut addresses = Vec::new();
        for index in 0..config.cores.len() {
            let mut io = SimulatedReactor::new(world).unwrap();
            let devices = Devices::new(TokenKinds { files: DEVICE, pools: POOL });
            let opened = Shard::open(index, config, Arc::clone(&directory), (devices, &mut io));
            let (core, listening) = opened.unwrap();
            addresses.extend(listening);
            cores.push((io, core));
        }
        let mailboxes: Vec<_> = cores.iter().map(|(io, _)| io.mailbox()).collect();
        for (io, core) in &mut cores {
            core.mailboxes.clone_from(&mailboxes);
            core.addresses.clone_from(&addresses);
            core.settle(io);
        }
        Target { cores, address: addresses[0] }
    }
}

/// A target, a host, and what the host wrote.
struct Lab {
    world: World,
    target: Target,
    io: SimulatedReactor<()>,
    host: StandaloneHandler<u64>,
    /// By worker: what its blocks hold, once that was acknowledged.
    held: BTreeMap<u64, (u64, u8)>,
    /// By worker: what it is writing.
    writing: BTreeMap<u64, (u64, u8)>,
    ended: u64,
}

impl Lab {
    fn new(seed: u64, backing: Backing) -> Lab {
        let world = World::new(seed);
        world.put(Path::new(DISK), vec![0; usize::try_from(MIB).unwrap() << 20]);
        let target = Target::start(&world, &config(backing));
        let mut io = SimulatedReactor::new(&world).unwrap();
        let policy = Policy {
            reconnect_first: Duration::from_millis(10),
            reconnect_most: Duration::from_millis(50),
            ..Policy::default()
        };
        let mut remote = Remote::new(1, policy, 0);
        let association = Association {
            host: Host { nqn: Nqn::new("nqn.2026-11.io.holdfast:host").unwrap(), id: [7; 16] },
            subsystem: name(),
            keys: None,
            accepted: Accepted::default(),
            options: Options::default(),
        };
        remote.add(PathId(1), target.address, association, false, &mut io);
        let host = StandaloneHandler::new(remote);
        let (held, writing) = (BTreeMap::new(), BTreeMap::new());
        Lab { world, target, io, host, held, writing, ended: 0 }
    }

    /// Everybody has a turn; if nothing happened, time passes.
    fn turn(&mut self) {
        let mut moved = false;
        let mut next = Vec::new();
        for (io, core) in &mut self.target.cores {
            moved |= io.turn(core).moved;
            next.extend(io.next_due());
        }
        moved |= self.io.turn(&mut self.host).moved;
        next.extend(self.io.next_due());
        if !moved {
            self.world.advance(next.into_iter().min().expect("nothing will ever happen"));
        }
    }

    /// The next request of a worker: what it wrote last is read, and then written over.
    fn next(&mut self, worker: u64) {
        let span = |blocks| Span::new(Lba(worker * 64), Blocks(blocks)).unwrap();
        let (command, data) = if let Some((blocks, _)) = self.held.get(&worker).copied() {
            let buffer = self.buffer(blocks, 0xEE);
            (Command::Read { span: span(blocks) }, Data::Fill(buffer))
        } else {
            let blocks = LENGTHS[self.world.below(LENGTHS.len())];
            let byte = u8::try_from(1 + self.world.below(200)).unwrap();
            self.writing.insert(worker, (blocks, byte));
            let bytes = self.buffer(blocks, byte).freeze();
            (Command::Write { span: span(blocks), fua: false }, Data::Bytes(bytes))
        };
        self.host.remote.submit(worker, command, data, &mut self.io).unwrap();
    }

    fn buffer(&mut self, blocks: u64, byte: u8) -> reactor::Buffer {
        let mut buffer = self.io.take(usize::try_from(blocks).unwrap() * 4096).unwrap();
        buffer.fill(byte);
        buffer
    }

    /// A request ended: what was read is what was written last.
    fn ended(&mut self, finished: Finished<u64>) {
        let Finished { owner: worker, completion, data } = finished;
        assert_eq!(completion, Ok(()), "request {}", self.ended);
        self.ended += 1;
        if let Some(written) = self.writing.remove(&worker) {
            self.held.insert(worker, written);
        } else {
            let (_, byte) = self.held.remove(&worker).unwrap();
            let Data::Fill(buffer) = data else { panic!("a read without its data") };
            assert!(buffer.iter().all(|found| *found == byte), "worker {worker} wants {byte}");
        }
        self.next(worker);
    }

    /// Lets many requests end, with connections cut now and then; returns when that was.
    fn run(mut self) -> u64 {
        let mut cut = 0;
        for worker in 0..WORKERS {
            self.next(worker);
        }
        let mut next_cut = CUT_EVERY;
        while self.ended < REQUESTS {
            self.turn();
            while let Some(finished) = self.host.remote.poll() {
                self.ended(finished);
            }
            if self.ended >= next_cut {
                next_cut += CUT_EVERY;
                cut += self.world.cut_all();
            }
        }
        assert!(cut > 0, "no connection was ever cut");
        self.world.now().nanos()
    }
}

fn check(backing: &Backing) {
    let mut ends = Vec::new();
    for seed in 0..12 {
        let run = || Lab::new(seed, backing.clone()).run();
        let end = run();
        assert_eq!(end, run(), "seed {seed} gives another run the second time");
        ends.push(end);
    }
    ends.sort_unstable();
    ends.dedup();
    assert_eq!(ends.len(), 12, "seeds do not matter");
}

#[test]
fn a_target_in_memory_serves_a_host_that_is_cut_off() {
    check(&Backing::Memory(Geometry::of_bytes(BlockSize::B4096, Bytes::mib(MIB)).unwrap()));
}

#[test]
fn a_target_on_a_file_serves_a_host_that_is_cut_off() {
    check(&Backing::File { path: DISK.into(), block_size: BlockSize::B4096 });
}
