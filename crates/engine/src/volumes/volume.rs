//! One volume on its reactor: carries out what its mirror asks for.
//!
//! Invariants:
//! - The bytes of a host's command are here until it is done, or with the one child that reads into
//!   them. Writes to several children share them without a copy.
//! - Everything that a mirror asked of a child ends once, see [`ReplicaConnection`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use block::{Instant, IoError};
use mirror::{
    Answer as Ended, AttachFault, Attempt, Buffer, CommandId, Effect, Event, Mirror, Readiness,
    Session,
};
use model::{FaultReason, Problem, ReplicaId, TargetId, TargetState, VolumeId};
use nvme::initiator::{Host, Options};
use nvme::wire::Nqn;
use reactor::{Io, Key, SharedBuffer, Slab};

use super::damage::Found;
use super::host_command::HostCommand;
use super::record_store::RecordStore;
use super::replica_connection::{ConnectionEvent, NSID, ReplicaConnection};
use super::replica_protocol::{self, ReplicaMessage};
use super::request::{
    EventKind, OpenRequest, ReplicaPath, Reply, SnapshotCommand, VolumeEvent, VolumeRequest,
    VolumeResponse,
};
use super::reservation::ReservationRequest;
use super::{Post, Shared};
use crate::client::{Controller, Request};
use crate::clock::{instant, wall};
use crate::counters::{Counters, OpTimer};
use crate::device::{Data, ForVolume};
use crate::entropy;
use crate::pools::CompletedCommand;

/// Bytes of a block.
pub(super) const BLOCK: u64 = 4096;
/// Names of orders; those of host commands are smaller.
const ORDERS: u64 = 1 << 63;
/// Most orders under way.
const MOST_ORDERS: usize = 64;
/// Room of a connection to a replica.
const QUEUE: u16 = 256;
/// How long a replica may take for a command before it is lost.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A volume.
pub(super) struct Volume {
    id: VolumeId,
    target: TargetId,
    node: Nqn,
    pub(super) mirror: Mirror,
    /// When it wants the time, as its core knows.
    pub(super) due: Option<Instant>,
    /// Whether its core knows that it has something to do.
    pub(super) is_touched: bool,
    ways: BTreeMap<ReplicaId, ReplicaPath>,
    pub(super) children: BTreeMap<Session, ReplicaConnection>,
    /// Attachments that have something to do, and those that have something to send.
    touched: Vec<Session>,
    unsettled: Vec<Session>,
    pub(super) host_commands: Slab<HostCommand>,
    /// The bytes of copies, by number.
    pub(super) copies: BTreeMap<u32, SharedBuffer>,
    /// I/Os that wait for memory.
    waiting_for_memory: VecDeque<Effect>,
    orders: BTreeMap<u64, Reply>,
    pub(super) next_order: u64,
    /// Reservations that are being kept.
    pub(super) reserving: BTreeMap<u64, ReservationRequest>,
    /// As the core knows it.
    pub(super) readiness: Readiness,
    /// The snapshot that is being taken: by which order, and by whom so far.
    pub(super) taking: Option<(u64, SnapshotCommand, BTreeSet<ReplicaId>)>,
    pub(super) damage: Found,
    #[cfg(feature = "faults")]
    pub(super) struck: super::injected_faults::InjectedFaults,
    pub(super) counters: Counters,
    pub(super) by_child: BTreeMap<ReplicaId, Counters>,
    recorder: Arc<dyn RecordStore>,
    post: Post,
    news: SyncSender<VolumeEvent>,
}

impl Volume {
    pub(super) fn open(opening: OpenRequest, post: Post, now: Instant) -> Result<Volume, Problem> {
        let OpenRequest { record, size, children, node, limits, config, recorder, news, .. } =
            opening;
        let ways = children.iter().map(|(replica, way)| (*replica, way.local)).collect();
        let (id, target) = (record.volume(), record.target());
        let most = u32::try_from(config.commands).unwrap_or(u32::MAX);
        let wall = wall();
        let of_mirror = mirror::OpenParams { record, size, children: ways, limits, config, wall };
        Ok(Volume {
            id,
            target,
            node,
            mirror: Mirror::open(of_mirror, now)?,
            due: None,
            ways: children,
            children: BTreeMap::new(),
            is_touched: false,
            touched: Vec::new(),
            unsettled: Vec::new(),
            host_commands: Slab::new(most),
            copies: BTreeMap::new(),
            waiting_for_memory: VecDeque::new(),
            orders: BTreeMap::new(),
            next_order: ORDERS,
            reserving: BTreeMap::new(),
            readiness: Readiness::Opening,
            taking: None,
            damage: Found::default(),
            #[cfg(feature = "faults")]
            struck: super::injected_faults::InjectedFaults::default(),
            counters: Counters::default(),
            by_child: BTreeMap::new(),
            recorder,
            post,
            news,
        })
    }

