//! Words, pairs and members of a statement; and the statement that makes a volume.

use std::collections::BTreeMap;
use std::time::Duration;

use model::*;

use crate::names::good;
use crate::world::World;

/// `head word word key=value: member, member`.
pub(crate) struct Line<'a> {
    pub(crate) head: &'a str,
    pub(crate) words: Vec<&'a str>,
    pub(crate) members: Vec<Line<'a>>,
}

impl<'a> Line<'a> {
    pub(crate) fn new(text: &'a str) -> Line<'a> {
        let (text, members) = text.split_once(':').unwrap_or((text, ""));
        let mut words = text.split_whitespace();
        let head = words.next().unwrap_or("");
        let members = members.split(',').filter(|member| !member.trim().is_empty());
        let members = members.map(Line::new).collect();
        Line { head, words: words.collect(), members }
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    pub(crate) fn pairs(&self) -> Vec<(&'a str, &'a str)> {
        self.words.iter().filter_map(|word| word.split_once('=')).collect()
    }

    pub(crate) fn value(&self, key: &str) -> Option<&'a str> {
        self.pairs().into_iter().find(|(have, _)| *have == key).map(|(_, value)| value)
    }

    /// The first word that is a size.
    pub(crate) fn size(&self) -> Option<Size> {
        let is_size = |word: &&&str| word.ends_with('G') && word.as_bytes()[0].is_ascii_digit();
        self.words.iter().find(is_size).map(|word| size(word))
    }
}

pub(crate) fn size(text: &str) -> Size {
    good(&text.replace('G', "GiB").replace('M', "MiB"))
}

pub(crate) fn duration(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => panic!("{text} is no time"),
    };
    Duration::from_secs(number.parse::<u64>().unwrap() * seconds)
}

fn volume_spec(world: &mut World, line: &Line<'_>) -> VolumeSpec {
    let count = line.words.iter().find_map(|word| word.strip_prefix('x')?.parse().ok());
    let mut spec = VolumeSpec::new(line.size().unwrap_or(Size::gib(10)), count.unwrap_or(1));
    spec.thin = !line.has("thick");
    spec.shared = line.has("shared");
    spec.policy.self_heal = !line.has("noheal");
    for (key, value) in line.pairs() {
        let rules = |rules: &mut LabelRules, what: &str, key: &str| {
            let values = if value == "*" { [].into() } else { [good(value)].into() };
            match what {
                "in" => drop(rules.include.insert(good(key), values)),
                "not" => drop(rules.exclude.insert(good(key), values)),
                _ => panic!("no rule {what}"),
            }
        };
        let nodes = || value.split('+').map(good).collect();
        let keys = || value.split('+').map(labels_key).collect();
        match key.split('.').collect::<Vec<_>>()[..] {
            ["group"] => spec.affinity_group = Some(good(value)),
            ["wait"] => spec.policy.replace_after_seconds = Some(value.parse().unwrap()),
            ["max"] => spec.max_snapshots = Some(value.parse().unwrap()),
            ["allow"] => spec.topology.allowed_nodes = nodes(),
            ["prefer"] => spec.topology.preferred_nodes = nodes(),
            ["spread"] => spec.topology.nodes.spread = keys(),
            ["same"] => spec.topology.nodes.same_as = keys(),
            ["poolspread"] => spec.topology.pools.spread = keys(),
            ["poolsame"] => spec.topology.pools.same_as = keys(),
            ["node", what, key] => rules(&mut spec.topology.nodes, what, key),
            ["pool", what, key] => rules(&mut spec.topology.pools, what, key),
            ["zones"] if value == "require" => spec.topology.zones = Zones::Require,
            ["zones"] => spec.topology.zones = Zones::Ignore,
            ["from"] if value.starts_with('s') => {
                spec.source = Some(Source::Snapshot { snapshot: world.names.id(value) });
            }
            ["from"] => spec.source = Some(Source::Volume { volume: world.names.id(value) }),
            _ => {}
        }
    }
    spec
}

fn labels_key(key: &str) -> LabelKey {
    good(if key == "zone" { LabelKey::ZONE } else { key })
}

/// What a request for a volume says.
pub(crate) fn request(world: &mut World, text: &str) -> (VolumeId, VolumeSpec) {
    let line = Line::new(text);
    (world.names.id(line.head), volume_spec(world, &line))
}

