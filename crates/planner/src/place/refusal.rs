//! Why a place was not taken, for people.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use model::{LabelKey, LabelValue, NodeName, PoolName, Problem, ProblemKind, Size};

/// Why a pool or node was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody knows the node.
    #[error("its node {0} is not known")]
    NodeNotKnown(NodeName),
    /// The node does not answer.
    #[error("node {0} does not answer")]
    NodeAway(NodeName),
    /// The node takes nothing new.
    #[error("node {0} is cordoned")]
    NodeCordoned(NodeName),
    /// The node is being emptied.
    #[error("node {0} is being drained")]
    NodeDraining(NodeName),
    /// The volume may not lie there.
    #[error("node {0} is not one of the volume's allowed nodes")]
    NodeNotAllowed(NodeName),
    /// The labels of the node do not fit.
    #[error("the labels of node {0} do not fit the volume's rules")]
    NodeLabels(NodeName),
    /// A target of the volume is or was there.
    #[error("node {0} has a target of the volume already")]
    NodeHasTarget(NodeName),
    /// The only copy is elsewhere.
    #[error("node {0} has no copy of this volume, which has one only")]
    NodeWithoutCopy(NodeName),
    /// The pool is not to be used.
    #[error("it is exported")]
    Exported,
    /// The pool is not made, or is to go.
    #[error("it is not ready: {0}")]
    NotReady(&'static str),
    /// The pool does not work, or not well enough.
    #[error("it is {0}")]
    NotWell(&'static str),
    /// The pool takes nothing new.
    #[error("it is cordoned")]
    Cordoned,
    /// The labels of the pool do not fit.
    #[error("its labels do not fit the volume's rules")]
    Labels,
    /// One copy a node.
    #[error("node {0} has a copy of the volume already")]
    HasCopy(NodeName),
    /// One copy for each value of the label.
    #[error("another copy has the same {key}={value}, and copies are spread by it")]
    NotSpread {
        /// The label.
        key: LabelKey,
        /// Its value.
        value: LabelValue,
    },
    /// One value of the label for all copies.
    #[error("the other copies have another value of {0}, which all must share")]
    NotTheSame(LabelKey),
    /// One copy a zone.
    #[error("another copy is in zone {0}, and zones must differ")]
    SameZone(LabelValue),
    /// The zone must be known.
    #[error("node {0} has no zone, and zones must differ")]
    NoZone(NodeName),
    /// A volume of the group is there.
    #[error("node {0} has a volume of the same group, and each has one copy only")]
    HasGroup(NodeName),
    /// The pool is smaller than the volume.
    #[error("it has {0} in all, less than the volume")]
    TooSmall(Size),
    /// There is not enough room.
    #[error("it has {} free, and {} are needed", rounded_down(*free), rounded_up(*needed))]
    NoSpace {
        /// What there is.
        free: Size,
        /// What is needed.
        needed: Size,
    },
    /// Too much is promised already.
    #[error("{committed} would be promised of it, and {most} may be")]
    OverCommitted {
        /// With this one.
        committed: Size,
        /// At most.
        most: Size,
    },
    /// Healing leaves room for what is there.
    #[error("{} would be used, and copies that are healed may fill {most}", rounded_up(*used))]
    TooFull {
        /// With this one.
        used: Size,
        /// At most.
        most: Size,
    },
    /// A copy that is needed is not there.
    #[error("its copy of the volume does not answer")]
    CopyAway,
    /// It is the one to leave.
    #[error("the copy is there already")]
    SamePool,
}

impl Refusal {
    /// Whether more room would help.
    pub fn is_space(&self) -> bool {
        matches!(
            self,
            Refusal::TooSmall(_)
                | Refusal::NoSpace { .. }
                | Refusal::OverCommitted { .. }
                | Refusal::TooFull { .. }
        )
    }
}

/// There is no place; with what speaks against each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unplaceable {
    /// Of what kind the places are.
    what: &'static str,
    /// Each with its reason.
    pub refused: BTreeMap<String, Refusal>,
}

impl Unplaceable {
    pub(crate) fn of_pools(refused: Vec<(&PoolName, Refusal)>) -> Unplaceable {
        let refused = refused.into_iter().map(|(name, refusal)| (name.to_string(), refusal));
        Unplaceable { what: "pool", refused: refused.collect() }
    }

    pub(crate) fn of_nodes(refused: Vec<(&NodeName, Refusal)>) -> Unplaceable {
        let refused = refused.into_iter().map(|(name, refusal)| (name.to_string(), refusal));
        Unplaceable { what: "node", refused: refused.collect() }
    }
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.what.is_empty() { "place" } else { self.what };
        if self.refused.is_empty() {
            return write!(f, "there is no {what}");
        }
        write!(f, "no {what} will do:")?;
        for (at, (name, refusal)) in self.refused.iter().enumerate() {
            write!(f, "{} {name}: {refusal}", if at == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

impl core::error::Error for Unplaceable {}

impl From<Unplaceable> for Problem {
    /// For want of space only if some place needs nothing but that.
    fn from(none: Unplaceable) -> Problem {
        let space = none.refused.values().any(Refusal::is_space);
        Problem::new(if space { ProblemKind::NoSpace } else { ProblemKind::NoPlacement }, none)
    }
}

/// The largest unit in which a size has four digits or fewer: people read no more.
fn unit(size: Size) -> u64 {
    let mut unit = 1;
    while size.bytes().0 / unit >= 10_000 {
        unit *= 1024;
    }
    unit
}

fn rounded_down(size: Size) -> Size {
    let (unit, mut bytes) = (unit(size), size.bytes());
    bytes.0 -= bytes.0 % unit;
    bytes.into()
}

fn rounded_up(size: Size) -> Size {
    let (unit, mut bytes) = (unit(size), size.bytes());
    bytes.0 = bytes.0.div_ceil(unit).saturating_mul(unit);
    bytes.into()
}
