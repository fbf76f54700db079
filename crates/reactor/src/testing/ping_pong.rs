//! Requests and answers of fixed sizes over TCP with nothing but io_uring: no protocol, no
//! buffers to manage, no state, and no byte is looked at.
//!
//! There are two ways to send. Message by message is what a ping-pong is: each request and each
//! answer is one send of its own, though many may be handed to the kernel in one call. The other
//! way sends all that is owed at once, however many messages that is; it is the most that a
//! protocol over the same sockets could reach. Both receive whatever is there.
//!
//! Message by message, each message under way has bytes of its own, as it must have in anything
//! that is used for something; sent at once, all are the same bytes, which stay in the cache.
#![expect(unsafe_code, reason = "it uses io_uring directly, on buffers that live long enough")]

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::memory::{Mapping, PAGE};

/// Sizes of what goes to and fro.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of an answer.
    pub answer: usize,
}

/// How messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// One send for each message.
    EachAlone,
    /// One send for all that is owed.
    Together,
}

/// What one end sees of the messages.
#[derive(Clone, Copy)]
struct Messages {
    /// Bytes of one that comes.
    inbound: usize,
    /// Bytes of one that goes.
    outbound: usize,
    /// How many are under way.
    depth: usize,
}

/// What the asking side saw.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Answers that came.
    pub answers: u64,
    /// How long it asked.
    pub elapsed: Duration,
    /// Half of the round trips were at most this long. Measured only with one request at a time.
    pub median: Option<Duration>,
}

/// Names the receive; a send is named by its length.
const RECEIVED: u64 = u64::MAX;

/// The most bytes that one send or receive moves.
const STEP: usize = 256 * 1024;
/// The most sends under way at once.
const SENDS: u32 = 256;

/// One end of a connection: counts bytes in, owes bytes out, never looks at them.
struct End {
    ring: IoUring,
    stream: TcpStream,
    /// Aligned to pages like the buffers of a reactor, which some processors copy to much faster.
    inbound: Mapping,
    outbound: Mapping,
    /// Where in each the next bytes go or come from.
    next_in: usize,
    next_out: usize,
    /// The most bytes of one send.
    step: usize,
    /// The most sends under way.
    most_sends: u32,
    receiving: bool,
    /// Sends under way.
    sends: u32,
    /// Bytes to send that no send is under way for.
    owed: usize,
    arrived: usize,
    closed: bool,
    spin: Duration,
}

impl End {
    fn new(stream: TcpStream, messages: Messages, sending: Sending) -> io::Result<End> {
        stream.set_nodelay(true)?;
        let Messages { inbound, outbound, depth } = messages;
        let room = |message: usize| (message.next_multiple_of(PAGE) * depth).max(STEP);
        let (step, most_sends, room_in, room_out) = match sending {
            Sending::EachAlone => (outbound.min(STEP), SENDS, room(inbound), room(outbound)),
            Sending::Together => (STEP, 1, STEP, STEP),
        };
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(2 * SENDS)?;
        Ok(End {
            ring,
            stream,
            inbound: Mapping::new(room_in)?,
            outbound: Mapping::new(room_out)?,
            next_in: 0,
            next_out: 0,
            step,
            most_sends,
            receiving: false,
            sends: 0,
            owed: 0,
            arrived: 0,
            closed: false,
            spin: crate::Config::default().spin,
        })
    }

