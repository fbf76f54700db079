//! Sizes as people and JSON write them.
//!
//! JSON has whole bytes as a number. People type `10GiB`, `512Mi`, `1.5TiB` or `4096`.

use core::fmt;
use core::str::FromStr;

use alloc::format;
use block::Bytes;
use serde::{Deserialize, Serialize};

use crate::ValidationError;

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Size(u64);

impl Size {
    /// Nothing.
    pub const ZERO: Size = Size(0);
    /// Sizes of volumes and replicas are whole numbers of these.
    pub const BLOCK: Size = Size::kib(4);

    /// This many kibibytes.
    pub const fn kib(n: u32) -> Size {
        Size(Bytes::kib(n).0)
    }

    /// This many mebibytes.
    pub const fn mib(n: u32) -> Size {
        Size(Bytes::mib(n).0)
    }

    /// This many gibibytes.
    pub const fn gib(n: u32) -> Size {
        Size(Bytes::gib(n).0)
    }

    /// As a number with its unit.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }

    /// Both together, or the largest size there is.
    #[must_use]
    pub const fn plus(self, other: Size) -> Size {
        Size(self.0.saturating_add(other.0))
    }

    /// What is left without `other`; nothing if that is more.
    #[must_use]
    pub const fn minus(self, other: Size) -> Size {
        Size(self.0.saturating_sub(other.0))
    }

    /// So many hundredths of it, rounded up.
    #[must_use]
    pub fn percent(self, percent: u32) -> Size {
        let part = (u128::from(self.0) * u128::from(percent)).div_ceil(100);
        Size(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// How many hundredths of `whole` it is, rounded up; of nothing everything is too much.
    pub fn percent_of(self, whole: Size) -> u32 {
        let part = u128::from(self.0) * 100;
        match whole.0 {
            0 => u32::MAX,
            whole => u32::try_from(part.div_ceil(u128::from(whole))).unwrap_or(u32::MAX),
        }
    }

    /// Refuses a size outside `least..=most` or with a part of a block.
    pub fn check(self, field: &str, least: Size, most: Size) -> Result<(), ValidationError> {
        let whole = self.0.is_multiple_of(Size::BLOCK.0);
        if whole && (least..=most).contains(&self) {
            return Ok(());
        }
        let remedy = format!("give {least} to {most} in steps of {}", Size::BLOCK);
        Err(ValidationError::new(field, self, remedy))
    }
}

impl From<Bytes> for Size {
    fn from(bytes: Bytes) -> Size {
        Size(bytes.0)
    }
}

impl From<Size> for Bytes {
    fn from(size: Size) -> Bytes {
        size.bytes()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Units by their first letter: how often a thousand (or 1024) is multiplied by itself.
const POWERS: [(&str, u32); 6] = [("k", 1), ("m", 2), ("g", 3), ("t", 4), ("p", 5), ("e", 6)];

impl FromStr for Size {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<Size, ValidationError> {
        let refused = |why: &str| {
            ValidationError::text("size", text, format!("{why}; write 10GiB, 1.5TiB or 4096"))
        };
        let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit_bytes(unit.trim()).ok_or_else(|| refused("the unit is not known"))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        // 18 digits after the point are more than any whole number of bytes needs.
        if whole.is_empty() || part.is_empty() || part.len() > 18 || part.contains('.') {
            return Err(refused("that is not a number"));
        }
        let digits = |text: &str| text.parse::<u64>().map(u128::from);
        let scale = 10u128.pow(u32::try_from(part.len()).unwrap_or(18));
        let part = digits(part).map_err(|_| refused("that is not a number"))?;
        let whole = digits(whole).map_err(|_| refused("that is too large"))?;
        if !(part * unit).is_multiple_of(scale) {
            return Err(refused("that is not a whole number of bytes"));
        }
        // `whole` has at most 64 bits and `unit` at most 60: no overflow.
        let bytes = whole * unit + part * unit / scale;
        u64::try_from(bytes).map(Size).map_err(|_| refused("that is too large"))
    }
}

/// How many bytes one of this unit is: `GiB` and `Gi` count by 1024, `GB` and `G` by 1000.
fn unit_bytes(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    if unit.is_empty() {
        return Some(1);
    }
    let (letter, base) = match unit.strip_suffix('i') {
        Some(letter) => (letter, 1024u128),
        None => (unit, 1000),
    };
    let (_, power) = POWERS.iter().find(|(name, _)| *name == letter)?;
    Some(base.pow(*power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("4KiB", 4096),
            ("4ki", 4096),
            ("4 KiB", 4096),
            ("4k", 4000),
            ("1.5GiB", 3 << 29),
            ("10GB", 10_000_000_000),
            ("15EiB", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for (text, why) in [
            ("", "not a number"),
            ("GiB", "not a number"),
            ("ten", "unit"),
            ("-1", "unit"),
            ("1.2.3K", "not a number"),
            (".5K", "not a number"),
            ("1.", "not a number"),
            ("1XiB", "unit"),
            ("1iB", "unit"),
            ("0.1B", "whole number"),
            ("16EiB", "too large"),
            ("18446744073709551616", "too large"),
            ("1.0000000000000000001K", "not a number"),
        ] {
            let refused = text.parse::<Size>().unwrap_err().to_string();
            assert!(refused.contains(why) && refused.contains("10GiB"), "{text}: {refused}");
        }
    }

    #[test]
    fn json_has_whole_bytes_only() {
        assert_eq!(serde_json::to_string(&Size::gib(1)).unwrap(), "1073741824");
        assert_eq!(serde_json::from_str::<Size>("4096").unwrap(), Size::kib(4));
        for json in ["-1", "1.5", "\"1GiB\"", "1e3", "18446744073709551616", "null"] {
            assert!(serde_json::from_str::<Size>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn sums_and_parts_have_ends() {
        assert_eq!(Size::mib(1).plus(Size(u64::MAX)), Size(u64::MAX));
        assert_eq!(Size::mib(1).minus(Size::mib(2)), Size::ZERO);
        assert_eq!(Size::mib(3).minus(Size::mib(2)).plus(Size::mib(1)), Size::mib(2));
        assert_eq!((Size(10).percent(25), Size(10).percent(250)), (Size(3), Size(25)));
        assert_eq!(Size(u64::MAX).percent(200), Size(u64::MAX));
        assert_eq!((Size(1).percent_of(Size(3)), Size(3).percent_of(Size(3))), (34, 100));
        assert_eq!(
            (Size(0).percent_of(Size(0)), Size(u64::MAX).percent_of(Size(1))),
            (u32::MAX, u32::MAX)
        );
    }

    #[test]
    fn a_ragged_or_unfitting_size_names_its_field() {
        let check = |size: Size| size.check("size", Size::mib(1), Size::gib(1));
        assert_eq!(check(Size::mib(2)), Ok(()));
        let expected = "size 4097B is refused: give 1MiB to 1GiB in steps of 4KiB";
        assert_eq!(check(Size(4097)).unwrap_err().to_string(), expected);
        assert!(check(Size::gib(2)).is_err() && check(Size(0)).is_err());
    }

    proptest! {
        #[test]
        fn sizes_survive_printing(bytes: u64, shift in 0u32..64) {
            let size = Size(bytes >> shift << shift);
            prop_assert_eq!(size.to_string().parse::<Size>().unwrap(), size);
        }

        #[test]
        fn any_text_is_a_size_or_refused(text in "[0-9.]{0,30}[ a-zA-Z]{0,4}|\\PC{0,20}") {
            let _ = text.parse::<Size>();
        }
    }
}