    pub(super) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    pub(super) fn id(&self) -> VolumeId {
        self.id
    }

    pub(super) fn target(&self) -> TargetId {
        self.target
    }

    /// Takes a host's command; whether that leaves something to do.
    pub(super) fn submit(&mut self, asked: ForVolume, shared: &mut Shared, now: Instant) -> bool {
        let ForVolume { owner, command, data, .. } = asked;
        let counted = OpTimer::new(command, now);
        let host_commands = HostCommand { owner, command, counted, around: None, data: Data::None };
        let Ok(key) = self.host_commands.insert(host_commands) else {
            shared.ended.push_back(CompletedCommand {
                owner,
                completion: Err(IoError::Busy),
                data,
            });
            return false;
        };
        let asked = self.try_bypass((key, command), data, shared, now);
        let Err(data) = asked else { return self.mirror.is_stirred() };
        if let Some(host_commands) = self.host_commands.get_mut(key) {
            host_commands.data = data;
        }
        self.mirror.submit(CommandId(key.to_bits()), command, now);
        true
    }

    /// Takes an order; those about the mirror are answered when it has carried them out.
    pub(super) fn request(&mut self, order: VolumeRequest, reply: Reply, now: Instant) {
        if self.orders.len() >= MOST_ORDERS {
            return reply(Err(Problem::new(
                model::ProblemKind::Busy,
                "too many orders wait; ask again",
            )));
        }
        let order = match order {
            VolumeRequest::Mirror(order) => order,
            VolumeRequest::AddChild(replica, way) => {
                let local = way.local;
                self.ways.insert(replica, way);
                mirror::MirrorRequest::AddChild { replica, local }
            }
            VolumeRequest::Move(replica, way) => {
                self.ways.insert(replica, way);
                return reply(Ok(VolumeResponse::Done));
            }
            VolumeRequest::Snapshot(_) if self.taking.is_some() => {
                let detail = "a snapshot is being taken; try again";
                return reply(Err(Problem::new(model::ProblemKind::Busy, detail)));
            }
            VolumeRequest::Snapshot(taking) => {
                self.taking = Some((self.next_order + 1, taking, BTreeSet::new()));
                mirror::MirrorRequest::Snapshot(taking.snapshot, Attempt(entropy::number().max(1)))
            }
            VolumeRequest::Close => mirror::MirrorRequest::Stop,
            VolumeRequest::Measure => {
                return reply(Ok(VolumeResponse::Measured(Box::new(self.measured(now)))));
            }
            VolumeRequest::Status | VolumeRequest::List => {
                return reply(Ok(VolumeResponse::Status(Box::new(self.status(Vec::new())))));
            }
        };
        let token = self.next_token();
        self.orders.insert(token, reply);
        self.mirror.request(CommandId(token), order, now);
    }

    /// Something happened to an attachment.
    pub(super) fn child(&mut self, session: Session) -> Option<&mut ReplicaConnection> {
        self.touch(session);
        self.children.get_mut(&session)
    }

    pub(super) fn touch(&mut self, session: Session) {
        if !self.touched.contains(&session) {
            self.touched.push(session);
        }
    }

    /// The store has answered.
    pub(super) fn recorded(
        &mut self,
        io: mirror::RequestId,
        result: Result<(), mirror::StoreFault>,
        now: Instant,
    ) {
        self.mirror.apply(Event::Recorded { io, result }, now);
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now: Instant, io: &mut impl Io) {
        self.children.values_mut().for_each(|child| child.handle_timeout(io));
        self.give_up_late(now, io);
        self.look_for_damage(now, io);
        self.touched = self.children.keys().copied().collect();
        if self.mirror.timeout().is_some_and(|at| at <= now) {
            self.mirror.tick(now);
        }
    }

