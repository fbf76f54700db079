//! Crash at every write: random histories, cut after every write and flush, opened again, compared.

use std::format;
use std::string::String;
use std::vec::Vec;

use block::{Blocks, Command, Fault, Lba, Span};

use super::disk::{Disks, Random};
use super::driver::{Ended, Moment, Rig, import, new_disks};
use super::model::{Intent, Model, Volume, stamped, stamps};
use crate::{Change, Id, Label, NewReplica, NewSnapshot, Token};

/// Histories of one run of the quick tests; `HOLDFAST_SEEDS` asks for more.
fn seeds(quick: u64) -> u64 {
    std::env::var("HOLDFAST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(quick)
}

#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    sizes: &'static [u64],
    steps: u64,
    /// One in this many I/Os is followed by a power cut.
    cut_every: u64,
    lies: bool,
}

struct History {
    rig: Rig,
    model: Model,
    random: Random,
    plan: Plan,
    cuts: u64,
}

pub(super) fn replica(id: u128, origin: u128, size: u64) -> Change {
    Change::Create(NewReplica {
        id: Id(id),
        origin: Id(origin),
        size: Blocks(size),
        thick: false,
        created: 1,
        label: Label::default(),
        key: Vec::new(),
    })
}

impl History {
    fn new(plan: Plan) -> History {
        let mut disks = new_disks(plan.sizes, 64);
        disks.lies = plan.lies;
        let rig = import(disks, plan.sizes).unwrap();
        History { rig, model: Model::default(), random: Random(plan.seed), plan, cuts: 0 }
    }

    fn run(&mut self) -> Result<u64, String> {
        for _ in 0..3 {
            self.segment()?;
            // Go on from what one of the crashes left.
            let mut after = self.rig.disks.after_crash(&mut self.random);
            after.lies = self.plan.lies;
            let mut rig = import(after, self.plan.sizes)?;
            self.model = self.model.check(&mut rig)?;
            self.rig = rig;
            self.rig.pool.check_state();
        }
        Ok(self.cuts)
    }

    fn segment(&mut self) -> Result<(), String> {
        let mut left = self.plan.steps;
        loop {
            if left > 0 && (self.model.intents.len() < 6) && !self.random.one_in(3) {
                left -= 1;
                self.act();
            }
            match self.rig.step(&mut self.random) {
                Moment::Io => {
                    if self.random.one_in(self.plan.cut_every) {
                        self.cut()?;
                    }
                    // In half of the histories the next one begins in the middle of things.
                    if left < self.plan.steps / 2 && self.random.one_in(100 * self.plan.cut_every) {
                        return Ok(());
                    }
                }
                Moment::Ended(Ended::Done(token, result)) => self.ended(token, result)?,
                Moment::Ended(Ended::Changed(token, Ok(()))) => self.model.succeeded(token),
                Moment::Ended(Ended::Changed(_, Err(refused))) => {
                    return Err(format!("a change was refused: {refused}"));
                }
                Moment::Quiet if left == 0 => return Ok(()),
                Moment::Quiet => {}
            }
        }
    }

    fn ended(&mut self, token: Token, result: Result<(), Fault>) -> Result<(), String> {
        let buffer = self.rig.buffers.remove(&token).unwrap_or_default();
        match result {
            Ok(()) => {
                if let Some(Intent::Read { id, start, expect }) = self.model.intents.get(&token) {
                    for ((block, cell), at) in buffer.chunks_exact(4096).zip(expect).zip(*start..) {
                        let fine = stamps(block)?.iter().all(|stamp| cell.allows(*stamp));
                        if !fine {
                            return Err(format!("{id:?} block {at} reads wrong"));
                        }
                    }
                }
                self.model.succeeded(token);
                Ok(())
            }
            Err(Fault::NoSpace) => {
                self.model.failed(token);
                Ok(())
            }
            Err(fault) => Err(format!("{:?} failed: {fault}", self.model.intents.get(&token))),
        }
    }

