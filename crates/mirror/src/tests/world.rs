//! Targets, replicas, the store and what is on its way between them, in virtual time.

use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet};
use std::format;
use std::string::String;
use std::vec::Vec;

use block::testing::Random;
use block::{Blocks, Command, Completion, Instant, IoError, Lba, Span};
use model::{ChildState, Epoch, FaultReason, ReplicaId, SnapshotId, SyncMetadata, TargetRecord};

use super::Broken;
use super::disk::{Disk, GARBAGE, Snapshot};
use super::history::History;
use super::owner::AROUND;
use crate::{
    Answer, AttachFault, Attempt, Buffer, CommandId, Event, Mirror, RequestId, Session, StoreFault,
};

/// A target notices within this time that it lost a child.
pub(super) const DETECT: u64 = 200;
/// An I/O that gets no answer ends after this.
pub(super) const TIMEOUT: u64 = 150;

pub(super) fn at(millis: u64) -> Instant {
    Instant::since_start(Duration::from_millis(millis))
}

/// What a host asked.
#[derive(Clone, Debug)]
pub(super) struct HostOp {
    pub(super) number: u64,
    pub(super) command: Command,
    pub(super) begun: u64,
    pub(super) data: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct Target {
    pub(super) mirror: Mirror,
    pub(super) node: usize,
    pub(super) epoch: u64,
    pub(super) alive: bool,
    pub(super) opened: bool,
    pub(super) ios: BTreeMap<RequestId, (usize, Session, Buffer)>,
    pub(super) sessions: BTreeMap<Session, usize>,
    pub(super) ops: BTreeMap<CommandId, HostOp>,
    pub(super) copies: Vec<Vec<u64>>,
    pub(super) answers: BTreeMap<CommandId, Result<(), String>>,
    pub(super) copied: u64,
    pub(super) checked: BTreeMap<CommandId, crate::Checked>,
    /// Commands that ended, with what they read.
    pub(super) ended: BTreeMap<CommandId, (Completion, Vec<u64>)>,
    pub(super) changes: Vec<(ReplicaId, ChildState)>,
}

/// What is asked of a replica.
#[derive(Clone, Debug)]
pub(super) enum What {
    Command(Command, Buffer, Vec<u64>),
    Written(Span),
    Accept(Span),
    AcceptDamaged(Span),
    Repair(Lba, Vec<u64>),
    Keep(Box<SyncMetadata>),
    Snapshot(SnapshotId, Attempt),
    Drop(SnapshotId),
    Measure,
}

#[derive(Clone, Debug)]
pub(super) enum Happening {
    Attach {
        target: usize,
        disk: usize,
        session: Session,
        epoch: Epoch,
    },
    /// A replica that was fenced says what it is.
    Describe {
        target: usize,
        disk: usize,
        session: Session,
        epoch: Epoch,
    },
    /// A host's command comes to a target that was stopped.
    Submit {
        target: usize,
        token: CommandId,
        op: HostOp,
    },
    Execute {
        target: usize,
        disk: usize,
        session: Session,
        io: RequestId,
        what: What,
    },
    Store {
        target: usize,
        io: RequestId,
        record: TargetRecord,
    },
    Deliver {
        target: usize,
        event: Event,
        data: Option<(Buffer, Vec<u64>)>,
    },
    Restart {
        disk: usize,
    },
}

#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, not a state")]
pub(super) struct World {
    pub(super) random: Random,
    pub(super) now: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    seq: u64,
    pub(super) disks: Vec<Disk>,
    pub(super) record: TargetRecord,
    pub(super) store_up: bool,
    pub(super) targets: Vec<Target>,
    pub(super) history: History,
    /// What cannot get from one node to another; the store is node 99.
    pub(super) cut: BTreeSet<(usize, usize)>,
    /// Nodes that stand still, and until when.
    pub(super) paused: BTreeMap<usize, u64>,
    /// How long each node stood still with its clock.
    pub(super) stood: BTreeMap<usize, u64>,
    /// Since when the clock of a node stands still.
    pub(super) standing: BTreeMap<usize, u64>,
    /// Whether an attachment may stop for long between its steps, and copies are given up between
    /// one owner and the next.
    pub(super) stalls: bool,
    /// A replica whose attachments stop before they fence anybody.
    pub(super) stalled: Option<usize>,
    /// How often replicas were asked something.
    pub(super) asked: u64,
    /// Everything that the store ever held.
    pub(super) records: Vec<TargetRecord>,
    /// How much goes wrong by itself: one in so many.
    pub(super) trouble: u64,
    pub(super) slow: Option<usize>,
    pub(super) broken: Broken,
    pub(super) replicas: Vec<ReplicaId>,
    /// Snapshots that were ordered, by target and order.
    pub(super) snapshots: BTreeMap<(usize, CommandId), (SnapshotId, BTreeSet<usize>)>,
    pub(super) error: Option<String>,
    /// Where good copies were found to differ, if they may.
    pub(super) differing: Option<Vec<Span>>,
    pub(super) bypass_reads: bool,
    pub(super) reserves: bool,
    pub(super) reservations: super::reservation::Reservations,
    pub(super) loud: bool,
}

pub(super) const STORE: usize = 99;

impl World {
    pub(super) fn new(
        random: Random,
        disks: Vec<Disk>,
        record: TargetRecord,
        broken: Broken,
    ) -> World {
        World {
            random,
            now: 1,
            queue: BTreeMap::new(),
            seq: 0,
            disks,
            record,
            store_up: true,
            targets: Vec::new(),
            history: History::default(),
            cut: BTreeSet::new(),
            paused: BTreeMap::new(),
            stood: BTreeMap::new(),
            standing: BTreeMap::new(),
            stalls: false,
            stalled: None,
            asked: 0,
            records: Vec::new(),
            trouble: 0,
            slow: None,
            broken,
            replicas: Vec::new(),
            snapshots: BTreeMap::new(),
            error: None,
            differing: None,
            bypass_reads: false,
            reserves: false,
            reservations: super::reservation::Reservations::default(),
            loud: false,
        }
    }

