//! REST over loopback: every kind of bad input is refused by kind, by a control plane in memory
//! behind the real server.

use std::net::SocketAddr;
use std::sync::Arc;

use api::events::Log;
use api::rest::fake::Fake;
use api::rest::{
    Control, NodeQuery, Purge, PurgeConfirmation, RangeQuery, Remote, VolumeAction, VolumeQuery,
};
use api::{Effect, Guard, Paging, Server};
use model::*;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::fake::{golden, good, id};
use crate::server::{ask, send};

struct Running {
    address: SocketAddr,
    events: Arc<Log<Event>>,
    _stop: oneshot::Sender<()>,
}

/// A node, a pool on it, and what the test adds.
async fn running(add: impl FnOnce(&Fake)) -> Running {
    let fake = Fake::at(Timestamp::from_millis(1_794_778_258_000));
    let spec = PoolSpec { exported: false, ..golden::<Pool>("pool.json").order().spec };
    let mut pool = Pool::new(good("pool-1"), spec, Timestamp::EPOCH).unwrap();
    pool.made().unwrap();
    pool.status = golden::<Pool>("pool.json").status;
    fake.has(plain_node()).has(pool);
    add(&fake);
    let server = Server::bind(([127, 0, 0, 1], 0).into(), None, Guard::default().limits);
    let server = server.await.unwrap();
    let address = server.local_addr().unwrap();
    let events = Arc::new(Log::new(id(1), 4.try_into().unwrap()));
    let router = api::rest::router(fake, Arc::clone(&events), Guard::default());
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(router, async move {
        let _ = stopped.await;
    }));
    Running { address, events, _stop: stop }
}

fn plain_node() -> Node {
    let spec = golden::<Node>("node.json").spec().clone();
    let spec = NodeSpec { cordons: [].into(), drains: [].into(), ..spec };
    let mut node = Node::new(good("node-1"), spec, Timestamp::EPOCH).unwrap();
    node.made().unwrap();
    node
}

impl Running {
    fn remote(&self) -> Remote {
        Remote::plain(self.address.to_string().parse().unwrap()).unwrap()
    }

    /// The problem that a request with this body is answered with.
    async fn refused(&self, request: &str, body: &Value) -> Problem {
        send(self.address, request, body).await.problem()
    }
}

const VOLUME: &str = "00000000-0000-4000-8000-000000000010";

fn volume_id() -> VolumeId {
    good(VOLUME)
}

fn request(size: impl Into<Value>, replicas: impl Into<Value>) -> Value {
    json!({ "size": size.into(), "replicas": replicas.into() })
}

#[tokio::test]
async fn values_that_no_cluster_could_take() {
    let running = running(|_| {}).await;
    let gib = json!(1 << 30);
    let put = format!("PUT /v1/volumes/{VOLUME}");
    let mut unknown = request(gib.clone(), json!(1));
    unknown["colour"] = json!("red");
    let mut deep = request(gib.clone(), json!(1));
    deep["limits"] = json!({ "iops": 0 });
    for (body, field, says) in [
        // wrong type
        (request(json!("1GiB"), json!(1)), "size", "expected u64"),
        (request(gib.clone(), json!("two")), "replicas", "expected u8"),
        (request(json!(1.5), json!(1)), "size", "expected u64"),
        // unknown field
        (unknown, "colour", "unknown field"),
        // too large
        (request(json!(1u64 << 60), json!(1)), "size", "1MiB to 1024TiB"),
        (request(gib.clone(), json!(9)), "replicas", "1 to 8"),
        // zero
        (request(json!(0), json!(1)), "size", "1MiB to 1024TiB"),
        (request(gib.clone(), json!(0)), "replicas", "1 to 8"),
        (deep, "limits.iops", "at least 1"),
        // negative
        (request(json!(-1), json!(1)), "size", "expected u64"),
        (request(gib.clone(), json!(-1)), "replicas", "expected u8"),
        // overflow
        (request(json!(1e30), json!(1)), "size", "expected u64"),
        (request(gib.clone(), json!(256)), "replicas", "expected u8"),
        // a part of a block
        (request(json!((1 << 30) + 1), json!(1)), "size", "steps of 4KiB"),
    ] {
        let problem = running.refused(&put, &body).await;
        assert_eq!(problem.kind, ProblemKind::InvalidArgument, "{body}: {problem:?}");
        assert_eq!(problem.field.as_deref(), Some(field), "{problem:?}");
        assert!(problem.detail.contains(says), "{problem:?}");
    }
}

