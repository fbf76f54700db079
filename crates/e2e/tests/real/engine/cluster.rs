//! An engine among others: pools that change hands, tokens, the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::heartbeat::{self, HeartbeatAck};
use api::node::{Node, Remote};
use api::{ApiRouter, Client, ClientConfig, Deleted, Effect, Guard, Paging, Server};
use e2e::process::holdfast;
use model::*;
use tokio::sync::mpsc;

use super::rig::{Disk, Rig, disk, id, kind, order, pool_spec, replica_spec};

fn tank() -> PoolName {
    "tank".parse().unwrap()
}

#[tokio::test]
async fn a_pool_is_open_in_one_engine_and_can_change_hands() {
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    let mut first = Rig::start("node-1", &one, &[]);
    first.furnish(&file, id(20)).await;
    Disk::connect(first.data, id(20)).unwrap().write(3, 9);
    let second = Rig::start("node-2", &two, &[]);
    let import = PoolSpec { import: true, ..pool_spec("node-2", &file) };
    assert_eq!(
        kind(second.remote.put_pool(tank(), order(1, import.clone())).await),
        ProblemKind::InUse
    );
    // Shared replicas hold it; then it is handed over.
    let export = PoolSpec { exported: true, ..pool_spec("node-1", &file) };
    let put = |generation| first.remote.put_pool(tank(), order(generation, export.clone()));
    assert_eq!(kind(put(2).await), ProblemKind::InUse);
    first.remote.put_replica(id(20), order(2, replica_spec(16, false))).await.unwrap();
    let exported = put(3).await.unwrap().now;
    assert_eq!(exported.status.state, PoolState::Offline);
    assert_eq!(first.remote.replicas(Paging::default()).await.unwrap().items, []);
    let imported = second.remote.put_pool(tank(), order(2, import)).await.unwrap();
    assert_eq!((imported.effect, imported.now.status.uuid), (Effect::Changed, id(1)));
    second.remote.put_replica(id(20), order(1, replica_spec(16, true))).await.unwrap();
    assert_eq!(Disk::connect(second.data, id(20)).unwrap().read(3), 9);
    // The one that gave it away leaves it alone, also in its next run.
    first.program.kill().unwrap();
    let first = Rig::start("node-1", &one, &[]);
    assert_eq!(first.remote.pool(tank()).await.unwrap().status.state, PoolState::Offline);
}

#[tokio::test]
async fn a_pool_that_cannot_be_opened_stops_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (home, file) = (folder.path().join("engine"), disk(folder.path(), "disk", 128));
    let mut rig = Rig::start("node-1", &home, &[]);
    rig.furnish(&file, id(20)).await;
    assert!(rig.program.stop().unwrap().success());
    let hidden = folder.path().join("hidden");
    std::fs::rename(&file, &hidden).unwrap();
    let rig = Rig::start("node-1", &home, &[]);
    let found = rig.remote.pool(tank()).await.unwrap();
    let PoolState::Faulted { symptoms } = found.status.state else { panic!("{found:?}") };
    assert_eq!(symptoms[0].kind, DiskFindingKind::Missing);
    // Nobody may say that what is in it is gone.
    let generation = Generation::new(9).unwrap();
    let removal = api::node::DeleteReplica { generation, pool: tank() };
    let gone = rig.remote.delete_replica(id(20), removal);
    assert_eq!(kind(gone.await), ProblemKind::Unavailable);
    assert!(
        rig.remote.metrics().await.unwrap().0.contains("holdfast_pool_online{pool=\"tank\"} 0")
    );
    // The disk is back, and so is the pool.
    std::fs::rename(&hidden, &file).unwrap();
    let back = rig.remote.put_pool(tank(), order(1, pool_spec("node-1", &file))).await.unwrap();
    assert_eq!(back.now.status.state, PoolState::Online);
    assert!(rig.remote.replica(id(20)).await.is_ok());
}

#[tokio::test]
async fn without_a_token_nothing_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "viewer 0123456789abcdef0123\n").unwrap();
    let words = ["--token-file", tokens.to_str().unwrap()];
    let rig = Rig::start("node-1", &folder.path().join("engine"), &words);
    assert!(rig.remote.health().await.is_ok());
    assert_eq!(kind(rig.remote.node().await), ProblemKind::Unauthenticated);
    let api = rig
        .program
        .wait_for("where its API is", |line| line.strip_prefix("node API on ").map(str::to_owned));
    let token = api::Token::new("0123456789abcdef0123");
    let config = ClientConfig { token, ..ClientConfig::plain(api.unwrap().parse().unwrap()) };
    let viewer = Remote::new(Client::new(config).unwrap());
    assert_eq!(viewer.node().await.unwrap().name.as_str(), "node-1");
    assert!(viewer.devices(Paging::default()).await.is_ok());
    let put = viewer.put_replica(id(20), order(1, replica_spec(16, false))).await;
    assert_eq!(kind(put), ProblemKind::PermissionDenied);
}

