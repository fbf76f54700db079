//! The whole cluster on one page, as numbers, and as a file.

use std::fmt::Write as _;

use api::Text;
use api::rest::{
    ApiResult, Backup, Brake, Capacity, Counts, Issue, Leader, QuarantineCounts, Status,
    VolumeCounts,
};
use model::{
    ChildState, Liveness, OfflineReason, PoolState, Problem, ProblemKind, QuarantineCause,
    Severity, Subject, UnknownReason, VolumeState,
};
use store::contract::Keys;

use super::Rest;
use crate::controller::Controller;

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn tally((well, all): (usize, usize)) -> Counts {
    Counts { well: count(well), all: count(all) }
}

impl Rest {
    pub(super) fn status_of_all(&self) -> ApiResult<Status> {
        let leader = self.0.who_leads();
        self.0.read(|controller| Ok(status(controller, leader)))
    }

    /// What this process did, and if it leads how the cluster is.
    pub(super) fn metrics_text(&self) -> ApiResult<Text> {
        let mut text = String::new();
        let leader = self.0.who_leads();
        gauges(&mut text, &[("leader", u64::from(leader.here))]);
        // One that does not lead knows nothing of the cluster, which is no error.
        if leader.here {
            self.0.read(|controller| {
                cluster_metrics(&mut text, &status(controller, leader));
                controller_metrics(&mut text, controller);
                Ok(())
            })?;
        }
        self.0.metrics.write(&mut text);
        text.push_str(&self.0.requests.metrics());
        Ok(Text(text))
    }

    pub(super) async fn export(&self) -> ApiResult<Backup> {
        let mut file = Vec::new();
        // Others may use the store too: what they keep there is none of ours.
        let ours = Keys::prefix(model::keys::ROOT);
        let store = &*self.0.store;
        let exported = store::export::export_keys(store, ours, &mut file, &mut |_| {}).await;
        match exported {
            Ok(_) => Ok(Backup(file)),
            Err(error) => Err(Problem::new(ProblemKind::StoreUnavailable, error)),
        }
    }
}

fn gauges(text: &mut String, rows: &[(&str, u64)]) {
    for (name, value) in rows {
        // Writing into a string does not fail.
        let _ = writeln!(text, "# TYPE holdfast_{name} gauge\nholdfast_{name} {value}");
    }
}

fn cluster_metrics(text: &mut String, status: &Status) {
    let volumes = status.volumes;
    let rows = [
        ("nodes", status.nodes.all),
        ("nodes_online", status.nodes.well),
        ("pools", status.pools.all),
        ("pools_online", status.pools.well),
        ("volumes_online", volumes.online),
        ("volumes_degraded", volumes.degraded),
        ("volumes_faulted", volumes.faulted),
        ("volumes_unknown", volumes.unknown),
        ("volumes_published", volumes.published),
        ("snapshots", status.snapshots),
        ("rebuilds_running", status.rebuilds),
        ("failovers_running", status.failovers),
        ("quarantined_replicas", status.quarantine.replicas),
        ("quarantined_bytes", status.quarantine.used.bytes().0),
        ("healing_held", status.brake.as_ref().map_or(0, |brake| brake.held)),
        ("maintenance", u64::from(status.maintenance.is_some())),
        ("capacity_bytes", status.capacity.capacity.bytes().0),
        ("used_bytes", status.capacity.used.bytes().0),
        ("committed_bytes", status.capacity.committed.bytes().0),
    ];
    gauges(text, &rows);
}

/// What the controller is at, and what it cost.
fn controller_metrics(text: &mut String, controller: &Controller) {
    let work = controller.work();
    let activity = controller.activity();
    let rows = [
        ("blocked", count(controller.blocked().len())),
        ("orders_in_flight", activity.orders),
        ("operations", activity.operations),
        ("operation_oldest_seconds", activity.oldest_operation.as_secs()),
    ];
    gauges(text, &rows);
    let seconds = work.plan_time().as_secs_f64();
    let _ = writeln!(text, "# TYPE holdfast_plans_total counter");
    let _ = writeln!(text, "holdfast_plans_total {}", work.plans());
    let _ = writeln!(text, "# TYPE holdfast_plan_seconds_total counter");
    let _ = writeln!(text, "holdfast_plan_seconds_total {seconds}");
    let _ = writeln!(text, "# TYPE holdfast_heartbeat_age_seconds gauge");
    for (node, age) in controller.heartbeat_ages() {
        let age = age.as_secs_f64();
        let _ = writeln!(text, "holdfast_heartbeat_age_seconds{{node=\"{node}\"}} {age}");
    }
}

/// Why a node is not online, and what to do.
fn away(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Online => "it is there",
        Liveness::Unknown { reason: UnknownReason::NotSeen } => {
            "its engine was not heard of since this control plane leads; does it run?"
        }
        Liveness::Unknown { reason: UnknownReason::Late } => {
            "its engine is late with its heartbeat"
        }
        Liveness::Unknown { reason: UnknownReason::ListingFailed } => {
            "its engine does not say what it has; can the control plane reach its API?"
        }
        Liveness::Offline { reason: OfflineReason::Lapsed } => {
            "nothing is heard of its engine; start it, or purge the node if it is lost"
        }
        Liveness::Offline { reason: OfflineReason::Left } => "its engine was stopped",
        Liveness::Offline { reason: OfflineReason::Refused } => {
            "its engine has ended without saying so; start it, and look into its log"
        }
        Liveness::Offline { reason: OfflineReason::Unresponsive } => {
            "its engine sends heartbeats but its API does not answer; restart it, or let the \
             control plane reach its API"
        }
    }
}

