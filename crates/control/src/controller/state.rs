//! What is known: the records of the store, and what was seen of them, with the ways to find them.
//!
//! Invariants:
//! - What is wanted is in memory exactly as it is in the store: [`State::apply`] is called with
//!   what the store has taken, by nobody else, and is the only way to change it.
//! - What was seen is kept beside it in the objects' statuses and survives [`State::apply`].

use std::collections::{BTreeMap, BTreeSet};

use model::envelope::{DecodeError, Versioned as _};
use model::{
    Event, Failover, Host, HostName, Maintenance, Node, NodeName, Pool, PoolName, Quarantine,
    Rebuild, RebuildId, Replica, ReplicaId, Resource, Snapshot, SnapshotGroup, SnapshotGroupId,
    SnapshotId, Spec, StoreSequence, Target, TargetId, TargetRecord, Volume, VolumeId, Webhook,
    WebhookName, keys,
};
use planner::{Facts, ReplicaMove};
use store::contract::{KeyValue, Revision};

use super::unreadable::UnreadableRecords;
use super::{ComparisonRecord, Entry, MoveRecord, ScrubRecord};
use crate::event_store::EventRetention;

/// A record that could not be read and without which nothing can be done.
#[derive(Debug, thiserror::Error)]
#[error("the record {key} of the store cannot be read")]
pub struct LoadError {
    /// Where it lies.
    pub key: String,
    /// Why.
    pub source: DecodeError,
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct State {
    /// What decisions are made from.
    pub(crate) facts: Facts,
    /// Machines that use volumes.
    pub(crate) hosts: BTreeMap<HostName, Host>,
    /// Groups of snapshots.
    pub(crate) groups: BTreeMap<SnapshotGroupId, SnapshotGroup>,
    /// Addresses to call.
    pub(crate) webhooks: BTreeMap<WebhookName, Webhook>,
    /// Rebuilds that have ended.
    pub(crate) rebuilds: BTreeMap<RebuildId, Rebuild>,
    /// The last scrub of each copy.
    pub(crate) scrubs: BTreeMap<ReplicaId, ScrubRecord>,
    /// Automatic failover and healing are paused.
    pub(crate) maintenance: Option<Maintenance>,
    /// The last comparison of each volume's copies.
    pub(crate) comparisons: BTreeMap<VolumeId, ComparisonRecord>,
    /// How far the store has come.
    pub(crate) sequence: Option<StoreSequence>,
    /// What happened lately, by number.
    pub(crate) events: BTreeMap<u64, Event>,
    /// Which of them are kept.
    pub(crate) retention: EventRetention,
    /// When each record was last written.
    revisions: BTreeMap<String, Revision>,
    members: BTreeMap<VolumeId, VolumeMembers>,
    /// Records that could not be read.
    pub(crate) unreadable: UnreadableRecords,
    places: PlacementIndex,
}

/// What lies where.
#[derive(Debug, Default)]
struct PlacementIndex {
    pools: BTreeMap<NodeName, BTreeSet<PoolName>>,
    replicas: BTreeMap<PoolName, BTreeSet<ReplicaId>>,
    targets: BTreeMap<NodeName, BTreeSet<TargetId>>,
    snapshots: BTreeMap<PoolName, BTreeSet<SnapshotId>>,
}

/// What belongs to a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeMembers {
    pub(crate) replicas: BTreeSet<ReplicaId>,
    pub(crate) targets: BTreeSet<TargetId>,
    pub(crate) snapshots: BTreeSet<SnapshotId>,
}

impl VolumeMembers {
    fn is_empty(&self) -> bool {
        self.replicas.is_empty() && self.targets.is_empty() && self.snapshots.is_empty()
    }
}

/// A kind of resource that is kept in a map of the state.
pub(crate) trait StoredResource: Spec {
    fn map(state: &State) -> &BTreeMap<Self::Id, Resource<Self>>;
    fn map_mut(state: &mut State) -> &mut BTreeMap<Self::Id, Resource<Self>>;
}

