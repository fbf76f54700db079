//! Changes of the superblock (O8): growing, adding a disk; and leaving: export.
//!
//! A larger pool needs larger checkpoint slots. Room for both is taken in front of the new data
//! area; the slot that is not current moves at once, the other one after the next checkpoint.

use alloc::vec::Vec;

use block::Blocks;

use crate::casts::{count, low16};
use crate::create;
use crate::layout::{
    self, Area, Cluster, Disk, DiskLayout, FIRST_AREA, MAX_AREAS, MAX_DISKS, Place, Use,
};
use crate::state::Refused;
use crate::superblock::{Member, Superblock};

use super::Pool;
use super::effect::{CommandId, Effect};
use super::op::Purpose;

/// New areas begin at a multiple of this many blocks.
const ALIGN: u64 = 256;

/// Whether the pool is leaving. Once asked it takes no changes any more, so that what is on the
/// disks is what will be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Export {
    No,
    Asked(CommandId),
    Done,
}

/// A superblock that is being written.
#[derive(Debug)]
pub(super) struct SuperblockUpdate {
    next: Superblock,
    token: Option<CommandId>,
    stage: Stage,
    left: u32,
    good: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A checkpoint is under way; it must know where its slot is.
    Waiting,
    /// Both copies on disks that are new: an old disk must not name a disk that cannot be found.
    New,
    NewFlush,
    Copy(u8),
    Flush(u8),
}

impl Pool {
    /// Uses what the disks have more than before; `sizes` are the sizes of all disks, in order.
    pub fn grow(&mut self, token: CommandId, sizes: &[Blocks]) {
        let mut next = self.superblock.clone();
        for (disk, size) in next.disks.iter_mut().zip(sizes) {
            disk.blocks = disk.blocks.max(*size);
        }
        self.change_table(token, next);
    }

    /// Adds a disk; it has been looked at, and holds nothing that is needed.
    pub fn add_disk(&mut self, token: CommandId, disk: Member) {
        let mut next = self.superblock.clone();
        next.disks.push(disk);
        self.change_table(token, next);
    }

    fn change_table(&mut self, token: CommandId, mut next: Superblock) {
        let busy = self.table.is_some() || self.broken || self.is_exporting();
        let planned = if busy || next.disks.len() > MAX_DISKS {
            Err(Refused::Busy)
        } else {
            add_areas(&mut next, 1 - self.checkpoint.slot)
                .filter(|()| next.is_sound())
                .ok_or(Refused::NotLarger)
        };
        match planned {
            Ok(()) => {
                next.generation += 1;
                let stage = Stage::Waiting;
                self.table =
                    Some(SuperblockUpdate { next, token: Some(token), stage, left: 0, good: true });
            }
            Err(refused) => {
                self.effects.push_back(Effect::Changed { token, result: Err(refused) });
            }
        }
        self.run();
    }

    pub(super) fn advance_table(&mut self) {
        let waiting = self.table.as_ref().is_some_and(|table| table.stage == Stage::Waiting);
        if waiting && !self.checkpoint.is_running() && !self.broken {
            let old = self.superblock.disks.len();
            let new = self.table.as_ref().map_or(0, |table| table.next.disks.len());
            if new > old {
                let on_new = (old..new).flat_map(|disk| [(disk, 0), (disk, 1)]).collect();
                self.write_table(Stage::New, on_new);
            } else {
                self.write_round(0);
            }
        }
    }

    /// Writes one copy on every disk: first the one that is not known to be good.
    fn write_round(&mut self, round: u8) {
        let disks = self.table.as_ref().map_or(0, |table| table.next.disks.len());
        let first = |disk| self.first_supers.get(disk).copied().unwrap_or(0);
        let writes = (0..disks).map(|disk| (disk, first(disk) ^ round)).collect();
        self.write_table(Stage::Copy(round), writes);
    }

    fn write_table(&mut self, stage: Stage, writes: Vec<(usize, u8)>) {
        let Some(table) = &mut self.table else { return };
        table.stage = stage;
        table.left = crate::casts::low32(count(writes.len()));
        for (disk, copy) in writes {
            let Some(table) = &self.table else { return };
            let disk = Disk(low16(count(disk)));
            let (place, bytes) = create::super_write(&table.next, disk, copy);
            self.write_own(Purpose::Table, place, bytes);
        }
    }

    fn flush_table(&mut self, stage: Stage) {
        let Some(table) = &mut self.table else { return };
        let disks = low16(count(table.next.disks.len()));
        table.stage = stage;
        table.left = u32::from(disks);
        for disk in 0..disks {
            self.flush_one(Purpose::Table, Disk(disk));
        }
    }

    pub(super) fn table_step_done(&mut self, good: bool) {
        let Some(table) = &mut self.table else { return };
        table.left -= 1;
        table.good &= good;
        if table.left > 0 {
            return;
        }
        match table.stage {
            _ if !table.good => self.table_done(Err(Refused::Broken)),
            Stage::New => self.flush_table(Stage::NewFlush),
            Stage::NewFlush => self.write_round(0),
            Stage::Copy(copy) => self.flush_table(Stage::Flush(copy)),
            Stage::Flush(0) => self.write_round(1),
            Stage::Flush(_) => self.table_done(Ok(())),
            Stage::Waiting => {}
        }
    }

