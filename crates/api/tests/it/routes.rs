//! Every request with its answer, by the real client.

use api::node::{
    DeletePool, DeleteReplica, DiffQuery, Fence, FenceReset, GenerationQuery, JobControl, Node,
    PoolFilter, RebuildRequest, Run, ScrubState, SnapshotRequest,
};
use api::{Applied, Effect, Paging};
use model::*;

use crate::fake::{Running, faults, golden, good, id, order};

fn removal(generation: u64) -> DeleteReplica {
    let generation = Generation::new(generation).unwrap();
    DeleteReplica { generation, pool: "tank".parse().unwrap() }
}

fn numbered(generation: u64) -> GenerationQuery {
    GenerationQuery { generation: Generation::new(generation).unwrap() }
}

fn kind<T: std::fmt::Debug>(refused: Result<T, Problem>) -> ProblemKind {
    refused.unwrap_err().kind
}

fn effect<T>(answer: Result<Applied<T>, Problem>) -> Effect {
    answer.unwrap().effect
}

#[tokio::test]
async fn the_node_says_who_it_is() {
    let running = Running::new().await;
    let node = running.remote();
    assert_eq!(node.health().await.unwrap().instance, id(1));
    let info = node.node().await.unwrap();
    assert_eq!(info.address, golden::<Heartbeat<NodeAddress>>("heartbeat.json").address);
    assert!(node.metrics().await.unwrap().0.contains("up 1"));
    let device = &node.devices(Paging::default()).await.unwrap().items[0];
    assert_eq!(*device, golden("block-device.json"));
    let statistics = &node.statistics(Paging::default()).await.unwrap().items[0];
    assert_eq!(statistics.read.latency.total_micros, 5091);
    assert_eq!(statistics.read.latency.quantile_micros(500), Some(128));
    assert_eq!(statistics.read.latency.quantile_micros(1000), Some(8192));
}

#[tokio::test]
async fn pools_are_ordered_by_generation() {
    let running = Running::new().await;
    let node = running.remote();
    let spec = PoolSpec { exported: false, ..golden::<Pool>("pool.json").order().spec };
    let name: PoolName = good("pool-1");
    let put =
        |generation, spec: &PoolSpec| node.put_pool(name.clone(), order(generation, spec.clone()));
    assert_eq!(effect(put(2, &spec).await), Effect::Created);
    assert_eq!(effect(put(2, &spec).await), Effect::Unchanged);
    let exported = PoolSpec { exported: true, ..spec.clone() };
    assert_eq!(kind(put(2, &exported).await), ProblemKind::GenerationReused);
    assert_eq!(kind(put(1, &spec).await), ProblemKind::StaleGeneration);
    assert_eq!(effect(put(3, &exported).await), Effect::Changed);
    assert_eq!(node.pool(name.clone()).await.unwrap().spec, exported);
    assert_eq!(node.pools(Paging::default()).await.unwrap().items.len(), 1);
    let delete = |generation, uuid| {
        let generation = Generation::new(generation).unwrap();
        node.delete_pool(name.clone(), DeletePool { generation, uuid })
    };
    let uuid = spec.uuid.unwrap();
    assert_eq!(kind(delete(2, uuid).await), ProblemKind::StaleGeneration);
    assert!(!delete(4, id(99)).await.unwrap().existed);
    assert!(delete(4, uuid).await.unwrap().existed);
    assert!(!delete(4, uuid).await.unwrap().existed);
    assert_eq!(kind(put(3, &exported).await), ProblemKind::StaleGeneration);
    assert_eq!(kind(node.pool(name.clone()).await), ProblemKind::NotFound);
}

