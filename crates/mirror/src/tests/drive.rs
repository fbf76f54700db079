//! A history from a seed: hosts, faults, orders; then everything heals, and is compared.

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::BTreeSet;
use std::format;
use std::string::String;
use std::vec::Vec;

use block::testing::Random;
use block::{Blocks, Command, Lba, Span};
use model::{
    FaultReason, NodeName, ReplicaId, ReplicaSet, SnapshotId, TargetId, TargetRecord, TargetState,
    VolumeId,
};
use uuid::Uuid;

use super::Broken;
use super::disk::Disk;
use super::with_and_without::Also;
use super::world::{DETECT, Happening, HostOp, STORE, World};
use crate::{
    AttachFault, Attempt, CommandId, Event, MirrorConfig, MirrorRequest, ReadLease, RebuildCommand,
    UnreadableBlocks,
};

const BLOCKS: u64 = 64;
const MOST: u64 = 96;

pub(super) fn config() -> MirrorConfig {
    let millis = Duration::from_millis;
    MirrorConfig {
        commands: 64,
        hold: millis(3000),
        open_wait: millis(2 * DETECT + 100),
        lease: ReadLease { own: millis(300), longest: millis(300) },
        renew: millis(200),
        stop_wait: millis(3000),
        retry: (millis(10), millis(200)),
        busy: (millis(2), 50),
        idle: millis(100),
        region: NonZeroU64::new(8).unwrap(),
        chunk: Blocks(4),
        copies: 4,
        rebuilds: 2,
        rebuild_limit: None,
        small_chunk: Blocks(2),
        pause: millis(1),
        lull: millis(5),
        away: millis(5),
        slow: millis(10),
        verify: false,
        history: 8,
    }
}

pub(super) fn replica(nth: usize) -> ReplicaId {
    ReplicaId::new(Uuid::from_u128(0x1000 + nth as u128)).unwrap()
}

/// What a seed is run with.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for on its own")]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) broken: Broken,
    /// Whether reads go around the mirror where they may.
    pub(super) bypass_reads: bool,
    /// Whether crashes leave blocks that nothing proves, and checks are ordered.
    pub(super) unproven: bool,
    /// Whether hosts change reservations.
    pub(super) reserves: bool,
    /// What else may happen.
    pub(super) also: Also,
    pub(super) loud: bool,
}

pub(super) struct Drive {
    pub(super) world: World,
    pub(super) size: u64,
    pub(super) copies: usize,
    pub(super) config: MirrorConfig,
    unproven: bool,
    tokens: u64,
    attempts: u64,
    stamps: u64,
    /// What the last read returned.
    pub(super) last_read: Vec<u64>,
    pub(super) also: Also,
}

impl Drive {
    pub(super) fn new(plan: Plan) -> Drive {
        let mut random = Random(plan.seed);
        let copies = 2 + random.below(2) as usize;
        let set = ReplicaSet::new((0..copies).map(replica).collect()).unwrap();
        let volume = VolumeId::new(Uuid::from_u128(1)).unwrap();
        let node: NodeName = "node-0".parse().unwrap();
        let target = TargetId::new(Uuid::from_u128(2)).unwrap();
        let record = TargetRecord::new(volume, target, node, set);
        let disks = (0..=copies).map(|_| Disk::new(MOST)).collect();
        let mut world = World::new(random, disks, record.clone(), plan.broken);
        world.replicas = (0..=copies).map(replica).collect();
        (world.bypass_reads, world.loud) = (plan.bypass_reads, plan.loud);
        world.reserves = plan.reserves;
        world.set_record(record);
        let mut config = config();
        config.verify = world.random.one_in(3);
        if plan.also == Also::StandingClocks {
            // No clock covers this (docs/design/0002-mirror.md): reads rely on causal order alone.
            config.lease = ReadLease { own: Duration::ZERO, longest: Duration::ZERO };
        }
        let (tokens, attempts, stamps, last_read) = (0, 0, 0, Vec::new());
        let (size, unproven, also) = (BLOCKS, plan.unproven, plan.also);
        world.stalls = also == Also::Pauses;
        Drive { world, size, copies, config, unproven, tokens, attempts, stamps, last_read, also }
    }

