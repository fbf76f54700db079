//! The life of a resource: whatever is asked of it in whatever order, it stays sound.

use std::collections::BTreeMap;

use model::*;
use proptest::prelude::*;

use crate::sample::{at, good, id, problem};

fn fresh() -> Volume {
    Volume::new(id(1), VolumeSpec::new(Size::gib(1), 2), at(0)).unwrap()
}

fn idle() -> Volume {
    let mut volume = fresh();
    volume.made().unwrap();
    volume
}

#[test]
fn a_change_is_in_effect_only_when_committed() {
    let mut volume = idle();
    volume.begin(VolumeChange::Resize { size: Size::gib(2) }, at(1)).unwrap();
    assert_eq!(volume.spec().size, Size::gib(1));
    assert_eq!(volume.order().spec.size, Size::gib(2));
    assert!(volume.commit().is_err());
    volume.end(Outcome::Done {}).unwrap();
    volume.commit().unwrap();
    assert_eq!(volume.spec().size, Size::gib(2));
    assert_eq!(volume.generation(), Generation::new(2).unwrap());
}

#[test]
fn a_change_without_steps_is_done_at_once() {
    let mut node = crate::sample::node();
    assert_eq!(
        node.change(NodeChange::Cordon { cordon: good("x") }, at(9)).unwrap_err().kind,
        ProblemKind::Busy
    );
    node.end(Outcome::Done {}).unwrap();
    node.commit().unwrap();
    node.change(NodeChange::Cordon { cordon: good("x") }, at(9)).unwrap();
    assert!(node.spec().cordons.contains("x") && node.lifecycle().is_idle());
}

#[test]
fn an_undone_change_leaves_no_trace_but_a_generation() {
    let mut volume = idle();
    volume.begin(VolumeChange::Resize { size: Size::gib(2) }, at(1)).unwrap();
    let late = volume.order();
    volume.end(Outcome::Failed { problem: problem() }).unwrap();
    volume.commit().unwrap();
    assert_eq!(volume.spec().size, Size::gib(1));
    // The order of the undone change may still be under way; it must lose.
    assert!(matches!(late.admit(Some(&volume.order())), Err(GenerationConflict::Stale { .. })));
}

#[test]
fn wishes_at_the_wrong_time_are_told_why() {
    let resize = VolumeChange::Resize { size: Size::gib(2) };
    let mut creating = fresh();
    assert_eq!(creating.begin(resize.clone(), at(1)).unwrap_err().kind, ProblemKind::Busy);
    let mut busy = idle();
    busy.begin(resize.clone(), at(1)).unwrap();
    assert_eq!(busy.begin(resize.clone(), at(2)).unwrap_err().kind, ProblemKind::Busy);
    let refused = busy.delete().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::Busy);
    assert!(refused.detail.contains("try again"), "{refused}");
    let mut going = idle();
    going.delete().unwrap();
    assert_eq!(going.begin(resize, at(1)).unwrap_err().kind, ProblemKind::Deleting);
    assert_eq!(going.again(going.spec()).unwrap_err().kind, ProblemKind::Deleting);
    assert!(going.delete().is_ok());
    creating.delete().unwrap();
}

#[test]
fn asking_again_is_harmless_and_asking_otherwise_is_refused() {
    let volume = fresh();
    assert!(volume.again(&VolumeSpec::new(Size::gib(1), 2)).is_ok());
    let other = volume.again(&VolumeSpec::new(Size::gib(1), 3)).unwrap_err();
    assert_eq!(other.kind, ProblemKind::AlreadyExists);
    assert_eq!(volume.expect(Generation::FIRST), Ok(()));
    let stale = volume.expect(Generation::new(9).unwrap()).unwrap_err();
    assert_eq!(stale.kind, ProblemKind::StaleGeneration);
}

#[test]
fn a_pool_request_without_uuid_is_satisfied_by_the_chosen_one() {
    let pool = crate::sample::pool();
    let request = PoolSpec { uuid: None, ..pool.spec().clone() };
    assert!(pool.again(&request).is_ok());
    let other = PoolSpec { uuid: Some(id(6)), ..pool.spec().clone() };
    assert_eq!(pool.again(&other).unwrap_err().kind, ProblemKind::AlreadyExists);
}

#[derive(Clone, Debug)]
enum Ask {
    Made,
    Begin(VolumeChange),
    End(Outcome),
    Commit,
    Delete,
    Gone,
    /// The process dies and reads what is stored.
    Restart,
}

