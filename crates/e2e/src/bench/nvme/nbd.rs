//! A small pipelined NBD client, fast enough to keep any of the servers busy.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::servers::CLIENT_CORE;
use super::{Seen, Shape, ratio};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT";
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;

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
    outgoing: Vec<u8>,
    latencies: Vec<u32>,
}

impl Client {
    fn connect(address: &str, shape: Shape) -> Result<Client> {
        let mut stream = patiently(address)?;
        stream.set_nodelay(true)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
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
        Ok(Client {
            stream,
            shape,
            places: (u64::from_be_bytes(size) / bytes).max(1),
            cursor: 0,
            state: 1,
            begun: vec![Instant::now(); shape.depth],
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
        let mut held = 0;
        let mut done = 0u64;
        while start.elapsed() < time {
            self.stream.write_all(&self.outgoing)?;
            self.outgoing.clear();
            let room = inbox.get_mut(held..).context("no room")?;
            let got = self.stream.read(room)?;
            ensure!(got > 0, "the NBD server hung up");
            held += got;
            let mut used = 0;
            while let Some(reply) = inbox.get(used..used + answer).filter(|_| used + answer <= held)
            {
                let slot = check(reply)?;
                let begun = self.begun.get(slot).context("an answer to nothing")?;
                let micros = u32::try_from(begun.elapsed().as_nanos() / 100).unwrap_or(u32::MAX);
                self.latencies.push(micros);
                self.queue(slot);
                used += answer;
                done += 1;
            }
            inbox.copy_within(used..held, 0);
            held -= used;
        }
        let elapsed = start.elapsed().as_secs_f64();
        self.latencies.sort_unstable();
        let at = |hundredths: usize| {
            let index = self.latencies.len() * hundredths / 100;
            self.latencies.get(index).map_or(f64::NAN, |tenths| f64::from(*tenths) / 10.0)
        };
        Ok(Seen { iops: ratio(done) / elapsed, p50: at(50), p99: Some(at(99)), cores: None })
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
        let kind = if self.shape.rw.is_read() { READ } else { WRITE };
        let bytes = u32::try_from(self.shape.bytes).unwrap_or(u32::MAX);
        let offset = place * u64::from(bytes);
        if let Some(begun) = self.begun.get_mut(slot) {
            *begun = Instant::now();
        }
        self.outgoing.extend_from_slice(&REQUEST.to_be_bytes());
        self.outgoing.extend_from_slice(&0u16.to_be_bytes());
        self.outgoing.extend_from_slice(&kind.to_be_bytes());
        self.outgoing.extend_from_slice(&u64::try_from(slot).unwrap_or(0).to_be_bytes());
        self.outgoing.extend_from_slice(&offset.to_be_bytes());
        self.outgoing.extend_from_slice(&bytes.to_be_bytes());
        if kind == WRITE {
            self.outgoing.resize(self.outgoing.len() + self.shape.bytes, 0xA5);
        }
    }
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
