//! Which copies may be believed, and who may say so.

use std::collections::BTreeSet;

use model::*;
use proptest::prelude::*;

use crate::sample::{good, id};

fn set(ids: &[u32]) -> ReplicaSet {
    ReplicaSet::new(ids.iter().map(|&n| id(n)).collect()).unwrap()
}

#[test]
fn the_last_copy_in_sync_is_never_recorded_stale_or_removed() {
    let one = set(&[1, 2]).on(SetChange::Stale(id(1))).unwrap();
    for change in [SetChange::Stale(id(2)), SetChange::Removed(id(2))] {
        let refused = one.on(change).unwrap_err();
        assert_eq!(refused, SetRefused::LastInSync(id(2)));
        assert_eq!(Problem::from(refused).kind, ProblemKind::LastReplica);
    }
    assert!(!one.is_whole() && one.on(SetChange::Synced(id(1))).unwrap().is_whole());
}

#[test]
fn strangers_are_refused() {
    for change in [SetChange::Stale(id(9)), SetChange::Synced(id(9))] {
        assert_eq!(set(&[1]).on(change), Err(SetRefused::NotAMember(id(9))));
    }
    assert_eq!(ReplicaSet::new(BTreeSet::new()), Err(SetRefused::NotASet));
}

#[test]
fn a_set_that_cannot_be_is_not_read() {
    let member = "00000000-0000-4000-8000-000000000001";
    let stranger = "00000000-0000-4000-8000-000000000002";
    for (replicas, in_sync) in [(member, ""), ("", ""), (member, stranger)] {
        let list = |id: &str| if id.is_empty() { "[]".into() } else { format!("[\"{id}\"]") };
        let json = format!(
            r#"{{"generation":1,"replicas":{},"inSync":{}}}"#,
            list(replicas),
            list(in_sync)
        );
        let refused = serde_json::from_str::<ReplicaSet>(&json).unwrap_err().to_string();
        assert!(refused.contains("needs a copy in sync"), "{refused}");
    }
}

/// Whoever recovered a volume without some copies finds that said in its set, for good.
#[test]
fn what_was_abandoned_is_remembered() {
    let three = set(&[1, 2, 3]);
    let epoch = Epoch::FIRST.leap().unwrap();
    let left = three.abandon(&[id(2), id(3)].into(), epoch).unwrap();
    assert_eq!(left.replicas(), &[id(1)].into());
    assert_eq!((three.forked_at(), left.forked_at()), (None, Some(epoch)));
    assert!(left.generation() > three.generation());
    let later = left.on(SetChange::Added(id(4))).unwrap().on(SetChange::Synced(id(4))).unwrap();
    assert_eq!(later.forked_at(), Some(epoch));
    let json = serde_json::to_string(&later).unwrap();
    assert_eq!(serde_json::from_str::<ReplicaSet>(&json).unwrap(), later);
    assert_eq!(three.abandon(&BTreeSet::new(), epoch).unwrap(), three, "nothing was abandoned");
    let all = [id(1), id(2), id(3)].into();
    assert!(matches!(three.abandon(&all, epoch), Err(SetRefused::LastInSync(_))));
    // One that the set does not count any more is told of all the same.
    let stranger = three.abandon(&[id(9)].into(), epoch).unwrap();
    assert!(stranger.generation() > three.generation() && stranger.forked_at().is_some());
}

/// Ids of volumes are used again; ids of copies are not.
#[test]
fn a_set_knows_its_own_volume_however_many_copies_were_replaced() {
    let first = set(&[1, 2]);
    let moved = first.on(SetChange::Added(id(3))).unwrap().on(SetChange::Synced(id(3))).unwrap();
    let moved = moved.on(SetChange::Removed(id(1))).unwrap();
    let moved = moved.on(SetChange::Removed(id(2))).unwrap();
    assert!(!moved.is_foreign_to(&first) && set(&[3]).is_foreign_to(&first));
    let old = r#"{"generation":1,"replicas":["ID"],"inSync":["ID"]}"#;
    let old = old.replace("ID", &first.origin().unwrap().to_string());
    let old: ReplicaSet = serde_json::from_str(&old).unwrap();
    assert!(!old.is_foreign_to(&set(&[3])), "one that does not say is not judged");
}

#[test]
fn nothing_is_above_the_last_number() {
    let last = Epoch::new(u64::MAX).unwrap();
    assert_eq!((last.leap(), Epoch::FIRST.leap()), (None, Epoch::new((1 << 32) + 1)));
}