    /// Does everything that can be done now.
    pub(super) fn work(&mut self, shared: &mut Shared, now: Instant, io: &mut impl Io) {
        #[cfg(feature = "faults")]
        while let Some((session, came)) = self.struck.due(now) {
            self.came(session, came, shared, now);
        }
        let mut waiting_for_memory = core::mem::take(&mut self.waiting_for_memory);
        loop {
            while let Some(session) = self.touched.pop() {
                if !self.unsettled.contains(&session) {
                    self.unsettled.push(session);
                }
                while let Some(came) =
                    self.children.get_mut(&session).and_then(|child| child.poll(io))
                {
                    self.came(session, came, shared, now);
                }
            }
            self.repair_snapshots(now, io);
            match waiting_for_memory.pop_front().or_else(|| self.mirror.poll()) {
                Some(effect) => self.carry_out(effect, shared, now, io),
                None if self.touched.is_empty() => break,
                None => {}
            }
        }
        while let Some(session) = self.unsettled.pop() {
            if let Some(child) = self.children.get_mut(&session) {
                child.settle(io);
            }
        }
        self.tell_readiness(shared);
    }

    /// Whether something waits for memory.
    pub(super) fn is_waiting_for_memory(&self) -> bool {
        !self.waiting_for_memory.is_empty()
    }

    /// Ends everything without saying so to anybody but hosts: the engine stops.
    pub(super) fn abandon(mut self, shared: &mut Shared, io: &mut impl Io) {
        self.children.values_mut().for_each(|child| child.detach(io));
        shared.ways.retain(|_, route| route.volume != self.id);
        for key in self.host_commands.keys().collect::<Vec<Key>>() {
            let now = instant(io);
            self.done(key, Err(IoError::Unreachable), (shared, now), io);
        }
    }