    pub(super) fn say(&self, what: core::fmt::Arguments<'_>) {
        if self.loud {
            std::eprintln!("{:6} {what}", self.now);
        }
    }

    pub(super) fn fail(&mut self, error: String) {
        self.error.get_or_insert(error);
    }

    pub(super) fn after(&mut self, delay: u64, happening: Happening) {
        self.seq += 1;
        self.queue.insert((self.now + delay, self.seq), happening);
    }

    /// A short delay, and a long one now and then.
    pub(super) fn delay(&mut self, disk: usize) -> u64 {
        let slow = self.slow == Some(disk);
        match self.random.below(20) {
            _ if slow => 5 + self.random.below(60),
            0 if self.trouble > 0 => self.random.below(60),
            _ => self.random.below(4),
        }
    }

    pub(super) fn trouble(&mut self) -> bool {
        self.trouble > 0 && self.random.one_in(self.trouble)
    }

    pub(super) fn reaches(&self, target: usize, other: usize) -> bool {
        let node = self.targets[target].node;
        node == other || !self.cut.contains(&(node, other))
    }

    /// The time by the clock of a target's node.
    pub(super) fn clock(&self, target: usize) -> Instant {
        self.clock_of(self.targets[target].node)
    }

    /// When a target wants the time, by the clock of the world.
    fn timer(&self, target: usize) -> Option<u64> {
        let from = &self.targets[target];
        let runs = from.alive && !self.paused.contains_key(&from.node);
        let stood = self.stood.get(&from.node).copied().unwrap_or(0);
        from.mirror.timeout().filter(|_| runs).map(|at| millis(at) + stood)
    }

    pub(super) fn disk_of(&self, replica: ReplicaId) -> usize {
        self.replicas.iter().position(|other| *other == replica).unwrap()
    }

    /// When something happens next.
    pub(super) fn next_at(&self) -> Option<u64> {
        let queued = self.queue.keys().next().map(|(at, _)| *at);
        let timers = (0..self.targets.len()).filter_map(|target| self.timer(target));
        let pauses = self.paused.values().copied();
        queued.into_iter().chain(timers.chain(pauses).map(|at| at.max(self.now + 1))).min()
    }

