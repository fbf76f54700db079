//! Engines of three nodes with a store, and one volume with a copy on each.
//!
//! What the control plane would do is done here by hand: epochs are taken in the store, orders are
//! sent over the node API.

mod neighbour;
mod protection;
mod session;
mod trouble;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, ensure};
use api::Paging;
use api::node::{Node as _, Observed, Remote};
use model::{
    Ana, Child, ChildPath, ChildState, ChildStatus, Epoch, Generation, NodeName, Nqn, PoolName,
    PoolSpec, Problem, QosLimits, Rebuild, ReplicaId, ReplicaSet, ReplicaSpec, ShutdownState, Size,
    StopCause, TargetId, TargetRecord, TargetSpec, TargetState, TargetStatus, ValidationError,
    VersionedSpec, VolumeId, envelope, keys,
};
use store::client::Client;
use store::contract::{Compare, Op, Store as _, StoreExt as _, Txn};

use crate::netns::Netns;
use crate::process::{PATIENCE, Program, holdfast};
use crate::store::{Kind as StoreKind, StoreServer};

pub use neighbour::Neighbour;
pub use protection::Protection;
pub use session::{connect, connect_replica, hold};
pub use trouble::{damage, repaired, told};

/// The `n`th id of its kind.
pub fn id<T: FromStr<Err = ValidationError>>(n: u32) -> Result<T> {
    format!("00000000-0000-4000-8000-{n:012}")
        .parse()
        .map_err(|error: ValidationError| anyhow!("{error}"))
}

/// `holdfast engine run`.
pub struct EngineProcess {
    /// The program.
    pub program: Program,
    /// Its node API.
    pub remote: Remote,
    /// Where it serves NVMe/TCP.
    pub data: SocketAddr,
}

impl EngineProcess {
    /// The engine of a node, which serves at this address; in a network of its own or not. All
    /// engines of tests are of one cluster.
    pub fn start(
        (node, listen): (&str, SocketAddr),
        network: Option<&Netns>,
        dir: &Path,
        more: &[&str],
    ) -> Result<EngineProcess> {
        EngineProcess::protected((node, listen), network, dir, (Protection::Full, more))
    }

    fn protected(
        (node, listen): (&str, SocketAddr),
        network: Option<&Netns>,
        dir: &Path,
        (protection, more): (Protection, &[&str]),
    ) -> Result<EngineProcess> {
        let mut command = holdfast()?;
        let api = SocketAddr::new(listen.ip(), 0).to_string();
        command.args(["engine", "run", "--node", node, "--listen", &listen.to_string()]);
        command.args(["--api", &api, "--dir"]).arg(dir).args(more);
        command.args(protection.words(dir)?);
        if let Some(network) = network {
            command = network.wrap(&command);
        }
        let program = Program::start(&mut command)?;
        let after = |line: &str, word: &str| line.strip_prefix(word).map(str::to_owned);
        let data = program.wait_for("where it listens", |line| after(line, "listening on "))?;
        let api = program.wait_for("where its API is", |line| after(line, "node API on "))?;
        let remote = Remote::plain(api.parse().context("the address of its API")?)?;
        Ok(EngineProcess { program, remote, data: data.parse().context("its address")? })
    }
}

/// What a fleet is made of.
pub struct Plan {
    /// What serves the store.
    pub store: StoreKind,
    /// The address of each node; all with the same network as this process, but the last if it has
    /// one of its own.
    pub addresses: Vec<SocketAddr>,
    /// The network of the last node, if that can be cut.
    pub network: Option<Netns>,
    /// Size of each pool, in MiB.
    pub pool: u64,
    /// Size of the volume, in MiB.
    pub volume: u32,
    /// The nodes that have a copy.
    pub copies: Vec<usize>,
    /// The core of each engine.
    pub cores: Vec<usize>,
    /// Who may use the volume.
    pub host: String,
    /// How the engines speak to each other.
    pub protection: Protection,
}

impl Plan {
    /// Three nodes on 127.0.0.11 to 13, all on the first core.
    pub fn default_for(store: StoreKind, host: &str) -> Plan {
        Plan {
            store,
            addresses: (11..=13).map(|last| ([127, 0, 0, last], 0).into()).collect(),
            network: None,
            pool: 256,
            volume: 64,
            copies: vec![0, 1, 2],
            cores: vec![0; 3],
            host: host.to_owned(),
            protection: Protection::Full,
        }
    }

