//! A situation made from text.
//!
//! Statements end with `;`. Nodes and pools that are only mentioned are online and have 100 GiB.
//!
//! ```text
//! node n1 offline zone=a disk=ssd       offline left unknown cordoned draining, labels
//! pool n1/p1 50G used=10G suspect       faulted offline cordoned exported unseen going, labels
//! v1 x3 10G at=n1 for=h1: n1/p1 ok, n2/p2 away=5m, n3/p3 stale
//! snap s1 of=v1: p1, p2 off
//! failover v1 republish from=n1 to=n2   init republish replace delete
//! stray v1@p9 newer · aside v1@p9 8d    a copy that nobody knows, one that is set aside
//! reserve p1 10G · busy v1 · set rebuilds=1 · suspect v1@p1 10m
//! ```
//!
//! A volume has a record of what is in sync unless it is `virgin`, and a target if it says `at=`.
//! Copies are `ok`, `stale`, `fresh` (never in sync), `loose` (stale, not a child), `rebuilding`,
//! `away=TIME`, `bad`, `full`, `mismatch`, `making=TIME`, `going`, `resting`.

use std::collections::BTreeMap;
use std::time::Duration;

use model::*;
use planner::{Facts, Orphan, OrphanTarget, Reservation, Settings};

use crate::names::{Names, good};
use crate::parse::{Line, duration, size};

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) facts: Facts,
    pub(crate) settings: Settings,
    pub(crate) now: Timestamp,
    pub(crate) names: Names,
}

/// When everything was made.
pub(crate) const BIRTH: Duration = Duration::from_hours(1);

pub(crate) fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
    let key = |key: &str| good(if key == "zone" { LabelKey::ZONE } else { key });
    pairs.into_iter().map(|(k, value)| (key(k), good(value))).collect()
}

