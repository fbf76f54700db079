//! MD in a model: superblocks with event counts, write-intent bitmap, recovery.

use std::collections::{BTreeMap, BTreeSet};

use mesh::reconcile::MemberState;

/// Regions of a volume: one bit of the bitmap each.
pub(crate) const REGIONS: usize = 3;

/// What lies on a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    /// The version last written to each region.
    pub(crate) data: [u64; REGIONS],
    /// The write-intent bitmap.
    pub(crate) bits: [bool; REGIONS],
    /// The event count of its superblock; zero: it has none.
    pub(crate) events: u64,
    /// Members that failed, as far as this superblock knows.
    pub(crate) failed: BTreeSet<String>,
}

/// A write that is not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) region: usize,
    pub(crate) version: u64,
    /// Members whose bit must be set before any data are written.
    pub(crate) bits: BTreeSet<String>,
    /// Members whose data are to be written.
    pub(crate) data: BTreeSet<String>,
}

/// An array that runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) epoch: u64,
    pub(crate) members: BTreeMap<String, MemberState>,
    pub(crate) events: u64,
    pub(crate) bits: [bool; REGIONS],
    pub(crate) writes: Vec<Write>,
    /// Superblocks that must be written before anything more is acknowledged.
    pub(crate) supers: BTreeSet<String>,
    /// What a recovering member still lacks.
    pub(crate) recovery: BTreeMap<String, BTreeSet<usize>>,
    /// Regions that are made equal after an unclean end.
    pub(crate) resync: BTreeSet<usize>,
    /// Regions copied by recovery, for counting.
    pub(crate) copied: usize,
    pub(crate) slots: u16,
    pub(crate) bytes: u64,
}

impl Running {
    pub(crate) fn new(epoch: u64, bytes: u64, slots: u16) -> Running {
        Running {
            epoch,
            members: BTreeMap::new(),
            events: 1,
            bits: [false; REGIONS],
            writes: Vec::new(),
            supers: BTreeSet::new(),
            recovery: BTreeMap::new(),
            resync: BTreeSet::new(),
            copied: 0,
            slots,
            bytes,
        }
    }

    /// Members that are written.
    pub(crate) fn live(&self) -> BTreeSet<String> {
        let live = self.members.iter().filter(|(_, state)| **state != MemberState::Faulty);
        live.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// Members that are read.
    pub(crate) fn in_sync(&self) -> Vec<String> {
        let all = self.members.iter().filter(|(_, state)| **state == MemberState::InSync);
        all.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// MD takes a member out; the others' superblocks say so before anything is acknowledged.
    pub(crate) fn fail(&mut self, uuid: &str) {
        if self.in_sync() == [uuid.to_owned()] {
            return;
        }
        self.members.insert(uuid.to_owned(), MemberState::Faulty);
        self.recovery.remove(uuid);
        for write in &mut self.writes {
            write.bits.remove(uuid);
            write.data.remove(uuid);
        }
        self.supers.remove(uuid);
        self.events += 1;
        self.supers = self.live();
    }
}
