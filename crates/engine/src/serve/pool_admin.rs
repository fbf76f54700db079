//! Pools of a core: opened before anything is served, then ordered about from other threads.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use pool::{Change, Id};
use reactor::{Event, Handler, Io, Key, Mailbox, Reactor, Undelivered};

use super::config::{Config, Pool};
use super::host_connection::{JobOrigin, Owner};
use super::messages::Answering;
use super::shard::{Message, Shard};
use super::{POOL, StartError};
use crate::device::Devices;
use crate::pools::{PoolError, PoolRequest, PoolResponse, Ticket};
use crate::startup_retry::StartupRetry;

/// Most orders to pools of a core at once.
pub(super) const MOST_ASKED: u32 = 1024;

/// On which of so many cores a pool is.
pub(super) fn core_of(pool: Id, cores: usize) -> usize {
    let cores = u128::try_from(cores.max(1)).unwrap_or(1);
    usize::try_from(pool.0 % cores).unwrap_or(0)
}

/// What is called with the answer, on the thread of the core: it must not wait.
pub(super) type Reply = Box<dyn FnOnce(Result<PoolResponse, PoolError>) + Send>;

/// An order to a pool on its way to its core.
pub(super) struct PoolMessage {
    order: PoolRequest,
    reply: Reply,
}

/// Who waits for an answer of a pool.
pub(super) enum PoolCaller {
    /// Somebody on another thread.
    Caller(Reply),
    /// A subsystem whose reservations shall be kept.
    Kept { subsystem: Key, nsid: u32, version: u64 },
    /// A target that sent a message.
    Target(Owner, Answering),
}

/// Reservations that are to be kept: with which replica of which pool, and for whom.
pub(super) type ToKeep = ((Id, Id), Vec<u8>, PoolCaller);

/// Gives orders to the pools of a running engine. Clones give orders to the same one.
#[derive(Clone)]
pub struct PoolHandle {
    mailboxes: Arc<[Mailbox<Message>]>,
}

impl PoolHandle {
    pub(super) fn new(mailboxes: &[Mailbox<Message>]) -> PoolHandle {
        PoolHandle { mailboxes: mailboxes.into() }
    }

    /// Gives an order about a pool; `pool` is its id, also if it is to be opened or made. If the
    /// engine stops first, the reply is dropped.
    pub fn request(
        &self,
        pool: Id,
        order: PoolRequest,
        reply: Box<dyn FnOnce(Result<PoolResponse, PoolError>) + Send>,
    ) {
        let Some(mailbox) = self.mailboxes.get(core_of(pool, self.mailboxes.len())) else { return };
        let message = Message::Pool(Box::new(PoolMessage { order, reply }));
        if let Err(Undelivered::Full(Message::Pool(back))) = mailbox.post(message) {
            (back.reply)(Err(PoolError::Full));
        }
    }

    /// Gives an order and waits for its answer; none if the engine stops.
    pub fn carry_out(
        &self,
        pool: Id,
        order: PoolRequest,
    ) -> Option<Result<PoolResponse, PoolError>> {
        let (reply, answer) = sync_channel(1);
        let reply = Box::new(move |answer| {
            // Nobody is left who wants to know.
            let _ = reply.send(answer);
        });
        self.request(pool, order, reply);
        answer.recv().ok()
    }
}

impl Shard {
    pub(super) fn pool_request(&mut self, order: PoolMessage, io: &mut impl Io) {
        let PoolMessage { order, reply } = order;
        self.ask_pool(order, PoolCaller::Caller(reply), io);
    }

    pub(super) fn ask_pool(&mut self, order: PoolRequest, asked: PoolCaller, io: &mut impl Io) {
        match self.asked.insert(asked) {
            Ok(key) => self.devices.pools.request(Ticket(key.to_bits()), order, io),
            Err(asked) => self.answer_pool(asked, Err(PoolError::Full)),
        }
    }

    fn answer_pool(&mut self, asked: PoolCaller, answer: Result<PoolResponse, PoolError>) {
        match asked {
            PoolCaller::Caller(reply) => reply(answer),
            PoolCaller::Kept { subsystem, nsid, version } => {
                if let Err(error) = &answer {
                    tracing::error!(%error, "reservations cannot be kept with their replica");
                }
                if let Some(exported) = self.subsystems.get_mut(subsystem) {
                    exported.subsystem.persisted(nsid, version, answer.is_ok());
                }
                self.effects(subsystem);
            }
            PoolCaller::Target(owner, answering) => self.answer_target(owner, answering, answer),
        }
    }