impl World {
    pub(crate) fn new(text: &str) -> World {
        let settings = Settings { scrub_every: None, compare_every: None, ..Settings::default() };
        let now = Timestamp::EPOCH.after(BIRTH).after(Duration::from_hours(2400));
        let (facts, names) = (Facts::default(), Names::default());
        let mut world = World { facts, settings, now, names };
        for statement in text.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let line = Line::new(statement);
            match line.head {
                "node" => world.node(&line),
                "pool" => world.pool(&line),
                "snap" => world.snapshot(&line),
                "failover" => world.failover(&line),
                "reserve" => world.reserve(&line),
                "set" => world.set(&line),
                "busy" => world.busy(&line),
                "suspect" => world.suspect(&line),
                "failed" => world.failed(&line),
                "lost" => world.lost_path(&line),
                "stray" => world.orphan(&line),
                "aside" => world.set_aside(&line),
                "braked" => {
                    world.facts.braked_at = Some(world.ago(duration(line.words[0])));
                }
                "scrubbed" => world.scrubbed(&line),
                "compared" => world.compared(&line),
                "attended" => world.attended(&line),
                _ => world.volume(&line),
            }
        }
        world
    }

    pub(crate) fn birth() -> Timestamp {
        Timestamp::EPOCH.after(BIRTH)
    }

    pub(crate) fn ago(&self, wait: Duration) -> Timestamp {
        let millis = self.now.millis() - u64::try_from(wait.as_millis()).unwrap();
        Timestamp::from_millis(millis)
    }

    /// The volume with this name.
    pub(crate) fn get(&self, name: &str) -> &Volume {
        &self.facts.volumes[&self.names.known::<VolumeId>(name)]
    }

    fn node(&mut self, line: &Line<'_>) {
        let name = line.words[0];
        let liveness = if line.has("offline") {
            Liveness::Offline { reason: OfflineReason::Lapsed }
        } else if line.has("left") {
            Liveness::Offline { reason: OfflineReason::Left }
        } else if line.has("unknown") {
            Liveness::Unknown { reason: UnknownReason::Late }
        } else {
            Liveness::Online
        };
        let node = self.make_node(name, labels(line.pairs()));
        for (word, change) in [
            ("cordoned", NodeChange::Cordon { cordon: good("test") }),
            ("draining", NodeChange::Drain { cordon: good("test") }),
        ] {
            if line.has(word) {
                node.change(change, World::birth()).unwrap();
            }
        }
        node.status.as_mut().unwrap().liveness = liveness;
    }

    pub(crate) fn make_node(&mut self, name: &str, labels: Labels) -> &mut Node {
        let name: NodeName = good(name);
        let count = self.facts.nodes.len();
        self.facts.nodes.entry(name.clone()).or_insert_with(|| {
            let data = good(&format!("10.0.{}.{}:4420", count / 250, count % 250 + 1));
            let address = NodeAddress {
                api: good("10.0.0.1:8421"),
                data: vec![data],
                nqn: Nqn::node(&name).unwrap(),
            };
            let spec = NodeSpec { address, labels, cordons: [].into(), drains: [].into() };
            let mut node = Node::new(name, spec, World::birth()).unwrap();
            node.made().unwrap();
            node.status = Some(NodeStatus {
                liveness: Liveness::Online,
                instance: None,
                version: None,
                seen_at: None,
                drain: None,
            });
            node
        })
    }

    fn pool(&mut self, line: &Line<'_>) {
        let (node, name) = line.words[0].split_once('/').expect("pool NODE/POOL");
        self.make_node(node, Labels::new());
        let numbers = ["used", "committed"];
        let pairs = line.pairs().into_iter().filter(|(key, _)| !numbers.contains(key));
        let number = |key| line.value(key).map_or(Size::ZERO, size);
        let capacity = line.size().unwrap_or(Size::gib(100));
        let symptoms = vec![];
        let state = if line.has("suspect") {
            PoolState::Suspect { symptoms }
        } else if line.has("faulted") {
            PoolState::Faulted { symptoms }
        } else if line.has("offline") {
            PoolState::Offline
        } else {
            PoolState::Online
        };
        let seen = !line.has("unseen");
        let labels = labels(pairs);
        let (used, committed) = (number("used"), number("committed"));
        let cordoned = line.has("cordoned");
        let (exported, going) = (line.has("exported"), line.has("going"));
        let pool = self.make_pool(node, name, capacity);
        let status = pool.status.as_mut().unwrap();
        (status.state, status.used, status.committed) = (state, used, committed);
        pool.change(PoolChange::Label { labels }, World::birth()).unwrap();
        if cordoned {
            pool.change(PoolChange::Cordon { cordon: good("test") }, World::birth()).unwrap();
        }
        if exported {
            pool.change(PoolChange::Export {}, World::birth()).unwrap();
        }
        if going {
            pool.delete().unwrap();
        }
        if !seen {
            pool.status = None;
        }
    }

    pub(crate) fn make_pool(&mut self, node: &str, name: &str, capacity: Size) -> &mut Pool {
        self.make_node(node, Labels::new());
        let uuid: PoolUuid = self.names.id(&format!("pool {name}"));
        let name: PoolName = good(name);
        self.facts.pools.entry(name.clone()).or_insert_with(|| {
            let spec = PoolSpec {
                node: good(node),
                disks: vec![good("/dev/sda")],
                uuid: Some(uuid),
                import: false,
                exported: false,
                cluster_size: None,
                labels: Labels::new(),
                cordons: [].into(),
            };
            let mut pool = Pool::new(name, spec, World::birth()).unwrap();
            pool.made().unwrap();
            pool.status = Some(PoolStatus {
                state: PoolState::Online,
                uuid,
                capacity,
                used: Size::ZERO,
                committed: Size::ZERO,
                cluster_size: Size::mib(1),
                disks: vec![],
            });
            pool
        })
    }

    fn snapshot(&mut self, line: &Line<'_>) {
        let id: SnapshotId = self.names.id(line.words[0]);
        let volume = self.names.id(line.value("of").expect("of=VOLUME"));
        let spec = SnapshotSpec::new(volume);
        let born = line.value("making").map_or(World::birth(), |age| self.ago(duration(age)));
        let mut snapshot = Snapshot::new(id, spec, born).unwrap();
        let allocated = line.value("alloc").map_or(Size::gib(4), size);
        let copies: BTreeMap<_, _> = line
            .members
            .iter()
            .map(|member| {
                let usage = Usage { allocated, ..Usage::default() };
                let (pool, replica) = (good(member.head), self.names.id("gone"));
                (pool, SnapshotCopy { replica, online: !member.has("off"), usage })
            })
            .collect();
        if line.value("making").is_none() {
            snapshot.made().unwrap();
            snapshot.status = Some(SnapshotStatus {
                state: SnapshotState::Ready,
                taken_at: World::birth(),
                size: line.size().unwrap_or(Size::gib(10)),
                consistency: Consistency::Crash,
                copies,
            });
        }
        if line.has("going") {
            snapshot.delete().unwrap();
        }
        self.facts.snapshots.insert(id, snapshot);
    }

    fn failover(&mut self, line: &Line<'_>) {
        let (volume, stage) = (line.words[0], line.words[1]);
        let target = |names: &mut Names, node: &str| names.id(&format!("{volume}!{node}"));
        let from = target(&mut self.names, line.value("from").expect("from=NODE"));
        let to = target(&mut self.names, line.value("to").unwrap_or("nowhere"));
        let plan = FailoverPlan {
            volume: self.names.id(volume),
            cause: FailoverReason::Asked {},
            from,
            hosts: [(good("h1"), good("nqn.2014-08.org.nvmexpress:uuid:h1"))].into(),
        };
        let id: FailoverId = self.names.id(&format!("failover {volume}"));
        let mut failover = Failover::new(id, plan, World::birth());
        let events = [
            FailoverEvent::Begin,
            FailoverEvent::Republished { to },
            FailoverEvent::PathsReplaced,
            FailoverEvent::TargetDeleted,
        ];
        let stages = ["init", "republish", "replace", "delete", "done"];
        let count = stages.iter().position(|name| *name == stage).expect("a stage");
        for event in events.into_iter().take(count) {
            failover.on(event, World::birth()).unwrap();
        }
        self.facts.failovers.insert(id, failover);
    }

    fn reserve(&mut self, line: &Line<'_>) {
        let bytes = line.size().unwrap();
        let pool = good(line.words[0]);
        self.facts.reservations.push(Reservation { pool, bytes, committed: bytes });
    }

    fn set(&mut self, line: &Line<'_>) {
        let settings = &mut self.settings;
        for (key, value) in line.pairs() {
            let number = || value.parse::<u32>().unwrap();
            match key {
                "rebuilds" => settings.rebuilds = number(),
                "pernode" => settings.rebuilds_per_node = number(),
                "commitment" => settings.pool_commitment = number(),
                "rebalance" => settings.rebalance_above = Some(number()),
                "share" => settings.heal_share = number(),
                "fill" => settings.heal_fill = number(),
                "wait" => settings.replace_after = duration(value),
                "compare" => settings.compare_every = Some(duration(value)),
                "scrub" => settings.scrub_every = Some(duration(value)),
                _ => panic!("no setting {key}"),
            }
        }
    }

    /// `v1`, `v1@p1`, `v1!n1` or `s1`.
    pub(crate) fn subject(&mut self, name: &str) -> Subject {
        if name.contains('@') {
            Subject::Replica(self.names.id(name))
        } else if name.contains('!') {
            Subject::Target(self.names.id(name))
        } else if name.starts_with('s') {
            Subject::Snapshot(self.names.id(name))
        } else if name.starts_with('p') {
            Subject::Pool(good(name))
        } else {
            Subject::Volume(self.names.id(name))
        }
    }

    fn busy(&mut self, line: &Line<'_>) {
        let subject = self.subject(line.words[0]);
        self.facts.busy.insert(subject);
    }

    fn suspect(&mut self, line: &Line<'_>) {
        let subject = self.subject(line.words[0]);
        let since = self.ago(duration(line.words[1]));
        self.facts.suspects.insert(subject, since);
    }

    fn failed(&mut self, line: &Line<'_>) {
        let replica = self.names.id(line.words[0]);
        self.facts.failed_rebuilds.insert(replica, line.words[1].parse().unwrap());
    }

    fn lost_path(&mut self, line: &Line<'_>) {
        let volume = self.names.id(line.words[0]);
        let (host, node) = (good(line.words[1]), good::<NodeName>(line.words[2]));
        let address = self.facts.nodes[&node].spec().address.data[0];
        self.facts.lost_paths.entry(volume).or_default().insert(host, address);
    }

    fn scrubbed(&mut self, line: &Line<'_>) {
        let replica = self.names.id(line.words[0]);
        if line.has("running") {
            self.facts.scrubbing.insert(replica);
        } else {
            let at = self.ago(duration(line.words[1]));
            self.facts.scrubbed.insert(replica, at);
        }
    }

    fn compared(&mut self, line: &Line<'_>) {
        let volume = self.names.id(line.words[0]);
        if line.has("running") {
            self.facts.comparing.insert(volume);
        } else {
            let at = self.ago(duration(line.words[1]));
            self.facts.compared.insert(volume, at);
        }
    }

    /// `attended v1` for one that wants a target for a minute; `over`: it wanted one.
    fn attended(&mut self, line: &Line<'_>) {
        let volume = self.names.id(line.words[0]);
        let now = self.now;
        let until = if line.has("over") { now } else { now.after(Duration::from_mins(1)) };
        self.facts.attended.insert(volume, until);
    }

    /// `aside v1@p9 8d` for one that was set aside so long ago; `newer`, `discard`, `rescue`.
    fn set_aside(&mut self, line: &Line<'_>) {
        let replica: ReplicaId = self.names.id(line.words[0]);
        let orphan = &self.facts.orphan_replicas[&replica];
        let cause =
            if line.has("newer") { QuarantineCause::Newer } else { QuarantineCause::Degraded };
        let since = self.ago(duration(line.words[1]));
        let label = orphan.label.as_ref().unwrap();
        let mut quarantine = Quarantine::new(label, orphan.pool.clone(), cause, since);
        quarantine.discard = line.has("discard");
        quarantine.rescue = line.has("rescue").then(|| self.names.id("rescued"));
        self.facts.quarantined.insert(replica, quarantine);
    }

    /// `stray v1@p9 newer`, `stray v1!n9 epoch=1`, `stray s1 p9`; `earlier` is of another volume
    /// that had the same id, `abandoned` older than a recovery without some copies.
    fn orphan(&mut self, line: &Line<'_>) {
        let name = line.words[0];
        if let Some((volume, pool)) = name.split_once('@') {
            let replica: ReplicaId = self.names.id(name);
            let volume: VolumeId = self.names.id(volume);
            let record = self.facts.records.get(&volume);
            let origin = record.and_then(|record| record.set().origin());
            let origin = origin.filter(|_| !line.has("earlier"));
            let mut set = ReplicaSet::new([replica].into_iter().chain(origin).collect()).unwrap();
            assert!(origin.is_none_or(|origin| set.origin() == Some(origin)), "ids grow");
            let mut epoch = Epoch::FIRST;
            if line.has("newer") {
                epoch = record.map_or(Epoch::FIRST, TargetRecord::epoch).next();
            }
            if line.has("member") {
                set = record.unwrap().set().clone();
            }
            if line.has("abandoned") {
                let record = self.facts.records.get_mut(&volume).unwrap();
                let set = record.set().abandon(&[replica].into(), record.epoch()).unwrap();
                *record = record.record(record.epoch(), set).unwrap();
            }
            let label = ReplicaLabel { volume, replica, size: Size::gib(10), epoch, set };
            let label = (!line.has("foreign")).then_some(label);
            self.facts.orphan_replicas.insert(replica, Orphan { pool: good(pool), label });
        } else if let Some((node, pool)) = name.split_once('/') {
            self.facts.stray_pools.insert((good(node), good(pool)));
        } else if let Some((volume, node)) = name.split_once('!') {
            let target: TargetId = self.names.id(name);
            let volume = self.names.id(volume);
            let epoch = Epoch::new(line.value("epoch").unwrap().parse().unwrap()).unwrap();
            let orphan = OrphanTarget { node: good(node), volume, epoch };
            self.facts.orphan_targets.insert(target, orphan);
        } else {
            let snapshot = self.names.id(name);
            let pool: PoolName = good(line.words[1]);
            let orphan = Orphan { pool: pool.clone(), label: None };
            self.facts.orphan_snapshots.insert((pool, snapshot), orphan);
        }
    }
}
