//! What a pool must hold: for every block the stamps it may have after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use super::driver::Rig;
use crate::layout::BLOCK;
use crate::{CommandId, Entity, Id};

/// A block full of a stamp; stamp zero is a block of zeros.
pub(super) fn stamped(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(BLOCK / 8)
}

/// The stamps of the sectors of a block, without repeats; an error if a sector is a mix.
pub(super) fn stamps(block: &[u8]) -> Result<BTreeSet<u64>, String> {
    block
        .chunks_exact(512)
        .map(|sector| {
            let stamp = u64::from_le_bytes(sector[..8].try_into().unwrap());
            let whole = sector[8..] == sector[..504];
            whole.then_some(stamp).ok_or_else(|| format!("a sector with {stamp} is a mix"))
        })
        .collect()
}

/// The stamp of a block, if it is of one piece.
pub(super) fn stamp_of(block: &[u8]) -> Option<u64> {
    let stamps = stamps(block).ok()?;
    if stamps.len() == 1 { stamps.first().copied() } else { None }
}

/// One block: what is durable, and what was written since.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    durable: Vec<u64>,
    /// Writes since, oldest first.
    later: Vec<Written>,
    /// It was being written at a crash, and nobody has accepted it since: it may be unproven.
    loose: bool,
}

/// A write of a block that no flush covers.
#[derive(Clone, Copy, Debug)]
struct Written {
    stamp: u64,
    by: CommandId,
    completed: bool,
    /// It failed, and may be there nevertheless, or some of it.
    failed: bool,
}

impl Cell {
    fn of(stamp: u64) -> Cell {
        Cell { durable: vec![stamp], later: Vec::new(), loose: false }
    }

    pub(super) fn allows(&self, stamp: u64) -> bool {
        self.durable.contains(&stamp) || self.later.iter().any(|later| later.stamp == stamp)
    }

    /// The one stamp it holds, unless that is open.
    pub(super) fn certain(&self) -> Option<u64> {
        let settled = self.later.iter().all(|write| write.completed);
        let last = self.last();
        let is_open = self.loose && self.later.is_empty();
        (settled && last.len() == 1 && !is_open).then(|| last[0])
    }

    /// What it holds when all that was begun has ended.
    fn last(&self) -> Vec<u64> {
        let sure = self.later.iter().rposition(|write| !write.failed);
        let base = sure.map_or(self.durable.clone(), |nth| vec![self.later[nth].stamp]);
        let open = self.later.iter().skip(sure.map_or(0, |nth| nth + 1));
        base.into_iter().chain(open.map(|write| write.stamp)).collect()
    }

    /// Everything up to the write of this command is durable; older ones are gone.
    fn settle(&mut self, by: CommandId) {
        if let Some(nth) = self.later.iter().position(|write| write.by == by) {
            self.durable = vec![self.later[nth].stamp];
            self.later.drain(..=nth);
            self.loose = false;
        }
    }

    /// Everything that was begun is durable.
    fn settle_last(&mut self) {
        let loose = self.loose && self.later.is_empty();
        *self = Cell { durable: self.last(), later: Vec::new(), loose };
    }

    /// Whether nobody knows which of its stamps it has.
    pub(super) fn is_loose(&self) -> bool {
        self.loose
    }

    /// Whether it was being written at a crash, or at an earlier one.
    fn may_be_unproven(&self) -> bool {
        self.loose || !self.later.is_empty()
    }

    /// The cell after a crash, if nobody finds out what it holds.
    fn left_open(&self) -> Cell {
        let later = self.later.iter().map(|write| write.stamp);
        let durable = self.durable.iter().copied().chain(later).collect();
        Cell { durable, later: Vec::new(), loose: true }
    }
}

/// A replica or snapshot.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) cells: Vec<Cell>,
    /// It may be gone, or not be there yet.
    pub(super) uncertain: bool,
    pub(super) snapshot: bool,
    /// Other sizes that it may have.
    pub(super) sizes: Vec<u64>,
    /// What may be written about it; nothing is 0.
    pub(super) told: BTreeMap<Tale, Vec<u64>>,
    pub(super) busy: bool,
    pub(super) made: Made,
}