    pub(super) fn run(&mut self) -> Result<(), String> {
        let node = self.world.random.below(self.copies as u64) as usize;
        self.world.take_over(node, self.config, Blocks(self.size));
        // A quiet start in some seeds, trouble from the beginning in others.
        self.world.trouble = [0, 40, 150, 400][self.world.random.below(4) as usize];
        let end = self.world.now + 1500 + self.world.random.below(3000);
        let mut next_host = self.world.now;
        let mut next_fault = self.world.now + self.world.random.below(400);
        let (pace, faults) = (1 + self.world.random.below(12), 20 + self.world.random.below(400));
        while self.world.now < end {
            let next = next_host.min(next_fault).min(end);
            while self.world.step(next) {}
            self.check()?;
            if self.world.now >= next_host {
                self.host();
                next_host = self.world.now + 1 + self.world.random.below(pace);
            }
            if self.world.now >= next_fault {
                if !self.also_happens()? {
                    self.fault();
                }
                next_fault = self.world.now + 1 + self.world.random.below(faults);
            }
            self.check()?;
        }
        self.heal()?;
        self.compare()
    }

    pub(super) fn check(&mut self) -> Result<(), String> {
        self.world.error.take().map_or(Ok(()), Err)
    }

    fn token(&mut self) -> CommandId {
        self.tokens += 1;
        CommandId(self.tokens)
    }

    fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    pub(super) fn newest(&self) -> Option<usize> {
        let last = self.world.targets.len() - 1;
        self.world.targets[last].alive.then_some(last)
    }

    fn span(&mut self) -> Span {
        let start = self.world.random.below(self.size);
        let len = 1 + self.world.random.below(6.min(self.size - start));
        Span::new(Lba(start), Blocks(len)).unwrap()
    }

    fn host(&mut self) {
        let alive: Vec<usize> =
            (0..self.world.targets.len()).filter(|at| self.world.targets[*at].alive).collect();
        let Some(mut target) = self.world.random.pick(&alive) else { return };
        if !self.world.random.one_in(5) {
            let Some(newest) = self.newest() else { return };
            target = newest;
        }
        if self.world.reserves && self.world.random.one_in(4) {
            let token = self.token();
            return self.world.reserve(target, token);
        }
        if self.world.targets[target].ops.len() >= 12 {
            return;
        }
        let span = self.span();
        let fua = self.world.random.one_in(8);
        let command = match self.world.random.below(20) {
            0..9 => Command::Write { span, fua },
            15..17 => Command::Flush,
            17 => Command::Discard { span },
            18 => Command::WriteZeroes { span, fua, deallocate: true },
            _ => Command::Read { span },
        };
        self.submit(target, command);
    }

    pub(super) fn submit(&mut self, target: usize, command: Command) -> CommandId {
        let data = match command {
            Command::Write { span, .. } => (0..span.len().0).map(|_| self.stamp()).collect(),
            _ => Vec::new(),
        };
        let (token, number) = (self.token(), self.stamp());
        let op = HostOp { number, command, begun: self.world.now, data };
        self.world.submit(target, token, op);
        token
    }

    fn fault(&mut self) {
        let node = self.world.random.below(self.copies as u64) as usize;
        let disk = self.world.random.below(self.copies as u64) as usize;
        match self.world.random.below(24) {
            0..3 => self.crash_disk(disk),
            3 => {
                for disk in 0..self.copies {
                    self.crash_disk(disk);
                }
                if self.world.random.one_in(2) {
                    self.world.targets.iter_mut().for_each(|target| target.alive = false);
                }
            }
            4..6 => self.crash_target(node),
            6..9 => self.fail_over(node),
            9..12 => self.cut(node, disk),
            12 => self.cut(node, STORE),
            13 => self.world.store_up = !self.world.store_up,
            14 => {
                self.world.cut.clear();
                self.world.store_up = true;
                self.world.slow = None;
            }
            15 => self.world.slow = Some(disk),
            16 => self.rot(disk),
            17 => {
                let full = !self.world.disks[disk].full;
                self.world.disks.iter_mut().for_each(|disk| disk.full = false);
                self.world.disks[disk].full = full;
            }
            18 => self.world.disks.iter_mut().for_each(|disk| disk.full = true),
            _ => self.random_order(),
        }
    }

    pub(super) fn crash_disk(&mut self, disk: usize) {
        if !self.world.disks[disk].up {
            return;
        }
        self.world.say(format_args!("disk {disk} crashes"));
        let mut random = self.world.random.clone();
        self.world.disks[disk].crash(&mut random, self.unproven);
        self.world.random = random;
        let now = self.world.now;
        self.world.history.crashed(disk, now);
        self.lose_sessions(|_, other| other == disk);
        let back = self.world.random.below(600);
        self.world.after(back, Happening::Restart { disk });
    }

    /// A disk crashes, loses all that no flush covered, and is back soon.
    pub(super) fn lose_cache(&mut self, disk: usize) {
        self.world.disks[disk].forget_cache();
        self.crash_disk(disk);
        self.pass(700);
    }

