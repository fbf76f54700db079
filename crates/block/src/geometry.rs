//! The shape of a device: how large a block is, and how many there are.

use core::fmt;

use crate::{Blocks, Bytes, Lba, Span};

/// Size of a block: a power of two from 512 bytes to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize {
    shift: u8,
}

impl BlockSize {
    /// 512 bytes.
    pub const B512: BlockSize = BlockSize { shift: 9 };
    /// 4096 bytes, the block of every pool.
    pub const B4096: BlockSize = BlockSize { shift: 12 };

    /// A block of this many bytes.
    pub fn new(bytes: u32) -> Result<BlockSize, BadGeometry> {
        match bytes.trailing_zeros() {
            shift @ 9..=16 if bytes.is_power_of_two() => {
                // In 9..=16, so it fits.
                Ok(BlockSize { shift: u8::try_from(shift).unwrap_or(u8::MAX) })
            }
            _ => Err(BadGeometry::BlockSize { bytes }),
        }
    }

    /// Base-two logarithm of the size, as NVMe's LBADS wants it.
    pub fn shift(self) -> u8 {
        self.shift
    }

    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        1 << self.shift
    }

    /// How many bytes that many blocks are, if it fits.
    pub fn bytes_of(self, blocks: Blocks) -> Option<Bytes> {
        blocks.0.checked_mul(u64::from(self.bytes())).map(Bytes)
    }

    /// How many blocks that many bytes are, if they are whole blocks.
    pub fn blocks_of(self, bytes: Bytes) -> Option<Blocks> {
        bytes.0.is_multiple_of(u64::from(self.bytes())).then_some(Blocks(bytes.0 >> self.shift))
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(u64::from(self.bytes())).fmt(f)
    }
}

/// Why a shape was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGeometry {
    /// Not a power of two in the supported range.
    #[error("a block of {bytes} bytes is not supported; use a power of two from 512 to 65536")]
    BlockSize {
        /// What was asked for.
        bytes: u32,
    },
    /// No block at all, or more bytes than an address can count.
    #[error("a device of {} blocks of {block_size} cannot be addressed", .blocks.0)]
    Size {
        /// The block size asked for.
        block_size: BlockSize,
        /// The number of blocks asked for.
        blocks: Blocks,
    },
    /// The size is not a whole number of blocks.
    #[error("{bytes} is not a whole number of {block_size} blocks")]
    Ragged {
        /// The block size asked for.
        block_size: BlockSize,
        /// The size asked for.
        bytes: Bytes,
    },
}

/// A device: at least one block, and its size in bytes fits a `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    block_size: BlockSize,
    blocks: Blocks,
}

impl Geometry {
    /// A device of `blocks` blocks.
    pub fn new(block_size: BlockSize, blocks: Blocks) -> Result<Geometry, BadGeometry> {
        match block_size.bytes_of(blocks) {
            Some(bytes) if bytes > Bytes::ZERO => Ok(Geometry { block_size, blocks }),
            _ => Err(BadGeometry::Size { block_size, blocks }),
        }
    }

    /// A device of `bytes` bytes, which must be whole blocks.
    pub fn of_bytes(block_size: BlockSize, bytes: Bytes) -> Result<Geometry, BadGeometry> {
        let blocks =
            block_size.blocks_of(bytes).ok_or(BadGeometry::Ragged { block_size, bytes })?;
        Geometry::new(block_size, blocks)
    }

    /// Size of a block.
    pub fn block_size(self) -> BlockSize {
        self.block_size
    }

    /// Number of blocks, never zero.
    pub fn blocks(self) -> Blocks {
        self.blocks
    }

    /// Size in bytes.
    pub fn bytes(self) -> Bytes {
        // Checked when the geometry was made.
        Bytes(self.blocks.0 << self.block_size.shift)
    }

    /// The whole device.
    pub fn span(self) -> Span {
        // A geometry has at least one block and starts at zero: this is always `Some`.
        Span::new(Lba(0), self.blocks).unwrap_or_else(|| unreachable!("an empty geometry"))
    }

    /// Whether all of `span` exists on this device.
    pub fn contains(self, span: Span) -> bool {
        span.end().0 <= self.blocks.0
    }

    /// The span of a byte range, if it is aligned, not empty and on this device.
    pub fn span_of(self, offset: Bytes, len: Bytes) -> Option<Span> {
        let start = Lba(self.block_size.blocks_of(offset)?.0);
        let span = Span::new(start, self.block_size.blocks_of(len)?)?;
        self.contains(span).then_some(span)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn block_sizes() {
        assert_eq!(BlockSize::new(512), Ok(BlockSize::B512));
        assert_eq!(BlockSize::new(4096), Ok(BlockSize::B4096));
        for bytes in [0, 1, 256, 513, 4095, 131_072, u32::MAX] {
            assert_eq!(BlockSize::new(bytes), Err(BadGeometry::BlockSize { bytes }));
        }
    }

    #[test]
    fn refusals_name_the_thing() {
        let ragged = Geometry::of_bytes(BlockSize::B4096, Bytes(4097)).unwrap_err();
        assert_eq!(ragged.to_string(), "4097B is not a whole number of 4KiB blocks");
        assert!(Geometry::new(BlockSize::B4096, Blocks(0)).is_err());
        assert!(Geometry::new(BlockSize::B4096, Blocks(u64::MAX)).is_err());
    }

    proptest! {
        #[test]
        fn byte_ranges_become_spans_only_when_exact(
            offset in 0u64..40_000, len in 0u64..40_000, blocks in 1u64..10
        ) {
            let device = Geometry::new(BlockSize::B4096, Blocks(blocks)).unwrap();
            let exact = offset % 4096 == 0 && len % 4096 == 0 && len > 0
                && offset + len <= device.bytes().0;
            let span = device.span_of(Bytes(offset), Bytes(len));
            prop_assert_eq!(span.is_some(), exact);
            if let Some(span) = span {
                prop_assert!(device.span().covers(span));
                prop_assert_eq!(BlockSize::B4096.bytes_of(span.len()), Some(Bytes(len)));
            }
        }
    }
}
