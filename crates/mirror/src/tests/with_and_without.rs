//! What happens seldom, each kind in histories of its own: nodes that stand still, a store that
//! goes back, a replica that is rolled back.

use std::boxed::Box;
use std::format;
use std::string::String;
use std::vec::Vec;

use block::{Blocks, Instant};
use model::{
    Epoch, FaultReason, NodeName, ReplicaLabel, StopCause, TargetId, TargetRecord, TargetState,
};
use uuid::Uuid;

use super::drive::Drive;
use super::world::{DETECT, Happening, STORE, TIMEOUT, World, at};
use crate::{AttachFault, Event, ReplicaInfo, Session};

/// What may happen beside the usual faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Also {
    #[default]
    Nothing,
    /// Nodes stand still for any time while clocks go on, attachments stall between their steps,
    /// the network loses what goes in one direction, and copies are given up between owners.
    Pauses,
    /// The clocks of nodes that stand still do so, too.
    StandingClocks,
    /// The store forgets its newest records.
    StoreBack,
    /// A replica is what it was before.
    Rollback,
}

impl World {
    /// What concerns a node that stands still happens when it goes on.
    pub(super) fn unless_paused(&mut self, happening: Happening) -> Option<Happening> {
        if self.paused.is_empty() {
            return Some(happening);
        }
        let node = match &happening {
            Happening::Deliver { target, .. } | Happening::Submit { target, .. } => {
                self.targets[*target].node
            }
            Happening::Attach { disk, .. }
            | Happening::Describe { disk, .. }
            | Happening::Execute { disk, .. } => *disk,
            Happening::Store { .. } | Happening::Restart { .. } => return Some(happening),
        };
        let Some(until) = self.paused.get(&node).copied() else { return Some(happening) };
        if let Happening::Execute { target, io, .. } = happening
            && self.targets[target].node != node
        {
            // Whoever waits for an answer does not wait for ever.
            let result = Err(block::IoError::TimedOut);
            self.deliver_later(TIMEOUT, target, Event::Ended { io, result });
        }
        // Whatever came meanwhile is seen in any order.
        let delay = until.saturating_sub(self.now) + self.random.below(DETECT);
        self.after(delay, happening);
        None
    }

    /// A replica that was fenced says what it is.
    pub(super) fn describe(&mut self, target: usize, disk: usize, session: Session, epoch: Epoch) {
        if !self.targets[target].alive {
            return;
        }
        let found = &self.disks[disk];
        let result = if found.owner == Some((epoch, target, session)) && self.hears(target, disk) {
            let (size, incarnation) = (Blocks(found.view().len() as u64), found.incarnation);
            Ok(Box::new(ReplicaInfo { size, incarnation, note: found.note.clone() }))
        } else {
            Err(AttachFault::Failed(FaultReason::CannotOpen))
        };
        let delay = self.delay(disk);
        self.deliver_later(delay, target, Event::Attached { session, result });
    }

    /// Whether answers come back.
    pub(super) fn hears(&self, target: usize, other: usize) -> bool {
        let node = self.targets[target].node;
        node == other || !self.cut.contains(&(other, node))
    }

    /// A node stands still.
    pub(super) fn pause(&mut self, node: usize, time: u64, with_clock: bool) {
        self.say(format_args!("node {node} stands still for {time}"));
        let until = self.now + time;
        self.paused.insert(node, until);
        if with_clock {
            self.standing.insert(node, self.now);
        }
    }

    /// Nodes whose time has come go on, from the time that their clocks show.
    pub(super) fn go_on(&mut self, now: u64) {
        let over = self.paused.extract_if(.., |_, until| *until <= now);
        for (node, until) in over {
            if let Some(since) = self.standing.remove(&node) {
                *self.stood.entry(node).or_default() += until - since;
            }
        }
    }

    /// The time by the clock of a node.
    pub(super) fn clock_of(&self, node: usize) -> Instant {
        let now = self.standing.get(&node).copied().unwrap_or(self.now);
        at(now - self.stood.get(&node).copied().unwrap_or(0))
    }
}

impl Drive {
    /// Lets something of its kind happen now and then; whether it did.
    pub(super) fn also_happens(&mut self) -> Result<bool, String> {
        if self.also == Also::Nothing || !self.world.random.one_in(6) {
            return Ok(false);
        }
        match self.also {
            Also::Nothing => {}
            Also::Pauses | Also::StandingClocks => self.stand_still(),
            Also::StoreBack => self.store_back()?,
            Also::Rollback => self.rollback()?,
        }
        Ok(true)
    }

