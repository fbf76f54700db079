//! A cluster that has long been in use: many volumes, all well.

use std::collections::BTreeSet;

use model::envelope::encode;
use model::{
    Ana, Child, ChildPath, HostName, Labels, Node, NodeName, NodeSpec, Nqn, Pool, PoolName,
    PoolSpec, PoolUuid, QosLimits, Replica, ReplicaId, ReplicaSet, ReplicaSpec, Size, Target,
    TargetId, TargetRecord, TargetSpec, TargetState, TargetStatus, Timestamp, Volume, VolumeId,
    VolumeSpec, keys,
};
use store::contract::{Op, Txn};
use uuid::Uuid;

use super::Cluster;
use super::engine::{Copy, Serving};

/// Records written at once.
const AT_ONCE: usize = 100;

/// The volume with this number.
pub fn volume_id(number: usize) -> VolumeId {
    let bits = u128::try_from(number).unwrap_or(0) + (1 << 100);
    VolumeId::new(Uuid::from_u128(bits)).unwrap_or_else(|error| unreachable!("{error}"))
}

/// Adds a pool to each node, and volumes with three copies each, spread over the nodes; the first
/// node has a copy of each of the first `crowd` volumes.
pub fn fill(cluster: &mut Cluster, (volumes, crowd): (usize, usize), now: Timestamp) {
    fill_with(cluster, (volumes, crowd), false, now);
}

/// The same, and all are published: each has its target where its first copy is.
pub fn fill_published(cluster: &mut Cluster, (volumes, crowd): (usize, usize), now: Timestamp) {
    fill_with(cluster, (volumes, crowd), true, now);
    cluster.settle();
    cluster.news.clear();
}

fn fill_with(
    cluster: &mut Cluster,
    (volumes, crowd): (usize, usize),
    published: bool,
    now: Timestamp,
) {
    let mut ops = Vec::new();
    let names: Vec<NodeName> = cluster.engines.keys().cloned().collect();
    for engine in cluster.engines.values_mut() {
        engine.capacity = Size::gib(100_000);
        let (node, pool) = made_node(engine, now);
        ops.push(Op::put(keys::of::<Node>(node.id()), text(encode(&node))));
        ops.push(Op::put(keys::of::<Pool>(pool.id()), text(encode(&pool))));
        let generation = Some(pool.generation());
        engine.disks.insert(pool.id().clone());
        engine.pools.insert(pool.id().clone(), (generation, pool.spec().clone()));
    }
    for number in 0..volumes {
        let id = volume_id(number);
        let mut volume = Volume::new(id, VolumeSpec::new(Size::gib(10), 3), now)
            .unwrap_or_else(|error| unreachable!("{error}"));
        volume.made().unwrap_or_else(|error| unreachable!("{error}"));
        ops.push(Op::put(keys::of::<Volume>(id), text(encode(&volume))));
        let first = if number < crowd { 0 } else { 1 + (number * 7) % (names.len() - 1) };
        let others = [1, 2].map(|at| 1 + (number * 7 + at * 31) % (names.len() - 1));
        let places = [first, others[0], others[1]].map(|place| names.get(place));
        let Some(home) = places[0] else { continue };
        let home = cluster.engines.get(home).map(|engine| engine.address.nqn.clone());
        let mut replicas = Vec::new();
        for (at, name) in places.into_iter().flatten().enumerate() {
            let hosts = home.iter().filter(|_| published).cloned().collect();
            let replica = made_replica((number * 3 + at, id), name, hosts, now);
            ops.push(Op::put(keys::of::<Replica>(*replica.id()), text(encode(&replica))));
            replicas.push((*replica.id(), name.clone()));
            if let Some(engine) = cluster.engines.get_mut(name) {
                let (spec, generation) = (replica.spec().clone(), Some(replica.generation()));
                let data = super::Data::default();
                let (label, spec_backup) = (None, None);
                let copy = Copy { volume: id, generation, spec, label, spec_backup, data };
                engine.replicas.insert(*replica.id(), copy);
            }
        }
        if published {
            ops.extend(publish(cluster, number, &replicas, now));
        }
    }
    for chunk in ops.chunks(AT_ONCE) {
        cluster.txn(chunk.iter().cloned().fold(Txn::new(), Txn::then));
    }
}

