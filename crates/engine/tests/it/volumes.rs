//! Mirrored volumes over real sockets and real pools in files: three engines in one process.

mod near;
mod replication;
mod shares;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use block::{Blocks, Command, Completion};
use engine::client::{ControllerEvent, Request, Session};
use engine::device::Data;
use engine::pools::{self, NewDisk, NewPool};
use engine::replication::Replication;
use engine::serve::{self, Backing, Config, Pool, QuotaLimits, Server, Subsystem};
use engine::volumes::{
    EventKind, MemoryRecordStore, OpenRequest, ReplicaPath, SnapshotCommand, Status, VolumeEvent,
    VolumeRequest, VolumeResponse,
};
use mirror::MirrorConfig;
use model::{ChildState, QosLimits, ReplicaId, ReplicaSet, TargetRecord, TargetState, VolumeId};
use nvme::initiator::{Key, Options, Reservation};
use nvme::target::NamespaceIds;
use nvme::wire::{AcquireAction, AnaState, Nqn, RegisterAction, ReservationType};
use pool::{ClusterSize, Id, Label, NewReplica};

use crate::harness::{association, config, namespace, nqn, one, verify};

const MIB: u64 = 256;

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(number: u64) -> T {
    format!("5f0c54a1-9d6e-4b6a-8a53-{number:012x}").parse().unwrap()
}

pub(crate) fn volume() -> VolumeId {
    id(100)
}

pub(crate) fn name(name: &model::Nqn) -> Nqn {
    Nqn::new(&name.to_string()).unwrap()
}

/// An engine with a pool in a file, and a replica in it.
pub(crate) struct Node {
    replica: ReplicaId,
    disk: PathBuf,
    pool: Id,
    server: Option<Server>,
    pub(crate) address: SocketAddr,
    /// By which address others come.
    through: SocketAddr,
    /// Whether its own target knows that it is near.
    is_near: bool,
    replication: Replication,
    places: QuotaLimits,
}

impl Node {
    fn start(dir: &Path, number: u64, size: Blocks, replication: Replication) -> Node {
        let disk = dir.join(format!("disk{number}"));
        std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
        let (pool, replica) = (Id(u128::from(number)), id(number));
        let create = pools::PoolRequest::Create(NewPool {
            id: pool,
            name: format!("pool{number}"),
            cluster: ClusterSize::DEFAULT,
            disks: vec![NewDisk { path: disk.clone(), id: Id(u128::from(number) + 50) }],
            force: false,
        });
        let new = NewReplica {
            id: pool_id(replica),
            origin: Id::NONE,
            size,
            thick: false,
            created: 0,
            label: Label::default(),
            key: Vec::new(),
        };
        let address = "127.0.0.1:0".parse().unwrap();
        let mut node = Node {
            replica,
            disk,
            pool,
            server: None,
            address,
            through: address,
            is_near: true,
            replication,
            places: QuotaLimits::default(),
        };
        node.serve(create, vec![new]);
        node
    }

    fn serve(&mut self, open: pools::PoolRequest, replicas: Vec<NewReplica>) {
        let backing = Backing::Member { pool: self.pool, id: pool_id(self.replica) };
        let namespaces = [(1, namespace(backing, 9))].into();
        let subsystem = Subsystem { namespaces, ..Subsystem::default() };
        let config = Config {
            listen: vec![self.address],
            pools: vec![Pool { id: self.pool, open, replicas, keys: BTreeMap::new() }],
            subsystems: [(name(&model::Nqn::replica(self.replica)), subsystem)].into(),
            replication: self.replication.clone(),
            limits: serve::EngineLimits { places: self.places, ..serve::EngineLimits::default() },
            ..config(Vec::new(), 1)
        };
        let server = Server::start(config).unwrap();
        self.address = server.addresses()[0];
        self.through = self.address;
        self.server = Some(server);
    }

    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.serve(pools::PoolRequest::Import { paths: vec![self.disk.clone()] }, Vec::new());
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn way(&self, local: bool) -> ReplicaPath {
        let (addresses, local) = (vec![self.through], local && self.is_near);
        ReplicaPath { addresses, nqn: name(&model::Nqn::replica(self.replica)), local }
    }
}

