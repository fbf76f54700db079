//! Closing pools: everything is written down first, and what is under way ends.

use pool::Id;
use reactor::{Io, Key};

use super::open::{PoolWrite, Then};
use super::{Carried, PoolError, PoolResponse, PoolSlot, Pools, State, Ticket};

/// A pool on its way out.
#[derive(Debug)]
pub(super) struct ClosingPool {
    ticket: Ticket,
    destroy: bool,
    /// The pool has said that everything is written down, or that it cannot be.
    answered: Option<Result<(), pool::Refused>>,
}

impl Pools {
    pub(super) fn begin_leaving(
        &mut self,
        ticket: Ticket,
        pool: Id,
        destroy: bool,
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let (slot, open) = self.find_open(pool)?;
        if open.leaving.is_some() {
            return Err(PoolError::Refused(pool::Refused::Busy));
        }
        open.leaving = Some(ClosingPool { ticket, destroy, answered: None });
        open.maintenance.stop_scrub();
        let token = self.pend(ticket, Carried::Leave { slot })?;
        self.find_open(pool)?.1.pool.export(token);
        self.drain(slot, io);
        self.leave_if_over(slot, io);
        Ok(())
    }

    /// The pool has written everything down, or cannot.
    pub(super) fn written_down(
        &mut self,
        slot: Key,
        result: Result<(), pool::Refused>,
        io: &mut impl Io,
    ) {
        let Some(open) = self.open_mut(slot) else { return };
        let Some(leaving) = &mut open.leaving else { return };
        if let (Err(refused), false) = (result, leaving.destroy) {
            let ticket = leaving.ticket;
            open.leaving = None;
            return self.answers.push_back((ticket, Err(refused.into())));
        }
        leaving.answered = Some(result);
        self.leave_if_over(slot, io);
    }

    /// Closes or destroys a pool that wants to leave, when nothing is under way in it any more.
    pub(super) fn leave_if_over(&mut self, slot: Key, io: &mut impl Io) {
        let Some(PoolSlot { disks, outstanding: 0, flights: 0, state, .. }) =
            self.slots.get_mut(slot)
        else {
            return;
        };
        let State::Open(open) = state else { return };
        let Some(ClosingPool { ticket, destroy, answered: Some(_) }) = open.leaving else { return };
        if destroy {
            let disks = u16::try_from(disks.len()).unwrap_or(u16::MAX);
            *state = State::Making(PoolWrite::new(ticket, pool::wipe(disks), Then::Close));
            self.make(slot, io);
        } else {
            self.close(slot, io);
            self.answers.push_back((ticket, Ok(PoolResponse::Done)));
        }
    }
}
