//! The same world driven by hand, for tests of one rule.

use std::string::String;
use std::vec::Vec;

use block::{Blocks, Command, Completion};
use model::{ChildState, ReplicaId, TargetState};

use super::Broken;
use super::drive::{Drive, Plan};
use crate::{CommandId, MirrorRequest};

impl Drive {
    /// A volume without trouble, open on node 0.
    pub(super) fn quiet(copies: usize) -> Drive {
        Drive::quiet_but(copies, Broken::Nothing)
    }

    /// The same, with a broken rule.
    pub(super) fn quiet_but(copies: usize, broken: Broken) -> Drive {
        let plan = |seed| Plan { seed, broken, ..Plan::default() };
        let mut drive = (0..99)
            .map(|seed| Drive::new(plan(seed)))
            .find(|drive| drive.copies == copies)
            .unwrap();
        drive.config.verify = false;
        drive.take_over(0);
        drive.until_open();
        drive
    }

    pub(super) fn mirror(&self) -> &crate::Mirror {
        &self.world.targets[self.world.targets.len() - 1].mirror
    }

    pub(super) fn take_over(&mut self, node: usize) {
        self.world.take_over(node, self.config, Blocks(self.size));
    }

    pub(super) fn pass(&mut self, millis: u64) {
        self.run_until(millis, |_| false).unwrap();
    }

    pub(super) fn until(&mut self, done: impl Fn(&Drive) -> bool) {
        assert!(self.run_until(60_000, done).unwrap(), "{:?}", self.mirror().children());
    }

    pub(super) fn until_open(&mut self) {
        self.until(|drive| drive.mirror().state() == TargetState::Open);
    }

    pub(super) fn begin_on(&mut self, target: usize, command: Command) -> CommandId {
        self.submit(target, command)
    }

    pub(super) fn begin(&mut self, command: Command) -> CommandId {
        self.submit(self.world.targets.len() - 1, command)
    }

    /// Waits for the end of a command.
    pub(super) fn end_on(&mut self, target: usize, token: CommandId) -> Completion {
        self.until(|drive| drive.world.targets[target].ended.contains_key(&token));
        let (result, data) = self.world.targets[target].ended.remove(&token).unwrap();
        self.last_read = data;
        result
    }

    pub(super) fn end(&mut self, token: CommandId) -> Completion {
        self.end_on(self.world.targets.len() - 1, token)
    }

    pub(super) fn ask(&mut self, command: Command) -> Completion {
        let token = self.begin(command);
        self.end(token)
    }

    pub(super) fn request(&mut self, request: MirrorRequest) -> Result<(), String> {
        let target = self.world.targets.len() - 1;
        let token = self.give(target, request);
        self.until(|drive| drive.world.targets[target].answers.contains_key(&token));
        self.world.targets[target].answers.remove(&token).unwrap()
    }

    /// What became of a child, one after the other.
    pub(super) fn changes(&self, replica: ReplicaId) -> Vec<ChildState> {
        let of_it = |(of, state): &(ReplicaId, ChildState)| (*of == replica).then_some(*state);
        self.world
            .targets
            .iter()
            .flat_map(|target| target.changes.iter().filter_map(of_it))
            .collect()
    }
}
