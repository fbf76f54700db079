//! The contract, served over HTTP.

use std::sync::Arc;

use axum::Router;
use model::Event;

use super::{Node, routes};
use crate::events::Log;
use crate::{ApiRouter, EventStream, Guard};

/// An engine and what it tells.
pub struct NodeService<N> {
    /// Who answers.
    pub node: N,
    /// What happened there; whoever stops the server closes it first.
    pub events: Arc<Log<Event>>,
}

/// Every route with its handler, but for the injection of faults: that is no part of the contract.
pub fn api<N: Node>() -> ApiRouter<NodeService<N>> {
    let api = ApiRouter::new("Holdfast node API", "What the control plane asks of an engine.");
    events(targets(replicas(things(api))))
}

fn things<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api.on(&routes::HEALTH, async move |s, _| s.node.health().await)
        .on(&routes::NODE, async move |s, _| s.node.node().await)
        .on(&routes::POOLS, async move |s, r| s.node.pools(r.query).await)
        .on(&routes::POOL, async move |s, r| s.node.pool(r.at.0).await)
        .on(&routes::PUT_POOL, async move |s, r| s.node.put_pool(r.at.0, r.body).await)
        .on(&routes::DELETE_POOL, async move |s, r| s.node.delete_pool(r.at.0, r.query).await)
        .on(&routes::CLEAR_POOL_ERRORS, async move |s, r| s.node.clear_pool_errors(r.at.0).await)
        .on(&routes::STATISTICS, async move |s, r| s.node.statistics(r.query).await)
        .on(&routes::DEVICES, async move |s, r| s.node.devices(r.query).await)
        .on(&routes::METRICS, async move |s, _| s.node.metrics().await)
}

fn replicas<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api.on(&routes::REPLICAS, async move |s, r| s.node.replicas(r.query).await)
        .on(&routes::REPLICA, async move |s, r| s.node.replica(r.at.0).await)
        .on(&routes::PUT_REPLICA, async move |s, r| s.node.put_replica(r.at.0, r.body).await)
        .on(&routes::DELETE_REPLICA, async move |s, r| s.node.delete_replica(r.at.0, r.query).await)
        .on(&routes::PUT_LABEL, async move |s, r| s.node.put_label(r.at.0, r.body).await)
        .on(&routes::PUT_SPEC_BACKUP, async move |s, r| {
            s.node.put_spec_backup(r.at.0, r.body).await
        })
        .on(&routes::WRITTEN, async move |s, r| s.node.written(r.at.0, r.query).await)
        .on(&routes::SCRUB, async move |s, r| s.node.scrub(r.at.0).await)
        .on(&routes::PUT_SCRUB, async move |s, r| s.node.put_scrub(r.at.0, r.body).await)
        .on(&routes::FENCE, async move |s, r| s.node.fence(r.at.0).await)
        .on(&routes::RESET_FENCE, async move |s, r| s.node.reset_fence(r.at.0, r.body).await)
        .on(&routes::SNAPSHOTS, async move |s, r| s.node.snapshots(r.query).await)
        .on(&routes::PUT_SNAPSHOT, async move |s, r| {
            s.node.put_snapshot(r.at.0, r.at.1, r.body).await
        })
        .on(&routes::DELETE_SNAPSHOT, async move |s, r| {
            s.node.delete_snapshot(r.at.0, r.at.1, r.query).await
        })
        .on(&routes::CHANGED, async move |s, r| s.node.changed(r.at.0, r.at.1, r.query).await)
}

fn targets<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api.on(&routes::TARGETS, async move |s, r| s.node.targets(r.query).await)
        .on(&routes::TARGET, async move |s, r| s.node.target(r.at.0).await)
        .on(&routes::PUT_TARGET, async move |s, r| s.node.put_target(r.at.0, r.body).await)
        .on(&routes::DELETE_TARGET, async move |s, r| s.node.delete_target(r.at.0, r.query).await)
        .on(&routes::PUT_TARGET_SNAPSHOT, async move |s, r| {
            s.node.put_target_snapshot(r.at.0, r.at.1, r.body).await
        })
        .on(&routes::CHECK_TARGET, async move |s, r| s.node.check_target(r.at.0, r.body).await)
        .on(&routes::REBUILDS, async move |s, r| s.node.rebuilds(r.query).await)
        .on(&routes::REBUILD, async move |s, r| s.node.rebuild(r.at.0).await)
        .on(&routes::PUT_REBUILD, async move |s, r| s.node.put_rebuild(r.at.0, r.body).await)
}

fn events<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api.on(&routes::EVENTS, async move |s, r| {
        Ok(EventStream::new(Arc::clone(&s.events), r.last_event))
    })
}

#[cfg(feature = "faults")]
fn with_faults<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api.on(&routes::FAULTS, async move |s, _| s.node.faults().await)
        .on(&routes::PUT_FAULTS, async move |s, r| s.node.put_faults(r.body).await)
}

#[cfg(not(feature = "faults"))]
fn with_faults<N: Node>(api: ApiRouter<NodeService<N>>) -> ApiRouter<NodeService<N>> {
    api
}

/// The node API as a service.
pub fn router<N: Node>(node: N, events: Arc<Log<Event>>, guard: Guard) -> Router {
    with_faults(api()).router(Arc::new(NodeService { node, events }), guard)
}
