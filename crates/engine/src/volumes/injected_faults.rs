//! Children that misbehave on purpose. Only with the feature `faults`.

use std::collections::BTreeMap;

use block::{Command, Instant, IoError};
use mirror::{RequestId, Session};

use super::replica_connection::ConnectionEvent;
use super::volume::{BLOCK, PATIENCE, Volume};
use crate::counters::OpClass;
use crate::device::Data;
use crate::faults::{self, FaultEffect, FaultPoint};

/// What is to become of answers, and those that wait.
#[derive(Default)]
pub(super) struct InjectedFaults {
    aimed: BTreeMap<RequestId, (FaultEffect, Command)>,
    late: Vec<(Instant, Session, ConnectionEvent)>,
}

impl InjectedFaults {
    /// An answer whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<(Session, ConnectionEvent)> {
        let nth = self.late.iter().position(|(at, ..)| *at <= now)?;
        let (_, session, came) = self.late.swap_remove(nth);
        Some((session, came))
    }
}

impl Volume {
    /// A command is about to be sent to a child.
    pub(super) fn aim(&mut self, io: RequestId, session: Session, command: Command) {
        let Some(child) = self.child(session).map(|child| child.replica) else { return };
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK);
        let span = command.span();
        let span = span.map_or(0..u64::MAX, |span| bytes(span.start().0)..bytes(span.end().0));
        let place = FaultPoint::Child(self.target(), child);
        if let Some(strike) = faults::strike(place, OpClass::of(command), &span) {
            self.struck.aimed.insert(io, (strike, command));
        }
    }

    /// An answer of a child as it is to be seen, if it is to be seen now.
    pub(super) fn strike(
        &mut self,
        session: Session,
        mut came: ConnectionEvent,
        now: Instant,
    ) -> Option<ConnectionEvent> {
        let ConnectionEvent::Ended { io, result, data, .. } = &mut came else { return Some(came) };
        let Some((strike, command)) = self.struck.aimed.remove(io) else { return Some(came) };
        match strike {
            FaultEffect::Fail => {
                let medium = command.span().map(|span| IoError::Medium { span });
                *result = Err(medium.unwrap_or(IoError::Internal));
            }
            FaultEffect::Corrupt => {
                if let Data::Fill(buffer) = data {
                    faults::spoil(buffer);
                }
            }
            FaultEffect::Later(time) => {
                self.struck.late.push((now.after(time), session, came));
                return None;
            }
            // As a connection on which nothing comes.
            FaultEffect::Never => {
                *result = Err(IoError::TimedOut);
                self.struck.late.push((now.after(PATIENCE), session, came));
                return None;
            }
        }
        Some(came)
    }
}