/// Something that is written about a replica or snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tale {
    Label,
    Share,
    SpecBackup,
}

pub(super) const TALES: [Tale; 3] = [Tale::Label, Tale::Share, Tale::SpecBackup];

impl Tale {
    /// The stamp of what is written about an entity.
    fn stamp(self, entity: &Entity) -> u64 {
        let text = match self {
            Tale::Label => return entity.label.epoch,
            Tale::Share => &entity.share,
            Tale::SpecBackup => &entity.spec_backup,
        };
        text.first_chunk().map_or(0, |stamp| u64::from_le_bytes(*stamp))
    }
}

/// How it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) thick: bool,
    pub(super) encrypted: bool,
}

/// The check value of every key in these tests.
pub(super) const KEY: [u8; crate::KEY_CHECK] = [7; crate::KEY_CHECK];

/// A block that went bad on the disk: it has the second stamp instead of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rot {
    pub(super) good: u64,
    pub(super) bad: u64,
}

impl Volume {
    pub(super) fn new(cells: Vec<Cell>, snapshot: bool) -> Volume {
        let sizes = vec![cells.len() as u64];
        Volume {
            cells,
            uncertain: true,
            snapshot,
            sizes,
            told: TALES.map(|tale| (tale, vec![0])).into(),
            busy: false,
            made: Made::default(),
        }
    }

    pub(super) fn empty(size: u64) -> Volume {
        Volume::new(vec![Cell::of(0); size as usize], false)
    }
}

/// What a command will have done when it ends well.
#[derive(Clone, Debug)]
pub(super) enum Intent {
    Read {
        id: Id,
        start: u64,
        expect: Vec<Cell>,
        /// A block that was bad and was repaired since it began.
        healed: Option<Rot>,
    },
    Write {
        id: Id,
        start: u64,
        stamps: Vec<u64>,
        fua: bool,
    },
    Flush {
        id: Id,
        upto: Vec<Option<CommandId>>,
    },
    Create {
        id: Id,
    },
    Snapshot {
        id: Id,
    },
    Delete {
        id: Id,
    },
    Resize {
        id: Id,
        size: u64,
    },
    Tell {
        id: Id,
        tale: Tale,
        stamp: u64,
    },
    /// A scrub step, a new wrapping of a key: nothing that shows.
    Nothing {
        id: Id,
    },
    Repair,
    /// A flush after a repair.
    Healed,
    Grow,
    Add,
    Export,
}

/// The model.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) volumes: BTreeMap<Id, Volume>,
    pub(super) intents: BTreeMap<CommandId, Intent>,
    pub(super) next: u64,
    pub(super) rot: Option<Rot>,
}

impl Model {
    /// Whether a fault in these blocks is one that was made on purpose.
    pub(super) fn explains(&self, cells: &[Cell]) -> bool {
        let hit = |rot: Rot| cells.iter().any(|cell| cell.allows(rot.good));
        self.rot.is_some_and(hit)
    }

    /// Everything is durable.
    pub(super) fn settle_all(&mut self) {
        for cell in self.volumes.values_mut().flat_map(|volume| &mut volume.cells) {
            cell.settle_last();
        }
    }

    /// What must be there when the process died and the power stayed: everything acknowledged.
    pub(super) fn acknowledged(&self) -> Model {
        let mut kept = self.clone();
        for cell in kept.volumes.values_mut().flat_map(|volume| &mut volume.cells) {
            let completed = cell.later.iter().rfind(|write| write.completed).map(|write| write.by);
            let loose = cell.may_be_unproven();
            if let Some(by) = completed {
                cell.settle(by);
            }
            cell.loose = loose;
        }
        kept
    }

    pub(super) fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn begin_write(
        &mut self,
        token: CommandId,
        id: Id,
        start: u64,
        stamps: Vec<u64>,
        fua: bool,
    ) {
        let cells = &mut self.volumes.get_mut(&id).unwrap().cells;
        for (at, stamp) in (start as usize..).zip(&stamps) {
            cells[at].later.push(Written {
                stamp: *stamp,
                by: token,
                completed: false,
                failed: false,
            });
        }
        self.intents.insert(token, Intent::Write { id, start, stamps, fua });
    }

