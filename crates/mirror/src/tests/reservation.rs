//! Reservations of hosts: what was acknowledged is found by every later owner.

use std::format;
use std::string::String;

use model::{HostIdentifier, HostReservations, Registrant, TargetState};

use super::drive::{Drive, Plan, replica};
use super::world::{World, at};
use super::{Broken, live, seeds};
use crate::{CommandId, MirrorRequest};

/// What was asked and acknowledged, by the generation of each state.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// Who asked for which, and with which epoch.
    asked: std::collections::BTreeMap<(usize, CommandId), (u64, u32)>,
    /// The newest that was acknowledged, by epoch.
    acknowledged: std::collections::BTreeMap<u64, u32>,
    /// What each owner found, by epoch.
    found: std::collections::BTreeMap<u64, u32>,
    last: u32,
}

impl Reservations {
    fn check(&self) -> Result<(), String> {
        for (epoch, found) in &self.found {
            let before = self.acknowledged.range(..epoch).map(|(_, generation)| *generation).max();
            if before.is_some_and(|before| before > *found) {
                return Err(format!("epoch {epoch} found {found}, acknowledged was {before:?}"));
            }
        }
        Ok(())
    }
}

impl World {
    /// Hosts change the reservations of the volume.
    pub(super) fn reserve(&mut self, target: usize, token: CommandId) {
        self.reservations.last += 1;
        let generation = self.reservations.last;
        let epoch = self.targets[target].epoch;
        self.reservations.asked.insert((target, token), (epoch, generation));
        let state = state(generation);
        self.targets[target].mirror.keep_reservations(token, state, at(self.now));
        self.drain(target);
    }

    /// Hosts ask about the reservations of the volume.
    fn ask_reservations(&mut self, target: usize, token: CommandId) {
        self.targets[target].mirror.prove_ownership(token, at(self.now));
        self.drain(target);
    }

    /// An order was answered; perhaps it was to keep reservations.
    pub(super) fn reserved(&mut self, target: usize, token: CommandId, fine: bool) {
        let asked = self.reservations.asked.remove(&(target, token));
        if let Some((epoch, generation)) = asked.filter(|_| fine) {
            let newest = self.reservations.acknowledged.entry(epoch).or_default();
            *newest = generation.max(*newest);
        }
        self.check_reservations();
    }

    /// An owner found reservations.
    pub(super) fn found_reservations(&mut self, target: usize) {
        let epoch = self.targets[target].epoch;
        let Some(found) = self.targets[target].mirror.reservations().cloned() else { return };
        self.reservations.found.insert(epoch, found.generation);
        if found != state(found.generation) && found.generation > 0 {
            self.fail(format!("T{target} found {found:?}"));
        }
        self.check_reservations();
    }

    fn check_reservations(&mut self) {
        if let Err(error) = self.reservations.check() {
            self.fail(error);
        }
    }
}

fn state(generation: u32) -> HostReservations {
    let host = HostIdentifier(u128::from(generation).to_be_bytes());
    let registrants = std::vec![Registrant { host, key: generation.into() }];
    HostReservations { generation, persist: false, registrants, held: None }
}

fn run(seed: u64, broken: Broken) -> Result<(), String> {
    live(Plan { seed, broken, reserves: true, ..Plan::default() })
}

#[test]
fn every_owner_finds_the_reservations_that_were_acknowledged() {
    super::check_all(run);
}

#[test]
fn reservations_on_some_copies_only_are_noticed() {
    let noticed = (0..seeds(400)).find(|seed| run(*seed, Broken::ReservationsOnSome).is_err());
    assert!(noticed.is_some(), "nobody noticed");
    std::println!("noticed by seed {noticed:?}");
}

/// The answer to a state, if it has come.
fn answer(drive: &Drive, token: CommandId) -> Option<&Result<(), String>> {
    drive.world.targets.last().unwrap().answers.get(&token)
}