impl World {
    pub(crate) fn volume(&mut self, line: &Line<'_>) {
        let id: VolumeId = self.names.id(line.head);
        let spec = volume_spec(self, line);
        let born = line.value("making").map_or(World::birth(), |age| self.ago(duration(age)));
        let mut volume = Volume::new(id, spec, born).unwrap();
        if line.value("making").is_none() {
            volume.made().unwrap();
        }
        let replicas: Vec<(ReplicaId, &Line<'_>)> = line
            .members
            .iter()
            .map(|member| (self.member(line, &volume, member), member))
            .collect();
        self.operation(line, &mut volume);
        if line.has("going") {
            volume.delete().unwrap();
        }
        if !line.has("virgin") && line.value("making").is_none() {
            self.record(line, id, &replicas);
        }
        if let Some(node) = line.value("at") {
            self.target(line, (&volume, node), &replicas);
        }
        if let Some(node) = line.value("old") {
            self.old_target(line, &volume, node);
        }
        if !line.has("gone") {
            self.facts.volumes.insert(id, volume);
        }
    }

    fn operation(&mut self, line: &Line<'_>, volume: &mut Volume) {
        let mut begin = |change| volume.begin(change, World::birth()).unwrap();
        if let Some(count) = line.value("scaling") {
            begin(VolumeChange::SetReplicas { replicas: count.parse().unwrap() });
        }
        if let Some(new) = line.value("growing") {
            begin(VolumeChange::Resize { size: size(new) });
        }
        if let Some((from, to)) = line.value("moving").and_then(|moving| moving.split_once('>')) {
            let from = self.names.id(&format!("{}@{from}", line.head));
            let replica = self.names.id(&format!("{}@{to}", line.head));
            let asked = planner::ReplicaMove { from, replica, pool: good(to) };
            self.facts.moves.insert(*volume.id(), asked);
        }
    }

    fn member(&mut self, line: &Line<'_>, volume: &Volume, member: &Line<'_>) -> ReplicaId {
        let (node, pool) = member.head.split_once('/').expect("NODE/POOL");
        self.make_pool(node, pool, Size::gib(100));
        let id: ReplicaId = self.names.id(&format!("{}@{pool}", line.head));
        let source = match volume.spec().source {
            Some(Source::Snapshot { snapshot }) if !member.has("fresh") => Some(snapshot),
            _ => None,
        };
        let spec = ReplicaSpec {
            volume: *volume.id(),
            pool: good(pool),
            size: member.value("size").map_or(volume.spec().size, size),
            thin: volume.spec().thin,
            source,
            encryption: None,
            hosts: [].into(),
        };
        let mut replica = Replica::new(id, spec, World::birth()).unwrap();
        if let Some((_, age)) = member.pairs().into_iter().find(|(key, _)| *key == "making") {
            let born = self.ago(duration(age));
            replica = Replica::new(id, replica.spec().clone(), born).unwrap();
        } else {
            replica.made().unwrap();
            replica.status = Some(self.replica_status(line, id, member));
        }
        if member.has("going") {
            replica.delete().unwrap();
        }
        if let Some(away) = member.value("away") {
            let since = self.ago(duration(away));
            self.facts.missing.insert(id, since);
        }
        self.facts.replicas.insert(id, replica);
        id
    }

    fn replica_status(
        &mut self,
        line: &Line<'_>,
        id: ReplicaId,
        member: &Line<'_>,
    ) -> ReplicaStatus {
        let state = if member.has("bad") {
            ReplicaState::Faulted { detail: "it is broken".into() }
        } else if member.value("away").is_some() {
            ReplicaState::Unknown
        } else {
            ReplicaState::Online
        };
        let default = if member.has("fresh") { Size::ZERO } else { Size::gib(4) };
        let allocated = member.value("alloc").or(line.value("alloc")).map_or(default, size);
        let allocated = if line.has("virgin") { Size::ZERO } else { allocated };
        let set = ReplicaSet::new([id].into()).unwrap();
        let volume = self.names.id(line.head);
        let label =
            ReplicaLabel { volume, replica: id, size: Size::gib(10), epoch: Epoch::FIRST, set };
        let label = (!member.has("fresh")).then_some(label);
        let usage = Usage { allocated, ..Usage::default() };
        ReplicaStatus { state, usage, label, fence: None, spec_backup: None, addresses: vec![] }
    }

    fn record(&mut self, line: &Line<'_>, id: VolumeId, replicas: &[(ReplicaId, &Line<'_>)]) {
        let ids = replicas.iter().map(|(id, _)| *id).collect();
        let Ok(mut set) = ReplicaSet::new(ids) else { return };
        // Others were copies before, and their labels are older than the record.
        let former = self.names.id("former copy");
        set = set.on(SetChange::Added(former)).unwrap().on(SetChange::Removed(former)).unwrap();
        let in_sync = |member: &Line<'_>| {
            member.has("ok")
                || member.has("believed")
                || (line.value("at").is_none() && member.value("away").is_some())
        };
        for (id, member) in replicas.iter().filter(|(_, member)| !in_sync(member)) {
            // The last one stays believed, whatever the text says.
            let _ = member;
            if let Ok(next) = set.on(SetChange::Stale(*id)) {
                set = next;
            }
        }
        let node = line.value("at").unwrap_or("nowhere");
        let target = self.names.id(&format!("{}!{node}", line.head));
        let first = self.names.id("first target");
        let record = TargetRecord::new(id, first, good(node), set);
        self.facts.records.insert(id, record.take(target, good(node)));
    }

    fn target(
        &mut self,
        line: &Line<'_>,
        (volume, node): (&Volume, &str),
        replicas: &[(ReplicaId, &Line<'_>)],
    ) {
        self.make_node(node, Labels::new());
        let attached: Vec<_> = replicas
            .iter()
            .filter(|(_, member)| !member.has("loose") && member.value("making").is_none())
            .collect();
        let child = |(id, member): &&(ReplicaId, &Line<'_>)| Child {
            replica: *id,
            path: ChildPath::Local {},
            offline: member.has("resting"),
        };
        let hosts: BTreeMap<HostName, Nqn> = if line.has("heal") {
            BTreeMap::new()
        } else {
            let names = line.value("for").unwrap_or("h1").split('+');
            names.map(|name| (good(name), Nqn::node(&good(name)).unwrap())).collect()
        };
        let spec = TargetSpec {
            volume: *volume.id(),
            node: good(node),
            epoch: Epoch::FIRST.next(),
            size: line.value("tsize").map_or(volume.spec().size, size),
            children: attached.iter().map(child).collect(),
            hosts,
            limits: QosLimits::default(),
            ana: Ana::Optimized,
            shutdown: false,
        };
        let id: TargetId = self.names.id(&format!("{}!{node}", line.head));
        let mut target = Target::new(id, spec, World::birth()).unwrap();
        target.made().unwrap();
        let children = attached.iter().map(|(id, member)| ChildStatus {
            replica: *id,
            state: child_state(member),
            progress: None,
        });
        let state = if line.has("down") {
            TargetState::Shutdown { cause: StopCause::Fenced }
        } else if line.has("held") {
            TargetState::Suspended { cause: SuspendReason::NoChild, io: SuspendedIo::Failing }
        } else {
            TargetState::Degraded
        };
        let addresses = self.facts.nodes[&good::<NodeName>(node)].spec().address.data.clone();
        let connected = [].into();
        if !line.has("unseen") {
            let children = children.collect();
            target.status =
                Some(TargetStatus { state, children, addresses, connected, conflicts: vec![] });
        }
        self.facts.targets.insert(id, target);
    }

    /// A target that was replaced and is still there.
    fn old_target(&mut self, line: &Line<'_>, volume: &Volume, node: &str) {
        self.make_node(node, Labels::new());
        let id: TargetId = self.names.id(&format!("{}!{node}", line.head));
        let children = vec![Child {
            replica: self.names.id("gone"),
            path: ChildPath::Local {},
            offline: false,
        }];
        let spec = TargetSpec {
            volume: *volume.id(),
            node: good(node),
            epoch: Epoch::FIRST,
            size: volume.spec().size,
            children,
            hosts: [].into(),
            limits: QosLimits::default(),
            ana: Ana::Optimized,
            shutdown: true,
        };
        let mut target = Target::new(id, spec, World::birth()).unwrap();
        target.made().unwrap();
        let connected = if line.has("connected") {
            [Nqn::node(&good("h1")).unwrap()].into()
        } else {
            [].into()
        };
        let state = TargetState::Shutdown { cause: StopCause::Ordered };
        let (children, addresses) = (vec![], vec![]);
        target.status =
            Some(TargetStatus { state, children, addresses, connected, conflicts: vec![] });
        self.facts.targets.insert(id, target);
    }
}

fn child_state(member: &Line<'_>) -> ChildState {
    let faulted = |reason| ChildState::Faulted { reason };
    if member.has("ok") {
        ChildState::InSync
    } else if member.has("rebuilding") {
        ChildState::Rebuilding
    } else if member.has("full") {
        faulted(FaultReason::NoSpace)
    } else if member.has("mismatch") {
        faulted(FaultReason::Mismatch)
    } else if member.has("bad") {
        faulted(FaultReason::IoError)
    } else if member.value("away").is_some() {
        faulted(FaultReason::ConnectionLost)
    } else {
        ChildState::Stale
    }
}
