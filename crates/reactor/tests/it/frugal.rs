//! Once it is warm, a reactor allocates nothing for what it does.
#![expect(unsafe_code, reason = "an allocator that counts is an allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::net::TcpListener;

use reactor::{Access, Chain, Event, Handler, Io, Op, Outcome, PAGE, Reactor, Token};

use crate::harness::small;

/// Counts what each thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: it does what the system's allocator does; counting touches no memory of the heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The very last allocations of a thread may come after its variables are gone.
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of `dealloc`; everything came from the system.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Sends a page to itself, writes what came to a file, reads it, and sends that again.
struct Round {
    socket: reactor::Socket,
    file: reactor::FileId,
    chain: Option<Chain>,
    left: u64,
}

const ROUND: Token = Token(1);

impl Handler for Round {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        let Event::Done { outcome, .. } = event else { return };
        let next = match outcome {
            Outcome::Sent { chain, result } => {
                result.unwrap();
                self.chain = Some(chain);
                let buffer = io.take(PAGE).unwrap();
                Op::ReceiveInto { socket: self.socket, buffer, from: 0, to: PAGE }
            }
            Outcome::ReceivedInto { buffer, result } => {
                result.unwrap();
                Op::Write { file: self.file, at: 0, payload: buffer.freeze(), durable: false }
            }
            Outcome::Written { payload, result } => {
                result.unwrap();
                Op::Read { file: self.file, at: 0, buffer: payload.thaw().unwrap() }
            }
            Outcome::Read { buffer, result } => {
                result.unwrap();
                self.left -= 1;
                let mut chain = self.chain.take().unwrap();
                chain.take(buffer.freeze());
                Op::Send { socket: self.socket, chain }
            }
            other => panic!("{other:?}"),
        };
        if self.left > 0 {
            io.submit(next, ROUND).unwrap();
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = ()>) -> bool {
        self.left > 0
    }
}

#[test]
fn a_warm_reactor_allocates_nothing() {
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(u64::try_from(PAGE).unwrap()).unwrap();
    let file = reactor.open(&path, Access::ReadWrite).unwrap().file;
    // A peer that sends everything back.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    std::thread::spawn(move || std::io::copy(&mut &peer, &mut &peer));
    let socket = reactor.attach(reactor::Detached::from_fd(stream.into())).unwrap();

    let mut round = Round { socket, file, chain: None, left: 50 };
    let mut chain = Chain::new();
    chain.take(reactor.take(PAGE).unwrap().freeze());
    reactor.submit(Op::Send { socket, chain }, ROUND).unwrap();
    while round.left > 10 {
        reactor.turn(&mut round).unwrap();
    }
    let before = ASKED.get();
    while round.left > 1 {
        reactor.turn(&mut round).unwrap();
    }
    assert_eq!(ASKED.get() - before, 0, "allocations in nine rounds of four operations");
}
