//! One of everything, with every field used.

use std::collections::BTreeMap;
use std::str::FromStr;

use model::*;

/// What is written by hand here is right.
pub(crate) fn good<T: FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

/// The `n`th id of its kind.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
    good(&format!("00000000-0000-4000-8000-{n:012}"))
}

pub(crate) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis((1_794_778_258 + seconds) * 1000)
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| (good(key), good(value))).collect()
}

fn address(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap()
}

fn usage() -> Usage {
    Usage { capacity: Size::gib(10), allocated: Size::mib(300), snapshots: Size::mib(12) }
}

/// The problem of a node that does not answer.
pub(crate) fn problem() -> Problem {
    Problem::new(
        ProblemKind::NodeUnavailable,
        "node node-3 does not answer; see `holdfast node get node-3`",
    )
}

pub(crate) fn node() -> Node {
    let nqn = Nqn::node(&good("node-1")).unwrap();
    let data = vec![address("10.0.0.1:4420"), address("[fd00::1]:4420")];
    let spec = NodeSpec {
        address: NodeAddress { api: address("10.0.0.1:8421"), data, nqn },
        labels: labels(&[(LabelKey::ZONE, "a"), ("disk", "nvme")]),
        cordons: [good("upgrade")].into(),
        drains: [good("replace-fan")].into(),
    };
    let mut node = Node::new(good("node-1"), spec, at(0)).unwrap();
    node.made().unwrap();
    node.begin(NodeChange::Uncordon { cordon: good("upgrade") }, at(5)).unwrap();
    node.status = Some(NodeStatus {
        liveness: Liveness::Unknown { reason: UnknownReason::Late },
        instance: Some(id(1)),
        version: Some("0.1.0".into()),
        seen_at: Some(at(4)),
        drain: Some(DrainStatus {
            targets: [id(30)].into(),
            replicas: [id(20)].into(),
            blocked: vec!["replica … : no other node has a pool with the label disk=nvme".into()],
        }),
    });
    node
}

pub(crate) fn heartbeat() -> Heartbeat<NodeAddress> {
    let address = node().spec().address.clone();
    let told = Some(StoreMark { store: id(3), number: 17 });
    Heartbeat { instance: id(1), version: "0.1.0".into(), address, told }
}

pub(crate) fn host() -> Host {
    let nqn = good("nqn.2014-08.org.nvmexpress:uuid:5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10");
    let address = HostAddress { nqn, agent: Some(address("10.0.0.7:8422")), machine: None };
    let spec = HostSpec { address, labels: labels(&[(LabelKey::ZONE, "b")]) };
    let mut host = Host::new(good("worker-7"), spec, at(0)).unwrap();
    host.made().unwrap();
    let path = PathStatus { address: "10.0.0.1:4420".parse().unwrap(), state: PathState::Live };
    host.status = Some(HostStatus {
        liveness: Liveness::Online,
        instance: Some(id(2)),
        seen_at: Some(at(9)),
        attached: BTreeMap::from([(id(10), vec![path])]),
    });
    host
}

pub(crate) fn watch() -> Webhook {
    let spec = WebhookSpec {
        url: good("https://pager.example.org:8443/holdfast"),
        about: Some(Subject::Volume(id(10))),
        severity: Some(Severity::Warning),
    };
    let mut watch = Webhook::new(good("pager"), spec, at(0)).unwrap();
    watch.made().unwrap();
    watch.status = Some(WebhookStatus {
        delivered: 7,
        missed: 2,
        missed_since: 1,
        after: 9,
        delivered_at: Some(at(8)),
        failure: Some("it answered 503".into()),
    });
    watch
}

