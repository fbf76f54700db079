//! Timers, mailboxes, moving sockets between reactors, sharing one core.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use reactor::{
    Chain, Config, Detached, Event, Handler, Io, Mailbox, Op, Outcome, PAGE, Reactor, Token,
    pin_to_core,
};

use crate::harness::{Heard, drive, small};

#[test]
fn timers_fire_in_order_and_cancelled_ones_never() {
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let start = reactor.now();
    for millis in [3, 1, 2] {
        let at = start.after(Duration::from_millis(millis));
        let id = reactor.submit(Op::Timer { at }, Token(millis)).unwrap();
        if millis == 2 {
            reactor.cancel(id);
        }
    }
    let mut fired = Vec::new();
    drive(&mut reactor, &mut |heard, io| {
        if let Heard::Done(Token(millis), Outcome::Timer) = heard {
            assert!(io.now() >= start.after(Duration::from_millis(millis)));
            fired.push(millis);
        }
        fired.len() == 2
    });
    assert_eq!(fired, [1, 3]);
}

#[test]
fn messages_wake_a_sleeping_reactor_and_keep_their_order() {
    let mut reactor = Reactor::<u32>::new(&small()).unwrap();
    let mailbox = reactor.mailbox();
    let sender = std::thread::spawn(move || {
        for number in 0..2000 {
            post_patiently(&mailbox, number);
        }
    });
    let mut next = 0;
    drive(&mut reactor, &mut |heard, _| {
        if let Heard::Message(number) = heard {
            assert_eq!(number, next);
            next += 1;
        }
        next == 2000
    });
    sender.join().unwrap();
}

/// Answers at once, and has nothing else to do: no timer and no I/O wakes its reactor.
struct Echo;

impl Handler for Echo {
    type Message = Option<Sender<()>>;

    fn on(&mut self, event: Event<Self::Message>, _: &mut impl Io<Message = Self::Message>) {
        if let Event::Message(Some(reply)) = event {
            let _ = reply.send(());
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = Self::Message>) -> bool {
        true
    }
}

/// A completed wake-up that is collected after the next one was thought to be armed must not leave
/// the reactor asleep without any.
#[test]
fn every_post_to_a_sleeping_reactor_wakes_it() {
    const POSTS: u32 = 60_000;
    let (give, take) = channel();
    std::thread::spawn(move || {
        let config = Config { spin: Duration::ZERO, ..Config::default() };
        let mut reactor = Reactor::new(&config).unwrap();
        give.send(reactor.mailbox()).unwrap();
        reactor.run(&mut Echo).unwrap();
    });
    let mailbox = take.recv().unwrap();
    let post_all = |caller: u32| {
        let mailbox = mailbox.clone();
        move || {
            for nth in 0..POSTS {
                // Each time at another moment of its falling asleep.
                for _ in 0..(nth * 7 + caller * 131) % 2048 {
                    core::hint::spin_loop();
                }
                let (reply, answer) = channel();
                post_patiently(&mailbox, Some(reply));
                let heard = answer.recv_timeout(Duration::from_secs(30));
                assert!(heard.is_ok(), "caller {caller}: post {nth} was not heard");
            }
        }
    };
    let callers = [0, 1].map(|caller| std::thread::spawn(post_all(caller)));
    for caller in callers {
        caller.join().unwrap();
    }
}

fn post_patiently<M>(mailbox: &Mailbox<M>, message: M) {
    let mut message = message;
    while let Err(back) = mailbox.post(message) {
        message = back.into_message();
        std::thread::yield_now();
    }
}

#[test]
fn a_connection_moves_to_another_reactor() {
    let (give, take) = channel();
    let second = std::thread::spawn(move || {
        let mut reactor = Reactor::<Detached>::new(&small()).unwrap();
        give.send(reactor.mailbox()).unwrap();
        drive(&mut reactor, &mut |heard, io| match heard {
            Heard::Message(detached) => {
                let socket = io.attach(detached).unwrap();
                let mut chain = Chain::new();
                chain.copy(b"moved");
                io.submit(Op::Send { socket, chain }, Token(1)).unwrap();
                false
            }
            Heard::Done(_, Outcome::Sent { result, .. }) => {
                result.unwrap();
                true
            }
            _ => false,
        });
    });
    let mailbox = take.recv().unwrap();
    let mut first = Reactor::<()>::new(&small()).unwrap();
    let (listener, address) = first.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    first.submit(Op::Accept { listener }, Token(0)).unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(b"x").unwrap();
    let mut socket = None;
    drive(&mut first, &mut |heard, io| match heard {
        Heard::Done(_, Outcome::Accepted(found)) => {
            let accepted = found.unwrap().0;
            socket = Some(accepted);
            io.submit(Op::Receive { socket: accepted, most: PAGE }, Token(1)).unwrap();
            false
        }
        Heard::Done(_, Outcome::Received(Ok(_))) => {
            let again = Op::Receive { socket: socket.unwrap(), most: PAGE };
            let receive = io.submit(again, Token(1)).unwrap();
            assert!(io.detach(socket.unwrap()).is_none(), "a receive is under way");
            io.cancel(receive);
            false
        }
        Heard::Done(_, Outcome::Received(Err(_))) => {
            post_patiently(&mailbox, io.detach(socket.unwrap()).unwrap());
            true
        }
        _ => false,
    });
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"moved");
    second.join().unwrap();
}

#[test]
fn reactor_and_client_share_one_core() {
    let core = rustix::thread::sched_getcpu();
    pin_to_core(core).unwrap();
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let (listener, address) = reactor.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    reactor.submit(Op::Accept { listener }, Token(0)).unwrap();
    // Inherits the core.
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answer = [0; 64];
        for round in 0..2000u32 {
            let request = [round.to_le_bytes()[0]; 64];
            stream.write_all(&request).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, request);
        }
    });
    let mut chain = Some(Chain::new());
    let mut ours = None;
    let mut over = false;
    drive(&mut reactor, &mut |heard, io| {
        match heard {
            Heard::Done(_, Outcome::Accepted(found)) => {
                let socket = found.unwrap().0;
                ours = Some(socket);
                io.submit(Op::Receive { socket, most: PAGE }, Token(1)).unwrap();
            }
            Heard::Done(_, Outcome::Received(Ok(bytes))) => {
                io.submit(Op::Receive { socket: ours.unwrap(), most: PAGE }, Token(1)).unwrap();
                let mut chain = chain.take().unwrap();
                chain.take(bytes);
                io.submit(Op::Send { socket: ours.unwrap(), chain }, Token(2)).unwrap();
            }
            Heard::Done(_, Outcome::Sent { chain: back, .. }) => chain = Some(back),
            Heard::Done(_, Outcome::Received(Err(_))) => over = true,
            _ => {}
        }
        over
    });
    client.join().unwrap();
}

#[test]
fn a_core_that_does_not_exist_is_an_error() {
    assert!(pin_to_core(1 << 20).is_err());
}