    pub(super) fn begin_flush(&mut self, token: CommandId, id: Id) {
        let completed =
            |cell: &Cell| cell.later.iter().rfind(|write| write.completed).map(|write| write.by);
        let upto = self.volumes[&id].cells.iter().map(completed).collect();
        self.intents.insert(token, Intent::Flush { id, upto });
    }

    /// A command ended well.
    pub(super) fn succeeded(&mut self, token: CommandId) {
        match self.intents.remove(&token).expect("a known command") {
            Intent::Read { .. }
            | Intent::Nothing { .. }
            | Intent::Repair
            | Intent::Grow
            | Intent::Add => {}
            Intent::Export => self.settle_all(),
            Intent::Healed => {
                // A read that began before this may have found the block as it was.
                for intent in self.intents.values_mut() {
                    if let Intent::Read { healed, .. } = intent {
                        *healed = self.rot;
                    }
                }
                self.rot = None;
            }
            Intent::Write { id, start, stamps, fua } => {
                // A replica that is being shrunk may have lost the cells.
                let cells = &mut self.volumes.get_mut(&id).unwrap().cells;
                for cell in cells.iter_mut().skip(start as usize).take(stamps.len()) {
                    let own = |write: &&mut Written| write.by == token;
                    if let Some(write) = cell.later.iter_mut().find(own) {
                        write.completed = true;
                    }
                    if fua {
                        cell.settle(token);
                    }
                }
            }
            Intent::Flush { id, upto } => {
                let Some(volume) = self.volumes.get_mut(&id) else { return };
                for (cell, upto) in volume.cells.iter_mut().zip(upto) {
                    if let Some(upto) = upto {
                        cell.settle(upto);
                    }
                }
            }
            Intent::Create { id } => self.volumes.get_mut(&id).unwrap().uncertain = false,
            Intent::Snapshot { id } => {
                let volume = self.volumes.get_mut(&id).unwrap();
                volume.uncertain = false;
                for cell in &mut volume.cells {
                    cell.settle_last();
                }
            }
            Intent::Delete { id } => {
                self.volumes.remove(&id);
            }
            Intent::Resize { id, size } => {
                let volume = self.volumes.get_mut(&id).unwrap();
                volume.busy = false;
                volume.sizes = vec![size];
                volume.cells.resize(size as usize, Cell::of(0));
            }
            Intent::Tell { id, tale, stamp } => {
                if let Some(volume) = self.volumes.get_mut(&id) {
                    let told = volume.told.get_mut(&tale).unwrap();
                    let at = told.iter().position(|other| *other == stamp).unwrap();
                    told.drain(..at);
                }
            }
        }
    }

    /// There was no space: it never happened, not for snapshots taken after it either.
    pub(super) fn failed(&mut self, token: CommandId) -> Result<(), String> {
        match self.intents.remove(&token).expect("a known command") {
            Intent::Write { id, stamps, .. } => {
                let volume = self.volumes.get(&id);
                let zeros = stamps.iter().all(|stamp| *stamp == 0);
                if volume.is_some_and(|volume| volume.made.thick && !zeros) {
                    return Err(format!("thick {id:?} has no space"));
                }
                for cell in self.volumes.values_mut().flat_map(|volume| &mut volume.cells) {
                    cell.later.retain(|write| write.by != token);
                }
            }
            Intent::Create { id } | Intent::Snapshot { id } => {
                self.volumes.remove(&id);
            }
            Intent::Resize { id, .. } => {
                let volume = self.volumes.get_mut(&id).unwrap();
                volume.busy = false;
                volume.sizes.truncate(1);
            }
            Intent::Grow | Intent::Add | Intent::Nothing { .. } => {}
            other => return Err(format!("{other:?} must not fail")),
        }
        Ok(())
    }

