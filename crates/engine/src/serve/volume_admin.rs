//! Mirrored volumes of a core: opened, ordered about and closed from other threads.
//!
//! ```text
//!   Open ──► the mirror, then the subsystem of the volume ──► served
//!   Close ──► the mirror stops ──► the subsystem ends ──► forgotten
//! ```

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use model::{Problem, ProblemKind, VolumeId};
use nvme::wire::Nqn;
use reactor::{Io, Mailbox, Undelivered};

use super::config::{Backing, Namespace, Subsystem};
use super::directory::{Pin, SubsystemDirectory};
use super::handle::AdminError;
use super::pool_admin::core_of;
use super::reply::Promise;
use super::shard::{Message, Shard};
use super::timers::post_patiently;
use crate::volumes::{OpenRequest, Reply, Status, VolumeRequest, VolumeResponse, not_open};

/// The namespace of a volume in its subsystem.
pub(super) const NSID: u32 = 1;

/// An order on its way to its core.
pub(super) enum VolumeMessage {
    Open(Pin, Box<OpenRequest>, Reply),
    Order(VolumeId, VolumeRequest, Reply),
    /// A mirror has stopped, or could not: its subsystem goes.
    Stopped(Pin, VolumeId, Reply),
}

/// The store's answer on its way to its core.
pub(super) struct StoreAnswer {
    of: (VolumeId, model::TargetId),
    io: mirror::RequestId,
    result: Result<(), mirror::StoreFault>,
}

/// Gives orders to the mirrored volumes of a running engine. Clones give orders to the same one.
#[derive(Clone)]
pub struct VolumeHandle {
    directory: Arc<SubsystemDirectory>,
    mailboxes: Arc<[Mailbox<Message>]>,
}

impl VolumeHandle {
    pub(super) fn new(
        directory: Arc<SubsystemDirectory>,
        mailboxes: &[Mailbox<Message>],
    ) -> VolumeHandle {
        VolumeHandle { directory, mailboxes: mailboxes.into() }
    }

    /// Opens a target and serves its volume. Asking twice for the same target is harmless. If the
    /// engine stops first, the reply is dropped.
    pub fn open(&self, opening: OpenRequest, reply: Reply) {
        let nqn = match name_of(opening.record.volume()) {
            Ok(nqn) => nqn,
            Err(problem) => return reply(Err(problem)),
        };
        let home = opening.home.map(|pool| core_of(pool, self.directory.cores()));
        let pin = self.directory.pin_or_choose(nqn, home);
        self.send(pin.core(), VolumeMessage::Open(pin, Box::new(opening), reply));
    }

    /// Gives an order to the target of a volume.
    pub fn request(&self, volume: VolumeId, order: VolumeRequest, reply: Reply) {
        let core = name_of(volume).ok().and_then(|nqn| self.directory.core_of(&nqn));
        match core {
            Some(core) => self.send(core, VolumeMessage::Order(volume, order, reply)),
            None => reply(Err(not_open(volume))),
        }
    }

    /// All targets.
    pub fn list(&self) -> Vec<Status> {
        let ask = |core| {
            let (send, answer) = sync_channel(1);
            let reply = Box::new(move |answer| {
                // Nobody is left who wants to know.
                let _ = send.send(answer);
            });
            // No volume has this id, and a list needs none.
            let any = VolumeId::new(uuid::Uuid::max()).ok()?;
            self.send(core, VolumeMessage::Order(any, VolumeRequest::List, reply));
            match answer.recv().ok()?.ok()? {
                VolumeResponse::All(all) => Some(all),
                _ => None,
            }
        };
        (0..self.mailboxes.len()).filter_map(ask).flatten().collect()
    }

    /// Opens a target and waits until that is answered; none if the engine stops.
    pub fn open_now(&self, opening: OpenRequest) -> Option<Result<VolumeResponse, Problem>> {
        waiting(|reply| self.open(opening, reply))
    }

