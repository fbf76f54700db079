//! An engine of a node, its files, and a host.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use api::node::{Node, Remote};
use block::{Blocks, Command, Completion, Lba, Span};
use e2e::fleet::{self, EngineProcess, Protection};
use e2e::process::{PATIENCE, Program};
use engine::client::{ControllerEvent, Request, Session, SessionError};
use engine::device::Data;
use model::*;
use nvme::initiator::Options;

pub(crate) const HOST: &str = "nqn.2026-11.io.holdfast:node:node-9";

/// The `n`th id of its kind.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
    format!("00000000-0000-4000-8000-{n:012}").parse().unwrap()
}

pub(crate) fn order<S>(generation: u64, spec: S) -> VersionedSpec<S> {
    VersionedSpec { generation: Generation::new(generation).unwrap(), spec }
}

pub(crate) fn kind<T: std::fmt::Debug>(answer: Result<T, Problem>) -> ProblemKind {
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
        let at = (node, "127.0.0.1:0".parse().unwrap());
        let EngineProcess { program, remote, data } =
            EngineProcess::start(at, None, dir, more).unwrap();
        Rig { program, remote, data }
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

/// What is held is waited for. A session shows that it is alive only while something is asked of
/// it, so it does not promise to: a test that is busy elsewhere is no host that died.
fn options() -> Options {
    Options { io_patience: PATIENCE * 2, keep_alive: Duration::ZERO, ..Options::default() }
}

/// Our initiator, connected to a replica that it holds as a target would, or to a volume.
pub(crate) struct Disk(Session);

impl Disk {
    /// Holds a replica with an epoch that is higher than those of the targets here.
    pub(crate) fn connect(address: SocketAddr, replica: ReplicaId) -> anyhow::Result<Disk> {
        Disk::hold(address, replica, 1000)
    }

    /// Holds a replica as the target of an epoch would.
    pub(crate) fn hold(
        address: SocketAddr,
        replica: ReplicaId,
        epoch: u64,
    ) -> anyhow::Result<Disk> {
        let session =
            fleet::connect_replica(address, (HOST, replica), Protection::Full, options())?;
        let mut disk = Disk(session);
        fleet::hold(&mut disk.0, epoch)?;
        Ok(disk)
    }

    /// Holds a replica of an engine that belongs to no cluster.
    pub(crate) fn hold_served(address: SocketAddr, replica: ReplicaId) -> anyhow::Result<Disk> {
        let mut disk = Disk::open(address, &Nqn::replica(replica))?;
        fleet::hold(&mut disk.0, 1000)?;
        Ok(disk)
    }

    /// Connects to a volume, as one of its hosts.
    pub(crate) fn attach(address: SocketAddr, volume: VolumeId) -> anyhow::Result<Disk> {
        Disk::open(address, &Nqn::volume(volume))
    }

    fn open(address: SocketAddr, subsystem: &Nqn) -> anyhow::Result<Disk> {
        fleet::connect(address, (HOST, subsystem.as_str()), options()).map(Disk)
    }

    /// Begins a command on a block; it is named by the block.
    pub(crate) fn begin_write(
        &mut self,
        block: u64,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), String> {
        let mut buffer = self.0.take(4096).unwrap();
        fill(&mut buffer);
        let command = Command::Write { span: Disk::span(block), fua: false };
        self.begin(block, command, Data::Bytes(buffer.freeze()))
    }

    /// Begins to read a block.
    pub(crate) fn begin_read(&mut self, block: u64) -> Result<(), String> {
        let buffer = self.0.take(4096).unwrap();
        self.begin(block, Command::Read { span: Disk::span(block) }, Data::Fill(buffer))
    }

    fn begin(&mut self, tag: u64, command: Command, data: Data) -> Result<(), String> {
        let request = Request { tag, nsid: 1, command, data };
        self.0.submit(request).map_err(|_| "the connection is lost, or the queue full".to_owned())
    }

    /// The next command that ends.
    pub(crate) fn end(&mut self) -> Result<(u64, Completion, Data), SessionError> {
        loop {
            match self.0.wait()? {
                ControllerEvent::Done { tag, result, data } => return Ok((tag, result, data)),
                ControllerEvent::Lost { why } => return Err(SessionError::Lost(why)),
                _ => {}
            }
        }
    }

    fn carry_out(&mut self, command: Command, data: Data) -> Data {
        self.begin(1, command, data).unwrap();
        let (_, result, data) = self.end().unwrap();
        result.unwrap();
        data
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

    /// Makes everything durable.
    pub(crate) fn flush(&mut self) {
        self.carry_out(Command::Flush, Data::None);
    }

    /// What is in a block.
    pub(crate) fn read_all(&mut self, block: u64) -> Vec<u8> {
        let buffer = self.0.take(4096).unwrap();
        let command = Command::Read { span: Disk::span(block) };
        let Data::Fill(bytes) = self.carry_out(command, Data::Fill(buffer)) else { panic!() };
        bytes.to_vec()
    }

    /// The byte that a block is filled with.
    pub(crate) fn read(&mut self, block: u64) -> u8 {
        let bytes = self.read_all(block);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is torn");
        bytes[0]
    }
}
