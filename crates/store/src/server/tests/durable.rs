//! Nothing is served that a later loss of power takes back: processes die, power is cut and syncs
//! fail, any number of times in any order.

use std::env;

use crate::server::{
    disk::LoadError,
    journal::{Damage, NAME},
    status::Refusal,
};

use super::{
    crash::{Step, Store},
    crashdisk::{CrashDisk, Dice, Syncs},
};

const KEYS: [&str; 3] = ["a", "b", "c"];
/// Lives of a process in one history.
const LIVES: usize = 7;

fn any_step(dice: &mut Dice, revision: i64) -> Step {
    let key = KEYS[usize::try_from(dice.roll(3)).unwrap()];
    match dice.roll(12) {
        0..=3 => Step::Put(key, u32::try_from(dice.roll(90)).unwrap() + 10),
        4..=6 => Step::Pair(u32::try_from(dice.roll(90)).unwrap()),
        7 => Step::Delete(key),
        8 => Step::Grant(i64::try_from(dice.roll(4)).unwrap() + 1),
        9 => Step::Revoke(i64::try_from(dice.roll(4)).unwrap() + 1),
        // To 1 changes nothing that a client sees.
        10 => Step::Compact((revision - 2).max(2)),
        _ => Step::Rewrite,
    }
}

/// A store with its disk, beside one on a disk that never fails and is told the same.
struct History {
    dice: Dice,
    disk: CrashDisk,
    calm: Store,
    /// A step that was neither acknowledged nor refused: it may be there or not, until it is seen.
    open: Option<Step>,
}

impl History {
    fn new(seed: u64) -> Self {
        let calm = Store::open(&CrashDisk::new()).unwrap();
        Self { dice: Dice::new(seed), disk: CrashDisk::new(), calm, open: None }
    }

    /// What is served now is what was served before, and the open step or not.
    fn see(&mut self, store: &Store) {
        let (seen, open) = (store.view(), self.open.take());
        if seen != self.calm.view()
            && let Some(step) = open
        {
            let _ = self.calm.step(step);
        }
        assert_eq!(seen, self.calm.view(), "after {open:?}");
    }

    /// One life of a process: it opens the store and works until it dies or has done enough.
    fn live(&mut self) {
        match Store::open(&self.disk) {
            Ok(store) => {
                self.see(&store);
                self.work(&store);
            }
            Err(LoadError::Damage(damage)) => panic!("nothing was damaged: {damage:?}"),
            Err(_) => {}
        }
    }

    fn work(&mut self, store: &Store) {
        for _ in 0..self.dice.roll(7) {
            let step = any_step(&mut self.dice, store.shared.published());
            match store.step(step) {
                Err(Refusal::Broken(_) | Refusal::Stopped) => {
                    let (seen, served) = (store.view(), self.calm.view());
                    assert_eq!(seen.keys, served.keys, "what failed is not seen");
                    self.open = Some(step);
                    return;
                }
                done => assert_eq!(done.is_ok(), self.calm.step(step).is_ok(), "{step:?}"),
            }
        }
    }

    /// Chooses how the next life goes wrong, if at all.
    fn misfortune(&mut self) {
        if self.dice.roll(3) > 0 {
            let operation = usize::try_from(self.dice.roll(30)).unwrap();
            self.disk = self.disk.copy().dies_at(operation);
        }
        if self.dice.roll(3) == 0 {
            let after = usize::try_from(self.dice.roll(6)).unwrap();
            self.disk.set_syncs(Syncs::FailAfter(after));
        }
    }

    /// What the machine does between two lives.
    fn between(&mut self) {
        self.disk = match self.dice.roll(3) {
            0 => self.disk.after_power_cut(&mut self.dice),
            _ => self.disk.after_kill(),
        };
        if self.dice.roll(4) == 0 {
            self.disk.lose_writeback(&mut self.dice);
        }
        if self.dice.roll(4) == 0 {
            self.disk.evict(&mut self.dice);
        }
    }
}

#[test]
fn what_was_served_survives_deaths_power_cuts_and_failed_syncs_in_any_order() {
    let seeds = env::var("HOLDFAST_SEEDS").map_or(400, |seeds| seeds.parse().unwrap());
    let first: u64 = env::var("HOLDFAST_FIRST_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + seeds {
        let mut history = History::new(seed);
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..LIVES {
                history.misfortune();
                history.live();
                history.between();
            }
            history.live();
            history.disk = history.disk.after_power_cut(&mut history.dice);
            let store = Store::open(&history.disk).expect("a sound disk is opened");
            history.see(&store);
        }));
        assert!(told.is_ok(), "HOLDFAST_FIRST_SEED={seed} HOLDFAST_SEEDS=1 shows it alone");
    }
}

