//! Which volumes nobody in the cluster knows any more, and which of them may be deleted.
//!
//! A volume of this cluster is an orphan when neither a PersistentVolume names it nor a claim waits
//! for it. It is deleted only if all of this holds:
//! - it was an orphan in two looks, [`GRACE`] apart or more;
//! - its PersistentVolume had the policy `Delete` when it was seen last, or no node ever got the
//!   volume, so that nothing can have been written to it;
//! - no node may use it now, and it has no snapshots;
//! - the list of PersistentVolumes is younger than the last sight of its own, names some volume of
//!   ours, and few volumes are orphans at once.
//!
//! The last rule is about clusters that were restored: from a backup that is older than the volume
//! its PersistentVolume is missing, and the volume holds the only copy of the data. A volume whose
//! sight lies in the future of the list is kept for good: [`Sight::Kept`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model::{LabelKey, LabelValue, Labels, VolumeId};
use uuid::Uuid;

/// How long a volume stays an orphan before it is deleted.
pub(super) const GRACE: Duration = Duration::from_mins(1);

/// Which cluster made a volume.
pub(crate) const CLUSTER: &str = "csi.holdfast.io/cluster";
/// That some node got the volume.
pub(crate) const USED: &str = "csi.holdfast.io/used";
/// What is done with a volume when its PersistentVolume goes, and when that was seen.
const POLICY: &str = "csi.holdfast.io/reclaim-policy";
const REVISION: &str = "csi.holdfast.io/seen-at-revision";

/// What the PersistentVolume of a volume said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// None was seen.
    Never,
    /// Delete the volume with it; in this revision of the API server.
    Delete {
        /// The revision.
        revision: u64,
    },
    /// Keep the volume.
    Retain,
    /// The API server lost what it had: only an operator may decide.
    Kept,
}

/// A volume of this cluster, as the control plane has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) id: VolumeId,
    pub(super) sight: Sight,
    /// Whether a node ever got it.
    pub(super) was_used: bool,
    /// Whether a node may use it now, or a snapshot needs it.
    pub(super) is_in_use: bool,
}

/// What PersistentVolumes and claims said at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// The revision of the list.
    pub(super) revision: u64,
    /// Volumes that are named, and whether they are deleted with what names them.
    pub(super) volumes: BTreeMap<VolumeId, bool>,
    /// Claims, whose ids are those of the volumes that they wait for.
    pub(super) claims: BTreeSet<Uuid>,
}

/// What is to be done after a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// What to remember of volumes.
    pub(super) marks: BTreeMap<VolumeId, Sight>,
    /// What to delete.
    pub(super) delete: Vec<VolumeId>,
    /// What would be deleted, and why it is not.
    pub(super) held: Option<(Brake, Vec<VolumeId>)>,
    /// Whether to look again when the grace is over.
    pub(super) is_waiting: bool,
}

/// Why orphans are not deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brake {
    /// No PersistentVolume names a volume of ours.
    EmptyList,
    /// More are orphans at once than may be deleted.
    TooMany,
}

/// What is remembered between looks.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Since when volumes are orphans, by a clock that only goes forward.
    since: BTreeMap<VolumeId, Duration>,
}

impl Orphans {
    /// Takes a look in. Volumes were listed before PersistentVolumes and claims: what is made in
    /// between is no orphan.
    pub(super) fn look(
        &mut self,
        now: Duration,
        known: &[Known],
        (listed, most): (&Listed, usize),
    ) -> Plan {
        let mut plan = Plan::default();
        let mut since = BTreeMap::new();
        let mut due = Vec::new();
        for volume in known {
            let named = listed.volumes.get(&volume.id);
            let sight = sight(volume.sight, named, listed.revision);
            if sight != volume.sight {
                plan.marks.insert(volume.id, sight);
            }
            let is_claimed = listed.claims.contains(&volume.id.uuid());
            let is_wanted = named.is_some() || is_claimed;
            // Its PersistentVolume is being made, or was lost: then nobody tells of its end.
            plan.is_waiting |= is_claimed && named.is_none();
            if is_wanted || volume.is_in_use || !may_go(sight, volume.was_used) {
                continue;
            }
            let first = *self.since.get(&volume.id).unwrap_or(&now);
            since.insert(volume.id, first);
            if now.saturating_sub(first) >= GRACE {
                due.push(volume.id);
            }
        }
        plan.is_waiting |= since.len() > due.len();
        self.since = since;
        // All orphans count, also those whose grace is not over: they may have gone together.
        let brake = if listed.volumes.is_empty() {
            Some(Brake::EmptyList)
        } else if self.since.len() > most {
            Some(Brake::TooMany)
        } else {
            None
        };
        match brake {
            Some(brake) if !due.is_empty() => plan.held = Some((brake, due)),
            Some(_) => {}
            None => plan.delete = due,
        }
        plan
    }
}

