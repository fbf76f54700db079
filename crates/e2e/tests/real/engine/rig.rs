//! An engine of a node, its files, and a host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use api::node::{Node, Remote};
use block::{Blocks, Command, Lba, Span};
use e2e::process::{Program, holdfast};
use engine::client::{Happened, Request, Session, SessionError};
use engine::device::Data;
use model::*;
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options};

pub(crate) const HOST: &str = "nqn.2026-11.io.holdfast:node:node-9";

/// The `n`th id of its kind.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
    format!("00000000-0000-4000-8000-{n:012}").parse().unwrap()
}

pub(crate) fn order<S>(generation: u64, spec: S) -> Order<S> {
    Order { generation: Generation::new(generation).unwrap(), spec }
}

pub(crate) fn kind<T: std::fmt::Debug>(answer: Result<T, Problem>) -> Kind {
    let problem = answer.unwrap_err();
    assert!(problem.detail.len() > 10, "{problem:?}");
    problem.kind
}

/// A running engine.
pub(crate) struct Rig {
    pub(crate) program: Program,
    pub(crate) remote: Remote,
    pub(crate) data: SocketAddr,
}

impl Rig {
    /// The engine of a node, with its folder and more words.
    pub(crate) fn start(node: &str, dir: &Path, more: &[&str]) -> Rig {
        let mut command = holdfast().unwrap();
        command.args(["engine", "run", "--node", node, "--listen", "127.0.0.1:0"]);
        command.args(["--api", "127.0.0.1:0", "--dir"]).arg(dir).args(more);
        let program = Program::start(&mut command).unwrap();
        let after = |line: &str, word: &str| line.strip_prefix(word).map(str::to_owned);
        let data = program.wait_for("where it listens", |line| after(line, "listening on "));
        let api = program.wait_for("where its API is", |line| after(line, "node API on "));
        let remote = Remote::plain(api.unwrap().parse().unwrap()).unwrap();
        Rig { program, remote, data: data.unwrap().parse().unwrap() }
    }

    /// A pool that is made on a file, and a replica in it that our host may use.
    pub(crate) async fn furnish(&self, disk: &Path, replica: ReplicaId) {
        let pool =
            self.remote.put_pool("tank".parse().unwrap(), order(1, pool_spec("node-1", disk)));
        assert_eq!(pool.await.unwrap().effect, api::Effect::Created);
        let made =
            self.remote.put_replica(replica, order(1, replica_spec(16, true))).await.unwrap();
        assert_eq!(made.effect, api::Effect::Created);
        assert_eq!(made.now.status.addresses, [self.data]);
    }
}

/// A file of so many MiB, sparse.
pub(crate) fn disk(folder: &Path, name: &str, mib: u64) -> PathBuf {
    let path = folder.join(name);
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    file.unwrap().set_len(mib << 20).unwrap();
    path
}

pub(crate) fn pool_spec(node: &str, disk: &Path) -> PoolSpec {
    PoolSpec {
        node: node.parse().unwrap(),
        disks: vec![disk.to_str().unwrap().parse().unwrap()],
        uuid: Some(id(1)),
        import: false,
        exported: false,
        cluster_size: None,
        labels: [].into(),
        cordons: [].into(),
    }
}

pub(crate) fn replica_spec(mib: u32, shared: bool) -> ReplicaSpec {
    let hosts = if shared { [HOST.parse().unwrap()].into() } else { [].into() };
    ReplicaSpec {
        volume: id(10),
        pool: "tank".parse().unwrap(),
        size: Size::mib(mib),
        thin: true,
        source: None,
        encryption: None,
        hosts,
    }
}

/// Our initiator, connected to a replica.
pub(crate) struct Disk(Session);

impl Disk {
    pub(crate) fn connect(address: SocketAddr, replica: ReplicaId) -> Result<Disk, SessionError> {
        let name = |text: &str| nvme::wire::Nqn::new(text).unwrap();
        let association = Association {
            host: Host { nqn: name(HOST), id: [7; 16] },
            subsystem: name(Nqn::replica(replica).as_str()),
            keys: None,
            accepted: Accepted::default(),
            options: Options::default(),
        };
        Session::connect(address, association).map(Disk)
    }

    fn carry_out(&mut self, command: Command, data: Data) -> Data {
        let request = Request { tag: 1, nsid: 1, command, data };
        self.0.submit(request).unwrap_or_else(|_| panic!("the queue is full"));
        loop {
            if let Happened::Done { result, data, .. } = self.0.wait().unwrap() {
                result.unwrap();
                return data;
            }
        }
    }

    fn span(block: u64) -> Span {
        Span::new(Lba(block), Blocks(1)).unwrap()
    }

    /// Fills a block, durably.
    pub(crate) fn write(&mut self, block: u64, byte: u8) {
        let mut buffer = self.0.take(4096).unwrap();
        buffer.fill(byte);
        let command = Command::Write { span: Disk::span(block), fua: true };
        self.carry_out(command, Data::Bytes(buffer.freeze()));
    }

    /// The byte that a block is filled with.
    pub(crate) fn read(&mut self, block: u64) -> u8 {
        let buffer = self.0.take(4096).unwrap();
        let command = Command::Read { span: Disk::span(block) };
        let Data::Fill(bytes) = self.carry_out(command, Data::Fill(buffer)) else { panic!() };
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is torn");
        bytes[0]
    }
}