    /// The same, the last node in a network that can be cut.
    #[must_use]
    pub fn with_network(mut self, network: Netns) -> Plan {
        if let Some(last) = self.addresses.last_mut() {
            *last = (network.address(), 0).into();
        }
        Plan { network: Some(network), ..self }
    }
}

/// A node: its engine, which may be down, and what outlives it.
pub struct Machine {
    /// Its name.
    pub name: NodeName,
    /// The file that is its disk.
    pub disk: PathBuf,
    /// Its copy of the volume.
    pub replica: ReplicaId,
    /// Its network, if that can be cut.
    pub network: Option<Netns>,
    dir: PathBuf,
    /// The same in every run.
    listen: SocketAddr,
    core: usize,
    protection: Protection,
    store: String,
    engine: Option<EngineProcess>,
}

impl Machine {
    /// Its engine.
    pub fn engine(&self) -> Result<&EngineProcess> {
        self.engine.as_ref().with_context(|| format!("the engine of {} is down", self.name))
    }

    /// Where it serves.
    pub fn listen(&self) -> SocketAddr {
        self.listen
    }

    fn start(&mut self) -> Result<()> {
        let core = self.core.to_string();
        let words = ["--store", &self.store, "--cores", &core];
        let at = (self.name.as_str(), self.listen);
        let more = (self.protection, &words[..]);
        let engine = EngineProcess::protected(at, self.network.as_ref(), &self.dir, more)?;
        self.listen = engine.data;
        self.engine = Some(engine);
        Ok(())
    }

    /// `kill -9`.
    pub fn kill(&mut self) -> Result<()> {
        self.engine.take().map_or(Ok(()), |mut engine| engine.program.kill())
    }

    /// A clean end.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let status = engine.program.stop()?;
        ensure!(status.success(), "{} did not stop well:\n{}", self.name, engine.program.said());
        Ok(())
    }

    /// What its engine said.
    pub fn said(&self) -> String {
        self.engine.as_ref().map_or_else(String::new, |engine| engine.program.said())
    }
}

/// Nodes, a store, and a volume with a copy on each node.
pub struct Fleet {
    /// The nodes.
    pub machines: Vec<Machine>,
    /// The store.
    pub store: StoreServer,
    /// The volume.
    pub volume: VolumeId,
    size: Size,
    copies: Vec<usize>,
    host: String,
    client: Client,
    generation: u64,
    _folder: tempfile::TempDir,
}

impl Fleet {
    /// Starts everything; there is no target yet.
    pub async fn start(mut plan: Plan) -> Result<Fleet> {
        let folder = tempfile::tempdir().context("cannot make a folder")?;
        let store = StoreServer::start(plan.store)?;
        let client = store.client().await?;
        let mut machines = Vec::new();
        let last = plan.addresses.len();
        for ((number, listen), core) in (1..).zip(plan.addresses).zip(plan.cores) {
            let name: NodeName = format!("node-{number}").parse()?;
            let disk = folder.path().join(name.as_str());
            std::fs::File::create(&disk)?.set_len(plan.pool << 20)?;
            let mut machine = Machine {
                disk,
                replica: id(20 + u32::try_from(number)?)?,
                dir: folder.path().join(format!("engine-{number}")),
                listen,
                core,
                protection: plan.protection,
                network: plan.network.take_if(|_| number == last),
                store: store.endpoint(),
                name,
                engine: None,
            };
            machine.start()?;
            machines.push(machine);
        }
        let fleet = Fleet {
            machines,
            store,
            client,
            volume: id(10)?,
            size: Size::mib(plan.volume),
            copies: plan.copies,
            host: plan.host,
            generation: 1,
            _folder: folder,
        };
        for nth in &fleet.copies {
            fleet.furnish(*nth).await?;
        }
        Ok(fleet)
    }

    /// A node.
    pub fn machine(&self, nth: usize) -> Result<&Machine> {
        self.machines.get(nth).with_context(|| format!("there is no node {nth}"))
    }