#[test]
fn only_the_owner_writes_the_record() {
    let first = TargetRecord::new(id(1), id(2), good("node-1"), set(&[1, 2]));
    let second = first.take(id(3), good("node-2"));
    assert!(second.stamp() > first.stamp());
    let changed = first.set().on(SetChange::Stale(id(1))).unwrap();
    let refused = second.record(first.epoch(), changed.clone()).unwrap_err();
    assert_eq!(refused.kind, ProblemKind::Fenced);
    assert!(refused.detail.contains("node-2"), "{refused}");
    assert_eq!(second.close(first.epoch()).unwrap_err().kind, ProblemKind::Fenced);

    let recorded = second.record(second.epoch(), changed).unwrap();
    let late = recorded.record(second.epoch(), set(&[1, 2])).unwrap_err();
    assert_eq!(late.kind, ProblemKind::StaleGeneration);
    let other = set(&[1, 2]).on(SetChange::Stale(id(2))).unwrap();
    let reused = recorded.record(second.epoch(), other).unwrap_err();
    assert_eq!(reused.kind, ProblemKind::GenerationReused);

    let closed = recorded.close(second.epoch()).unwrap();
    assert_eq!((closed.end(), recorded.end()), (ShutdownState::Clean, ShutdownState::Unclean));
    assert_eq!(closed.take(id(4), good("node-1")).end(), ShutdownState::Unclean);
}

#[test]
fn a_record_read_back_from_disks_outranks_every_owner_that_wrote_them() {
    let label = crate::sample::label();
    let record = TargetRecord::recovered(&label, id(9), good("node-1"));
    assert_eq!(record.epoch(), label.epoch.next());
    assert!(record.stamp() > label.stamp() && record.end() == ShutdownState::Unclean);
    assert_eq!((record.volume(), record.set()), (label.volume, &label.set));
}

fn changes() -> impl Strategy<Value = SetChange> {
    (0u8..4, 1u32..6).prop_map(|(kind, n)| match kind {
        0 => SetChange::Added(id(n)),
        1 => SetChange::Stale(id(n)),
        2 => SetChange::Synced(id(n)),
        _ => SetChange::Removed(id(n)),
    })
}

proptest! {
    #[test]
    fn one_copy_is_always_in_sync(walk in prop::collection::vec(changes(), 0..80)) {
        let mut set = set(&[1, 2, 3]);
        for change in walk {
            let Ok(next) = set.on(change) else { continue };
            prop_assert!(!next.in_sync().is_empty());
            prop_assert!(next.in_sync().is_subset(next.replicas()));
            let same = next.replicas() == set.replicas() && next.in_sync() == set.in_sync();
            let expected = if same { set.generation() } else { set.generation().next() };
            prop_assert_eq!(next.generation(), expected);
            // A copy is believed only if it was before, or because it was synced.
            let new: Vec<_> = next.in_sync().difference(set.in_sync()).collect();
            prop_assert!(new.is_empty() || matches!(change, SetChange::Synced(id) if new == [&id]));
            set = next;
        }
    }

    /// Old and new owners write in any order: epochs and generations never go back.
    #[test]
    fn records_never_go_back(
        walk in prop::collection::vec((prop::bool::ANY, 1u64..6, changes()), 0..60)
    ) {
        let mut record = TargetRecord::new(id(1), id(100), good("a"), set(&[1, 2, 3]));
        // What each owner believes the set to be; it is never told about later owners.
        let mut beliefs = vec![record.set().clone()];
        for (takes, writer, change) in walk {
            let before = record.stamp();
            if takes {
                record = record.take(id(101), good("b"));
                beliefs.push(record.set().clone());
            } else {
                let index = usize::try_from(writer).unwrap() % beliefs.len();
                let Ok(wanted) = beliefs[index].on(change) else { continue };
                let epoch = Epoch::new(u64::try_from(index).unwrap() + 1).unwrap();
                let owner = epoch == record.epoch();
                match record.record(epoch, wanted.clone()) {
                    Ok(written) => {
                        prop_assert!(owner);
                        beliefs[index] = wanted;
                        record = written;
                    }
                    Err(refused) => prop_assert!(!owner && refused.kind == ProblemKind::Fenced),
                }
            }
            prop_assert!(record.stamp() >= before);
        }
    }
}