#[tokio::test]
async fn what_happens_is_told_to_those_who_listen() {
    let folder = tempfile::tempdir().unwrap();
    let file = disk(folder.path(), "disk", 128);
    let rig = Rig::start("node-1", &folder.path().join("engine"), &[]);
    let mut events = rig.remote.events(None).await.unwrap();
    rig.furnish(&file, id(20)).await;
    let mut told = Vec::new();
    while told.len() < 2 {
        let seen = events.next().await.unwrap().unwrap();
        let api::StreamItem::Event(event) = seen else { panic!("{seen:?}") };
        told.push((event.subject, event.name));
    }
    let made = EventName::Created;
    assert_eq!(told, [(Subject::Pool(tank()), made), (Subject::Replica(id(20)), made)]);
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("engine");
    let _first = Rig::start("node-1", &dir, &[]);
    let refused = |words: &[&str]| {
        let mut command = holdfast().unwrap();
        command.args(["engine", "run", "--listen", "127.0.0.1:0", "--dir"]).arg(&dir);
        let output = command.args(words).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let api = ["--api", "127.0.0.1:0"];
    for (words, said) in [
        (&["--node", "node-1"][..], "another engine uses"),
        (&["--node", "Node_1"], "node name"),
        (&["--node", "node-1", "--api", "0.0.0.0:0"], "no address that others can connect to"),
        (&["--node", "node-1", "--token-file", "/nonexistent"], "/nonexistent"),
    ] {
        let words = if words.contains(&"--api") { words.to_vec() } else { [words, &api].concat() };
        let found = refused(&words);
        assert!(found.contains(said), "{words:?}: {found}");
    }
}

/// What the control plane heard.
#[derive(Debug, PartialEq)]
enum Told {
    Beat(NodeName, InstanceId),
    Deregister(InstanceId),
}

/// A control plane that hears heartbeats while it leads.
struct Ear {
    address: String,
    heard: mpsc::UnboundedReceiver<Told>,
    leads: Arc<AtomicBool>,
    serving: tokio::task::JoinHandle<()>,
}

/// Where it is told, and whether it leads.
type Listening = (mpsc::UnboundedSender<Told>, Arc<AtomicBool>);

impl Ear {
    async fn open(leads: bool) -> Ear {
        let (told, heard) = mpsc::unbounded_channel();
        let leads = Arc::new(AtomicBool::new(leads));
        let listen = ([127, 0, 0, 1], 0).into();
        let server = Server::bind(listen, None, api::Limits::default()).await.unwrap();
        let address = server.local_addr().unwrap().to_string();
        let control = ApiRouter::new("control", "What hears heartbeats.")
            .on(&heartbeat::NODE, async move |ear: Arc<Listening>, r| {
                if !ear.1.load(Ordering::Relaxed) {
                    return Err(Problem::new(ProblemKind::Unavailable, "another leads"));
                }
                ear.0.send(Told::Beat(r.at.0, r.body.instance)).unwrap();
                Ok(HeartbeatAck { next_in_millis: 100, gone_in_millis: 1000, mark: None })
            })
            .on(&heartbeat::DEREGISTER_NODE, async move |ear: Arc<Listening>, r| {
                ear.0.send(Told::Deregister(r.query.instance)).unwrap();
                Ok(Deleted { existed: true })
            });
        let router = control.router(Arc::new((told, Arc::clone(&leads))), Guard::default());
        let serving = tokio::spawn(server.run(router, std::future::pending()));
        Ear { address, heard, leads, serving }
    }
}

/// One is away, one does not lead, one does; then the other does.
#[tokio::test]
async fn whichever_control_plane_leads_hears_it() {
    let (mut first, mut second) = (Ear::open(false).await, Ear::open(true).await);
    // A port that was free a moment ago: nobody answers there.
    let away = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let control = format!("{away},{},{}", first.address, second.address);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("engine");
    let start = move || Rig::start("node-1", &dir, &["--control", &control]);
    let rig = tokio::task::spawn_blocking(start).await.unwrap();
    let instance = rig.remote.node().await.unwrap().instance;
    let node: NodeName = "node-1".parse().unwrap();
    let beat = Some(Told::Beat(node, instance));
    assert_eq!(second.heard.recv().await, beat);
    second.leads.store(false, Ordering::Relaxed);
    first.leads.store(true, Ordering::Relaxed);
    assert_eq!(first.heard.recv().await, beat);
    first.leads.store(false, Ordering::Relaxed);
    second.leads.store(true, Ordering::Relaxed);
    while second.heard.try_recv().is_ok() {}
    assert_eq!(second.heard.recv().await, beat);
    first.serving.abort();
    second.serving.abort();
}

#[tokio::test]
async fn the_control_plane_hears_of_its_beginning_and_its_end() {
    let Ear { address, mut heard, serving, .. } = Ear::open(true).await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("engine");
    let start = move || Rig::start("node-1", &dir, &["--control", &address]);
    let mut rig = tokio::task::spawn_blocking(start).await.unwrap();
    let instance = rig.remote.node().await.unwrap().instance;
    let node: NodeName = "node-1".parse().unwrap();
    for _ in 0..2 {
        assert_eq!(heard.recv().await, Some(Told::Beat(node.clone(), instance)));
    }
    let stopped = tokio::task::spawn_blocking(move || rig.program.stop().unwrap());
    let farewell = tokio::time::timeout(Duration::from_mins(1), async {
        loop {
            if let Some(Told::Deregister(instance)) = heard.recv().await {
                break instance;
            }
        }
    });
    assert_eq!(farewell.await.unwrap(), instance);
    assert!(stopped.await.unwrap().success());
    serving.abort();
}