    /// The node API of a node.
    pub fn remote(&self, nth: usize) -> Result<&Remote> {
        Ok(&self.machine(nth)?.engine()?.remote)
    }

    /// The nodes that have a copy.
    fn holders(&self) -> impl Iterator<Item = (usize, &Machine)> {
        self.machines.iter().enumerate().filter(|(nth, _)| self.copies.contains(nth))
    }

    fn order<S>(generation: u64, spec: S) -> Result<VersionedSpec<S>> {
        let generation = Generation::new(generation).context("generations begin at 1")?;
        Ok(VersionedSpec { generation, spec })
    }

    /// The pool of a node, and its replica, shared with all nodes and the host.
    async fn furnish(&self, nth: usize) -> Result<()> {
        let machine = self.machine(nth)?;
        let remote = &machine.engine()?.remote;
        let pool: PoolName = "tank".parse()?;
        let path = machine.disk.to_str().context("an odd path")?;
        let spec = PoolSpec {
            node: machine.name.clone(),
            disks: vec![path.parse()?],
            uuid: Some(id(1 + u32::try_from(nth)?)?),
            import: false,
            exported: false,
            cluster_size: None,
            labels: [].into(),
            cordons: [].into(),
        };
        remote
            .put_pool(pool.clone(), Fleet::order(1, spec)?)
            .await
            .map_err(|problem| in_words(&problem))?;
        let names = self.machines.iter().map(|machine| Nqn::node(&machine.name));
        let hosts = names.chain([self.host.parse()]).collect::<Result<_, _>>()?;
        let spec = ReplicaSpec {
            volume: self.volume,
            pool,
            size: self.size,
            thin: true,
            source: None,
            encryption: None,
            hosts,
        };
        remote
            .put_replica(machine.replica, Fleet::order(1, spec)?)
            .await
            .map_err(|problem| in_words(&problem))?;
        Ok(())
    }

    /// An engine that was down is back, and the control plane has sent its orders again.
    pub async fn restart(&mut self, nth: usize) -> Result<()> {
        self.machines.get_mut(nth).context("there is no such node")?.start()?;
        self.furnish(nth).await
    }

    /// The record of the volume.
    pub async fn record(&self) -> Result<TargetRecord> {
        let found = self.client.get(keys::target_record(self.volume)).await?;
        Ok(envelope::decode(&found.context("there is no record")?.value)?)
    }

    /// Puts a record there, whatever the store holds: as when a backup is restored.
    pub async fn restore(&self, record: &TargetRecord) -> Result<()> {
        let key = keys::target_record(self.volume);
        self.client.put(key, envelope::encode(record)?).await?;
        Ok(())
    }

    /// Takes the next epoch, as the control plane does, and answers what to order.
    pub async fn take(&self, target: TargetId, on: usize) -> Result<TargetSpec> {
        let key = keys::target_record(self.volume);
        let found = self.client.get(key.clone()).await?;
        let node = self.machine(on)?.name.clone();
        let (record, when) = match &found {
            None => {
                let all = self.holders().map(|(_, machine)| machine.replica).collect();
                let set = ReplicaSet::new(all)?;
                let first = TargetRecord::new(self.volume, target, node, set);
                (first, Compare::absent(key.clone()))
            }
            Some(found) => {
                let record: TargetRecord = envelope::decode(&found.value)?;
                (record.take(target, node), Compare::unchanged(found))
            }
        };
        let put = Op::put(key, envelope::encode(&record)?);
        let outcome = self.client.txn(Txn::new().when(when).then(put)).await?;
        ensure!(outcome.succeeded, "somebody else took the epoch");
        self.spec(record.epoch(), on)
    }

    /// A target with all copies, on a node.
    pub fn spec(&self, epoch: Epoch, on: usize) -> Result<TargetSpec> {
        let child = |(nth, machine): (usize, &Machine)| {
            let path = if nth == on {
                ChildPath::Local {}
            } else {
                ChildPath::Remote { addresses: vec![machine.listen] }
            };
            Child { replica: machine.replica, path, offline: false }
        };
        Ok(TargetSpec {
            volume: self.volume,
            node: self.machine(on)?.name.clone(),
            epoch,
            size: self.size,
            children: self.holders().map(child).collect(),
            hosts: [("host-9".parse()?, self.host.parse()?)].into(),
            limits: QosLimits::default(),
            ana: Ana::Optimized,
            shutdown: false,
        })
    }

