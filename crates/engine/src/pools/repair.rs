//! Repairs of damaged blocks, with bytes that come from another copy.

use block::{Command, IoError};
use pool::Id;
use reactor::Io;

use super::pool_command::BlockCipher;
use super::{Carried, PoolError, Pools, Ticket};

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
}
