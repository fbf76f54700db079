//! A file is copied over a connection: by reactors of a made-up world, and by real ones.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::{SimulatedReactor, Turn, World};
use crate::io::{Access, Event, FileId, Handler, Io, Op, Outcome, Socket, Token};
use crate::memory::{Buffer, PAGE};
use crate::{Chain, MonotonicTime, Reactor};

const PIECE: usize = 3 * PAGE;
const PIECES: usize = 7;
const TOKEN: Token = Token(1);
const BELL: Token = Token(2);

/// Takes one connection, and writes what comes into a file, piece by piece.
struct Taker {
    file: FileId,
    listener: Socket,
    socket: Option<Socket>,
    written: usize,
    events: Vec<String>,
}

/// Reads a file piece by piece and sends it.
struct Giver {
    file: FileId,
    to: SocketAddr,
    socket: Option<Socket>,
    sent: usize,
    rang: Option<MonotonicTime>,
}

fn at(piece: usize) -> u64 {
    u64::try_from(piece * PIECE).unwrap()
}

impl Taker {
    fn new(io: &mut impl Io, path: &Path) -> (Taker, SocketAddr) {
        let file = io.open(path, Access::Exclusive).unwrap().file;
        let (listener, address) = io.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        io.submit(Op::Accept { listener }, TOKEN).unwrap();
        (Taker { file, listener, socket: None, written: 0, events: Vec::new() }, address)
    }

    fn receive(&mut self, buffer: Buffer, io: &mut impl Io) {
        if let Some(socket) = self.socket {
            let op = Op::ReceiveInto { socket, buffer, from: 0, to: PIECE };
            io.submit(op, TOKEN).unwrap();
        }
    }
}

impl Handler for Taker {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        let Event::Done { outcome, .. } = event else { return };
        self.events.push(format!("{} {outcome:?}", io.now().nanos()));
        match outcome {
            Outcome::Accepted(Ok((socket, _))) => {
                self.socket = Some(socket);
                let buffer = io.take(PIECE).unwrap();
                self.receive(buffer, io);
            }
            Outcome::ReceivedInto { buffer, result: Ok(()) } => {
                let (file, payload) = (self.file, buffer.freeze());
                let op = Op::Write { file, at: at(self.written), payload, durable: true };
                io.submit(op, TOKEN).unwrap();
            }
            Outcome::Written { payload, result: Ok(()) } => {
                self.written += 1;
                self.receive(payload.thaw().unwrap(), io);
            }
            // The giver is done: so are we, once everything of ours has ended.
            Outcome::ReceivedInto { result: Err(_), .. } => {
                io.close(self.listener);
                io.close(self.socket.unwrap());
            }
            Outcome::Accepted(Err(_)) => self.socket = None,
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = ()>) -> bool {
        self.written < PIECES || self.socket.is_some()
    }
}

impl Giver {
    fn new(io: &mut impl Io, path: &Path, to: SocketAddr) -> Giver {
        let file = io.open(path, Access::ReadOnly).unwrap().file;
        io.submit(Op::Connect { to }, TOKEN).unwrap();
        Giver { file, to, socket: None, sent: 0, rang: None }
    }

    fn read(&mut self, io: &mut impl Io) {
        let (file, at) = (self.file, at(self.sent));
        let buffer = io.take(PIECE).unwrap();
        io.submit(Op::Read { file, at, buffer }, TOKEN).unwrap();
    }
}

impl Handler for Giver {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        let Event::Done { token, outcome } = event else { return };
        match outcome {
            Outcome::Connected(Ok(socket)) => {
                self.socket = Some(socket);
                assert_ne!(io.local_address(socket).unwrap(), self.to);
                self.read(io);
            }
            Outcome::Read { buffer, result: Ok(()) } => {
                let mut chain = Chain::new();
                chain.take(buffer.freeze());
                let socket = self.socket.unwrap();
                io.submit(Op::Send { socket, chain }, TOKEN).unwrap();
            }
            Outcome::Sent { result: Ok(()), .. } => {
                self.sent += 1;
                if self.sent < PIECES {
                    self.read(io);
                } else {
                    // Two timers, of which one is taken back.
                    let soon = Op::Timer { at: io.now().after(Duration::from_millis(1)) };
                    let never = io.submit(soon, TOKEN).unwrap();
                    let at = io.now().after(Duration::from_millis(3));
                    io.submit(Op::Timer { at }, BELL).unwrap();
                    io.cancel(never);
                }
            }
            Outcome::Timer => {
                assert_eq!(token, BELL);
                self.rang = Some(io.now());
                io.close(self.socket.unwrap());
            }
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = ()>) -> bool {
        self.rang.is_none()
    }
}

fn contents() -> Vec<u8> {
    (0..PIECES * PIECE).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Copies in a made-up world; returns what the taker heard, and when.
fn simulate(seed: u64) -> Vec<String> {
    let world = World::new(seed);
    let (from, to) = (Path::new("/from"), Path::new("/to"));
    world.put(from, contents());
    world.put(to, vec![0; PIECES * PIECE]);
    let mut takers: SimulatedReactor<()> = SimulatedReactor::new(&world).unwrap();
    let mut givers: SimulatedReactor<()> = SimulatedReactor::new(&world).unwrap();
    let (mut taker, address) = Taker::new(&mut takers, to);
    let busy = givers.open(to, Access::Exclusive).unwrap_err();
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    let mut giver = Giver::new(&mut givers, from, address);
    loop {
        let Turn { moved, goes_on } = takers.turn(&mut taker);
        let other = givers.turn(&mut giver);
        if !goes_on && !other.goes_on {
            break;
        }
        if !moved && !other.moved {
            let due = takers.next_due().into_iter().chain(givers.next_due()).min();
            world.advance(due.unwrap_or_else(|| panic!("seed {seed}: nothing will ever happen")));
        }
    }
    assert_eq!(world.contents(to).unwrap(), contents(), "seed {seed}");
    taker.events
}

#[test]
fn what_happens_is_drawn_from_the_seed() {
    let mut different = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let first = simulate(seed);
        assert_eq!(first, simulate(seed), "seed {seed}");
        different.insert(first);
    }
    assert_eq!(different.len(), 50);
}

#[test]
fn the_same_handlers_run_on_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    std::fs::write(&from, contents()).unwrap();
    std::fs::write(&to, vec![0; PIECES * PIECE]).unwrap();
    let config = crate::Config {
        buffers: vec![crate::Class { bytes: 4 * PAGE, count: 4 }],
        receive_buffers: 2,
        ..crate::Config::default()
    };
    let (told, address) = std::sync::mpsc::sync_channel(1);
    let (copy, more) = (to.clone(), config.clone());
    let taking = std::thread::spawn(move || {
        let mut reactor = Reactor::new(&more).unwrap();
        let (mut taker, address) = Taker::new(&mut reactor, &copy);
        told.send(address).unwrap();
        reactor.run(&mut taker).unwrap();
    });
    let mut reactor = Reactor::new(&config).unwrap();
    let mut giver = Giver::new(&mut reactor, &from, address.recv().unwrap());
    reactor.run(&mut giver).unwrap();
    drop(reactor);
    taking.join().unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), contents());
}
