//! Disks that misbehave on purpose. Only with the feature `faults`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use reactor::{Io, Key, Op, Outcome, Token};

use super::Pools;
use crate::counters::OpClass;
use crate::faults::{self, FaultEffect, FaultPoint};

/// What waits, and what is to be spoilt when it comes back; by request.
#[derive(Debug, Default)]
pub(super) struct InjectedFaults {
    late: BTreeMap<Key, Op>,
    spoilt: BTreeMap<Key, FaultEffect>,
}

impl Pools {
    /// An operation as it is to be sent now, if at all.
    pub(super) fn strike(
        &mut self,
        (key, disk): (Key, &Path),
        op: Op,
        io: &mut impl Io,
    ) -> Option<Op> {
        let (sort, bytes) = measured(&op);
        match faults::strike(FaultPoint::Disk(disk), sort, &bytes) {
            None => Some(op),
            Some(strike @ (FaultEffect::Fail | FaultEffect::Corrupt)) => {
                self.struck.spoilt.insert(key, strike);
                Some(op)
            }
            Some(FaultEffect::Later(time)) => {
                self.struck.late.insert(key, op);
                let timer = Op::Timer { at: io.now().after(time) };
                self.send(timer, Token::of(self.token_kind, key), io);
                None
            }
            Some(FaultEffect::Never) => None,
        }
    }

    /// What came back as it is to be seen, unless only the time of a late one has come.
    pub(super) fn struck(
        &mut self,
        key: Key,
        mut outcome: Outcome,
        io: &mut impl Io,
    ) -> Option<Outcome> {
        if let Some(op) = self.struck.late.remove(&key) {
            self.send(op, Token::of(self.token_kind, key), io);
            return None;
        }
        match (self.struck.spoilt.remove(&key), &mut outcome) {
            (Some(FaultEffect::Corrupt), Outcome::Read { buffer, .. }) => faults::spoil(buffer),
            (
                Some(FaultEffect::Fail),
                Outcome::Read { result, .. }
                | Outcome::Written { result, .. }
                | Outcome::Synced(result),
            ) => *result = Err(rustix::io::Errno::IO.into()),
            _ => {}
        }
        Some(outcome)
    }
}

fn measured(op: &Op) -> (OpClass, Range<u64>) {
    let from = |at: u64, len: usize| at..at.saturating_add(u64::try_from(len).unwrap_or(0));
    match op {
        Op::Read { at, buffer, .. } => (OpClass::Read, from(*at, buffer.len())),
        Op::Write { at, payload, .. } => (OpClass::Write, from(*at, payload.len())),
        _ => (OpClass::Flush, 0..u64::MAX),
    }
}
