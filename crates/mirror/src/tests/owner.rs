//! The owner of a mirror: carries out what it asks, and judges what it answers to hosts.

use std::collections::BTreeSet;
use std::format;
use std::vec::Vec;

use block::{Command, CommandKind, IoError, Span};
use model::{
    ChildState, ChildStatus, NodeName, ReplicaId, TargetId, TargetRecord, TargetState, Timestamp,
};
use uuid::Uuid;

use super::disk::Disk;
use super::world::{Happening, HostOp, Target, What, World};
use crate::{
    Buffer, CommandId, Effect, Event, Mirror, MirrorConfig, OpenParams, RequestId, Session,
};

/// Marks the names of reads that go around their mirror.
pub(super) const AROUND: u64 = 1 << 62;

impl Target {
    /// The block that a repair writes.
    fn repairing(&mut self, buffer: Buffer) -> Vec<u64> {
        let Buffer::Copy(slot) = buffer else { panic!("a repair with {buffer:?}") };
        self.copied += 1;
        self.copies[slot as usize].clone()
    }
}

impl World {
    /// A new target takes the volume, wherever the former one is.
    #[expect(clippy::large_types_passed_by_value, reason = "it is the mirror's own then")]
    pub(super) fn take_over(&mut self, node: usize, config: MirrorConfig, size: block::Blocks) {
        let id = TargetId::new(Uuid::from_u128(0x7000 + self.targets.len() as u128)).unwrap();
        let name: NodeName = format!("node-{node}").parse().unwrap();
        let record = self.give_up_some().take(id, name);
        self.set_record(record.clone());
        let members = record.set().replicas().iter();
        let children = members.map(|replica| (*replica, self.disk_of(*replica) == node)).collect();
        let epoch = record.epoch().number();
        let opening = OpenParams {
            record,
            size,
            children,
            limits: model::QosLimits::default(),
            config,
            wall: Timestamp::from_millis(1_000_000),
        };
        self.say(format_args!("T{} on node {node} takes epoch {epoch}", self.targets.len()));
        let mut mirror = Mirror::open(opening, self.clock_of(node)).unwrap();
        mirror.break_rule(self.broken);
        self.targets.push(Target {
            mirror,
            node,
            epoch,
            alive: true,
            opened: false,
            ios: std::collections::BTreeMap::new(),
            sessions: std::collections::BTreeMap::new(),
            ops: std::collections::BTreeMap::new(),
            copies: std::vec![Vec::new(); config.copies as usize],
            answers: std::collections::BTreeMap::new(),
            copied: 0,
            checked: std::collections::BTreeMap::new(),
            ended: std::collections::BTreeMap::new(),
            changes: Vec::new(),
        });
        self.drain(self.targets.len() - 1);
    }

    /// Now and then the control plane gives up a copy while it takes the volume for a new target.
    fn give_up_some(&mut self) -> TargetRecord {
        let members: Vec<_> = self.record.set().replicas().iter().copied().collect();
        if self.targets.is_empty() || !self.stalls || !self.random.one_in(4) {
            return self.record.clone();
        }
        let one = members[self.random.below(members.len() as u64) as usize];
        match self.record.give_up(one) {
            Ok(record) => {
                self.say(format_args!("copy {one} is given up"));
                record
            }
            Err(_) => self.record.clone(),
        }
    }

    pub(super) fn submit(&mut self, target: usize, token: CommandId, op: HostOp) {
        let command = op.command;
        if self.loud {
            std::eprintln!("{:6} T{target} host {token:?} {command:?} {:?}", self.now, op.data);
        }
        if let Some(span) = command.span().filter(|_| command.is_mutation()) {
            for (nth, block) in (span.start().0..span.end().0).enumerate() {
                let stamp = op.data.get(nth).copied().unwrap_or(0);
                let at = (self.now, self.targets[target].epoch);
                self.history.began(op.number, block, stamp, at);
            }
        }
        if let Some(until) = self.paused.get(&self.targets[target].node).copied() {
            let delay = until.saturating_sub(self.now);
            return self.after(delay, Happening::Submit { target, token, op });
        }
        self.take(target, token, op);
    }

    /// A host's command has come to its target.
    pub(super) fn take(&mut self, target: usize, token: CommandId, op: HostOp) {
        if !self.targets[target].alive {
            return;
        }
        let (command, data) = (op.command, op.data.clone());
        self.targets[target].ops.insert(token, op);
        let now = self.clock(target);
        let mirror = &mut self.targets[target].mirror;
        let bypass_reads = self.bypass_reads.then(|| mirror.try_bypass(command, now)).flatten();
        if let Some(session) = bypass_reads {
            let io = RequestId(AROUND | token.0);
            let what = What::Command(command, Buffer::Host(token), data);
            self.launch(target, session, io, what);
            return self.drain(target);
        }
        self.targets[target].mirror.submit(token, command, now);
        self.drain(target);
    }

