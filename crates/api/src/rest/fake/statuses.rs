//! What is seen of all together, and which of many are asked for.

use std::collections::BTreeMap;

use model::{
    Consistency, Event, Generation, Heartbeat, HostAddress, HostName, HostSpec, HostStatus, Labels,
    Liveness, Node, NodeAddress, NodeChange, NodeName, NodeSpec, NodeStatus, Pool, PoolState,
    Problem, ProblemKind, Progress, QuarantineCause, Rebuild, RebuildEvent, RebuildId, ReplicaId,
    Size, Snapshot, SnapshotSpec, SnapshotState, SnapshotStatus, Subject, Timestamp, Volume,
    VolumeState,
};

use super::FakeState;
use super::collection::Collection;
use crate::heartbeat::HeartbeatAck;
use crate::node::{Fence, FenceReset, Run, Scrub, ScrubState};
use crate::rest::{
    ApiResult, Capacity, Counts, EventQuery, Explanation, Health, LabelMatch, Leader, Placement,
    Purge, PurgeConfirmation, QuarantineCounts, Quarantined, RescueRequest, SnapshotQuery, Status,
    StoredSpec, VolumeCounts, VolumeQuery,
};
use crate::{Applied, Page, Paging};

/// The release it says it is.
pub(super) const VERSION: &str = "0.0.0";

/// It leads, and always has.
pub(super) fn well() -> Health {
    let leader = Leader { here: true, name: None };
    let version = VERSION.to_owned();
    Health { status: "ok".to_owned(), version, store_revision: 1, leader }
}

pub(super) fn count(some: usize) -> u64 {
    u64::try_from(some).unwrap_or(u64::MAX)
}

/// Whether a filter that may be absent lets this through.
pub(super) fn is<T: PartialEq>(asked: Option<&T>, have: &T) -> bool {
    asked.is_none_or(|asked| asked == have)
}

pub(super) fn labelled(asked: Option<&LabelMatch>, labels: &Labels) -> bool {
    asked.is_none_or(|asked| asked.admits(labels))
}

pub(super) fn asks_for_event(query: &EventQuery, event: &Event) -> bool {
    query.volume.is_none_or(|volume| event.subject == Subject::Volume(volume))
        && query.admits(event)
}

pub(super) fn asks_for(query: &VolumeQuery, volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    let state = status.map_or(VolumeState::Unknown, |status| status.state);
    let copies = || status.into_iter().flat_map(|status| status.replicas.values());
    let target = status.and_then(|status| status.target.as_ref());
    let on = |node: &NodeName| {
        copies().any(|copy| copy.node == *node) || target.is_some_and(|t| t.node == *node)
    };
    is(query.state.as_ref(), &state)
        && query.node.as_ref().is_none_or(on)
        && query.pool.as_ref().is_none_or(|pool| copies().any(|copy| copy.pool == *pool))
        && query.host.as_ref().is_none_or(|host| target.is_some_and(|t| t.hosts.contains(host)))
        && query
            .affinity_group
            .as_ref()
            .is_none_or(|group| volume.spec().affinity_group.as_ref() == Some(group))
        && labelled(query.label.as_ref(), &volume.spec().labels)
}

pub(super) fn asks_for_snapshot(query: &SnapshotQuery, snapshot: &Snapshot) -> bool {
    let spec = snapshot.spec();
    is(query.volume.as_ref(), &spec.volume)
        && query.group.is_none_or(|group| spec.group == Some(group))
        && labelled(query.label.as_ref(), &spec.labels)
}

/// When the next heartbeat is due.
pub(super) const HEARD: HeartbeatAck =
    HeartbeatAck { next_in_millis: 1000, gone_in_millis: 5000, mark: None };

/// Refuses to lose what the caller does not know of.
pub(super) fn covered(purge: &Purge, consent: &PurgeConfirmation) -> ApiResult<()> {
    if purge.is_covered(consent) {
        return Ok(());
    }
    let detail = "data would be lost that the request does not name; look at the preview, and \
                  name what may be lost";
    Err(Problem::new(ProblemKind::InUse, detail))
}

impl FakeState {
    pub(super) fn pace_rebuild(
        &mut self,
        at: RebuildId,
        run: Run,
        now: Timestamp,
    ) -> ApiResult<Applied<Rebuild>> {
        let missing = || Problem::new(ProblemKind::NotFound, format!("there is no rebuild {at}"));
        let rebuild = self.rebuilds.get_mut(&at).ok_or_else(missing)?;
        let event = match run {
            Run::Run => RebuildEvent::Resume,
            Run::Pause => RebuildEvent::Pause,
            Run::Cancel => RebuildEvent::Cancel,
        };
        rebuild.on(event, now)?;
        Ok(Applied::changed(rebuild.clone()))
    }