#[tokio::test]
async fn changes_that_make_no_sense() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    remote.put_volume(volume_id(), VolumeSpec::new(Size::gib(1), 1)).await.unwrap();
    let change = format!("POST /v1/volumes/{VOLUME}/changes");
    let smaller = json!({ "kind": "resize", "size": 1 << 20 });
    let other = serde_json::to_value(VolumeSpec::new(Size::gib(2), 1)).unwrap();
    let address = &golden::<Value>("node.json")["spec"]["address"];
    for (request, body, kind) in [
        (change.as_str(), json!({ "kind": "dance" }), ProblemKind::InvalidArgument),
        (&change, json!({ "kind": "resize", "size": 0 }), ProblemKind::InvalidArgument),
        (&change, json!({ "kind": "setReplicas", "replicas": 0 }), ProblemKind::InvalidArgument),
        (&change, json!({ "kind": "resize" }), ProblemKind::InvalidArgument),
        (&change, smaller, ProblemKind::OutOfRange),
        (&change, json!({ "kind": "modify", "spec": other }), ProblemKind::InvalidArgument),
        (&change, json!({ "kind": "republish" }), ProblemKind::NotPublished),
        (
            &change,
            json!({ "kind": "moveReplica", "replica": "00000000-0000-4000-8000-000000000099" }),
            ProblemKind::NotFound,
        ),
        (
            "POST /v1/nodes/node-1/changes",
            json!({ "kind": "register", "address": address }),
            ProblemKind::InvalidArgument,
        ),
        (
            "POST /v1/nodes/node-1/changes",
            json!({ "kind": "uncordon", "cordon": "x" }),
            ProblemKind::NotFound,
        ),
        (
            "POST /v1/nodes/node-9/changes",
            json!({ "kind": "cordon", "cordon": "x" }),
            ProblemKind::NotFound,
        ),
        (
            "POST /v1/pools/pool-1/changes",
            json!({ "kind": "cordon", "cordon": "X" }),
            ProblemKind::InvalidArgument,
        ),
    ] {
        let problem = running.refused(request, &body).await;
        assert_eq!(problem.kind, kind, "{request} {body}: {problem:?}");
    }
}

#[tokio::test]
async fn what_is_not_there() {
    let running = running(|_| {}).await;
    let nobody = "00000000-0000-4000-8000-000000000099";
    for path in [
        "nodes/node-9",
        "nodes/node-9/purge",
        "nodes/node-9/devices",
        "hosts/h",
        "watches/w",
        "pools/p",
        "pools/p/purge",
        &format!("volumes/{nobody}"),
        &format!("volumes/{nobody}/placement"),
        &format!("snapshots/{nobody}"),
        &format!("snapshots/{nobody}/ranges"),
        &format!("groups/{nobody}"),
        &format!("replicas/{nobody}"),
        &format!("replicas/{nobody}/scrub"),
        &format!("targets/{nobody}"),
        &format!("rebuilds/{nobody}"),
    ] {
        let answer = ask(running.address, &format!("GET /v1/{path}"), &[], "").await;
        assert_eq!(answer.problem().kind, ProblemKind::NotFound, "{path}");
    }
    let remote = running.remote();
    assert!(!remote.delete_volume(good(nobody), None).await.unwrap().existed);
    let snapshot = SnapshotSpec::new(good(nobody));
    let refused = remote.put_snapshot(good(nobody), snapshot).await.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::NotFound);
}

#[tokio::test]
async fn again_is_harmless_and_other_content_is_refused() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    let spec = VolumeSpec::new(Size::gib(1), 1);
    let put = async |spec: &VolumeSpec| remote.put_volume(volume_id(), spec.clone()).await;
    assert_eq!(put(&spec).await.unwrap().effect, Effect::Created);
    assert_eq!(put(&spec).await.unwrap().effect, Effect::Unchanged);
    let other = VolumeSpec::new(Size::gib(2), 1);
    assert_eq!(put(&other).await.unwrap_err().kind, ProblemKind::AlreadyExists);
    let grow = VolumeAction::Resize { size: Size::gib(2) };
    let grown = remote.change_volume(volume_id(), grow.clone(), None).await.unwrap();
    assert_eq!(grown.effect, Effect::Changed);
    let again = remote.change_volume(volume_id(), grow, None).await.unwrap();
    assert_eq!(again.effect, Effect::Unchanged);
    assert!(remote.delete_volume(volume_id(), None).await.unwrap().existed);
    assert!(!remote.delete_volume(volume_id(), None).await.unwrap().existed);
}