    /// A read that went around its mirror has ended.
    pub(super) fn bypass_done(
        &mut self,
        target: usize,
        (io, session): (RequestId, Session),
        result: Result<(), IoError>,
    ) {
        let (token, now) = (CommandId(io.0 & !AROUND), self.clock(target));
        let _ = self.targets[target].mirror.bypass_done(now);
        let mirror = &mut self.targets[target].mirror;
        let result = if mirror.may_answer(now) { result } else { Err(IoError::Unreachable) };
        if let Err(fault) = result {
            let command = self.targets[target].ops[&token].command;
            self.targets[target].mirror.bypass_failed(token, command, session, fault, now);
        } else {
            self.done(target, token, result);
        }
        self.drain(target);
    }

    /// Carries out everything a mirror asks for; it may die at any effect.
    pub(super) fn drain(&mut self, target: usize) {
        while let Some(effect) = self.targets[target].mirror.poll() {
            if self.trouble() && self.random.one_in(20) {
                self.say(format_args!("T{target} dies before {effect:?}"));
                self.targets[target].alive = false;
                return;
            }
            if self.loud {
                std::eprintln!("{:6} T{target} -> {effect:?}", self.now);
            }
            self.carry(target, effect);
        }
        let opened = self.targets[target].mirror.state() != TargetState::Init;
        if opened && !self.targets[target].opened {
            self.targets[target].opened = true;
            let epoch = self.targets[target].epoch;
            self.history.opened(epoch, self.now);
            self.found_reservations(target);
        }
    }

    fn carry(&mut self, target: usize, effect: Effect) {
        match effect {
            Effect::Attach { child, session, epoch } => {
                let disk = self.disk_of(child);
                self.targets[target].sessions.insert(session, disk);
                let delay = self.delay(disk);
                self.after(delay, Happening::Attach { target, disk, session, epoch });
            }
            Effect::Detach { session, .. } => self.detach(target, session),
            Effect::Io { io, session, command, buffer, .. } => {
                let from = &mut self.targets[target];
                let data = match buffer {
                    Buffer::Host(token) => from.ops[&token].data.clone(),
                    Buffer::Copy(slot) => from.copies[slot as usize].clone(),
                    Buffer::None => Vec::new(),
                };
                if let (Command::Write { span, .. }, Buffer::Copy(_)) = (command, buffer) {
                    from.copied += span.len().0;
                }
                self.launch(target, session, io, What::Command(command, buffer, data));
            }
            Effect::Written { io, session, span, .. } => {
                self.launch(target, session, io, What::Written(span));
            }
            Effect::Accept { io, session, span, is_damaged, .. } => {
                let accept = if is_damaged { What::AcceptDamaged } else { What::Accept };
                self.launch(target, session, io, accept(span));
            }
            Effect::Repair { io, session, at, buffer, .. } => {
                let data = self.targets[target].repairing(buffer);
                self.launch(target, session, io, What::Repair(at, data));
            }
            Effect::Keep { io, session, note, .. } => {
                self.launch(target, session, io, What::Keep(note));
            }
            Effect::Snapshot { io, session, snapshot, attempt, .. } => {
                self.launch(target, session, io, What::Snapshot(snapshot, attempt));
            }
            Effect::DropSnapshot { io, session, snapshot, .. } => {
                self.launch(target, session, io, What::Drop(snapshot));
            }
            Effect::Measure { io, session, .. } => self.launch(target, session, io, What::Measure),
            Effect::Record { io, record } => {
                let delay = self.delay(super::world::STORE);
                self.after(delay, Happening::Store { target, io, record: *record });
            }
            Effect::Done { token, result } => self.done(target, token, result),
            Effect::Answer { token, result } => {
                self.check_snapshot(target, token, result.is_ok());
                self.reserved(target, token, result.is_ok());
                let result = result.map_err(|problem| format!("{problem}"));
                self.targets[target].answers.insert(token, result);
            }
            Effect::ChildChanged(replica, state) => {
                self.targets[target].changes.push((replica, state));
            }
            Effect::Differing(span, replicas) => self.differ(target, span, &replicas),
            Effect::Checked { token, found } => {
                self.targets[target].checked.insert(token, *found);
            }
            Effect::TargetChanged(_)
            | Effect::RebuildChanged(_)
            | Effect::Repaired(..)
            | Effect::Conflict(_)
            | Effect::Accepted(..)
            | Effect::Kept(..)
            | Effect::Unreadable(_) => {}
        }
    }

    fn differ(&mut self, target: usize, span: Span, replicas: &[ReplicaId]) {
        match &mut self.differing {
            Some(found) => found.push(span),
            None => self.fail(format!("T{target} found {span} good and different on {replicas:?}")),
        }
    }

