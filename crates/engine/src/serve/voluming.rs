//! Mirrored volumes of a core: opened, ordered about and closed from other threads.
//!
//! ```text
//!   Open ──► the mirror, then the subsystem of the volume ──► served
//!   Close ──► the mirror stops ──► the subsystem ends ──► forgotten
//! ```

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use model::{Kind, Problem, VolumeId};
use nvme::wire::Nqn;
use reactor::{Io, Mailbox, Undelivered};

use super::config::{Backing, Namespace, Subsystem};
use super::core::{Core, Message};
use super::orders::OrderError;
use super::pooling::core_of;
use super::reply::Promise;
use super::routes::{Claim, Routes};
use super::upkeep::post_patiently;
use crate::volumes::{Answer, Opening, Order, Reply, Status, not_open};

/// The namespace of a volume in its subsystem.
pub(super) const NSID: u32 = 1;

/// An order on its way to its core.
pub(super) enum VolumeOrder {
    Open(Claim, Box<Opening>, Reply),
    Order(VolumeId, Order, Reply),
    /// A mirror has stopped, or could not: its subsystem goes.
    Stopped(Claim, VolumeId, Reply),
}

/// The store's answer on its way to its core.
pub(super) struct StoreAnswer {
    of: (VolumeId, model::TargetId),
    io: mirror::Io,
    result: Result<(), mirror::StoreFault>,
}

/// Gives orders to the mirrored volumes of a running engine. Clones give orders to the same one.
#[derive(Clone)]
pub struct VolumeOrders {
    routes: Arc<Routes>,
    mailboxes: Arc<[Mailbox<Message>]>,
}

impl VolumeOrders {
    pub(super) fn new(routes: Arc<Routes>, mailboxes: &[Mailbox<Message>]) -> VolumeOrders {
        VolumeOrders { routes, mailboxes: mailboxes.into() }
    }

    /// Opens a target and serves its volume. Asking twice for the same target is harmless. If the
    /// engine stops first, the reply is dropped.
    pub fn open(&self, opening: Opening, reply: Reply) {
        let nqn = match name_of(opening.record.volume()) {
            Ok(nqn) => nqn,
            Err(problem) => return reply(Err(problem)),
        };
        let home = opening.home.map(|pool| core_of(pool, self.routes.cores()));
        let claim = self.routes.claim_or_choose(nqn, home);
        self.send(claim.core(), VolumeOrder::Open(claim, Box::new(opening), reply));
    }

    /// Gives an order to the target of a volume.
    pub fn order(&self, volume: VolumeId, order: Order, reply: Reply) {
        let core = name_of(volume).ok().and_then(|nqn| self.routes.core_of(&nqn));
        match core {
            Some(core) => self.send(core, VolumeOrder::Order(volume, order, reply)),
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
            self.send(core, VolumeOrder::Order(any, Order::List, reply));
            match answer.recv().ok()?.ok()? {
                Answer::All(all) => Some(all),
                _ => None,
            }
        };
        (0..self.mailboxes.len()).filter_map(ask).flatten().collect()
    }

    /// Opens a target and waits until that is answered; none if the engine stops.
    pub fn open_now(&self, opening: Opening) -> Option<Result<Answer, Problem>> {
        waiting(|reply| self.open(opening, reply))
    }

    /// Gives an order and waits for its answer; none if the engine stops.
    pub fn carry_out(&self, volume: VolumeId, order: Order) -> Option<Result<Answer, Problem>> {
        waiting(|reply| self.order(volume, order, reply))
    }

    fn send(&self, core: usize, order: VolumeOrder) {
        let Some(mailbox) = self.mailboxes.get(core) else { return };
        let message = Message::Volume(Box::new(order));
        if let Err(Undelivered::Full(Message::Volume(order))) = mailbox.post(message) {
            order.refuse(Problem::new(Kind::Overloaded, "too many orders wait; ask again"));
        }
    }
}

fn waiting(ask: impl FnOnce(Reply)) -> Option<Result<Answer, Problem>> {
    let (send, answer) = sync_channel(1);
    ask(Box::new(move |answer| {
        // Nobody is left who wants to know.
        let _ = send.send(answer);
    }));
    answer.recv().ok()
}

impl VolumeOrder {
    fn refuse(self, why: Problem) {
        match self {
            VolumeOrder::Open(_, _, reply)
            | VolumeOrder::Order(_, _, reply)
            | VolumeOrder::Stopped(_, _, reply) => reply(Err(why)),
        }
    }
}