#[tokio::test]
async fn generations_are_told_and_stale_ones_refused() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    remote.put_volume(volume_id(), VolumeSpec::new(Size::gib(1), 1)).await.unwrap();
    let answer = ask(running.address, &format!("GET /v1/volumes/{VOLUME}"), &[], "").await;
    assert!(answer.head.contains("etag: \"1\""), "{}", answer.head);
    let grow = |gib| VolumeAction::Resize { size: Size::gib(gib) };
    let seen = Some(Generation::FIRST);
    let grown = remote.change_volume(volume_id(), grow(2), seen).await.unwrap();
    assert_eq!(grown.now.generation(), Generation::FIRST.next());
    let late = remote.change_volume(volume_id(), grow(3), seen).await.unwrap_err();
    assert_eq!(late.kind, ProblemKind::StaleGeneration);
    let late = remote.delete_volume(volume_id(), seen).await.unwrap_err();
    assert_eq!(late.kind, ProblemKind::StaleGeneration);
    let cordon = || NodeChange::Cordon { cordon: good("upgrade") };
    remote.change_node(good("node-1"), cordon(), seen).await.unwrap();
    let late = remote.change_node(good("node-1"), cordon(), seen).await.unwrap_err();
    assert_eq!(late.kind, ProblemKind::StaleGeneration);
}

#[tokio::test]
async fn what_is_busy_going_or_in_use() {
    let mut going: Volume = golden("volume-small.json");
    going.delete().unwrap();
    let (gone, spec) = (*going.id(), going.spec().clone());
    let replica: Replica = golden("replica.json");
    let running = running(|fake| {
        fake.has(going).has(replica);
        fake.set_busy(volume_id(), true);
    })
    .await;
    let remote = running.remote();
    remote.put_volume(volume_id(), VolumeSpec::new(Size::gib(1), 1)).await.unwrap();
    let busy = VolumeAction::Resize { size: Size::gib(2) };
    let busy = remote.change_volume(volume_id(), busy, None).await.unwrap_err();
    assert_eq!((busy.kind, busy.kind.http()), (ProblemKind::Busy, 503));
    assert_eq!(remote.put_volume(gone, spec).await.unwrap_err().kind, ProblemKind::Deleting);
    let grow = VolumeAction::Resize { size: Size::gib(900) };
    assert_eq!(
        remote.change_volume(gone, grow, None).await.unwrap_err().kind,
        ProblemKind::Deleting
    );
    let used = remote.delete_pool(good("pool-1"), None).await.unwrap_err();
    assert_eq!(used.kind, ProblemKind::InUse);
}

#[tokio::test]
async fn a_published_volume_is_in_use() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    remote.put_volume(volume_id(), VolumeSpec::new(Size::gib(1), 1)).await.unwrap();
    let publish = |host: &str| VolumeAction::Publish { host: Some(good(host)), node: None };
    remote.change_volume(volume_id(), publish("a"), None).await.unwrap();
    let other = remote.change_volume(volume_id(), publish("b"), None).await.unwrap_err();
    assert_eq!(other.kind, ProblemKind::AlreadyPublished);
    assert_eq!(remote.delete_volume(volume_id(), None).await.unwrap_err().kind, ProblemKind::InUse);
}

#[tokio::test]
async fn no_space_and_no_node() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    let large = remote.put_volume(id(1), VolumeSpec::new(Size::gib(1 << 20), 1)).await;
    assert_eq!(large.unwrap_err().kind, ProblemKind::NoSpace);
    let many = remote.put_volume(id(2), VolumeSpec::new(Size::gib(1), 3)).await;
    assert_eq!(many.unwrap_err().kind, ProblemKind::NoPlacement);
    let pool = PoolSpec { node: good("node-9"), ..golden::<Pool>("pool.json").order().spec };
    let nowhere = remote.put_pool(good("pool-9"), pool).await.unwrap_err();
    assert_eq!(
        (nowhere.kind, nowhere.field.as_deref()),
        (ProblemKind::NodeUnavailable, Some("node"))
    );
}