fn asks() -> impl Strategy<Value = Ask> {
    let change = prop_oneof![
        (0u32..4).prop_map(|n| VolumeChange::Resize { size: Size::gib(n) }),
        (0u8..10).prop_map(|replicas| VolumeChange::SetReplicas { replicas }),
        Just(VolumeChange::Unpublish { host: None, force: true }),
        (1u32..3, 1u8..4).prop_map(|(size, replicas)| VolumeChange::Modify {
            spec: Box::new(VolumeSpec {
                max_snapshots: Some(size),
                ..VolumeSpec::new(Size::gib(size), replicas)
            }),
        }),
    ];
    prop_oneof![
        3 => Just(Ask::Made),
        4 => change.prop_map(Ask::Begin),
        3 => Just(Ask::End(Outcome::Done {})),
        2 => Just(Ask::End(Outcome::Failed { problem: problem() })),
        4 => Just(Ask::Commit),
        1 => Just(Ask::Delete),
        1 => Just(Ask::Gone),
        2 => Just(Ask::Restart),
    ]
}

fn perform(volume: &mut Volume, ask: Ask) -> Result<(), Problem> {
    match ask {
        Ask::Made => volume.made()?,
        Ask::Begin(change) => volume.begin(change, at(1))?,
        Ask::End(outcome) => volume.end(outcome)?,
        Ask::Commit => volume.commit()?,
        Ask::Delete => volume.delete()?,
        Ask::Gone => volume.gone()?,
        Ask::Restart => {
            let bytes = envelope::encode(volume).unwrap();
            *volume = envelope::decode(bytes.as_bytes()).unwrap();
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_sequence_is_accepted_or_refused(asks in prop::collection::vec(asks(), 0..60)) {
        let mut volume = fresh();
        let mut contents: BTreeMap<Generation, VolumeSpec> = BTreeMap::new();
        for ask in asks {
            let before = volume.clone();
            if perform(&mut volume, ask).is_err() {
                prop_assert_eq!(&volume, &before, "a refusal changes nothing");
            }
            prop_assert!(volume.spec().validate().is_ok());
            prop_assert!(volume.generation() >= before.generation());
            prop_assert!(volume.spec().size >= before.spec().size, "volumes never shrink");
            let gone = matches!(before.lifecycle(), Lifecycle::Deleted {});
            prop_assert!(!gone || volume == before, "the dead stay dead");
            // One generation, one content.
            let order = volume.order();
            let known = contents.entry(order.generation).or_insert_with(|| order.spec.clone());
            prop_assert_eq!(&*known, &order.spec);
        }
    }

    /// Applying a change twice is the same as once, for every kind of resource.
    #[test]
    fn changes_are_idempotent(pick in 0usize..12) {
        fn twice<S: Spec>(spec: &S, change: &S::Change) -> bool {
            let mut once = spec.clone();
            once.apply(change);
            let mut again = once.clone();
            again.apply(change);
            once == again
        }
        let child = Child { replica: id(99), path: ChildPath::Local {}, offline: false };
        let (target, pool, node) =
            (crate::sample::target(), crate::sample::pool(), crate::sample::node());
        let done = match pick {
            0 => twice(target.spec(), &TargetChange::PutChild { child }),
            1 => twice(target.spec(), &TargetChange::RemoveChild { replica: id(20) }),
            2 => twice(target.spec(), &TargetChange::Shutdown {}),
            3 => twice(target.spec(), &TargetChange::SetAna { ana: Ana::Inaccessible }),
            4 => twice(pool.spec(), &PoolChange::AddDisk { disk: good("/dev/sdz") }),
            5 => twice(pool.spec(), &PoolChange::Export {}),
            6 => twice(pool.spec(), &PoolChange::Import { node: good("b"), disks: vec![] }),
            7 => twice(pool.spec(), &PoolChange::Uncordon { cordon: good("dying") }),
            8 => twice(node.spec(), &NodeChange::Drain { cordon: good("x") }),
            9 => twice(node.spec(), &NodeChange::Uncordon { cordon: good("upgrade") }),
            10 => twice(node.spec(), &NodeChange::Label { labels: Labels::new() }),
            _ => twice(fresh().spec(), &VolumeChange::Resize { size: Size::gib(9) }),
        };
        prop_assert!(done);
    }
}
