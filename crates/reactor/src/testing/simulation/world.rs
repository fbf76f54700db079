//! What the reactors of a simulation share: the clock, the network, the files.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::monotonic_time::MonotonicTime;
use crate::slab::{Key, Slab};

/// A clock, a network and files. Clones are the same world.
#[derive(Clone)]
pub struct World(Rc<RefCell<State>>);

struct State {
    now: MonotonicTime,
    random: u64,
    /// Connections that nobody took yet, by who listens.
    listening: BTreeMap<SocketAddr, VecDeque<(End, SocketAddr)>>,
    connections: Slab<Connection>,
    next_port: u16,
    files: BTreeMap<PathBuf, File>,
}

struct File {
    bytes: Vec<u8>,
    is_locked: bool,
}

/// A stream each way.
struct Connection {
    addresses: [SocketAddr; 2],
    /// What is on its way to each side.
    lanes: [VecDeque<u8>; 2],
    /// Which sides have hung up.
    gone: [bool; 2],
    is_cut: bool,
}

/// One side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    connection: Key,
    side: usize,
}

impl End {
    fn other(self) -> usize {
        1 - self.side
    }
}

/// Bytes that a connection holds on their way: as many as a kernel's socket buffers.
const ROOM: usize = 256 * 1024;
/// No operation takes longer than this by itself.
const LONGEST: Duration = Duration::from_micros(200);

impl World {
    /// A world whose every accident is drawn from this seed.
    pub fn new(seed: u64) -> World {
        World(Rc::new(RefCell::new(State {
            now: MonotonicTime::from_nanos(1_000_000_000),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            listening: BTreeMap::new(),
            connections: Slab::new(u32::MAX),
            next_port: 40_000,
            files: BTreeMap::new(),
        })))
    }

    /// What time it is.
    pub fn now(&self) -> MonotonicTime {
        self.0.borrow().now
    }

    /// Time passes; never back.
    pub fn advance(&self, to: MonotonicTime) {
        let mut state = self.0.borrow_mut();
        state.now = state.now.max(to);
    }

    /// A number below `limit`, which is more than zero.
    pub fn below(&self, limit: usize) -> usize {
        let mut state = self.0.borrow_mut();
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        usize::try_from(state.random >> 16).unwrap_or(0) % limit
    }

    /// Makes a file, or another in its place.
    pub fn put(&self, path: &Path, bytes: Vec<u8>) {
        self.0.borrow_mut().files.insert(path.to_owned(), File { bytes, is_locked: false });
    }

