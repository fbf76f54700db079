//! Pools on a reactor without a kernel: time passes only when nothing else happens, and what was
//! written is there when the engine is gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Blocks, Bytes, Command, Completion, IoError, Lba, Span};
use model::DiskTraits;
use pool::{Change, ClusterSize, Id, Label, NewReplica};
use reactor::testing::simulation::{SimulatedReactor, World};
use reactor::{Event, Handler, Io, Key, MonotonicTime, Slab};

use super::{
    CompletedCommand, NewDisk, NewPool, PoolRequest, PoolResponse, Pools, Rate, ScrubStatus, Ticket,
};
use crate::device::Data;

const KIND: u8 = 1;
const POOL: Id = Id(1);
const REPLICA: Id = Id(100);

/// Hands everything to the pools.
struct Hand(Pools);

impl Handler for Hand {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        if let Event::Done { token, outcome } = event {
            let (_, key) = token.parts();
            self.0.on(key, outcome, io);
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = ()>) -> bool {
        self.0.retry(io);
        true
    }
}

/// An engine with nothing but pools.
struct Lab {
    world: World,
    io: SimulatedReactor<()>,
    hand: Hand,
    owner: Key,
}

impl Lab {
    fn start(world: &World) -> Lab {
        let io = SimulatedReactor::new(world).unwrap();
        let owner = Slab::new(1).insert(()).unwrap();
        Lab { world: world.clone(), io, hand: Hand(Pools::new(KIND)), owner }
    }

    /// A new pool with a replica of 16 MiB, on a disk of which nothing is known.
    fn new(seed: u64) -> Lab {
        Lab::new_on(seed, |_| DiskTraits::UNKNOWN)
    }

    fn new_on(seed: u64, traits: super::files::TraitsOf) -> Lab {
        let world = World::new(seed);
        world.put(&path(), vec![0; 64 << 20]);
        let mut lab = Lab::start(&world);
        lab.hand.0.traits = traits;
        let disks = vec![NewDisk { path: path(), id: Id(2) }];
        let (name, cluster) = ("lab".to_owned(), ClusterSize::DEFAULT);
        lab.request(PoolRequest::Create(NewPool { id: POOL, name, cluster, disks, force: false }));
        let (origin, label, key) = (Id::NONE, Label::default(), Vec::new());
        let (id, size) = (REPLICA, Blocks(4096));
        let new = NewReplica { id, origin, size, thick: false, created: 0, label, key };
        lab.request(PoolRequest::Change { pool: POOL, change: Change::Create(new) });
        lab
    }

    /// Something happens, or time passes.
    fn turn(&mut self) {
        if !self.io.turn(&mut self.hand).moved {
            self.world.advance(self.io.next_due().expect("nothing will ever happen"));
        }
    }

    fn request(&mut self, order: PoolRequest) -> PoolResponse {
        self.hand.0.request(Ticket(7), order, &mut self.io);
        loop {
            if let Some((_, answer)) = self.hand.0.poll_answer() {
                return answer.unwrap();
            }
            self.turn();
        }
    }

    fn command(&mut self, command: Command, data: Data) -> Data {
        let (completion, data) = self.try_command(command, data);
        assert_eq!(completion, Ok(()), "{command:?}");
        data
    }

    fn try_command(&mut self, command: Command, data: Data) -> (Completion, Data) {
        let replica = self.hand.0.replica(POOL, REPLICA).unwrap();
        self.hand.0.submit(replica, self.owner, command, data, &mut self.io).unwrap();
        loop {
            if let Some(CompletedCommand { completion, data, .. }) = self.hand.0.poll_ended() {
                return (completion, data);
            }
            self.turn();
        }
    }

    fn write(&mut self, first: u64, blocks: u64, byte: u8) {
        let mut buffer = self.io.take(usize::try_from(blocks).unwrap() * 4096).unwrap();
        buffer.fill(byte);
        let span = Span::new(Lba(first), Blocks(blocks)).unwrap();
        self.command(Command::Write { span, fua: false }, Data::Bytes(buffer.freeze()));
    }

    /// The byte that a block holds everywhere.
    fn byte(&mut self, at: u64) -> u8 {
        let span = Span::new(Lba(at), Blocks(1)).unwrap();
        let buffer = self.io.take(4096).unwrap();
        let Data::Fill(read) = self.command(Command::Read { span }, Data::Fill(buffer)) else {
            panic!("a read without its data")
        };
        assert!(read.iter().all(|byte| *byte == read[0]), "block {at} is mixed");
        read[0]
    }

    fn scrubbed(&mut self) -> ScrubStatus {
        let PoolResponse::Pool(status) = self.request(PoolRequest::Status(POOL)) else {
            panic!("no status")
        };
        status.scrub.expect("a scrub")
    }

    fn now(&self) -> MonotonicTime {
        self.world.now()
    }
}

fn path() -> PathBuf {
    PathBuf::from("/disk")
}