pub(crate) fn pool() -> Pool {
    let disk: DevicePath = good("/dev/disk/by-id/nvme-eui.0025385b71b0c4a1");
    let spec = PoolSpec {
        node: good("node-1"),
        disks: vec![disk.clone()],
        uuid: Some(id(5)),
        import: true,
        exported: true,
        cluster_size: Some(Size::mib(4)),
        labels: labels(&[("example.org/tier", "fast")]),
        cordons: [good("dying")].into(),
    };
    let mut pool = Pool::new(good("pool-1"), spec, at(0)).unwrap();
    pool.made().unwrap();
    let import = PoolChange::Import { node: good("node-2"), disks: vec![good("/dev/sdb")] };
    pool.begin(import, at(1)).unwrap();
    pool.end(Outcome::Failed { problem: problem() }).unwrap();
    let detail = "65 errors in 10 minutes".into();
    let symptom = DiskFinding { disk: disk.clone(), kind: DiskFindingKind::IoErrors, detail };
    pool.status = Some(PoolStatus {
        state: PoolState::Suspect { symptoms: vec![symptom] },
        uuid: id(5),
        capacity: Size::gib(100),
        used: Size::gib(1),
        committed: Size::gib(10),
        cluster_size: Size::mib(4),
        disks: vec![DiskStatus {
            path: disk,
            size: Size::gib(101),
            io_errors: 65,
            checksum_errors: 0,
            stalls: 2,
        }],
    });
    pool
}

pub(crate) fn set() -> ReplicaSet {
    let set = ReplicaSet::new([id(20), id(21), id(22)].into()).unwrap();
    set.on(SetChange::Stale(id(22))).unwrap()
}

pub(crate) fn note() -> SyncMetadata {
    let mut intents = RegionSet::new(256.try_into().unwrap());
    for region in [0, 1, 70] {
        intents.insert(region);
    }
    let mut missed = intents.clone();
    missed.remove(70);
    SyncMetadata {
        label: label(),
        owner: id(30),
        sequence: 7,
        settled: Some(SyncStamp { epoch: Epoch::new(3).unwrap(), sequence: 6 }),
        incarnation: 3,
        loss: 1,
        intents,
        missed: [(id(21), missed)].into(),
        left: [(id(21), SyncStamp { epoch: Epoch::new(2).unwrap(), sequence: 4 })].into(),
        reservations: Box::new(reservations()),
    }
}

pub(crate) fn reservations() -> HostReservations {
    let host = HostIdentifier([0x5A; 16]);
    HostReservations {
        generation: 2,
        persist: true,
        registrants: vec![Registrant { host, key: 0xAB }],
        held: Some(HeldReservation {
            kind: ReservationKind::WriteExclusiveRegistrants,
            holder: Some(host),
        }),
    }
}

pub(crate) fn label() -> ReplicaLabel {
    let epoch = Epoch::new(3).unwrap();
    ReplicaLabel { volume: id(10), replica: id(20), size: Size::gib(10), epoch, set: set() }
}

pub(crate) fn replica() -> Replica {
    let spec = ReplicaSpec {
        volume: id(10),
        pool: good("pool-1"),
        size: Size::gib(10),
        thin: true,
        source: Some(id(40)),
        encryption: Some(Encryption { key: good("team-a") }),
        hosts: [Nqn::node(&good("node-2")).unwrap()].into(),
    };
    let mut replica = Replica::new(id(20), spec, at(0)).unwrap();
    replica.made().unwrap();
    replica.begin(ReplicaChange::Resize { size: Size::gib(20) }, at(7)).unwrap();
    replica.status = Some(ReplicaStatus {
        state: ReplicaState::Online,
        usage: usage(),
        label: Some(label()),
        fence: Epoch::new(7),
        spec_backup: Some(SpecBackup::of(&small_volume())),
        addresses: vec![address("10.0.0.1:4420")],
    });
    replica
}

pub(crate) fn target() -> Target {
    let remote = ChildPath::Remote { addresses: vec![address("10.0.0.2:4420")] };
    let host = host();
    let spec = TargetSpec {
        volume: id(10),
        node: good("node-1"),
        epoch: Epoch::new(3).unwrap(),
        size: Size::gib(10),
        children: vec![
            Child { replica: id(20), path: ChildPath::Local {}, offline: false },
            Child { replica: id(21), path: remote.clone(), offline: false },
            Child { replica: id(22), path: remote, offline: true },
        ],
        hosts: BTreeMap::from([(host.id().clone(), host.spec().address.nqn.clone())]),
        limits: QosLimits { iops: Some(5000), bytes_per_second: Some(Size::mib(200)) },
        ana: Ana::NonOptimized,
        shutdown: true,
    };
    let mut target = Target::new(id(30), spec, at(0)).unwrap();
    target.made().unwrap();
    target.begin(TargetChange::Shutdown {}, at(3)).unwrap();
    target.end(Outcome::Done {}).unwrap();
    let child = |n, state, progress| ChildStatus { replica: id(n), state, progress };
    let progress = Progress { total: Size::gib(8), done: Size::gib(2), copied: Size::mib(100) };
    target.status = Some(TargetStatus {
        state: TargetState::Suspended {
            cause: SuspendReason::NotRecorded,
            io: SuspendedIo::Waiting,
        },
        children: vec![
            child(20, ChildState::InSync, None),
            child(21, ChildState::Rebuilding, Some(progress)),
            child(22, ChildState::Faulted { reason: FaultReason::NoSpace }, None),
        ],
        addresses: vec![address("10.0.0.1:4420")],
        connected: [host.spec().address.nqn.clone()].into(),
        conflicts: vec![LabelConflict {
            replica: id(21),
            reason: ConflictReason::NewerSet {
                label: Generation::new(9).unwrap(),
                record: Generation::new(7).unwrap(),
            },
        }],
    });
    target
}

