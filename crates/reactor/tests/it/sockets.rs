//! Sockets: echo, cancel, back-pressure, no descriptor left behind.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use reactor::{Chain, Io, Op, Outcome, Reactor, Refused, Socket, Token};

use crate::harness::{Heard, drive, small};

const LISTEN: Token = Token(1);
const CONNECT: Token = Token(2);
const RECEIVE: Token = Token(3);
/// As much as a receive buffer holds.
const MOST: usize = usize::MAX;
const SEND: Token = Token(4);

fn loopback(v6: bool) -> SocketAddr {
    if v6 { "[::1]:0".parse().unwrap() } else { "127.0.0.1:0".parse().unwrap() }
}

fn chain(bytes: &[u8]) -> Chain {
    let mut chain = Chain::new();
    chain.copy(bytes);
    chain
}

/// A reactor with one accepted connection, and the other end of it.
fn connected() -> (Reactor<()>, Socket, TcpStream) {
    let mut reactor = Reactor::new(&small()).unwrap();
    let (listener, address) = reactor.listen(loopback(false)).unwrap();
    reactor.submit(Op::Accept { listener }, LISTEN).unwrap();
    let peer = TcpStream::connect(address).unwrap();
    let mut ours = None;
    drive(&mut reactor, &mut |heard, _| {
        if let Heard::Done(LISTEN, Outcome::Accepted(Ok((socket, _)))) = heard {
            ours = Some(socket);
        }
        ours.is_some()
    });
    (reactor, ours.unwrap(), peer)
}

#[test]
fn echo_between_two_sockets_of_one_reactor() {
    for v6 in [false, true] {
        let mut reactor = Reactor::<()>::new(&small()).unwrap();
        let (listener, address) = reactor.listen(loopback(v6)).unwrap();
        reactor.submit(Op::Accept { listener }, LISTEN).unwrap();
        reactor.submit(Op::Connect { to: address }, CONNECT).unwrap();
        let text: Vec<u8> = (0..200_000u32).map(|n| n.to_le_bytes()[0]).collect();
        let (mut server, mut client) = (None, None);
        let (mut echo, mut back) = (Vec::new(), Vec::new());
        let mut sending = false;
        drive(&mut reactor, &mut |heard, io| {
            match heard {
                Heard::Done(LISTEN, Outcome::Accepted(found)) => {
                    let (socket, peer) = found.unwrap();
                    assert_eq!(peer.is_ipv6(), v6);
                    server = Some(socket);
                    io.submit(Op::Receive { socket, most: MOST }, Token(10)).unwrap();
                }
                Heard::Done(CONNECT, Outcome::Connected(found)) => {
                    let socket = found.unwrap();
                    client = Some(socket);
                    io.submit(Op::Receive { socket, most: MOST }, Token(11)).unwrap();
                    io.submit(Op::Send { socket, chain: chain(&text) }, SEND).unwrap();
                }
                Heard::Done(Token(10), Outcome::Received(bytes)) => {
                    echo.push(bytes.unwrap());
                    let again = Op::Receive { socket: server.unwrap(), most: MOST };
                    io.submit(again, Token(10)).unwrap();
                }
                Heard::Done(Token(11), Outcome::Received(bytes)) => {
                    back.extend_from_slice(&bytes.unwrap());
                    let again = Op::Receive { socket: client.unwrap(), most: MOST };
                    io.submit(again, Token(11)).unwrap();
                }
                Heard::Done(Token(12), Outcome::Sent { result, .. }) => {
                    result.unwrap();
                    sending = false;
                }
                _ => {}
            }
            if let (false, false, Some(socket)) = (sending, echo.is_empty(), server) {
                // What came is sent back as it is, without a copy.
                let mut chain = Chain::new();
                echo.drain(..).for_each(|bytes| chain.take(bytes));
                io.submit(Op::Send { socket, chain }, Token(12)).unwrap();
                sending = true;
            }
            back.len() == text.len()
        });
        assert_eq!(back, text);
        assert!(client.is_some());
    }
}

#[test]
fn a_receive_takes_no_more_than_it_was_told() {
    let (mut reactor, socket, mut peer) = connected();
    peer.write_all(&[7; 1000]).unwrap();
    reactor.submit(Op::Receive { socket, most: 100 }, RECEIVE).unwrap();
    let mut sizes = Vec::new();
    drive(&mut reactor, &mut |heard, io| {
        if let Heard::Done(RECEIVE, Outcome::Received(bytes)) = heard {
            sizes.push(bytes.unwrap().len());
            io.submit(Op::Receive { socket, most: MOST }, RECEIVE).unwrap();
        }
        sizes.len() == 2
    });
    assert_eq!(sizes, [100, 900]);
}