#[tokio::test]
async fn replicas_and_what_hangs_on_them() {
    let running = Running::new().await;
    let node = running.remote();
    let replica = id(20);
    let spec = golden::<Replica>("replica.json").order().spec;
    let put = node.put_replica(replica, order(1, spec.clone()));
    assert_eq!(put.await.unwrap().now.spec, spec);
    assert_eq!(node.replica(replica).await.unwrap().generation, Some(Generation::FIRST));
    assert_eq!(node.replicas(Paging::default()).await.unwrap().items.len(), 1);
    let label = golden::<Replica>("replica.json").status.unwrap().label.unwrap();
    let labelled = node.put_label(label.replica, label.clone()).await;
    assert_eq!(labelled.unwrap().now, label);
    let spec_backup = golden::<Replica>("replica.json").status.unwrap().spec_backup.unwrap();
    assert_eq!(node.put_spec_backup(replica, spec_backup.clone()).await.unwrap().now, spec_backup);
    assert_eq!(kind(node.scrub(replica).await), ProblemKind::NotFound);
    let request = JobControl { run: Run::Pause, bytes_per_second: Some(Size::mib(8)) };
    assert_eq!(effect(node.put_scrub(replica, order(1, request)).await), Effect::Changed);
    assert_eq!(node.scrub(replica).await.unwrap().state, ScrubState::Paused {});
    let seen = node.fence(replica).await.unwrap().epoch;
    let reset = FenceReset { epoch: 7, seen };
    assert_eq!(node.reset_fence(replica, reset).await.unwrap().now, Fence { epoch: 7 });
    assert!(node.delete_replica(replica, removal(2)).await.unwrap().existed);
}

#[tokio::test]
async fn ranges_come_in_pages() {
    let running = Running::new().await;
    let node = running.remote();
    let mut paging = Paging { limit: Some(2), after: None };
    let mut sizes = Vec::new();
    loop {
        let page = node.written(id(20), paging.clone()).await.unwrap();
        sizes.push(page.items.len());
        paging.after = page.after;
        if paging.after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [2, 2, 1]);
    let since = DiffQuery { since: Some(id(40)), ..DiffQuery::default() };
    let changed = node.changed(id(20), id(41), since).await.unwrap();
    assert_eq!(
        changed.items.iter().map(|range| range.offset).collect::<Vec<_>>(),
        [Size::mib(3), Size::mib(4)]
    );
    assert_eq!(changed.after, None);
}

#[tokio::test]
async fn snapshots_never_change() {
    let running = Running::new().await;
    let node = running.remote();
    let taken_at = Timestamp::from_millis(1_794_778_258_123);
    let request =
        SnapshotRequest { group: Some(id(50)), taken_at, consistency: Consistency::Crash };
    let put = |request: &SnapshotRequest| node.put_snapshot(id(20), id(40), request.clone());
    assert_eq!(effect(put(&request).await), Effect::Created);
    assert_eq!(effect(put(&request).await), Effect::Unchanged);
    let other = SnapshotRequest { group: None, ..request.clone() };
    assert_eq!(kind(put(&other).await), ProblemKind::AlreadyExists);
    let found = &node.snapshots(Paging::default()).await.unwrap().items[0];
    assert_eq!((found.label.taken_at, found.label.group), (taken_at, Some(id(50))));
    let of_volume = node.put_target_snapshot(id(30), id(41), request.clone()).await.unwrap().now;
    assert_eq!((of_volume.snapshot, of_volume.request), (id(41), request));
    let place = PoolFilter { pool: "tank".parse().unwrap() };
    assert!(node.delete_snapshot(id(20), id(40), place.clone()).await.unwrap().existed);
    assert!(!node.delete_snapshot(id(20), id(40), place).await.unwrap().existed);
}

#[tokio::test]
async fn targets_and_rebuilds() {
    let running = Running::new().await;
    let node = running.remote();
    let wanted: VersionedSpec<TargetSpec> = golden("target-order.json");
    assert_eq!(effect(node.put_target(id(30), wanted.clone()).await), Effect::Created);
    let found = node.target(id(30)).await.unwrap();
    assert_eq!(found.spec, wanted.spec);
    assert_eq!(Some(found.status), golden::<Target>("target.json").status);
    assert_eq!(node.targets(Paging::default()).await.unwrap().items.len(), 1);
    let request =
        RebuildRequest { target: id(30), replica: id(21), bytes_per_second: None, run: Run::Run };
    let made = node.put_rebuild(id(60), order(1, request)).await.unwrap().now;
    assert_eq!(node.rebuild(id(60)).await.unwrap(), made);
    assert_eq!(node.rebuilds(Paging::default()).await.unwrap().items, [made]);
    assert_eq!(kind(node.rebuild(id(61)).await), ProblemKind::NotFound);
    assert!(node.delete_target(id(30), numbered(9)).await.unwrap().existed);
}

#[tokio::test]
async fn faults_are_replaced_as_a_whole() {
    let running = Running::new().await;
    let node = running.remote();
    assert_eq!(node.put_faults(faults()).await.unwrap().now, faults());
    assert_eq!(node.faults().await.unwrap(), faults());
}