macro_rules! kept {
    ($($spec:ty: $($path:ident).+;)+) => {$(
        impl StoredResource for $spec {
            fn map(state: &State) -> &BTreeMap<Self::Id, Resource<Self>> {
                &state.$($path).+
            }
            fn map_mut(state: &mut State) -> &mut BTreeMap<Self::Id, Resource<Self>> {
                &mut state.$($path).+
            }
        }
    )+};
}

kept! {
    model::NodeSpec: facts.nodes;
    model::PoolSpec: facts.pools;
    model::VolumeSpec: facts.volumes;
    model::ReplicaSpec: facts.replicas;
    model::TargetSpec: facts.targets;
    model::SnapshotSpec: facts.snapshots;
    model::HostSpec: hosts;
    model::SnapshotGroupSpec: groups;
    model::WebhookSpec: webhooks;
}

impl State {
    /// The state that these records make. One that cannot be read concerns what it is about;
    /// without the number of the store nothing can be believed.
    pub fn load(records: impl IntoIterator<Item = KeyValue>) -> Result<State, LoadError> {
        let mut state = State::default();
        for record in records {
            let key = String::from_utf8_lossy(&record.key).into_owned();
            match Entry::decode(&key, &record.value) {
                Some(Ok(entry)) => state.apply(entry, record.changed),
                Some(Err(source)) if key == keys::of::<StoreSequence>(StoreSequence::ID) => {
                    return Err(LoadError { key, source });
                }
                Some(Err(source)) => {
                    state.unreadable.note(key, &record.value, source.to_string());
                }
                // Not a record: the leader's key, or somebody else's.
                None => {}
            }
        }
        state.isolate();
        Ok(state)
    }