    /// What is in a file.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.borrow().files.get(path).map(|file| file.bytes.clone())
    }

    /// Cuts every connection there is: what was on its way is lost. Returns how many.
    pub fn cut_all(&self) -> usize {
        let mut state = self.0.borrow_mut();
        let all: Vec<Key> = state.connections.keys().collect();
        let mut count = 0;
        for key in all {
            if let Some(connection) = state.connections.get_mut(key).filter(|c| !c.is_cut) {
                connection.is_cut = true;
                connection.lanes = Default::default();
                count += 1;
            }
        }
        count
    }

    pub(super) fn some_time_from_now(&self) -> MonotonicTime {
        let longest = usize::try_from(LONGEST.as_nanos()).unwrap_or(1);
        let nanos = u64::try_from(self.below(longest)).unwrap_or(0);
        self.now().after(Duration::from_nanos(nanos))
    }

    pub(super) fn listen(&self, on: SocketAddr) -> io::Result<SocketAddr> {
        let mut state = self.0.borrow_mut();
        let mut address = on;
        if address.port() == 0 {
            address.set_port(state.port());
        }
        if state.listening.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        state.listening.insert(address, VecDeque::new());
        Ok(address)
    }

    pub(super) fn unlisten(&self, address: SocketAddr) {
        let waiting = self.0.borrow_mut().listening.remove(&address).unwrap_or_default();
        for (end, _) in waiting {
            self.hang_up(end);
        }
    }

    pub(super) fn connect(&self, to: SocketAddr) -> io::Result<End> {
        let mut state = self.0.borrow_mut();
        let mut from = to;
        from.set_port(state.port());
        if !state.listening.contains_key(&to) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let connection = Connection {
            addresses: [from, to],
            lanes: Default::default(),
            gone: [false; 2],
            is_cut: false,
        };
        let Ok(connection) = state.connections.insert(connection) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        if let Some(waiting) = state.listening.get_mut(&to) {
            waiting.push_back((End { connection, side: 1 }, from));
        }
        Ok(End { connection, side: 0 })
    }

    pub(super) fn accept(&self, at: SocketAddr) -> Option<(End, SocketAddr)> {
        self.0.borrow_mut().listening.get_mut(&at)?.pop_front()
    }

    pub(super) fn address_of(&self, end: End) -> Option<SocketAddr> {
        let state = self.0.borrow();
        state.connections.get(end.connection)?.addresses.get(end.side).copied()
    }

    /// Takes at most `into.len()` bytes that have arrived; `None` while there are none.
    pub(super) fn receive(&self, end: End, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut state = self.0.borrow_mut();
        let connection = state.connection(end)?;
        let other_is_gone = connection.gone.get(end.other()).copied().unwrap_or(true);
        let Some(lane) = connection.lanes.get_mut(end.side) else { return Ok(None) };
        if lane.is_empty() {
            return if other_is_gone { Ok(Some(0)) } else { Ok(None) };
        }
        let count = lane.len().min(into.len());
        for (place, byte) in into.iter_mut().zip(lane.drain(..count)) {
            *place = byte;
        }
        Ok(Some(count))
    }

    /// How many bytes have arrived.
    pub(super) fn arrived(&self, end: End) -> usize {
        let state = self.0.borrow();
        let connection = state.connections.get(end.connection);
        connection.and_then(|c| c.lanes.get(end.side)).map_or(0, VecDeque::len)
    }

    /// Puts as many bytes on their way as there is room for.
    pub(super) fn send(&self, end: End, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.borrow_mut();
        let connection = state.connection(end)?;
        if connection.gone.get(end.other()).copied().unwrap_or(true) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(lane) = connection.lanes.get_mut(end.other()) else { return Ok(0) };
        let count = bytes.len().min(ROOM.saturating_sub(lane.len()));
        lane.extend(bytes.iter().take(count));
        Ok(count)
    }

    pub(super) fn hang_up(&self, end: End) {
        let mut state = self.0.borrow_mut();
        let Some(connection) = state.connections.get_mut(end.connection) else { return };
        if let Some(gone) = connection.gone.get_mut(end.side) {
            *gone = true;
        }
        if connection.gone == [true; 2] {
            state.connections.remove(end.connection);
        }
    }

    pub(super) fn open(&self, path: &Path, is_exclusive: bool) -> io::Result<u64> {
        let mut state = self.0.borrow_mut();
        let file = state.files.get_mut(path).ok_or(io::ErrorKind::NotFound)?;
        if is_exclusive && file.is_locked {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        file.is_locked |= is_exclusive;
        Ok(u64::try_from(file.bytes.len()).unwrap_or(u64::MAX))
    }

    pub(super) fn unlock(&self, path: &Path) {
        if let Some(file) = self.0.borrow_mut().files.get_mut(path) {
            file.is_locked = false;
        }
    }

    /// A part of a file, for `work`; the end of the file is an end.
    pub(super) fn part(
        &self,
        path: &Path,
        (at, len): (u64, usize),
        work: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let file = state.files.get_mut(path).ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(at).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(len).ok_or(io::ErrorKind::UnexpectedEof)?;
        let part = file.bytes.get_mut(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        work(part);
        Ok(())
    }
}

impl State {
    fn port(&mut self) -> u16 {
        self.next_port = self.next_port.wrapping_add(1).max(1024);
        self.next_port
    }

    /// A connection that is not cut.
    fn connection(&mut self, end: End) -> io::Result<&mut Connection> {
        let found = self.connections.get_mut(end.connection);
        found.filter(|found| !found.is_cut).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}