    /// Hands out answers of pools, and has reservations kept.
    pub(super) fn pool_answers(&mut self, io: &mut impl Io) {
        for ((pool, id), share, asked) in core::mem::take(&mut self.to_keep) {
            let change = Change::Share { id, share };
            self.ask_pool(PoolRequest::Change { pool, change }, asked, io);
        }
        while let Some((Ticket(ticket), answer)) = self.devices.pools.poll_answer() {
            if let Some(asked) = self.asked.remove(Key::from_bits(ticket)) {
                self.answer_pool(asked, answer);
            }
        }
    }
}

/// Opens the pools of a core before anything is served.
pub(super) fn open(
    config: &Config,
    core: usize,
    devices: &mut Devices<JobOrigin>,
    reactor: &mut Reactor<Message>,
) -> Result<(), StartError> {
    let mine = |pool: &&Pool| core_of(pool.id, config.cores.len()) == core;
    for pool in config.pools.iter().filter(mine) {
        open_when_free(pool, devices, reactor)
            .map_err(|source| StartError::Pool { name: format!("{:032x}", pool.id.0), source })?;
    }
    Ok(())
}

/// Opens a pool, with patience.
fn open_when_free(
    pool: &Pool,
    devices: &mut Devices<JobOrigin>,
    reactor: &mut Reactor<Message>,
) -> Result<(), PoolError> {
    let patience = StartupRetry::begin();
    loop {
        let opened = open_one(pool, devices, reactor);
        let in_use = matches!(opened, Err(PoolError::InUse { .. }));
        match patience.pause().filter(|_| in_use) {
            Some(pause) => std::thread::sleep(pause),
            None => return opened,
        }
    }
}

fn open_one(
    pool: &Pool,
    devices: &mut Devices<JobOrigin>,
    reactor: &mut Reactor<Message>,
) -> Result<(), PoolError> {
    let mut starting = Starting { devices };
    let PoolResponse::Pool(status) = starting.carry_out(pool.open.clone(), reactor)? else {
        return Err(PoolError::NotFound);
    };
    let id = status.id;
    tracing::info!(pool = status.name, replicas = status.entities.len(), "open");
    if status.health.doubtful_regions > 0 {
        tracing::warn!(
            pool = status.name,
            regions = status.health.doubtful_regions,
            "pool was not closed cleanly; verifying blocks that were being written"
        );
        starting.carry_out(PoolRequest::NarrowDoubt(id), reactor)?;
    }
    for new in &pool.replicas {
        if !status.entities.iter().any(|one| one.entity.id == new.id) {
            let mut new = new.clone();
            if let Some(Some(key)) = pool.keys.get(&new.id) {
                new.key = key.new_data_key()?;
            }
            let change = Change::Create(new);
            starting.carry_out(PoolRequest::Change { pool: id, change }, reactor)?;
        }
    }
    for (replica, key) in &pool.keys {
        let question = PoolRequest::Entity { pool: id, id: *replica };
        let PoolResponse::Entity(found) = starting.carry_out(question, reactor)? else { continue };
        match (key, found.entity.is_encrypted()) {
            (None, false) => {}
            (None, true) => return Err(PoolError::NeedsKey),
            (Some(_), false) => return Err(PoolError::NotEncrypted),
            (Some(key), true) => {
                let unlock = PoolRequest::Unlock { pool: id, id: *replica, key: key.clone() };
                starting.carry_out(unlock, reactor)?;
            }
        }
    }
    Ok(())
}

/// The handler while nothing but pools is there.
struct Starting<'a> {
    devices: &'a mut Devices<JobOrigin>,
}

impl Starting<'_> {
    fn carry_out(
        &mut self,
        order: PoolRequest,
        reactor: &mut Reactor<Message>,
    ) -> Result<PoolResponse, PoolError> {
        self.devices.pools.request(Ticket(0), order, reactor);
        loop {
            if let Some((_, answer)) = self.devices.pools.poll_answer() {
                return answer;
            }
            reactor.turn(self).map_err(PoolError::Reactor)?;
        }
    }
}

impl Handler for Starting<'_> {
    type Message = Message;

    fn on(&mut self, event: Event<Message>, io: &mut impl Io<Message = Message>) {
        if let Event::Done { token, outcome } = event
            && let (POOL, key) = token.parts()
        {
            self.devices.pools.on(key, outcome, io);
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = Message>) -> bool {
        self.devices.retry(io);
        true
    }
}