    fn table_done(&mut self, result: Result<(), Refused>) {
        let Some(SuperblockUpdate { next, token, .. }) = self.table.take() else { return };
        // A table that was written in part may be found or not: nothing can be built on it.
        self.broken |= result.is_err();
        if let (Ok(()), Some(disk_layout)) = (result, DiskLayout::new(&next.areas, next.cluster)) {
            self.state.space.grow(disk_layout.clusters());
            self.disk_layout = disk_layout;
            self.superblock = next;
            self.first_supers.clear();
            self.state.meta_limit = self.superblock.checkpoint_room();
            self.set_torn_writes(self.limits.torn_writes);
            self.checkpoint.want();
        }
        if let Some(token) = token {
            self.effects.push_back(Effect::Changed { token, result });
        }
    }

    /// If the slot that is not current is the smaller one, it moves behind the other.
    pub(super) fn move_smaller_slot(&mut self) {
        let slot = self.checkpoint.slot;
        let area = |slot, copy| self.superblock.area(Use::Checkpoint { slot, copy });
        let (Some(small), Some(large)) = (area(1 - slot, 0), area(slot, 1)) else { return };
        if small.blocks >= large.blocks || self.table.is_some() {
            return;
        }
        let mut next = self.superblock.clone();
        next.generation += 1;
        let start = Place { block: large.start.block + large.blocks, ..large.start };
        move_slot(&mut next, 1 - slot, start, large.blocks);
        let stage = Stage::Waiting;
        self.table = Some(SuperblockUpdate { next, token: None, stage, left: 0, good: true });
    }

    /// Writes everything down, so that the next import finds nothing in doubt. No change is taken
    /// any more.
    pub fn export(&mut self, token: CommandId) {
        self.export = Export::Asked(token);
        self.run();
    }

    pub(super) fn is_exporting(&self) -> bool {
        self.export != Export::No
    }

    pub(super) fn advance_export(&mut self) {
        let Export::Asked(token) = self.export else { return };
        let quiet = self.ops.len() == 0
            && self.commit_rests()
            && self.checkpoint.is_idle()
            && self.paging.is_idle()
            && self.table.is_none();
        if self.broken {
            self.export = Export::No;
            let result = Err(Refused::Broken);
            self.effects.push_back(Effect::Changed { token, result });
        } else if quiet && self.is_clean() {
            self.effects.push_back(Effect::Changed { token, result: Ok(()) });
            self.export = Export::Done;
        } else if quiet {
            self.checkpoint.want();
        }
    }

    /// Whether the current checkpoint says everything.
    fn is_clean(&self) -> bool {
        self.open.payload.is_empty()
            && self.journal_used() == 0
            && self.regions.dirty.is_empty()
            && self.sums.dirty_count() == 0
    }
}

/// Adds a data area for the free end of every disk; nothing if none has one.
fn add_areas(table: &mut Superblock, idle_slot: u8) -> Option<()> {
    let mut slots_placed = false;
    let mut added = false;
    let cluster = table.cluster;
    let total: u64 = table.disks.iter().map(|disk| disk.blocks.0 >> cluster.shift()).sum();
    let slot = layout::checkpoint_blocks(total, cluster);
    for number in 0..table.disks.len() {
        let disk = Disk(low16(count(number)));
        let on_disk = |area: &&Area| area.start.disk == disk;
        let ends = table.areas.iter().filter(on_disk).map(|area| area.start.block + area.blocks);
        let mut start = ends.max().unwrap_or(FIRST_AREA).next_multiple_of(ALIGN);
        let end = table.disks[number].blocks.0;
        let small = table.checkpoint_room() < (slot - 1) * count(layout::BLOCK);
        let room_for_slots = end.saturating_sub(start) > 8 * slot;
        if small && !slots_placed && room_for_slots {
            move_slot(table, idle_slot, Place { disk, block: start }, slot);
            start += 4 * slot;
            slots_placed = true;
        }
        let first = DiskLayout::new(&table.areas, cluster)?.clusters();
        let place = Place { disk, block: start };
        let area = end
            .checked_sub(start)
            .and_then(|blocks| layout::fit_data(place, blocks, Cluster(first), cluster));
        if let Some(area) = area
            && table.areas.len() < MAX_AREAS
        {
            table.areas.push(area);
            added = true;
        }
    }
    added.then_some(())
}

fn move_slot(table: &mut Superblock, slot: u8, start: Place, blocks: u64) {
    for area in &mut table.areas {
        if let Use::Checkpoint { slot: this, copy } = area.usage
            && this == slot
        {
            let block = start.block + u64::from(copy) * blocks;
            *area = Area { start: Place { block, ..start }, blocks, ..*area };
        }
    }
}
