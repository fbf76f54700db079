//! What hosts wrote and read, and whether what they read can be.
//!
//! Each block is an atomic register: a read returns the value of a write that began before the read
//! ended and was not replaced, for sure, before the read began. A write replaces others for sure
//! once it was acknowledged or read. It loses that when every copy in sync that had it crashed
//! before a flush, and gets it for ever by a flush that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec::Vec;

const EVER: u64 = u64::MAX;

/// One write of one block.
#[derive(Clone, Debug)]
struct Write {
    number: u64,
    stamp: u64,
    begun: u64,
    /// From when on it replaces what was before.
    sure: u64,
    /// After this it cannot take effect any more.
    over: u64,
    acked: u64,
    epoch: u64,
    durable: bool,
    /// It may be lost although it was acknowledged.
    excused: bool,
    /// Copies in sync that have it and did not crash.
    holders: BTreeSet<usize>,
}

#[derive(Debug, Default)]
pub(super) struct History {
    blocks: BTreeMap<u64, Vec<Write>>,
    /// Copies in sync, by the store.
    in_sync: BTreeSet<usize>,
    /// First acknowledged write of each epoch.
    first_ack: BTreeMap<u64, u64>,
    /// When each replica crashed last.
    crashes: BTreeMap<usize, u64>,
    pub(super) acks: u64,
    pub(super) reads: u64,
}

impl History {
    fn writes(&mut self, block: u64) -> &mut Vec<Write> {
        self.blocks.entry(block).or_insert_with(|| {
            std::vec![Write {
                number: 0,
                stamp: 0,
                begun: 0,
                sure: 0,
                over: 0,
                acked: 0,
                epoch: 0,
                durable: true,
                excused: false,
                holders: BTreeSet::new(),
            }]
        })
    }

    pub(super) fn began(&mut self, number: u64, block: u64, stamp: u64, at: (u64, u64)) {
        let (begun, epoch) = at;
        self.writes(block).push(Write {
            number,
            stamp,
            begun,
            sure: EVER,
            over: EVER,
            acked: EVER,
            epoch,
            durable: false,
            excused: false,
            holders: BTreeSet::new(),
        });
    }

    /// A write of one block was acknowledged or failed.
    pub(super) fn ended(&mut self, number: u64, block: u64, now: u64, how: (bool, bool)) {
        let (fine, fua) = how;
        self.acks += u64::from(fine);
        let (in_sync, crashes) = (self.in_sync.clone(), self.crashes.clone());
        let Some(write) = self.writes(block).iter_mut().find(|write| write.number == number) else {
            return;
        };
        write.over = write.over.min(now);
        if fine {
            write.acked = now;
            write.durable |= fua;
            // One that crashed since it began may have lost it before the answer came.
            let kept = |disk: &usize| crashes.get(disk).is_none_or(|at| *at < write.begun);
            write.holders.extend(in_sync.into_iter().filter(kept));
            if write.durable || !write.holders.is_empty() {
                write.sure = write.sure.min(now);
            }
        }
    }

