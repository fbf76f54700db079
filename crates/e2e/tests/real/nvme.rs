//! The NVMe/TCP target as a program: its command line, its signals, and a rough life.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use block::{Blocks, Lba, Span};
use e2e::process::{Program, holdfast};
use engine::client::{Request, Session};
use engine::device::Data;
use nvme::auth::Accepted;
use nvme::initiator::{AdminRequest as Admin, Association, Host, Options};
use nvme::wire::Nqn;

const NQN: &str = "nqn.2026-11.io.holdfast:real";

fn serve(arguments: &[&str]) -> (Program, String) {
    let mut command = holdfast().unwrap();
    command.args(["engine", "serve", "--listen", "127.0.0.1:0"]).args(arguments);
    let program = Program::start(&mut command).unwrap();
    let address = program
        .wait_for("where it listens", |line| line.strip_prefix("listening on ").map(str::to_owned))
        .unwrap();
    (program, address)
}

fn tool(what: &str, address: &str, arguments: &[&str]) -> Command {
    let mut command = holdfast().unwrap();
    command.args(["nvme", what, address]).args(arguments);
    command
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}{error}", String::from_utf8_lossy(&output.stdout))
}

fn succeed(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    said(&output)
}

fn verify(address: &str, size: &str) {
    let load = ["--nqn", NQN, "--rw", "randrw", "--bs", size, "--qd", "16", "--time", "0.3"];
    let digests = ["--verify", "--header-digest", "--data-digest", "--queues", "2"];
    succeed(tool("perf", address, &[&load[..], &digests[..]].concat()));
}

#[test]
fn a_file_is_served_listed_described_and_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let namespace = format!("{NQN}=file:{},size=64MiB", disk.display());
    let (mut target, address) = serve(&["--ns", &namespace]);
    assert!(succeed(tool("discover", &address, &[])).contains(NQN));
    let described = succeed(tool("identify", &address, &["--nqn", NQN]));
    assert!(described.contains("64MiB in blocks of 4KiB"), "{described}");
    succeed(tool("connect-test", &address, &["--nqn", NQN, "--queues", "4"]));
    for size in ["4KiB", "64KiB", "1MiB"] {
        verify(&address, size);
    }
    assert!(target.stop().unwrap().success());
    assert_eq!(std::fs::metadata(&disk).unwrap().len(), 64 << 20);
}

/// As many queues as a host may have, each as full as it can be.
#[test]
fn all_queues_are_full_at_once() {
    let namespace = format!("{NQN}=mem:128MiB");
    let (mut target, address) = serve(&["--ns", &namespace]);
    // One entry of the 128 of a queue always stays empty.
    let all = (128 * 127).to_string();
    let load = ["--nqn", NQN, "--rw", "randrw", "--time", "1", "--verify"];
    succeed(tool("perf", &address, &[&load[..], &["--queues", "128", "--qd", &all]].concat()));
    assert!(target.stop().unwrap().success());
}

#[test]
fn errors_name_the_flag_and_show_what_works() {
    let run = |arguments: &[&str]| said(&holdfast().unwrap().args(arguments).output().unwrap());
    let no_nqn = run(&["engine", "serve", "--ns", "vol1=mem:1GiB"]);
    assert!(no_nqn.contains("--ns") && no_nqn.contains("nqn.2026-11.io.holdfast"), "{no_nqn}");
    let missing = format!("{NQN}=file:/nonexistent/disk");
    let missing = run(&["engine", "serve", "--ns", &missing]);
    assert!(missing.contains("size="), "{missing}");
    let memory = format!("{NQN}=mem:1MiB");
    let cores = run(&["engine", "serve", "--cores", "two", "--ns", &memory]);
    assert!(cores.contains("--cores"), "{cores}");
    let far = run(&["engine", "serve", "--cores", "5000", "--ns", &memory]);
    assert!(far.contains("core 5000"), "{far}");
}

/// What must stay flat.
#[derive(Debug)]
struct Use {
    descriptors: usize,
    resident_kib: u64,
}