#[test]
fn large_payloads_arrive_in_place() {
    let (mut reactor, socket, mut peer) = connected();
    let mut buffer = reactor.take(200_000).unwrap();
    buffer.fill(0);
    let start = buffer.as_ptr();
    let op = Op::ReceiveInto { socket, buffer, from: 10_000, to: 200_000 };
    reactor.submit(op, RECEIVE).unwrap();
    let writer = std::thread::spawn(move || {
        for part in vec![7u8; 190_000].chunks(30_000) {
            peer.write_all(part).unwrap();
        }
        peer
    });
    drive(&mut reactor, &mut |heard, _| match heard {
        Heard::Done(RECEIVE, Outcome::ReceivedInto { buffer, result }) => {
            result.unwrap();
            assert_eq!(buffer.as_ptr(), start);
            assert!(buffer[..10_000].iter().all(|byte| *byte == 0));
            assert!(buffer[10_000..].iter().all(|byte| *byte == 7));
            true
        }
        _ => false,
    });
    let peer = writer.join().unwrap();
    let buffer = reactor.take(100).unwrap();
    reactor.submit(Op::ReceiveInto { socket, buffer, from: 0, to: 100 }, RECEIVE).unwrap();
    drop(peer);
    drive(&mut reactor, &mut |heard, _| match heard {
        Heard::Done(RECEIVE, Outcome::ReceivedInto { result, .. }) => {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            true
        }
        _ => false,
    });
}

#[test]
fn a_peer_that_does_not_read_holds_the_send_until_it_does() {
    let (mut reactor, socket, mut peer) = connected();
    let text = vec![9u8; 20 << 20];
    reactor.submit(Op::Send { socket, chain: chain(&text) }, SEND).unwrap();
    reactor
        .submit(Op::Timer { at: reactor.now().after(std::time::Duration::from_millis(30)) }, LISTEN)
        .unwrap();
    let mut reader = None;
    drive(&mut reactor, &mut |heard, _| match heard {
        Heard::Done(LISTEN, Outcome::Timer) => {
            let mut peer = peer.try_clone().unwrap();
            reader = Some(std::thread::spawn(move || {
                let mut got = vec![0; 20 << 20];
                peer.read_exact(&mut got).unwrap();
                got
            }));
            false
        }
        Heard::Done(SEND, Outcome::Sent { result, chain }) => {
            result.unwrap();
            assert!(chain.is_empty(), "ready for reuse");
            assert!(reader.is_some(), "20 MiB do not fit the socket");
            true
        }
        _ => false,
    });
    assert_eq!(reader.unwrap().join().unwrap(), text);
    peer.flush().unwrap();
}

#[test]
fn cancel_ends_a_receive_and_the_socket_lives_on() {
    let (mut reactor, socket, mut peer) = connected();
    let id = reactor.submit(Op::Receive { socket, most: MOST }, RECEIVE).unwrap();
    reactor.cancel(id);
    let mut sent = false;
    drive(&mut reactor, &mut |heard, io| match heard {
        Heard::Done(RECEIVE, Outcome::Received(Err(error))) => {
            assert_eq!(error.raw_os_error(), Some(125), "ECANCELED");
            io.submit(Op::Send { socket, chain: chain(b"still here") }, SEND).unwrap();
            sent = true;
            false
        }
        Heard::Done(SEND, Outcome::Sent { result, .. }) => {
            result.unwrap();
            true
        }
        _ => false,
    });
    assert!(sent);
    let mut got = [0; 10];
    peer.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still here");
}