    /// Cuts the power here, opens what is left, and compares.
    fn cut(&mut self) -> Result<(), String> {
        self.cuts += 1;
        let mut random = self.random.clone();
        let after: Disks = self.rig.disks.after_crash(&mut random);
        let mut rig = import(after, self.plan.sizes)?;
        rig.pool.check_state();
        let found = self.model.check(&mut rig)?;
        if random.one_in(4) {
            // Cut again, while the pool is still tidying up.
            for _ in 0..random.below(8) {
                rig.step(&mut random);
            }
            rig = import(rig.disks.after_crash(&mut random), self.plan.sizes)?;
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

    fn act(&mut self) {
        let count = self.model.volumes.len();
        match self.random.below(100) {
            _ if count == 0 => self.create(),
            0..3 if count < 8 => self.create(),
            45..52 => self.read(),
            52..62 => self.flush(),
            62..74 => self.discard(),
            74..80 if count < 8 => self.snapshot(),
            80..84 if count < 8 => self.clone(),
            84..89 => self.resize(),
            89..92 => self.label(),
            92..97 => self.delete(),
            97..100 => self.rig.pool.request_checkpoint(),
            _ => self.write(),
        }
    }

    fn create(&mut self) {
        let id = Id(u128::from(self.model.stamp()));
        let size = 1 + self.random.below(200);
        self.model.volumes.insert(id, Volume::empty(size));
        let token = self.rig.change(replica(id.0, 0, size));
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
        let fua = self.random.one_in(4);
        let command = if fua {
            Command::WriteZeroes { span, fua, deallocate: true }
        } else {
            Command::Discard { span }
        };
        let token = self.rig.submit(id, command, Vec::new());
        let stamps = std::vec![0; span.len().0 as usize];
        self.model.begin_write(token, id, span.start().0, stamps, fua);
    }

    fn read(&mut self) {
        let snapshot = self.random.one_in(2);
        let Some((id, size)) = self.pick(snapshot) else { return };
        let span = self.range(size);
        let at = span.start().0 as usize;
        let expect = self.model.volumes[&id].cells[at..at + span.len().0 as usize].to_vec();
        let token = self.rig.submit(id, Command::Read { span }, Vec::new());
        self.model.intents.insert(token, Intent::Read { id, start: span.start().0, expect });
    }

    fn flush(&mut self) {
        let Some((id, _)) = self.pick(false) else { return };
        let token = self.rig.submit(id, Command::Flush, Vec::new());
        self.model.begin_flush(token, id);
    }

    fn snapshot(&mut self) {
        let Some((of, _)) = self.pick(false) else { return };
        let id = Id(u128::from(self.model.stamp()));
        let volume = Volume::new(self.model.volumes[&of].cells.clone(), true);
        self.model.volumes.insert(id, volume);
        let snapshot = NewSnapshot { id, created: 5, label: Label::default() };
        let token = self.rig.change(Change::Snapshot { of, snapshot });
        self.model.intents.insert(token, Intent::Snapshot { id });
    }

    fn clone(&mut self) {
        let Some((of, size)) = self.pick(true) else { return };
        let id = Id(u128::from(self.model.stamp()));
        let volume = Volume::new(self.model.volumes[&of].cells.clone(), false);
        self.model.volumes.insert(id, volume);
        let token = self.rig.change(replica(id.0, of.0, size));
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

    fn label(&mut self) {
        let Some((id, _)) = self.pick(false) else { return };
        let label = self.model.stamp();
        self.model.volumes.get_mut(&id).unwrap().labels.push(label);
        let label_now = Label { epoch: label, ..Label::default() };
        let token = self.rig.change(Change::Label { id, label: label_now });
        self.model.intents.insert(token, Intent::Label { id, label });
    }

    fn delete(&mut self) {
        let snapshot = self.random.one_in(2);
        let Some((id, _)) = self.pick(snapshot) else { return };
        self.model.volumes.get_mut(&id).unwrap().uncertain = true;
        let token = self.rig.change(Change::Delete(id));
        self.model.intents.insert(token, Intent::Delete { id });
        // Writes that come while the delete is not durable must not touch what it gives up.
        self.write();
        self.write();
    }
}

fn run(plan: Plan) -> Result<u64, String> {
    History::new(plan).run().map_err(|error| format!("seed {}: {error}", plan.seed))
}

#[test]
fn nothing_flushed_is_lost_at_any_cut() {
    let mut cuts = 0;
    for seed in 0..seeds(8) {
        let plan = Plan {
            seed,
            sizes: if seed % 2 == 0 { &[3600] } else { &[2600] },
            steps: 60,
            cut_every: 1,
            lies: false,
        };
        cuts += run(plan).unwrap();
    }
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn nothing_flushed_is_lost_on_two_disks() {
    for seed in 1000..1000 + seeds(3) {
        let plan = Plan { seed, sizes: &[7000, 2600], steps: 50, cut_every: 1, lies: false };
        run(plan).unwrap();
    }
}

#[test]
fn long_histories_match_the_model() {
    for seed in 2000..2000 + seeds(2) {
        let sizes = if seed % 2 == 0 { &[3600][..] } else { &[9000, 2600] };
        run(Plan { seed, sizes, steps: 3000, cut_every: 300, lies: false }).unwrap();
    }
}

#[test]
fn a_flush_left_out_is_noticed() {
    let noticed = (0..10).filter(|seed| {
        let plan = Plan { seed: *seed, sizes: &[3600], steps: 60, cut_every: 1, lies: true };
        run(plan).is_err()
    });
    assert!(noticed.count() > 7);
}
