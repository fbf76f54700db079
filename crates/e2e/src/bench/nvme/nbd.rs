//! A small pipelined NBD client, fast enough to keep any of the servers busy.

use std::io::{IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::servers::CLIENT_CORE;
use super::{Seen, Shape, real};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT";
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;

/// Keeps the shape's load on an NBD server for some time.
pub(super) fn measure(address: &str, shape: Shape, time: Duration) -> Result<Seen> {
    let address = address.to_owned();
    let thread = std::thread::spawn(move || {
        reactor::pin_to_core(CLIENT_CORE)?;
        Client::connect(&address, shape)?.run(time)
    });
    thread.join().map_err(|_| anyhow::anyhow!("the NBD client panicked"))?
}

struct Client {
    stream: TcpStream,
    shape: Shape,
    places: u64,
    cursor: u64,
    state: u64,
    /// When each command under way was begun.
    begun: Vec<Instant>,
    /// The request of each slot, its data included: only the offset in it ever changes.
    requests: Vec<Vec<u8>>,
    /// Slots whose requests are to be sent.
    outgoing: Vec<usize>,
    latencies: Vec<u32>,
}

impl Client {
    fn connect(address: &str, shape: Shape) -> Result<Client> {
        let mut stream = patiently(address)?;
        stream.set_nodelay(true)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).context("the NBD server does not greet")?;
        ensure!(greeting.starts_with(GREETING), "{address} does not speak NBD");
        // Fixed newstyle without zeroes; then NBD_OPT_EXPORT_NAME with the empty name.
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(b"IHAVEOPT")?;
        stream.write_all(&1u32.to_be_bytes())?;
        stream.write_all(&0u32.to_be_bytes())?;
        let mut export = [0; 10];
        stream.read_exact(&mut export)?;
        let [size @ .., _, _] = export;
        let bytes = u64::try_from(shape.bytes)?;
        let kind = if shape.rw.is_read() { READ } else { WRITE };
        Ok(Client {
            stream,
            shape,
            places: (u64::from_be_bytes(size) / bytes).max(1),
            cursor: 0,
            state: 1,
            begun: vec![Instant::now(); shape.depth],
            requests: (0..shape.depth).map(|slot| request(kind, slot, shape.bytes)).collect(),
            outgoing: Vec::new(),
            latencies: Vec::new(),
        })
    }

    fn run(mut self, time: Duration) -> Result<Seen> {
        let start = Instant::now();
        for slot in 0..self.shape.depth {
            self.queue(slot);
        }
        let answer = 16 + if self.shape.rw.is_read() { self.shape.bytes } else { 0 };
        let mut inbox = vec![0; 1 << 20];
        let (mut held, mut done, mut at_work) = (0, 0u64, self.shape.depth);
        while at_work > 0 {
            self.send()?;
            let room = inbox.get_mut(held..).context("no room")?;
            let got = self.receive(room)?;
            ensure!(got > 0, "the NBD server hung up");
            held += got;
            let mut used = 0;
            while let Some(reply) = inbox.get(used..used + answer).filter(|_| used + answer <= held)
            {
                let slot = check(reply)?;
                used += answer;
                if start.elapsed() >= time {
                    at_work -= 1;
                    continue;
                }
                let begun = self.begun.get(slot).context("an answer to nothing")?;
                let tenths = u32::try_from(begun.elapsed().as_nanos() / 100).unwrap_or(u32::MAX);
                self.latencies.push(tenths);
                self.queue(slot);
                done += 1;
            }
            inbox.copy_within(used..held, 0);
            held -= used;
        }
        self.leave()?;
        self.latencies.sort_unstable();
        let at = |hundredths: usize| {
            let index = self.latencies.len() * hundredths / 100;
            self.latencies.get(index).map_or(f64::NAN, |tenths| f64::from(*tenths) / 10.0)
        };
        let iops = real(done) / time.as_secs_f64();
        Ok(Seen { iops, p50: at(50), p99: Some(at(99)), cores: None })
    }

    fn queue(&mut self, slot: usize) {
        let place = if self.shape.rw.is_random() {
            // Xorshift: cheap, and random enough for places.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            self.state % self.places
        } else {
            self.cursor += 1;
            self.cursor % self.places
        };
        let offset = place * u64::try_from(self.shape.bytes).unwrap_or(0);
        if let Some(begun) = self.begun.get_mut(slot) {
            *begun = Instant::now();
        }
        if let Some(field) = self.requests.get_mut(slot).and_then(|all| all.get_mut(16..24)) {
            field.copy_from_slice(&offset.to_be_bytes());
        }
        self.outgoing.push(slot);
    }

    /// Sends the requests that were queued, many in one go.
    fn send(&mut self) -> Result<()> {
        let requests = self.outgoing.iter().filter_map(|slot| self.requests.get(*slot));
        let mut slices: Vec<_> = requests.map(|request| IoSlice::new(request)).collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            let sent = self.stream.write_vectored(left).context("cannot send")?;
            ensure!(sent > 0, "the NBD server takes nothing");
            IoSlice::advance_slices(&mut left, sent);
        }
        self.outgoing.clear();
        Ok(())
    }

    /// Waits for bytes as our own client does: it spins for a while before it sleeps.
    fn receive(&mut self, room: &mut [u8]) -> Result<usize> {
        use rustix::net::RecvFlags;
        let begun = Instant::now();
        let spin = reactor::Config::default().spin;
        while begun.elapsed() < spin {
            match rustix::net::recv(&self.stream, &mut *room, RecvFlags::DONTWAIT) {
                Ok((got, _)) => return Ok(got),
                Err(rustix::io::Errno::AGAIN) => core::hint::spin_loop(),
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        self.stream.read(room).context("cannot receive")
    }

    /// Says good-bye and waits for the server to close. Nothing may be at work any more: nbdkit
    /// 1.32 ends with a failed assertion if a client goes away while it has answers for it.
    fn leave(&mut self) -> Result<()> {
        self.stream.write_all(&request(DISCONNECT, 0, 0)).context("cannot say good-bye")?;
        let got = self.stream.read(&mut [0]).context("the NBD server did not hang up in order")?;
        ensure!(got == 0, "the NBD server answers a good-bye");
        Ok(())
    }
}

/// A request for offset 0; with its data, if it writes.
fn request(kind: u16, slot: usize, bytes: usize) -> Vec<u8> {
    let mut request = Vec::new();
    request.extend_from_slice(&REQUEST.to_be_bytes());
    request.extend_from_slice(&0u16.to_be_bytes());
    request.extend_from_slice(&kind.to_be_bytes());
    request.extend_from_slice(&u64::try_from(slot).unwrap_or(0).to_be_bytes());
    request.extend_from_slice(&0u64.to_be_bytes());
    request.extend_from_slice(&u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes());
    if kind == WRITE {
        request.resize(request.len() + bytes, 0xA5);
    }
    request
}

/// The slot that a simple reply is for.
fn check(reply: &[u8]) -> Result<usize> {
    let word = |at: usize| reply.get(at..at + 4).and_then(|word| word.try_into().ok());
    let magic = word(0).map(u32::from_be_bytes);
    let error = word(4).map(u32::from_be_bytes);
    ensure!(magic == Some(REPLY) && error == Some(0), "an NBD command failed: {error:?}");
    let handle = reply.get(8..16).and_then(|handle| handle.try_into().ok());
    Ok(usize::try_from(u64::from_be_bytes(handle.context("a short reply")?))?)
}

/// Connects as soon as somebody listens.
fn patiently(address: &str) -> Result<TcpStream> {
    let deadline = Instant::now() + crate::process::PATIENCE;
    loop {
        match TcpStream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("nobody listens on {address}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
