//! What an owner does to a pool beside I/O: scrub, repair, growth, export, questions.

use super::*;
use crate::QueryKind;

impl History {
    /// Whether the disks' mood changes, in every fifth history.
    pub(super) fn spoils(&mut self) -> bool {
        self.plan.seed % 5 == 2 && self.random.one_in(20)
    }

    /// For a while no map can be read; what needs one fails, and nothing else happens.
    pub(super) fn spoil(&mut self) {
        let bodies = super::super::read_errors::bodies(&self.rig);
        let unreadable = &mut self.rig.disks.unreadable;
        if unreadable.is_empty() {
            (*unreadable, self.is_faulty) = (bodies, true);
        } else {
            unreadable.clear();
        }
    }

    /// A scrub step.
    pub(super) fn verify(&mut self) {
        let Some((id, size)) = self.pick_any() else { return };
        let span = self.range(size);
        let token = self.rig.token();
        self.rig.pool.verify(token, id, span);
        self.model.intents.insert(token, Intent::Nothing { id });
    }

    /// A step of ending the doubt after a crash.
    pub(super) fn narrow_doubt(&mut self) {
        let token = self.rig.token();
        if self.rig.pool.narrow_doubt(token) {
            self.model.intents.insert(token, Intent::Nothing { id: Id::NONE });
        }
    }

    pub(super) fn grow(&mut self) {
        let nth = self.random.below(self.sizes.len() as u64) as usize;
        if self.sizes[nth] < 20_000 {
            self.sizes[nth] += self.random.below(3000);
        }
        let token = self.rig.token();
        let sizes: Vec<_> = self.sizes.iter().map(|blocks| Blocks(*blocks)).collect();
        self.model.intents.insert(token, Intent::Grow);
        self.rig.pool.grow(token, &sizes);
    }

    pub(super) fn add_disk(&mut self) {
        let adding = self.model.intents.values().any(|intent| matches!(intent, Intent::Add));
        if self.sizes.len() >= 3 || adding {
            return;
        }
        let blocks = 2000 + self.random.below(3000);
        let id = Id(50 + self.sizes.len() as u128);
        self.sizes.push(blocks);
        let token = self.rig.token();
        self.model.intents.insert(token, Intent::Add);
        self.rig.pool.add_disk(token, Member { id, blocks: Blocks(blocks) });
    }

    /// Leaves the pool and comes back: everything is there, nothing is in doubt.
    pub(super) fn export(&mut self) -> Result<(), String> {
        self.segment(0)?;
        let token = self.rig.token();
        self.model.intents.insert(token, Intent::Export);
        self.rig.pool.export(token);
        self.segment(0)?;
        if !self.model.intents.is_empty() {
            return Ok(()); // The power went.
        }
        let doubtful = self.rig.pool.health().doubtful_regions;
        let disks = self.rig.disks.after_crash(&mut self.random);
        self.reopen(disks)?;
        let health = self.rig.pool.health();
        if health.dirty_regions > 0 || health.doubtful_regions > doubtful {
            return Err(format!("an export left {health:?}"));
        }
        Ok(())
    }

    /// A durable block goes bad: it is never read as another one, and repaired from elsewhere.
    pub(super) fn rot(&mut self) -> Result<(), String> {
        self.segment(0)?;
        // After a checkpoint no record is left by which recovery could drop the block.
        self.rig.pool.request_checkpoint();
        self.segment(0)?;
        let idle = self.model.intents.is_empty() && self.rig.pool.is_idle();
        if !idle || self.model.rot.is_some() {
            return Ok(());
        }
        let Some((id, size)) = self.pick_any() else { return Ok(()) };
        let at = self.random.below(size);
        let good = self.model.volumes[&id].cells[at as usize].certain();
        let Some(good) = good.filter(|stamp| *stamp != 0) else { return Ok(()) };
        let bad = self.model.stamp();
        if !self.rig.disks.rot(&stamped(good), &stamped(bad)) {
            return Ok(());
        }
        self.model.rot = Some(Rot { good, bad });
        let exactly = Span::new(Lba(at), Blocks(1)).unwrap();
        let around = Span::between(Lba(at.saturating_sub(2)), Lba((at + 3).min(size))).unwrap();
        let found = self.rig.read(id, around.start().0, around.len().0).err();
        let checksum = IoError::Checksum { span: exactly };
        let is_loose = self.model.volumes[&id].cells.iter().any(Cell::is_loose);
        let is_said = match found {
            // In a region that was dirty at a crash, another block may be unproven before it.
            Some(IoError::Unproven { span }) => span == exactly || is_loose,
            found => found == Some(checksum),
        };
        if !is_said {
            return Err(format!("{id:?} block {at} went bad and {found:?} was said"));
        }
        self.repair();
        Ok(())
    }

