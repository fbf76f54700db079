//! Changing what a running engine serves.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use block::{Bytes, Command, Completion, IoError};
use engine::client::{ControllerEvent, Session};
use engine::device::Data;
use engine::serve::{AdminError, AdminResponse, Host, Server, Subsystem, TargetHandle};
use nvme::auth::{Keys, Secret};
use nvme::initiator::{Entry, Options};
use nvme::wire::{AnaState, Nqn};

use crate::harness::{
    address, association, config, connect, file, memory, namespace, nqn, one, verify,
};

fn subsystem(backing: engine::serve::Backing, number: u8) -> Subsystem {
    Subsystem { namespaces: [(1, namespace(backing, number))].into(), ..Subsystem::default() }
}

fn hosts(names: &[&str]) -> BTreeMap<Nqn, Host> {
    names.iter().map(|name| (nqn(name), Host::default())).collect()
}

fn discovery(server: &Server) -> Session {
    let options = Options { io_queues: 0, ..Options::default() };
    let name = Nqn::new(Nqn::DISCOVERY).unwrap();
    Session::connect(address(server), association(name, options)).unwrap()
}

fn names(found: &[Entry]) -> Vec<String> {
    let storage = found.iter().filter(|entry| !entry.is_discovery);
    storage.map(|entry| entry.subsystem.as_str().rsplit(':').next().unwrap().to_owned()).collect()
}

/// Waits until something of this kind happens.
fn await_event(session: &mut Session, is_it: impl Fn(&ControllerEvent) -> bool) {
    while !is_it(&session.wait().unwrap()) {}
}

/// The way ends; nothing else may.
fn await_end(session: &mut Session) {
    while !matches!(session.wait(), Ok(ControllerEvent::Lost { .. }) | Err(_)) {}
}

fn write(session: &mut Session, at: u64) -> Completion {
    let mut buffer = session.take(4096).unwrap();
    buffer.fill(7);
    let command = Command::Write { span: one(at), fua: false };
    let data = Data::Bytes(buffer.freeze());
    let request = engine::client::Request { tag: 1, nsid: 1, command, data };
    if session.submit(request).is_err() {
        // The initiator itself knows better.
        return Err(IoError::OutOfRange { span: one(at) });
    }
    loop {
        if let ControllerEvent::Done { result, .. } = session.wait().unwrap() {
            return result;
        }
    }
}

#[test]
fn a_subsystem_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let server = Server::start(config(vec![memory(8)], 2)).unwrap();
    let orders = server.orders();
    let mut listening = discovery(&server);
    assert_eq!(names(&listening.discover().unwrap()), ["a"]);
    for round in 0..3 {
        // The backing can be used anew as soon as the removal is answered.
        let wanted = subsystem(file(&disk, 8), 9);
        assert_eq!(orders.add(nqn("x"), wanted.clone()).wait().unwrap(), AdminResponse::Changed);
        assert_eq!(orders.add(nqn("x"), wanted).wait().unwrap(), AdminResponse::Unchanged);
        await_event(&mut listening, |happened| matches!(happened, ControllerEvent::Discovery));
        assert_eq!(names(&listening.discover().unwrap()), ["a", "x"], "round {round}");
        let other = orders.add(nqn("x"), subsystem(memory(8), 9)).wait();
        assert!(matches!(other, Err(AdminError::Conflict { .. })));

        let mut session = connect(&server, "x", Options { io_queues: 2, ..Options::default() });
        let mut bystander = connect(&server, "a", Options::default());
        verify(&mut session, 1, 8);
        assert_eq!(orders.remove(nqn("x")).wait().unwrap(), AdminResponse::Changed);
        assert_eq!(orders.remove(nqn("x")).wait().unwrap(), AdminResponse::Unchanged);
        await_end(&mut session);
        verify(&mut bystander, 1, 8);
        await_event(&mut listening, |happened| matches!(happened, ControllerEvent::Discovery));
        assert_eq!(names(&listening.discover().unwrap()), ["a"]);
        assert!(
            Session::connect(address(&server), association(nqn("x"), Options::default())).is_err()
        );
    }
    server.stop().unwrap();
    let late = orders.add(nqn("x"), subsystem(memory(8), 9)).wait();
    assert!(matches!(late, Err(AdminError::Stopped)));
}

#[test]
fn what_cannot_be_served_leaves_nothing_behind() {
    let server = Server::start(config(vec![memory(8)], 1)).unwrap();
    let orders = server.orders();
    let missing = engine::serve::Backing::File {
        path: "/nonexistent/disk".into(),
        block_size: block::BlockSize::B4096,
    };
    let mut wanted = subsystem(memory(8), 1);
    wanted.namespaces.insert(2, namespace(missing, 2));
    let refused = orders.add(nqn("x"), wanted).wait();
    assert!(matches!(refused, Err(AdminError::Serve(_))));
    assert_eq!(names(&discovery(&server).discover().unwrap()), ["a"]);
    let wanted = subsystem(memory(8), 1);
    assert_eq!(orders.add(nqn("x"), wanted).wait().unwrap(), AdminResponse::Changed);

    let at_discovery = orders.add(Nqn::new(Nqn::DISCOVERY).unwrap(), Subsystem::default()).wait();
    assert!(matches!(at_discovery, Err(AdminError::Conflict { .. })));
    let unknown = orders.set_ana(nqn("y"), 1, AnaState::Optimized).wait();
    assert!(matches!(unknown, Err(AdminError::NoSubsystem { .. })));
    let no_namespace = orders.set_ana(nqn("x"), 2, AnaState::Optimized).wait();
    assert!(matches!(no_namespace, Err(AdminError::NoNamespace { nsid: 2, .. })));
    server.stop().unwrap();
}