    /// Lets the next thing happen, unless it lies beyond `end`.
    pub(super) fn step(&mut self, end: u64) -> bool {
        let Some(next) = self.next_at().filter(|next| *next <= end) else {
            self.now = self.now.max(end);
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        self.go_on(now);
        for target in 0..self.targets.len() {
            if self.timer(target).is_some_and(|timer| timer <= self.now) {
                let now = self.clock(target);
                self.targets[target].mirror.tick(now);
                self.drain(target);
            }
        }
        let due = self.queue.first_key_value().map(|(key, _)| *key).filter(|key| key.0 <= self.now);
        if let Some(happening) = due.and_then(|key| self.queue.remove(&key)) {
            self.happen(happening);
        }
        true
    }

    fn happen(&mut self, happening: Happening) {
        let Some(happening) = self.unless_paused(happening) else { return };
        match happening {
            Happening::Describe { target, disk, session, epoch } => {
                self.describe(target, disk, session, epoch);
            }
            Happening::Submit { target, token, op } => self.take(target, token, op),
            Happening::Attach { target, disk, session, epoch } => {
                self.attach(target, disk, session, epoch);
            }
            Happening::Execute { target, disk, session, io, what } => {
                self.execute(target, (disk, session), io, what);
            }
            Happening::Store { target, io, record } => self.store(target, io, record),
            Happening::Deliver { target, event, data } => self.deliver(target, event, data),
            Happening::Restart { disk } => {
                self.say(format_args!("disk {disk} is up"));
                self.disks[disk].up = true;
            }
        }
    }

    pub(super) fn deliver_later(&mut self, delay: u64, target: usize, event: Event) {
        self.after(delay, Happening::Deliver { target, event, data: None });
    }

    fn deliver(&mut self, target: usize, event: Event, data: Option<(Buffer, Vec<u64>)>) {
        let Some(to) = self.targets.get_mut(target).filter(|target| target.alive) else { return };
        let mut session = None;
        if let Event::Ended { io, .. } = &event {
            let Some((_, of, _)) = to.ios.remove(io) else { return };
            session = Some(of);
        }
        match data {
            Some((Buffer::Host(token), data)) => {
                to.ops.get_mut(&token).expect("a buffer in use is the mirror's").data = data;
            }
            Some((Buffer::Copy(slot), data)) => to.copies[slot as usize] = data,
            Some((Buffer::None, _)) | None => {}
        }
        if self.loud {
            std::eprintln!("{:6} T{target} <- {event:?}", self.now);
        }
        match (event, session) {
            (Event::Ended { io, result }, Some(session)) if io.0 & AROUND != 0 => {
                self.bypass_done(target, (io, session), result.map(|_| ()));
            }
            (event, _) => {
                let now = self.clock(target);
                self.targets[target].mirror.apply(event, now);
                self.drain(target);
            }
        }
    }

    fn attach(&mut self, target: usize, disk: usize, session: Session, epoch: Epoch) {
        if !self.targets[target].alive {
            return;
        }
        if self.stalled == Some(disk) {
            return self.after(10, Happening::Attach { target, disk, session, epoch });
        }
        let there = self.disks[disk].up && self.reaches(target, disk);
        if !there || self.trouble() {
            let result = Err(AttachFault::Failed(FaultReason::CannotOpen));
            let delay = self.delay(disk);
            return self.deliver_later(delay, target, Event::Attached { session, result });
        }
        let found = &mut self.disks[disk];
        if found.epoch.is_some_and(|have| have > epoch) {
            let result = Err(AttachFault::Fenced);
            return self.deliver_later(1, target, Event::Attached { session, result });
        }
        found.epoch = Some(epoch);
        let before = found.owner.replace((epoch, target, session));
        if let Some((_, old, session)) = before.filter(|(_, old, _)| *old != target) {
            let why = AttachFault::Fenced;
            let delay = self.random.below(DETECT);
            if self.reaches(old, disk) {
                self.deliver_later(delay, old, Event::Lost { session, why });
            }
        }
        let happening = Happening::Describe { target, disk, session, epoch };
        if self.stalls {
            // Fenced, and nothing more for longer than anybody waits.
            let stall = if self.random.one_in(4) { self.random.below(3000) } else { 0 };
            self.after(stall, happening);
        } else {
            self.happen(happening);
        }
    }

    fn execute(&mut self, target: usize, place: (usize, Session), io: RequestId, what: What) {
        let (disk, session) = place;
        let owner = self.disks[disk].owner;
        let epoch = Epoch::new(self.targets[target].epoch).unwrap();
        let fault = if !self.reaches(target, disk) {
            let result = Err(IoError::TimedOut);
            return self.deliver_later(TIMEOUT, target, Event::Ended { io, result });
        } else if !self.disks[disk].up {
            Some(IoError::Unreachable)
        } else if self.disks[disk].epoch.is_some_and(|have| have > epoch) {
            (self.broken != Broken::NoFence).then_some(IoError::Fenced)
        } else if owner != Some((epoch, target, session)) {
            Some(IoError::Unreachable)
        } else {
            self.trouble().then_some(IoError::Busy)
        };
        let delay = self.delay(disk);
        if let Some(fault) = fault {
            let event = Event::Ended { io, result: Err(fault) };
            return self.deliver_later(delay, target, event);
        }
        let (mut result, data) = self.carry_out(disk, what);
        if !self.hears(target, disk) {
            let result = Err(IoError::TimedOut);
            return self.deliver_later(TIMEOUT, target, Event::Ended { io, result });
        }
        if self.trouble() && self.random.one_in(8) {
            // It was carried out, but nobody hears of it.
            result = Err(IoError::TimedOut);
        }
        let event = Event::Ended { io, result };
        self.after(delay, Happening::Deliver { target, event, data });
    }

    #[expect(clippy::type_complexity, reason = "an answer and where its bytes go")]
    fn carry_out(
        &mut self,
        disk: usize,
        what: What,
    ) -> (Result<Answer, IoError>, Option<(Buffer, Vec<u64>)>) {
        let found = &mut self.disks[disk];
        match what {
            What::Command(command, buffer, mut data) => {
                let result = found.carry_out(command, &mut data).map(|()| Answer::Done);
                let filled = matches!(command, Command::Read { .. }) && result.is_ok();
                (result, filled.then_some((buffer, data)))
            }
            What::Written(span) => (Ok(Answer::Written(found.written_in(span))), None),
            What::Accept(span) => {
                self.accept(disk, span);
                (Ok(Answer::Done), None)
            }
            What::AcceptDamaged(span) => {
                found.accept_damaged(span);
                (Ok(Answer::Done), None)
            }
            What::Repair(at, data) => {
                found.repair(at.0, data[0]);
                (Ok(Answer::Done), None)
            }
            What::Keep(note) => {
                found.note = Some(*note);
                (Ok(Answer::Done), None)
            }
            What::Snapshot(id, attempt) => {
                if found.full {
                    return (Err(IoError::NoSpace), None);
                }
                if let Some(there) = found.snapshots.get(&id) {
                    return (Ok(Answer::WasThere(there.attempt)), None);
                }
                let taken = Snapshot { view: found.view(), attempt: Some(attempt) };
                found.snapshots.insert(id, taken);
                (Ok(Answer::Done), None)
            }
            What::Drop(id) => {
                found.snapshots.remove(&id);
                (Ok(Answer::Done), None)
            }
            What::Measure => (Ok(Answer::Size(Blocks(found.view().len() as u64))), None),
        }
    }

    /// **U1** What a copy cannot prove is believed only if no copy in sync can. Then nobody can
    /// tell rot from what was written.
    fn accept(&mut self, disk: usize, span: Span) {
        let in_sync = self.record.set().in_sync().iter().map(|replica| self.disk_of(*replica));
        let others: Vec<usize> = in_sync.filter(|other| *other != disk).collect();
        for at in span.start().0..span.end().0 {
            let proves = others.iter().find(|other| self.disks[**other].can_read(at));
            if let Some(other) = proves.filter(|_| self.disks[disk].unproven.contains(&at)) {
                self.fail(format!("disk {disk} is believed at {at}, and disk {other} has proof"));
            }
            if self.disks[disk].block(at) == GARBAGE {
                self.history.began(0, at, GARBAGE, (self.now, self.record.epoch().number()));
            }
        }
        self.disks[disk].accept(span);
    }

    fn store(&mut self, target: usize, io: RequestId, record: TargetRecord) {
        let away = !self.store_up || !self.reaches(target, STORE);
        let mut result = Err(StoreFault::Away);
        let lost = self.trouble() && self.random.one_in(2) || !self.hears(target, STORE);
        if !away {
            let same =
                self.record.epoch() == record.epoch() && self.record.target() == record.target();
            if self.record.epoch() < record.epoch() {
                result = Err(StoreFault::Behind { epoch: self.record.epoch() });
            } else if self.record == record {
                result = Ok(());
            } else if same && self.record.set().generation() <= record.set().generation() {
                self.set_record(record);
                result = Ok(());
            } else {
                result = Err(StoreFault::Fenced);
            }
        }
        if lost {
            result = Err(StoreFault::Away);
        }
        let delay = if result == Err(StoreFault::Away) { 20 } else { self.delay(STORE) };
        self.deliver_later(delay, target, Event::Recorded { io, result });
    }

    pub(super) fn set_record(&mut self, record: TargetRecord) {
        self.say(format_args!("record {:?}", record.set()));
        let in_sync = record.set().in_sync().iter().map(|replica| self.disk_of(*replica));
        let in_sync: BTreeSet<usize> = in_sync.collect();
        let there = in_sync.iter().copied().filter(|disk| self.disks[*disk].owner.is_some());
        let there = there.collect();
        self.history.recorded(in_sync, &there);
        self.records.push(record.clone());
        self.record = record;
    }
}

fn millis(at: Instant) -> u64 {
    at.since(Instant::ZERO).as_nanos().div_ceil(1_000_000) as u64
}
