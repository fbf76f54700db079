//! Random histories of everything a pool can do, cut at disk writes and flushes, opened again and
//! compared with the model.

use std::format;
use std::string::String;
use std::vec::Vec;

use block::{Blocks, Command, IoError, Lba, Span};

use super::disk::{Disks, Lie, Random};
use super::driver::{Ended, Moment, Rig, import, new_disks};
use super::model::{Cell, Intent, KEY, Made, Model, Rot, TALES, Tale, Volume, stamped, stamps};
use crate::{Change, CommandId, Id, Label, Member, NewReplica, NewSnapshot, Refused, TornWrites};

/// What a history is made of.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) sizes: &'static [u64],
    pub(super) steps: u64,
    /// One in this many I/Os is followed by a power cut.
    pub(super) cut_every: u64,
    /// Flushes that the disks do not carry out.
    pub(super) lies: Lie,
}

pub(super) struct History {
    rig: Rig,
    model: Model,
    random: Random,
    plan: Plan,
    /// Of the disks as they are now.
    sizes: Vec<u64>,
    cuts: u64,
    /// Reads of maps have failed since the pool was opened.
    is_faulty: bool,
}

pub(super) fn replica(id: u128, origin: u128, size: u64) -> Change {
    Change::Create(new_replica(Id(id), Id(origin), size))
}

pub(super) fn new_replica(id: Id, origin: Id, size: u64) -> NewReplica {
    NewReplica {
        id,
        origin,
        size: Blocks(size),
        thick: false,
        created: 1,
        label: Label::default(),
        key: Vec::new(),
    }
}

impl History {
    fn new(plan: Plan) -> History {
        let mut disks = new_disks(plan.sizes, 64);
        disks.lies = plan.lies;
        // Whatever the disks are: a block is wholly old or wholly new.
        disks.is_large = plan.seed / 2 % 2 == 1;
        disks.torn_writes =
            if disks.is_large { TornWrites::Impossible } else { TornWrites::Possible };
        let rig = import(disks, plan.sizes).unwrap();
        let (model, sizes) = (Model::default(), plan.sizes.to_vec());
        let random = Random(plan.seed);
        History { rig, model, random, plan, sizes, cuts: 0, is_faulty: false }
    }

    fn run(&mut self) -> Result<u64, String> {
        for _ in 0..3 {
            self.segment(self.plan.steps)?;
            // Go on from what one of the crashes left.
            let mut after = self.rig.disks.after_crash(&mut self.random);
            after.lies = self.plan.lies;
            self.reopen(after)?;
        }
        self.tidy_up()?;
        Ok(self.cuts)
    }

    fn reopen(&mut self, disks: Disks) -> Result<(), String> {
        let mut rig = import(disks, &self.sizes)?;
        self.model = self.model.check(&mut rig)?;
        (self.rig, self.is_faulty) = (rig, false);
        self.sizes.truncate(self.rig.pool.superblock().disks.len());
        self.rig.pool.check_state();
        self.repair();
        Ok(())
    }

    /// When everything is deleted, all space is free.
    fn tidy_up(&mut self) -> Result<(), String> {
        self.segment(0)?;
        let ids: Vec<Id> = self.rig.pool.entities().map(|entity| entity.id).collect();
        for id in ids {
            self.rig.must(Change::Delete(id));
        }
        self.rig.settle();
        self.rig.pool.check_state();
        let usage = self.rig.pool.usage();
        let left = (usage.own.0, usage.pending.0, usage.promised.0, usage.written.0);
        if left == (0, 0, 0, 0) { Ok(()) } else { Err(format!("{left:?} is left over")) }
    }

    /// Acts that many times, and goes on until everything has ended, or the power goes.
    fn segment(&mut self, acts: u64) -> Result<(), String> {
        let mut left = acts;
        let mut idle = 0;
        loop {
            idle += 1;
            if idle > 100_000 {
                return Err(format!("it never comes to rest: {:?}", self.model.intents));
            }
            if left > 0 && self.model.intents.len() < 6 && !self.random.one_in(3) {
                (left, idle) = (left - 1, 0);
                self.act()?;
            }
            match self.rig.step(&mut self.random) {
                Moment::Io => {
                    if self.random.one_in(self.plan.cut_every) {
                        self.cut()?;
                    }
                    // In half of the histories the next one begins in the middle of things.
                    let late = left < acts / 2;
                    if late && self.random.one_in(100 * self.plan.cut_every) {
                        return Ok(());
                    }
                }
                Moment::Ended(Ended::Done(token, result)) => self.ended(token, result)?,
                Moment::Ended(Ended::Changed(token, result)) => self.changed(token, result)?,
                Moment::Ended(other @ Ended::Answered(..)) => {
                    return Err(format!("nobody asked: {other:?}"));
                }
                Moment::Quiet if !self.model.intents.is_empty() => {
                    return Err(format!("these never end: {:?}", self.model.intents));
                }
                Moment::Quiet if left == 0 => return Ok(()),
                Moment::Quiet => {}
            }
        }
    }