    /// A snapshot is on every copy in sync and the same there, or on none that this target has and
    /// that did not have it before. One that failed meanwhile may keep it.
    fn check_snapshot(&mut self, target: usize, token: CommandId, fine: bool) {
        let Some((id, had)) = self.snapshots.remove(&(target, token)) else { return };
        if self.record.epoch().number() != self.targets[target].epoch {
            // The store holds the record of another one.
            return;
        }
        let mirror = &self.targets[target].mirror;
        let size = mirror.geometry().blocks().0 as usize;
        let down = matches!(mirror.state(), TargetState::Shutdown { .. });
        let whole = |child: &ChildStatus| child.state == ChildState::InSync && !down;
        let has: BTreeSet<ReplicaId> = mirror
            .children()
            .iter()
            .filter(|child| whole(child))
            .map(|child| child.replica)
            .collect();
        let members = self.record.set().in_sync().iter();
        let members = members.filter(|replica| fine || has.contains(replica));
        let members = members.map(|replica| self.disk_of(*replica));
        let ours = |disk: &usize| {
            let owner = self.disks[*disk].owner;
            let is_ours = |(epoch, of, _)| of == target && epoch == self.record.epoch();
            fine || (owner.is_some_and(is_ours) && !had.contains(disk))
        };
        let taken: Vec<_> = members
            .filter(ours)
            .map(|disk| {
                self.disks[disk].snapshots.get(&id).map(|taken| taken.view[..size].to_vec())
            })
            .collect();
        let same = taken.windows(2).all(|pair| pair[0] == pair[1]);
        if !same || taken.iter().any(|view| view.is_some() != fine) {
            self.fail(format!("T{target} snapshot {id} answered {fine}: {taken:?}"));
        }
    }

    fn launch(&mut self, target: usize, session: Session, io: RequestId, what: What) {
        let disk = self.targets[target].sessions[&session];
        let buffer = match &what {
            What::Command(_, buffer, _) => *buffer,
            _ => Buffer::None,
        };
        self.asked += 1;
        self.targets[target].ios.insert(io, (disk, session, buffer));
        let delay = self.delay(disk);
        self.after(delay, Happening::Execute { target, disk, session, io, what });
    }

    /// Everything of the attachment ends, though some of it may still be on its way.
    fn detach(&mut self, target: usize, session: Session) {
        let of_it = self.targets[target].ios.iter().filter(|(_, (_, of, _))| *of == session);
        let ios: Vec<RequestId> = of_it.map(|(io, _)| *io).collect();
        for io in ios {
            let delay = self.random.below(5);
            self.deliver_later(delay, target, Event::Ended { io, result: Err(IoError::Aborted) });
        }
    }

    /// Disks that did not crash since the target attached them.
    fn attached_to(&self, target: usize) -> BTreeSet<usize> {
        let is_its = |disk: &Disk| disk.owner.is_some_and(|(_, by, _)| by == target);
        let disks = self.disks.iter().enumerate();
        disks.filter(|(_, disk)| is_its(disk)).map(|(nth, _)| nth).collect()
    }

    fn done(&mut self, target: usize, token: CommandId, result: Result<(), IoError>) {
        let from = &mut self.targets[target];
        let op = from.ops.remove(&token).expect("a command ends once");
        let held = from.ios.values().any(|(_, _, buffer)| *buffer == Buffer::Host(token));
        let epoch = from.epoch;
        from.ended.insert(token, (result, op.data.clone()));
        if held {
            self.fail(format!("T{target} answered {:?} while its buffer is in use", op.command));
        }
        let fine = result.is_ok();
        let span = op.command.span();
        let checked = match (op.command.kind(), span) {
            (CommandKind::Read, Some(span)) if fine => {
                let blocks = span.start().0..span.end().0;
                let seen: Vec<(u64, u64)> = blocks.zip(op.data.clone()).collect();
                let when = (op.begun, self.now);
                let there = self.attached_to(target);
                seen.into_iter().try_for_each(|(block, stamp)| {
                    let can_read = |disk: &usize| self.disks[*disk].can_read(block);
                    let there = there.iter().copied().filter(can_read).collect();
                    self.history.read(block, stamp, when, &there)
                })
            }
            (CommandKind::Write | CommandKind::Discard | CommandKind::WriteZeroes, Some(span)) => {
                for block in span.start().0..span.end().0 {
                    let how = (fine, op.command.is_durable());
                    self.history.ended(op.number, block, self.now, how);
                    // It may have rotted before the answer came.
                    let disks = self.disks.iter().enumerate();
                    for (disk, _) in disks.filter(|(_, disk)| disk.bad.contains(&block)) {
                        self.history.rotted(disk, block);
                    }
                }
                let now = self.now;
                if fine { self.history.acknowledged(epoch, op.begun, now) } else { Ok(()) }
            }
            (CommandKind::Flush, _) if fine => {
                self.history.flushed(op.begun);
                Ok(())
            }
            (CommandKind::Flush, _) => {
                if matches!(result, Err(IoError::Medium { .. })) {
                    self.history.told();
                }
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = checked {
            self.fail(format!("T{target}: {error}"));
        }
    }
}
