//! The range queue of the volume, and who of those in it may go on.
//!
//! Invariant **W2**: commands that share a block run one after the other, in the order they came. A
//! copy of a rebuild is such a command, and a snapshot one that conflicts with all writes.

use alloc::vec::Vec;

use block::{RangeAccess, RangeQueue};

use crate::context::Ticket;

/// The range queue, and who may go on.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    ranges: RangeQueue<Ticket>,
    ready: Vec<Ticket>,
}

impl Lane {
    pub(crate) fn enter(&mut self, ticket: Ticket, access: RangeAccess) {
        if self.ranges.enter(ticket, access) {
            self.ready.push(ticket);
        }
    }

    pub(crate) fn leave(&mut self, ticket: Ticket) {
        self.ranges.leave(ticket, &mut self.ready);
    }

    /// The next that may go on.
    pub(crate) fn next(&mut self) -> Option<Ticket> {
        self.ready.pop()
    }

    /// Whether somebody may go on.
    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether nobody is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}
