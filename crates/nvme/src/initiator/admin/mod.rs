//! The admin queue of one controller.
//!
//! Invariants:
//! - One slot serves the script (bring-up, and looking again after an event), one the event
//!   request, one the keep-alive; the rest are for requests of the owner, so none starves another.
//! - Events are never lost: each has a mark that stays until its log was read.

mod request;
mod script;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Association;
use super::ana::AnaLog;
use super::connect::{ConnectRefused, Progress, QueueConnect, SLOT, Wanted};
use super::info::{ControllerInfo, Namespace};
use super::queue::{Queue, Shape};
use super::transfer::{Data, Outcome};
use super::transmit::{Lost, Need, Transmit};
use crate::auth::Entropy;
use crate::pdu::ADMIN_CAPSULE_DATA;
use crate::time::Instant;
use crate::wire::{AdminOpcode, AsyncEvent, CNTLID_DYNAMIC, Cc, ReservationNotice, Sqe};

pub use request::{AdminRequest, Answer, Ticket};
use script::{Known, Next, Step};

/// Entries of the admin queue.
const ENTRIES: u16 = 32;
const EVENT_SLOT: u16 = 1;
const ALIVE_SLOT: u16 = 2;
/// From here on, slots are for requests.
const FIRST_REQUEST: u16 = 3;

/// The admin queue of one controller: `Setup ─► Login ─► BringUp ─► Live ─► over`.
pub struct Admin {
    queue: Queue,
    connect: QueueConnect,
    keep_alive: Duration,
    known: Known,
    script: Script,
    live: bool,
    /// What to look at when the script is idle.
    due: Due,
    /// When the last keep-alive was sent, and whether it is still to be answered.
    alive: Option<Alive>,
    tickets: Vec<Option<Ticket>>,
    next_ticket: u64,
    namespaces: Vec<Namespace>,
    events: VecDeque<AdminEvent>,
    refused: Option<ConnectRefused>,
    told_over: bool,
}

enum Script {
    Idle,
    Running(Step),
    Waiting { step: Step, until: Instant },
}

#[derive(Clone, Copy, Default)]
struct Due {
    ana: bool,
    namespaces: bool,
    notice: bool,
}

#[derive(Clone, Copy)]
struct Alive {
    sent: Instant,
    answered: bool,
}

/// What became of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminEvent {
    /// Random bytes are needed: call [`Admin::authenticate`].
    Entropy,
    /// The controller is up; I/O queues may be connected.
    Ready {
        /// What it is.
        controller: ControllerInfo,
        /// What it has.
        namespaces: Vec<Namespace>,
        /// Which of it can be reached here; without a log, all.
        ana: Option<AnaLog>,
    },
    /// ANA states changed.
    Ana(AnaLog),
    /// Namespaces appeared, went or changed.
    Namespaces(Vec<Namespace>),
    /// The discovery log changed.
    Discovery,
    /// Somebody changed a reservation.
    Reservation(ReservationNotice),
    /// A request ended.
    Answered(Ticket, Answer),
    /// The controller cannot be used; the connection is closed.
    Refused(ConnectRefused),
    /// The connection is over.
    Lost(Lost),
}

