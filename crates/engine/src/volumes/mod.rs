//! Mirrored volumes of a reactor: the one who drives `mirror::Mirror`.
//!
//! ```text
//!   hosts ─► Devices ─► Volume ─► Mirror ─► effects ─► Child ─► Controller ─► engine of a replica
//!                          ▲                   │
//!                          └── Recorder ◄──────┘ (another thread)
//! ```
//!
//! Like devices and pools, volumes are part of a core's handler: it passes on the events whose
//! tokens are of a controller's kinds ([`Volumes::on`]), commands of hosts ([`Volumes::submit`]),
//! orders and the time, and lets them work when a batch of events is over ([`Volumes::work`]).
//!
//! Invariants:
//! - Every command and every order ends once.
//! - A volume belongs to one reactor. Every child has a connection to its replica, also to one of
//!   the same engine: there is one fence for all, that of the replica's namespace. Only block
//!   commands to a replica of the same core leave the stream out ([`Volumes::for_replica`]); they
//!   still belong to the connection.
//!
//! Deliberately not here: what to do (`mirror`), taking epochs and choosing replicas (the control
//! plane), the subsystem that hosts connect to (`serve`).

mod bypass_read;
mod damage;
mod host_command;
#[cfg(feature = "faults")]
mod injected_faults;
mod record_store;
mod replica_connection;
pub(crate) mod replica_protocol;
mod request;
mod reservation;
mod snapshot;
mod snapshot_repair;
mod stats;
mod volume;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use block::{Completion, Geometry, Instant, IoError};
use mirror::{RequestId, Session, StoreFault};
use model::{Problem, ProblemKind, TargetId, VolumeId};
use nvme::target::HostId;
use reactor::{Io, Key, Op, Outcome, Token};

pub use damage::{Damage, Places};
pub use record_store::{MemoryRecordStore, RecordStore, Recorded, may_replace};
use replica_connection::ReplicaConnection;
pub use request::{
    EventKind, OpenRequest, ReplicaPath, Reply, SnapshotCommand, Status, VolumeCounters,
    VolumeEvent, VolumeRequest, VolumeResponse,
};
pub(crate) use reservation::{OwnershipProof, ReservationNews, ReservationWrite};
pub use volume::PATIENCE;
use volume::Volume;

use crate::client::{Controller, Request};
use crate::clock::instant;
use crate::device::{Data, ForVolume};
use crate::pools::CompletedCommand;
use crate::replication::Replication;

/// Tells a core that the store has answered, from any thread.
pub(crate) type Post =
    Arc<dyn Fn((VolumeId, TargetId), RequestId, Result<(), StoreFault>) + Send + Sync>;

/// How often controllers look at the time.
const TICK_EVERY: Duration = Duration::from_millis(100);
/// Most volumes of a core.
const MOST: usize = 1024;

/// All mirrored volumes of one reactor.
pub(crate) struct Volumes {
    open: BTreeMap<VolumeId, Volume>,
    /// Those that have something to do.
    touched: Vec<VolumeId>,
    /// When each wants the time, earliest first.
    due: BTreeSet<(Instant, VolumeId)>,
    shared: Shared,
    token: Token,
    /// When the earliest timer comes back.
    timer: Option<Instant>,
}

/// What volumes of one reactor share.
#[derive(Default)]
struct Shared {
    /// Whose each controller is.
    ways: BTreeMap<u64, Route>,
    last_way: u64,
    /// Commands on their way to replicas of the same core.
    for_replicas: VecDeque<ForReplica>,
    /// Commands of hosts that have ended.
    ended: VecDeque<CompletedCommand>,
    /// What volumes say of reservations.
    reservations: VecDeque<(VolumeId, ReservationNews)>,
    /// How replicas are spoken to.
    replication: Replication,
}

/// Whose a controller is, and who it is to the replica.
#[derive(Clone, Copy)]
struct Route {
    volume: VolumeId,
    session: Session,
    host: HostId,
    /// The connection at its other end, if that was found on this core.
    connection: Option<Key>,
}

/// A command for a replica of the same core; it comes back by [`Volumes::local_done`], or by
/// [`Volumes::not_here`] if there is no such replica.
pub(crate) struct ForReplica {
    /// Which controller would have sent it.
    pub(crate) way: u64,
    /// The connection at its other end, if that is known.
    pub(crate) connection: Option<Key>,
    /// Who asks.
    pub(crate) host: HostId,
    /// What to do.
    pub(crate) request: Request,
}

impl Shared {
    fn new_way(&mut self, volume: VolumeId, session: Session, host: [u8; 16]) -> u64 {
        self.last_way += 1;
        let route = Route { volume, session, host, connection: None };
        self.ways.insert(self.last_way, route);
        self.last_way
    }

