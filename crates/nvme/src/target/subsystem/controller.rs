//! One controller: an association of a host with a subsystem.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::time::Duration;

use super::super::event::ConnId;
use super::reservation::{HostId, Notice};
use crate::time::Instant;
use crate::wire::{AsyncEvent, Cc, Csts, EventConfig, Nqn, Shutdown};

/// Most reservation notices that wait for a host; the oldest go first.
const MAX_NOTICES: usize = 64;
/// Most namespaces that the changed-namespace log can name.
const MAX_CHANGED: usize = 1024;
/// Keep-alive times are rounded up to this.
pub(in crate::target) const KEEP_ALIVE_UNIT: Duration = Duration::from_secs(1);
/// A host may be late by so much more than it promised, for the way of its messages.
const KEEP_ALIVE_GRACE: Duration = Duration::from_secs(1);

/// A controller.
#[derive(Clone, Debug)]
pub struct Controller {
    pub(in crate::target) admin: ConnId,
    pub(in crate::target) host: Nqn,
    pub(in crate::target) hostid: HostId,
    /// By which of our addresses its host came.
    pub(in crate::target) local: Option<core::net::IpAddr>,
    /// Zero for no keep-alive.
    pub(in crate::target) kato: Duration,
    pub(in crate::target) last_seen: Instant,
    pub(in crate::target) cc: Cc,
    pub(in crate::target) csts: u32,
    /// I/O queues that were granted.
    pub(in crate::target) granted: u16,
    pub(in crate::target) queues: BTreeMap<u16, ConnId>,
    pub(in crate::target) features: Features,
    pub(in crate::target) events: Events,
}

/// Features that a host set.
#[derive(Clone, Copy, Debug)]
pub(in crate::target) struct Features {
    pub(in crate::target) events: EventConfig,
    /// Milliseconds since 1970 that the host gave, and when.
    pub(in crate::target) timestamp: Option<(u64, Instant)>,
    pub(in crate::target) acre: bool,
    pub(in crate::target) reservation_mask: u32,
    pub(in crate::target) arbitration: u32,
    pub(in crate::target) error_recovery: u32,
    pub(in crate::target) write_atomicity: u32,
    pub(in crate::target) temperature: u32,
}

impl Features {
    fn new() -> Features {
        Features {
            events: EventConfig::default(),
            timestamp: None,
            acre: false,
            reservation_mask: 0,
            arbitration: 0,
            error_recovery: 0,
            write_atomicity: 0,
            temperature: 0xFFFF,
        }
    }
}

/// Events on their way to the host.
#[derive(Clone, Debug, Default)]
pub(in crate::target) struct Events {
    /// To be sent with the next event request.
    pending: BTreeSet<AsyncEvent>,
    /// Sent, and not sent again before the host has read the log page.
    masked: BTreeSet<AsyncEvent>,
    changed: BTreeSet<u32>,
    changed_overflow: bool,
    notices: VecDeque<(u32, Notice)>,
    notices_sent: u64,
}

impl Events {
    /// Something happened; says whether the host is to be told now.
    pub(super) fn raise(&mut self, event: AsyncEvent) -> bool {
        !self.masked.contains(&event) && self.pending.insert(event)
    }

    /// The next event to send; it stays masked until its log page is read.
    pub(in crate::target) fn take(&mut self) -> Option<AsyncEvent> {
        let event = self.pending.pop_first()?;
        self.masked.insert(event);
        Some(event)
    }

    /// The host has read the log page of this event.
    pub(in crate::target) fn acknowledge(&mut self, event: AsyncEvent) {
        self.masked.remove(&event);
        self.pending.remove(&event);
    }

    pub(super) fn note_changed(&mut self, nsid: u32) {
        self.changed.insert(nsid);
        if self.changed.len() > MAX_CHANGED {
            self.changed.clear();
            self.changed_overflow = true;
        }
    }

    /// Namespaces that changed since the last call that cleared; `None` if they are too many.
    pub(in crate::target) fn changed(&mut self, clear: bool) -> Option<BTreeSet<u32>> {
        let list = (!self.changed_overflow).then(|| self.changed.clone());
        if clear {
            self.changed.clear();
            self.changed_overflow = false;
        }
        list
    }

    pub(super) fn note_reservation(&mut self, nsid: u32, notice: Notice) {
        if self.notices.len() >= MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back((nsid, notice));
    }

    /// The oldest notice with its number, and how many come after it.
    pub(in crate::target) fn notice(&mut self, clear: bool) -> (u64, Option<(u32, Notice)>, usize) {
        let first = if clear { self.notices.pop_front() } else { self.notices.front().copied() };
        if clear && first.is_some() {
            self.notices_sent += 1;
        }
        let behind = if clear { self.notices.len() } else { self.notices.len().saturating_sub(1) };
        (self.notices_sent, first, behind)
    }
}

/// What a write of the configuration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::target) enum Configured {
    /// Nothing that touches queues.
    Fine,
    /// The I/O queues must go: reset or shutdown.
    QueuesGo,
    /// The value is not supported.
    Refused,
}

impl Controller {
    pub(super) fn new(
        admin: ConnId,
        host: Nqn,
        hostid: HostId,
        kato: Duration,
        now: Instant,
    ) -> Controller {
        Controller {
            admin,
            host,
            hostid,
            local: None,
            kato,
            last_seen: now,
            cc: Cc::default(),
            csts: 0,
            granted: 0,
            queues: BTreeMap::new(),
            features: Features::new(),
            events: Events::default(),
        }
    }

    /// Whose controller this is.
    pub fn host(&self) -> &Nqn {
        &self.host
    }

    /// Identity of its host.
    pub fn hostid(&self) -> HostId {
        self.hostid
    }

    /// How many I/O queues it has.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Whether commands other than those of fabrics are taken.
    pub(in crate::target) fn is_ready(&self) -> bool {
        Csts(self.csts).ready()
    }

    /// When the host is overdue, if it promised anything.
    pub(in crate::target) fn deadline(&self) -> Option<Instant> {
        (!self.kato.is_zero())
            .then(|| self.last_seen.after(self.kato.saturating_add(KEEP_ALIVE_GRACE)))
    }

    /// Takes a new configuration.
    pub(in crate::target) fn configure(&mut self, cc: Cc) -> Configured {
        let starts = cc.enabled() && !self.cc.enabled();
        let stops = !cc.enabled() && self.cc.enabled();
        let css_known = cc.css() == 0 || cc.css() == 6;
        if starts && (cc.iosqes() != 6 || cc.iocqes() != 4) {
            return Configured::Refused;
        }
        if cc.enabled() && (cc.mps() != 0 || cc.ams() != 0 || !css_known) {
            return Configured::Refused;
        }
        if cc.shutdown() == Shutdown::Reserved {
            return Configured::Refused;
        }
        let shuts_down = cc.shutdown() != Shutdown::None && self.cc.shutdown() == Shutdown::None;
        self.cc = cc;
        if starts {
            self.csts = Csts::READY;
        }
        if stops {
            self.csts = 0;
            self.features = Features::new();
            self.events = Events::default();
            self.granted = 0;
        }
        if shuts_down {
            self.csts = (self.csts & !(3 << 2)) | Csts::SHUTDOWN_COMPLETE;
        }
        if stops || shuts_down { Configured::QueuesGo } else { Configured::Fine }
    }
}