#[test]
fn close_gives_every_operation_its_final_event() {
    let (mut reactor, socket, _peer) = connected();
    let before = reactor.arena().free_bytes();
    reactor.submit(Op::Receive { socket, most: MOST }, RECEIVE).unwrap();
    let mut chain = Chain::new();
    chain.take(reactor.take(250_000).unwrap().freeze());
    chain.copy(&vec![0; 20 << 20]);
    reactor.submit(Op::Send { socket, chain }, SEND).unwrap();
    let (mut received, mut sent) = (0, 0);
    let mut closed = false;
    drive(&mut reactor, &mut |heard, io| {
        match heard {
            Heard::Settled if !closed => {
                io.close(socket);
                closed = true;
            }
            Heard::Done(RECEIVE, Outcome::Received(Err(_))) => received += 1,
            Heard::Done(SEND, Outcome::Sent { result, .. }) => {
                assert!(result.is_err());
                sent += 1;
            }
            _ => {}
        }
        received == 1 && sent == 1
    });
    assert_eq!(reactor.arena().free_bytes(), before, "the payload came home");
    match reactor.submit(Op::Receive { socket, most: MOST }, RECEIVE) {
        Err(Refused::Closed(_)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn receives_wait_for_buffers_and_go_on() {
    // There are four receive buffers, and all of them may be held here.
    let (mut reactor, socket, peer) = connected();
    reactor.submit(Op::Receive { socket, most: MOST }, RECEIVE).unwrap();
    let text: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[0]).collect();
    let sent = text.clone();
    let writer = std::thread::spawn(move || {
        let mut peer = peer;
        peer.write_all(&sent).unwrap();
        peer
    });
    let (mut held, mut got) = (Vec::new(), Vec::new());
    let mut timer_set = false;
    drive(&mut reactor, &mut |heard, io| {
        match heard {
            Heard::Done(RECEIVE, Outcome::Received(bytes)) => {
                held.push(bytes.unwrap());
                io.submit(Op::Receive { socket, most: MOST }, RECEIVE).unwrap();
            }
            Heard::Done(LISTEN, Outcome::Timer) => {
                timer_set = false;
                assert!(held.len() <= 4, "never more than there are");
                held.drain(..).for_each(|bytes| got.extend_from_slice(&bytes));
            }
            _ => {}
        }
        if !timer_set && !held.is_empty() {
            // Later than the kernel needs to run out of them.
            let at = io.now().after(std::time::Duration::from_millis(1));
            io.submit(Op::Timer { at }, LISTEN).unwrap();
            timer_set = true;
        }
        got.len() == text.len()
    });
    assert_eq!(got, text);
    drop(writer.join().unwrap());
    drive(&mut reactor, &mut |heard, _| match heard {
        Heard::Done(RECEIVE, Outcome::Received(end)) => {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            true
        }
        _ => false,
    });
}

#[test]
fn too_many_operations_are_handed_back() {
    let (mut reactor, socket, _peer) = connected();
    for _ in 0..63 {
        reactor
            .submit(Op::Timer { at: reactor::MonotonicTime::from_nanos(u64::MAX) }, LISTEN)
            .unwrap();
    }
    // The accept is the 64th.
    match reactor.submit(Op::Send { socket, chain: chain(b"kept") }, SEND) {
        Err(Refused::Busy(Op::Send { chain, .. })) => assert_eq!(chain.len(), 4),
        other => panic!("{other:?}"),
    }
}

#[test]
fn connection_churn_leaves_no_descriptor_behind() {
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let (listener, address) = reactor.listen(loopback(false)).unwrap();
    reactor.submit(Op::Accept { listener }, LISTEN).unwrap();
    let mut live = Vec::new();
    let (mut accepted, mut ended) = (0, 0);
    let mut sockets = std::collections::BTreeMap::new();
    // More than fit at once, so every place is used again and again.
    drive(&mut reactor, &mut |heard, io| {
        match heard {
            Heard::Done(LISTEN, Outcome::Accepted(found)) => {
                let (socket, _) = found.unwrap();
                accepted += 1;
                sockets.insert(accepted, socket);
                io.submit(Op::Receive { socket, most: MOST }, Token(100 + accepted)).unwrap();
                if accepted % 2 == 0 {
                    io.close(socket);
                } else {
                    live.clear();
                }
            }
            Heard::Done(Token(token), Outcome::Received(Err(_))) => {
                ended += 1;
                io.close(sockets.remove(&(token - 100)).unwrap());
            }
            Heard::Settled if accepted == ended && accepted < 200 => {
                live.push(TcpStream::connect(address).unwrap());
            }
            _ => {}
        }
        accepted == 200 && ended == 200
    });
    assert_eq!(reactor.open_sockets(), 1, "the listener");
}

#[test]
fn a_refused_connection_is_an_error_of_the_connect() {
    let mut reactor = Reactor::<()>::new(&small()).unwrap();
    let (listener, address) = reactor.listen(loopback(false)).unwrap();
    reactor.close(listener);
    reactor.submit(Op::Connect { to: address }, CONNECT).unwrap();
    drive(&mut reactor, &mut |heard, _| match heard {
        Heard::Done(CONNECT, Outcome::Connected(result)) => {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionRefused);
            true
        }
        _ => false,
    });
    assert_eq!(reactor.open_sockets(), 0);
}

/// A peer that reads late finds a connection that was reset, not the rest of what was sent.
#[test]
fn what_was_not_sent_when_a_connection_was_reset_never_is() {
    for reset_on_close in [true, false] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let config = reactor::Config { reset_on_close, ..small() };
        let mut reactor = Reactor::<()>::new(&config).unwrap();
        let to = listener.local_addr().unwrap();
        reactor.submit(Op::Connect { to }, CONNECT).unwrap();
        // More than the peer's window and less than both ends hold.
        let bytes = vec![7; 300_000];
        drive(&mut reactor, &mut |heard, io| match heard {
            Heard::Done(CONNECT, Outcome::Connected(socket)) => {
                let send = Op::Send { socket: socket.unwrap(), chain: chain(&bytes) };
                io.submit(send, SEND).unwrap();
                false
            }
            Heard::Done(SEND, Outcome::Sent { result, .. }) => {
                result.unwrap();
                true
            }
            _ => false,
        });
        let (mut peer, _) = listener.accept().unwrap();
        // As when the process ends.
        drop(reactor);
        let mut read = Vec::new();
        let end = peer.read_to_end(&mut read).map_err(|error| error.kind());
        if reset_on_close {
            assert_eq!(end, Err(ErrorKind::ConnectionReset));
        } else {
            assert_eq!((end, read.len()), (Ok(bytes.len()), bytes.len()));
        }
    }
}