    pub(super) fn specs(&self, query: &Paging) -> ApiResult<Page<StoredSpec>> {
        let volumes = self.volumes.page(query, |_| true)?;
        let stored = volumes.items.iter().map(|volume| StoredSpec {
            key: model::keys::of::<Volume>(volume.id()),
            revision: 1,
            record: serde_json::to_value(volume).unwrap_or_default(),
        });
        Ok(Page { items: stored.collect(), after: volumes.after })
    }

    pub(super) fn kept(&self, query: &EventQuery) -> ApiResult<Page<Event>> {
        let some = self.events.iter().filter(|event| asks_for_event(query, event)).cloned();
        query.paging().cut(some, |event| format!("{:020}", event.number))
    }

    /// Why a volume or node is as it is: here everything is as it is wanted.
    pub(super) fn explain(&self, thing: &str) -> ApiResult<Explanation> {
        let volumes = self.volumes.all().map(|volume| Subject::Volume(*volume.id()));
        let nodes = self.nodes.all().map(|node| Subject::Node(node.id().clone()));
        let missing = || {
            let detail = format!("nothing is called {thing}, and no id begins so");
            Problem::new(ProblemKind::NotFound, detail)
        };
        let subject = volumes.chain(nodes).find(|it| it.id().starts_with(thing));
        let subject = subject.ok_or_else(missing)?;
        Ok(Explanation {
            events: self.events.iter().filter(|it| it.subject == subject).cloned().collect(),
            subject,
            wanted: vec!["all of it".to_owned()],
            seen: vec!["all of it".to_owned()],
            operation: None,
            waits_for: Vec::new(),
            refusal: None,
            next: None,
            remedies: Vec::new(),
        })
    }

    /// A snapshot of a copy that is set aside.
    pub(super) fn rescue(
        &mut self,
        at: ReplicaId,
        RescueRequest { snapshot }: RescueRequest,
        now: Timestamp,
    ) -> ApiResult<Applied<Snapshot>> {
        let missing =
            || Problem::new(ProblemKind::NotFound, format!("replica {at} is not in quarantine"));
        let record = self.quarantine.get(&at).map(|it| &it.record).ok_or_else(missing)?;
        let spec = SnapshotSpec::new(record.volume);
        let status = taken_at_once(record.since, record.size);
        self.snapshots.put(&snapshot, spec, now, |_| Ok(status))
    }

    pub(super) fn summary(&self) -> Status {
        let well =
            |node: &&Node| node.status.as_ref().is_some_and(|status| status.liveness.is_online());
        let works = |pool: &&Pool| {
            pool.status.as_ref().is_some_and(|status| status.state == PoolState::Online)
        };
        let mut volumes = VolumeCounts::default();
        for volume in self.volumes.all() {
            let state = volume.status.as_ref().map_or(VolumeState::Unknown, |status| status.state);
            *match state {
                VolumeState::Online => &mut volumes.online,
                VolumeState::Degraded => &mut volumes.degraded,
                VolumeState::Faulted => &mut volumes.faulted,
                VolumeState::Unknown => &mut volumes.unknown,
            } += 1;
            let target = volume.status.as_ref().and_then(|status| status.target.as_ref());
            volumes.published += u64::from(target.is_some_and(|target| !target.hosts.is_empty()));
        }
        let nodes = Counts {
            well: count(self.nodes.all().filter(well).count()),
            all: count(self.nodes.all().count()),
        };
        let pools = Counts {
            well: count(self.pools.all().filter(works).count()),
            all: count(self.pools.all().count()),
        };
        let hosts = count(self.hosts.all().count());
        Status {
            version: VERSION.to_owned(),
            leader: Leader { here: true, name: Some("fake".to_owned()) },
            nodes,
            hosts: Counts { well: hosts, all: hosts },
            pools,
            volumes,
            capacity: capacity(&self.pools),
            snapshots: count(self.snapshots.all().count()),
            rebuilds: count(self.rebuilds.values().filter(|r| !r.state().is_ended()).count()),
            failovers: count(self.failovers.iter().filter(|f| !f.stage().is_ended()).count()),
            issues: self.issues.clone(),
            quarantine: self.tally_quarantine(),
            brake: None,
            maintenance: self.maintenance.clone(),
            more_troubles: 0,
        }
    }