    /// Gives an order and waits for its answer; none if the engine stops.
    pub fn carry_out(
        &self,
        volume: VolumeId,
        order: VolumeRequest,
    ) -> Option<Result<VolumeResponse, Problem>> {
        waiting(|reply| self.request(volume, order, reply))
    }

    fn send(&self, core: usize, order: VolumeMessage) {
        let Some(mailbox) = self.mailboxes.get(core) else { return };
        let message = Message::Volume(Box::new(order));
        if let Err(Undelivered::Full(Message::Volume(order))) = mailbox.post(message) {
            order.refuse(Problem::new(ProblemKind::Overloaded, "too many orders wait; ask again"));
        }
    }
}

fn waiting(ask: impl FnOnce(Reply)) -> Option<Result<VolumeResponse, Problem>> {
    let (send, answer) = sync_channel(1);
    ask(Box::new(move |answer| {
        // Nobody is left who wants to know.
        let _ = send.send(answer);
    }));
    answer.recv().ok()
}

impl VolumeMessage {
    fn refuse(self, why: Problem) {
        match self {
            VolumeMessage::Open(_, _, reply)
            | VolumeMessage::Order(_, _, reply)
            | VolumeMessage::Stopped(_, _, reply) => reply(Err(why)),
        }
    }
}

impl Shard {
    pub(super) fn volume_request(
        &mut self,
        order: VolumeMessage,
        io: &mut impl Io<Message = Message>,
    ) {
        if self.stopping.is_some() {
            return order.refuse(Problem::new(ProblemKind::Unavailable, "the engine is stopping"));
        }
        match order {
            VolumeMessage::Open(pin, opening, reply) => {
                let answer = self.open_volume(&pin, *opening, io);
                self.spread_discovery();
                drop(pin);
                reply(answer);
            }
            VolumeMessage::Order(_, VolumeRequest::List, reply) => {
                let all: Vec<VolumeId> = self.volumes.ids().collect();
                let all = all.into_iter().filter_map(|volume| self.status_of(volume)).collect();
                reply(Ok(VolumeResponse::All(all)));
            }
            VolumeMessage::Order(volume, VolumeRequest::Status, reply) => {
                let status = self.status_of(volume).ok_or_else(|| not_open(volume));
                reply(status.map(|status| VolumeResponse::Status(Box::new(status))));
            }
            VolumeMessage::Order(volume, VolumeRequest::Close, reply) => {
                self.close_volume(volume, reply, io);
            }
            VolumeMessage::Order(
                volume,
                VolumeRequest::Mirror(mirror::MirrorRequest::Resize(size)),
                reply,
            ) => {
                self.resize_volume(volume, size, reply, io);
            }
            VolumeMessage::Order(volume, order, reply) => {
                self.volumes.request(volume, order, reply, io);
            }
            VolumeMessage::Stopped(pin, volume, reply) => {
                self.volumes.close(volume, io);
                let answer = Box::new(move |answer: Result<_, AdminError>| {
                    let problem = |error: AdminError| Problem::new(ProblemKind::Unavailable, error);
                    reply(answer.map(|_| VolumeResponse::Done).map_err(problem));
                });
                self.begin_removal(pin, Promise::calling(answer));
            }
        }
    }

    pub(super) fn store_answered(&mut self, answer: &StoreAnswer, io: &impl Io) {
        let StoreAnswer { of, io: name, result } = *answer;
        self.volumes.recorded(of, name, result, io);
    }