impl Core {
    pub(super) fn volume_order(&mut self, order: VolumeOrder, io: &mut impl Io<Message = Message>) {
        if self.stopping.is_some() {
            return order.refuse(Problem::new(Kind::Unavailable, "the engine is stopping"));
        }
        match order {
            VolumeOrder::Open(claim, opening, reply) => {
                let answer = self.open_volume(&claim, *opening, io);
                self.spread_discovery();
                drop(claim);
                reply(answer);
            }
            VolumeOrder::Order(_, Order::List, reply) => {
                let all: Vec<VolumeId> = self.volumes.ids().collect();
                let all = all.into_iter().filter_map(|volume| self.status_of(volume)).collect();
                reply(Ok(Answer::All(all)));
            }
            VolumeOrder::Order(volume, Order::Status, reply) => {
                let status = self.status_of(volume).ok_or_else(|| not_open(volume));
                reply(status.map(|status| Answer::Status(Box::new(status))));
            }
            VolumeOrder::Order(volume, Order::Close, reply) => self.close_volume(volume, reply, io),
            VolumeOrder::Order(volume, Order::Mirror(mirror::Order::Resize(size)), reply) => {
                self.resize_volume(volume, size, reply, io);
            }
            VolumeOrder::Order(volume, order, reply) => {
                self.volumes.order(volume, order, reply, io);
            }
            VolumeOrder::Stopped(claim, volume, reply) => {
                self.volumes.close(volume, io);
                let answer = Box::new(move |answer: Result<_, OrderError>| {
                    let problem = |error: OrderError| Problem::new(Kind::Unavailable, error);
                    reply(answer.map(|_| Answer::Done).map_err(problem));
                });
                self.begin_removal(claim, Promise::calling(answer));
            }
        }
    }

    pub(super) fn store_answered(&mut self, answer: &StoreAnswer, io: &impl Io) {
        let StoreAnswer { of, io: name, result } = *answer;
        self.volumes.recorded(of, name, result, io);
    }

    fn open_volume(
        &mut self,
        claim: &Claim,
        opening: Opening,
        io: &mut impl Io,
    ) -> Result<Answer, Problem> {
        let id = opening.record.volume();
        let was_open = self.volumes.has(id);
        let (hosts, cntlids) = (opening.hosts.clone(), opening.cntlids);
        let (ids, ana) = (opening.ids, opening.ana);
        let Some(me) = self.mailboxes.get(self.me).cloned() else {
            return Err(Problem::new(Kind::Unavailable, "the engine is starting"));
        };
        let post = Arc::new(move |of, io, result| {
            post_patiently(&me, Message::Recorded(Box::new(StoreAnswer { of, io, result })));
        });
        let geometry = self.volumes.open(opening, post, io)?;
        if was_open {
            return Ok(Answer::Done);
        }
        let namespace = Namespace { backing: Backing::Volume { id, geometry }, ids, ana };
        let namespaces = [(NSID, namespace)].into();
        let answer = self.add(claim, &Subsystem { namespaces, hosts, cntlids }, io);
        answer.map(|_| Answer::Done).map_err(|error| {
            self.volumes.close(id, io);
            let kind = match error {
                OrderError::Leaving { .. } => Kind::Busy,
                OrderError::Full => Kind::Overloaded,
                _ => Kind::InUse,
            };
            Problem::new(kind, error)
        })
    }

    fn close_volume(&mut self, volume: VolumeId, reply: Reply, io: &mut impl Io) {
        let claim = name_of(volume).ok().and_then(|nqn| self.routes.claim(nqn));
        let (Some(claim), true) = (claim, self.volumes.has(volume)) else {
            return reply(Err(not_open(volume)));
        };
        let Some(me) = self.mailboxes.get(self.me).cloned() else { return };
        let stopped = Box::new(move |answer: Result<Answer, Problem>| match answer {
            Ok(_) => {
                let order = VolumeOrder::Stopped(claim, volume, reply);
                // This is the core itself, which cannot wait for itself.
                if let Err(Undelivered::Full(Message::Volume(order))) =
                    me.post(Message::Volume(Box::new(order)))
                {
                    order.refuse(Problem::new(Kind::Overloaded, "too much at once; ask again"));
                }
            }
            Err(problem) => reply(Err(problem)),
        });
        self.volumes.order(volume, Order::Close, stopped, io);
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
        let (routes, mailboxes) = (Arc::clone(&self.routes), self.mailboxes.clone());
        let grown = Box::new(move |answer: Result<Answer, Problem>| {
            if answer.is_ok() {
                let pending = super::Orders::new(routes, &mailboxes).grow(orders, NSID, bytes);
                // It goes on without anybody waiting; asking again for the size says whether.
                drop(pending);
            }
            reply(answer);
        });
        let order = Order::Mirror(mirror::Order::Resize(size));
        self.volumes.order(volume, order, grown, io);
    }

    fn status_of(&self, volume: VolumeId) -> Option<Status> {
        let mut status = self.volumes.status(volume)?;
        let nqn = name_of(volume).ok()?;
        let served = self.subsystems.iter().find(|(_, served)| *served.subsystem.nqn() == nqn);
        if let Some((_, served)) = served {
            let hosts = served.subsystem.controllers().map(|(_, one)| one.host().clone());
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
    Nqn::new(&name).map_err(|error| Problem::new(Kind::Internal, error))
}
