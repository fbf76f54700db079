//! Sizes as people type them.

use std::str::FromStr;

/// A number of bytes, typed like `4096`, `128KiB`, `10GiB` or `1TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let bad = || format!("{text:?} is not a size, such as 4096, 128KiB or 10GiB");
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift = match text.get(digits.len()..).unwrap_or_default() {
            "" | "B" => 0,
            "k" | "K" | "Ki" | "KiB" => 10,
            "M" | "Mi" | "MiB" => 20,
            "G" | "Gi" | "GiB" => 30,
            "T" | "Ti" | "TiB" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_two() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("4k", 4096), ("1MiB", 1 << 20), ("2Ti", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "1.5GiB", "1 GiB", "1MB", "99999999999TiB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