    fn open_volume(
        &mut self,
        pin: &Pin,
        opening: OpenRequest,
        io: &mut impl Io,
    ) -> Result<VolumeResponse, Problem> {
        let id = opening.record.volume();
        let was_open = self.volumes.has(id);
        let (hosts, cntlids) = (opening.hosts.clone(), opening.cntlids);
        let (ids, ana) = (opening.ids, opening.ana);
        let Some(me) = self.mailboxes.get(self.me).cloned() else {
            return Err(Problem::new(ProblemKind::Unavailable, "the engine is starting"));
        };
        let post = Arc::new(move |of, io, result| {
            post_patiently(&me, Message::Recorded(Box::new(StoreAnswer { of, io, result })));
        });
        let geometry = self.volumes.open(opening, post, io)?;
        if was_open {
            return Ok(VolumeResponse::Done);
        }
        let namespace = Namespace { backing: Backing::Volume { id, geometry }, ids, ana };
        let namespaces = [(NSID, namespace)].into();
        let answer = self.add(pin, &Subsystem { namespaces, hosts, cntlids }, io);
        answer.map(|_| VolumeResponse::Done).map_err(|error| {
            self.volumes.close(id, io);
            let kind = match error {
                AdminError::Leaving { .. } => ProblemKind::Busy,
                AdminError::Full => ProblemKind::Overloaded,
                _ => ProblemKind::InUse,
            };
            Problem::new(kind, error)
        })
    }

    fn close_volume(&mut self, volume: VolumeId, reply: Reply, io: &mut impl Io) {
        let pin = name_of(volume).ok().and_then(|nqn| self.directory.pin(nqn));
        let (Some(pin), true) = (pin, self.volumes.has(volume)) else {
            return reply(Err(not_open(volume)));
        };
        let Some(me) = self.mailboxes.get(self.me).cloned() else { return };
        let stopped = Box::new(move |answer: Result<VolumeResponse, Problem>| match answer {
            Ok(_) => {
                let order = VolumeMessage::Stopped(pin, volume, reply);
                // This is the core itself, which cannot wait for itself.
                if let Err(Undelivered::Full(Message::Volume(order))) =
                    me.post(Message::Volume(Box::new(order)))
                {
                    order.refuse(Problem::new(
                        ProblemKind::Overloaded,
                        "too much at once; ask again",
                    ));
                }
            }
            Err(problem) => reply(Err(problem)),
        });
        self.volumes.request(volume, VolumeRequest::Close, stopped, io);
    }

    /// The mirror first, then what hosts see.
    fn resize_volume(
        &mut self,
        volume: VolumeId,
        size: block::Blocks,
        reply: Reply,
        io: &mut impl Io,
    ) {
        let Some(orders) = name_of(volume).ok() else { return reply(Err(not_open(volume))) };
        let bytes = block::Bytes(size.0.saturating_mul(4096));
        let (directory, mailboxes) = (Arc::clone(&self.directory), self.mailboxes.clone());
        let grown = Box::new(move |answer: Result<VolumeResponse, Problem>| {
            if answer.is_ok() {
                let pending =
                    super::TargetHandle::new(directory, &mailboxes).grow(orders, NSID, bytes);
                // It goes on without anybody waiting; asking again for the size says whether.
                drop(pending);
            }
            reply(answer);
        });
        let order = VolumeRequest::Mirror(mirror::MirrorRequest::Resize(size));
        self.volumes.request(volume, order, grown, io);
    }

    fn status_of(&self, volume: VolumeId) -> Option<Status> {
        let mut status = self.volumes.status(volume)?;
        let nqn = name_of(volume).ok()?;
        let exported =
            self.subsystems.iter().find(|(_, exported)| *exported.subsystem.nqn() == nqn);
        if let Some((_, exported)) = exported {
            let hosts = exported.subsystem.controllers().map(|(_, one)| one.host().clone());
            status.hosts = hosts.collect();
            status.hosts.sort();
            status.hosts.dedup();
        }
        Some(status)
    }
}

/// The name of the subsystem of a volume.
pub(super) fn name_of(volume: VolumeId) -> Result<Nqn, Problem> {
    let name = model::Nqn::volume(volume).to_string();
    Nqn::new(&name).map_err(|error| Problem::new(ProblemKind::Internal, error))
}