    /// Two owners never both succeed: checks an acknowledgement by an epoch.
    pub(super) fn acknowledged(&mut self, epoch: u64, begun: u64, now: u64) -> Result<(), String> {
        self.first_ack.entry(epoch).or_insert(now);
        let newer = self.first_ack.range(epoch + 1..).next();
        match newer {
            Some((newer, at)) if *at < begun => Err(format!(
                "epoch {epoch} acknowledged a write begun at {begun}, after {newer} did at {at}"
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn flushed(&mut self, begun: u64) {
        for write in self.blocks.values_mut().flatten() {
            if write.acked < begun && !write.excused {
                write.durable = true;
                write.sure = write.sure.min(write.acked);
            }
        }
    }

    /// A flush failed because writes were lost: hosts were told.
    pub(super) fn told(&mut self) {
        self.lose(|write| write.holders.is_empty(), true);
    }

    /// A newer target serves: what others sent cannot take effect any more.
    pub(super) fn opened(&mut self, epoch: u64, now: u64) {
        for write in self.blocks.values_mut().flatten() {
            if write.epoch < epoch {
                write.over = write.over.min(now);
            }
        }
        self.lose(|write| write.epoch < epoch && write.holders.is_empty(), true);
    }

    fn lose(&mut self, which: impl Fn(&Write) -> bool, excused: bool) {
        for write in self.blocks.values_mut().flatten() {
            if !write.durable && which(write) {
                write.sure = EVER;
                write.excused |= excused;
            }
        }
    }

    pub(super) fn crashed(&mut self, disk: usize, now: u64) {
        self.crashes.insert(disk, now);
        for write in self.blocks.values_mut().flatten() {
            write.holders.remove(&disk);
        }
        self.lose(|write| write.holders.is_empty(), false);
    }

    /// A replica cannot read a block any more.
    pub(super) fn rotted(&mut self, disk: usize, block: u64) {
        for write in self.writes(block) {
            write.holders.remove(&disk);
        }
        self.lose(|write| write.holders.is_empty(), false);
    }

    /// Copies in sync, by the store, and those of them that did not crash since they were attached.
    pub(super) fn recorded(&mut self, in_sync: BTreeSet<usize>, there: &BTreeSet<usize>) {
        for write in self.blocks.values_mut().flatten() {
            let joined = in_sync.difference(&self.in_sync).filter(|disk| there.contains(disk));
            let joined: Vec<usize> = joined.copied().collect();
            if !write.holders.is_empty() {
                write.holders.extend(joined);
            }
            write.holders.retain(|disk| in_sync.contains(disk));
        }
        self.in_sync = in_sync;
        self.lose(|write| write.holders.is_empty(), false);
    }

    /// A block was read. Copies in sync are equal where a target reads, so that what one of them
    /// returned is on the others: on those of `there`, which did not crash since they were
    /// attached and can read the block. That another one cannot, its target does not know yet.
    pub(super) fn read(
        &mut self,
        block: u64,
        stamp: u64,
        span: (u64, u64),
        there: &BTreeSet<usize>,
    ) -> Result<(), String> {
        let (begun, ended) = span;
        self.reads += 1;
        let kept = |disk: &usize| {
            there.contains(disk) && self.crashes.get(disk).is_none_or(|at| *at < begun)
        };
        let in_sync: Vec<usize> = self.in_sync.iter().copied().filter(kept).collect();
        let writes = self.writes(block);
        let replaced = |write: &Write| {
            writes.iter().any(|other| other.sure < begun && other.begun > write.over)
        };
        let possible =
            |write: &&Write| write.stamp == stamp && write.begun <= ended && !replaced(write);
        if !writes.iter().any(|write| possible(&write)) {
            return Err(format!(
                "block {block} reads {stamp} from {begun} to {ended}: {writes:#?}"
            ));
        }
        let which: Vec<u64> = writes.iter().filter(possible).map(|write| write.number).collect();
        if let [only] = which[..] {
            for write in self.writes(block) {
                if write.number == only && write.sure == EVER && !write.excused {
                    write.holders.extend(in_sync.iter());
                    write.sure = if write.holders.is_empty() { EVER } else { ended };
                }
            }
        }
        Ok(())
    }
}

/// That one copy crashed, nobody noticed: what the other one returned is not on it.
#[test]
fn a_copy_that_crashed_unnoticed_holds_nothing() {
    let both = BTreeSet::from([0, 1]);
    let mut history = History::default();
    history.recorded(both.clone(), &both);
    history.began(1, 0, 7, (10, 1));
    history.ended(1, 0, 12, (true, false));
    history.crashed(0, 20);
    history.crashed(1, 21);
    history.read(0, 7, (30, 31), &BTreeSet::from([0])).unwrap();
    history.crashed(0, 40);
    history.read(0, 0, (50, 51), &both).unwrap();
}