    /// Keeps one receive and, if bytes are owed, sends under way; waits for news.
    fn turn(&mut self) -> io::Result<()> {
        let fd = Fd(self.stream.as_raw_fd());
        if !self.receiving {
            let room = (self.inbound.len() - self.next_in).min(STEP);
            let len = u32::try_from(room).unwrap_or(u32::MAX);
            let to = self.inbound.base().wrapping_add(self.next_in);
            let receive = opcode::Recv::new(fd, to, len);
            // SAFETY: `to` has `len` bytes left in `inbound`, which is neither touched nor freed
            // before the completion (see `drop`).
            let _ = unsafe { self.ring.submission().push(&receive.build().user_data(RECEIVED)) };
            self.receiving = true;
        }
        while self.sends < self.most_sends && self.owed > 0 {
            let bytes = self.owed.min(self.step);
            let len = u32::try_from(bytes).unwrap_or(u32::MAX);
            if self.outbound.len() - self.next_out < bytes {
                self.next_out = 0;
            }
            let from = self.outbound.base().wrapping_add(self.next_out);
            let send =
                opcode::Send::new(fd, from, len).flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL);
            // SAFETY: as above, for `outbound`, which sends only read.
            let _ = unsafe { self.ring.submission().push(&send.build().user_data(len.into())) };
            // Each message begins at a page, as the data of a device do.
            self.next_out = (self.next_out + bytes).next_multiple_of(PAGE);
            self.sends += 1;
            self.owed -= bytes;
        }
        self.wait()?;
        while let Some(entry) = self.ring.completion().next() {
            let moved = usize::try_from(entry.result()).unwrap_or(0);
            self.closed |= entry.result() <= 0;
            if entry.user_data() == RECEIVED {
                self.receiving = false;
                self.arrived += moved;
                self.next_in += moved;
                if self.inbound.len() - self.next_in < PAGE {
                    self.next_in = 0;
                }
            } else {
                self.sends -= 1;
                // What the kernel did not take is still owed.
                let asked = usize::try_from(entry.user_data()).unwrap_or(0);
                self.owed += asked.saturating_sub(moved);
            }
        }
        Ok(())
    }

    /// Spins as long as our own reactor would, then sleeps. The same value, not a copy of it: with
    /// a shorter spin this would be no ceiling, but a handicapped rival.
    fn wait(&mut self) -> io::Result<()> {
        self.ring.submit()?;
        let begun = Instant::now();
        while self.ring.completion().is_empty() && !self.ring.submission().taskrun() {
            if begun.elapsed() > self.spin {
                self.ring.submit_and_wait(1)?;
                return Ok(());
            }
            core::hint::spin_loop();
        }
        if self.ring.completion().is_empty() {
            self.ring.submit_and_wait(1)?;
        }
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Ends all operations, so that the buffers may go.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        while (self.receiving || self.sends > 0) && self.ring.submit_and_wait(1).is_ok() {
            while let Some(entry) = self.ring.completion().next() {
                match entry.user_data() {
                    RECEIVED => self.receiving = false,
                    _ => self.sends -= 1,
                }
            }
        }
    }
}

/// Answers the requests of one connection, `depth` at a time, until it is closed.
pub fn answer(
    listener: &TcpListener,
    sizes: Sizes,
    sending: Sending,
    depth: usize,
) -> io::Result<()> {
    let (stream, _) = listener.accept()?;
    let messages = Messages { inbound: sizes.request, outbound: sizes.answer, depth };
    let mut end = End::new(stream, messages, sending)?;
    while !end.closed {
        end.turn()?;
        let requests = end.arrived / sizes.request;
        end.arrived %= sizes.request;
        end.owed += requests * sizes.answer;
    }
    Ok(())
}

/// Keeps `depth` requests under way for `time`.
pub fn ask(
    to: SocketAddr,
    sizes: Sizes,
    sending: Sending,
    (depth, time): (usize, Duration),
) -> io::Result<Seen> {
    let messages = Messages { inbound: sizes.answer, outbound: sizes.request, depth };
    let mut end = End::new(TcpStream::connect(to)?, messages, sending)?;
    end.owed = depth * sizes.request;
    let begun = Instant::now();
    let (mut answers, mut asked) = (0u64, begun);
    let mut trips = Vec::new();
    while begun.elapsed() < time && !end.closed {
        end.turn()?;
        let came = end.arrived / sizes.answer;
        end.arrived %= sizes.answer;
        end.owed += came * sizes.request;
        answers += u64::try_from(came).unwrap_or(0);
        if depth == 1 && came == 1 {
            let now = Instant::now();
            trips.push(now - asked);
            asked = now;
        }
    }
    trips.sort_unstable();
    let median = trips.get(trips.len() / 2).copied();
    Ok(Seen { answers, elapsed: begun.elapsed(), median })
}