    fn stand_still(&mut self) {
        let node = self.world.random.below(self.copies as u64) as usize;
        if self.world.random.one_in(3) {
            let other = [(node + 1) % self.copies, STORE][self.world.random.below(2) as usize];
            self.world.say(format_args!("nothing gets from {node} to {other}"));
            self.world.cut.insert((node, other));
            return self.lose_sessions(|from, disk| from == node && disk == other);
        }
        if self.world.paused.contains_key(&node) {
            return;
        }
        let most = [100, 1000, 4000][self.world.random.below(3) as usize];
        let time = 1 + self.world.random.below(most);
        self.world.pause(node, time, self.also == Also::StandingClocks);
        if time > DETECT {
            self.lose_sessions(|from, disk| disk == node && from != node);
        }
        // Hosts ask a target that does not answer nothing but time.
        if self.world.random.one_in(2) {
            let others = (0..self.copies).filter(|other| *other != node).collect::<Vec<_>>();
            let other = self.world.random.pick(&others).unwrap_or(node);
            self.fail_over(other);
        }
    }

    /// The store holds what it held before. Whoever runs a cluster then looks at all copies before
    /// a target is made: all of them can be reached.
    fn store_back(&mut self) -> Result<(), String> {
        let held = self.world.records.len() as u64;
        let back = self.world.random.below(held.min(6)) + 1;
        let record = self.world.records[(held - back) as usize].clone();
        self.world.say(format_args!("the store goes back to {record:?}"));
        self.world.record = record;
        if self.world.random.one_in(2) {
            self.world.targets.iter_mut().for_each(|target| target.alive = false);
        }
        let wait = self.world.random.below(300);
        self.run_until(wait, |_| false)?;
        self.settle()
    }

    /// A new target opens in peace, or says why it does not; then somebody decides.
    fn settle(&mut self) -> Result<(), String> {
        let trouble = core::mem::take(&mut self.world.trouble);
        self.world.cut.clear();
        self.world.store_up = true;
        self.world.disks.iter_mut().for_each(|disk| disk.up = true);
        for _ in 0..4 {
            let node = self.world.random.below(self.copies as u64) as usize;
            self.world.take_over(node, self.config, Blocks(self.size));
            let newest = self.world.targets.len() - 1;
            let state = |drive: &Drive| drive.world.targets[newest].mirror.state();
            self.run_until(5000, |drive| {
                let state = state(drive);
                state.serves() || matches!(state, TargetState::Shutdown { .. })
            })?;
            match state(self) {
                TargetState::Shutdown { cause: StopCause::LabelConflict } => self.recover(),
                TargetState::Shutdown { .. } => {}
                _ => {
                    self.world.trouble = trouble;
                    return Ok(());
                }
            }
        }
        Err(format!("nobody serves after the store went back: {:?}", self.world.record))
    }

    /// The newest label is right.
    fn recover(&mut self) {
        self.world.targets.iter_mut().for_each(|target| target.alive = false);
        let notes = self.world.disks.iter().filter_map(|disk| disk.note.as_ref());
        let labels = notes.map(|note| note.label.clone());
        let newest: ReplicaLabel =
            labels.max_by_key(ReplicaLabel::stamp).expect("a copy in conflict has one");
        let seen = self.world.disks.iter().filter_map(|disk| disk.epoch).max();
        let epoch: Epoch = seen.map_or(newest.epoch, |seen| seen.max(newest.epoch)).next();
        let name: NodeName = "node-0".parse().unwrap();
        let id = TargetId::new(Uuid::from_u128(0x9000 + self.world.records.len() as u128)).unwrap();
        let record = TargetRecord::adopted(&newest, (id, epoch), name);
        self.world.say(format_args!("recovered as {record:?}"));
        self.world.set_record(record);
    }

    /// One of several copies in sync is what it was at an earlier moment, and is started so: before
    /// a note that another one knows it to have had. That one can be reached before anything else
    /// goes wrong.
    fn rollback(&mut self) -> Result<(), String> {
        let disk = self.world.random.below(self.copies as u64) as usize;
        let members = self.world.record.set().in_sync().clone();
        let others = members.iter().map(|replica| self.world.disk_of(*replica));
        let others = others.filter(|other| *other != disk);
        let notes = others.filter_map(|other| self.world.disks[other].note.as_ref());
        let known = notes.filter_map(|note| note.settled).max();
        let is_known = self.world.disks[disk].was_saved_before(known);
        if !is_known || self.world.random.one_in(2) {
            self.world.say(format_args!("disk {disk} is saved"));
            self.world.disks[disk].save();
            return Ok(());
        }
        self.crash_disk(disk);
        self.world.say(format_args!("disk {disk} is what it was before"));
        self.world.disks[disk].roll_back();
        if self.world.random.one_in(2) {
            self.world.targets.iter_mut().for_each(|target| target.alive = false);
        }
        let wait = self.world.random.below(300);
        self.run_until(wait, |_| false)?;
        self.settle()
    }
}
