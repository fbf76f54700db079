//! What notes tell of copies: which was rolled back, and what a former target left.
//!
//! - **L2** `SyncMetadata::settled` names a note that every copy which anybody may call in sync had
//!   then. So a copy in sync with an older one was rolled back, and nothing else.
//! - **L3** Whatever hosts wrote to a copy since its note was kept lies in the intents of that
//!   note.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use model::{ReplicaId, SyncMetadata, SyncStamp};

use super::{IntentLog, stamp};
use crate::api::ReplicaInfo;
use crate::context::Context;
use crate::replicas::{Child, ChildSet, ChildSlot, Replicas};

/// The newest claim of a note, and whose it is.
pub(crate) type Claim = (SyncStamp, ReplicaId);

impl IntentLog {
    /// What every copy that anybody may call in sync has acknowledged (L2), and every one that may
    /// be called so next: a copy that has just joined must not look older than it ever was.
    pub(super) fn update_settled(&mut self, replicas: &Replicas) {
        if !replicas.all_take_writes() {
            return;
        }
        let all = replicas.required_acks().either(replicas.write_targets());
        let kept = all.iter().map(|slot| replicas.get(slot).map_or(0, Child::kept));
        if let Some(kept @ 1..) = kept.min() {
            self.settled = self.settled.max(Some(stamp(replicas, kept)));
        }
    }

    /// The newest note of each stale copy that has a map.
    pub(super) fn left_behind(&self, replicas: &Replicas) -> BTreeMap<ReplicaId, SyncStamp> {
        let known = |replica: &ReplicaId| {
            let writes = replicas.slot_of(*replica).and_then(|slot| replicas.get(slot));
            let writes = writes.filter(|child| child.state().takes_writes());
            let had = writes.and_then(Child::newest_note);
            Some((*replica, had.or_else(|| self.left.get(replica).copied())?))
        };
        self.dirty.missed.keys().filter_map(known).collect()
    }

    /// The newest note that a copy is known to have had.
    pub(crate) fn known_note(
        &self,
        replicas: &Replicas,
        replica: ReplicaId,
        is_open: bool,
    ) -> Option<SyncStamp> {
        let child = replicas.slot_of(replica).and_then(|slot| replicas.get(slot));
        let had = child.filter(|_| is_open).and_then(Child::newest_note);
        had.max(self.left.get(&replica).copied())
    }

    /// Whether a copy of a former target knows that those which this one was opened with had newer
    /// notes than they showed.
    pub(crate) fn is_outdone_by(&self, replicas: &Replicas, found: &ReplicaInfo) -> bool {
        let claim = found.note.as_ref().and_then(|note| note.settled);
        claim.zip(self.base).is_some_and(|(claim, (oldest, opened))| {
            claim > oldest && claim <= stamp(replicas, opened)
        })
    }

    /// Takes what was found with copies in sync, when the volume is opened; `settled` is the newest
    /// claim. Those that lost what no flush covered are counted, the one with the newest note as
    /// the first: if another one was rolled back, it has more.
    pub(crate) fn adopt(
        &mut self,
        cx: &Context,
        replicas: &mut Replicas,
        from: ChildSet,
        settled: Option<SyncStamp>,
    ) -> Vec<(ChildSlot, Box<SyncMetadata>)> {
        self.settled = settled;
        let mut crashed: Vec<(SyncStamp, ChildSlot)> = Vec::new();
        let notes: Vec<(ChildSlot, Box<SyncMetadata>)> = from
            .iter()
            .filter_map(|slot| Some((slot, replicas.get_mut(slot)?.take_found_note()?)))
            .collect();
        for (slot, note) in &notes {
            if note.label.epoch == replicas.record().epoch() {
                // This target was open before; a number stands for one note.
                self.version = self.version.max(note.sequence);
            }
            replicas.adopt_loss(*slot, note.loss);
            if replicas.get(*slot).is_some_and(|one| one.incarnation() != Some(note.incarnation)) {
                crashed.push((note.stamp(), *slot));
            }
        }
        let is_each = u32::try_from(notes.len()) == Ok(from.len());
        let oldest = notes.iter().map(|(_, note)| note.stamp()).min().filter(|_| is_each);
        self.base = oldest.map(|oldest| (oldest, self.version));
        for (_, note) in &notes {
            self.adopt_note(cx, replicas, note);
        }
        crashed.sort_by(|one, other| other.cmp(one));
        for group in crashed.chunk_by(|one, other| one.0 == other.0) {
            replicas.count_loss(group.iter().map(|(_, slot)| *slot).collect());
        }
        notes
    }

    fn adopt_note(&mut self, cx: &Context, replicas: &Replicas, note: &SyncMetadata) {
        self.dirty.adopt(&note.intents, self.version + 1, cx.now());
        for (replica, left) in &note.left {
            let newest = self.left.entry(*replica).or_insert(*left);
            *newest = (*newest).max(*left);
        }
        for (replica, missed) in &note.missed {
            if replicas.record().is_stale_member(*replica) {
                let none = self.dirty.none();
                self.dirty.missed.entry(*replica).or_insert(none).add(missed);
            }
        }
    }

    /// What is in doubt when the volume is opened a stale copy may lack, too.
    pub(crate) fn miss_doubt(&mut self) {
        let doubt = self.dirty.resync.clone();
        self.dirty.missed.values_mut().for_each(|missed| missed.add(&doubt));
    }

    /// A copy in sync that is not here now may hold other bytes, and lack some.
    pub(crate) fn miss_risk(&mut self, replica: ReplicaId) {
        let risk = self.dirty.at_risk();
        self.dirty.missed.insert(replica, risk);
    }
}

/// Of the copies in sync that are here, those that were rolled back; and the claim that says
/// so: the newest of a note found with any copy.
pub(crate) fn rolled_back(replicas: &Replicas, there: ChildSet) -> (ChildSet, Option<Claim>) {
    let claims = replicas.iter().filter_map(|(_, child)| {
        let settled = child.found_note()?.settled?;
        Some((settled, child.replica()))
    });
    let claim = claims.max();
    #[cfg(test)]
    if replicas.is_broken(crate::tests::Broken::NotesNotCompared) {
        return (ChildSet::NONE, claim);
    }
    let is_older = |slot: &ChildSlot| {
        let note = replicas.get(*slot).and_then(Child::found_note);
        note.map(SyncMetadata::stamp) < claim.map(|(stamp, _)| stamp)
    };
    (there.iter().filter(is_older).collect(), claim)
}
