//! A disk below a page cache: it dies, loses power, fills up and fails to sync.
//!
//! ```text
//!   write ──► page cache ──sync──► disk            what a reader sees: the page cache
//!                 │                  │
//!    the process dies: stays         │ stays
//!    power is cut:     is lost, but any sectors of it may have got through
//!    a sync fails:     stays, is called clean, and is on the disk only in part
//!    pages are evicted: clean ones are read from the disk again
//! ```
//!
//! The same for names: a rename is seen at once, and is on the disk when the folder was synced.
//! After a power cut any of the later ones are gone again, the last first.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::server::storage::{Birth, Directory, StorageFile};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// A folder on a disk that may die, fill up or fail to sync.
#[derive(Clone)]
pub(super) struct CrashDisk(Arc<Mutex<State>>);

type Names = BTreeMap<String, usize>;

#[derive(Default)]
struct State {
    /// What a reader sees.
    names: Names,
    /// What was seen after each change since the folder was synced; the first is on the disk.
    past_names: Vec<Names>,
    files: Vec<Contents>,
    /// Operations that change something until the process or the disk dies.
    left: Option<usize>,
    /// Operations so far.
    operations: usize,
    dead: bool,
    capacity: Option<u64>,
    syncs: Syncs,
    /// Syncs of files so far.
    synced: usize,
    dice: Dice,
}

/// How syncs of files end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Syncs {
    #[default]
    Work,
    /// The next so many work, then one fails, then they work again.
    FailAfter(usize),
    /// All fail.
    Fail,
}

#[derive(Clone, Default)]
struct Contents {
    /// What is on the disk.
    durable: Vec<u8>,
    /// What a reader sees.
    current: Vec<u8>,
    /// What a sync has to write.
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

    /// What of it reaches the disk when nobody waits for it: any sectors.
    fn apply_some(&self, bytes: &mut Vec<u8>, dice: &mut Dice) {
        match self {
            Self::Write(at, data) => {
                for (sector, piece) in data.chunks(SECTOR).enumerate() {
                    if dice.roll(2) == 0 {
                        Self::Write(at + sector * SECTOR, piece.to_vec()).apply(bytes);
                    }
                }
            }
            Self::Truncate(_) => {
                if dice.roll(2) == 0 {
                    self.apply(bytes);
                }
            }
        }
    }
}

impl Contents {
    /// What was not synced gets through in part, and nothing waits any more.
    fn lose_some(&mut self, dice: &mut Dice) {
        for pending in std::mem::take(&mut self.pending) {
            pending.apply_some(&mut self.durable, dice);
        }
    }

    /// Some clean pages are read from the disk again.
    fn evict_some(&mut self, dice: &mut Dice) {
        let mut on_disk = self.durable.clone();
        for pending in &self.pending {
            pending.apply(&mut on_disk);
        }
        // The length is metadata, which no eviction changes.
        on_disk.resize(self.current.len(), 0);
        for (page, clean) in self.current.chunks_mut(PAGE).zip(on_disk.chunks(PAGE)) {
            if dice.roll(2) == 0 {
                page.copy_from_slice(clean);
            }
        }
    }
}

/// A small generator of numbers, the same for the same seed.
#[derive(Clone)]
pub(super) struct Dice(u64);

