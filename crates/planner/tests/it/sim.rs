//! A world in which every step succeeds at once.

use std::time::Duration;

use model::*;
use planner::Step;

use crate::names::good;
use crate::planned;
use crate::world::World;

impl World {
    /// Observes, plans, acts, until nothing is left to do; the number of rounds.
    pub(crate) fn settle(&mut self, most: usize) -> usize {
        for round in 0..most {
            let plan = planned(self);
            let since = self.now;
            self.facts.suspects.retain(|subject, _| plan.suspects.contains(subject));
            for subject in plan.suspects {
                self.facts.suspects.entry(subject).or_insert(since);
            }
            // What waits for its time comes due, too.
            self.now = self.now.after(Duration::from_mins(11));
            let waits = !self.facts.suspects.is_empty() || round == 0;
            if plan.steps.is_empty() && !waits {
                return round;
            }
            for step in &plan.steps {
                self.act(step);
            }
        }
        panic!("not settled after {most} rounds: {:?}", planned(self));
    }

    fn answers(&self, replica: ReplicaId) -> bool {
        let replica = &self.facts.replicas[&replica];
        let pool = &self.facts.pools[&replica.spec().pool];
        let node = &self.facts.nodes[&pool.spec().node];
        let works = matches!(
            pool.status.as_ref().unwrap().state,
            PoolState::Online | PoolState::Suspect { .. }
        );
        let online = replica.status.as_ref().is_some_and(|s| s.state == ReplicaState::Online);
        works && online && node.status.as_ref().unwrap().liveness.is_online()
    }

    fn in_sync(&self, volume: VolumeId, replica: ReplicaId) -> bool {
        let record = self.facts.records.get(&volume);
        record.is_none_or(|record| record.set().in_sync().contains(&replica))
    }

    fn mark(&mut self, volume: VolumeId, change: SetChange) {
        let Some(record) = self.facts.records.get_mut(&volume) else { return };
        let set = record.set().on(change).expect("the planner never asks for this");
        *record = record.record(record.epoch(), set).unwrap();
    }

    fn open(&mut self, volume: VolumeId, node: &NodeName, hosts: &[HostName]) {
        let members: Vec<ReplicaId> = self
            .facts
            .replicas
            .values()
            .filter(|replica| replica.spec().volume == volume)
            .map(|replica| *replica.id())
            .collect();
        let name = self.names.name(volume);
        let id: TargetId = self.names.id(&format!("{name}!{node}!{}", self.now.millis()));
        let epoch = if let Some(record) = self.facts.records.get(&volume) {
            record.take(id, node.clone())
        } else {
            let set = ReplicaSet::new(members.iter().copied().collect()).unwrap();
            TargetRecord::new(volume, id, node.clone(), set)
        };
        self.facts.records.insert(volume, epoch.clone());
        let mut children = vec![];
        for replica in &members {
            let state = match (self.answers(*replica), self.in_sync(volume, *replica)) {
                (true, true) => ChildState::InSync,
                (true, false) => ChildState::Stale,
                (false, _) => ChildState::Faulted { reason: FaultReason::ConnectionLost },
            };
            children.push(ChildStatus { replica: *replica, state, progress: None });
        }
        assert!(children.iter().any(|child| child.state == ChildState::InSync), "{name}");
        for child in &children {
            if child.state != ChildState::InSync && self.in_sync(volume, child.replica) {
                self.mark(volume, SetChange::Stale(child.replica));
            }
        }
        let child = |replica| Child { replica, path: ChildPath::Local {}, offline: false };
        let spec = TargetSpec {
            volume,
            node: node.clone(),
            epoch: epoch.epoch(),
            size: self.facts.volumes[&volume].spec().size,
            children: members.into_iter().map(child).collect(),
            hosts: hosts.iter().map(|h| (h.clone(), Nqn::node(&good("h1")).unwrap())).collect(),
            limits: QosLimits::default(),
            ana: Ana::Optimized,
            shutdown: false,
        };
        let mut target = Target::new(id, spec, self.now).unwrap();
        target.made().unwrap();
        let state = TargetState::Degraded;
        let (addresses, connected) = (vec![], [].into());
        target.status =
            Some(TargetStatus { state, children, addresses, connected, conflicts: vec![] });
        self.facts.targets.insert(id, target);
    }