#[test]
fn hosts_learn_that_a_path_has_changed() {
    let server = Server::start(config(vec![memory(8)], 1)).unwrap();
    let orders = server.orders();
    let mut session = connect(&server, "a", Options::default());
    let state = |session: &Session| {
        let log = session.controller().ana().unwrap();
        log.state(session.controller().namespaces()[0].ana_group)
    };
    assert_eq!((state(&session), write(&mut session, 0)), (AnaState::Optimized, Ok(())));
    for (new, expected) in [
        (AnaState::Inaccessible, Err(IoError::Unreachable)),
        (AnaState::NonOptimized, Ok(())),
        (AnaState::Change, Err(IoError::Unreachable)),
        (AnaState::Optimized, Ok(())),
    ] {
        assert_eq!(orders.set_ana(nqn("a"), 1, new).wait().unwrap(), AdminResponse::Changed);
        assert_eq!(orders.set_ana(nqn("a"), 1, new).wait().unwrap(), AdminResponse::Unchanged);
        await_event(&mut session, |happened| matches!(happened, ControllerEvent::Ana));
        assert_eq!(state(&session), new);
        assert_eq!(write(&mut session, 0), expected, "{new:?}");
    }
    server.stop().unwrap();
}

#[test]
fn hosts_that_may_no_longer_connect_are_cut_off() {
    let server = Server::start(config(vec![memory(8)], 2)).unwrap();
    let orders = server.orders();
    let mut listening = discovery(&server);
    let mut session = connect(&server, "a", Options::default());
    let set = |orders: &TargetHandle, hosts| orders.set_hosts(nqn("a"), hosts).wait().unwrap();
    assert_eq!(set(&orders, hosts(&["host", "other"])), AdminResponse::Changed);
    assert_eq!(set(&orders, hosts(&["host", "other"])), AdminResponse::Unchanged);
    verify(&mut session, 1, 4);
    await_event(&mut listening, |happened| matches!(happened, ControllerEvent::Discovery));
    assert_eq!(names(&listening.discover().unwrap()), ["a"]);
    assert_eq!(set(&orders, hosts(&["other"])), AdminResponse::Changed);
    await_end(&mut session);
    await_event(&mut listening, |happened| matches!(happened, ControllerEvent::Discovery));
    assert_eq!(names(&listening.discover().unwrap()), [""; 0]);
    let connect = |keys: Option<Keys>| {
        let association =
            nvme::initiator::Association { keys, ..association(nqn("a"), Options::default()) };
        Session::connect(address(&server), association)
    };
    assert!(connect(None).is_err());
    // With a secret from now on; and with another one after that.
    let keys = |byte| Keys { host: Secret::new(&[byte; 32], None).unwrap(), controller: None };
    for byte in [1, 2] {
        let known =
            BTreeMap::from([(nqn("host"), Host { keys: Some(keys(byte)), ..Host::default() })]);
        assert_eq!(set(&orders, known), AdminResponse::Changed);
        assert!(connect(None).is_err());
        assert!(connect(Some(keys(byte + 1))).is_err());
        verify(&mut connect(Some(keys(byte))).unwrap(), 1, 4);
    }
    server.stop().unwrap();
}

#[test]
fn hosts_learn_that_a_namespace_has_grown() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    let server = Server::start(config(vec![memory(8), file(&disk, 8)], 1)).unwrap();
    let orders = server.orders();
    for name in ["a", "b"] {
        let mut session = connect(&server, name, Options::default());
        let beyond = (8 << 20) / 4096;
        assert!(write(&mut session, beyond).is_err());
        let grow = |mib| orders.grow(nqn(name), 1, Bytes::mib(mib)).wait();
        if name == "b" {
            assert!(matches!(grow(12), Err(AdminError::Small { .. })));
            file(&disk, 12);
        }
        assert_eq!(grow(12).unwrap(), AdminResponse::Changed);
        assert_eq!(grow(12).unwrap(), AdminResponse::Unchanged);
        assert!(matches!(grow(4), Err(AdminError::Shrinks { .. })));
        await_event(&mut session, |happened| matches!(happened, ControllerEvent::Namespaces));
        assert_eq!(session.controller().namespaces()[0].geometry.bytes(), Bytes::mib(12));
        assert_eq!(write(&mut session, beyond), Ok(()));
        session.close().unwrap();
    }
    server.stop().unwrap();
}

/// Wakes a thread that has nothing but the standard library.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn orders_can_be_awaited() {
    let server = Server::start(config(vec![memory(8)], 1)).unwrap();
    let orders = server.orders();
    let both = async {
        let first = orders.add(nqn("x"), subsystem(memory(1), 2)).await.unwrap();
        (first, orders.remove(nqn("x")).await.unwrap())
    };
    let mut both = pin!(both);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let answers = loop {
        match both.as_mut().poll(&mut context) {
            Poll::Ready(answers) => break answers,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(answers, (AdminResponse::Changed, AdminResponse::Changed));
    server.stop().unwrap();
}