fn pool_id(replica: ReplicaId) -> Id {
    Id(replica.uuid().as_u128())
}

pub(crate) struct Cluster {
    _dir: tempfile::TempDir,
    pub(crate) nodes: Vec<Node>,
    store: MemoryRecordStore,
    size: Blocks,
}

impl Cluster {
    pub(crate) fn new(count: u64) -> Cluster {
        Cluster::with((0..count).map(|_| Replication::default()))
    }

    /// Engines that speak to each other like this.
    fn with(engines: impl IntoIterator<Item = Replication>) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let size = Blocks((MIB << 20) / 4096 / 4);
        let start = |(replication, number)| Node::start(dir.path(), number, size, replication);
        let nodes: Vec<Node> = engines.into_iter().zip(1..).map(start).collect();
        Cluster { _dir: dir, nodes, store: MemoryRecordStore::default(), size }
    }

    /// Takes the next epoch and opens a target on a node.
    pub(crate) fn open(&self, on: usize, target: u64) -> Receiver<VolumeEvent> {
        let replicas = self.nodes.iter().map(|node| node.replica);
        let set = ReplicaSet::new(replicas.collect()).unwrap();
        let node: model::NodeName = "node".parse().unwrap();
        let record = match self.store.get(volume()) {
            Some(record) => record.take(id(target), node),
            None => TargetRecord::new(volume(), id(target), node, set),
        };
        self.store.put(record.clone());
        let (news, told) = sync_channel(4096);
        let children = self.nodes.iter().enumerate();
        let opening = OpenRequest {
            record,
            size: self.size,
            children: children.map(|(nth, node)| (node.replica, node.way(nth == on))).collect(),
            node: nqn("node"),
            hosts: BTreeMap::new(),
            cntlids: None,
            ids: NamespaceIds { uuid: [3; 16], ..NamespaceIds::default() },
            ana: AnaState::Optimized,
            limits: QosLimits::default(),
            config: MirrorConfig {
                open_wait: Duration::from_secs(3),
                retry: (Duration::from_millis(20), Duration::from_millis(200)),
                ..MirrorConfig::default_for(self.size)
            },
            home: Some(self.nodes[on].pool),
            recorder: Arc::new(self.store.clone()),
            news,
        };
        let opened = self.nodes[on].server().volumes().open_now(opening).unwrap();
        assert!(matches!(opened, Ok(VolumeResponse::Done)), "{opened:?}");
        told
    }

    pub(crate) fn request(&self, on: usize, order: VolumeRequest) -> VolumeResponse {
        let volumes = self.nodes[on].server().volumes();
        volumes.carry_out(volume(), order).unwrap().unwrap()
    }

    fn status(&self, on: usize) -> Status {
        match self.request(on, VolumeRequest::Status) {
            VolumeResponse::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self, on: usize) -> Session {
        connect_to(self.nodes[on].address)
    }

    pub(crate) fn stop(mut self) {
        self.nodes.iter_mut().filter(|node| node.server.is_some()).for_each(Node::stop);
    }
}

fn connect_to(address: SocketAddr) -> Session {
    let name = name(&model::Nqn::volume(volume()));
    Session::connect(address, association(name, Options::default())).unwrap()
}

pub(crate) fn await_news(
    told: &Receiver<VolumeEvent>,
    is_it: impl Fn(&EventKind) -> bool,
) -> EventKind {
    let patience = Duration::from_secs(30);
    loop {
        let news = told.recv_timeout(patience).expect("the news did not come");
        if is_it(&news.what) {
            return news.what;
        }
    }
}

pub(crate) fn is_open(what: &EventKind) -> bool {
    *what == EventKind::Target(TargetState::Open)
}

fn run(session: &mut Session, command: Command, data: Data) -> (Completion, Data) {
    let request = Request { tag: 1, nsid: 1, command, data };
    session.submit(request).unwrap();
    loop {
        if let ControllerEvent::Done { result, data, .. } = session.wait().unwrap() {
            return (result, data);
        }
    }
}

