use super::*;
use block::{Blocks, Command, IoError, Lba, Span};
use pool::{Change, ClusterSize, Id, Label, NewReplica, NewSnapshot};
use reactor::{Buffer, Config, Event, Handler, Reactor};

use crate::pools::{
    NewDisk, NewPool, PoolError, PoolRequest, PoolResponse, PoolStatus, Rate, ScrubStatus, Ticket,
    WrappingKey,
};

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

fn benches() -> [Bench; 4] {
    let geometry = Geometry::new(BlockSize::B4096, Blocks(BLOCKS)).unwrap();
    let mut memory = bench();
    memory.device = memory.inner.devices.add_memory(geometry).unwrap();
    let mut file = bench();
    let path = file.dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(BLOCKS * 4096).unwrap();
    file.device = file.inner.devices.add_file(&path, BlockSize::B4096, &mut file.reactor).unwrap();
    [memory, file, pooled(None), encrypted()]
}

fn key(byte: u8) -> WrappingKey {
    WrappingKey::new(&mut [byte; 32]).unwrap()
}

/// An encrypted replica, unlocked.
fn encrypted() -> Bench {
    let mut bench = pooled(Some(&key(1)));
    bench.request(PoolRequest::Unlock { pool: Id(7), id: Id(8), key: key(1) });
    bench
}

