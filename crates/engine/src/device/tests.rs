use super::*;
use block::{Blocks, Command, Fault, Lba, Span};
use pool::{Change, ClusterSize, Id, Label, NewReplica};
use reactor::{Buffer, Config, Event, Handler, Reactor};

use crate::pools::{NewDisk, NewPool, Order, Ticket};

/// A device under test on a real reactor.
struct Bench {
    reactor: Reactor<()>,
    inner: Inner,
    device: DeviceId,
    dir: tempfile::TempDir,
}

struct Inner {
    devices: Devices<u32>,
}

impl Handler for Inner {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        if let Event::Done { token, outcome } = event {
            match token.parts() {
                (POOL, key) => self.devices.pools.on(key, outcome, io),
                (_, key) => self.devices.on(key, outcome, io),
            }
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = ()>) -> bool {
        self.devices.retry(io);
        true
    }
}

const BLOCKS: u64 = 512;
const POOL: u8 = 10;

fn benches() -> [Bench; 3] {
    let geometry = Geometry::new(BlockSize::B4096, Blocks(BLOCKS)).unwrap();
    let mut memory = bench();
    memory.device = memory.inner.devices.add_memory(geometry).unwrap();
    let mut file = bench();
    let path = file.dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(BLOCKS * 4096).unwrap();
    file.device = file.inner.devices.add_file(&path, BlockSize::B4096, &mut file.reactor).unwrap();
    [memory, file, pooled()]
}

/// A replica in a pool of two disks.
fn pooled() -> Bench {
    let mut bench = bench();
    let disks = [1, 2].map(|id| {
        let path = bench.dir.path().join(format!("disk{id}"));
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        NewDisk { path, id: Id(id) }
    });
    let new = NewPool {
        id: Id(7),
        name: "test".into(),
        cluster: ClusterSize::DEFAULT,
        disks: disks.into(),
        force: false,
    };
    bench.order(Order::Create(new));
    let replica = NewReplica {
        id: Id(8),
        origin: Id::NONE,
        size: Blocks(BLOCKS),
        thick: false,
        created: 0,
        label: Label::default(),
        key: Vec::new(),
    };
    bench.order(Order::Change { pool: Id(7), change: Change::Create(replica) });
    bench.device = bench.inner.devices.add_replica(Id(7), Id(8)).unwrap();
    bench
}

fn bench() -> Bench {
    let mut devices = Devices::new(TokenKinds { files: 9, pools: POOL });
    let geometry = Geometry::new(BlockSize::B4096, Blocks(1)).unwrap();
    let device = devices.add_memory(geometry).unwrap();
    Bench {
        reactor: Reactor::new(&Config::default()).unwrap(),
        inner: Inner { devices },
        device,
        dir: tempfile::tempdir().unwrap(),
    }
}

fn span(start: u64, len: u64) -> Span {
    Span::new(Lba(start), Blocks(len)).unwrap()
}

impl Bench {
    fn order(&mut self, order: Order) {
        let devices = &mut self.inner.devices;
        devices.pools.order(Ticket(1), order, &mut self.reactor);
        loop {
            if let Some((_, answer)) = self.inner.devices.pools.poll_answer() {
                answer.unwrap();
                return;
            }
            self.reactor.turn(&mut self.inner).unwrap();
        }
    }

    fn buffer(&mut self, blocks: usize, byte: u8) -> Buffer {
        let mut buffer = self.reactor.take(blocks * 4096).unwrap();
        buffer.fill(byte);
        buffer
    }

    fn start(&mut self, owner: u32, task: Task, data: Data) {
        let job = Job { owner, task, data };
        self.inner.devices.start(self.device, job, &mut self.reactor).unwrap();
    }

    fn finish(&mut self) -> Finished<u32> {
        loop {
            if let Some(finished) = self.inner.devices.poll(&mut self.reactor) {
                return finished;
            }
            self.reactor.turn(&mut self.inner).unwrap();
        }
    }

    fn run(&mut self, command: Command, data: Data) -> Finished<u32> {
        self.start(7, Task::Command(command), data);
        let finished = self.finish();
        assert_eq!(finished.owner, 7);
        finished
    }

    fn write(&mut self, at: u64, byte: u8) {
        let data = Data::Bytes(self.buffer(1, byte).freeze());
        let done =
            self.run(Command::Write { span: span(at, 1), fua: byte.is_multiple_of(2) }, data);
        assert_eq!(done.completion, Ok(()));
        assert!(matches!(done.data, Data::Bytes(_)), "the payload comes back");
    }