impl Default for Dice {
    fn default() -> Self {
        Self::new(0)
    }
}

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

    /// What dies, dies at the operation with this number, counted from now.
    pub(super) fn dies_at(self, operation: usize) -> Self {
        self.state().left = Some(operation);
        self
    }

    /// Writes that make a file longer than this fail.
    pub(super) fn set_capacity(&self, capacity: Option<u64>) {
        self.state().capacity = capacity;
    }

    /// How syncs end from now on.
    pub(super) fn set_syncs(&self, syncs: Syncs) {
        self.state().syncs = syncs;
    }

    /// How many operations there were.
    pub(super) fn operations(&self) -> usize {
        self.state().operations
    }

    /// How many syncs of files there were.
    pub(super) fn synced(&self) -> usize {
        self.state().synced
    }

    /// Flips one bit of a file.
    pub(super) fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.state();
        let id = state.names[name];
        state.files[id].durable[byte] ^= 1 << bit;
        state.files[id].current[byte] ^= 1 << bit;
    }

    /// The disk loses writes that it had called durable.
    pub(super) fn wipe(&self, name: &str, bytes: Range<usize>) {
        let mut state = self.state();
        let id = state.names[name];
        state.files[id].durable[bytes.clone()].fill(0);
        state.files[id].current[bytes].fill(0);
    }

    /// Somebody puts a copy of a file in its place, and syncs nothing.
    pub(super) fn copy_by_hand(&self, name: &str) {
        let mut state = self.state();
        let bytes = state.files[state.names[name]].current.clone();
        let id = state.add_file(name);
        state.change(id, Pending::Write(0, bytes));
    }

    /// A copy of the disk as it is, alive: what the next process finds when one has died.
    pub(super) fn copy(&self) -> Self {
        let state = self.state();
        Self(Arc::new(Mutex::new(State {
            names: state.names.clone(),
            past_names: state.past_names.clone(),
            files: state.files.clone(),
            dice: state.dice.clone(),
            ..State::default()
        })))
    }

    /// What the next process finds when one has died and the machine lives: all that was written.
    pub(super) fn after_kill(&self) -> Self {
        self.copy()
    }

    /// The kernel fails to write back what was not synced, and tells nobody.
    pub(super) fn lose_writeback(&self, dice: &mut Dice) {
        for file in &mut self.state().files {
            file.lose_some(dice);
        }
    }

    /// Memory is short: some clean pages are read from the disk again.
    pub(super) fn evict(&self, dice: &mut Dice) {
        for file in &mut self.state().files {
            file.evict_some(dice);
        }
    }

    /// What a power cut leaves: all that was synced, and of the rest any sectors and names.
    pub(super) fn after_power_cut(&self, dice: &mut Dice) -> Self {
        let disk = self.copy();
        let mut state = disk.state();
        for file in &mut state.files {
            file.lose_some(dice);
            file.current.clone_from(&file.durable);
        }
        let mut possible = std::mem::take(&mut state.past_names);
        possible.push(state.names.clone());
        let kept = dice.roll(u64::try_from(possible.len()).unwrap());
        state.names = possible.swap_remove(usize::try_from(kept).unwrap());
        drop(state);
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

    fn add_file(&mut self, name: &str) -> usize {
        let id = self.files.len();
        self.files.push(Contents::default());
        self.past_names.push(self.names.clone());
        self.names.insert(name.to_owned(), id);
        id
    }

    /// Whether the next sync of a file fails.
    fn sync_fails(&mut self) -> bool {
        match &mut self.syncs {
            Syncs::Work => false,
            Syncs::Fail => true,
            Syncs::FailAfter(0) => {
                self.syncs = Syncs::Work;
                true
            }
            Syncs::FailAfter(left) => {
                *left -= 1;
                false
            }
        }
    }
}

struct CrashFile {
    disk: CrashDisk,
    id: usize,
}

impl Directory for CrashDisk {
    fn open(&self, name: &str) -> io::Result<Option<Box<dyn StorageFile>>> {
        let found = self.state().names.get(name).copied();
        Ok(found
            .map(|id| -> Box<dyn StorageFile> { Box::new(CrashFile { disk: self.clone(), id }) }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageFile>> {
        let mut state = self.state();
        state.operate()?;
        let id = state.add_file(name);
        Ok(Box::new(CrashFile { disk: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        let before = state.names.clone();
        let id = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), id);
        state.past_names.push(before);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        state.past_names.clear();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        let before = state.names.clone();
        state.names.remove(name);
        state.past_names.push(before);
        Ok(())
    }
}

impl StorageFile for CrashFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.id].current.len().try_into().unwrap())
    }

    fn birth(&self) -> io::Result<Option<Birth>> {
        Ok(Some(Birth { inode: self.id.try_into().unwrap(), nanos: 1 }))
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
        let was_dead = state.dead;
        let lived = state.operate();
        let at = usize::try_from(offset).unwrap();
        if lived.is_ok() {
            state.change(self.id, Pending::Write(at, bytes.to_vec()));
        } else if !was_dead {
            // Dying here, whole pages of it may be in the page cache, from the front on.
            let sides = u64::try_from(bytes.len() / PAGE + 2).unwrap();
            let pages = usize::try_from(state.dice.roll(sides)).unwrap();
            let some = bytes[..bytes.len().min(pages * PAGE)].to_vec();
            state.change(self.id, Pending::Write(at, some));
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
        state.operate()?;
        state.synced += 1;
        let fails = state.sync_fails();
        let State { files, dice, .. } = &mut *state;
        let file = &mut files[self.id];
        if fails {
            // The pages are called clean, and are on the disk only in part.
            file.lose_some(dice);
            return Err(io::Error::from_raw_os_error(5));
        }
        for pending in std::mem::take(&mut file.pending) {
            pending.apply(&mut file.durable);
        }
        Ok(())
    }
}
