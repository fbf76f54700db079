//! What the counters of a disk say about it.
//!
//! | seen | the disk is |
//! |---|---|
//! | some errors, or blocks that are not what was written, within a day | suspect |
//! | lately, commands of over a second, if a hundredth of all; or some of over eight | suspect |
//! | a command that waits for half a minute now | suspect |
//! | a command that waits for two minutes now | faulted |
//!
//! A suspect pool works, but nothing new is put there and what is there is moved away: a disk that
//! was only busy for a while must not become suspect, and one that is quick again is well again.
//! How many errors are some, and within which time, is set by [`ErrorLimits`].

use std::time::Duration;

use model::DiskFindingKind;

use super::ErrorLimits;
use crate::counters::{Counter, Counters, WindowCounts};
use crate::pools::DiskWork;

/// So many slow commands make a disk suspect: fewer happen to good disks.
const SOME: u64 = 5;
/// Of slow commands, one of so many as well: a disk with much to do has some.
const ONE_OF: u64 = 100;
/// A bucket whose commands took a second and more.
const SECOND: usize = 21;
/// A command that waits for so long makes a disk suspect, or faulted.
const LONG: Duration = Duration::from_secs(30);
const ENDLESS: Duration = Duration::from_mins(2);

/// What is wrong with a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiskProblem {
    /// Whether it still works.
    pub(super) works: bool,
    pub(super) kind: DiskFindingKind,
    pub(super) detail: String,
}

/// How often a disk took a second and more.
pub(super) fn stalls(counters: &Counters) -> u64 {
    let slow = |counter: &Counter| counter.buckets.iter().skip(SECOND).sum::<u64>();
    counters.each().iter().map(|(_, counter)| slow(counter)).sum()
}

/// Everything that is wrong with a disk that is at work like that, and had so many errors lately;
/// `sums` counts blocks that were not what was written there.
pub(super) fn judge(
    work: &DiskWork,
    (errors, sums): (u64, u64),
    limits: ErrorLimits,
) -> Vec<DiskProblem> {
    let mut ills = Vec::new();
    let mut see = |is_so: bool, works: bool, kind: DiskFindingKind, detail: String| {
        if is_so {
            ills.push(DiskProblem { works, kind, detail });
        }
    };
    let (waits, lately) = (work.oldest, work.lately);
    let seconds = waits.as_secs();
    let waiting = format!("a command waits for {seconds} s; look at the disk and its cables");
    see(waits >= LONG, waits < ENDLESS, DiskFindingKind::Stalled, waiting);
    let hours = limits.window.as_secs().div_ceil(3600);
    let remedy = "replace it, or `holdfast pool clear-errors POOL` if the cause is gone";
    let detail = format!("{errors} commands failed in the last {hours} hours; {remedy}");
    see(errors >= limits.errors, true, DiskFindingKind::IoErrors, detail);
    let WindowCounts { all, slow, endless } = lately;
    let detail =
        format!("{slow} of the last {all} commands took over a second; look at what uses the disk");
    let many = slow >= SOME && slow.saturating_mul(ONE_OF) >= all;
    see(many || endless >= SOME, true, DiskFindingKind::Stalled, detail);
    let detail = format!(
        "{sums} times in the last {hours} hours blocks were not what was written; scrub it, then \
         {remedy}"
    );
    see(sums >= limits.errors, true, DiskFindingKind::Checksum, detail);
    ills
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{OpClass, OpTimer, SlidingWindow};
    use block::{Blocks, Instant, IoError, Lba, Span};
    use std::path::PathBuf;

    fn at(millis: u64) -> Instant {
        Instant::since_start(Duration::from_millis(millis))
    }

    fn check(
        commands: &[(u64, bool)],
        waits: u64,
        sums: u64,
        expected: &[(bool, DiskFindingKind)],
    ) {
        let (mut counters, mut lately) = (Counters::default(), SlidingWindow::default());
        let span = Span::new(Lba(0), Blocks(1)).unwrap();
        for (millis, well) in commands {
            let result = if *well { Ok(()) } else { Err(IoError::Medium { span }) };
            counters.ended(OpTimer::of(OpClass::Write, 4096, at(0)), result, at(*millis));
            lately.ended(Duration::from_millis(*millis), at(*millis));
        }
        let (path, oldest) = (PathBuf::from("/dev/sdb"), Duration::from_secs(waits));
        let work = DiskWork { path, oldest, lately: lately.seen(at(0)) };
        let found = judge(&work, (counters.errors(), sums), ErrorLimits::default());
        let found: Vec<_> = found.iter().map(|ill| (ill.works, ill.kind)).collect();
        assert_eq!(found, expected, "{commands:?} {waits} {sums}");
    }

    #[test]
    fn a_disk_is_as_well_as_what_it_did() {
        use DiskFindingKind::{Checksum, IoErrors, Stalled};
        check(&[(1, true); 1000], 0, 0, &[]);
        check(&[(1, false); 4], 29, 4, &[]);
        check(&[(1, false); 5], 0, 0, &[(true, IoErrors)]);
        check(&[(1049, true); 5], 0, 0, &[(true, Stalled)]);
        check(&[(1000, true); 5], 0, 0, &[]);
        // A hundredth is slow, and less.
        check(&[&[(1, true); 495][..], &[(1049, true); 5]].concat(), 0, 0, &[(true, Stalled)]);
        check(&[&[(1, true); 496][..], &[(1049, true); 5]].concat(), 0, 0, &[]);
        check(&[&[(1, true); 999][..], &[(8400, true); 5]].concat(), 0, 0, &[(true, Stalled)]);
        check(&[(1, true)], 30, 0, &[(true, Stalled)]);
        check(&[(1, true)], 120, 0, &[(false, Stalled)]);
        check(&[(1, true)], 0, 5, &[(true, Checksum)]);
    }
}