pub(crate) fn target_record() -> TargetRecord {
    let set = ReplicaSet::new([id(20), id(21), id(22)].into()).unwrap();
    let first = TargetRecord::new(id(10), id(31), good("node-2"), set);
    let taken = first.take(id(30), good("node-1"));
    taken.record(taken.epoch(), self::set()).unwrap()
}

pub(crate) fn volume_spec() -> VolumeSpec {
    VolumeSpec {
        name: Some(good("orders-db")),
        thin: false,
        shared: true,
        source: Some(Source::Snapshot { snapshot: id(40) }),
        encryption: Some(Encryption { key: good("team-a") }),
        affinity_group: Some(good("prod/db")),
        policy: VolumePolicy { self_heal: false, replace_after_seconds: Some(600) },
        topology: Topology {
            allowed_nodes: [good("node-1"), good("node-2"), good("node-3")].into(),
            preferred_nodes: [good("node-1")].into(),
            nodes: LabelRules {
                include: BTreeMap::from([(good("disk"), [good("nvme")].into())]),
                exclude: BTreeMap::from([(good("spot"), [].into())]),
                spread: [good("rack")].into(),
                same_as: [good("room")].into(),
            },
            pools: LabelRules {
                include: BTreeMap::from([(good("example.org/tier"), [].into())]),
                ..LabelRules::default()
            },
            zones: Zones::Require,
        },
        limits: QosLimits { iops: Some(5000), bytes_per_second: Some(Size::mib(200)) },
        max_snapshots: Some(10),
        labels: labels(&[("app", "db")]),
        ..VolumeSpec::new(Size::gib(10), 3)
    }
}

pub(crate) fn volume() -> Volume {
    let mut volume = Volume::new(id(10), volume_spec(), at(0)).unwrap();
    volume.made().unwrap();
    let (from, target, node) = (id(31), id(30), good("node-1"));
    volume.begin(VolumeChange::Republish { from, target, node }, at(60)).unwrap();
    let replica = VolumeReplica {
        node: good("node-1"),
        pool: good("pool-1"),
        state: ReplicaState::Faulted { detail: "the pool is damaged".into() },
        child: Some(ChildState::Stale),
        usage: usage(),
        progress: Some(Progress { total: Size::gib(8), done: Size::ZERO, copied: Size::ZERO }),
    };
    volume.status = Some(VolumeStatus {
        state: VolumeState::Degraded,
        reasons: vec!["1 of 3 copies is not in sync".into()],
        target: Some(VolumeTarget {
            id: id(30),
            node: good("node-1"),
            epoch: Epoch::new(3).unwrap(),
            state: Some(TargetState::Degraded),
            nqn: Nqn::volume(id(10)),
            addresses: vec![address("10.0.0.1:4420")],
            hosts: [good("worker-7")].into(),
            host_nqns: [(good("worker-7"), Nqn::publication(id(31)))].into(),
        }),
        replicas: BTreeMap::from([(id(20), replica)]),
        usage: usage(),
        snapshots: 1,
    });
    volume
}

/// As small as a request can be.
pub(crate) fn small_volume() -> Volume {
    Volume::new(id(11), VolumeSpec::new(Size::mib(1), 1), at(0)).unwrap()
}