    /// Where records lie, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.revisions.keys().map(String::as_str)
    }

    /// What lies under a key.
    pub(crate) fn entry(&self, key: &str) -> Option<Entry> {
        type Find = fn(&State, &str, &str) -> Option<Entry>;
        fn find<S: StoredResource>(state: &State, kind: &str, id: &str) -> Option<Entry>
        where
            Entry: From<Resource<S>>,
            S::Id: std::str::FromStr,
        {
            let id = id.parse().ok().filter(|_| kind == S::KIND)?;
            S::map(state).get(&id).cloned().map(Entry::from)
        }
        let (kind, id) = keys::parse(key)?;
        let objects: [Find; 9] = [
            find::<model::NodeSpec>,
            find::<model::HostSpec>,
            find::<model::PoolSpec>,
            find::<model::VolumeSpec>,
            find::<model::ReplicaSpec>,
            find::<model::TargetSpec>,
            find::<model::SnapshotSpec>,
            find::<model::SnapshotGroupSpec>,
            find::<model::WebhookSpec>,
        ];
        let object = objects.iter().find_map(|find| find(self, kind, id));
        object.or_else(|| match kind {
            TargetRecord::KIND => {
                let record = self.facts.records.get(&id.parse().ok()?);
                record.cloned().map(Entry::from)
            }
            Failover::KIND => {
                let failover = self.facts.failovers.get(&id.parse().ok()?);
                failover.cloned().map(Entry::from)
            }
            MoveRecord::KIND => self.moving(id.parse().ok()?).map(Entry::from),
            Rebuild::KIND => self.rebuilds.get(&id.parse().ok()?).cloned().map(Entry::from),
            ScrubRecord::KIND => self.scrubs.get(&id.parse().ok()?).cloned().map(Entry::from),
            ComparisonRecord::KIND => {
                self.comparisons.get(&id.parse().ok()?).cloned().map(Entry::from)
            }
            StoreSequence::KIND => self.sequence.map(Entry::from),
            Maintenance::KIND => self.maintenance.clone().map(Entry::from),
            Quarantine::KIND => {
                let quarantine = self.facts.quarantined.get(&id.parse().ok()?);
                quarantine.cloned().map(Entry::from)
            }
            Event::KIND => self.events.get(&id.parse().ok()?).cloned().map(Entry::from),
            _ => None,
        })
    }

    /// When a record was last written; zero: it does not exist.
    pub(crate) fn revision(&self, key: &str) -> Revision {
        self.revisions.get(key).copied().unwrap_or(Revision::ZERO)
    }

    /// The store has taken a record.
    pub(crate) fn apply(&mut self, entry: Entry, at: Revision) {
        self.revisions.insert(entry.key(), at);
        match entry {
            Entry::Node(node) => self.put(*node),
            Entry::Host(host) => self.put(*host),
            Entry::Pool(pool) => {
                if let Some(had) = self.facts.pools.get(pool.id()) {
                    leave(&mut self.places.pools, &had.spec().node.clone(), pool.id());
                }
                let here = self.places.pools.entry(pool.spec().node.clone()).or_default();
                here.insert(pool.id().clone());
                self.put(*pool);
            }
            Entry::Volume(volume) => self.put(*volume),
            Entry::Replica(replica) => {
                let members = self.members.entry(replica.spec().volume).or_default();
                members.replicas.insert(*replica.id());
                let here = self.places.replicas.entry(replica.spec().pool.clone()).or_default();
                here.insert(*replica.id());
                self.put(*replica);
            }
            Entry::Target(target) => {
                let (volume, node) = (target.spec().volume, target.spec().node.clone());
                self.members.entry(volume).or_default().targets.insert(*target.id());
                self.places.targets.entry(node).or_default().insert(*target.id());
                self.put(*target);
            }
            Entry::Snapshot(snapshot) => {
                let members = self.members.entry(snapshot.spec().volume).or_default();
                members.snapshots.insert(*snapshot.id());
                for pool in snapshot.status.iter().flat_map(|status| status.copies.keys()) {
                    let here = self.places.snapshots.entry(pool.clone()).or_default();
                    here.insert(*snapshot.id());
                }
                self.facts.snapshots.insert(*snapshot.id(), *snapshot);
            }
            Entry::Group(group) => drop(self.groups.insert(*group.id(), *group)),
            Entry::Webhook(webhook) => self.put(*webhook),
            Entry::TargetRecord(record) => {
                self.facts.records.insert(record.volume(), *record);
            }
            Entry::Failover(failover) => {
                self.facts.failovers.insert(failover.id(), *failover);
            }
            Entry::MoveRecord(moving) => {
                let MoveRecord { volume, from, replica, pool } = *moving;
                self.facts.moves.insert(volume, ReplicaMove { from, replica, pool });
            }
            Entry::Rebuild(rebuild) => {
                self.rebuilds.insert(rebuild.id, *rebuild);
            }
            Entry::ScrubRecord(scrubbed) => {
                self.facts.scrubbed.insert(scrubbed.replica, scrubbed.at);
                self.scrubs.insert(scrubbed.replica, *scrubbed);
            }
            Entry::Maintenance(maintenance) => {
                self.facts.paused_until = Some(maintenance.until);
                self.maintenance = Some(*maintenance);
            }
            Entry::ComparisonRecord(compared) => {
                self.facts.compared.extend(compared.at.map(|at| (compared.volume, at)));
                self.comparisons.insert(compared.volume, *compared);
            }
            Entry::Sequence(sequence) => self.sequence = Some(*sequence),
            Entry::Quarantine(quarantine) => {
                self.facts.quarantined.insert(quarantine.replica, *quarantine);
            }
            Entry::Event(event) => self.remember(*event),
        }
    }

    /// The store has dropped a record.
    pub(crate) fn forget(&mut self, entry: &Entry) {
        self.revisions.remove(&entry.key());
        match entry {
            Entry::Node(node) => self.drop_one::<model::NodeSpec>(node.id()),
            Entry::Host(host) => self.drop_one::<model::HostSpec>(host.id()),
            Entry::Webhook(webhook) => self.drop_one::<model::WebhookSpec>(webhook.id()),
            Entry::Pool(pool) => {
                leave(&mut self.places.pools, &pool.spec().node, pool.id());
                self.drop_one::<model::PoolSpec>(pool.id());
            }
            Entry::Volume(volume) => self.drop_one::<model::VolumeSpec>(volume.id()),
            Entry::Replica(replica) => {
                let id = *replica.id();
                self.drop_one::<model::ReplicaSpec>(&id);
                leave(&mut self.places.replicas, &replica.spec().pool, &id);
                self.leave(replica.spec().volume, |members| members.replicas.remove(&id));
                self.facts.missing.remove(&id);
                self.facts.failed_rebuilds.remove(&id);
                self.facts.scrubbed.remove(&id);
                self.facts.scrubbing.remove(&id);
            }
            Entry::Target(target) => {
                let id = *target.id();
                self.drop_one::<model::TargetSpec>(&id);
                leave(&mut self.places.targets, &target.spec().node, &id);
                self.leave(target.spec().volume, |members| members.targets.remove(&id));
            }
            Entry::Snapshot(snapshot) => {
                let id = *snapshot.id();
                self.drop_one::<model::SnapshotSpec>(&id);
                for pool in snapshot.status.iter().flat_map(|status| status.copies.keys()) {
                    leave(&mut self.places.snapshots, pool, &id);
                }
                self.leave(snapshot.spec().volume, |members| members.snapshots.remove(&id));
            }
            Entry::Group(group) => self.drop_one::<model::SnapshotGroupSpec>(group.id()),
            Entry::TargetRecord(record) => {
                self.facts.records.remove(&record.volume());
            }
            Entry::Failover(failover) => {
                self.facts.failovers.remove(&failover.id());
            }
            Entry::MoveRecord(moving) => {
                self.facts.moves.remove(&moving.volume);
            }
            Entry::Rebuild(rebuild) => {
                self.rebuilds.remove(&rebuild.id);
            }
            Entry::ScrubRecord(scrubbed) => {
                self.facts.scrubbed.remove(&scrubbed.replica);
                self.scrubs.remove(&scrubbed.replica);
            }
            Entry::Maintenance(_) => {
                (self.maintenance, self.facts.paused_until) = (None, None);
            }
            Entry::ComparisonRecord(compared) => {
                self.facts.compared.remove(&compared.volume);
                self.comparisons.remove(&compared.volume);
            }
            Entry::Sequence(_) => self.sequence = None,
            Entry::Quarantine(quarantine) => {
                self.facts.quarantined.remove(&quarantine.replica);
            }
            Entry::Event(event) => {
                self.events.remove(&event.number);
            }
        }
    }

    /// Number of the last event that is stored.
    pub(crate) fn last_event(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// How many records there are.
    pub(crate) fn count(&self) -> usize {
        self.revisions.len()
    }

    /// Keeps an event, and no more of them than the store does.
    pub(crate) fn remember(&mut self, event: Event) {
        if let Some(evicted) = self.retention.add(&event) {
            self.events.remove(&evicted);
        }
        self.events.insert(event.number, event);
    }

    /// Where the stored events of an engine end.
    pub(crate) fn last_report(&self, node: &NodeName) -> Option<&str> {
        let mut origins = self.events.values().rev().filter_map(|event| event.origin.as_ref());
        origins.find(|origin| origin.node == *node).map(|origin| origin.place.as_str())
    }

    /// Who owns a volume, as somebody else has written it; whether that was news.
    pub(crate) fn observe_record(
        &mut self,
        volume: VolumeId,
        at: Revision,
        record: Option<TargetRecord>,
    ) -> bool {
        let key = keys::target_record(volume);
        if at <= self.revision(&key) {
            return false;
        }
        if let Some(record) = record {
            self.apply(record.into(), at);
        } else {
            self.revisions.remove(&key);
            self.facts.records.remove(&volume);
        }
        true
    }

    fn put<S: StoredResource>(&mut self, mut object: Resource<S>) {
        let map = S::map_mut(self);
        let seen = map.get(object.id()).and_then(|have| have.status.clone());
        // What is read from the store has what cannot be seen again.
        object.status = seen.or(object.status);
        map.insert(object.id().clone(), object);
    }

    fn drop_one<S: StoredResource>(&mut self, id: &S::Id) {
        S::map_mut(self).remove(id);
    }

    fn leave(&mut self, volume: VolumeId, remove: impl FnOnce(&mut VolumeMembers) -> bool) {
        if let Some(members) = self.members.get_mut(&volume) {
            remove(members);
            if members.is_empty() {
                self.members.remove(&volume);
            }
        }
    }

    /// What belongs to a volume.
    pub(crate) fn members(&self, volume: VolumeId) -> VolumeMembers {
        self.members.get(&volume).cloned().unwrap_or_default()
    }

    /// The pools of a node.
    pub(crate) fn pools_on(&self, node: &NodeName) -> BTreeSet<PoolName> {
        self.places.pools.get(node).cloned().unwrap_or_default()
    }

    /// The copies in these pools.
    pub(crate) fn replicas_in(&self, pools: &BTreeSet<PoolName>) -> Vec<ReplicaId> {
        let here = pools.iter().filter_map(|pool| self.places.replicas.get(pool));
        here.flatten().copied().collect()
    }

    /// The snapshots with copies in these pools.
    pub(crate) fn snapshots_in(&self, pools: &BTreeSet<PoolName>) -> BTreeSet<SnapshotId> {
        let here = pools.iter().filter_map(|pool| self.places.snapshots.get(pool));
        here.flatten().copied().collect()
    }

    /// The targets of a node.
    pub(crate) fn targets_on(&self, node: &NodeName) -> Vec<TargetId> {
        self.places.targets.get(node).into_iter().flatten().copied().collect()
    }

    /// The copies of a volume, in the order of their ids.
    pub(crate) fn replicas_of(&self, volume: VolumeId) -> impl Iterator<Item = &Replica> {
        let members = self.members.get(&volume);
        let ids = members.into_iter().flat_map(|members| &members.replicas);
        ids.filter_map(|id| self.facts.replicas.get(id))
    }

    /// The targets of a volume, also those on their way out.
    pub(crate) fn targets_of(&self, volume: VolumeId) -> impl Iterator<Item = &Target> {
        let members = self.members.get(&volume);
        let ids = members.into_iter().flat_map(|members| &members.targets);
        ids.filter_map(|id| self.facts.targets.get(id))
    }

    /// The snapshots of a volume.
    pub(crate) fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &Snapshot> {
        let members = self.members.get(&volume);
        let ids = members.into_iter().flat_map(|members| &members.snapshots);
        ids.filter_map(|id| self.facts.snapshots.get(id))
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&Node> {
        self.facts.nodes.get(name)
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Option<&Pool> {
        self.facts.pools.get(name)
    }

    pub(crate) fn volume(&self, id: VolumeId) -> Option<&Volume> {
        self.facts.volumes.get(&id)
    }

    /// The node of a pool.
    pub(crate) fn node_of(&self, pool: &PoolName) -> Option<&Node> {
        self.pool(pool).and_then(|pool| self.node(&pool.spec().node))
    }

    /// Whether a node can be asked to do something.
    pub(crate) fn is_online(&self, node: &NodeName) -> bool {
        self.node(node)
            .and_then(|node| node.status.as_ref())
            .is_some_and(|status| status.liveness.is_online())
    }
}

/// Takes one from where it was.
fn leave<K: Ord, V: Ord>(places: &mut BTreeMap<K, BTreeSet<V>>, from: &K, one: &V) {
    if let Some(here) = places.get_mut(from) {
        here.remove(one);
        if here.is_empty() {
            places.remove(from);
        }
    }
}
