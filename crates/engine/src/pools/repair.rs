//! Repairs of damaged blocks, with bytes that come from another copy; and reads for such repairs.

use block::{Command, IoError};
use pool::Id;
use reactor::{Io, Token};

use super::pool_command::{BlockCipher, PoolCommand, Submitter};
use super::{Carried, FLIGHT, PoolError, Pools, State, Ticket};
use crate::clock::instant;
use crate::counters::OpTimer;
use crate::device::Data;

impl Pools {
    /// Writes good bytes, as hosts see them, over damaged blocks of a replica or snapshot.
    pub(super) fn repair(
        &mut self,
        ticket: Ticket,
        pool: Id,
        (id, span): (Id, block::Span),
        bytes: &[u8],
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        let mut buffer = self.arena()?.take(bytes.len()).ok_or(PoolError::Full)?;
        buffer.copy_from_slice(bytes);
        let (_, open) = self.find_open(pool)?;
        let is_encrypted = open.pool.entity(id).is_some_and(pool::Entity::is_encrypted);
        match open.sealed(id, Command::Compare { span }) {
            Some(BlockCipher { cipher, first }) => cipher.encrypt(first, &mut buffer),
            None if is_encrypted => return Err(PoolError::Fault(IoError::Locked)),
            None => {}
        }
        let bytes = buffer.freeze();
        let token = self.pend(ticket, Carried::Repair(bytes.clone()))?;
        self.find_open(pool)?.1.pool.repair(token, id, span, &bytes);
        self.drain(slot, io);
        Ok(())
    }

    /// Reads a block of a replica or snapshot, decrypted if it has to be.
    pub(super) fn read_block(
        &mut self,
        ticket: Ticket,
        pool: Id,
        (id, span): (Id, block::Span),
        io: &mut impl Io,
    ) -> Result<(), PoolError> {
        let slot = self.find(pool)?;
        let buffer = self.arena()?.take(pool::BLOCK).ok_or(PoolError::Full)?;
        let command = Command::Read { span };
        let counted = (id, OpTimer::new(command, instant(io)));
        let sealed = self.find_open(pool)?.1.sealed(id, command);
        let owner = (Submitter::Order(ticket), counted);
        let flight = PoolCommand::new(owner, sealed, Data::Fill(buffer), |_| None);
        let key = flight.ok().and_then(|flight| self.flights.insert(flight).ok());
        let token = pool::CommandId(Token::of(FLIGHT, key.ok_or(PoolError::Full)?).0);
        let home = self.slots.get_mut(slot).ok_or(PoolError::NotFound)?;
        home.flights += 1;
        if let State::Open(open) = &mut home.state {
            open.pool.submit(token, id, command, &[]);
        }
        self.drain(slot, io);
        Ok(())
    }
}