    /// Targets notice that attachments are gone.
    pub(super) fn lose_sessions(&mut self, which: impl Fn(usize, usize) -> bool) {
        for target in 0..self.world.targets.len() {
            let from = &self.world.targets[target];
            let gone = from.sessions.iter().filter(|(_, disk)| which(from.node, **disk));
            let gone: Vec<_> = gone.map(|(session, _)| *session).collect();
            for session in gone {
                let delay = self.world.random.below(DETECT);
                let why = AttachFault::Failed(FaultReason::ConnectionLost);
                self.world.deliver_later(delay, target, Event::Lost { session, why });
            }
        }
    }

    pub(super) fn crash_target(&mut self, node: usize) {
        self.world.say(format_args!("targets on node {node} crash"));
        for target in &mut self.world.targets {
            target.alive &= target.node != node;
        }
    }

    pub(super) fn fail_over(&mut self, node: usize) {
        let reaches_store = self.world.store_up && !self.world.cut.contains(&(node, STORE));
        if reaches_store && self.world.targets.len() < 12 {
            self.world.take_over(node, self.config, Blocks(self.size));
        }
    }

    pub(super) fn cut(&mut self, a: usize, b: usize) {
        if a == b {
            return;
        }
        let pair = (a.min(b), a.max(b));
        self.world.say(format_args!("cut {pair:?}"));
        if self.world.cut.remove(&(a, b)) | self.world.cut.remove(&(b, a)) {
            return;
        }
        self.world.cut.extend([(a, b), (b, a)]);
        self.lose_sessions(|node, disk| (node.min(disk), node.max(disk)) == pair);
    }

    /// Bits rot on one replica only: what no copy can read is an error, not a wrong answer.
    fn rot(&mut self, disk: usize) {
        if self
            .world
            .disks
            .iter()
            .enumerate()
            .any(|(at, other)| at != disk && !other.bad.is_empty())
        {
            return;
        }
        for _ in 0..=self.world.random.below(8) {
            let at = self.world.random.below(self.size);
            self.world.disks[disk].rot(at);
            self.world.history.rotted(disk, at);
            self.world.say(format_args!("block {at} of disk {disk} rots"));
        }
    }

    fn random_order(&mut self) {
        let Some(target) = self.newest() else { return };
        let random = &mut self.world.random;
        let replica = replica(random.below(self.copies as u64 + 1) as usize);
        let rebuild = [
            RebuildCommand::Start,
            RebuildCommand::Pause,
            RebuildCommand::Resume,
            RebuildCommand::Cancel,
        ];
        let request = match random.below(if self.unproven { 15 } else { 12 }) {
            0 => MirrorRequest::AddChild { replica, local: false },
            1 => MirrorRequest::RemoveChild(replica),
            2 => MirrorRequest::Offline(replica),
            3..5 => MirrorRequest::Online(replica),
            5..8 => MirrorRequest::Rebuild(replica, rebuild[random.below(4) as usize]),
            8 => {
                self.size = (self.size + 8).min(MOST);
                MirrorRequest::Resize(Blocks(self.size))
            }
            12..15 => {
                let from = random.below(self.size);
                let span = Span::between(Lba(from), Lba(self.size)).unwrap();
                MirrorRequest::Check { span, believed: None, unreadable: UnreadableBlocks::Tell }
            }
            // Some are asked for again, whatever became of them.
            _ => {
                let number = 1 + u128::from(random.below(4));
                let id = SnapshotId::new(Uuid::from_u128(number)).unwrap();
                MirrorRequest::Snapshot(id, self.attempt())
            }
        };
        self.give(target, request);
    }

    /// One that nobody made before.
    pub(super) fn attempt(&mut self) -> Attempt {
        self.attempts += 1;
        Attempt(self.attempts)
    }

    pub(super) fn give(&mut self, target: usize, request: MirrorRequest) -> CommandId {
        let token = self.token();
        self.world.say(format_args!("T{target} order {token:?} {request:?}"));
        if let MirrorRequest::Snapshot(id, _) = request {
            let had = |disk: &usize| self.world.disks[*disk].snapshots.contains_key(&id);
            let had = (0..self.world.disks.len()).filter(had).collect();
            self.world.snapshots.insert((target, token), (id, had));
        }
        let now = self.world.clock(target);
        self.world.targets[target].mirror.request(token, request, now);
        self.world.drain(target);
        token
    }

