//! Carrying commands out.

use block::Command;

use super::super::command::{
    Answer, EVENT_REQUESTS, Outcome, Peer, Request, execute, execute_fused,
};
use super::super::event::{Event, Slot};
use super::super::subsystem::{Hold, HoldState, Subsystem};
use super::authentication::Authentication;
use super::slots::{Stage, Withdrawn};
use super::{Connection, Fence, Phase};
use crate::time::Instant;
use crate::wire::{Auth, FabricsType, IoOpcode, Sqe, Status};

/// A sign of life is noted at most this often, to keep it off the path of each command.
const TOUCH_EVERY: core::time::Duration = core::time::Duration::from_millis(100);

impl Connection {
    /// Carries out what can be carried out; gives the next thing for the driver to do.
    ///
    /// Call until there is nothing, after bytes were fed, after each completion, and when a
    /// [`Effect::Wake`](super::super::Effect::Wake) says so.
    pub fn poll(&mut self, subsystem: &mut Subsystem, now: Instant) -> Option<Event> {
        if self.epoch != subsystem.epoch() {
            self.epoch = subsystem.epoch();
            self.attend(subsystem);
        }
        if !self.fences.is_empty() || self.detached {
            self.settle(subsystem);
        }
        if !self.ready.is_empty() {
            self.touch(subsystem, now);
        }
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if let Some(event) = self.expand() {
                return Some(event);
            }
            let Phase::Live(peer) = self.phase else { return None };
            if self.must_wait(&peer, subsystem) {
                return None;
            }
            let Some(slot) = self.ready.pop_front() else {
                self.end_if_idle();
                return None;
            };
            let event = self.execute(slot, &peer, subsystem, now);
            if peer.qid == 0 {
                self.arm_keep_alive(subsystem);
            }
            if event.is_some() {
                return event;
            }
        }
    }

    /// Whether the next command is on a namespace whose reservations are not known yet. Those
    /// behind it wait as well: commands are judged in the order in which they came.
    #[inline]
    fn must_wait(&self, peer: &Peer, subsystem: &Subsystem) -> bool {
        if peer.qid == 0 || !subsystem.has_opening() {
            return false;
        }
        let next = self.ready.front().and_then(|slot| self.slots.get(*slot));
        next.is_some_and(|entry| {
            entry.sqe.opcode != Sqe::FABRICS && subsystem.is_opening(entry.sqe.nsid.get())
        })
    }

    fn touch(&mut self, subsystem: &mut Subsystem, now: Instant) {
        if let Phase::Live(peer) = self.phase
            && now.since(self.touched) >= TOUCH_EVERY
        {
            self.touched = now;
            if let Some(controller) = subsystem.controller(peer.cntlid) {
                controller.last_seen = now;
            }
        }
    }

    fn execute(
        &mut self,
        slot: Slot,
        peer: &Peer,
        subsystem: &mut Subsystem,
        now: Instant,
    ) -> Option<Event> {
        let entry = self.slots.get(slot)?;
        let sqe = entry.sqe;
        if !self.is_authenticated() && !is_authentication(&sqe) {
            self.finish_error(slot, Status::AUTHENTICATION_REQUIRED.do_not_retry());
            return None;
        }
        if let Some(compare) = entry.partner {
            return self.execute_pair(compare, slot, peer, subsystem);
        }
        let request = Request { sqe: &sqe, data: &entry.data, now };
        match execute(subsystem, peer, request) {
            Outcome::Device(command) => return self.issue(slot, &sqe, command),
            Outcome::Message(message) => {
                self.start_device(slot);
                self.slots.get_mut(slot)?.issued = 1;
                return Some(Event::Message { slot, nsid: sqe.nsid.get(), message });
            }
            Outcome::Answer(answer) => self.finish(slot, answer),
            Outcome::Last(answer) => self.finish_last(slot, answer),
            Outcome::Deallocate(ranges) => {
                self.start_device(slot);
                self.expanding = Some((slot, ranges));
            }
            Outcome::Hold(hold, answer) => self.hold((slot, hold, answer), subsystem),
            Outcome::AwaitEvent if self.waiting.len() >= EVENT_REQUESTS => {
                self.finish_error(slot, Status::ASYNC_LIMIT_EXCEEDED.do_not_retry());
            }
            Outcome::AwaitEvent => {
                self.park(slot);
                self.waiting.push_back(slot);
                self.deliver_events(subsystem, peer);
            }
            Outcome::AbortHere { cid } => self.abort_here(slot, cid),
            Outcome::Authenticate => self.on_auth(slot, &sqe),
            // Only pairs end so.
            Outcome::CompareAndWrite { .. } => self.finish_error(slot, Status::INTERNAL_ERROR),
        }
        None
    }

    fn issue(&mut self, slot: Slot, sqe: &Sqe, command: Command) -> Option<Event> {
        self.start_device(slot);
        let entry = self.slots.get_mut(slot)?;
        entry.issued = 1;
        if sqe.opcode == IoOpcode::Read.code() {
            entry.sends = sqe.sgl.length.get();
        }
        Some(Event::Io { slot, nsid: sqe.nsid.get(), command })
    }

    fn execute_pair(
        &mut self,
        compare: Slot,
        write: Slot,
        peer: &Peer,
        subsystem: &mut Subsystem,
    ) -> Option<Event> {
        let (first, second) = (self.slots.get(compare)?.sqe, self.slots.get(write)?.sqe);
        match execute_fused(subsystem, peer, &first, &second) {
            Outcome::CompareAndWrite { span, fua } => {
                self.start_device(write);
                self.park(compare);
                self.slots.get_mut(write)?.issued = 1;
                let nsid = second.nsid.get();
                Some(Event::CompareAndWrite { compare, write, nsid, span, fua })
            }
            Outcome::Answer(answer) => {
                self.refuse_command(compare, answer.status);
                None
            }
            Outcome::Hold(hold, answer) => {
                self.hold((compare, hold, answer), subsystem);
                None
            }
            _ => {
                self.refuse_command(compare, Status::INTERNAL_ERROR);
                None
            }
        }
    }

    /// The next range of a command that deallocates many.
    fn expand(&mut self) -> Option<Event> {
        let (slot, mut ranges) = self.expanding?;
        let entry = self.slots.get_mut(slot)?;
        let next = ranges.next(&entry.data);
        self.expanding = next.map(|_| (slot, ranges));
        if let Some(span) = next {
            entry.issued += 1;
            let nsid = entry.sqe.nsid.get();
            return Some(Event::Io { slot, nsid, command: Command::Discard { span } });
        }
        if entry.issued == 0 {
            self.device_done(slot);
        }
        None
    }

    /// The device is done with a command.
    pub(super) fn device_done(&mut self, slot: Slot) {
        let Some(entry) = self.slots.get_mut(slot) else { return };
        let status = entry.outcome();
        let partner = entry.partner.take();
        if !status.is_success() {
            entry.sends = 0;
        }
        let Some(compare) = partner else {
            self.finish_error(slot, status);
            return;
        };
        self.finish_error(compare, status);
        let failed = Status::ABORTED_FAILED_FUSED.do_not_retry();
        self.finish_error(slot, if status.is_success() { status } else { failed });
    }

    fn start_device(&mut self, slot: Slot) {
        self.issues += 1;
        let issued_at = self.issues;
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.stage = Stage::Device;
            entry.issued_at = issued_at;
        }
    }

    fn park(&mut self, slot: Slot) {
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.stage = Stage::Held;
        }
    }

    /// Looks at what the subsystem has for this connection.
    fn attend(&mut self, subsystem: &mut Subsystem) {
        let Phase::Live(peer) = self.phase else { return };
        if !subsystem.is_attached(self.id) {
            self.phase = Phase::Ending;
        }
        for cid in subsystem.take_aborts(self.id) {
            self.withdraw(|entry| entry.cid() == cid, Withdrawn::Aborted);
        }
        for (id, nsid) in subsystem.fences(self.id) {
            if self.fences.iter().all(|fence| fence.id != id) {
                self.fences.push(Fence { id, nsid, before: self.issues });
                self.stop_expanding(nsid);
                self.withdraw(|entry| entry.sqe.nsid.get() == nsid, Withdrawn::Preempted);
            }
        }
        self.answer_held(subsystem);
        self.deliver_events(subsystem, &peer);
    }

    /// Answers a command when nothing holds it up any more.
    fn hold(&mut self, held: (Slot, Hold, Answer), subsystem: &Subsystem) {
        self.park(held.0);
        self.held.push(held);
        self.answer_held(subsystem);
    }

    /// Refuses a command that was held up, and the one that it is fused with.
    fn refuse_held(&mut self, slot: Slot, status: Status) {
        if let Some(entry) = self.slots.get_mut(slot) {
            entry.stage = Stage::Ready;
        }
        self.refuse_command(slot, status);
    }

    /// Answers commands that nothing holds up any more.
    fn answer_held(&mut self, subsystem: &Subsystem) {
        for (slot, hold, answer) in core::mem::take(&mut self.held) {
            match subsystem.hold(hold) {
                HoldState::Waiting => self.held.push((slot, hold, answer)),
                HoldState::Over(Status::SUCCESS) if answer.status.is_success() => {
                    self.finish(slot, answer);
                }
                HoldState::Over(Status::SUCCESS) => self.refuse_held(slot, answer.status),
                HoldState::Over(status) => self.refuse_held(slot, status),
            }
        }
    }

    /// Passes the fences that nothing holds up any more.
    pub(super) fn settle(&mut self, subsystem: &mut Subsystem) {
        let (slots, direct) = (&self.slots, &self.direct);
        let conn = self.id;
        self.fences.retain(|fence| {
            let before = |(issue, nsid): (u64, &u32)| issue <= fence.before && *nsid == fence.nsid;
            let holds_up = direct.iter().any(before);
            let holds_up = holds_up
                || slots.iter().any(|(_, entry)| {
                    entry.stage == Stage::Device
                        && entry.sqe.nsid.get() == fence.nsid
                        && entry.issued_at <= fence.before
                });
            if !holds_up {
                subsystem.pass_fence(conn, fence.id);
            }
            holds_up
        });
        if self.detached && self.is_drained() {
            subsystem.drained(self.id);
        }
    }

    /// Asks the driver to hurry commands on the device.
    fn withdraw(&mut self, which: impl Fn(&super::Entry) -> bool, why: Withdrawn) {
        let hit = self.slots.iter().filter(|(_, entry)| entry.stage == Stage::Device);
        let hit = hit.filter(|(_, entry)| entry.withdrawn == Withdrawn::No && which(entry));
        let hit: alloc::vec::Vec<Slot> = hit.map(|(slot, _)| slot).collect();
        for slot in hit {
            if let Some(entry) = self.slots.get_mut(slot) {
                entry.withdrawn = why;
                self.events.push_back(Event::Cancel { slot });
            }
        }
    }

    /// No more ranges of a command on a namespace that changed hands.
    fn stop_expanding(&mut self, nsid: u32) {
        let Some((slot, _)) = self.expanding else { return };
        let Some(entry) = self.slots.get_mut(slot) else { return };
        if entry.sqe.nsid.get() != nsid {
            return;
        }
        self.expanding = None;
        entry.failure = entry.failure.or(Some(Status::ABORTED_PREEMPT.do_not_retry()));
        if entry.issued == 0 {
            self.device_done(slot);
        }
    }

    /// Answers event requests with events.
    fn deliver_events(&mut self, subsystem: &mut Subsystem, peer: &Peer) {
        if peer.qid != 0 {
            return;
        }
        let Some(controller) = subsystem.controller(peer.cntlid) else { return };
        while !self.waiting.is_empty()
            && let Some(event) = controller.events.take()
            && let Some(slot) = self.waiting.pop_front()
        {
            self.finish(slot, Answer::result(event.dw0().into()));
        }
    }

    /// Withdraws a command of this queue; on an admin queue only event requests take long.
    fn abort_here(&mut self, slot: Slot, cid: u16) {
        let slots = &self.slots;
        let is_hit = |waiting: &Slot| slots.get(*waiting).is_some_and(|one| one.cid() == cid);
        let found = self.waiting.iter().position(is_hit).and_then(|at| self.waiting.remove(at));
        // Bit 0 of the result: not aborted.
        self.finish(slot, Answer::result(u64::from(found.is_none())));
        if let Some(found) = found {
            self.finish_error(found, Status::ABORT_REQUESTED.do_not_retry());
        }
    }

    fn on_auth(&mut self, slot: Slot, sqe: &Sqe) {
        let args = Auth::from_sqe(sqe);
        if matches!(self.auth, Authentication::None) {
            self.finish_error(slot, Status::INVALID_OPCODE.do_not_retry());
            return;
        }
        if args.secp != Auth::SECP_NVME || args.spsp != Auth::SPSP || args.length == 0 {
            self.finish_error(slot, Status::INVALID_FIELD.do_not_retry());
            return;
        }
        if sqe.fctype() == FabricsType::AuthSend.code() {
            if self.auth_slot.is_some() {
                self.finish_error(slot, Status::SEQUENCE_ERROR.do_not_retry());
                return;
            }
            self.auth_slot = Some(slot);
            self.park(slot);
            self.events.push_back(Event::Entropy);
            return;
        }
        let Authentication::Here(auth) = &mut self.auth else {
            // The message before is still worked on.
            self.finish_error(slot, Status::SEQUENCE_ERROR.do_not_retry());
            return;
        };
        let room = args.length.min(sqe.sgl.length.get());
        match auth.on_receive(usize::try_from(room).unwrap_or(0)) {
            Ok(message) if auth.failure().is_some() => {
                self.finish_last(slot, Answer::data(message));
            }
            Ok(message) => self.finish(slot, Answer::data(message)),
            Err(_) => self.finish_error(slot, Status::INVALID_FIELD.do_not_retry()),
        }
    }
}

fn is_authentication(sqe: &Sqe) -> bool {
    let kind = FabricsType::from_code(sqe.fctype());
    sqe.opcode == Sqe::FABRICS
        && matches!(kind, Some(FabricsType::AuthSend | FabricsType::AuthReceive))
}
