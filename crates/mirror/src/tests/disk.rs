//! A replica with a volatile cache, that crashes, fills up, rots, and remembers who owns it.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use block::testing::Random;
use block::{Command, IoError, Lba, Span};
use model::{Epoch, SnapshotId, SyncMetadata, SyncStamp};

use crate::{Attempt, Session};

/// What nobody ever writes.
pub(super) const GARBAGE: u64 = u64::MAX;

/// Who may use a replica: the last attachment.
pub(super) type Owner = (Epoch, usize, Session);

/// A snapshot, and who took it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Snapshot {
    pub(super) view: Vec<u64>,
    pub(super) attempt: Option<Attempt>,
}

#[derive(Clone, Debug)]
pub(super) struct Disk {
    durable: Vec<u64>,
    cache: BTreeMap<u64, u64>,
    pub(super) note: Option<SyncMetadata>,
    pub(super) epoch: Option<Epoch>,
    pub(super) owner: Option<Owner>,
    pub(super) incarnation: u64,
    pub(super) up: bool,
    pub(super) full: bool,
    pub(super) bad: BTreeSet<u64>,
    /// Blocks that were being written when it crashed: it holds something there, and cannot prove
    /// that it is what was written.
    pub(super) unproven: BTreeSet<u64>,
    pub(super) snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// How many blocks were written to it, and how many were looked at.
    pub(super) written: u64,
    pub(super) read: u64,
    /// Blocks that were repaired, and writes over bad blocks that were none.
    pub(super) repaired: u64,
    pub(super) blind: u64,
    /// So many blocks that it says it has written will not be there.
    pub(super) forgets: u64,
    /// What it was at an earlier moment.
    saved: Option<std::boxed::Box<Disk>>,
}

impl Disk {
    pub(super) fn new(blocks: u64) -> Disk {
        Disk {
            durable: std::vec![0; blocks as usize],
            cache: BTreeMap::new(),
            note: None,
            epoch: None,
            owner: None,
            incarnation: 1,
            up: true,
            full: false,
            bad: BTreeSet::new(),
            unproven: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            written: 0,
            read: 0,
            repaired: 0,
            blind: 0,
            forgets: 0,
            saved: None,
        }
    }

    pub(super) fn block(&self, at: u64) -> u64 {
        self.cache.get(&at).copied().unwrap_or_else(|| self.durable[at as usize])
    }

    pub(super) fn can_read(&self, at: u64) -> bool {
        !self.bad.contains(&at) && !self.unproven.contains(&at)
    }

    pub(super) fn view(&self) -> Vec<u64> {
        (0..self.durable.len() as u64).map(|at| self.block(at)).collect()
    }

    /// What no flush covered may be there or not; of what is there, some may have no proven sum. A
    /// hole needs none.
    pub(super) fn crash(&mut self, random: &mut Random, unproven: bool) {
        let mood = random.below(3);
        for (at, stamp) in core::mem::take(&mut self.cache) {
            let kept = match mood {
                0 => false,
                1 => true,
                _ => random.one_in(2),
            };
            if kept {
                self.durable[at as usize] = stamp;
                if unproven && stamp != 0 && random.one_in(2) {
                    self.unproven.insert(at);
                }
            }
        }
        self.owner = None;
        self.incarnation += 1;
        self.up = false;
    }

    /// Nothing of what no flush covers will be there after a crash.
    pub(super) fn forget_cache(&mut self) {
        self.cache.clear();
    }

    /// Remembers what is durable now.
    pub(super) fn save(&mut self) {
        self.saved = None;
        self.saved = Some(std::boxed::Box::new(self.clone()));
    }

    /// Whether what was saved has an older note than this.
    pub(super) fn was_saved_before(&self, known: Option<SyncStamp>) -> bool {
        let saved = self.saved.as_ref();
        saved.is_some_and(|saved| saved.note.as_ref().map(SyncMetadata::stamp) < known)
    }

