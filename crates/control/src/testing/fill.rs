//! A cluster that has long been in use: many volumes, all well.

use model::envelope::encode;
use model::{
    Labels, Node, NodeName, NodeSpec, Pool, PoolName, PoolSpec, PoolUuid, Replica, ReplicaId,
    ReplicaSpec, Size, Timestamp, Volume, VolumeId, VolumeSpec, keys,
};
use store::contract::{Op, Txn};
use uuid::Uuid;

use super::Cluster;
use super::engine::Copy;

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
        for (at, place) in [first, others[0], others[1]].into_iter().enumerate() {
            let Some(name) = names.get(place) else { continue };
            let replica = made_replica(number * 3 + at, id, name, now);
            ops.push(Op::put(keys::of::<Replica>(*replica.id()), text(encode(&replica))));
            if let Some(engine) = cluster.engines.get_mut(name) {
                let (spec, generation) = (replica.spec().clone(), Some(replica.generation()));
                let data = super::Data::default();
                let (label, spec_backup) = (None, None);
                let copy = Copy { volume: id, generation, spec, label, spec_backup, data };
                engine.replicas.insert(*replica.id(), copy);
            }
        }
    }
    for chunk in ops.chunks(AT_ONCE) {
        cluster.txn(chunk.iter().cloned().fold(Txn::new(), Txn::then));
    }
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

fn made_replica(number: usize, volume: VolumeId, node: &NodeName, now: Timestamp) -> Replica {
    let bits = u128::try_from(number).unwrap_or(0) + (1 << 101);
    let id = ReplicaId::new(Uuid::from_u128(bits)).unwrap_or_else(|error| unreachable!("{error}"));
    let spec = ReplicaSpec {
        volume,
        pool: pool_of(node),
        size: Size::gib(10),
        thin: true,
        source: None,
        encryption: None,
        hosts: [].into(),
    };
    let mut replica = Replica::new(id, spec, now).unwrap_or_else(|error| unreachable!("{error}"));
    replica.made().unwrap_or_else(|error| unreachable!("{error}"));
    replica
}