pub(crate) fn snapshot() -> Snapshot {
    let spec = SnapshotSpec {
        name: Some("before-upgrade".parse().unwrap()),
        volume: id(10),
        group: Some(id(50)),
        labels: labels(&[("why", "backup")]),
    };
    let mut snapshot = Snapshot::new(id(40), spec, at(100)).unwrap();
    snapshot.made().unwrap();
    snapshot.begin(SnapshotChange::Restore { volume: id(12) }, at(120)).unwrap();
    let copy = SnapshotCopy { replica: id(20), online: true, usage: usage() };
    snapshot.status = Some(SnapshotStatus {
        state: SnapshotState::Ready,
        taken_at: at(101),
        size: Size::gib(10),
        consistency: Consistency::FileSystem,
        copies: BTreeMap::from([(good("pool-1"), copy)]),
    });
    snapshot
}

pub(crate) fn snapshot_label() -> SnapshotLabel {
    SnapshotLabel {
        snapshot: id(40),
        volume: id(10),
        replica: id(20),
        group: Some(id(50)),
        taken_at: at(101),
        size: Size::gib(10),
        consistency: Consistency::Crash,
    }
}

pub(crate) fn snapshot_group() -> SnapshotGroup {
    let spec = SnapshotGroupSpec {
        name: Some("nightly".parse().unwrap()),
        snapshots: BTreeMap::from([(id(10), id(40)), (id(11), id(41))]),
        labels: labels(&[("why", "backup")]),
    };
    let mut group = SnapshotGroup::new(id(50), spec, at(100)).unwrap();
    group.made().unwrap();
    group.delete().unwrap();
    group.status = Some(SnapshotGroupStatus {
        state: SnapshotState::Degraded,
        taken_at: at(101),
        consistency: Consistency::Crash,
    });
    group
}

pub(crate) fn failover() -> Failover {
    let cause =
        FailoverReason::PathLost { host: good("worker-7"), address: address("10.0.0.2:4420") };
    let hosts = [(good("worker-7"), host().spec().address.nqn.clone())].into();
    let plan = FailoverPlan { volume: id(10), cause, from: id(31), hosts };
    let mut failover = Failover::new(id(70), plan, at(50));
    failover.on(FailoverEvent::Begin, at(51)).unwrap();
    failover.on(FailoverEvent::Republished { to: id(30) }, at(52)).unwrap();
    failover.retry(at(53));
    failover
}

pub(crate) fn rebuild() -> Rebuild {
    let plan = RebuildPlan {
        volume: id(10),
        target: id(30),
        replica: id(22),
        sources: [id(20), id(21)].into(),
        extent: RebuildKind::Partial,
    };
    let mut rebuild = Rebuild::new(id(60), plan, at(70));
    rebuild.on(RebuildEvent::Start, at(71)).unwrap();
    rebuild.progress = Progress { total: Size::mib(64), done: Size::mib(16), copied: Size::mib(8) };
    rebuild.on(RebuildEvent::Fail(problem()), at(75)).unwrap();
    rebuild
}

pub(crate) fn event() -> Event {
    Event {
        number: 4711,
        at: at(53),
        subject: Subject::Volume(id(10)),
        name: EventName::ChildLost,
        severity: Severity::Warning,
        message: "replica … on node-3 did not answer for 5 s".into(),
        origin: None,
    }
}

pub(crate) fn block_device() -> BlockDevice {
    BlockDevice {
        path: good("/dev/nvme0n1p1"),
        links: vec![good("/dev/disk/by-id/nvme-eui.0025385b71b0c4a1-part1")],
        kind: DeviceKind::Partition,
        size: Size::gib(100),
        traits: DiskTraits {
            logical_block_size: 512,
            physical_block_size: 4096,
            atomic_write_unit: 4096,
            write_cache: WriteCache::Volatile,
            rotational: false,
        },
        model: Some("Example 980".into()),
        serial: Some("S1".into()),
        parent: Some(good("/dev/nvme0n1")),
        obstacles: vec![
            IneligibleReason::ReadOnly,
            IneligibleReason::Mounted { path: "/boot".into() },
        ],
    }
}

pub(crate) fn quarantine() -> Quarantine {
    let label = ReplicaLabel { replica: id(21), ..label() };
    let since = good("2026-11-15T21:30:58.000Z");
    Quarantine::new(&label, good("pool-1"), QuarantineCause::Newer, since)
}