fn use_of(target: &Program) -> Use {
    let proc = format!("/proc/{}", target.pid().as_raw_nonzero());
    let descriptors = std::fs::read_dir(Path::new(&proc).join("fd")).unwrap().count();
    let status = std::fs::read_to_string(Path::new(&proc).join("status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident_kib = resident.trim().trim_end_matches(" kB").parse().unwrap();
    Use { descriptors, resident_kib }
}

/// Numbers without order, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

/// The first bytes of a well-behaved host.
fn connection_request() -> Vec<u8> {
    let mut bytes = vec![0; 128];
    bytes[2] = 128;
    bytes[4] = 128;
    bytes
}

/// One of many ways to be a bad host.
fn misbehave(address: SocketAddr, random: &mut Random) {
    let Ok(mut stream) = TcpStream::connect(address) else { return };
    let mut bytes = connection_request();
    match random.below(5) {
        // Leaves at once, in the middle of a frame, or after it.
        0 => bytes.truncate(random.below(129)),
        // Says nonsense.
        1 => bytes.iter_mut().for_each(|byte| *byte = u8::try_from(random.below(256)).unwrap()),
        // Breaks the first frame.
        2 => {
            let place = random.below(128);
            bytes[place] ^= 1 << random.below(8);
        }
        // Breaks what follows it: a capsule with a length that cannot be.
        3 => {
            let mut capsule = vec![0; 72];
            (capsule[0], capsule[2]) = (4, 72);
            capsule[4..8].fill(u8::try_from(random.below(256)).unwrap());
            bytes.extend(capsule);
        }
        // Asks for something before it has connected.
        _ => {
            let mut capsule = vec![0; 72];
            (capsule[0], capsule[2], capsule[4]) = (4, 72, 72);
            capsule[8] = u8::try_from(random.below(256)).unwrap();
            bytes.extend(capsule);
        }
    }
    // The target may hang up first.
    let _ = stream.write_all(&bytes);
    if random.below(2) == 0 {
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

/// A host that is killed while its commands are under way.
fn abandon(address: &str, random: &mut Random) {
    let size = ["4KiB", "64KiB", "1MiB"][random.below(3)];
    let load = ["--nqn", NQN, "--rw", "randrw", "--bs", size, "--qd", "32", "--time", "60"];
    let mut host = Program::start(&mut tool("perf", address, &load)).unwrap();
    std::thread::sleep(Duration::from_millis(u64::try_from(random.below(300)).unwrap()));
    host.kill().unwrap();
}

/// A host that withdraws commands while they are under way, and leaves.
fn withdraw(address: SocketAddr, random: &mut Random) {
    let host = Host { nqn: Nqn::new("nqn.2026-11.io.holdfast:fickle").unwrap(), id: [5; 16] };
    let (subsystem, options) = (Nqn::new(NQN).unwrap(), Options::default());
    let accepted = Accepted::default();
    let association = Association { host, subsystem, keys: None, accepted, options };
    let mut session = Session::connect(address, association).unwrap();
    for tag in 0..64 {
        let span = Span::new(Lba(u64::try_from(random.below(16_000)).unwrap()), Blocks(1)).unwrap();
        let buffer = session.take(4096).unwrap();
        let (command, data) = match random.below(2) {
            0 => (block::Command::Read { span }, Data::Fill(buffer)),
            _ => (block::Command::Write { span, fua: true }, Data::Bytes(buffer.freeze())),
        };
        session.submit(Request { tag, nsid: 1, command, data }).unwrap();
    }
    for _ in 0..32 {
        // Some of them are over by then, and some numbers were never used.
        let cid = u16::try_from(random.below(80)).unwrap();
        session.ask("an abort", Admin::Abort { queue: 1, cid }).unwrap();
    }
    session.close().unwrap();
}

/// How long a rough life takes; `HOLDFAST_SECONDS` asks for a longer one.
fn how_long() -> Duration {
    let asked = std::env::var("HOLDFAST_SECONDS").ok().and_then(|asked| asked.parse().ok());
    Duration::from_secs(asked.unwrap_or(12))
}

#[test]
fn a_rough_life_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    let namespace = format!("{NQN}=file:{},size=64MiB", disk.display());
    let (mut target, address) = serve(&["--ns", &namespace]);
    let socket: SocketAddr = address.parse().unwrap();
    let mut random = Random(0x5EED);
    let mut rough = |rounds: usize| {
        for round in 0..rounds {
            for _ in 0..50 {
                misbehave(socket, &mut random);
            }
            if round % 2 == 0 {
                abandon(&address, &mut random);
            }
            withdraw(socket, &mut random);
            verify(&address, "4KiB");
        }
    };
    // Everything that is kept for reuse is made in the first rounds.
    rough(3);
    let before = settled(&target);
    let begun = Instant::now();
    while begun.elapsed() < how_long() {
        rough(1);
    }
    let after = settled(&target);
    assert_eq!(after.descriptors, before.descriptors, "{before:?} {after:?}");
    let grown = after.resident_kib.saturating_sub(before.resident_kib);
    assert!(grown < 4096, "memory grew by {grown} KiB: {before:?} {after:?}");
    assert!(target.stop().unwrap().success());
}

/// What is used once the last connections are gone.
fn settled(target: &Program) -> Use {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut last = use_of(target);
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = use_of(target);
        if now.descriptors >= last.descriptors || Instant::now() > deadline {
            return now;
        }
        last = now;
    }
}