pub(crate) fn write(session: &mut Session, at: u64, byte: u8) -> Completion {
    let mut buffer = session.take(4096).unwrap();
    buffer.fill(byte);
    let command = Command::Write { span: one(at), fua: false };
    run(session, command, Data::Bytes(buffer.freeze())).0
}

pub(crate) fn read(session: &mut Session, at: u64) -> Result<u8, block::IoError> {
    let buffer = session.take(4096).unwrap();
    let (result, data) = run(session, Command::Read { span: one(at) }, Data::Fill(buffer));
    let Data::Fill(bytes) = data else { panic!("no buffer") };
    assert!(result.is_err() || bytes.iter().all(|byte| *byte == bytes[0]));
    result.map(|()| bytes[0])
}

#[test]
fn a_volume_is_written_to_all_and_read_back() {
    let cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    for (blocks, depth) in [(1, 1), (1, 32), (8, 16), (64, 8)] {
        verify(&mut session, blocks, depth);
    }
    let status = cluster.status(0);
    assert_eq!((status.state, status.hosts), (TargetState::Open, vec![nqn("host")]));
    assert!(status.children.iter().all(|child| child.state == ChildState::InSync));
    assert!(matches!(cluster.request(0, VolumeRequest::Close), VolumeResponse::Done));
    assert_eq!(cluster.store.get(volume()).unwrap().end(), model::ShutdownState::Clean);
    cluster.stop();
}

fn flush(session: &mut Session) {
    assert_eq!(run(session, Command::Flush, Data::None).0, Ok(()));
}

/// First block of a region of the usual size.
fn region(number: u64) -> u64 {
    number * 256
}

fn in_sync(cluster: &Cluster, node: usize) -> bool {
    let record = cluster.store.get(volume()).unwrap();
    record.set().in_sync().contains(&cluster.nodes[node].replica)
}

#[test]
fn a_replica_that_was_away_gets_what_it_missed_and_no_more() {
    let mut cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    for number in 0..16 {
        assert_eq!(write(&mut session, region(number), 1), Ok(()));
    }
    flush(&mut session);
    cluster.nodes[2].stop();
    assert_eq!(write(&mut session, region(3), 2), Ok(()));
    assert!(!in_sync(&cluster, 2), "acknowledged before it was recorded");
    assert_eq!(write(&mut session, region(5) + 7, 2), Ok(()));
    cluster.nodes[2].restart();
    let back = cluster.nodes[2].replica;
    let is_back = |what: &EventKind| *what == EventKind::Child(back, ChildState::InSync);
    await_news(&told, is_back);
    assert!(in_sync(&cluster, 2));
    let status = cluster.status(0);
    let rebuild = status.rebuilds.iter().find(|rebuild| rebuild.replica == back).unwrap();
    assert_eq!(rebuild.extent, model::RebuildKind::Partial);
    let dirty = 2 * 256 * 4096;
    let looked_at = rebuild.progress.total.bytes().0;
    assert!(looked_at <= dirty + dirty / 10, "{:?}", rebuild.progress);
    assert!(rebuild.progress.copied.bytes().0 >= 2 * 4096, "{:?}", rebuild.progress);
    // A target beside it reads from it first.
    cluster.request(0, VolumeRequest::Close);
    let told = cluster.open(2, 201);
    await_news(&told, is_open);
    let mut session = cluster.connect(2);
    for (at, byte) in [(region(3), 2), (region(5) + 7, 2), (region(4), 1), (region(9) + 1, 0)] {
        assert_eq!(read(&mut session, at), Ok(byte), "block {at}");
    }
    cluster.stop();
}

