//! Specs that no cluster could satisfy, and changes that make no sense.

use std::collections::BTreeMap;

use model::*;

use crate::sample::{at, good, id, pool, target, volume_spec};

/// The refusal names the field and says what to do.
fn refused<S: Spec>(spec: &S, field: &str, remedy: &str) {
    let invalid = spec.validate().expect_err(field);
    assert_eq!(invalid.field(), field, "{invalid}");
    assert!(invalid.remedy().contains(remedy), "{invalid}");
    assert!(invalid.to_string().contains(invalid.value()), "{invalid}");
}

fn volume(change: impl Fn(&mut VolumeSpec)) -> VolumeSpec {
    let mut spec = volume_spec();
    assert_eq!(spec.validate(), Ok(()));
    change(&mut spec);
    spec
}

#[test]
fn volumes() {
    for size in [Size::ZERO, Size::kib(1023), Size::gib(1 << 21), good("1048577")] {
        refused(&volume(|spec| spec.size = size), "size", "1MiB to 1024TiB in steps of 4KiB");
    }
    for replicas in [0, 9, 255] {
        refused(&volume(|spec| spec.replicas = replicas), "replicas", "1 to 8");
    }
    refused(&volume(|spec| spec.limits.iops = Some(0)), "limits.iops", "at least 1");
    let slow = volume(|spec| spec.limits.bytes_per_second = Some(Size::kib(1)));
    refused(&slow, "limits.bytesPerSecond", "1MiB");
    let many = volume(|spec| {
        spec.labels = (0..65).map(|n| (good(&format!("l{n}")), good(""))).collect();
    });
    refused(&many, "labels", "at most 64");
}

#[test]
fn topologies_that_contradict_themselves() {
    let rules = |change: fn(&mut Topology)| volume(|spec| change(&mut spec.topology));
    refused(
        &rules(|topology| topology.allowed_nodes = [good("node-1")].into()),
        "topology.allowedNodes",
        "at least 3",
    );
    refused(
        &rules(|topology| topology.preferred_nodes = [good("node-9")].into()),
        "topology.preferredNodes",
        "allowed",
    );
    refused(
        &rules(|topology| topology.nodes.same_as = [good("rack")].into()),
        "topology.nodes.spread",
        "drop it",
    );
    refused(
        &rules(|topology| topology.nodes.exclude = BTreeMap::from([(good("disk"), [].into())])),
        "topology.nodes.include",
        "change one",
    );
    refused(
        &rules(|topology| {
            topology.nodes.exclude = BTreeMap::from([(good("disk"), [good("nvme")].into())]);
        }),
        "topology.nodes.include",
        "change one",
    );
    refused(
        &rules(|topology| topology.nodes.exclude = BTreeMap::from([(good("rack"), [].into())])),
        "topology.nodes.exclude",
        "change one",
    );
    refused(
        &rules(|topology| {
            topology.pools.spread = [good("tier")].into();
            topology.pools.include =
                BTreeMap::from([(good("tier"), [good("a"), good("b")].into())]);
        }),
        "topology.pools.spread",
        "3 replicas need 3 values",
    );
    // Preferring without allowing is fine, and so is excluding one value of an included label.
    let fine = rules(|topology| {
        topology.allowed_nodes.clear();
        topology.preferred_nodes = [good("node-9")].into();
        topology.nodes.include = BTreeMap::from([(good("disk"), [].into())]);
        topology.nodes.exclude = BTreeMap::from([(good("disk"), [good("hdd")].into())]);
    });
    assert_eq!(fine.validate(), Ok(()));
}

#[test]
fn pools() {
    let spec = |change: fn(&mut PoolSpec)| {
        let mut spec = pool().spec().clone();
        change(&mut spec);
        spec
    };
    refused(&spec(|spec| spec.disks.clear()), "disks", "1 to 64");
    refused(&spec(|spec| spec.disks = vec![good("/dev/a"), good("/dev/a")]), "disks", "once");
    refused(
        &spec(|spec| spec.cluster_size = Some(Size::kib(128))),
        "clusterSize",
        "256KiB to 64MiB",
    );
    refused(&spec(|spec| spec.cluster_size = Some(Size::mib(3))), "clusterSize", "power of two");
}