    /// A command failed for another reason, and may have been carried out in part.
    pub(super) fn left_open(&mut self, token: CommandId) {
        self.intents.remove(&token).expect("a known command");
        let cells = self.volumes.values_mut().flat_map(|volume| &mut volume.cells);
        for write in cells.flat_map(|cell| &mut cell.later).filter(|write| write.by == token) {
            write.failed = true;
        }
    }

    /// Compares with a pool that was opened after a crash. Answers the model that goes on from it.
    pub(super) fn check(&self, rig: &mut Rig) -> Result<Model, String> {
        let mut found = Model { next: self.next, rot: self.rot, ..Model::default() };
        let entities: Vec<_> = rig.pool.entities().cloned().collect();
        for entity in &entities {
            let id = entity.id;
            let expected = self.volumes.get(&id).ok_or(format!("{id:?} is back"))?;
            let size = entity.size.0;
            if !expected.sizes.contains(&size) {
                return Err(format!("{id:?} has size {size}, not {:?}", expected.sizes));
            }
            for (tale, told) in &expected.told {
                let stamp = tale.stamp(entity);
                if !told.contains(&stamp) {
                    return Err(format!("{id:?} has {tale:?} {stamp}, not {told:?}"));
                }
            }
            let made = Made { thick: entity.thick, encrypted: entity.is_encrypted() };
            if made != expected.made {
                return Err(format!("{id:?} is of another kind"));
            }
            if entity.is_encrypted() {
                if rig.read(id, 0, 1) != Err(block::IoError::Locked) {
                    return Err(format!("{id:?} is read without its key"));
                }
                rig.pool.unlock(id, KEY).map_err(|refused| format!("{id:?}: {refused}"))?;
            }
            let cells = self.check_blocks(rig, id, size)?;
            let mut volume = Volume::new(cells, expected.snapshot);
            volume.uncertain = false;
            volume.made = made;
            volume.told = TALES.map(|tale| (tale, vec![tale.stamp(entity)])).into();
            found.volumes.insert(id, volume);
        }
        for (id, volume) in &self.volumes {
            if !volume.uncertain && !found.volumes.contains_key(id) {
                return Err(format!("{id:?} is gone"));
            }
        }
        Ok(found)
    }

    fn check_blocks(&self, rig: &mut Rig, id: Id, size: u64) -> Result<Vec<Cell>, String> {
        let expected = &self.volumes[&id];
        let mut cells = Vec::new();
        let whole = rig.read(id, 0, size);
        for at in 0..size as usize {
            let allowed = expected.cells.get(at).cloned().unwrap_or(Cell::of(0));
            let mut read = match &whole {
                Ok(bytes) => Ok(bytes[at * BLOCK..][..BLOCK].to_vec()),
                Err(_) => rig.read(id, at as u64, 1),
            };
            let explained = self.explains(core::slice::from_ref(&allowed));
            if let Err(block::IoError::Unproven { .. }) = read {
                if !explained && !allowed.may_be_unproven() {
                    return Err(format!("{id:?} block {at} is unproven, and was not written"));
                }
                // Some are left as they are, for the next crash.
                if explained || (at as u64 + self.next).is_multiple_of(4) {
                    cells.push(allowed.left_open());
                    continue;
                }
                let accepted = rig.accept_unproven(id, at as u64, 1);
                accepted.map_err(|fault| format!("{id:?} block {at}: {fault}"))?;
                read = rig.read(id, at as u64, 1);
            }
            let block = match read {
                Ok(block) => block,
                Err(block::IoError::Checksum { .. }) if explained => {
                    cells.push(allowed);
                    continue;
                }
                Err(fault) => return Err(format!("{id:?} block {at}: {fault}")),
            };
            let stamps = stamps(&block).map_err(|e| format!("{id:?} block {at}: {e}"))?;
            if stamps.len() > 1 {
                return Err(format!("{id:?} block {at} is torn: {stamps:?}"));
            }
            if let Some(wrong) = stamps.iter().find(|stamp| !allowed.allows(**stamp)) {
                return Err(format!("{id:?} block {at} holds {wrong}, not {allowed:?}"));
            }
            let durable = stamps.into_iter().collect();
            cells.push(Cell { durable, later: Vec::new(), loose: false });
        }
        Ok(cells)
    }
}
