//! Orders to a running engine: what it serves, to whom, and how good a path it is.
//!
//! The node's API gives them, from threads and tasks of its own; so does whoever has a
//! [`Server`](super::Server) as a part. An order is a message to the core that owns the subsystem;
//! the core carries it out between two events, and answers. Commands of hosts wait for no order.
//!
//! ```text
//!   caller ──TargetHandle::set_ana──► mailbox of the owner ──► Shard::apply ──► Subsystem
//!     ▲                                                           │
//!     └────────────────────── Pending ◄── Promise ────────────────┘
//! ```
//!
//! Asking twice is harmless: an order that finds everything as it shall be answers
//! [`AdminResponse::Unchanged`]. Orders about one subsystem are carried out in the order in which
//! one caller gave them. An order goes on if nobody waits for its answer.
//!
//! What discovery tells follows by itself, and hosts that listen for that are told.
//!
//! Deliberately not here: who may give orders, and what shall be served (the node API); making and
//! resizing what namespaces are made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::{BadGeometry, Bytes};
use nvme::wire::{AnaState, Nqn};
use reactor::{Mailbox, Undelivered};

use super::config::{Host, Subsystem};
use super::directory::{Pin, SubsystemDirectory};
use super::exported_subsystem::ServeError;
use super::reply::{Pending, Promise, promise};
use super::shard::Message;

/// Gives orders to a running engine. Clones give orders to the same one.
#[derive(Clone)]
pub struct TargetHandle {
    directory: Arc<SubsystemDirectory>,
    mailboxes: Arc<[Mailbox<Message>]>,
}

/// What an order came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminResponse {
    /// It was carried out.
    Changed,
    /// Everything was so already.
    Unchanged,
}

impl AdminResponse {
    pub(super) fn of(changed: bool) -> AdminResponse {
        if changed { AdminResponse::Changed } else { AdminResponse::Unchanged }
    }
}

/// Why an order was not carried out. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// There is no engine any more.
    #[error("the engine is stopping")]
    Stopped,
    /// Too many orders wait.
    #[error("the core of {nqn} has too many messages waiting; ask again")]
    Busy {
        /// Of which subsystem.
        nqn: Nqn,
    },
    /// It is not served.
    #[error("{nqn} is not served here; add it first")]
    NoSubsystem {
        /// What was asked for.
        nqn: Nqn,
    },
    /// It has no such namespace.
    #[error("{nqn} has no namespace {nsid}")]
    NoNamespace {
        /// Of which subsystem.
        nqn: Nqn,
        /// What was asked for.
        nsid: u32,
    },
    /// The name is served, but not like this.
    #[error("{nqn} is served already, with other settings; change those, or remove it first")]
    Conflict {
        /// What was asked for.
        nqn: Nqn,
    },
    /// It is being removed, and some of its connections still end.
    #[error("{nqn} is still being removed; ask again")]
    Leaving {
        /// What was asked for.
        nqn: Nqn,
    },
    /// As many as a core has room for.
    #[error("there is no room for another subsystem; give the engine more cores")]
    Full,
    /// Hosts would lose data that they have.
    #[error("namespace {nsid} of {nqn} has {has} and cannot shrink to {asked}")]
    Shrinks {
        /// Of which subsystem.
        nqn: Nqn,
        /// Which namespace.
        nsid: u32,
        /// Its size.
        has: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// What it is made of is smaller.
    #[error("{path} has {has}, less than {asked}; make it larger first")]
    Small {
        /// Which file.
        path: String,
        /// Its size.
        has: Bytes,
        /// What was asked for.
        asked: Bytes,
    },
    /// No namespace has this size.
    #[error("namespace {nsid} of {nqn} cannot have this size")]
    Geometry {
        /// Of which subsystem.
        nqn: Nqn,
        /// Which namespace.
        nsid: u32,
        /// Why.
        source: BadGeometry,
    },
    /// It cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

/// What a core is asked to do.
pub(super) enum AdminCommand {
    Add(Subsystem),
    Remove,
    Ana { nsid: u32, state: AnaState },
    Hosts(BTreeMap<Nqn, Host>),
    Grow { nsid: u32, size: Bytes },
}

/// An order on its way.
pub(super) struct AdminMessage {
    pub(super) pin: Pin,
    pub(super) what: AdminCommand,
    pub(super) promise: Promise,
}

impl TargetHandle {
    pub(super) fn new(
        directory: Arc<SubsystemDirectory>,
        mailboxes: &[Mailbox<Message>],
    ) -> TargetHandle {
        TargetHandle { directory, mailboxes: mailboxes.into() }
    }

    /// Serves a subsystem with its namespaces. Unchanged if it is served like this already.
    pub fn add(&self, nqn: Nqn, subsystem: Subsystem) -> Pending {
        if nqn.is_discovery() {
            return answered(Err(AdminError::Conflict { nqn }));
        }
        let home = subsystem.home(self.directory.cores());
        self.send(self.directory.pin_or_choose(nqn, home), AdminCommand::Add(subsystem))
    }

    /// Serves it no longer: its connections end, and with the answer what it was made of is no
    /// longer in use. Unchanged if it was not served.
    pub fn remove(&self, nqn: Nqn) -> Pending {
        if let Some(pin) = self.directory.pin(nqn) {
            return self.send(pin, AdminCommand::Remove);
        }
        answered(Ok(AdminResponse::Unchanged))
    }

    /// Says how good this path to a namespace is. Hosts are told; commands that come after the
    /// answer are treated by the new state, those at work are carried out.
    pub fn set_ana(&self, nqn: Nqn, nsid: u32, state: AnaState) -> Pending {
        self.about(nqn, AdminCommand::Ana { nsid, state })
    }

    /// Says who may connect, and with which secrets; anybody, if nobody is named. Whoever may no
    /// longer is disconnected; whoever has a new secret must show it when it connects next.
    pub fn set_hosts(&self, nqn: Nqn, hosts: BTreeMap<Nqn, Host>) -> Pending {
        self.about(nqn, AdminCommand::Hosts(hosts))
    }

    /// Says that a namespace has become larger. What it is made of must have that size already.
    pub fn grow(&self, nqn: Nqn, nsid: u32, size: Bytes) -> Pending {
        self.about(nqn, AdminCommand::Grow { nsid, size })
    }

    fn about(&self, nqn: Nqn, what: AdminCommand) -> Pending {
        match self.directory.pin(nqn.clone()) {
            Some(pin) => self.send(pin, what),
            None => answered(Err(AdminError::NoSubsystem { nqn })),
        }
    }

    fn send(&self, pin: Pin, what: AdminCommand) -> Pending {
        let (promise, pending) = promise();
        let Some(mailbox) = self.mailboxes.get(pin.core()) else { return pending };
        let order = Box::new(AdminMessage { pin, what, promise });
        if let Err(Undelivered::Full(Message::Admin(order))) = mailbox.post(Message::Admin(order)) {
            let AdminMessage { pin, promise, .. } = *order;
            promise.keep(Err(AdminError::Busy { nqn: pin.nqn().clone() }));
        }
        pending
    }
}

/// An answer that needs no core.
fn answered(answer: Result<AdminResponse, AdminError>) -> Pending {
    let (promise, pending) = promise();
    promise.keep(answer);
    pending
}
