//! A target to talk to.

use std::net::SocketAddr;
use std::time::Duration;

use block::{BlockSize, Blocks, Bytes, Geometry, Lba, Span};
use engine::client::Session;
use engine::client::perf::{Load, Measured, Pattern, run};
use engine::replication::Replication;
use engine::serve::{Backing, Config, EngineLimits, Namespace, Server, Subsystem};
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Options};
use nvme::pdu::Digests;
use nvme::target::NamespaceIds;
use nvme::wire::{AnaState, Nqn};

pub(crate) fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.io.holdfast:{name}")).unwrap()
}

pub(crate) fn memory(mib: u32) -> Backing {
    Backing::Memory(Geometry::of_bytes(BlockSize::B4096, Bytes::mib(mib)).unwrap())
}

pub(crate) fn file(path: &std::path::Path, mib: u64) -> Backing {
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(path);
    file.unwrap().set_len(mib << 20).unwrap();
    Backing::File { path: path.into(), block_size: BlockSize::B4096 }
}

pub(crate) fn namespace(backing: Backing, number: u8) -> Namespace {
    let ids = NamespaceIds { uuid: [number; 16], ..NamespaceIds::default() };
    Namespace { backing, ids, ana: AnaState::Optimized }
}

/// Subsystems `a`, `b`, … with one namespace each.
pub(crate) fn config(backings: Vec<Backing>, cores: usize) -> Config {
    let one = |(backing, number): (Backing, u8)| {
        let letter = char::from(b'a' + number);
        let namespaces = [(1, namespace(backing, number + 1))].into();
        (nqn(&letter.to_string()), Subsystem { namespaces, ..Subsystem::default() })
    };
    Config {
        pools: Vec::new(),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        // More reactors than the machine has cores is slow, not wrong.
        cores: (0..cores).map(|_| 0).collect(),
        subsystems: backings.into_iter().zip(0..).map(one).collect(),
        digests: Digests { header: true, data: true },
        limits: EngineLimits::default(),
        replication: Replication::default(),
    }
}

pub(crate) fn association(subsystem: Nqn, options: Options) -> Association {
    let host = Host { nqn: nqn("host"), id: [7; 16] };
    Association { host, subsystem, keys: None, accepted: Accepted::default(), options }
}

pub(crate) fn connect(server: &Server, name: &str, options: Options) -> Session {
    Session::connect(address(server), association(nqn(name), options)).unwrap()
}

pub(crate) fn one(at: u64) -> Span {
    Span::new(Lba(at), Blocks(1)).unwrap()
}

pub(crate) fn address(server: &Server) -> SocketAddr {
    server.addresses()[0]
}

pub(crate) fn verify(session: &mut Session, blocks: u64, depth: u32) -> Measured {
    // Fewer of the large ones: the machine that tests may be slow.
    let commands = (1000 / blocks).clamp(16, 200);
    let load = Load {
        nsid: 1,
        pattern: Pattern::RandomMix { reads: 30 },
        blocks: Blocks(blocks),
        depth,
        time: Duration::from_hours(1),
        commands,
        verify: true,
        seed: blocks,
    };
    let measured = run(session, load).unwrap();
    assert_eq!((measured.failed, measured.wrong), (0, 0), "{blocks} blocks, depth {depth}");
    assert!(measured.commands >= commands);
    measured
}