    fn tally_quarantine(&self) -> QuarantineCounts {
        let newer = |it: &&Quarantined| it.record.cause == QuarantineCause::Newer;
        let all = self.quarantine.values();
        QuarantineCounts {
            replicas: count(self.quarantine.len()),
            newer: count(self.quarantine.values().filter(newer).count()),
            used: all.fold(Size::ZERO, |sum, it| sum.plus(it.used.unwrap_or_default())),
        }
    }

    /// A host that is heard of for the first time is there from now on.
    pub(super) fn register_host(
        &mut self,
        at: &HostName,
        body: Heartbeat<HostAddress>,
        now: Timestamp,
    ) -> ApiResult<()> {
        let Heartbeat { instance, address, .. } = body;
        let spec = HostSpec { address, labels: Labels::new() };
        let status = HostStatus {
            liveness: Liveness::Online,
            instance: Some(instance),
            seen_at: Some(now),
            attached: BTreeMap::new(),
        };
        if self.hosts.get(at).is_err() {
            self.hosts.put(at, spec, now, |_| Ok(status))?;
        }
        Ok(())
    }

    /// Where copies of a volume could lie.
    pub(super) fn places(&self) -> Vec<Placement> {
        let place = |(pool, rank): (&Pool, u32)| Placement {
            pool: pool.id().clone(),
            node: pool.spec().node.clone(),
            replica: None,
            rank: (!pool.spec().is_cordoned()).then_some(rank),
            refused: pool.spec().is_cordoned().then(|| "the pool is cordoned".to_owned()),
        };
        self.pools.all().zip(1..).map(place).collect()
    }

    pub(super) fn register(
        &mut self,
        at: &NodeName,
        body: Heartbeat<NodeAddress>,
        now: Timestamp,
    ) -> ApiResult<()> {
        let Heartbeat { instance, version, address, told: _ } = body;
        let spec = NodeSpec {
            address: address.clone(),
            labels: Labels::new(),
            cordons: [].into(),
            drains: [].into(),
        };
        let status = NodeStatus {
            liveness: Liveness::Online,
            instance: Some(instance),
            version: Some(version),
            seen_at: Some(now),
            drain: None,
        };
        if self.nodes.get(at).is_ok() {
            self.nodes.change(at, NodeChange::Register { address }, None, now)?;
            self.nodes.get_mut(at)?.status = Some(status);
        } else {
            self.nodes.put(at, spec, now, |_| Ok(status))?;
        }
        Ok(())
    }
}

/// What all pools have together.
fn capacity(pools: &Collection<model::PoolSpec>) -> Capacity {
    let seen = pools.all().filter_map(|pool| pool.status.as_ref());
    seen.fold(Capacity::default(), |sum, pool| Capacity {
        capacity: sum.capacity.plus(pool.capacity),
        used: sum.used.plus(pool.used),
        committed: sum.committed.plus(pool.committed),
    })
}

/// What every copy remembers.
pub(super) const FENCE: Fence = Fence { epoch: 9 };

/// The fence of a copy is lowered by somebody who knows what it remembers.
pub(super) fn lowered(reset: FenceReset) -> ApiResult<Applied<Fence>> {
    if reset.seen != FENCE.epoch {
        let detail = format!("it remembers epoch {}; name that", FENCE.epoch);
        return Err(Problem::new(ProblemKind::StaleGeneration, detail));
    }
    Ok(Applied::changed(Fence { epoch: reset.epoch }))
}

impl FakeState {
    /// A scrub goes as it was told, at once.
    pub(super) fn scrub(
        &mut self,
        at: ReplicaId,
        run: Run,
        now: Timestamp,
    ) -> ApiResult<Applied<Scrub>> {
        let size = self.replicas.get(&at)?.spec().size;
        let (state, done) = match run {
            Run::Run => (ScrubState::Completed {}, size),
            Run::Pause => (ScrubState::Paused {}, Size::ZERO),
            Run::Cancel => (ScrubState::Cancelled {}, Size::ZERO),
        };
        let progress = Progress { total: size, done, copied: Size::ZERO };
        let scrub = Scrub { state, progress, ..Scrub::begun(Generation::FIRST, now) };
        self.scrubs.insert(at, scrub.clone());
        Ok(Applied::changed(scrub))
    }
}

/// A snapshot that was taken at once.
pub(super) fn taken_at_once(now: Timestamp, size: Size) -> SnapshotStatus {
    SnapshotStatus {
        state: SnapshotState::Ready,
        taken_at: now,
        size,
        consistency: Consistency::Crash,
        copies: BTreeMap::new(),
    }
}