    fn submit_local(&mut self, way: u64, request: Request) {
        // Of an attachment that is up, and so has a route.
        if let Some(Route { connection, host, .. }) = self.ways.get(&way).copied() {
            self.for_replicas.push_back(ForReplica { way, connection, host, request });
        }
    }
}

impl Volumes {
    /// No volumes. The timer's events have this token.
    pub(crate) fn new(token: Token, replication: Replication) -> Volumes {
        Volumes {
            open: BTreeMap::new(),
            touched: Vec::new(),
            due: BTreeSet::new(),
            shared: Shared { replication, ..Shared::default() },
            token,
            timer: None,
        }
    }

    /// Opens a target; it serves as soon as its children let it. Answers its shape.
    pub(crate) fn open(
        &mut self,
        opening: OpenRequest,
        post: Post,
        io: &impl Io,
    ) -> Result<Geometry, Problem> {
        let (id, target) = (opening.record.volume(), opening.record.target());
        if let Some(open) = self.open.get(&id) {
            if open.target() == target {
                return Ok(open.mirror().geometry());
            }
            let detail =
                format!("target {} of volume {id} is open here; close it first", open.target());
            return Err(Problem::new(ProblemKind::InUse, detail));
        }
        if self.open.len() >= MOST {
            let detail = "a core has no room for another volume; give the engine more cores";
            return Err(Problem::new(ProblemKind::Overloaded, detail));
        }
        let mut volume = Volume::open(opening, post, instant(io))?;
        let geometry = volume.mirror().geometry();
        touch(&mut self.touched, id, &mut volume);
        self.open.insert(id, volume);
        Ok(geometry)
    }

    /// Whether a target is open.
    pub(crate) fn has(&self, volume: VolumeId) -> bool {
        self.open.contains_key(&volume)
    }

    /// Gives an order to a target.
    pub(crate) fn request(
        &mut self,
        volume: VolumeId,
        order: VolumeRequest,
        reply: Reply,
        io: &impl Io,
    ) {
        match self.open.get_mut(&volume) {
            Some(open) => {
                open.request(order, reply, instant(io));
                touch(&mut self.touched, volume, open);
            }
            None => reply(Err(not_open(volume))),
        }
    }

    /// How a target is; whoever asks knows the hosts.
    pub(crate) fn status(&self, volume: VolumeId) -> Option<Status> {
        self.open.get(&volume).map(|open| open.status(Vec::new()))
    }

    /// Which are open.
    pub(crate) fn ids(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.open.keys().copied()
    }

    /// Forgets a target; commands that it still has fail.
    pub(crate) fn close(&mut self, volume: VolumeId, io: &mut impl Io) {
        if let Some(open) = self.open.remove(&volume) {
            self.due.retain(|(_, of)| *of != volume);
            open.abandon(&mut self.shared, io);
        }
    }

    /// Takes a host's command.
    pub(crate) fn submit(&mut self, asked: ForVolume, io: &impl Io) {
        let volume = asked.volume;
        if let Some(open) = self.open.get_mut(&volume) {
            if open.submit(asked, &mut self.shared, instant(io)) {
                touch(&mut self.touched, volume, open);
            }
        } else {
            let ForVolume { owner, data, .. } = asked;
            let completion = Err(IoError::Unreachable);
            self.shared.ended.push_back(CompletedCommand { owner, completion, data });
        }
    }

    /// A host's command that has ended.
    pub(crate) fn ended(&mut self) -> Option<CompletedCommand> {
        self.shared.ended.pop_front()
    }

    /// An event of a controller.
    pub(crate) fn on(&mut self, token: Token, outcome: Outcome, io: &mut impl Io) {
        match (self.child(Controller::id_of(token)), outcome) {
            (Some(child), outcome) => child.on(token, outcome, io),
            // Of an attachment that is gone.
            (None, Outcome::Connected(Ok(socket))) => io.close(socket),
            (None, _) => {}
        }
    }

    /// A command for a replica of the same core.
    pub(crate) fn for_replica(&mut self) -> Option<ForReplica> {
        self.shared.for_replicas.pop_front()
    }

    /// The connection at the other end of a controller was found on this core.
    pub(crate) fn found(&mut self, way: u64, connection: Key) {
        if let Some(route) = self.shared.ways.get_mut(&way) {
            route.connection = Some(connection);
        }
    }