#[test]
fn a_scrub_is_no_faster_than_its_rate_and_goes_on_beside_writes() {
    let mut lab = Lab::new(1);
    for mib in 0..6 {
        lab.write(mib * 256, 256, 7);
    }
    let begun = lab.now();
    lab.request(PoolRequest::Scrub { pool: POOL, rate: Rate(Bytes::mib(2)) });
    let mut steps = 0;
    loop {
        let status = lab.scrubbed();
        let passed = lab.now().since(begun).as_secs_f64();
        let most = 1.0 + 2.0 * passed;
        let checked = f64::from(u32::try_from(status.checked.0 >> 10).unwrap()) / 1024.0;
        assert!(checked <= most, "{checked} MiB were looked at in {passed} s");
        if !status.is_running {
            assert_eq!((status.checked, status.bad), (Bytes::mib(6), Blocks(0)));
            break;
        }
        steps += 1;
        lab.write(0, 1, 8);
        lab.turn();
    }
    assert!(steps > 6, "it was over at once");
    // The last step of 1 MiB begins when the five before it have had their time.
    assert!(lab.now().since(begun) >= Duration::from_millis(2500));
}

/// A target may have to be opened first, so that a scrub waits for somebody who rewrites what it
/// found; in the end it names what is still bad.
#[test]
fn a_scrub_that_nobody_repairs_waits_a_minute_and_names_what_is_bad() {
    let mut lab = Lab::new(4);
    lab.write(0, 8, 7);
    lab.write(3, 1, 9);
    lab.request(PoolRequest::Export(POOL));
    let mut bytes = lab.world.contents(&path()).unwrap();
    let is_it = |block: &&mut [u8]| block.iter().all(|byte| *byte == 9);
    bytes.chunks_mut(4096).find(is_it).unwrap()[77] ^= 4;
    lab.world.put(&path(), bytes);
    lab.request(PoolRequest::Import { paths: vec![path()] });
    let begun = lab.now();
    lab.request(PoolRequest::Scrub { pool: POOL, rate: Rate(Bytes::mib(1000)) });
    while lab.scrubbed().is_running {
        lab.turn();
    }
    let found = lab.scrubbed();
    let place = (REPLICA, Span::new(Lba(3), Blocks(1)).unwrap());
    assert_eq!((found.bad, &found.places[..]), (Blocks(1), &[place][..]));
    assert!(lab.now().since(begun) >= Duration::from_mins(1));
}

#[test]
fn what_was_acknowledged_is_there_when_the_engine_died() {
    let mut lab = Lab::new(2);
    lab.write(0, 2, 1);
    lab.write(300, 1, 2);
    lab.command(Command::Flush, Data::None);
    let zeroed = Span::new(Lba(300), Blocks(1)).unwrap();
    lab.write(1, 1, 3);
    lab.write(900, 1, 4);
    lab.command(Command::WriteZeroes { span: zeroed, fua: false, deallocate: false }, Data::None);
    // Nothing is flushed or closed: the files of this engine are simply there.
    let world = lab.world.clone();
    drop(lab);
    let mut next = Lab::start(&world);
    next.request(PoolRequest::Import { paths: vec![path()] });
    next.hand.0.set_sole(POOL, REPLICA, true);
    let found = [0, 1, 300, 900, 901].map(|at| next.byte(at));
    assert_eq!(found, [1, 3, 0, 4, 0]);
}

#[test]
fn what_no_flush_covered_is_unproven_until_it_is_accepted() {
    // On a disk that tears no block, so that blocks are overwritten in place.
    let traits = |_: &Path| DiskTraits { atomic_write_unit: 4096, ..DiskTraits::UNKNOWN };
    let mut lab = Lab::new_on(3, traits);
    lab.write(0, 2, 1);
    lab.command(Command::Flush, Data::None);
    lab.write(1, 1, 3);
    let world = lab.world.clone();
    drop(lab);
    let mut next = Lab::start(&world);
    next.hand.0.traits = traits;
    next.request(PoolRequest::Import { paths: vec![path()] });
    let unproven = Span::new(Lba(1), Blocks(1)).unwrap();
    let both = Span::new(Lba(0), Blocks(2)).unwrap();
    let buffer = next.io.take(2 * 4096).unwrap();
    let read = next.try_command(Command::Read { span: both }, Data::Fill(buffer));
    assert_eq!(read.0, Err(IoError::Unproven { span: unproven }));
    next.request(PoolRequest::NarrowDoubt(POOL));
    next.request(PoolRequest::Scrub { pool: POOL, rate: Rate(Bytes::mib(1000)) });
    while next.scrubbed().is_running {
        next.turn();
    }
    let found = next.scrubbed();
    assert_eq!((found.bad, found.unproven), (Blocks(0), Blocks(1)));
    next.request(PoolRequest::AcceptUnproven { pool: POOL, id: REPLICA, span: both });
    assert_eq!([0, 1].map(|at| next.byte(at)), [1, 3]);
    // That was durable.
    let world = next.world.clone();
    drop(next);
    let mut last = Lab::start(&world);
    last.request(PoolRequest::Import { paths: vec![path()] });
    assert_eq!([0, 1].map(|at| last.byte(at)), [1, 3]);
}
