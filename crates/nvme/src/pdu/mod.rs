//! Framing of NVMe/TCP: headers, digests, alignment.
//!
//! A PDU is a header, an optional header digest, padding, an optional payload and its digest:
//!
//! ```text
//! 0       8            HLEN      +4        PDO               PLEN-4    PLEN
//! +-------+--------------+---------+---------+------ … ------+---------+
//! | common| rest of head | HDGST?  | padding |    payload    | DDGST?  |
//! +-------+--------------+---------+---------+------ … ------+---------+
//! |<----------------- head ------------------>|
//! ```
//!
//! [`Reader`] takes the byte stream apart; [`Framing`] makes heads. Neither touches payload: the
//! reader says how many payload bytes come next and whoever owns the buffer puts them there.
//!
//! Invariant: a head that the reader hands out has passed every check that needs no knowledge of
//! the connection beyond its [`Framing`]: type, lengths, offsets, flags, header digest.
//!
//! Deliberately not here: whether a PDU makes sense at this moment, which is what the connection
//! machines of either side know.

mod error;
mod framing;
mod header;
mod reader;

pub use error::{FatalError, Fes};
pub use framing::{Align, Digests, Framing, InlineBytes};
pub use header::{
    CapsuleCmd, CapsuleResp, CommonHeader, DataHeader, IcReq, IcResp, PduType, R2t, TermReq, flags,
};
pub use reader::{Expect, Pdu, Progress, Reader, Received, Side};

/// Capsules of the admin queue carry at least this much data, as Linux assumes.
pub const ADMIN_CAPSULE_DATA: u32 = 8192;
/// Least value of MAXH2CDATA.
pub const MIN_MAXH2CDATA: u32 = 4096;

/// CRC-32C as the digests want it, of more bytes after those that gave `crc`; begin with zero.
pub fn digest(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests;