    fn add(&mut self, volume: VolumeId, pool: &PoolName) {
        let asked = self.facts.moves.get(&volume).cloned();
        let name = format!("{}@{pool}!{}", self.names.name(volume), self.now.millis());
        let id = match &asked {
            Some(asked) if !self.facts.replicas.contains_key(&asked.replica) => asked.replica,
            _ => self.names.id(&name),
        };
        let object = &self.facts.volumes[&volume];
        let spec = ReplicaSpec {
            volume,
            pool: pool.clone(),
            size: object.spec().size,
            thin: object.spec().thin,
            source: None,
            encryption: None,
            hosts: [].into(),
        };
        let on = |pool: &PoolName| self.facts.pools[pool].spec().node.clone();
        let leaving = asked.map(|asked| asked.from);
        // One that is lost or about to leave does not count.
        let stays = |have: &&Replica| {
            let state = &self.facts.pools[&have.spec().pool].status.as_ref().unwrap().state;
            let moves = leaving == Some(*have.id());
            self.answers(*have.id()) && *state == PoolState::Online && !moves
        };
        let here = self.facts.replicas.values().filter(|have| have.spec().volume == volume);
        for have in here.filter(stays) {
            assert_ne!(on(&have.spec().pool), on(pool), "two copies on one node");
        }
        let status = self.facts.pools.get_mut(pool).unwrap().status.as_mut().unwrap();
        status.committed = status.committed.plus(spec.size);
        let most = status.capacity.percent(self.settings.pool_commitment);
        assert!(status.committed <= most, "{pool} is promised {} of {most}", status.committed);
        let mut replica = Replica::new(id, spec, self.now).unwrap();
        replica.made().unwrap();
        let (usage, label, addresses) = (Usage::default(), None, vec![]);
        let state = ReplicaState::Online;
        let (fence, spec_backup) = (None, None);
        replica.status = Some(ReplicaStatus { state, usage, label, fence, spec_backup, addresses });
        self.facts.replicas.insert(id, replica);
        self.mark(volume, SetChange::Added(id));
    }

    fn rebuild(&mut self, plan: &RebuildPlan) {
        assert!(!plan.sources.is_empty(), "copied from nowhere");
        for source in &plan.sources {
            assert!(self.in_sync(plan.volume, *source) && self.answers(*source), "{plan:?}");
        }
        assert!(self.answers(plan.replica), "{plan:?}");
        let written = self.facts.replicas[plan.sources.first().unwrap()].status.clone();
        let written = written.unwrap().usage.allocated;
        let replica = self.facts.replicas.get_mut(&plan.replica).unwrap();
        let usage = &mut replica.status.as_mut().unwrap().usage;
        let more = written.minus(usage.allocated);
        usage.allocated = written;
        let pool = self.facts.pools.get_mut(&replica.spec().pool).unwrap();
        let status = pool.status.as_mut().unwrap();
        status.used = status.used.plus(more);
        assert!(status.used <= status.capacity, "{} is written over", pool.id());
        self.mark(plan.volume, SetChange::Synced(plan.replica));
        let target = self.facts.targets.get_mut(&plan.target).unwrap();
        let children = &mut target.status.as_mut().unwrap().children;
        let child = children.iter_mut().find(|child| child.replica == plan.replica).unwrap();
        child.state = ChildState::InSync;
    }

    fn remove(&mut self, volume: VolumeId, id: ReplicaId) {
        if self.facts.records.contains_key(&volume) {
            self.mark(volume, SetChange::Removed(id));
        }
        let targets = self.facts.targets.values_mut();
        for target in targets.filter(|target| target.spec().child(id).is_some()) {
            target.change(TargetChange::RemoveChild { replica: id }, self.now).unwrap();
            target.status.as_mut().unwrap().children.retain(|child| child.replica != id);
        }
        let replica = self.facts.replicas.remove(&id).unwrap();
        let pool = self.facts.pools.get_mut(&replica.spec().pool).unwrap();
        let status = pool.status.as_mut().unwrap();
        let taken = replica.status.as_ref().map_or(Size::ZERO, |status| status.usage.allocated);
        status.used = status.used.minus(taken);
        status.committed = status.committed.minus(replica.spec().size);
    }

    pub(crate) fn act(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::BeginFailover { volume, from, node, .. } => {
                let old = self.facts.targets.remove(from).unwrap();
                let hosts: Vec<_> = old.spec().hosts.keys().cloned().collect();
                self.open(*volume, node, &hosts);
            }
            Step::OpenToHeal { volume, node, .. } => self.open(*volume, node, &[]),
            Step::Close { target, .. } => drop(self.facts.targets.remove(target)),
            Step::AddReplica { volume, pool, .. } => self.add(*volume, pool),
            Step::Attach { target, replica, .. } => {
                let child = Child { replica: *replica, path: ChildPath::Local {}, offline: false };
                let target = self.facts.targets.get_mut(target).unwrap();
                target.change(TargetChange::PutChild { child }, now).unwrap();
                let (replica, state) = (*replica, ChildState::Stale);
                let status = target.status.as_mut().unwrap();
                status.children.push(ChildStatus { replica, state, progress: None });
            }
            Step::Rebuild(plan) => self.rebuild(plan),
            Step::RemoveReplica { volume, replica, .. } => self.remove(*volume, *replica),
            Step::MoveReplica { volume, from, pool, .. } => {
                let name = format!("moved {from} {}", now.millis());
                let (replica, from, pool) = (self.names.id(&name), *from, pool.clone());
                let asked = planner::ReplicaMove { from, replica, pool };
                assert_eq!(self.facts.moves.insert(*volume, asked), None, "it moves already");
            }
            Step::Finish(Subject::Volume(volume)) => {
                assert!(self.facts.moves.remove(volume).is_some(), "nothing was under way");
            }
            step => panic!("no such step in this world: {step:?}"),
        }
    }
}