#[test]
fn reservations_are_acknowledged_when_all_copies_in_sync_have_them() {
    let mut drive = Drive::quiet(2);
    drive.world.reserve(0, CommandId(1 << 40));
    drive.until(|drive| answer(drive, CommandId(1 << 40)) == Some(&Ok(())));
    for disk in 0..2 {
        let note = drive.world.disks[disk].note.clone().unwrap();
        assert_eq!(*note.reservations, state(1));
    }
    // While one is away and the store cannot be told, nothing is acknowledged.
    drive.world.store_up = false;
    drive.world.disks[1].up = false;
    drive.world.reserve(0, CommandId(1 << 41));
    drive.pass(1000);
    assert_eq!(answer(&drive, CommandId(1 << 41)), None);
    drive.world.store_up = true;
    drive.until(|drive| answer(drive, CommandId(1 << 41)) == Some(&Ok(())));
    assert!(!drive.world.record.set().in_sync().contains(&replica(1)));
    // Whoever waits longer than hosts may is told that it is not kept.
    drive.world.disks[0].up = false;
    drive.world.reserve(0, CommandId(1 << 42));
    drive.until(|drive| answer(drive, CommandId(1 << 42)).is_some_and(Result::is_err));
}

#[test]
fn the_next_owner_finds_them_before_it_serves() {
    let mut drive = Drive::quiet(2);
    drive.world.reserve(0, CommandId(1 << 40));
    drive.until(|drive| answer(drive, CommandId(1 << 40)) == Some(&Ok(())));
    drive.crash_target(0);
    let (config, size) = (drive.config, block::Blocks(drive.size));
    drive.world.take_over(1, config, size);
    assert_eq!(drive.mirror().readiness(), crate::Readiness::Opening);
    drive.until_open();
    assert_eq!(drive.mirror().readiness(), crate::Readiness::Ready);
    assert_eq!(drive.world.reservations.found.get(&3), Some(&1));
    // An ordered end and a new beginning change nothing.
    drive.request(MirrorRequest::Stop).unwrap();
    assert_eq!(drive.mirror().readiness(), crate::Readiness::Down);
    drive.world.take_over(0, config, size);
    drive.until_open();
    assert_eq!(drive.world.reservations.found.get(&4), Some(&1));
}

#[test]
fn a_former_owner_that_was_stopped_says_nothing_of_reservations() {
    stopped_owner(Broken::Nothing);
}

/// The node of a target stands still while another one takes the volume and its hosts change their
/// reservations. One asks the former target meanwhile.
pub(super) fn stopped_owner(broken: Broken) {
    let mut drive = Drive::quiet_but(2, broken);
    drive.world.ask_reservations(0, CommandId(1 << 40));
    drive.until(|drive| drive.world.targets[0].answers.get(&CommandId(1 << 40)) == Some(&Ok(())));
    drive.world.pause(0, 5000, false);
    drive.take_over(1);
    drive.until(|drive| drive.mirror().state() == TargetState::Degraded);
    drive.world.reserve(1, CommandId(1 << 41));
    drive.until(|drive| answer(drive, CommandId(1 << 41)) == Some(&Ok(())));
    drive.world.slow = Some(1);
    drive.world.ask_reservations(0, CommandId(1 << 42));
    drive.until(|drive| drive.world.targets[0].answers.contains_key(&CommandId(1 << 42)));
    let said = &drive.world.targets[0].answers[&CommandId(1 << 42)];
    assert!(said.is_err(), "a former owner answered");
}

#[test]
fn an_idle_owner_proves_itself_before_it_answers() {
    let mut drive = Drive::quiet(2);
    drive.pass(20_000);
    let asked = drive.world.asked;
    drive.world.ask_reservations(0, CommandId(1 << 40));
    drive.until(|drive| answer(drive, CommandId(1 << 40)) == Some(&Ok(())));
    assert_eq!(drive.world.asked, asked + 2, "one proof of each copy");
    // Within the lease nobody is asked again.
    drive.world.ask_reservations(0, CommandId(1 << 41));
    assert_eq!(answer(&drive, CommandId(1 << 41)), Some(&Ok(())));
    assert_eq!(drive.world.asked, asked + 2);
}