    /// Repairs the block that went bad, wherever it is seen now.
    pub(super) fn repair(&mut self) {
        let Some(rot) = self.model.rot else { return };
        let sees = |cell: &Cell| cell.allows(rot.good);
        let seen = self.model.volumes.iter().find_map(|(id, volume)| {
            let there = !volume.uncertain && !volume.busy;
            let certain = |cell: &Cell| cell.certain() == Some(rot.good);
            let at = volume.cells.iter().position(certain).filter(|_| there);
            at.map(|at| (*id, at as u64))
        });
        if let Some((id, at)) = seen {
            let span = Span::new(Lba(at), Blocks(1)).unwrap();
            let token = self.rig.repair(id, span, stamped(rot.good));
            self.model.intents.insert(token, Intent::Repair);
        } else if !self.model.volumes.values().any(|volume| volume.cells.iter().any(sees)) {
            self.model.rot = None;
        }
    }

    /// Makes a repair durable.
    pub(super) fn heal(&mut self) {
        let Some((id, _)) = self.pick_any() else { return };
        let token = self.rig.submit(id, Command::Flush, Vec::new());
        self.model.intents.insert(token, Intent::Healed);
    }

    /// Which blocks are written, and which differ: exactly those, where the model is certain.
    pub(super) fn ask(&mut self) -> Result<(), String> {
        // What is under way would end before the answer.
        self.segment(0)?;
        if !self.model.intents.is_empty() {
            return Ok(()); // The power went.
        }
        let (Some((a, _)), Some((b, _))) = (self.pick_any(), self.pick_any()) else {
            return Ok(());
        };
        let most = 1 + self.random.below(5) as usize;
        let written = self.all(most, |rig, from| rig.ask(QueryKind::Written(a), from, most))?;
        let changed = self.all(most, |rig, from| {
            rig.ask(QueryKind::Changed { older: a, newer: b }, from, most)
        })?;
        let own = self.all(most, |rig, from| rig.ask(QueryKind::Own(a), from, most))?;
        let (left, right) = (&self.model.volumes[&a].cells, &self.model.volumes[&b].cells);
        let inside = |runs: &[(u64, u64)], at: usize| {
            runs.iter().any(|(from, to)| (*from..*to).contains(&(at as u64)))
        };
        for at in 0..left.len().max(right.len()) {
            let stamp = |cells: &[Cell]| cells.get(at).map_or(Some(0), Cell::certain);
            let (one, other) = (stamp(left), stamp(right));
            if at < left.len() && one.is_some_and(|one| inside(&written, at) != (one != 0)) {
                return Err(format!("{a:?} block {at} holds {one:?}; written are {written:?}"));
            }
            let differs = one.zip(other).map(|(one, other)| one != other);
            if differs.is_some_and(|differs| inside(&changed, at) != differs) {
                return Err(format!(
                    "block {at} of {a:?} {one:?} and {b:?} {other:?}: {changed:?}"
                ));
            }
        }
        let blocks: u64 = own.iter().map(|(from, to)| to - from).sum();
        let usage = self.rig.pool.usage_of(a).unwrap();
        if usage.written.0 != blocks * 4096 {
            return Err(format!("{a:?} has {blocks} blocks of its own, not {}", usage.written));
        }
        Ok(())
    }

    /// Asks again and again from the end of the last run.
    fn all(
        &mut self,
        most: usize,
        mut ask: impl FnMut(&mut Rig, Blocks) -> Result<Vec<(u64, u64)>, Refused>,
    ) -> Result<Vec<(u64, u64)>, String> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut from = 0;
        loop {
            let more = ask(&mut self.rig, Blocks(from)).map_err(|refused| format!("{refused}"))?;
            let ordered = more.iter().all(|(first, end)| {
                let good = *first >= from && first < end;
                from = *end;
                good
            });
            if !ordered || more.len() > most {
                return Err(format!("{more:?} after {runs:?}"));
            }
            if more.is_empty() {
                return Ok(runs);
            }
            runs.extend(more);
        }
    }
}