    fn changed(&mut self, token: CommandId, result: Result<(), Refused>) -> Result<(), String> {
        let intent = self.model.intents.get(&token).cloned();
        match (result, &intent) {
            (Ok(()), Some(Intent::Create { id })) => {
                if self.model.volumes[id].made.encrypted {
                    self.rig.pool.unlock(*id, KEY).unwrap();
                }
                self.model.succeeded(token);
            }
            (Ok(()), _) => self.model.succeeded(token),
            (Err(Refused::NotLarger | Refused::Busy), Some(Intent::Grow)) => {
                self.model.failed(token)?;
            }
            (Err(Refused::NotLarger | Refused::Busy), Some(Intent::Add)) => {
                self.sizes.pop();
                self.model.failed(token)?;
            }
            (Err(Refused::NoSpace), _) => self.model.failed(token)?,
            (Err(Refused::Damaged | Refused::Broken), _) if self.is_faulty => {
                self.model.left_open(token);
            }
            (Err(refused), intent) => return Err(format!("{intent:?} was refused: {refused}")),
        }
        Ok(())
    }

    fn ended(&mut self, token: CommandId, result: Result<(), IoError>) -> Result<(), String> {
        let buffer = self.rig.buffers.remove(&token).unwrap_or_default();
        let intent = self.model.intents.get(&token).cloned();
        match (result, &intent) {
            (Ok(()), Some(Intent::Read { id, start, expect, .. })) => {
                for ((block, cell), at) in buffer.chunks_exact(4096).zip(expect).zip(*start..) {
                    let stamps = stamps(block)?;
                    let fine = stamps.len() == 1 && stamps.iter().all(|stamp| cell.allows(*stamp));
                    if !fine {
                        return Err(format!("{id:?} block {at} reads wrong"));
                    }
                }
                self.model.succeeded(token);
            }
            (Ok(()), Some(Intent::Repair)) => {
                self.model.succeeded(token);
                self.heal();
            }
            (Ok(()), _) => self.model.succeeded(token),
            (Err(IoError::NoSpace), _) => self.model.failed(token)?,
            (Err(IoError::Medium { .. } | IoError::ReadOnly | IoError::Internal), _)
                if self.is_faulty =>
            {
                self.model.left_open(token);
            }
            (Err(IoError::Checksum { span }), Some(Intent::Read { start, expect, healed, .. })) => {
                let from = (span.start().0 - start) as usize;
                let bad = &expect[from..from + span.len().0 as usize];
                // A repair through one replica is not ordered with a read through another that
                // shows the same block. What such a read brought is looked at: only if it is the
                // bad block itself was it read before the repair was written.
                let rot = self.model.rot.or(*healed);
                let is_the_bad_one = rot.is_some_and(|rot| {
                    let read = &buffer[from * 4096..][..4096];
                    bad.iter().any(|cell| cell.allows(rot.good)) && read == stamped(rot.bad)
                });
                if bad.len() != 1 || !is_the_bad_one {
                    return Err(format!("{intent:?} failed: checksum of {span}"));
                }
                self.model.succeeded(token);
            }
            (Err(IoError::Unproven { span }), Some(Intent::Read { start, expect, healed, .. })) => {
                let from = (span.start().0 - start) as usize;
                let rot = self.model.rot.or(*healed);
                let may_be =
                    |cell: &Cell| cell.is_loose() || rot.is_some_and(|rot| cell.allows(rot.good));
                if !expect[from..from + span.len().0 as usize].iter().all(may_be) {
                    return Err(format!("{intent:?} failed: {span} are unproven"));
                }
                self.model.succeeded(token);
            }
            (Err(IoError::Unproven { .. }), Some(Intent::Nothing { id }))
                if self.model.volumes[id].cells.iter().any(Cell::is_loose)
                    || self.model.explains(&self.model.volumes[id].cells) =>
            {
                self.model.succeeded(token);
            }
            (Err(IoError::Checksum { .. }), Some(Intent::Nothing { id }))
                if self.model.explains(&self.model.volumes[id].cells) =>
            {
                self.model.succeeded(token);
            }
            (Err(fault), intent) => return Err(format!("{intent:?} failed: {fault}")),
        }
        Ok(())
    }

