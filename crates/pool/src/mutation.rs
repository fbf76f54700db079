//! Rules that a test may leave out on purpose, to see that the histories notice it. Outside of
//! tests every rule holds, and asking costs nothing.

/// A rule of docs/format/pool.md §3, or of the code beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A change is answered when it is durable.
    AnswerWhenDurable,
    /// O2: a write or discard is answered when its record is written.
    AnswerWhenWritten,
    /// O2: groups count as written in their order.
    AnswerInOrder,
    /// O2: a flush that shall prove records begins when their data has been written.
    DataBeforeFlush,
    /// O7: so does the flush before the headers of a checkpoint that has them.
    DataBeforeCheckpoint,
    /// O2: a group says of an earlier one that it is durable only when it is.
    ProvedWhenDurable,
    /// O2: recovery drops first writes whose data did not arrive.
    CheckLastGroup,
    /// O2: a group after which records were dropped is followed by a checkpoint.
    CheckpointAfterDrop,
    /// O2: until that checkpoint has ended nobody writes to new places.
    HoldAfterDrop,
    /// O3: a block is rewritten in place only when its record is proved.
    ProveBeforeRewrite,
    /// O3: a group proves only what was durable when it was written.
    ProvedByLater,
    /// O4: a region is marked before it is overwritten.
    MarkBeforeOverwrite,
    /// O4: a flush records the sums of what was overwritten.
    RecordOverwrites,
    /// The sum of a block is never the one that says that it has none.
    SumIsNeverNone,
    /// O4: a block without a sum is written with its record.
    RecordAfterFailure,
    /// O4: no block gets a sum but by writing it, or by comparing every copy.
    ProveByComparison,
    /// O9: a disk that may tear a block overwrites none in place.
    RedirectOverwrites,
    /// O5: what is given up is used again only when that is durable.
    ReuseWhenDurable,
    /// O7: a checkpoint goes into the slot that is not current.
    OtherSlot,
    /// O7: a header says where the journal goes on.
    HeaderPosition,
    /// What a read returns matches its sum.
    VerifyReads,
    /// A snapshot is never written.
    SealSnapshots,
    /// A layer is collapsed only when the delete is durable.
    CollapseWhenDurable,
    /// A wrapped key is kept with its replica.
    KeepKeys,
    /// Parts of maps are given up when they take too much memory.
    GiveUpPages,
    /// There is a second copy of everything.
    SecondCopy,
}

/// Whether a rule is left out.
#[cfg(not(test))]
pub(crate) const fn disabled(_: Rule) -> bool {
    false
}

#[cfg(test)]
pub(crate) use switch::{DisabledRule, disabled};

#[cfg(test)]
mod switch {
    use std::cell::Cell;

    use super::Rule;

    std::thread_local! {
        static NOW: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn disabled(rule: Rule) -> bool {
        NOW.get() == Some(rule)
    }

    /// Leaves a rule out on this thread while it lives.
    pub(crate) struct DisabledRule;

    impl DisabledRule {
        pub(crate) fn new(rule: Rule) -> DisabledRule {
            NOW.set(Some(rule));
            DisabledRule
        }
    }

    impl Drop for DisabledRule {
        fn drop(&mut self) {
            NOW.set(None);
        }
    }
}
