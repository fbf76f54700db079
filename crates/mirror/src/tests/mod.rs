//! The mirror in one thread, from seeds.

/// A rule that is broken on purpose, to see that the simulation notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    Nothing,
    AckBeforeRecord,
    LastGoesStale,
    MarksNotAwaited,
    NoOrder,
    NotMissed,
    NoDoubt,
    ReadUnsettled,
    NoRepair,
    CopyUnlocked,
    FenceIgnored,
    HalfSnapshot,
}