    /// Is what it was when it was saved; it was started since, so that its incarnation is new.
    pub(super) fn roll_back(&mut self) {
        let Some(saved) = self.saved.take() else { return };
        self.durable = saved.durable;
        (self.note, self.epoch, self.snapshots) = (saved.note, saved.epoch, saved.snapshots);
    }

    /// Carries out a command; `data` is read or filled.
    pub(super) fn carry_out(
        &mut self,
        command: Command,
        data: &mut Vec<u64>,
    ) -> Result<(), IoError> {
        let span = command.span();
        let blocks = |span: Span| span.start().0..span.end().0;
        if let Command::Read { span } | Command::Compare { span } = command {
            self.read += span.len().0;
        }
        let rotten = span.is_some_and(|span| blocks(span).any(|at| self.bad.contains(&at)));
        let unproven = span.is_some_and(|span| blocks(span).any(|at| self.unproven.contains(&at)));
        match command {
            Command::Read { span } | Command::Compare { span } if rotten => {
                Err(IoError::Checksum { span })
            }
            Command::Read { span } | Command::Compare { span } if unproven => {
                Err(IoError::Unproven { span })
            }
            Command::Read { span } => {
                *data = blocks(span).map(|at| self.block(at)).collect();
                Ok(())
            }
            Command::Compare { span } => {
                let other = blocks(span).zip(&*data).find(|(at, stamp)| self.block(*at) != **stamp);
                other.map_or(Ok(()), |(at, _)| Err(IoError::Miscompare { at: Lba(at) }))
            }
            Command::Write { span, .. }
                if self.full && blocks(span).any(|at| self.block(at) == 0) =>
            {
                Err(IoError::NoSpace)
            }
            Command::Write { span, fua } => {
                self.blind += u64::from(rotten);
                for (at, stamp) in blocks(span).zip(&*data) {
                    self.put(at, *stamp, fua);
                }
                Ok(())
            }
            Command::Discard { span } => {
                blocks(span).for_each(|at| self.put(at, 0, false));
                Ok(())
            }
            Command::WriteZeroes { span, fua, .. } => {
                blocks(span).for_each(|at| self.put(at, 0, fua));
                Ok(())
            }
            Command::Flush => {
                for (at, stamp) in core::mem::take(&mut self.cache) {
                    self.durable[at as usize] = stamp;
                }
                Ok(())
            }
        }
    }

    fn put(&mut self, at: u64, stamp: u64, fua: bool) {
        self.written += 1;
        if self.forgets > 0 {
            self.forgets -= 1;
            return;
        }
        self.bad.remove(&at);
        self.unproven.remove(&at);
        if fua {
            self.cache.remove(&at);
            self.durable[at as usize] = stamp;
        } else {
            self.cache.insert(at, stamp);
        }
    }

    /// Good bytes are written over a block that is damaged, as a whole and durably.
    pub(super) fn repair(&mut self, at: u64, stamp: u64) {
        self.repaired += 1;
        self.put(at, stamp, true);
    }

    /// Every copy was compared: what is unproven here is believed. What rotted is not.
    pub(super) fn accept(&mut self, span: Span) {
        self.unproven.retain(|at| !(span.start().0..span.end().0).contains(at));
    }

    /// What the disk holds is kept, damaged or not.
    pub(super) fn accept_damaged(&mut self, span: Span) {
        self.accept(span);
        self.bad.retain(|at| !(span.start().0..span.end().0).contains(at));
    }

    /// A block rots. One with a sum is bad from then on; without one it holds garbage.
    pub(super) fn rot(&mut self, at: u64) {
        if self.unproven.contains(&at) {
            self.durable[at as usize] = GARBAGE;
        } else {
            self.bad.insert(at);
        }
    }

    /// The runs of blocks that hold something.
    pub(super) fn written_in(&self, span: Span) -> Vec<Span> {
        let full = (span.start().0..span.end().0).filter(|at| self.block(*at) != 0);
        full.filter_map(|at| Span::one(Lba(at))).collect()
    }
}
