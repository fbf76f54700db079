//! Numbers that only grow, and the refusal of orders that come late.
//!
//! Invariant: a generation stands for one content. Whoever sends the same number again sends the
//! same content again; whoever has a newer number refuses an older one.

use core::fmt;
use core::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::{Problem, ProblemKind};

/// How far a recovery goes ahead: at a thousand changes a second somebody else needs fifty days.
const LEAP: u64 = 1 << 32;

macro_rules! growing {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// The first one.
            pub const FIRST: $name = $name(NonZeroU64::MIN);

            /// The one with this number; nothing is numbered zero.
            pub fn new(number: u64) -> Option<$name> {
                NonZeroU64::new(number).map($name)
            }

            /// The one after. The last one has no other after it: who sends it with other content
            /// is refused, and at a million a second it comes after half a million years.
            #[must_use]
            pub fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }

            /// One so far above that nothing which was numbered elsewhere meanwhile reaches it;
            /// absent: there is none.
            pub fn leap(self) -> Option<$name> {
                self.0.checked_add(LEAP).map($name)
            }

            /// Its number.
            pub fn number(self) -> u64 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

growing! {
    /// Number of a spec, or of the state of a set of replicas.
    Generation;
    /// Number of the ownership of a volume; grows with each new target. It is also the key with
    /// which that target registers at the replicas, and they refuse lower ones.
    Epoch;
}

/// What one side orders from the other: everything that is wanted, never a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schemars(rename = "VersionedSpecOf{T}"))]
pub struct VersionedSpec<T> {
    /// Number of this content.
    pub generation: Generation,
    /// The wanted content.
    pub spec: T,
}

/// What an order asks of somebody who already has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Something new: do it.
    New,
    /// The same order again: answer as the first time.
    Again,
}

/// Why an order was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerationConflict {
    /// It was overtaken by a later one.
    #[error("generation {sent} is late: {have} has been seen; read the newest state and try again")]
    Stale {
        /// What was sent.
        sent: Generation,
        /// What is held.
        have: Generation,
    },
    /// Two contents with one number: one of the senders is not the owner, or has a bug.
    #[error("generation {0} was sent before with other content; use a new generation")]
    SameNumberOtherContent(Generation),
}

impl<T: PartialEq> VersionedSpec<T> {
    /// Whether this order may follow the one that is held.
    pub fn admit(&self, held: Option<&VersionedSpec<T>>) -> Result<Admission, GenerationConflict> {
        let Some(held) = held else { return Ok(Admission::New) };
        let (sent, have) = (self.generation, held.generation);
        if sent < have {
            return Err(GenerationConflict::Stale { sent, have });
        }
        if sent > have {
            return Ok(Admission::New);
        }
        let same = self.spec == held.spec;
        same.then_some(Admission::Again).ok_or(GenerationConflict::SameNumberOtherContent(sent))
    }
}

impl From<GenerationConflict> for Problem {
    fn from(refused: GenerationConflict) -> Problem {
        let kind = match refused {
            GenerationConflict::Stale { .. } => ProblemKind::StaleGeneration,
            GenerationConflict::SameNumberOtherContent(_) => ProblemKind::GenerationReused,
        };
        Problem::new(kind, refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_numbered_zero() {
        assert!(serde_json::from_str::<Generation>("0").is_err());
        assert_eq!(serde_json::from_str::<Epoch>("1").unwrap(), Epoch::FIRST);
        let last = Epoch::new(u64::MAX).unwrap();
        assert_eq!(last.next(), last);
    }

    proptest! {
        #[test]
        fn generations_never_go_back(sent in prop::collection::vec((1u64..8, 0u8..3), 0..40)) {
            let mut held: Option<VersionedSpec<u8>> = None;
            for (number, spec) in sent {
                let order = VersionedSpec { generation: Generation::new(number).unwrap(), spec };
                let before = held.clone();
                match order.admit(held.as_ref()) {
                    Ok(Admission::New) => held = Some(order),
                    Ok(Admission::Again) => prop_assert_eq!(Some(&order), held.as_ref()),
                    Err(GenerationConflict::Stale { sent, have }) => prop_assert!(sent < have),
                    Err(GenerationConflict::SameNumberOtherContent(number)) => {
                        prop_assert_eq!(Some(number), held.as_ref().map(|held| held.generation));
                    }
                }
                prop_assert!(held.as_ref().map(|o| o.generation) >= before.map(|o| o.generation));
            }
        }
    }
}
