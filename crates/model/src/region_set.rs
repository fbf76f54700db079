//! A set of regions of a volume: which were written, or missed.
//!
//! A region is a fixed number of blocks. Region 0 begins at block 0; the last one may reach beyond
//! the end of the volume. As JSON: the blocks of a region, and one bit a region in hexadecimal,
//! lowest region first, without the zeros at the end.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;
use core::num::NonZeroU64;

use block::{Blocks, Lba, Span};
use serde::{Deserialize, Serialize};

use crate::ValidationError;

/// A set of regions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Written", try_from = "Written")]
pub struct RegionSet {
    blocks: NonZeroU64,
    /// Without zeros at the end, so that equal sets are equal.
    words: Vec<u64>,
}

impl RegionSet {
    /// Most regions of a set: its bitmap stays within 64 KiB.
    pub const MOST: u64 = 1 << 19;
    /// Smallest region that is worth a bit: 1 MiB of 4 KiB blocks.
    const LEAST: u64 = 256;
    /// A volume gets no more regions than this when it is opened.
    const USUAL: u64 = 1 << 16;

    /// No regions, each of which would have so many blocks.
    pub fn new(blocks: NonZeroU64) -> RegionSet {
        RegionSet { blocks, words: Vec::new() }
    }

    /// The usual size of a region for a volume of this size.
    pub fn default_for(volume: Blocks) -> NonZeroU64 {
        let blocks = volume.0.div_ceil(RegionSet::USUAL).next_power_of_two().max(RegionSet::LEAST);
        NonZeroU64::new(blocks).unwrap_or(NonZeroU64::MIN)
    }

    /// Blocks of a region.
    pub fn blocks(&self) -> NonZeroU64 {
        self.blocks
    }

    /// The region of a block.
    pub fn region(&self, at: Lba) -> u64 {
        at.0 / self.blocks
    }

    /// The regions that a span touches.
    pub fn touched(&self, span: Span) -> core::ops::RangeInclusive<u64> {
        self.region(span.start())..=self.region(Lba(span.end().0 - 1))
    }

    /// The blocks of a region on a volume of this size.
    pub fn span(&self, region: u64, volume: Blocks) -> Option<Span> {
        let start = region.checked_mul(self.blocks.get())?;
        let end = start.saturating_add(self.blocks.get()).min(volume.0);
        Span::between(Lba(start), Lba(end))
    }

    /// Adds a region; one beyond the most there may be is not added.
    pub fn insert(&mut self, region: u64) {
        let Ok(at) = usize::try_from(region / 64) else { return };
        if region >= RegionSet::MOST {
            return;
        }
        if self.words.len() <= at {
            self.words.resize(at + 1, 0);
        }
        if let Some(word) = self.words.get_mut(at) {
            *word |= 1 << (region % 64);
        }
    }

    /// Adds every region of a volume of this size.
    pub fn fill(&mut self, volume: Blocks) {
        for region in 0..volume.0.div_ceil(self.blocks.get()) {
            self.insert(region);
        }
    }

    /// Takes a region out.
    pub fn remove(&mut self, region: u64) {
        let word = usize::try_from(region / 64).ok().and_then(|at| self.words.get_mut(at));
        if let Some(word) = word {
            *word &= !(1 << (region % 64));
        }
        self.trim();
    }

    /// Whether a region is in the set.
    pub fn contains(&self, region: u64) -> bool {
        let word = usize::try_from(region / 64).ok().and_then(|at| self.words.get(at));
        word.is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    /// Whether some region that the span touches is in the set.
    pub fn touches(&self, span: Span) -> bool {
        !self.is_empty() && self.touched(span).any(|region| self.contains(region))
    }

    /// Adds all of another set, whatever the size of its regions.
    pub fn add(&mut self, other: &RegionSet) {
        for region in other.iter() {
            if other.blocks == self.blocks {
                self.insert(region);
            } else if let Some(span) = other.span(region, Blocks(u64::MAX)) {
                for region in self.touched(span) {
                    self.insert(region);
                }
            }
        }
    }

    /// Whether no region is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// How many regions are in the set.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The regions, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let bits = |(at, word): (u64, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        };
        (0..).zip(&self.words).flat_map(bits)
    }

