//! Pools on real files and loop devices: the engine is killed under load, again and again, and
//! everything that was acknowledged is there, flushed or not: the power stayed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::process::Command as Process;
use std::time::{Duration, Instant};

use block::{Blocks, Command, Lba, Span};
use e2e::loop_device::LoopDevice;
use e2e::process::{Program, holdfast};
use engine::client::{ControllerEvent, Request, Session, SessionError};
use engine::device::Data;
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options};
use nvme::wire::Nqn;

const NQN: &str = "nqn.2026-11.io.holdfast:pool";
const BLOCKS: u64 = 4096;
const DEPTH: usize = 32;
const FLUSH: u64 = u64::MAX;

fn serve(disks: &str) -> (Program, String) {
    let namespace = format!("{NQN}=replica:tank/vol,size=16MiB");
    let mut command = holdfast().unwrap();
    command.args(["engine", "serve", "--listen", "127.0.0.1:0", "--pool"]);
    command.arg(format!("tank={disks},create")).args(["--ns", &namespace]);
    let program = Program::start(&mut command).unwrap();
    let listening = |line: &str| line.strip_prefix("listening on ").map(str::to_owned);
    let address = program.wait_for("where it listens", listening).unwrap();
    (program, address)
}

fn connect(address: &str) -> Session {
    let association = Association {
        host: Host { nqn: Nqn::new("nqn.2026-11.io.holdfast:host").unwrap(), id: [7; 16] },
        subsystem: Nqn::new(NQN).unwrap(),
        keys: None,
        accepted: Accepted::default(),
        options: Options::default(),
    };
    Session::connect(address.parse().unwrap(), association).unwrap()
}

fn one(at: u64) -> Span {
    Span::new(Lba(at), Blocks(1)).unwrap()
}

/// Numbers without order, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// What a block may hold: the stamp that is surely durable, or one that was sent since.
#[derive(Clone, Debug, Default)]
struct Known {
    durable: u64,
    since: Vec<Sent>,
}

