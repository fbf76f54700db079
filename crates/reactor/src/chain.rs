//! What goes out in one send.

use crate::memory::SharedBuffer;

/// Pieces of bytes in the order they go on the wire: small ones copied into the chain (headers),
/// large ones taken along without copying (payloads).
///
/// A chain that was sent comes back and can be used again, so sending allocates only until its
/// room has grown to what the connection needs.
#[derive(Debug, Default)]
pub struct Chain {
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    len: usize,
}

#[derive(Debug)]
enum Piece {
    Copied { start: usize, end: usize },
    Taken(SharedBuffer),
}

impl Chain {
    /// More pieces than this are better sent in two goes.
    pub const MANY_PIECES: usize = 128;

    /// An empty chain.
    pub fn new() -> Chain {
        Chain::default()
    }

    /// Appends a copy of `bytes`.
    pub fn copy(&mut self, bytes: &[u8]) {
        self.write(|copied| copied.extend_from_slice(bytes));
    }

    /// Appends what `fill` pushes; it must only push.
    pub fn write(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let before = self.copied.len();
        fill(&mut self.copied);
        let after = self.copied.len().max(before);
        self.len += after - before;
        match self.pieces.last_mut() {
            Some(Piece::Copied { end, .. }) if *end == before => *end = after,
            _ if after > before => self.pieces.push(Piece::Copied { start: before, end: after }),
            _ => {}
        }
    }

    /// Appends a payload without copying it.
    pub fn take(&mut self, payload: SharedBuffer) {
        if !payload.is_empty() {
            self.len += payload.len();
            self.pieces.push(Piece::Taken(payload));
        }
    }

    /// All bytes of all pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it has so many pieces that the rest should go into another one.
    pub fn is_full(&self) -> bool {
        self.pieces.len() >= Chain::MANY_PIECES
    }

    /// Lets go of all payloads, keeps the room.
    pub fn clear(&mut self) {
        self.copied.clear();
        self.pieces.clear();
        self.len = 0;
    }

    /// The pieces in order, none of them empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| match piece {
            Piece::Copied { start, end } => self.copied.get(*start..*end).unwrap_or_default(),
            Piece::Taken(payload) => payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Arena, Class, PAGE};

    #[test]
    fn order_is_kept_and_neighbouring_copies_join() {
        let arena = Arena::new(&[Class { bytes: PAGE, count: 1 }]).unwrap();
        let mut buffer = arena.take(3).unwrap();
        buffer.copy_from_slice(b"pay");
        let mut chain = Chain::new();
        chain.copy(b"he");
        chain.copy(b"ad");
        chain.take(buffer.freeze());
        chain.copy(b"");
        chain.copy(b"tail");
        let pieces: Vec<&[u8]> = chain.pieces().collect();
        assert_eq!(pieces, [&b"head"[..], b"pay", b"tail"]);
        assert_eq!(chain.len(), 11);
        assert!(arena.take(1).is_none(), "the chain keeps its payload");
        chain.clear();
        assert!(chain.is_empty() && arena.take(1).is_some());
    }
}
