//! One command of a host, or a flush of our own: how far it is.

use block::{Command, CommandKind, Completion, ErrorClass, Instant, IoError};

use crate::api::{CommandId, Session};
use crate::replicas::{Child, ChildSet, ChildSlot, Replicas};

/// A command under way.
#[derive(Debug)]
pub(crate) struct Op {
    /// Whose it is; ours if nobody's.
    pub(super) token: Option<CommandId>,
    pub(super) command: Command,
    pub(super) started: Instant,
    /// Nothing that came before conflicts with it.
    pub(super) granted: bool,
    /// It was sent to children; of a change, its regions are open.
    pub(super) begun: bool,
    pub(super) outstanding: ChildSet,
    /// Children that have completed it since they were last attached.
    pub(super) done: ChildSet,
    /// Children that refused a change, or hold bad blocks where a read wants to look.
    pub(super) declined: ChildSet,
    pub(super) fault: Option<IoError>,
    /// Children that hold blocks of a read without proof.
    pub(super) unproven: ChildSet,
    /// A read waits or has waited for this check.
    pub(super) check: Option<u64>,
    /// How a read ends, once that may be said (R1).
    pub(super) answered: Option<Completion>,
    /// The last I/O that was named before it came.
    pub(super) since: u64,
    pub(super) not_before: Option<Instant>,
    pub(super) busy: u32,
    /// Children that were busy.
    pub(super) again: ChildSet,
    /// When a flush was sent, by the count of the dirty maps.
    pub(super) flush: u64,
}

impl Op {
    pub(crate) fn new(token: Option<CommandId>, command: Command, started: Instant) -> Op {
        Op {
            token,
            command,
            started,
            granted: false,
            begun: false,
            outstanding: ChildSet::NONE,
            done: ChildSet::NONE,
            declined: ChildSet::NONE,
            fault: None,
            unproven: ChildSet::NONE,
            check: None,
            answered: None,
            since: 0,
            not_before: None,
            busy: 0,
            again: ChildSet::NONE,
            flush: 0,
        }
    }

    /// It was a read around the mirror, which failed: what its copy has wrong is known.
    pub(crate) fn bypassed(mut self, replicas: &Replicas, session: Session, fault: IoError) -> Op {
        let of_it = |(slot, child): (ChildSlot, &Child)| child.is_current(session).then_some(slot);
        if matches!(fault.class(), ErrorClass::Medium | ErrorClass::Bug)
            && let Some(slot) = replicas.iter().find_map(of_it)
        {
            self.declined.insert(slot);
            self.fault = Some(fault);
            if matches!(fault, IoError::Unproven { .. }) {
                self.unproven.insert(slot);
            }
        }
        self
    }

    pub(crate) fn command(&self) -> Command {
        self.command
    }

    pub(crate) fn token(&self) -> Option<CommandId> {
        self.token
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.command.kind(), CommandKind::Read | CommandKind::Compare)
    }
}

pub(super) fn moves_bytes(command: Command) -> bool {
    matches!(command.kind(), CommandKind::Read | CommandKind::Write | CommandKind::Compare)
}