    /// The replica of a command is not on this core.
    pub(crate) fn not_here(&mut self, way: u64, request: Request, io: &impl Io) {
        let Some(Route { volume, session, .. }) = self.shared.ways.get(&way).copied() else {
            return;
        };
        let Some(open) = self.open.get_mut(&volume) else { return };
        touch(&mut self.touched, volume, open);
        if let Some(key) = bypass_read::key_of(request.tag) {
            open.is_far(session, (key, request.data), instant(io));
        } else if let Some(child) = open.child(session) {
            child.not_near(request, io);
        }
    }

    /// A read that went around its mirror has ended.
    fn bypass_done(&mut self, way: u64, key: Key, ended: (Completion, Data), io: &mut impl Io) {
        let Some(Route { volume, session, .. }) = self.shared.ways.get(&way).copied() else {
            return;
        };
        let Some(open) = self.open.get_mut(&volume) else { return };
        if open.bypass_done(session, key, ended, &mut self.shared, io) {
            touch(&mut self.touched, volume, open);
        }
    }

    /// A command for a replica of the same core has ended.
    pub(crate) fn local_done(
        &mut self,
        (way, tag): (u64, u64),
        completion: Completion,
        data: Data,
        io: &mut impl Io,
    ) {
        if let Some(key) = bypass_read::key_of(tag) {
            self.bypass_done(way, key, (completion, data), io);
        } else if let Some(child) = self.child(way) {
            child.local_done(tag, completion, data, io);
        }
    }

    /// The attachment of a controller, which then has something to do.
    fn child(&mut self, way: u64) -> Option<&mut ReplicaConnection> {
        let Route { volume, session, .. } = *self.shared.ways.get(&way)?;
        let open = self.open.get_mut(&volume)?;
        touch(&mut self.touched, volume, open);
        open.child(session)
    }

    /// The store has answered.
    pub(crate) fn recorded(
        &mut self,
        (volume, target): (VolumeId, TargetId),
        name: RequestId,
        result: Result<(), StoreFault>,
        io: &impl Io,
    ) {
        if let Some(open) = self.open.get_mut(&volume).filter(|open| open.target() == target) {
            open.recorded(name, result, instant(io));
            touch(&mut self.touched, volume, open);
        }
    }

    /// The timer came back.
    pub(crate) fn tick(&mut self, io: &mut impl Io) {
        self.timer = None;
        let now = instant(io);
        for (id, volume) in &mut self.open {
            volume.tick(now, io);
            touch(&mut self.touched, *id, volume);
        }
    }

    /// Does what can be done. Returns whether there was anything.
    pub(crate) fn work(&mut self, io: &mut impl Io) -> bool {
        let mut worked = false;
        while let Some(id) = self.touched.pop() {
            worked = true;
            let now = instant(io);
            if let Some(volume) = self.open.get_mut(&id) {
                volume.is_touched = false;
                volume.work(&mut self.shared, now, io);
                let due = volume.mirror().timeout();
                let before = core::mem::replace(&mut volume.due, due);
                if before != due {
                    before.and_then(|at| self.due.take(&(at, id)));
                    self.due.extend(due.map(|at| (at, id)));
                }
            }
        }
        worked
    }

    /// A batch of events is over: asks for the next moment.
    pub(crate) fn settle(&mut self, io: &mut impl Io) {
        let now = instant(io);
        if self.open.is_empty() {
            return;
        }
        let due = self.due.first().map_or(now.after(TICK_EVERY), |(at, _)| *at);
        let at = due.min(now.after(TICK_EVERY));
        // A little late is early enough, and one timer for many.
        let at = at.max(now.after(Duration::from_millis(1)));
        if self.timer.is_some_and(|timer| timer <= at) {
            return;
        }
        let moment = io.now().after(at.since(now));
        if io.submit(Op::Timer { at: moment }, self.token).is_ok() {
            self.timer = Some(at);
        }
    }

    /// Lets those go on that waited for memory.
    pub(crate) fn retry(&mut self) {
        for (id, volume) in
            self.open.iter_mut().filter(|(_, volume)| volume.is_waiting_for_memory())
        {
            touch(&mut self.touched, *id, volume);
        }
    }

    /// Ends everything: the engine stops.
    pub(crate) fn abandon(&mut self, io: &mut impl Io) {
        let all: Vec<VolumeId> = self.ids().collect();
        for volume in all {
            self.close(volume, io);
        }
    }
}

/// Notes that a volume has something to do.
fn touch(touched: &mut Vec<VolumeId>, id: VolumeId, volume: &mut Volume) {
    if !core::mem::replace(&mut volume.is_touched, true) {
        touched.push(id);
    }
}

pub(crate) fn not_open(volume: VolumeId) -> Problem {
    Problem::new(
        ProblemKind::NotFound,
        format!("no target of volume {volume} is open here; open one"),
    )
}
