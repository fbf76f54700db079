//! Control planes over one store, engines, and callers who want volumes all the while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::node::{Node as _, NodeInfo};
use api::rest::{Control as _, NodeQuery, Remote, ReplicaQuery, VolumeAction, VolumeQuery};
use api::{Page, Paging};
use e2e::fleet::{EngineProcess, id};
use e2e::process::{PATIENCE, Program, holdfast};
use model::envelope::{self, Versioned};
use model::*;
use store::client::Client;
use store::contract::{Query, Store as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// `holdfast control serve`.
pub(crate) struct ControlProcess {
    pub(crate) program: Program,
    pub(crate) remote: Remote,
}

impl ControlProcess {
    pub(crate) fn start(endpoints: &[String]) -> ControlProcess {
        ControlProcess::start_with(endpoints, &[])
    }

    /// With more options.
    pub(crate) fn start_with(endpoints: &[String], more: &[&str]) -> ControlProcess {
        let mut command = holdfast().unwrap();
        command.args(["control", "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--store", &endpoints.join(",")]);
        // No engine dies in these tests: one that stands still for a while is not given up.
        command.args(["--heartbeat-deadline", "10m"]).args(more);
        let program = Program::start(&mut command).unwrap();
        let after =
            |line: &str| line.split_once("listening on http://").map(|(_, at)| at.to_owned());
        let address = program.wait_for("where it listens", after).unwrap();
        let remote = Remote::plain(address.trim().parse().unwrap()).unwrap();
        ControlProcess { program, remote }
    }

    /// Whether it answers as the one that leads.
    pub(crate) async fn leads(&self) -> bool {
        let asked = tokio::time::timeout(Duration::from_secs(1), self.remote.status()).await;
        matches!(asked, Ok(Ok(status)) if status.leader.here)
    }

    /// How many of its terms are over.
    pub(crate) fn terms_over(&self) -> usize {
        self.program.said().matches("leadership term ended").count()
    }
}

/// Waits until something is so, and looks often.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE * 2;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// All of it.
pub(crate) struct World {
    pub(crate) controls: Vec<ControlProcess>,
    pub(crate) engines: Vec<EngineProcess>,
    pub(crate) folder: tempfile::TempDir,
    client: Client,
    /// Where control planes are told to call engines instead.
    ways: BTreeMap<NodeName, SocketAddr>,
    /// Heartbeats and callers.
    tasks: JoinSet<()>,
    acknowledged: Arc<Mutex<BTreeSet<VolumeId>>>,
    /// Why volumes that callers still ask for were not made the last time they asked.
    refusals: Arc<Mutex<BTreeMap<VolumeId, String>>>,
}

impl World {
    /// So many control planes and engines, each of these with a pool.
    pub(crate) async fn start(
        endpoints: &[String],
        client: Client,
        (controls, engines): (usize, u32),
    ) -> World {
        let folder = tempfile::tempdir().unwrap();
        let engines: Vec<EngineProcess> =
            (1..=engines).map(|nth| engine(folder.path(), nth, endpoints)).collect();
        let controls: Vec<_> = (0..controls).map(|_| ControlProcess::start(endpoints)).collect();
        let (acknowledged, refusals) = (Arc::default(), Arc::default());
        let tasks = JoinSet::new();
        let ways = BTreeMap::new();
        let mut world =
            World { controls, engines, folder, client, ways, tasks, acknowledged, refusals };
        world.show_engines().await;
        let nodes = world.engines.len();
        until("every node is there", async || world.nodes().await == nodes).await;
        for nth in 1..=nodes {
            let spec = pool_spec(world.folder.path(), nth);
            let name: PoolName = format!("pool-{nth}").parse().unwrap();
            let made = async || world.leader().await.put_pool(name.clone(), spec.clone()).await;
            until("a pool is made", async || made().await.is_ok()).await;
        }
        world
    }

    async fn nodes(&self) -> usize {
        let Ok(nodes) = self.leader().await.nodes(NodeQuery::default()).await else { return 0 };
        let online =
            |node: &Node| node.status.as_ref().is_some_and(|status| status.liveness.is_online());
        nodes.items.iter().filter(|node| online(node)).count()
    }

    /// Engines are heard by every control plane, whoever leads.
    async fn show_engines(&mut self) {
        for engine in &self.engines {
            let NodeInfo { name, instance, version, mut address, .. } =
                engine.remote.node().await.unwrap();
            address.api = self.ways.get(&name).copied().unwrap_or(address.api);
            for control in &self.controls {
                let remote = control.remote.clone();
                let (version, address) = (version.clone(), address.clone());
                let beat = Heartbeat { instance, version, address, told: None };
                let name = name.clone();
                self.tasks.spawn(async move {
                    loop {
                        let sent = remote.node_heartbeat(name.clone(), beat.clone());
                        // One that is lost is followed by another.
                        let _ = tokio::time::timeout(Duration::from_secs(1), sent).await;
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                });
            }
        }
    }

    /// Orders to an engine take so much longer from now on.
    pub(crate) async fn slow_down(&mut self, nth: usize, by: Duration) {
        let NodeInfo { name, address, .. } = self.engines[nth].remote.node().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.ways.insert(name.clone(), listener.local_addr().unwrap());
        self.tasks.shutdown().await;
        self.tasks.spawn(late(listener, address.api, by));
        self.show_engines().await;
        let way = self.ways[&name];
        let remote = self.leader().await;
        until("it is called by the other way", async || {
            remote.node(name.clone()).await.is_ok_and(|node| node.spec().address.api == way)
        })
        .await;
    }

    /// One more control plane, of which engines are told.
    pub(crate) async fn start_control(&mut self, endpoints: &[String]) {
        self.controls.push(ControlProcess::start(endpoints));
        self.show_all_engines().await;
    }

    /// The engines that run now are heard, and no others.
    pub(crate) async fn show_all_engines(&mut self) {
        self.tasks.shutdown().await;
        self.show_engines().await;
    }

    /// Whoever leads, once somebody does.
    pub(crate) async fn leader(&self) -> Remote {
        let deadline = Instant::now() + PATIENCE * 2;
        loop {
            for control in &self.controls {
                if control.leads().await {
                    return control.remote.clone();
                }
            }
            assert!(Instant::now() < deadline, "nobody leads");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// So many callers make volumes from now on, one after another, whoever leads.
    pub(crate) fn begin_creating(&mut self, callers: u32, replicas: u8) {
        for caller in 1..=callers {
            let remotes: Vec<Remote> = self.controls.iter().map(|it| it.remote.clone()).collect();
            let acknowledged = Arc::clone(&self.acknowledged);
            let refusals = Arc::clone(&self.refusals);
            self.tasks.spawn(async move {
                for nth in 0.. {
                    let volume = id::<VolumeId>(caller * 100_000 + nth).unwrap();
                    create(&remotes, (volume, replicas), &refusals).await;
                    refusals.lock().unwrap_or_else(PoisonError::into_inner).remove(&volume);
                    acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(volume);
                }
            });
        }
    }

    /// The volumes whose making was acknowledged.
    pub(crate) fn acknowledged(&self) -> BTreeSet<VolumeId> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until so many more volumes were acknowledged.
    pub(crate) async fn until_more(&self, more: usize) {
        let wanted = self.acknowledged().len() + more;
        let deadline = Instant::now() + PATIENCE * 2;
        while self.acknowledged().len() < wanted {
            if Instant::now() >= deadline {
                let known = self.what_is_known().await;
                panic!("no more volumes are made: {known}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How everything looks, for whoever has to find out why nothing goes on.
    async fn what_is_known(&self) -> String {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut known = vec![format!("{refusals:?}")];
        for control in &self.controls {
            let remote = &control.remote;
            let nodes = tokio::time::timeout(PATIENCE, remote.nodes(NodeQuery::default())).await;
            known.push(format!("nodes: {nodes:?}"));
            let asked = VolumeQuery { limit: Some(1000), ..Default::default() };
            if let Ok(Ok(all)) = tokio::time::timeout(PATIENCE, remote.volumes(asked)).await {
                let busy = all.items.iter().filter(|volume| !volume.lifecycle().is_idle());
                known.push(format!("busy: {:?}", busy.collect::<Vec<_>>()));
            }
        }
        known.join("\n")
    }

    /// Nothing is asked for any more. Then what is stored, what the leader knows and what engines
    /// have must become the same, with every volume that was acknowledged.
    pub(crate) async fn check(mut self, leader: usize) {
        let acknowledged = self.acknowledged();
        self.tasks.shutdown().await;
        self.show_engines().await;
        let mut last = String::new();
        let mut is_right = async || {
            let differs = self.differences(&self.controls[leader].remote).await;
            last = differs.unwrap_or_else(|| "nothing".to_owned());
            last == "nothing"
        };
        let deadline = Instant::now() + PATIENCE * 2;
        while !is_right().await {
            assert!(Instant::now() < deadline, "still different: {last}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let stored = self.stored::<Volume>().await;
        let stored: BTreeSet<VolumeId> = stored.iter().map(|it| *it.id()).collect();
        let lost: Vec<_> = acknowledged.difference(&stored).collect();
        assert_eq!(lost, Vec::<&VolumeId>::new(), "acknowledged and lost");
        assert!(acknowledged.len() > 20, "only {} volumes", acknowledged.len());
    }

    async fn differences(&self, leader: &Remote) -> Option<String> {
        let volumes = self.stored::<Volume>().await;
        let replicas = self.stored::<Replica>().await;
        if let Some(busy) = volumes.iter().find(|volume| !volume.lifecycle().is_idle()) {
            return Some(format!("volume {} is {:?}", busy.id(), busy.lifecycle()));
        }
        let known = every(async |paging: Paging| {
            let Paging { limit, after } = paging;
            leader.volumes(VolumeQuery { limit, after, ..Default::default() }).await
        });
        let bare = |mut volume: Volume| {
            volume.status = None;
            volume
        };
        let known: Vec<Volume> = known.await?.into_iter().map(bare).collect();
        if known != volumes {
            return Some(format!("the leader knows {}, {} are stored", known.len(), volumes.len()));
        }
        let known = every(async |paging: Paging| {
            let Paging { limit, after } = paging;
            leader.replicas(ReplicaQuery { limit, after, ..Default::default() }).await
        });
        let known: BTreeSet<ReplicaId> = known.await?.iter().map(|it| *it.id()).collect();
        let stored: BTreeSet<ReplicaId> = replicas.iter().map(|it| *it.id()).collect();
        let mut found = BTreeSet::new();
        for engine in &self.engines {
            let here = every(async |paging: Paging| engine.remote.replicas(paging).await);
            found.extend(here.await?.into_iter().map(|it| it.id));
        }
        if known != stored || found != stored {
            let (known, stored, found) = (known.len(), stored.len(), found.len());
            return Some(format!("copies: {known} known, {stored} stored, {found} found"));
        }
        None
    }

    /// All records of a kind, by id.
    pub(crate) async fn stored<R: Versioned>(&self) -> Vec<R> {
        let page = self.client.range(Query::prefix(keys::all::<R>())).await.unwrap();
        page.kvs.iter().map(|found| envelope::decode(&found.value).unwrap()).collect()
    }
}

/// Hands on whatever comes, later.
async fn late(listener: TcpListener, to: SocketAddr, by: Duration) {
    let mut all = JoinSet::new();
    while let Ok((here, _)) = listener.accept().await {
        all.spawn(async move {
            let Ok(there) = TcpStream::connect(to).await else { return };
            let ((mut asked, mut answered), (mut answers, mut asks)) =
                (here.into_split(), there.into_split());
            let asking = async {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(length @ 1..) = asked.read(&mut bytes).await {
                    tokio::time::sleep(by).await;
                    if asks.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = asking => {}
                _ = tokio::io::copy(&mut answers, &mut answered) => {}
            }
        });
    }
}

/// All pages of a list; nothing if one of them cannot be had now.
async fn every<T>(mut page: impl AsyncFnMut(Paging) -> Result<Page<T>, Problem>) -> Option<Vec<T>> {
    let (mut items, mut after) = (Vec::new(), None);
    loop {
        let got = page(Paging { limit: None, after }).await.ok()?;
        items.extend(got.items);
        after = got.after;
        if after.is_none() {
            return Some(items);
        }
    }
}

/// Asks each control plane until one has made the volume.
async fn create(
    remotes: &[Remote],
    (volume, replicas): (VolumeId, u8),
    refusals: &Mutex<BTreeMap<VolumeId, String>>,
) {
    let spec = VolumeSpec::new(Size::mib(4), replicas);
    loop {
        for remote in remotes {
            let made = remote.put_volume(volume, spec.clone());
            let refusal = match tokio::time::timeout(Duration::from_secs(3), made).await {
                Ok(Ok(_)) => return,
                Ok(Err(problem)) => problem.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            refusals.lock().unwrap_or_else(PoisonError::into_inner).insert(volume, refusal);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn engine(folder: &Path, nth: u32, endpoints: &[String]) -> EngineProcess {
    let dir = folder.join(format!("engine-{nth}"));
    let disk = folder.join(format!("disk-{nth}"));
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(disk);
    file.unwrap().set_len(4 << 30).unwrap();
    let at = (&*format!("node-{nth}"), "127.0.0.1:0".parse().unwrap());
    EngineProcess::start(at, None, &dir, &["--store", &endpoints.join(",")]).unwrap()
}

fn pool_spec(folder: &Path, nth: usize) -> PoolSpec {
    let disk = folder.join(format!("disk-{nth}"));
    PoolSpec {
        node: format!("node-{nth}").parse().unwrap(),
        disks: vec![disk.to_str().unwrap().parse().unwrap()],
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: [].into(),
        cordons: [].into(),
    }
}

/// The host of these tests: it connects with the name that follows from its own.
fn host() -> HostName {
    "node-9".parse().unwrap()
}

/// Publishes a volume for our host; where it is served.
pub(crate) async fn publish(remote: &Remote, volume: VolumeId) -> VolumeTarget {
    publish_on(remote, volume, None).await
}

/// The same, by this node.
pub(crate) async fn publish_on(
    remote: &Remote,
    volume: VolumeId,
    node: Option<NodeName>,
) -> VolumeTarget {
    let request = VolumeAction::Publish { host: Some(host()), node };
    until("it is published", async || {
        remote.change_volume(volume, request.clone(), None).await.is_ok()
    })
    .await;
    remote.volume(volume).await.unwrap().status.unwrap().target.unwrap()
}
