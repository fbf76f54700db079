//! One measured number, compared with where we want it to be.

use std::fmt;

/// Which side of the target is good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The value should reach this or more.
    AtLeast(f64),
    /// The value should stay at this or below.
    AtMost(f64),
    /// Printed to be watched; there is no target.
    Watched,
}

/// A figure prints as one line that people and scripts read alike:
/// `figure NAME VALUE UNIT target >=|<= VALUE met|short`.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Stable name, words joined by dashes.
    pub name: String,
    /// What was measured.
    pub value: f64,
    /// Unit of the value; ratios say `x`.
    pub unit: &'static str,
    /// Where we want it.
    pub target: Target,
}

impl Figure {
    /// Whether the target was reached; a watched figure always is.
    pub fn met(&self) -> bool {
        match self.target {
            Target::AtLeast(want) => self.value >= want,
            Target::AtMost(want) => self.value <= want,
            Target::Watched => true,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "figure {} {:.3} {}", self.name, self.value, self.unit)?;
        let verdict = if self.met() { "met" } else { "short" };
        match self.target {
            Target::AtLeast(want) => write!(f, " target >= {want} {verdict}"),
            Target::AtMost(want) => write!(f, " target <= {want} {verdict}"),
            Target::Watched => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_whether_it_falls_short() {
        let figure =
            |value, target| Figure { name: "cas-1".into(), value, unit: "x", target }.to_string();
        assert_eq!(figure(1.25, Target::AtLeast(1.0)), "figure cas-1 1.250 x target >= 1 met");
        assert_eq!(figure(0.99, Target::AtLeast(1.0)), "figure cas-1 0.990 x target >= 1 short");
        assert_eq!(figure(1.6, Target::AtMost(1.5)), "figure cas-1 1.600 x target <= 1.5 short");
        assert_eq!(figure(7.0, Target::Watched), "figure cas-1 7.000 x");
    }
}
