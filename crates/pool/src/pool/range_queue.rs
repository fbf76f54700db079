//! Order of the commands of one replica.

pub(crate) use block::RangeAccess;

/// Number of an operation in the pool's table.
pub(crate) type OpId = u32;

/// The commands of one replica.
pub(crate) type RangeQueue = block::RangeQueue<OpId>;
