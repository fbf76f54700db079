//! A disk that dies at a chosen operation, keeps what was synced, and tears the rest.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::server::media::{Folder, Media};

const SECTOR: usize = 512;

/// A folder on a disk that may die, fill up or fail to sync.
#[derive(Clone)]
pub(super) struct CrashDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    names: BTreeMap<String, usize>,
    files: Vec<Contents>,
    /// Operations that change something until the disk dies.
    left: Option<usize>,
    /// Operations so far.
    operations: usize,
    dead: bool,
    capacity: Option<u64>,
    sync_fails: bool,
}

#[derive(Clone, Default)]
struct Contents {
    /// What a crash leaves.
    durable: Vec<u8>,
    /// What a reader sees.
    current: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Pending {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                let end = at + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at..end].copy_from_slice(data);
            }
            Self::Truncate(length) => bytes.truncate(*length),
        }
    }
}

/// A small generator of numbers, the same for the same seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

impl CrashDisk {
    /// An empty disk that never dies.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State::default())))
    }

    /// The disk dies at the operation with this number, counted from now.
    pub(super) fn dies_at(self, operation: usize) -> Self {
        self.state().left = Some(operation);
        self
    }

    /// Writes that make a file longer than this fail.
    pub(super) fn set_capacity(&self, capacity: Option<u64>) {
        self.state().capacity = capacity;
    }

    /// Syncs fail from now on, or work again.
    pub(super) fn set_sync_fails(&self, fails: bool) {
        self.state().sync_fails = fails;
    }

    /// How many operations there were.
    pub(super) fn operations(&self) -> usize {
        self.state().operations
    }

    /// Flips one bit of a file.
    pub(super) fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.state();
        let id = state.names[name];
        state.files[id].durable[byte] ^= 1 << bit;
        state.files[id].current[byte] ^= 1 << bit;
    }

    /// Length of a file.
    pub(super) fn length(&self, name: &str) -> usize {
        let state = self.state();
        state.files[state.names[name]].current.len()
    }

    /// A copy of the disk as it is, alive.
    pub(super) fn copy(&self) -> Self {
        let state = self.state();
        let (names, files) = (state.names.clone(), state.files.clone());
        Self(Arc::new(Mutex::new(State { names, files, ..State::default() })))
    }

    /// What a power cut leaves: all that was synced, and of the rest any sectors.
    pub(super) fn after_crash(&self, dice: &mut Dice) -> Self {
        let disk = self.copy();
        for file in &mut disk.state().files {
            for pending in std::mem::take(&mut file.pending) {
                match pending {
                    Pending::Write(at, data) => {
                        for (sector, piece) in data.chunks(SECTOR).enumerate() {
                            if dice.roll(2) == 0 {
                                let at = at + sector * SECTOR;
                                Pending::Write(at, piece.to_vec()).apply(&mut file.durable);
                            }
                        }
                    }
                    Pending::Truncate(_) => {
                        if dice.roll(2) == 0 {
                            pending.apply(&mut file.durable);
                        }
                    }
                }
            }
            file.current.clone_from(&file.durable);
        }
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    /// Counts an operation; whether it still happens.
    fn operate(&mut self) -> io::Result<()> {
        self.operations += 1;
        if let Some(left) = &mut self.left {
            if *left == 0 {
                self.dead = true;
            }
            *left = left.saturating_sub(1);
        }
        if self.dead { Err(io::Error::other("the disk is dead")) } else { Ok(()) }
    }

    fn change(&mut self, id: usize, pending: Pending) {
        let file = &mut self.files[id];
        pending.apply(&mut file.current);
        file.pending.push(pending);
    }
}

struct CrashFile {
    disk: CrashDisk,
    id: usize,
}

impl Folder for CrashDisk {
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn Media>>> {
        let found = self.state().names.get(name).copied();
        Ok(found.map(|id| -> Box<dyn Media> { Box::new(CrashFile { disk: self.clone(), id }) }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Media>> {
        let mut state = self.state();
        state.operate()?;
        let id = state.files.len();
        state.files.push(Contents::default());
        state.names.insert(name.to_owned(), id);
        Ok(Box::new(CrashFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        // Dying here, the name may have changed already.
        let lived = state.operate();
        if lived.is_ok() || state.operations.is_multiple_of(2) {
            let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            state.names.insert(to.to_owned(), id);
        }
        lived
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        state.names.remove(name);
        Ok(())
    }
}

impl Media for CrashFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.id].current.len().try_into().unwrap())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        let state = self.disk.state();
        let bytes = state.files[self.id].current.get(at..at + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let end = offset + u64::try_from(bytes.len()).unwrap();
        if state.capacity.is_some_and(|capacity| end > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Dying here, some of it may have reached the disk.
        let lived = state.operate();
        let first_death = state.left == Some(0);
        if lived.is_ok() || first_death {
            let at = usize::try_from(offset).unwrap();
            state.change(self.id, Pending::Write(at, bytes.to_vec()));
        }
        lived
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.operate()?;
        state.change(self.id, Pending::Truncate(usize::try_from(length).unwrap()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.sync_fails {
            return Err(io::Error::from_raw_os_error(5));
        }
        state.operate()?;
        let file = &mut state.files[self.id];
        for pending in std::mem::take(&mut file.pending) {
            pending.apply(&mut file.durable);
        }
        Ok(())
    }
}
