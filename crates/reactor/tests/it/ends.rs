//! Stopping with work under way: memory outlives its operations.

use std::net::TcpStream;

use reactor::{Event, Handler, Io, Op, Outcome, PAGE, Reactor, Token};

use crate::harness::small;

/// Leaves receives, sends, timers and file reads under way and stops.
struct Abandons {
    accepted: bool,
}

impl Handler for Abandons {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        if let Event::Done { outcome: Outcome::Accepted(Ok((socket, _))), .. } = event {
            let buffer = io.take(PAGE).unwrap();
            io.submit(Op::ReceiveInto { socket, buffer, from: 0, to: PAGE }, Token(1)).unwrap();
            let mut chain = reactor::Chain::new();
            chain.take(io.take(PAGE).unwrap().freeze());
            chain.copy(&vec![0; 20 << 20]);
            io.submit(Op::Send { socket, chain }, Token(2)).unwrap();
            let at = io.now().after(std::time::Duration::from_secs(1000));
            io.submit(Op::Timer { at }, Token(3)).unwrap();
            self.accepted = true;
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = ()>) -> bool {
        !self.accepted
    }
}

#[test]
fn a_stopped_reactor_has_given_every_buffer_back() {
    let mut reactor = Reactor::new(&small()).unwrap();
    let arena = reactor.arena().clone();
    let (listener, address) = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    reactor.submit(Op::Accept { listener }, Token(0)).unwrap();
    let _peer = TcpStream::connect(address).unwrap();
    reactor.run(&mut Abandons { accepted: false }).unwrap();
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn dropping_with_work_under_way_waits_for_it() {
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let arena = reactor.arena().clone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, vec![0; 8 * PAGE]).unwrap();
    let disk = reactor.open(&path, reactor::Access::ReadWrite).unwrap();
    for page in 0..8 {
        let buffer = reactor.take(PAGE).unwrap();
        reactor.submit(Op::Read { file: disk.file, at: page * 4096, buffer }, Token(page)).unwrap();
    }
    assert_eq!(arena.free_bytes(), arena.bytes() - 8 * PAGE);
    drop(reactor);
    assert_eq!(arena.free_bytes(), arena.bytes());
}