impl Known {
    /// Whether it may hold this when the engine died and nothing else: the last that was
    /// acknowledged, or what was sent after it.
    fn allows(&self, stamp: u64) -> bool {
        let last = self.since.iter().rposition(|sent| sent.is_acknowledged);
        let open = &self.since[last.unwrap_or(0)..];
        open.iter().any(|sent| sent.stamp == stamp) || last.is_none() && stamp == self.durable
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    stamp: u64,
    is_acknowledged: bool,
}

/// The host's side: what was written, and what the engine said about it.
struct History {
    blocks: BTreeMap<u64, Known>,
    next: u64,
    random: Random,
}

impl History {
    /// Writes, discards, flushes and FUA until the time is over or the engine is gone. Each block
    /// has one command at a time.
    fn load(&mut self, session: &mut Session, kill: impl Fn() -> bool) {
        let mut under_way: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        // Stamps that were acknowledged when the flush was sent.
        let mut flushing: Option<Vec<(u64, u64)>> = None;
        loop {
            while under_way.len() < DEPTH {
                let (at, what) = (self.random.below(BLOCKS), self.random.below(40));
                if what == 0 && flushing.is_none() {
                    let data = Data::None;
                    let command = Command::Flush;
                    if submit(session, FLUSH, command, data) {
                        flushing = Some(self.acknowledged());
                    }
                } else if let Entry::Vacant(place) = under_way.entry(at) {
                    let Some(sent) = self.write(session, at, what) else { break };
                    place.insert(sent);
                }
            }
            if kill() {
                return;
            }
            match session.wait() {
                Ok(ControllerEvent::Done { tag, result, .. }) => {
                    if result.is_err() {
                        // Only the end of the engine makes commands fail here.
                        return;
                    }
                    if tag == FLUSH {
                        self.flushed(&flushing.take().unwrap());
                    } else if let Some((stamp, fua)) = under_way.remove(&tag) {
                        self.acknowledge(tag, stamp, fua);
                    }
                }
                Ok(ControllerEvent::Lost { .. }) | Err(SessionError::Lost(_)) => return,
                Ok(_) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn write(&mut self, session: &mut Session, at: u64, what: u64) -> Option<(u64, bool)> {
        let fua = what == 1;
        let span = one(at);
        let (stamp, command, data) = if what == 2 {
            (0, Command::Discard { span }, Data::None)
        } else {
            self.next += 1;
            let mut buffer = session.take(4096)?;
            for (place, byte) in buffer.iter_mut().zip(self.next.to_le_bytes().iter().cycle()) {
                *place = *byte;
            }
            (self.next, Command::Write { span, fua }, Data::Bytes(buffer.freeze()))
        };
        if !submit(session, at, command, data) {
            return None;
        }
        let sent = Sent { stamp, is_acknowledged: false };
        self.blocks.entry(at).or_default().since.push(sent);
        Some((stamp, fua))
    }

    fn acknowledge(&mut self, at: u64, stamp: u64, durable: bool) {
        let known = self.blocks.entry(at).or_default();
        if durable {
            *known = Known { durable: stamp, since: Vec::new() };
        } else if let Some(last) = known.since.last_mut() {
            last.is_acknowledged = true;
        }
    }

    /// Every block's last stamp that was acknowledged.
    fn acknowledged(&self) -> Vec<(u64, u64)> {
        let stamp = |known: &Known| {
            let last = known.since.iter().rev().find(|sent| sent.is_acknowledged);
            last.map(|sent| sent.stamp)
        };
        let all = self.blocks.iter();
        all.filter_map(|(at, known)| Some((*at, stamp(known)?))).collect()
    }

    fn flushed(&mut self, covered: &[(u64, u64)]) {
        for (at, stamp) in covered {
            let known = self.blocks.entry(*at).or_default();
            if let Some(place) = known.since.iter().position(|sent| sent.stamp == *stamp) {
                known.durable = *stamp;
                known.since.drain(..=place);
            }
        }
    }

    /// Reads everything; what is there now is what stays. Returns how many blocks were checked.
    fn verify(&mut self, session: &mut Session) -> usize {
        for at in 0..BLOCKS {
            let buffer = session.take(4096).unwrap();
            assert!(submit(session, at, Command::Read { span: one(at) }, Data::Fill(buffer)));
            let bytes = loop {
                if let ControllerEvent::Done { result, data, .. } = session.wait().unwrap() {
                    result.unwrap();
                    let Data::Fill(bytes) = data else { panic!("{data:?}") };
                    break bytes;
                }
            };
            let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(bytes.chunks(8).all(|word| word == &bytes[..8]), "block {at} is torn");
            let known = self.blocks.entry(at).or_default();
            assert!(known.allows(found), "block {at} holds {found}, but {known:?} was written");
            // It was read after a recovery, so it is durable.
            *known = Known { durable: found, since: Vec::new() };
        }
        self.blocks.len()
    }
}

fn submit(session: &mut Session, tag: u64, command: Command, data: Data) -> bool {
    session.submit(Request { tag, nsid: 1, command, data }).is_ok()
}

/// Rounds of load, death and verification.
fn survive(disks: &str, rounds: u64) {
    let mut history = History { blocks: BTreeMap::new(), next: 0, random: Random(0x5EED) };
    for round in 0..rounds {
        let (mut engine, address) = serve(disks);
        let mut session = connect(&address);
        history.verify(&mut session);
        let begun = Instant::now();
        let time = Duration::from_millis(200 + 150 * (round % 4));
        history.load(&mut session, || begun.elapsed() > time);
        // Commands are under way.
        engine.kill().unwrap();
    }
    let (mut engine, address) = serve(disks);
    let mut session = connect(&address);
    assert!(history.verify(&mut session) > 0);
    assert!(history.next > rounds * 50, "too little was written: {}", history.next);
    session.close().unwrap();
    assert!(engine.stop().unwrap().success());
}

#[test]
fn a_pool_in_files_survives_the_death_of_its_engine() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    survive(&format!("{},{},size=64MiB", file("a"), file("b")), 6);
    let inspected = run(holdfast().unwrap().args(["pool", "inspect", &file("a"), &file("b")]));
    assert!(inspected.contains("vol") && inspected.contains("0 in doubt"), "{inspected}");
}

fn run(command: &mut Process) -> String {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn survive_on_a_loop_device(sector: u32) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(96 << 20).unwrap();
    let Some(device) = LoopDevice::new(&file, sector) else {
        eprintln!("there are no loop devices here: nothing was tested");
        return;
    };
    survive(&device.path().display().to_string(), 3);
}

#[test]
fn a_pool_on_a_loop_device_survives_the_death_of_its_engine() {
    survive_on_a_loop_device(512);
}

#[test]
fn a_pool_on_a_disk_with_sectors_of_4096_bytes_survives_the_death_of_its_engine() {
    survive_on_a_loop_device(4096);
}

#[test]
fn a_disk_is_in_one_pool_of_one_engine() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk").display().to_string();
    let (mut engine, _) = serve(&format!("{file},size=64MiB"));
    let mut second = holdfast().unwrap();
    second.args(["engine", "serve", "--listen", "127.0.0.1:0", "--pool"]);
    second.arg(format!("tank={file}")).args(["--ns", &format!("{NQN}=replica:tank/vol")]);
    let refused = second.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("in use"), "{said}");
    assert!(engine.stop().unwrap().success());
    // A file system is not overwritten by mistake.
    let mut bytes = vec![0; 64 << 20];
    bytes[..4].copy_from_slice(b"XFSB");
    std::fs::write(&file, &bytes).unwrap();
    let mut third = holdfast().unwrap();
    third.args(["engine", "serve", "--listen", "127.0.0.1:0", "--pool"]);
    third.arg(format!("tank={file},create")).args(["--ns", &format!("{NQN}=replica:tank/vol")]);
    let said = String::from_utf8_lossy(&third.output().unwrap().stderr).into_owned();
    assert!(said.contains("XFS") && said.contains("force"), "{said}");
}
