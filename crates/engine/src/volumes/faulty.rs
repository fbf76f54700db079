//! Children that misbehave on purpose. Only with the feature `faults`.

use std::collections::BTreeMap;

use block::{Command, Fault, Instant};
use mirror::{Io, Session};

use super::child::Came;
use super::volume::{BLOCK, PATIENCE, Volume};
use crate::counters::Sort;
use crate::device::Data;
use crate::faults::{self, Strike, Where};

/// What is to become of answers, and those that wait.
#[derive(Default)]
pub(super) struct Struck {
    aimed: BTreeMap<Io, (Strike, Command)>,
    late: Vec<(Instant, Session, Came)>,
}

impl Struck {
    /// An answer whose time has come.
    pub(super) fn due(&mut self, now: Instant) -> Option<(Session, Came)> {
        let nth = self.late.iter().position(|(at, ..)| *at <= now)?;
        let (_, session, came) = self.late.swap_remove(nth);
        Some((session, came))
    }
}

impl Volume {
    /// A command is about to be sent to a child.
    pub(super) fn aim(&mut self, io: Io, session: Session, command: Command) {
        let Some(child) = self.child(session).map(|child| child.replica) else { return };
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK);
        let span = command.span();
        let span = span.map_or(0..u64::MAX, |span| bytes(span.start().0)..bytes(span.end().0));
        let place = Where::Child(self.target(), child);
        if let Some(strike) = faults::strike(place, Sort::of(command), &span) {
            self.struck.aimed.insert(io, (strike, command));
        }
    }

    /// An answer of a child as it is to be seen, if it is to be seen now.
    pub(super) fn strike(
        &mut self,
        session: Session,
        mut came: Came,
        now: Instant,
    ) -> Option<Came> {
        let Came::Ended { io, result, data, .. } = &mut came else { return Some(came) };
        let Some((strike, command)) = self.struck.aimed.remove(io) else { return Some(came) };
        match strike {
            Strike::Fail => {
                let medium = command.span().map(|span| Fault::Medium { span });
                *result = Err(medium.unwrap_or(Fault::Internal));
            }
            Strike::Corrupt => {
                if let Data::Fill(buffer) = data {
                    faults::spoil(buffer);
                }
            }
            Strike::Later(time) => {
                self.struck.late.push((now.after(time), session, came));
                return None;
            }
            // As a connection on which nothing comes.
            Strike::Never => {
                *result = Err(Fault::TimedOut);
                self.struck.late.push((now.after(PATIENCE), session, came));
                return None;
            }
        }
        Some(came)
    }
}