#[tokio::test]
async fn a_purge_takes_consent_to_what_is_lost() {
    let cost = Purge { lost_volumes: [volume_id()].into(), ..Purge::default() };
    let running = running(|fake| {
        fake.has(("node-1", cost.clone()));
    })
    .await;
    let remote = running.remote();
    assert_eq!(remote.node_purge(good("node-1")).await.unwrap(), cost);
    let refused =
        remote.purge_node(good("node-1"), PurgeConfirmation::default()).await.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::InUse);
    let knowing =
        PurgeConfirmation { lost_volumes: cost.lost_volumes, ..PurgeConfirmation::default() };
    assert!(remote.purge_node(good("node-1"), knowing).await.unwrap().existed);
}

#[tokio::test]
async fn lists_come_in_pages_and_by_filters() {
    let running = running(|_| {}).await;
    let remote = running.remote();
    for n in 1..=5 {
        let mut spec = VolumeSpec::new(Size::gib(1), 1);
        let odd = if n % 2 == 1 { "odd" } else { "even" };
        spec.labels = [(good("kind"), good(odd))].into();
        remote.put_volume(id(n), spec).await.unwrap();
    }
    let mut asked = VolumeQuery { label: Some(good("kind=odd")), ..VolumeQuery::default() };
    asked = asked.at(Paging { limit: Some(2), after: None });
    let first = remote.volumes(asked.clone()).await.unwrap();
    assert_eq!(first.items.iter().map(|v| *v.id()).collect::<Vec<_>>(), [id(1), id(3)]);
    let rest = asked.at(Paging { limit: Some(2), after: first.after });
    let rest = remote.volumes(rest).await.unwrap();
    assert_eq!((rest.items.len(), rest.after), (1, None));
    for bad in ["limit=0", "limit=1001", "limit=x", "state=sad", "node=N", "label=a b", "x=1"] {
        let request = format!("GET /v1/volumes?{}", bad.replace(' ', "%20"));
        let answer = ask(running.address, &request, &[], "");
        assert_eq!(answer.await.problem().kind, ProblemKind::InvalidArgument, "{bad}");
    }
}

#[tokio::test]
async fn events_are_told_and_gone_on_with() {
    let running = running(|_| {}).await;
    let event = golden_event();
    let told = |number| Event { number, ..event.clone() };
    let mut reader = running.remote().events(None).await.unwrap();
    running.events.push(told);
    assert_eq!(reader.next().await.unwrap(), Some(api::StreamItem::Event(told(1))));
    let place = reader.last().map(str::to_owned);
    drop(reader);
    running.events.push(told);
    let mut reader = running.remote().events(place).await.unwrap();
    assert_eq!(reader.next().await.unwrap(), Some(api::StreamItem::Event(told(2))));
}

fn golden_event() -> Event {
    let stored: Value = golden("stored-event.json");
    serde_json::from_value(stored["record"].clone()).unwrap()
}

#[tokio::test]
async fn everything_else_is_asked_and_answered() {
    let running = running(|fake| {
        fake.has((good::<NodeName>("node-1"), golden::<BlockDevice>("block-device.json")));
    })
    .await;
    let remote = running.remote();
    assert_eq!(remote.health().await.unwrap().status, "ok");
    assert_eq!(remote.status().await.unwrap().pools.all, 1);
    assert!(remote.metrics().await.unwrap().0.contains("up 1"));
    assert_eq!(remote.backup().await.unwrap().0, b"{}\n");
    let devices = remote.devices(good("node-1"), Paging::default()).await.unwrap();
    assert_eq!(devices.items.len(), 1);
    remote.put_volume(volume_id(), VolumeSpec::new(Size::gib(1), 1)).await.unwrap();
    let spec = SnapshotSpec::new(volume_id());
    remote.put_snapshot(id(40), spec).await.unwrap();
    assert_eq!(remote.ranges(id(40), RangeQuery::default()).await.unwrap().items.len(), 1);
    let labels: Labels = [(good("keep"), good("yes"))].into();
    let change = SnapshotChange::Label { labels: labels.clone() };
    let labelled = remote.change_snapshot(id(40), change, None).await.unwrap().now;
    assert_eq!(labelled.spec().labels, labels);
    let snapshots = [(volume_id(), id(41))].into();
    let group = SnapshotGroupSpec { labels, ..SnapshotGroupSpec::new(snapshots) };
    assert_eq!(remote.put_group(id(50), group).await.unwrap().effect, Effect::Created);
    let heartbeat: Heartbeat<NodeAddress> = golden("heartbeat.json");
    let heard = remote.node_heartbeat(good("node-2"), heartbeat).await.unwrap();
    assert!(heard.gone_in_millis > heard.next_in_millis);
    assert_eq!(remote.nodes(NodeQuery::default()).await.unwrap().items.len(), 2);
}