/// A disk on which a process died at an operation, with all that it wrote in the page cache.
fn killed_at(operation: usize) -> CrashDisk {
    let disk = CrashDisk::new();
    let store = Store::open(&disk).unwrap();
    store.step(Step::Put("a", 10)).unwrap();
    let disk = disk.dies_at(operation);
    store.step(Step::Put("a", 11)).unwrap_err();
    disk.after_kill()
}

/// Where the second put of [`killed_at`] dies between its write and its sync.
const WRITTEN: usize = 1;

/// Opens the store, cuts the power in many ways, and wants the same again.
fn check_that_it_stays(disk: &CrashDisk) {
    let store = Store::open(disk).unwrap();
    let served = store.view();
    for seed in 0..20 {
        let after = Store::open(&disk.after_power_cut(&mut Dice::new(seed)));
        let after = after.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
        assert_eq!(after.view(), served, "seed {seed}: what was served is gone");
    }
}

#[test]
fn a_write_that_was_never_synced_is_made_durable_before_it_is_served() {
    let disk = killed_at(WRITTEN);
    assert_eq!(Store::open(&disk.copy()).unwrap().shared.published(), 3, "it is in the cache");
    check_that_it_stays(&disk);
}

#[test]
fn pages_that_a_failed_sync_called_clean_are_written_again() {
    let disk = CrashDisk::new();
    let store = Store::open(&disk).unwrap();
    store.step(Step::Put("a", 10)).unwrap();
    disk.set_syncs(Syncs::Fail);
    store.step(Step::Put("a", 11)).unwrap_err();
    drop(store);
    disk.set_syncs(Syncs::Work);
    check_that_it_stays(&disk.after_kill());
}

#[test]
fn a_sync_that_fails_at_the_start_serves_nothing() {
    for failing in 0..2 {
        let disk = killed_at(WRITTEN);
        disk.set_syncs(Syncs::FailAfter(failing));
        let opened = Store::open(&disk);
        if disk.synced() > failing {
            assert!(matches!(opened, Err(LoadError::Sync(_))), "sync {failing}");
        }
        drop(opened);
        // The next process sees the same pages, and must not take them for durable.
        check_that_it_stays(&disk.after_kill());
    }
}

#[test]
fn a_rename_that_was_never_synced_is_made_durable_before_it_is_served() {
    let calm = CrashDisk::new();
    let store = Store::open(&calm).unwrap();
    store.step(Step::Put("a", 10)).unwrap();
    let before = calm.operations();
    store.step(Step::Rewrite).unwrap();
    let operations = calm.operations() - before;
    drop(store);
    for operation in 0..operations {
        let disk = CrashDisk::new();
        let store = Store::open(&disk).unwrap();
        store.step(Step::Put("a", 10)).unwrap();
        let disk = disk.dies_at(operation);
        let _ = store.step(Step::Rewrite);
        drop(store);
        let disk = disk.after_kill();
        let store = Store::open(&disk).unwrap();
        store.step(Step::Put("a", 11)).unwrap();
        let served = store.view();
        for seed in 0..20 {
            let after = Store::open(&disk.after_power_cut(&mut Dice::new(seed))).unwrap();
            assert_eq!(after.view(), served, "died at {operation}, seed {seed}");
        }
    }
}

#[test]
fn a_copy_put_in_place_by_hand_is_made_durable_before_it_is_served() {
    for failing in 0..4 {
        let disk = CrashDisk::new();
        let store = Store::open(&disk).unwrap();
        for value in 10..20 {
            store.step(Step::Put("a", value)).unwrap();
        }
        drop(store);
        disk.copy_by_hand(NAME);
        disk.set_syncs(Syncs::FailAfter(failing));
        drop(Store::open(&disk));
        check_that_it_stays(&disk.after_kill());
    }
}

#[test]
fn a_hole_in_the_journal_is_told_from_rot() {
    let disk = CrashDisk::new();
    let store = Store::open(&disk).unwrap();
    store.step(Step::Put("a", 10)).unwrap();
    let hole = store.shared.disk_bytes();
    store.step(Step::Put("a", 11)).unwrap();
    let end = store.shared.disk_bytes();
    store.step(Step::Put("a", 12)).unwrap();
    let range = usize::try_from(hole).unwrap()..usize::try_from(end).unwrap();
    disk.wipe(NAME, range);
    let error = Store::open(&disk.copy()).err().unwrap();
    assert!(matches!(error, LoadError::Damage(Damage::Lost(at)) if at == hole), "{error:?}");
    disk.flip(NAME, usize::try_from(hole).unwrap(), 0);
    let error = Store::open(&disk.copy()).err().unwrap();
    assert!(matches!(error, LoadError::Damage(Damage::At(at)) if at == hole), "{error:?}");
}