/// A target for a volume, with the record of its owner.
fn publish(
    cluster: &mut Cluster,
    number: usize,
    replicas: &[(ReplicaId, NodeName)],
    now: Timestamp,
) -> Vec<Op> {
    let (volume, bits) = (volume_id(number), u128::try_from(number).unwrap_or(0) + (1 << 102));
    let id = TargetId::new(Uuid::from_u128(bits)).unwrap_or_else(|error| unreachable!("{error}"));
    let Some((_, home)) = replicas.first() else { return Vec::new() };
    let set = ReplicaSet::new(replicas.iter().map(|(id, _)| *id).collect());
    let set = set.unwrap_or_else(|error| unreachable!("{error}"));
    let record = TargetRecord::new(volume, id, home.clone(), set.clone());
    let children = replicas.iter().map(|(replica, node)| {
        let addresses = cluster.engines.get(node).map(|engine| engine.address.data.clone());
        let path = match addresses {
            Some(addresses) if node != home => ChildPath::Remote { addresses },
            _ => ChildPath::Local {},
        };
        Child { replica: *replica, path, offline: false }
    });
    let host: HostName = "h1".parse().unwrap_or_else(|error| unreachable!("{error}"));
    let nqn = Nqn::volume(volume);
    let spec = TargetSpec {
        volume,
        epoch: record.epoch(),
        size: Size::gib(10),
        children: children.collect(),
        node: home.clone(),
        hosts: [(host, nqn)].into(),
        limits: QosLimits::default(),
        ana: Ana::Optimized,
        shutdown: false,
    };
    let mut target = Target::new(id, spec, now).unwrap_or_else(|error| unreachable!("{error}"));
    target.made().unwrap_or_else(|error| unreachable!("{error}"));
    if let Some(engine) = cluster.engines.get_mut(home) {
        let status = TargetStatus {
            state: TargetState::Init,
            children: Vec::new(),
            addresses: engine.address.data.clone(),
            connected: [].into(),
            conflicts: Vec::new(),
        };
        engine.targets.insert(id, Serving { order: target.order(), set: Some(set), status });
    }
    vec![
        Op::put(keys::of::<Target>(id), text(encode(&target))),
        Op::put(keys::target_record(volume), text(encode(&record))),
    ]
}

fn text(encoded: Result<String, serde_json::Error>) -> String {
    encoded.unwrap_or_else(|error| unreachable!("{error}"))
}

fn pool_of(node: &NodeName) -> PoolName {
    let name = format!("p-{node}");
    name.parse().unwrap_or_else(|error| unreachable!("{error}"))
}

fn made_node(engine: &super::Engine, now: Timestamp) -> (Node, Pool) {
    let spec = NodeSpec {
        address: engine.address.clone(),
        labels: Labels::new(),
        cordons: [].into(),
        drains: [].into(),
    };
    let mut node =
        Node::new(engine.name.clone(), spec, now).unwrap_or_else(|error| unreachable!("{error}"));
    node.made().unwrap_or_else(|error| unreachable!("{error}"));
    let disk = "/dev/disk".parse().unwrap_or_else(|error| unreachable!("{error}"));
    let spec = PoolSpec {
        node: engine.name.clone(),
        disks: vec![disk],
        uuid: PoolUuid::new(Uuid::from_u128(7)).ok(),
        import: false,
        exported: false,
        cluster_size: None,
        labels: Labels::new(),
        cordons: [].into(),
    };
    let mut pool =
        Pool::new(pool_of(&engine.name), spec, now).unwrap_or_else(|error| unreachable!("{error}"));
    pool.made().unwrap_or_else(|error| unreachable!("{error}"));
    (node, pool)
}

fn made_replica(
    (number, volume): (usize, VolumeId),
    node: &NodeName,
    hosts: BTreeSet<Nqn>,
    now: Timestamp,
) -> Replica {
    let bits = u128::try_from(number).unwrap_or(0) + (1 << 101);
    let id = ReplicaId::new(Uuid::from_u128(bits)).unwrap_or_else(|error| unreachable!("{error}"));
    let spec = ReplicaSpec {
        volume,
        pool: pool_of(node),
        size: Size::gib(10),
        thin: true,
        source: None,
        encryption: None,
        hosts,
    };
    let mut replica = Replica::new(id, spec, now).unwrap_or_else(|error| unreachable!("{error}"));
    replica.made().unwrap_or_else(|error| unreachable!("{error}"));
    replica
}