    /// Cuts the power here, or ends the process, opens what is left, and compares.
    fn cut(&mut self) -> Result<(), String> {
        self.cuts += 1;
        let mut random = self.random.clone();
        let died = random.one_in(3);
        let (after, kept) = if died {
            (self.rig.disks.after_death(&mut random), self.model.acknowledged())
        } else {
            (self.rig.disks.after_crash(&mut random), self.model.clone())
        };
        let mut rig = import(after, &self.sizes)?;
        rig.pool.check_state();
        let told = |error| if died { format!("after a death: {error}") } else { error };
        let found = kept.check(&mut rig).map_err(told)?;
        if random.one_in(4) {
            // Cut again, while the pool is still tidying up.
            for _ in 0..random.below(8) {
                rig.step(&mut random);
            }
            rig = import(rig.disks.after_crash(&mut random), &self.sizes)?;
            found.check(&mut rig)?;
        }
        rig.settle();
        rig.pool.check_state();
        if rig.pool.usage().pending.0 != 0 {
            return Err("space stays pending".into());
        }
        Ok(())
    }

    fn pick(&mut self, snapshot: bool) -> Option<(Id, u64)> {
        let volumes: Vec<_> = (self.model.volumes.iter())
            .filter(|(_, volume)| !volume.uncertain && !volume.busy && volume.snapshot == snapshot)
            .map(|(id, volume)| (*id, volume.cells.len() as u64))
            .collect();
        let nth = self.random.next() as usize;
        (!volumes.is_empty()).then(|| volumes[nth % volumes.len()])
    }

    fn pick_any(&mut self) -> Option<(Id, u64)> {
        let snapshot = self.random.one_in(2);
        self.pick(snapshot)
    }

    fn act(&mut self) -> Result<(), String> {
        let count = self.model.volumes.len();
        if self.spoils() {
            self.spoil();
        }
        let most = if self.is_faulty { 975 } else { 1000 };
        match self.random.below(most) {
            _ if count == 0 => self.create(),
            0..30 if count < 8 => self.create(),
            430..500 => self.read(),
            500..590 => self.flush(),
            590..700 => self.discard(),
            700..760 if count < 8 => self.snapshot(),
            760..800 if count < 8 => self.clone(),
            800..845 => self.resize(),
            845..870 => self.tell(),
            870..880 => self.rewrap(),
            880..925 => self.delete(),
            925..945 => self.verify(),
            945..955 => self.narrow_doubt(),
            955..975 => self.rig.pool.request_checkpoint(),
            975..980 => self.grow(),
            980..983 => self.add_disk(),
            983..986 => return self.export(),
            986..990 => return self.rot(),
            990..1000 => return self.ask(),
            _ => self.write(),
        }
        Ok(())
    }

    fn create(&mut self) {
        let id = Id(u128::from(self.model.stamp()));
        let size = 1 + self.random.below(200);
        let mut new = new_replica(id, Id::NONE, size);
        new.thick = self.random.one_in(4);
        if self.random.one_in(4) {
            new.key = [&KEY[..], b"wrapped"].concat();
        }
        let mut volume = Volume::empty(size);
        volume.made = Made { thick: new.thick, encrypted: !new.key.is_empty() };
        self.model.volumes.insert(id, volume);
        let token = self.rig.change(Change::Create(new));
        self.model.intents.insert(token, Intent::Create { id });
    }

    fn range(&mut self, size: u64) -> Span {
        let mut start = self.random.below(size);
        if self.random.one_in(2) {
            // Some blocks are hit again and again.
            start -= start % 32;
        }
        let longest = if self.random.one_in(6) { 100 } else { 4 };
        let len = 1 + self.random.below(longest.min(size - start));
        Span::new(Lba(start), Blocks(len)).unwrap()
    }

    fn write(&mut self) {
        let Some((id, size)) = self.pick(false) else { return };
        let span = self.range(size);
        let fua = self.random.one_in(8);
        let stamps: Vec<u64> = (0..span.len().0).map(|_| self.model.stamp()).collect();
        let data: Vec<u8> = stamps.iter().flat_map(|stamp| stamped(*stamp)).collect();
        let token = self.rig.submit(id, Command::Write { span, fua }, data);
        self.model.begin_write(token, id, span.start().0, stamps, fua);
    }

    fn discard(&mut self) {
        let Some((id, size)) = self.pick(false) else { return };
        let mut span = self.range(size);
        if self.random.one_in(2) {
            // Whole clusters.
            let start = span.start().0 / 64 * 64;
            span = Span::new(Lba(start), Blocks((size - start).min(64))).unwrap();
        }
        let (zeroes, fua) = (self.random.one_in(2), self.random.one_in(2));
        let deallocate = self.random.one_in(2);
        let command = if zeroes {
            Command::WriteZeroes { span, fua, deallocate }
        } else {
            Command::Discard { span }
        };
        let token = self.rig.submit(id, command, Vec::new());
        let stamps = std::vec![0; span.len().0 as usize];
        self.model.begin_write(token, id, span.start().0, stamps, zeroes && fua);
    }

