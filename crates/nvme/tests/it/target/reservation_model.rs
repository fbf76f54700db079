//! The reservation machine against a model that knows nothing of it.

use std::collections::{BTreeMap, BTreeSet};

use nvme::target::{Access, AcquireKeys, Reservations};
use nvme::wire::{AcquireAction, RegisterAction, ReleaseAction, ReservationType, Status};
use proptest::prelude::*;

/// The rules once more, as sets and sentences, for comparison.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: BTreeMap<u8, u64>,
    held: Option<(u8, BTreeSet<u8>)>,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Register { host: u8, action: u8, current: Option<u64>, new: u64 },
    Acquire { host: u8, action: u8, rtype: u8, key: u64, victim: u64 },
    Release { host: u8, action: u8, rtype: u8, key: u64 },
}

const OK: Result<(), Status> = Ok(());

impl Model {
    fn holders(&self) -> BTreeSet<u8> {
        match &self.held {
            Some((5 | 6, _)) => self.keys.keys().copied().collect(),
            Some((_, one)) => one.clone(),
            None => BTreeSet::new(),
        }
    }

    fn may(&self, host: u8, write: bool) -> bool {
        let is_registered = self.keys.contains_key(&host);
        match self.held.as_ref().map(|(rtype, _)| *rtype) {
            None => true,
            Some(1 | 3 | 5) if !write => true,
            Some(1 | 2) => self.holders().contains(&host),
            Some(_) => is_registered,
        }
    }

    fn apply(&mut self, op: Op) -> Result<(), Status> {
        let result = self.attempt(op);
        // A reservation ends when nobody is left to hold it.
        if self.held.is_some() && self.holders().is_empty() {
            self.held = None;
        }
        result
    }

    fn attempt(&mut self, op: Op) -> Result<(), Status> {
        let conflict = Err(Status::RESERVATION_CONFLICT);
        match op {
            Op::Register { host, action, current, new } => {
                let have = self.keys.get(&host).copied();
                match (action, have) {
                    (0 | 2, _) if new == 0 => return Err(Status::INVALID_FIELD),
                    (0, Some(key)) if key != new => return conflict,
                    (1, None) => return conflict,
                    (2, None) if current.is_some() => return conflict,
                    (1 | 2, Some(key)) if current.is_some_and(|given| given != key) => {
                        return conflict;
                    }
                    (1, _) => {
                        self.keys.remove(&host);
                        self.unhold(host);
                    }
                    _ => {
                        self.keys.insert(host, new);
                    }
                }
                OK
            }
            Op::Acquire { host, key, .. } | Op::Release { host, key, .. }
                if self.keys.get(&host) != Some(&key) =>
            {
                conflict
            }
            Op::Acquire { host, action: 0, rtype, .. } => match &self.held {
                None => {
                    self.held = Some((rtype, [host].into()));
                    OK
                }
                Some((held, _)) if *held == rtype && self.holders().contains(&host) => OK,
                Some(_) => conflict,
            },
            Op::Acquire { host, rtype, victim, .. } => self.preempt(host, rtype, victim),
            Op::Release { action: 1, .. } => {
                *self = Model::default();
                OK
            }
            Op::Release { host, rtype, .. } => {
                if self.holders().contains(&host) {
                    let held = self.held.take();
                    if held.as_ref().is_some_and(|(held, _)| *held != rtype) {
                        self.held = held;
                        return Err(Status::INVALID_FIELD);
                    }
                }
                OK
            }
        }
    }