    pub(super) fn run_until(
        &mut self,
        millis: u64,
        done: impl Fn(&Drive) -> bool,
    ) -> Result<bool, String> {
        let end = self.world.now + millis;
        while !done(self) {
            if !self.world.step(end) {
                return Ok(false);
            }
            self.check()?;
        }
        Ok(true)
    }

    /// Everything works again; in half of the seeds after a power cut of all.
    fn heal(&mut self) -> Result<(), String> {
        self.world.trouble = 0;
        self.world.cut.clear();
        self.world.store_up = true;
        self.world.slow = None;
        self.world.stalls = false;
        let paused = self.world.paused.values().max().copied().unwrap_or(self.world.now);
        self.run_until(paused.saturating_sub(self.world.now), |_| false)?;
        if self.world.random.one_in(2) {
            self.world.say(format_args!("power cut"));
            self.world.targets.iter_mut().for_each(|target| target.alive = false);
            (0..self.copies).for_each(|disk| self.crash_disk(disk));
        }
        for disk in &mut self.world.disks {
            disk.full = false;
            disk.bad.clear();
        }
        self.run_until(700, |_| false)?;
        let down = |state| matches!(state, TargetState::Shutdown { .. });
        let serves = self.newest().filter(|at| !down(self.world.targets[*at].mirror.state()));
        if serves.is_none() {
            let node = self.world.random.below(self.copies as u64) as usize;
            self.world.take_over(node, self.config, Blocks(self.size));
        }
        let target = self.world.targets.len() - 1;
        self.run_until(5000, |drive| {
            drive.world.targets[target].mirror.state() != TargetState::Init
        })?;
        for replica in self.world.record.set().replicas().clone() {
            self.give(target, MirrorRequest::Online(replica));
            self.give(target, MirrorRequest::Rebuild(replica, RebuildCommand::Resume));
        }
        let open = |drive: &Drive| {
            let target = &drive.world.targets[target];
            target.mirror.state() == TargetState::Open && target.ops.is_empty()
        };
        if !self.run_until(60_000, open)? {
            let target = &self.world.targets[target];
            return Err(format!(
                "not whole again: {:?} {:?} {:?} {:?}",
                target.mirror.conflicts(),
                target.mirror.state(),
                target.mirror.children(),
                target.ops
            ));
        }
        Ok(())
    }

    /// Copies are equal, what was promised is there, and the end is clean.
    fn compare(&mut self) -> Result<(), String> {
        let target = self.world.targets.len() - 1;
        let size = self.world.targets[target].mirror.geometry().blocks().0;
        for start in (0..size).step_by(4) {
            let len = 4.min(size - start);
            let span = Span::new(Lba(start), Blocks(len)).unwrap();
            let read = self.submit(target, Command::Read { span });
            self.submit(target, Command::Flush);
            let idle = |drive: &Drive| drive.world.targets[target].ops.is_empty();
            if !self.run_until(10_000, idle)? {
                return Err("reads do not end".into());
            }
            if let Some((Err(fault), _)) = self.world.targets[target].ended.get(&read) {
                return Err(format!("{span} cannot be read: {fault}"));
            }
        }
        self.same(target)?;
        let token = self.give(target, MirrorRequest::Stop);
        let stopped = |drive: &Drive| drive.world.targets[target].answers.contains_key(&token);
        if !self.run_until(10_000, stopped)? {
            return Err("it does not stop".into());
        }
        if self.world.record.end() != model::ShutdownState::Clean {
            return Err(format!("unclean end: {:?}", self.world.record));
        }
        for disk in self.members() {
            let note = self.world.disks[disk].note.clone().unwrap();
            if !note.intents.is_empty() || !note.missed.is_empty() {
                return Err(format!("marks stay: {note:?}"));
            }
            let mut random = Random(1);
            self.world.disks[disk].crash(&mut random, false);
            let left = self.world.disks[disk].unproven.range(..size).next();
            if let Some(at) = left {
                return Err(format!("block {at} of disk {disk} is unproven after a clean end"));
            }
        }
        self.same(target)
    }

    fn members(&self) -> Vec<usize> {
        self.world
            .record
            .set()
            .in_sync()
            .iter()
            .map(|replica| self.world.disk_of(*replica))
            .collect()
    }

    fn same(&self, target: usize) -> Result<(), String> {
        let size = self.world.targets[target].mirror.geometry().blocks().0 as usize;
        let views: BTreeSet<Vec<u64>> = self
            .members()
            .into_iter()
            .map(|disk| self.world.disks[disk].view()[..size].to_vec())
            .collect();
        if views.len() != 1 {
            return Err(format!("copies differ: {views:?}"));
        }
        Ok(())
    }
}
