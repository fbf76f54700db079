//! Whether a concurrent history could have happened one step at a time.
//!
//! The model is a register for each key: read, write, compare-and-swap. Keys do not influence each
//! other, so each is checked alone. A call whose outcome is unknown may have taken effect at any
//! moment after it was made, or never.
//!
//! Not here: what the store does besides (revisions, leases, watches); the conformance suite does
//! that.

mod search;
mod workload;

use std::collections::BTreeMap;

pub use workload::{Workload, run};

/// What a call wants of a register. Values are numbers, each written once at most, so that a read
/// tells which write it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the value.
    Read,
    /// Set the value.
    Write(u64),
    /// Set the value if it is the expected one; `None` expects no value.
    Swap {
        /// The expected value.
        expect: Option<u64>,
        /// The value to set.
        to: u64,
    },
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value read.
    Read(Option<u64>),
    /// Written.
    Written,
    /// Whether the value was the expected one.
    Swapped(bool),
    /// No answer.
    Unknown,
}

/// One call, from when it was made to when it was answered; times are of one counter that all
/// clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which register.
    pub key: u32,
    /// What was wanted.
    pub action: Action,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was made.
    pub made: u64,
    /// When it was answered.
    pub answered: u64,
}

/// A history that cannot have happened one step at a time.
#[derive(Debug, thiserror::Error)]
#[error("key {key}: no order of these calls explains their outcomes:\n{calls:#?}")]
pub struct NotLinear {
    /// The register.
    pub key: u32,
    /// Its calls, by the time they were made.
    pub calls: Vec<Call>,
}

/// Checks a history that began with no register having a value.
pub fn check(history: &[Call]) -> Result<(), NotLinear> {
    let mut keys: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
    for call in history {
        keys.entry(call.key).or_default().push(*call);
    }
    for (key, mut calls) in keys {
        calls.sort_by_key(|call| call.made);
        if !search::linear(&calls) {
            return Err(NotLinear { key, calls });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(made: u64, answered: u64, action: Action, outcome: Outcome) -> Call {
        Call { key: 0, action, outcome, made, answered }
    }

    fn write(made: u64, answered: u64, value: u64) -> Call {
        call(made, answered, Action::Write(value), Outcome::Written)
    }

    fn read(made: u64, answered: u64, value: Option<u64>) -> Call {
        call(made, answered, Action::Read, Outcome::Read(value))
    }

    fn swap(made: u64, answered: u64, (expect, to): (Option<u64>, u64), done: bool) -> Call {
        call(made, answered, Action::Swap { expect, to }, Outcome::Swapped(done))
    }

    fn lost(made: u64, value: u64) -> Call {
        call(made, made + 1, Action::Write(value), Outcome::Unknown)
    }

    fn good(history: &[Call]) {
        check(history).unwrap();
    }

    fn bad(history: &[Call]) {
        check(history).unwrap_err();
    }

    #[test]
    fn calls_one_after_the_other() {
        good(&[read(0, 1, None), write(2, 3, 7), read(4, 5, Some(7))]);
        bad(&[write(0, 1, 7), read(2, 3, None)]);
        bad(&[read(0, 1, Some(7)), write(2, 3, 7)]);
    }

    #[test]
    fn calls_at_the_same_time_may_come_in_any_order() {
        good(&[write(0, 9, 7), read(1, 2, None), read(3, 4, Some(7))]);
        good(&[write(0, 9, 7), write(1, 8, 8), read(10, 11, Some(7))]);
        bad(&[write(0, 9, 7), read(1, 2, Some(7)), read(3, 4, None)]);
    }

    #[test]
    fn one_value_is_swapped_once() {
        let base = write(0, 1, 1);
        good(&[base, swap(2, 9, (Some(1), 2), true), swap(3, 8, (Some(1), 3), false)]);
        bad(&[base, swap(2, 9, (Some(1), 2), true), swap(3, 8, (Some(1), 3), true)]);
        bad(&[base, swap(2, 3, (Some(1), 2), false)]);
        good(&[swap(0, 1, (None, 5), true), read(2, 3, Some(5))]);
    }

    #[test]
    fn a_call_without_an_answer_happened_or_not_but_not_both() {
        good(&[lost(0, 7), read(2, 3, None)]);
        good(&[lost(0, 7), read(2, 3, Some(7))]);
        good(&[lost(0, 7), read(2, 3, None), read(4, 5, Some(7))]);
        bad(&[lost(0, 7), read(2, 3, Some(7)), read(4, 5, None)]);
        bad(&[read(0, 1, Some(7)), lost(2, 7)]);
    }

    #[test]
    fn keys_are_apart() {
        let other = Call { key: 1, ..read(2, 3, None) };
        good(&[write(0, 1, 7), other]);
    }

    #[test]
    fn a_long_history_with_many_clients_is_checked_quickly() {
        let mut history = Vec::new();
        for round in 0..200u64 {
            let at = round * 100;
            for client in 0..8 {
                history.push(write(at + client, at + 50 + client, round * 8 + client));
            }
            history.push(read(at + 90, at + 91, Some(round * 8 + 3)));
        }
        good(&history);
        history.push(read(100_000, 100_001, Some(3)));
        bad(&history);
    }
}