impl Admin {
    /// A controller of the association's subsystem, whichever has room.
    pub fn new(association: Association) -> Admin {
        let options = association.options;
        let mut queue = Queue::new(Shape {
            slots: ENTRIES - 1,
            digests: options.digests,
            r2ts: options.r2ts,
            patience: options.admin_patience,
            quiet_reads: false,
        });
        queue.set_capsule_data(ADMIN_CAPSULE_DATA);
        let wanted = Wanted {
            qid: 0,
            entries: ENTRIES,
            cntlid: CNTLID_DYNAMIC,
            kato: u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX),
            quiet_reads: false,
        };
        Admin {
            queue,
            keep_alive: options.keep_alive,
            known: Known::new(association.subsystem.clone(), options.io_queues),
            connect: QueueConnect::new(association, wanted),
            script: Script::Idle,
            live: false,
            due: Due::default(),
            alive: None,
            tickets: vec![None; usize::from(ENTRIES)],
            next_ticket: 0,
            namespaces: Vec::new(),
            events: VecDeque::new(),
            refused: None,
            told_over: false,
        }
    }

    /// The socket is connected.
    pub fn start(&mut self, now: Instant) {
        self.queue.start(now);
    }

    /// Sends an admin command; nothing if the controller is not up or too many are at work.
    pub fn request(&mut self, now: Instant, request: AdminRequest) -> Option<Ticket> {
        if !self.live {
            return None;
        }
        let slot = (FIRST_REQUEST..self.queue.slots())
            .find(|slot| self.tickets.get(usize::from(*slot)).is_some_and(Option::is_none))?;
        let (sqe, data) = request.encode();
        if !self.queue.submit(slot, sqe, data, Some(now)) {
            return None;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        *self.tickets.get_mut(usize::from(slot))? = Some(ticket);
        Some(ticket)
    }

    /// Ends the association in good order: the answer to this request is the last sign of life.
    pub fn shut_down(&mut self, now: Instant) -> Option<Ticket> {
        let cc = Cc::ENABLE_NVM.with_normal_shutdown();
        self.request(now, AdminRequest::Configure { cc })
    }

    /// Looks at the ANA states again, also without an event; [`AdminEvent::Ana`] follows.
    pub fn refresh(&mut self, now: Instant) {
        if self.known.ana.is_some() {
            self.due.ana = true;
            self.look_again(now);
        }
    }

    /// Random bytes, asked for by [`AdminEvent::Entropy`].
    pub fn authenticate(&mut self, now: Instant, entropy: Entropy) {
        self.connect.authenticate(entropy, &mut self.queue, now);
    }

    /// What to do with bytes that arrive; never [`Need::Payload`].
    pub fn need(&mut self) -> Need {
        self.queue.need()
    }

    /// Takes bytes from the socket; returns how many.
    pub fn feed(&mut self, bytes: &[u8]) -> usize {
        self.queue.feed(bytes)
    }

    /// The next PDU to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.queue.poll_transmit()
    }

    /// When to call [`Admin::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = match self.script {
            Script::Waiting { until, .. } => Some(until),
            _ => None,
        };
        let alive = self.alive.filter(|_| self.queue.is_open()).map(|alive| self.alive_due(alive));
        [self.queue.poll_timeout(), waiting, alive].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.queue.handle_timeout(now);
        if let Script::Waiting { until, .. } = self.script
            && until <= now
            && let Script::Waiting { step, .. } = core::mem::replace(&mut self.script, Script::Idle)
        {
            self.run(step, now);
        }
        match self.alive {
            Some(alive) if self.alive_due(alive) <= now && self.queue.is_open() => {
                self.on_alive_due(alive, now);
            }
            _ => {}
        }
    }

    /// The socket is gone, or the controller is given up.
    pub fn close(&mut self) {
        self.queue.close(Lost::Closed, None);
    }

    /// What happened since the last call; to be called until there is nothing more.
    pub fn poll(&mut self, now: Instant) -> Option<AdminEvent> {
        self.connect.begin(&mut self.queue, now);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            let Some((slot, outcome)) = self.queue.poll_done() else { break };
            self.on_done(slot, outcome, now);
        }
        let over = self.queue.lost().filter(|_| !self.told_over)?;
        self.told_over = true;
        self.live = false;
        Some(self.refused.map_or(AdminEvent::Lost(over), AdminEvent::Refused))
    }

    fn on_done(&mut self, slot: u16, outcome: Outcome, now: Instant) {
        if !self.connect.is_done() {
            return self.on_login(outcome, now);
        }
        if let Some(ticket) = self.tickets.get_mut(usize::from(slot)).and_then(Option::take) {
            self.events.push_back(AdminEvent::Answered(ticket, answer(outcome)));
            return;
        }
        let Outcome::Answered { status, result, bytes } = outcome else { return };
        match slot {
            SLOT => {
                let Script::Running(step) = core::mem::replace(&mut self.script, Script::Idle)
                else {
                    return;
                };
                let next = self.known.on(step, status, (result, bytes), now);
                self.follow(next, now);
            }
            EVENT_SLOT if status.is_success() => self.on_event(result, now),
            // A controller that takes no event requests is not asked again.
            EVENT_SLOT => {}
            ALIVE_SLOT if status.is_success() => {
                if let Some(alive) = &mut self.alive {
                    alive.answered = true;
                }
            }
            _ => self
                .refuse(ConnectRefused::Command { step: "keeping the controller alive", status }),
        }
    }

    fn on_login(&mut self, outcome: Outcome, now: Instant) {
        match self.connect.on(outcome, &mut self.queue, now) {
            Progress::Pending => {}
            Progress::Entropy => self.events.push_back(AdminEvent::Entropy),
            Progress::Connected { .. } => {
                if !self.keep_alive.is_zero() {
                    self.alive = Some(Alive { sent: now, answered: true });
                }
                self.run(Step::Cap, now);
            }
            Progress::Refused(why) => self.refuse(why),
        }
    }

    fn follow(&mut self, next: Next, now: Instant) {
        match next {
            Next::Do(step) => return self.run(step, now),
            Next::Wait { step, until } => self.script = Script::Waiting { step, until },
            Next::Refused(why) => return self.refuse(why),
            Next::Ana(log) => {
                if self.live {
                    self.events.push_back(AdminEvent::Ana(log));
                }
                // What a namespace looks like may depend on whether it can be reached.
                return self.run(Step::List, now);
            }
            Next::Namespaces(found) => self.on_namespaces(found, now),
            Next::Notice(notice) => {
                self.events.push_back(AdminEvent::Reservation(notice));
                // There may be more of them.
                self.due.notice = true;
            }
            Next::Nothing => {}
        }
        self.look_again(now);
    }

    fn on_namespaces(&mut self, found: Vec<Namespace>, now: Instant) {
        if self.live {
            if found != self.namespaces {
                self.namespaces.clone_from(&found);
                self.events.push_back(AdminEvent::Namespaces(found));
            }
            return;
        }
        let Some(controller) = self.known.controller.clone() else { return };
        self.live = true;
        self.namespaces.clone_from(&found);
        self.ask_for_event();
        let ana = self.known.ana.clone();
        self.events.push_back(AdminEvent::Ready { controller, namespaces: found, ana });
        self.look_again(now);
    }

    fn on_event(&mut self, result: u64, now: Instant) {
        let dw0 = u32::try_from(result & u64::from(u32::MAX)).unwrap_or_default();
        match AsyncEvent::from_dw0(dw0) {
            Some(AsyncEvent::AnaChanged) => self.due.ana = true,
            Some(AsyncEvent::NamespaceChanged) => self.due.namespaces = true,
            Some(AsyncEvent::ReservationNotice) => self.due.notice = true,
            Some(AsyncEvent::DiscoveryChanged) => self.events.push_back(AdminEvent::Discovery),
            None => {}
        }
        self.ask_for_event();
        self.look_again(now);
    }

    /// Starts the next look, if one is due and none is under way.
    fn look_again(&mut self, now: Instant) {
        if !self.live || !matches!(self.script, Script::Idle) {
            return;
        }
        let due = &mut self.due;
        let (mark, step) = if due.ana {
            (&mut due.ana, Step::Ana)
        } else if due.namespaces {
            (&mut due.namespaces, Step::Changed)
        } else if due.notice {
            (&mut due.notice, Step::Notice)
        } else {
            return;
        };
        *mark = false;
        self.run(step, now);
    }

    fn run(&mut self, step: Step, now: Instant) {
        let (sqe, data) = self.known.command(&step);
        if self.queue.submit(SLOT, sqe, data, Some(now)) {
            self.script = Script::Running(step);
        }
    }

    fn ask_for_event(&mut self) {
        let sqe = Sqe::new(AdminOpcode::AsyncEventRequest.code(), 0);
        self.queue.submit(EVENT_SLOT, sqe, Data::None, None);
    }

    /// When a keep-alive is to be sent, or the last one is overdue.
    fn alive_due(&self, alive: Alive) -> Instant {
        let wait = if alive.answered { self.keep_alive / 2 } else { self.keep_alive };
        alive.sent.after(wait)
    }

    fn on_alive_due(&mut self, alive: Alive, now: Instant) {
        if !alive.answered {
            self.queue.close(Lost::TimedOut, Some(now));
            return;
        }
        let sqe = Sqe::new(AdminOpcode::KeepAlive.code(), 0);
        self.queue.submit(ALIVE_SLOT, sqe, Data::None, Some(now));
        self.alive = Some(Alive { sent: now, answered: false });
    }

    fn refuse(&mut self, why: ConnectRefused) {
        self.refused = Some(why);
        self.close();
    }
}

fn answer(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Answered { status, result, bytes } if status.is_success() => {
            Answer::Done { result, bytes }
        }
        Outcome::Answered { status, .. } => Answer::Failed(status),
        Outcome::Lost(why) => Answer::Lost(why),
    }
}

#[cfg(test)]
mod tests;