    /// One byte per block, which must be uniform.
    fn read(&mut self, at: u64, blocks: usize) -> Vec<u8> {
        let data = Data::Fill(self.buffer(blocks, 0xEE));
        let span = span(at, u64::try_from(blocks).unwrap());
        match self.run(Command::Read { span }, data) {
            Finished { completion: Ok(()), data: Data::Fill(buffer), .. } => {
                assert!(buffer.chunks(4096).all(|block| block.iter().all(|b| *b == block[0])));
                buffer.chunks(4096).map(|block| block[0]).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn commands_do_what_they_say() {
    for mut bench in benches() {
        for at in 0..4 {
            bench.write(at, u8::try_from(at + 1).unwrap());
        }
        assert_eq!(bench.read(0, 5), [1, 2, 3, 4, 0]);
        let discard = Command::Discard { span: span(1, 1) };
        assert_eq!(bench.run(discard, Data::None).completion, Ok(()));
        for (at, deallocate) in [(2, false), (3, true)] {
            let zeroes = Command::WriteZeroes { span: span(at, 1), fua: true, deallocate };
            assert_eq!(bench.run(zeroes, Data::None).completion, Ok(()));
        }
        assert_eq!(bench.read(0, 5), [1, 0, 0, 0, 0]);
        assert_eq!(bench.run(Command::Flush, Data::None).completion, Ok(()));
        assert_eq!(bench.inner.devices.at_work(), 0);
        let arena = bench.reactor.arena();
        assert_eq!(arena.free_bytes(), arena.bytes(), "no buffer is lost");
    }
}

#[test]
fn compare_names_the_first_block_that_differs() {
    for mut bench in benches() {
        bench.write(8, 5);
        let mut expected = bench.buffer(3, 0);
        expected[..4096].fill(5);
        let expected = expected.freeze();
        let compare = Command::Compare { span: span(8, 3) };
        assert_eq!(bench.run(compare, Data::Bytes(expected.clone())).completion, Ok(()));
        bench.write(10, 1);
        let found = bench.run(compare, Data::Bytes(expected)).completion;
        assert_eq!(found, Err(Fault::Miscompare { at: Lba(10) }));
    }
}

#[test]
fn compare_and_write_excludes_everything_else() {
    for mut bench in benches() {
        bench.write(0, 1);
        // All race for the same step; exactly one wins, whatever lies between.
        for owner in 0..4 {
            let expected = bench.buffer(1, 1).freeze();
            let new = bench.buffer(1, 2).freeze();
            let task = Task::CompareAndWrite { span: span(0, 1), fua: false };
            bench.start(owner, task, Data::Both { expected, new });
            let data = Data::Fill(bench.buffer(1, 0));
            bench.start(100 + owner, Task::Command(Command::Read { span: span(0, 1) }), data);
        }
        let mut won = 0;
        let mut seen = Vec::new();
        for _ in 0..8 {
            match bench.finish() {
                Finished { owner: 0..4, completion: Ok(()), .. } => won += 1,
                Finished { owner: 0..4, completion, .. } => {
                    assert_eq!(completion, Err(Fault::Miscompare { at: Lba(0) }));
                }
                Finished { data: Data::Fill(buffer), .. } => seen.push(buffer[0]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((won, seen), (1, vec![2, 2, 2, 2]), "reads started after the first write");
    }
}

#[test]
fn what_lies_beyond_the_end_is_refused() {
    for mut bench in benches() {
        let beyond = span(BLOCKS - 1, 2);
        let data = Data::Fill(bench.buffer(2, 0));
        let done = bench.run(Command::Read { span: beyond }, data);
        assert_eq!(done.completion, Err(Fault::OutOfRange { span: beyond }));
    }
}

#[test]
fn jobs_without_a_buffer_wait_for_one() {
    let [_, mut bench, _] = benches();
    bench.write(3, 9);
    let expected = bench.buffer(1, 9).freeze();
    let mut hoard = Vec::new();
    while let Some(buffer) = bench.reactor.take(4096) {
        hoard.push(buffer);
    }
    let command = Command::Compare { span: span(3, 1) };
    bench.start(1, Task::Command(command), Data::Bytes(expected));
    assert!(bench.inner.devices.retry(&mut bench.reactor), "it waits");
    hoard.clear();
    assert!(!bench.inner.devices.retry(&mut bench.reactor));
    assert_eq!(bench.finish().completion, Ok(()));
}

#[test]
fn a_file_that_is_no_device_says_why() {
    let mut bench = bench();
    let path = bench.dir.path().join("ragged");
    std::fs::write(&path, [0; 5000]).unwrap();
    let found = bench.inner.devices.add_file(&path, BlockSize::B4096, &mut bench.reactor);
    assert!(matches!(found, Err(OpenError::Geometry { .. })), "{found:?}");
    let none = bench.dir.path().join("none");
    let found = bench.inner.devices.add_file(&none, BlockSize::B4096, &mut bench.reactor);
    assert!(matches!(found, Err(OpenError::Open { .. })), "{found:?}");
}