    fn read(&mut self) {
        let Some((id, size)) = self.pick_any() else { return };
        let span = self.range(size);
        let at = span.start().0 as usize;
        let expect = self.model.volumes[&id].cells[at..at + span.len().0 as usize].to_vec();
        let compare = self.random.one_in(3);
        let command = if compare { Command::Compare { span } } else { Command::Read { span } };
        let token = self.rig.submit(id, command, Vec::new());
        let (start, healed) = (span.start().0, None);
        self.model.intents.insert(token, Intent::Read { id, start, expect, healed });
    }

    fn flush(&mut self) {
        let Some((id, _)) = self.pick(false) else { return };
        let token = self.rig.submit(id, Command::Flush, Vec::new());
        self.model.begin_flush(token, id);
    }

    fn snapshot(&mut self) {
        let Some((of, _)) = self.pick(false) else { return };
        let id = Id(u128::from(self.model.stamp()));
        let source = &self.model.volumes[&of];
        let mut volume = Volume::new(source.cells.clone(), true);
        volume.made.encrypted = source.made.encrypted;
        self.model.volumes.insert(id, volume);
        let snapshot = NewSnapshot { id, created: 5, label: Label::default() };
        let token = self.rig.change(Change::Snapshot { of, snapshot });
        self.model.intents.insert(token, Intent::Snapshot { id });
    }

    fn clone(&mut self) {
        let Some((of, size)) = self.pick(true) else { return };
        let id = Id(u128::from(self.model.stamp()));
        let source = &self.model.volumes[&of];
        let mut volume = Volume::new(source.cells.clone(), false);
        volume.made.encrypted = source.made.encrypted;
        let mut new = new_replica(id, of, size);
        new.thick = self.random.one_in(4);
        volume.made.thick = new.thick;
        self.model.volumes.insert(id, volume);
        let token = self.rig.change(Change::Create(new));
        self.model.intents.insert(token, Intent::Create { id });
    }

    fn resize(&mut self) {
        let Some((id, old)) = self.pick(false) else { return };
        let size = 1 + self.random.below(200);
        // What is beyond the end is zero if it is ever seen again.
        let token = self.rig.change(Change::Resize { id, size: Blocks(size) });
        let volume = self.model.volumes.get_mut(&id).unwrap();
        volume.busy = true;
        volume.sizes = std::vec![old, size];
        self.model.intents.insert(token, Intent::Resize { id, size });
    }

    /// Replaces what is written about one: its label, its share state or its spec backup.
    fn tell(&mut self) {
        let Some((id, _)) = self.pick_any() else { return };
        let stamp = self.model.stamp();
        let tale = TALES[(stamp % 3) as usize];
        let len = self.random.below(3000) as usize;
        let stamped = [stamp.to_le_bytes().to_vec(), std::vec![1; len]].concat();
        let change = match tale {
            Tale::Label => {
                let label = Label { epoch: stamp, opaque: stamped, ..Label::default() };
                Change::Label { id, label }
            }
            Tale::Share => Change::Share { id, share: stamped },
            Tale::SpecBackup => Change::SpecBackup { id, spec_backup: stamped.repeat(5) },
        };
        self.model.volumes.get_mut(&id).unwrap().told.entry(tale).or_default().push(stamp);
        let token = self.rig.change(change);
        self.model.intents.insert(token, Intent::Tell { id, tale, stamp });
    }

    fn rewrap(&mut self) {
        let Some((id, _)) = self.pick_any() else { return };
        if self.model.volumes[&id].made.encrypted {
            let key = [&KEY[..], &self.model.stamp().to_le_bytes()].concat();
            let token = self.rig.change(Change::Rewrap { id, key });
            self.model.intents.insert(token, Intent::Nothing { id });
        }
    }

    fn delete(&mut self) {
        let Some((id, _)) = self.pick_any() else { return };
        self.model.volumes.get_mut(&id).unwrap().uncertain = true;
        let token = self.rig.change(Change::Delete(id));
        self.model.intents.insert(token, Intent::Delete { id });
        // Writes that come while the delete is not durable must not touch what it gives up.
        self.write();
        self.write();
    }
}

pub(super) fn run(plan: Plan) -> Result<u64, String> {
    History::new(plan).run().map_err(|error| format!("seed {}: {error}", plan.seed))
}

mod maintenance;