/// A replica in a pool of two disks, encrypted if there is a key for it.
fn pooled(key: Option<&WrappingKey>) -> Bench {
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
    bench.request(PoolRequest::Create(new));
    let replica = NewReplica {
        id: Id(8),
        origin: Id::NONE,
        size: Blocks(BLOCKS),
        thick: false,
        created: 0,
        label: Label::default(),
        key: key.map_or_else(Vec::new, |key| key.new_data_key().unwrap()),
    };
    bench.request(PoolRequest::Change { pool: Id(7), change: Change::Create(replica) });
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
    fn request(&mut self, order: PoolRequest) {
        self.try_order(order).unwrap();
    }

    fn try_order(&mut self, order: PoolRequest) -> Result<(), PoolError> {
        self.ask(order).map(|_| ())
    }

    fn status(&mut self) -> PoolStatus {
        match self.ask(PoolRequest::Status(Id(7))).unwrap() {
            PoolResponse::Pool(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, order: PoolRequest) -> Result<PoolResponse, PoolError> {
        let devices = &mut self.inner.devices;
        devices.pools.request(Ticket(1), order, &mut self.reactor);
        loop {
            if let Some((_, answer)) = self.inner.devices.pools.poll_answer() {
                return answer;
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
        assert_eq!(found, Err(IoError::Miscompare { at: Lba(10) }));
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
            bench.start(owner, task, Data::Both(Box::new(Both { expected, new })));
            let data = Data::Fill(bench.buffer(1, 0));
            bench.start(100 + owner, Task::Command(Command::Read { span: span(0, 1) }), data);
        }
        let mut won = 0;
        let mut seen = Vec::new();
        for _ in 0..8 {
            match bench.finish() {
                Finished { owner: 0..4, completion: Ok(()), .. } => won += 1,
                Finished { owner: 0..4, completion, .. } => {
                    assert_eq!(completion, Err(IoError::Miscompare { at: Lba(0) }));
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
        assert_eq!(done.completion, Err(IoError::OutOfRange { span: beyond }));
    }
}

#[test]
fn jobs_without_a_buffer_wait_for_one() {
    let [_, mut bench, ..] = benches();
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

/// Whether a disk of the pool has a sector of this byte.
fn shows(bench: &Bench, byte: u8) -> bool {
    let names = ["disk1", "disk2"].map(|name| bench.dir.path().join(name));
    let has = |path| std::fs::read(path).unwrap().chunks(512).any(|at| at == [byte; 512]);
    names.into_iter().any(has)
}

#[test]
fn what_is_encrypted_is_not_on_the_disks() {
    for (mut bench, expected) in [(pooled(None), true), (encrypted(), false)] {
        bench.write(3, 0xC5);
        assert!(bench.run(Command::Flush, Data::None).completion.is_ok());
        assert_eq!(shows(&bench, 0xC5), expected);
    }
}

#[test]
fn without_its_key_a_replica_is_locked() {
    let mut bench = pooled(Some(&key(1)));
    let read = |bench: &mut Bench| {
        let data = Data::Fill(bench.buffer(1, 0));
        bench.run(Command::Read { span: span(0, 1) }, data).completion
    };
    assert_eq!(read(&mut bench), Err(IoError::Locked));
    let wrong = PoolRequest::Unlock { pool: Id(7), id: Id(8), key: key(2) };
    assert!(matches!(bench.try_order(wrong), Err(PoolError::Key(_))));
    assert_eq!(read(&mut bench), Err(IoError::Locked));
    bench.request(PoolRequest::Unlock { pool: Id(7), id: Id(8), key: key(1) });
    assert_eq!(read(&mut bench), Ok(()));
}

#[test]
fn a_rotated_key_opens_the_same_data() {
    let mut bench = encrypted();
    bench.write(5, 0x77);
    bench.request(PoolRequest::Rotate { pool: Id(7), id: Id(8), old: key(1), new: key(2) });
    let old = PoolRequest::Unlock { pool: Id(7), id: Id(8), key: key(1) };
    assert!(matches!(bench.try_order(old), Err(PoolError::Key(_))));
    bench.request(PoolRequest::Unlock { pool: Id(7), id: Id(8), key: key(2) });
    let data = Data::Fill(bench.buffer(1, 0));
    let done = bench.run(Command::Read { span: span(5, 1) }, data);
    let Data::Fill(found) = done.data else { panic!("{:?}", done.data) };
    assert_eq!(*found, [0x77; 4096]);
}

#[test]
fn a_snapshot_has_the_key_of_its_origin() {
    let mut bench = encrypted();
    bench.write(1, 0x11);
    let snapshot = NewSnapshot { id: Id(9), created: 0, label: Label::default() };
    let change = Change::Snapshot { of: Id(8), snapshot };
    bench.request(PoolRequest::Change { pool: Id(7), change });
    bench.write(1, 0x22);
    bench.device = bench.inner.devices.add_replica(Id(7), Id(9)).unwrap();
    let data = Data::Fill(bench.buffer(2, 0xFF));
    let done = bench.run(Command::Read { span: span(1, 2) }, data);
    let Data::Fill(found) = done.data else { panic!("{:?}", done.data) };
    assert_eq!(found[..4096], [0x11; 4096]);
    assert_eq!(found[4096..], [0; 4096], "what was never written is zeros, not decrypted zeros");
}

/// Waits until a scrub of the pool is so far.
fn scrubbed(bench: &mut Bench, is_so_far: impl Fn(&ScrubStatus) -> bool) -> ScrubStatus {
    loop {
        let found = bench.status().scrub.unwrap();
        if is_so_far(&found) {
            return found;
        }
        assert!(found.is_running, "it ended with {found:?}");
        bench.reactor.turn(&mut bench.inner).unwrap();
    }
}

#[test]
fn a_scrub_finds_what_a_repair_mends() {
    let mut bench = pooled(None);
    (0..8).for_each(|at| bench.write(at, 0xB0));
    bench.write(3, 0xB3);
    bench.request(PoolRequest::Export(Id(7)));
    // A bit of block 3 goes bad while nobody looks.
    let names = ["disk1", "disk2"].map(|name| bench.dir.path().join(name));
    for name in &names {
        let mut bytes = std::fs::read(name).unwrap();
        let bad = bytes.chunks_mut(4096).find(|block| block.iter().all(|byte| *byte == 0xB3));
        if let Some(block) = bad {
            block[77] ^= 4;
            std::fs::write(name, &bytes).unwrap();
        }
    }
    bench.request(PoolRequest::Import { paths: names.into() });
    bench.device = bench.inner.devices.add_replica(Id(7), Id(8)).unwrap();
    let scrub = PoolRequest::Scrub { pool: Id(7), rate: Rate(Bytes::mib(512)) };
    bench.request(scrub.clone());
    let everything = Bytes(8 * 4096);
    let found = scrubbed(&mut bench, |found| found.checked == everything);
    assert!(found.is_running, "it waits for a repair");
    assert_eq!((found.bad, &found.places[..]), (Blocks(1), &[(Id(8), span(3, 1))][..]));
    let data = Data::Fill(bench.buffer(8, 0));
    let read = bench.run(Command::Read { span: span(0, 8) }, data).completion;
    assert_eq!(read, Err(IoError::Checksum { span: span(3, 1) }));
    let bytes = vec![0xB3; 4096];
    bench.request(PoolRequest::Repair { pool: Id(7), id: Id(8), span: span(3, 1), bytes });
    assert_eq!(bench.read(2, 3), [0xB0, 0xB3, 0xB0]);
    let ended = scrubbed(&mut bench, |found| !found.is_running);
    assert_eq!((&ended.places[..], ended.repaired_of), (&[][..], [(Id(8), 1)].into()));
    bench.request(scrub);
    assert_eq!(scrubbed(&mut bench, |found| !found.is_running).bad, Blocks(0));
}

#[test]
fn a_repair_of_an_encrypted_replica_is_encrypted() {
    let mut bench = encrypted();
    bench.write(5, 0x77);
    let repair =
        || PoolRequest::Repair { pool: Id(7), id: Id(8), span: span(5, 1), bytes: vec![9; 4096] };
    bench.request(repair());
    assert_eq!(bench.read(5, 1), [9]);
    // Without its key it is refused, whatever it says.
    let mut bench = pooled(Some(&key(1)));
    assert!(matches!(bench.try_order(repair()), Err(PoolError::Fault(IoError::Locked))));
}

#[test]
fn a_pool_takes_what_its_disks_have_gained_and_one_more() {
    let mut bench = pooled(None);
    bench.write(5, 0x55);
    let small = bench.status().usage.size;
    let nothing = bench.try_order(PoolRequest::Grow(Id(7)));
    assert!(matches!(nothing, Err(PoolError::Refused(pool::Refused::NotLarger))), "{nothing:?}");
    let path = bench.dir.path().join("disk1");
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(96 << 20).unwrap();
    bench.request(PoolRequest::Grow(Id(7)));
    let grown = bench.status().usage.size;
    assert!(grown > small, "{grown} after {small}");
    let path = bench.dir.path().join("disk3");
    std::fs::write(&path, vec![0; 64 << 20]).unwrap();
    let add = |force| {
        let disk = NewDisk { path: path.clone(), id: Id(3) };
        PoolRequest::AddDisk { pool: Id(7), disk, force }
    };
    bench.request(add(false));
    assert!(bench.status().usage.size > grown);
    // It is in use now.
    assert!(bench.try_order(add(true)).is_err());
    assert_eq!(bench.read(5, 1), [0x55]);
    bench.request(PoolRequest::Export(Id(7)));
    let paths = ["disk2", "disk3", "disk1"].map(|name| bench.dir.path().join(name));
    bench.request(PoolRequest::Import { paths: paths.into() });
    assert_eq!(bench.status().disks.len(), 3);
    bench.device = bench.inner.devices.add_replica(Id(7), Id(8)).unwrap();
    assert_eq!(bench.read(5, 1), [0x55]);
}
