//! Mirrored volumes over real sockets and real pools in files: three engines in one process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use block::{Blocks, Command, Completion};
use engine::client::{Happened, Request, Session};
use engine::device::Data;
use engine::pools::{self, NewDisk, NewPool};
use engine::serve::{Backing, Config, Pool, Server, Subsystem};
use engine::volumes::{Answer, MemoryRecorder, News, Opening, Order, Status, Way, What};
use mirror::Policy;
use model::{ChildState, Limits, ReplicaId, ReplicaSet, TargetRecord, TargetState, VolumeId};
use nvme::initiator::Options;
use nvme::target::NamespaceIds;
use nvme::wire::{AnaState, Nqn};
use pool::{ClusterSize, Id, Label, NewReplica};

use crate::harness::{association, config, namespace, nqn, one, verify};

const MIB: u64 = 256;

fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(number: u64) -> T {
    format!("5f0c54a1-9d6e-4b6a-8a53-{number:012x}").parse().unwrap()
}

fn volume() -> VolumeId {
    id(100)
}

fn name(name: &model::Nqn) -> Nqn {
    Nqn::new(&name.to_string()).unwrap()
}

/// An engine with a pool in a file, and a replica in it.
pub(crate) struct Node {
    replica: ReplicaId,
    disk: PathBuf,
    pool: Id,
    server: Option<Server>,
    address: SocketAddr,
}

impl Node {
    fn start(dir: &Path, number: u64, size: Blocks) -> Node {
        let disk = dir.join(format!("disk{number}"));
        std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
        let (pool, replica) = (Id(u128::from(number)), id(number));
        let create = pools::Order::Create(NewPool {
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
        let mut node = Node { replica, disk, pool, server: None, address };
        node.serve(create, vec![new]);
        node
    }

    fn serve(&mut self, open: pools::Order, replicas: Vec<NewReplica>) {
        let backing = Backing::Member { pool: self.pool, id: pool_id(self.replica) };
        let namespaces = [(1, namespace(backing, 9))].into();
        let subsystem = Subsystem { namespaces, ..Subsystem::default() };
        let config = Config {
            listen: vec![self.address],
            pools: vec![Pool { id: self.pool, open, replicas }],
            subsystems: [(name(&model::Nqn::replica(self.replica)), subsystem)].into(),
            ..config(Vec::new(), 1)
        };
        let server = Server::start(config).unwrap();
        self.address = server.addresses()[0];
        self.server = Some(server);
    }

    fn stop(&mut self) {
        self.server.take().unwrap().stop().unwrap();
    }

    fn restart(&mut self) {
        self.serve(pools::Order::Import { paths: vec![self.disk.clone()] }, Vec::new());
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    fn way(&self, local: bool) -> Way {
        Way { address: self.address, nqn: name(&model::Nqn::replica(self.replica)), local }
    }
}

fn pool_id(replica: ReplicaId) -> Id {
    Id(replica.uuid().as_u128())
}

pub(crate) struct Cluster {
    _dir: tempfile::TempDir,
    nodes: Vec<Node>,
    store: MemoryRecorder,
    size: Blocks,
}

impl Cluster {
    fn new(count: u64) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let size = Blocks((MIB << 20) / 4096 / 4);
        let nodes: Vec<Node> =
            (1..=count).map(|number| Node::start(dir.path(), number, size)).collect();
        Cluster { _dir: dir, nodes, store: MemoryRecorder::default(), size }
    }

    /// Takes the next epoch and opens a target on a node.
    fn open(&self, on: usize, target: u64) -> Receiver<News> {
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
        let opening = Opening {
            record,
            size: self.size,
            children: children.map(|(nth, node)| (node.replica, node.way(nth == on))).collect(),
            node: nqn("node"),
            hosts: BTreeMap::new(),
            cntlids: None,
            ids: NamespaceIds { uuid: [3; 16], ..NamespaceIds::default() },
            ana: AnaState::Optimized,
            limits: Limits::default(),
            policy: Policy {
                open_wait: Duration::from_secs(3),
                retry: (Duration::from_millis(20), Duration::from_millis(200)),
                ..Policy::usual(self.size)
            },
            home: Some(self.nodes[on].pool),
            recorder: Arc::new(self.store.clone()),
            news,
        };
        let opened = self.nodes[on].server().volumes().open_now(opening).unwrap();
        assert!(matches!(opened, Ok(Answer::Done)), "{opened:?}");
        told
    }

    fn order(&self, on: usize, order: Order) -> Answer {
        let volumes = self.nodes[on].server().volumes();
        volumes.carry_out(volume(), order).unwrap().unwrap()
    }

    fn status(&self, on: usize) -> Status {
        match self.order(on, Order::Status) {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn connect(&self, on: usize) -> Session {
        let name = name(&model::Nqn::volume(volume()));
        let association = association(name, Options::default());
        Session::connect(self.nodes[on].address, association).unwrap()
    }

    fn stop(mut self) {
        self.nodes.iter_mut().filter(|node| node.server.is_some()).for_each(Node::stop);
    }
}

fn await_news(told: &Receiver<News>, is_it: impl Fn(&What) -> bool) -> What {
    let patience = Duration::from_secs(30);
    loop {
        let news = told.recv_timeout(patience).expect("the news did not come");
        if is_it(&news.what) {
            return news.what;
        }
    }
}

fn is_open(what: &What) -> bool {
    *what == What::Target(TargetState::Open)
}

fn run(session: &mut Session, command: Command, data: Data) -> (Completion, Data) {
    let request = Request { tag: 1, nsid: 1, command, data };
    session.submit(request).unwrap();
    loop {
        if let Happened::Done { result, data, .. } = session.wait().unwrap() {
            return (result, data);
        }
    }
}

fn write(session: &mut Session, at: u64, byte: u8) -> Completion {
    let mut buffer = session.take(4096).unwrap();
    buffer.fill(byte);
    let command = Command::Write { span: one(at), fua: false };
    run(session, command, Data::Bytes(buffer.freeze())).0
}

fn read(session: &mut Session, at: u64) -> Result<u8, block::Fault> {
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
    assert!(matches!(cluster.order(0, Order::Close), Answer::Done));
    assert_eq!(cluster.store.get(volume()).unwrap().end(), model::End::Clean);
    cluster.stop();
}
