//! Another volume in an engine of a fleet, to see what it notices of the first one's troubles.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use api::node::Node as _;
use model::{
    Ana, Child, ChildPath, Nqn, PoolName, PoolSpec, QosLimits, ReplicaId, ReplicaSet, ReplicaSpec,
    Size, TargetId, TargetRecord, TargetSpec, VolumeId, envelope, keys,
};
use store::contract::{Compare, Op, Store as _, Txn};

use super::{Fleet, id, in_words};

/// A volume with one copy, in a pool of its own on the node of its target.
pub struct Neighbour {
    /// The volume.
    pub volume: VolumeId,
    /// Its target.
    pub target: TargetId,
    /// Its pool.
    pub pool: PoolName,
    /// The file that is the disk of its pool.
    pub disk: PathBuf,
}

impl Fleet {
    /// Makes one on a node, and opens its target.
    pub async fn neighbour(&self, on: usize) -> Result<Neighbour> {
        let machine = self.machine(on)?;
        let neighbour = Neighbour {
            volume: id(12)?,
            target: id(49)?,
            pool: "shelf".parse()?,
            disk: machine.disk.with_extension("shelf"),
        };
        let disk = std::fs::File::create(&neighbour.disk)?;
        disk.set_len(self.size.bytes().0.saturating_mul(4))?;
        let replica = self.furnish_neighbour(&neighbour, on).await?;
        let record = TargetRecord::new(
            neighbour.volume,
            neighbour.target,
            machine.name.clone(),
            ReplicaSet::new([replica].into())?,
        );
        let key = keys::target_record(neighbour.volume);
        let put = Op::put(key.clone(), envelope::encode(&record)?);
        let outcome = self.client.txn(Txn::new().when(Compare::absent(key)).then(put)).await?;
        ensure!(outcome.succeeded, "it has a target");
        let spec = TargetSpec {
            volume: neighbour.volume,
            node: machine.name.clone(),
            epoch: record.epoch(),
            size: self.size,
            children: vec![Child { replica, path: ChildPath::Local {}, offline: false }],
            hosts: [("host-9".parse()?, self.host.parse()?)].into(),
            limits: QosLimits::default(),
            ana: Ana::Optimized,
            shutdown: false,
        };
        let opened = self.remote(on)?.put_target(neighbour.target, Fleet::order(1, spec)?).await;
        opened.map_err(|problem| in_words(&problem))?;
        self.until_open(neighbour.target, on).await?;
        Ok(neighbour)
    }

    async fn furnish_neighbour(&self, neighbour: &Neighbour, on: usize) -> Result<ReplicaId> {
        let (machine, remote) = (self.machine(on)?, self.remote(on)?);
        let spec = PoolSpec {
            node: machine.name.clone(),
            disks: vec![neighbour.disk.to_str().context("an odd path")?.parse()?],
            uuid: Some(id(9)?),
            import: false,
            exported: false,
            cluster_size: None,
            labels: [].into(),
            cordons: [].into(),
        };
        let made = remote.put_pool(neighbour.pool.clone(), Fleet::order(1, spec)?).await;
        made.map_err(|problem| in_words(&problem))?;
        let (replica, size): (_, Size) = (id(28)?, self.size);
        let spec = ReplicaSpec {
            volume: neighbour.volume,
            pool: neighbour.pool.clone(),
            size,
            thin: true,
            source: None,
            encryption: None,
            hosts: [Nqn::node(&machine.name)?].into(),
        };
        let made = remote.put_replica(replica, Fleet::order(1, spec)?).await;
        made.map_err(|problem| in_words(&problem))?;
        Ok(replica)
    }
}