    /// The first region at or after this one.
    pub fn next_from(&self, region: u64) -> Option<u64> {
        let from = usize::try_from(region / 64).ok()?;
        let mut mask = u64::MAX << (region % 64);
        for (at, word) in (0u64..).zip(&self.words).skip(from) {
            if word & mask != 0 {
                return Some(at * 64 + u64::from((word & mask).trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    fn trim(&mut self) {
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }
}

/// As it stands in JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    blocks: NonZeroU64,
    bits: String,
}

impl From<RegionSet> for Written {
    fn from(regions: RegionSet) -> Written {
        let mut bits = String::with_capacity(regions.words.len() * 16);
        for byte in regions.words.iter().flat_map(|word| word.to_le_bytes()) {
            // Writing to a string cannot fail.
            let _ = write!(bits, "{byte:02x}");
        }
        let end = bits.trim_end_matches('0').len().next_multiple_of(2);
        bits.truncate(end);
        Written { blocks: regions.blocks, bits }
    }
}

impl TryFrom<Written> for RegionSet {
    type Error = ValidationError;

    fn try_from(written: Written) -> Result<RegionSet, ValidationError> {
        let refused = || {
            let shown: String = written.bits.chars().take(32).collect();
            ValidationError::text("bits", &shown, "give whole bytes in hexadecimal, 65536 at most")
        };
        let digits = written.bits.as_bytes();
        let most = RegionSet::MOST / 4;
        if !digits.len().is_multiple_of(2) || u64::try_from(digits.len()).is_ok_and(|n| n > most) {
            return Err(refused());
        }
        let mut words = Vec::new();
        for word in digits.chunks(16) {
            let mut value = 0;
            for (nth, byte) in word.chunks_exact(2).enumerate() {
                let text = core::str::from_utf8(byte).map_err(|_| refused())?;
                if !byte.iter().all(u8::is_ascii_hexdigit) {
                    return Err(refused());
                }
                value |= u64::from_str_radix(text, 16).map_err(|_| refused())? << (8 * nth);
            }
            words.push(value);
        }
        let mut regions = RegionSet { blocks: written.blocks, words };
        regions.trim();
        Ok(regions)
    }
}

impl core::fmt::Display for RegionSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let shown: Vec<String> = self.iter().take(8).map(|region| region.to_string()).collect();
        let more =
            if self.len() > 8 { format!(" and {} more", self.len() - 8) } else { String::new() };
        write!(f, "regions [{}]{more} of {} blocks", shown.join(" "), self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    fn of(blocks: u64, regions: &[u64]) -> RegionSet {
        let mut set = RegionSet::new(NonZeroU64::new(blocks).unwrap());
        for region in regions {
            set.insert(*region);
        }
        set
    }

    #[test]
    fn nonsense_is_refused() {
        for bits in ["0", "0g", "+1", "  "] {
            let json = format!("{{\"blocks\":256,\"bits\":\"{bits}\"}}");
            assert!(serde_json::from_str::<RegionSet>(&json).is_err(), "{bits}");
        }
        assert!(serde_json::from_str::<RegionSet>("{\"blocks\":0,\"bits\":\"\"}").is_err());
    }

    #[test]
    fn regions_of_another_size_are_covered() {
        let mut wide = of(8, &[]);
        wide.add(&of(4, &[1, 2, 5]));
        assert_eq!(wide, of(8, &[0, 1, 2]));
        let mut narrow = of(4, &[]);
        narrow.add(&of(8, &[1]));
        assert_eq!(narrow, of(4, &[2, 3]));
    }

    #[test]
    fn a_volume_has_a_bounded_number_of_regions() {
        assert_eq!(RegionSet::default_for(Blocks(1)).get(), 256);
        assert_eq!(RegionSet::default_for(Blocks(1 << 28)).get(), 4096);
        let mut all = of(256, &[]);
        all.fill(Blocks(1000));
        assert_eq!(all, of(256, &[0, 1, 2, 3]));
        assert_eq!(all.span(3, Blocks(1000)), Span::new(Lba(768), Blocks(232)));
    }

    proptest! {
        #[test]
        fn a_set_is_a_set(numbers in proptest::collection::vec(0u64..300, 0..40), gone: Vec<u8>) {
            let mut set = of(16, &numbers);
            let mut model: BTreeSet<u64> = numbers.into_iter().collect();
            for region in gone.into_iter().map(u64::from) {
                set.remove(region);
                model.remove(&region);
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!(set.is_empty(), model.is_empty());
            for from in 0..310 {
                prop_assert_eq!(set.next_from(from), model.range(from..).next().copied());
            }
            let json = serde_json::to_string(&set).unwrap();
            prop_assert_eq!(serde_json::from_str::<RegionSet>(&json).unwrap(), set);
        }
    }
}
