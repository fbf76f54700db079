//! Faults on purpose, for tests: what is ordered over the node API is looked up here for each
//! answer of a disk and of a child. Only with the feature `faults`.
//!
//! One table for the process: a fault names its disk or its target, so engines of one process do
//! not get in each other's way.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::node::{Fault, FaultKind, FaultPlace, Faults};
use model::{ReplicaId, TargetId};

use crate::counters::OpClass;

static ALL: Mutex<Vec<ArmedFaults>> = Mutex::new(Vec::new());

struct ArmedFaults {
    fault: Fault,
    passed: u64,
}

/// Where something is done.
#[derive(Clone, Copy)]
pub(crate) enum FaultPoint<'a> {
    Disk(&'a Path),
    Child(TargetId, ReplicaId),
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultEffect {
    /// It is said to have failed.
    Fail,
    /// It reads other bytes.
    Corrupt,
    /// It is answered so much later.
    Later(Duration),
    /// It is never answered.
    Never,
}

fn all() -> MutexGuard<'static, Vec<ArmedFaults>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The faults that are in effect.
pub(crate) fn get() -> Faults {
    Faults { faults: all().iter().map(|armed| armed.fault.clone()).collect() }
}

/// Whether there are any between targets and their children.
pub(crate) fn concern_children() -> bool {
    all().iter().any(|armed| matches!(armed.fault.place, FaultPlace::Child { .. }))
}

/// Exactly these faults from now on.
pub(crate) fn set(faults: Faults) {
    let arm = |fault| ArmedFaults { fault: Fault { hits: 0, ..fault }, passed: 0 };
    *all() = faults.faults.into_iter().map(arm).collect();
}

/// What is to become of something that was done with these bytes. The first fault that fits counts.
pub(crate) fn strike(at: FaultPoint<'_>, sort: OpClass, bytes: &Range<u64>) -> Option<FaultEffect> {
    let mut all = all();
    let armed = all.iter_mut().find(|armed| armed.fits(at, sort, bytes))?;
    armed.passed += 1;
    if armed.passed <= armed.fault.skip {
        return None;
    }
    armed.fault.hits += 1;
    Some(match armed.fault.kind {
        FaultKind::ReadError {} | FaultKind::WriteError {} | FaultKind::FlushError {} => {
            FaultEffect::Fail
        }
        FaultKind::Delay { millis } => FaultEffect::Later(Duration::from_millis(millis)),
        FaultKind::Stall {} => FaultEffect::Never,
        FaultKind::Corrupt {} => FaultEffect::Corrupt,
    })
}

/// Other bytes than these.
pub(crate) fn spoil(bytes: &mut [u8]) {
    bytes.iter_mut().step_by(512).for_each(|byte| *byte = !*byte);
}

impl ArmedFaults {
    fn fits(&self, at: FaultPoint<'_>, sort: OpClass, bytes: &Range<u64>) -> bool {
        let Fault { place, kind, range, count, hits, .. } = &self.fault;
        let is_there = match (place, at) {
            (FaultPlace::Disk { disk }, FaultPoint::Disk(path)) => Path::new(disk.as_str()) == path,
            (FaultPlace::Child { target, replica }, FaultPoint::Child(of, child)) => {
                (*target, *replica) == (of, child)
            }
            _ => false,
        };
        let is_such = match kind {
            FaultKind::ReadError {} | FaultKind::Corrupt {} => sort == OpClass::Read,
            FaultKind::WriteError {} => matches!(sort, OpClass::Write | OpClass::Discard),
            FaultKind::FlushError {} => sort == OpClass::Flush,
            FaultKind::Delay { .. } | FaultKind::Stall {} => true,
        };
        let touches = range.as_ref().is_none_or(|range| {
            let from = range.offset.bytes().0;
            let to = from.saturating_add(range.length.bytes().0);
            bytes.start < to && from < bytes.end
        });
        is_there && is_such && touches && count.is_none_or(|count| *hits < count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_hit_what_they_name_so_often() {
        let (disk, other) = (Path::new("/dev/faulty"), Path::new("/dev/fine"));
        let size = model::Size::kib;
        let range = Some(api::node::Range { offset: size(8), length: size(4) });
        let place = FaultPlace::Disk { disk: "/dev/faulty".parse().unwrap() };
        let kind = FaultKind::ReadError {};
        let fault = Fault { place, kind, range, skip: 1, count: Some(2), hits: 7 };
        set(Faults { faults: vec![fault] });
        let on = |path, sort, bytes| strike(FaultPoint::Disk(path), sort, &bytes);
        assert_eq!(on(other, OpClass::Read, 8192..12288), None);
        assert_eq!(on(disk, OpClass::Write, 8192..12288), None);
        assert_eq!(on(disk, OpClass::Read, 0..8192), None);
        assert_eq!(on(disk, OpClass::Read, 12288..16384), None);
        assert_eq!(on(disk, OpClass::Read, 0..16384), None, "the first passes");
        assert_eq!(on(disk, OpClass::Read, 8192..12288), Some(FaultEffect::Fail));
        assert_eq!(on(disk, OpClass::Read, 4096..8193), Some(FaultEffect::Fail));
        assert_eq!(on(disk, OpClass::Read, 8192..12288), None, "two were hit");
        assert_eq!(get().faults[0].hits, 2);
        let mut bytes = [7; 1024];
        spoil(&mut bytes);
        assert_ne!(bytes, [7; 1024]);
    }
}