    /// Takes the next epoch and opens a target with all copies.
    pub async fn open(&mut self, target: TargetId, on: usize) -> Result<TargetSpec> {
        let spec = self.take(target, on).await?;
        self.put(target, on, spec.clone()).await?.map_err(|problem| in_words(&problem))?;
        Ok(spec)
    }

    /// Shuts a target down; it must end cleanly.
    pub async fn close(&mut self, target: TargetId, on: usize) -> Result<()> {
        let record = self.record().await?;
        let spec = TargetSpec { shutdown: true, ..self.spec(record.epoch(), on)? };
        let down = self.put(target, on, spec).await?.map_err(|problem| in_words(&problem))?;
        let ordered = TargetState::Shutdown { cause: StopCause::Ordered };
        ensure!(down.status.state == ordered, "it did not shut down: {:?}", down.status);
        let end = self.record().await?.end();
        ensure!(end == ShutdownState::Clean, "it ended uncleanly");
        Ok(())
    }

    /// Sends an order about a target, with a new generation.
    pub async fn put(
        &mut self,
        target: TargetId,
        on: usize,
        spec: TargetSpec,
    ) -> Result<Result<Observed<TargetSpec>, Problem>> {
        self.generation += 1;
        let order = Fleet::order(self.generation, spec)?;
        let answer = self.remote(on)?.put_target(target, order).await;
        Ok(answer.map(|ensured| ensured.now))
    }

    /// Waits until a target is as wanted.
    pub async fn until(
        &self,
        target: TargetId,
        on: usize,
        wanted: impl Fn(&TargetStatus) -> bool,
    ) -> Result<TargetStatus> {
        let machine = self.machine(on)?;
        let remote = &machine.engine()?.remote;
        // A connection that was kept while the engine hung may be dead.
        let mut events = match remote.events(None).await {
            Ok(events) => events,
            Err(_) => remote.events(None).await?,
        };
        let waiting = async {
            loop {
                let status =
                    remote.target(target).await.map_err(|problem| in_words(&problem))?.status;
                if wanted(&status) {
                    return anyhow::Ok(status);
                }
                events.next().await?;
            }
        };
        if let Ok(status) = tokio::time::timeout(PATIENCE * 2, waiting).await {
            return status;
        }
        let status = remote.target(target).await;
        Err(anyhow!("waited in vain: {status:?}\n{}", machine.said()))
    }

    /// Waits until every copy is in sync.
    pub async fn until_open(&self, target: TargetId, on: usize) -> Result<()> {
        // A copy that was just lost is seen as such before the target is.
        let whole = |status: &TargetStatus| {
            status.state == TargetState::Open
                && status.children.iter().all(|child| child.state == ChildState::InSync)
        };
        self.until(target, on, whole).await.map(drop)
    }

    /// Waits until a copy is as wanted.
    pub async fn until_child(
        &self,
        (target, on): (TargetId, usize),
        nth: usize,
        wanted: impl Fn(ChildState) -> bool,
    ) -> Result<()> {
        let replica = self.machine(nth)?.replica;
        let is_it = |child: &ChildStatus| child.replica == replica && wanted(child.state);
        let status = self.until(target, on, |status| status.children.iter().any(is_it));
        status.await.map(drop)
    }

    /// Waits until a copy is lost.
    pub async fn until_lost(&self, at: (TargetId, usize), nth: usize) -> Result<()> {
        self.until_child(at, nth, |state| matches!(state, ChildState::Faulted { .. })).await
    }

    /// The rebuilds of a copy by the targets of a node, oldest first.
    pub async fn rebuilds(&self, on: usize, nth: usize) -> Result<Vec<Rebuild>> {
        let all = self
            .remote(on)?
            .rebuilds(Paging::default())
            .await
            .map_err(|problem| in_words(&problem))?;
        let (mut all, replica) = (all.items, self.machine(nth)?.replica);
        all.retain(|rebuild| rebuild.replica == replica);
        all.sort_by_key(|rebuild| rebuild.started_at);
        Ok(all)
    }
}

fn in_words(problem: &Problem) -> anyhow::Error {
    anyhow!("{problem}")
}