    fn carry_out(&mut self, effect: Effect, shared: &mut Shared, now: Instant, io: &mut impl Io) {
        match effect {
            Effect::Attach { child, session, epoch } => {
                self.attach(child, (session, epoch), shared, now, io);
            }
            Effect::Detach { session, .. } => self.detach(session, io),
            Effect::Io { session, .. } if !self.children.contains_key(&session) => {
                self.end_unasked(&effect, now);
            }
            Effect::Io { io: name, session, command, buffer, .. } => {
                let Some(data) = self.data_of(command, buffer, io) else {
                    self.waiting_for_memory.push_back(effect);
                    return;
                };
                #[cfg(feature = "faults")]
                self.aim(name, session, command);
                let request = Request { tag: name.0, nsid: NSID, command, data };
                self.block(session, request, buffer, (shared, io));
            }
            Effect::Written { io: name, session, span, .. } => {
                if !self.ask(session, |child| child.written(name, span, io)) {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Keep { io: name, session, ref note, .. } => {
                let bytes = replica_protocol::fit(note);
                let told = bytes.is_some_and(|bytes| {
                    self.ask(session, |child| child.tell(name, ReplicaMessage::Keep, &bytes, io))
                });
                if !told {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Snapshot { io: name, child, session, snapshot, attempt } => {
                let label = self.snapshot_label(snapshot, child);
                let taking = (snapshot, attempt);
                let told = label.is_some_and(|label| {
                    self.ask(session, |child| child.snapshot(name, taking, &label, io))
                });
                if !told {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::DropSnapshot { io: name, session, snapshot, .. } => {
                let id = replica_protocol::encode_id(snapshot);
                if !self
                    .ask(session, |child| child.tell(name, ReplicaMessage::DropSnapshot, &id, io))
                {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Measure { io: name, session, .. } => {
                if !self.ask(session, |child| child.measure(name, io)) {
                    self.end_unasked(&effect, now);
                }
            }
            Effect::Record { io: name, record } => {
                let (post, of) = (Arc::clone(&self.post), (self.id, self.target));
                self.recorder.record(*record, Box::new(move |result| post(of, name, result)));
            }
            Effect::Done { token, result } => {
                self.done(Key::from_bits(token.0), result, (shared, now), io);
            }
            Effect::Answer { token, result } => self.answer(token.0, result, (shared, now)),
            Effect::TargetChanged(state) => self.tell(EventKind::Target(state)),
            Effect::ChildChanged(child, state) => self.tell(EventKind::Child(child, state)),
            Effect::RebuildChanged(rebuild) => self.tell(EventKind::Rebuild(rebuild)),
            damage => self.mend(damage, now, io),
        }
    }

    /// An order has ended.
    fn answer(
        &mut self,
        order: u64,
        result: Result<(), Problem>,
        (shared, now): (&mut Shared, Instant),
    ) {
        if self.reservations_answered(order, &result, shared) {
            return;
        }
        let taken = self.taking.take_if(|(by, ..)| *by == order);
        let checked = self.checked(order, &result, now);
        let answer = taken.map_or(checked, |(_, _, by)| VolumeResponse::Taken(by));
        if let Some(reply) = self.orders.remove(&order) {
            reply(result.map(|()| answer));
        }
    }

    /// Asks something of an attachment; `false` if there is no such one.
    pub(super) fn ask(
        &mut self,
        session: Session,
        ask: impl FnOnce(&mut ReplicaConnection),
    ) -> bool {
        self.child(session).map(ask).is_some()
    }

    /// Asks an attachment that is there for blocks.
    fn block(
        &mut self,
        session: Session,
        request: Request,
        buffer: Buffer,
        (shared, io): (&mut Shared, &impl Io),
    ) {
        let Some(child) = self.children.get_mut(&session) else { return };
        if let Some(request) = child.block(request, buffer, io) {
            shared.submit_local(child.way(), request);
        }
        if child.is_waiting() {
            self.touch(session);
        }
    }

    fn attach(
        &mut self,
        replica: ReplicaId,
        (session, epoch): (Session, model::Epoch),
        shared: &mut Shared,
        now: Instant,
        io: &mut impl Io,
    ) {
        let mut host = [0; 16];
        let random = entropy::fill(&mut host);
        let way = self.ways.get(&replica).and_then(|way| Some((way, way.address(session)?)));
        let (Some((way, address)), Ok(())) = (way, random) else {
            let result = Err(AttachFault::Failed(FaultReason::CannotOpen));
            return self.mirror.apply(Event::Attached { session, result }, now);
        };
        let is_near = way.local;
        let options = Options {
            queue_entries: QUEUE,
            io_patience: PATIENCE,
            admin_patience: PATIENCE,
            ..Options::default()
        };
        let who = Host { nqn: self.node.clone(), id: host };
        let association = shared.replication.association(who, way.nqn.clone(), options);
        let number = shared.new_way(self.id, session, host);
        let controller = Controller::connect(number, address, association, io);
        let child = ReplicaConnection::new((replica, is_near), controller, epoch);
        self.children.insert(session, child);
        self.touch(session);
    }

    fn detach(&mut self, session: Session, io: &mut impl Io) {
        if let Some(child) = self.child(session) {
            child.detach(io);
        }
    }

    fn came(&mut self, session: Session, came: ConnectionEvent, shared: &mut Shared, now: Instant) {
        #[cfg(feature = "faults")]
        let Some(came) = self.strike(session, came, now) else { return };
        let event = match came {
            ConnectionEvent::Pass(request) => {
                let way = self.children.get(&session).map_or(0, ReplicaConnection::way);
                return shared.submit_local(way, request);
            }
            ConnectionEvent::Attached(result) => Event::Attached { session, result },
            ConnectionEvent::Lost(why) => {
                self.mirror.apply(Event::Lost { session, why }, now);
                return self.bring_back(session, now);
            }
            ConnectionEvent::Damage(news) => return self.damage_told(session, news),
            ConnectionEvent::Over => {
                if let Some(child) = self.children.remove(&session) {
                    shared.ways.remove(&child.way());
                }
                return self.bring_back(session, now);
            }
            ConnectionEvent::Ended { io, result, buffer, data, counted } => {
                if let Some(counted) = counted {
                    let result = result.as_ref().map_or_else(|fault| Err(*fault), |_| Ok(()));
                    self.count_for(session, counted, result, now);
                }
                self.put_back(buffer, data);
                Event::Ended { io, result }
            }
        };
        self.mirror.apply(event, now);
    }

    /// An effect that cannot be carried out has failed.
    pub(super) fn end_unasked(&mut self, effect: &Effect, now: Instant) {
        let name = match effect {
            Effect::Io { io, .. }
            | Effect::Written { io, .. }
            | Effect::Accept { io, .. }
            | Effect::Repair { io, .. }
            | Effect::Keep { io, .. }
            | Effect::Snapshot { io, .. }
            | Effect::DropSnapshot { io, .. }
            | Effect::Measure { io, .. } => *io,
            _ => return,
        };
        let result: Result<Ended, IoError> = Err(IoError::Unreachable);
        self.mirror.apply(Event::Ended { io: name, result }, now);
    }

    pub(super) fn tell(&mut self, what: EventKind) {
        let (volume, target) = (self.id, self.target);
        if let EventKind::Target(state) = &what {
            tracing::info!(%volume, %target, ?state, "target");
            if let TargetState::Shutdown { .. } = state {
                self.copies.clear();
            }
        }
        if let EventKind::Child(replica, state) = &what {
            tracing::info!(%volume, %replica, ?state, "child");
        }
        // Who reads too slowly finds everything in the status.
        let _ = self.news.try_send(VolumeEvent { volume, target, what });
    }
}