#[test]
fn the_rest() {
    let mut node = crate::sample::node().spec().clone();
    node.address.data.clear();
    refused(&node, "address.data", "at least one");
    let mut spec = target().spec().clone();
    spec.children[1].replica = id(20);
    refused(&spec, "children", "once");
    spec.children.clear();
    refused(&spec, "children", "1 to 9");
    let mut group = crate::sample::snapshot_group().spec().clone();
    group.snapshots.insert(id(12), id(40));
    refused(&group, "snapshots", "its own snapshot id");
    group.snapshots.clear();
    refused(&group, "snapshots", "1 to 64");
}

/// A change that the spec refuses, with the kind the caller gets. Nothing is written down.
fn change<S: Spec>(spec: &S, id: S::Id, change: S::Change, kind: ProblemKind) {
    let mut object = Resource::new(id, spec.clone(), at(0)).unwrap();
    object.made().unwrap();
    let before = object.clone();
    let asked = format!("{change:?}");
    let problem = object.begin(change, at(1)).expect_err(&asked);
    assert_eq!(problem.kind, kind, "{problem}");
    assert!(problem.field.is_some(), "{problem}");
    assert_eq!(object, before);
}

#[test]
fn changes_of_volumes() {
    let spec = volume_spec();
    let volume = |request, kind| change(&spec, id(1), request, kind);
    volume(VolumeChange::Resize { size: Size::gib(9) }, ProblemKind::OutOfRange);
    volume(VolumeChange::Resize { size: good("10GB") }, ProblemKind::OutOfRange);
    volume(VolumeChange::Resize { size: good("11000000001") }, ProblemKind::InvalidArgument);
    volume(VolumeChange::SetReplicas { replicas: 0 }, ProblemKind::InvalidArgument);
    // Four copies cannot be spread over three allowed nodes.
    volume(VolumeChange::SetReplicas { replicas: 4 }, ProblemKind::InvalidArgument);
    for other in [
        VolumeSpec { size: Size::gib(11), ..spec.clone() },
        VolumeSpec { replicas: 2, ..spec.clone() },
        VolumeSpec { thin: true, ..spec.clone() },
        VolumeSpec { source: None, ..spec.clone() },
        VolumeSpec { encryption: None, ..spec.clone() },
        VolumeSpec { limits: QosLimits { iops: Some(0), ..spec.limits }, ..spec.clone() },
    ] {
        volume(VolumeChange::Modify { spec: Box::new(other) }, ProblemKind::InvalidArgument);
    }
    let none = VolumeSpec { max_snapshots: Some(0), ..spec.clone() };
    let snapshot = VolumeChange::CreateSnapshot { snapshot: id(2) };
    change(&none, id(1), snapshot, ProblemKind::SnapshotLimit);
}

#[test]
fn changes_of_the_rest() {
    let node = crate::sample::node().spec().clone();
    let lift = NodeChange::Uncordon { cordon: good("unknown") };
    change(&node, good("n"), lift, ProblemKind::NotFound);

    let mut open = pool().spec().clone();
    let add = PoolChange::AddDisk { disk: good("/dev/sdx") };
    change(&open, good("p"), add, ProblemKind::NotSupported);
    open.exported = false;
    let import = PoolChange::Import { node: good("b"), disks: vec![good("/dev/a")] };
    change(&open, good("p"), import, ProblemKind::InUse);
    let lift = PoolChange::Uncordon { cordon: good("unknown") };
    change(&open, good("p"), lift, ProblemKind::NotFound);

    let replica = crate::sample::replica().spec().clone();
    change(&replica, id(1), ReplicaChange::Resize { size: Size::gib(9) }, ProblemKind::InUse);

    let mut serving = target().spec().clone();
    let remove = TargetChange::RemoveChild { replica: id(20) };
    change(&serving, id(1), remove, ProblemKind::Fenced);
    serving.shutdown = false;
    let remove = TargetChange::RemoveChild { replica: id(99) };
    change(&serving, id(1), remove, ProblemKind::NotFound);
    change(&serving, id(1), TargetChange::Resize { size: Size::gib(1) }, ProblemKind::OutOfRange);
    serving.children.truncate(1);
    let last = TargetChange::RemoveChild { replica: id(20) };
    change(&serving, id(1), last, ProblemKind::InvalidArgument);
}