/// What is wrong with a pool, if anything is.
fn unwell(state: &PoolState) -> Option<(Severity, String)> {
    let (severity, how, symptoms) = match state {
        PoolState::Faulted { symptoms } => (Severity::Error, "it does not work", symptoms),
        PoolState::Suspect { symptoms } => (Severity::Warning, "a disk is not well", symptoms),
        PoolState::Online | PoolState::Offline | PoolState::Unknown => return None,
    };
    let details = symptoms.iter().map(|it| format!("{} {}", it.disk, it.detail));
    Some((severity, format!("{how}: {}", details.collect::<Vec<_>>().join("; "))))
}

fn status(controller: &Controller, leader: Leader) -> Status {
    let facts = &controller.state().facts;
    let mut issues = Vec::new();
    let online = |liveness: Option<Liveness>| liveness == Some(Liveness::Online);
    for (name, node) in &facts.nodes {
        let liveness = node.status.as_ref().map(|status| status.liveness);
        if !online(liveness) {
            let message = away(liveness.unwrap_or(Liveness::NOT_SEEN)).to_owned();
            issues.push(trouble(Subject::Node(name.clone()), Severity::Error, message));
        }
    }
    let nodes_well = facts.nodes.len() - issues.len();
    let hosts = controller.state().hosts.values();
    let hosts_well =
        hosts.filter(|host| online(host.status.as_ref().map(|it| it.liveness))).count();
    let mut capacity = Capacity::default();
    let mut pools_well = 0;
    for name in facts.pools.keys() {
        let Some(status) = controller.pool_seen(name).and_then(|pool| pool.status) else {
            continue;
        };
        capacity.capacity = capacity.capacity.plus(status.capacity);
        capacity.used = capacity.used.plus(status.used);
        capacity.committed = capacity.committed.plus(status.committed);
        pools_well += usize::from(status.state == PoolState::Online);
        if let Some((severity, message)) = unwell(&status.state) {
            issues.push(trouble(Subject::Pool(name.clone()), severity, message));
        }
    }
    let volumes = count_volumes(controller, &mut issues);
    for (subject, what, age) in controller.stuck_operations() {
        let (id, age) = (subject.id(), age.as_secs());
        let message = format!("{what} for {age} s now; see `holdfast explain {id}`");
        issues.push(trouble(subject, Severity::Warning, message));
    }
    for blocked in
        controller.blocked().iter().filter(|it| !matches!(it.subject, Subject::Volume(_)))
    {
        let (subject, message) = (blocked.subject.clone(), blocked.reason.clone());
        issues.push(trouble(subject, Severity::Warning, message));
    }
    issues.sort_by_key(|trouble| std::cmp::Reverse(trouble.severity));
    let more_troubles = count(issues.len().saturating_sub(Status::MOST_TROUBLES));
    issues.truncate(Status::MOST_TROUBLES);
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        leader,
        nodes: tally((nodes_well, facts.nodes.len())),
        hosts: tally((hosts_well, controller.state().hosts.len())),
        pools: tally((pools_well, facts.pools.len())),
        volumes,
        capacity,
        snapshots: count(facts.snapshots.len()),
        rebuilds: count(rebuilding(controller)),
        quarantine: quarantine(controller),
        brake: controller
            .brake()
            .map(|brake| Brake { held: brake.held.into(), reason: brake.reason.clone() }),
        maintenance: controller.maintenance().cloned(),
        failovers: count(facts.failovers.values().filter(|it| !it.stage().is_ended()).count()),
        issues,
        more_troubles,
    }
}

/// How the volumes are, and what is wrong with those that are not well.
fn count_volumes(controller: &Controller, issues: &mut Vec<Issue>) -> VolumeCounts {
    let mut volumes = VolumeCounts::default();
    for id in controller.state().facts.volumes.keys() {
        let Some(status) = controller.volume_seen(*id).and_then(|volume| volume.status) else {
            continue;
        };
        let (number, severity) = match status.state {
            VolumeState::Online => (&mut volumes.online, Severity::Info),
            VolumeState::Degraded => (&mut volumes.degraded, Severity::Warning),
            VolumeState::Faulted => (&mut volumes.faulted, Severity::Error),
            VolumeState::Unknown => (&mut volumes.unknown, Severity::Warning),
        };
        *number += 1;
        volumes.published += u64::from(status.target.is_some_and(|it| !it.hosts.is_empty()));
        if severity > Severity::Info {
            let message = status.reasons.join("; ");
            issues.push(trouble(Subject::Volume(*id), severity, message));
        }
    }
    volumes
}

/// Copies that are set aside.
fn quarantine(controller: &Controller) -> QuarantineCounts {
    let mut tally = QuarantineCounts::default();
    for one in controller.quarantined() {
        tally.replicas += 1;
        tally.newer += u64::from(one.cause == QuarantineCause::Newer);
        let node = controller.state().pool(&one.pool).map(|pool| &pool.spec().node);
        let usage = node.and_then(|node| controller.usage_of_unknown(node, one.replica));
        tally.used = tally.used.plus(usage.unwrap_or_default().allocated);
    }
    tally
}

/// How many copies are being brought in sync.
fn rebuilding(controller: &Controller) -> usize {
    let statuses = controller.state().facts.targets.values().filter_map(|it| it.status.as_ref());
    let children = statuses.flat_map(|status| &status.children);
    children.filter(|child| child.state == ChildState::Rebuilding).count()
}

fn trouble(subject: Subject, severity: Severity, message: String) -> Issue {
    Issue { subject, severity, message }
}