    fn preempt(&mut self, host: u8, rtype: u8, victim: u64) -> Result<(), Status> {
        let victims: BTreeSet<u8> =
            self.keys.iter().filter(|(_, key)| **key == victim).map(|(host, _)| *host).collect();
        let all_hold = matches!(self.held, Some((5 | 6, _)));
        let hits_holder = !all_hold && self.holders().iter().any(|one| victims.contains(one));
        match (victim, all_hold) {
            (0, false) => return Err(Status::INVALID_FIELD),
            (0, true) => self.keys.retain(|one, _| *one == host),
            _ if victims.is_empty() => return Err(Status::RESERVATION_CONFLICT),
            _ => self.keys.retain(|one, _| *one == host || !victims.contains(one)),
        }
        if hits_holder || victim == 0 {
            self.held = Some((rtype, [host].into()));
        }
        OK
    }

    fn unhold(&mut self, host: u8) {
        if let Some((1..=4, holders)) = &mut self.held {
            holders.remove(&host);
        }
    }
}

fn id(host: u8) -> [u8; 16] {
    [host; 16]
}

fn apply(state: &mut Reservations, op: Op) -> Result<BTreeSet<u8>, Status> {
    let change = match op {
        Op::Register { host, action, current, new } => {
            let action = RegisterAction::from_code(action).unwrap();
            state.register(id(host), action, current, new)
        }
        Op::Acquire { host, action, rtype, key, victim } => state.acquire(
            id(host),
            AcquireAction::from_code(action).unwrap(),
            ReservationType::from_code(rtype).unwrap(),
            AcquireKeys { current: key, preempt: victim },
        ),
        Op::Release { host, action, rtype, key } => {
            state.release(id(host), ReleaseAction::from_code(action).unwrap(), rtype, key)
        }
    }?;
    Ok(change.abort.into_iter().map(|host| host[0]).collect())
}

fn ops() -> impl Strategy<Value = Op> {
    let key = || 0u64..4;
    prop_oneof![
        3 => (1u8..5, 0u8..3, prop::option::of(key()), key())
            .prop_map(|(host, action, current, new)| Op::Register { host, action, current, new }),
        4 => (1u8..5, 0u8..3, 1u8..7, key(), key()).prop_map(
            |(host, action, rtype, key, victim)| Op::Acquire { host, action, rtype, key, victim }
        ),
        2 => (1u8..5, 0u8..2, 1u8..7, key())
            .prop_map(|(host, action, rtype, key)| Op::Release { host, action, rtype, key }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_machine_agrees_with_the_model(all in prop::collection::vec(ops(), 1..40)) {
        let mut state = Reservations::default();
        let mut model = Model::default();
        for op in all {
            let before = (state.clone(), model.clone());
            let ours = apply(&mut state, op);
            let theirs = model.apply(op);
            prop_assert_eq!(ours.clone().map(|_| ()), theirs, "{:?} on {:?}", op, before.1);
            if ours.is_err() {
                prop_assert_eq!(&state, &before.0, "a refused command changes nothing");
            }
            let keys: BTreeMap<u8, u64> =
                state.registrants.iter().map(|one| (one.host[0], one.key)).collect();
            prop_assert_eq!(&keys, &model.keys, "{:?}", op);
            let rtype = state.reservation.map(|held| held.kind.code());
            prop_assert_eq!(rtype, model.held.as_ref().map(|(rtype, _)| *rtype), "{:?}", op);
            for host in 0..5 {
                prop_assert_eq!(state.holds(&id(host)), model.holders().contains(&host));
                for (access, write) in [(Access::Read, false), (Access::Write, true)] {
                    prop_assert_eq!(state.permits(&id(host), access), model.may(host, write));
                }
            }
            // Exactly those who lost their registration to a preempt-and-abort are aborted.
            let is_abort = matches!(op, Op::Acquire { action: 2, .. });
            let lost: BTreeSet<u8> =
                before.1.keys.keys().filter(|host| !keys.contains_key(host)).copied().collect();
            let aborted = ours.unwrap_or_default();
            prop_assert_eq!(aborted, if is_abort { lost } else { BTreeSet::new() });
            let changed = before.1.keys != model.keys;
            prop_assert!(!changed || state.generation != before.0.generation);
        }
    }
}