/// What is known of a volume after a look.
fn sight(before: Sight, named: Option<&bool>, revision: u64) -> Sight {
    match (before, named) {
        // It keeps the first revision of its policy: any list since then must have it.
        (Sight::Delete { .. }, Some(true)) => before,
        (_, Some(true)) => Sight::Delete { revision },
        (_, Some(false)) => Sight::Retain,
        (Sight::Delete { revision: seen }, None) if revision < seen => Sight::Kept,
        (before, None) => before,
    }
}

fn may_go(sight: Sight, was_used: bool) -> bool {
    match sight {
        Sight::Delete { .. } => true,
        Sight::Never => !was_used,
        Sight::Retain | Sight::Kept => false,
    }
}

impl Sight {
    /// What labels of a volume say. What cannot be read is kept.
    pub(super) fn read(labels: &Labels) -> Sight {
        let text = |name: &str| labels.get(name).map(LabelValue::as_str);
        let revision = text(REVISION).and_then(|text| text.parse().ok());
        match (text(POLICY), revision) {
            (None, _) => Sight::Never,
            (Some("Delete"), Some(revision)) => Sight::Delete { revision },
            (Some("Retain"), _) => Sight::Retain,
            (Some(_), _) => Sight::Kept,
        }
    }

    /// The labels with this in them.
    pub(super) fn write(self, mut labels: Labels) -> Result<Labels, model::ValidationError> {
        labels.retain(|key, _| ![POLICY, REVISION].contains(&key.as_str()));
        let policy = match self {
            Sight::Never => return Ok(labels),
            Sight::Delete { .. } => "Delete",
            Sight::Retain => "Retain",
            Sight::Kept => "Kept",
        };
        labels.insert(POLICY.parse::<LabelKey>()?, policy.parse::<LabelValue>()?);
        if let Sight::Delete { revision } = self {
            labels.insert(REVISION.parse()?, revision.to_string().parse()?);
        }
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 3;
    const NONE: [VolumeId; 0] = [];
    const SEEN: Sight = Sight::Delete { revision: 100 };

    fn id(nth: u8) -> VolumeId {
        format!("00000000-0000-4000-8000-0000000000{nth:02}").parse().unwrap()
    }

    fn volume(nth: u8, sight: Sight) -> Known {
        Known { id: id(nth), sight, was_used: true, is_in_use: false }
    }

    /// A list with volume 99, and these.
    fn listed(names: &[u8]) -> Listed {
        let volumes = names.iter().chain([&99]).map(|nth| (id(*nth), true)).collect();
        Listed { revision: 200, volumes, claims: BTreeSet::new() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// What is deleted after two looks at the same things, the grace apart.
    fn deleted(known: &[Known], listed: &Listed) -> Vec<VolumeId> {
        let mut orphans = Orphans::default();
        let first = orphans.look(at(1000), known, (listed, MOST));
        assert_eq!(first.delete, NONE, "nothing is deleted at the first look");
        let early = orphans.look(at(1059), known, (listed, MOST));
        assert_eq!(early.delete, NONE, "nothing is deleted before the grace is over");
        orphans.look(at(1060), known, (listed, MOST)).delete
    }

    #[test]
    fn a_volume_whose_persistent_volume_is_gone_is_deleted_after_the_grace() {
        assert_eq!(deleted(&[volume(1, SEEN), volume(2, SEEN)], &listed(&[2])), [id(1)]);
    }

    #[test]
    fn one_that_comes_back_within_the_grace_starts_anew() {
        let mut orphans = Orphans::default();
        let known = [volume(1, SEEN)];
        assert!(orphans.look(at(0), &known, (&listed(&[]), MOST)).is_waiting);
        assert!(!orphans.look(at(30), &known, (&listed(&[1]), MOST)).is_waiting);
        assert_eq!(orphans.look(at(70), &known, (&listed(&[]), MOST)).delete, NONE);
        assert_eq!(orphans.look(at(130), &known, (&listed(&[]), MOST)).delete, [id(1)]);
    }

    #[test]
    fn what_is_retained_or_in_use_or_waited_for_stays() {
        assert_eq!(deleted(&[volume(1, Sight::Retain)], &listed(&[])), NONE);
        assert_eq!(deleted(&[volume(1, Sight::Kept)], &listed(&[])), NONE);
        assert_eq!(deleted(&[Known { is_in_use: true, ..volume(1, SEEN) }], &listed(&[])), NONE);
        let waited = Listed { claims: [id(1).uuid()].into(), ..listed(&[]) };
        assert_eq!(deleted(&[volume(1, SEEN)], &waited), NONE);
    }

    /// A claim that goes is no change of a PersistentVolume, and is found by looking again.
    #[test]
    fn a_claim_without_its_persistent_volume_is_looked_at_again() {
        let (known, mut orphans) = ([volume(1, SEEN)], Orphans::default());
        let claimed = Listed { claims: [id(1).uuid()].into(), ..listed(&[]) };
        assert!(orphans.look(at(0), &known, (&claimed, MOST)).is_waiting);
        assert!(orphans.look(at(60), &known, (&listed(&[]), MOST)).is_waiting);
        assert_eq!(orphans.look(at(120), &known, (&listed(&[]), MOST)).delete, [id(1)]);
        let bound = Listed { claims: [id(1).uuid()].into(), ..listed(&[1]) };
        assert!(!orphans.look(at(180), &known, (&bound, MOST)).is_waiting);
    }

    #[test]
    fn one_without_a_persistent_volume_goes_only_if_no_node_ever_got_it() {
        assert_eq!(deleted(&[volume(1, Sight::Never)], &listed(&[])), NONE);
        let unused = Known { was_used: false, ..volume(1, Sight::Never) };
        assert_eq!(deleted(&[unused], &listed(&[])), [id(1)]);
    }

    #[test]
    fn an_empty_list_or_many_orphans_at_once_delete_nothing() {
        let known: Vec<Known> = (1..=4).map(|nth| volume(nth, SEEN)).collect();
        let ids: Vec<VolumeId> = known.iter().map(|volume| volume.id).collect();
        for (listed, brake) in [
            (listed(&[]), Brake::TooMany),
            (Listed { revision: 200, ..Listed::default() }, Brake::EmptyList),
        ] {
            let mut orphans = Orphans::default();
            orphans.look(at(0), &known, (&listed, MOST));
            let plan = orphans.look(at(60), &known, (&listed, MOST));
            assert_eq!((plan.delete, plan.held), (vec![], Some((brake, ids.clone()))));
        }
        // One that is due is held back by others that have just gone.
        let mut orphans = Orphans::default();
        let [first, rest @ ..] = &known[..] else { panic!("four") };
        orphans.look(at(0), std::slice::from_ref(first), (&listed(&[]), MOST));
        assert_eq!(rest.len(), MOST);
        let plan = orphans.look(at(60), &known, (&listed(&[]), MOST));
        assert_eq!(plan.held, Some((Brake::TooMany, vec![first.id])));
    }

    #[test]
    fn a_cluster_that_was_restored_from_an_older_backup_keeps_what_it_lost_for_good() {
        let mut older = listed(&[]);
        older.revision = 99;
        let mut orphans = Orphans::default();
        let plan = orphans.look(at(0), &[volume(1, SEEN)], (&older, MOST));
        assert_eq!(plan.marks, [(id(1), Sight::Kept)].into());
        // Later its revisions pass the one of the last sight.
        assert_eq!(deleted(&[volume(1, Sight::Kept)], &listed(&[])), NONE);
        // A PersistentVolume that is made anew ends that.
        let plan = orphans.look(at(0), &[volume(1, Sight::Kept)], (&listed(&[1]), MOST));
        assert_eq!(plan.marks, [(id(1), Sight::Delete { revision: 200 })].into());
    }

    #[test]
    fn what_is_seen_is_remembered_when_it_changes_and_only_then() {
        let look = |sight, delete: bool| {
            let mut listed = listed(&[]);
            listed.volumes.insert(id(1), delete);
            Orphans::default().look(at(0), &[volume(1, sight)], (&listed, MOST)).marks
        };
        let now = Sight::Delete { revision: 200 };
        assert_eq!(look(Sight::Never, true), [(id(1), now)].into());
        assert_eq!(look(Sight::Retain, true), [(id(1), now)].into());
        assert_eq!(look(SEEN, true), BTreeMap::new());
        assert_eq!(look(SEEN, false), [(id(1), Sight::Retain)].into());
        assert_eq!(look(Sight::Retain, false), BTreeMap::new());
    }

    #[test]
    fn labels_carry_it_and_what_they_do_not_say_is_kept() {
        let other: Labels = [("team".parse().unwrap(), "a".parse().unwrap())].into();
        for sight in [Sight::Never, SEEN, Sight::Retain, Sight::Kept] {
            let written = SEEN.write(other.clone()).unwrap();
            let written = sight.write(written).unwrap();
            assert_eq!(Sight::read(&written), sight);
            assert_eq!(written.get("team"), other.get("team"));
        }
        let mut broken = SEEN.write(other).unwrap();
        broken.insert(REVISION.parse().unwrap(), "soon".parse().unwrap());
        assert_eq!(Sight::read(&broken), Sight::Kept);
    }
}