#[test]
fn hosts_do_not_notice_that_a_replica_goes_and_comes() {
    let mut cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let lost = cluster.nodes[1].replica;
    let going = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let address = cluster.nodes[0].address;
    std::thread::scope(|scope| {
        let keep_going = Arc::clone(&going);
        let (begun, has_begun) = sync_channel(0);
        let host = scope.spawn(move || {
            let mut session = connect_to(address);
            let mut rounds = 0;
            while keep_going.load(Ordering::Relaxed) {
                verify(&mut session, 1, 16);
                rounds += 1;
                let _ = begun.try_send(());
            }
            rounds
        });
        has_begun.recv().unwrap();
        cluster.nodes[1].stop();
        await_news(
            &told,
            |what| matches!(what, EventKind::Child(of, ChildState::Faulted { .. }) if *of == lost),
        );
        cluster.nodes[1].restart();
        await_news(&told, |what| *what == EventKind::Child(lost, ChildState::InSync));
        going.store(false, Ordering::Relaxed);
        assert!(host.join().unwrap() > 0);
    });
    assert_eq!(cluster.status(0).state, TargetState::Open);
    cluster.stop();
}

#[test]
fn a_newer_target_fences_the_older() {
    let cluster = Cluster::new(2);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut old = cluster.connect(0);
    assert_eq!(write(&mut old, 1, 1), Ok(()));
    let newer = cluster.open(1, 201);
    await_news(&newer, is_open);
    let mut new = cluster.connect(1);
    assert_eq!(read(&mut new, 1), Ok(1));
    assert_eq!(write(&mut new, 1, 2), Ok(()));
    assert!(write(&mut old, 1, 3).is_err());
    assert!(read(&mut old, 1).is_err());
    let fenced = TargetState::Shutdown { cause: model::StopCause::Fenced };
    await_news(&told, |what| *what == EventKind::Target(fenced));
    assert_eq!(read(&mut new, 1), Ok(2));
    assert!(matches!(cluster.request(0, VolumeRequest::Close), VolumeResponse::Done));
    cluster.stop();
}

#[test]
fn silent_damage_is_read_past_and_repaired() {
    let cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    assert_eq!(write(&mut session, 77, 0xA7), Ok(()));
    flush(&mut session);
    let disk = &cluster.nodes[0].disk;
    let place = place_of(disk, 0xA7).expect("the block is on the disk");
    let file = std::fs::File::options().write(true).open(disk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0x5A; 4096], place).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(&mut session, 77), Ok(0xA7));
    let replica = cluster.nodes[0].replica;
    await_news(&told, |what| match what {
        EventKind::Damage(damage) => damage.repaired[&replica].first == [one(77)],
        _ => false,
    });
    flush(&mut session);
    assert!(place_of(disk, 0xA7).is_some(), "it was not repaired");
    assert_eq!(read(&mut session, 77), Ok(0xA7));
    assert_eq!(cluster.status(0).state, TargetState::Open);
    cluster.stop();
}

/// Where a block of only this byte is in a file.
fn place_of(disk: &Path, byte: u8) -> Option<u64> {
    let bytes = std::fs::read(disk).unwrap();
    let is_it = |block: &&[u8]| block.iter().all(|found| *found == byte);
    let nth = bytes.chunks(4096).position(|block| is_it(&block))?;
    Some(u64::try_from(nth).unwrap() * 4096)
}

#[test]
fn a_snapshot_is_the_same_moment_on_every_replica() {
    let cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    assert_eq!(write(&mut session, 8, 1), Ok(()));
    let snapshot: model::SnapshotId = id(300);
    let taken_at = model::Timestamp::from_millis(5);
    let consistency = model::Consistency::Crash;
    let taking = SnapshotCommand { snapshot, group: None, taken_at, consistency };
    let answer = cluster.request(0, VolumeRequest::Snapshot(taking));
    assert!(matches!(answer, VolumeResponse::Taken(by) if by.len() == 3));
    assert_eq!(write(&mut session, 8, 2), Ok(()));
    for node in &cluster.nodes {
        let id = Id(snapshot.uuid().as_u128());
        let backing = Backing::Replica { pool: node.pool, id };
        let namespaces = [(1, namespace(backing, 4))].into();
        let subsystem = Subsystem { namespaces, ..Subsystem::default() };
        node.server().orders().add(nqn("snapshot"), subsystem).wait().unwrap();
        let association = association(nqn("snapshot"), Options::default());
        let mut look = Session::connect(node.address, association).unwrap();
        assert_eq!(read(&mut look, 8), Ok(1));
    }
    assert_eq!(read(&mut session, 8), Ok(2));
    cluster.stop();
}
