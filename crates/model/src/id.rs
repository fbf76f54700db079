//! Ids of things that people do not name: a UUID each, and no two kinds mix.
//!
//! Ids are chosen by the caller (a `PUT` with the same id is the same thing), so the nil UUID,
//! which every forgotten field would be, is refused. Making new ones needs randomness: not here.

use core::fmt;
use core::str::FromStr;

use uuid::Uuid;

use crate::ValidationError;
use crate::text::as_text;

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident = $what:literal;)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The id with this UUID, which must not be nil.
            pub fn new(uuid: Uuid) -> Result<$name, ValidationError> {
                if uuid.is_nil() {
                    return Err(ValidationError::text($what, "nil", "give a random UUID"));
                }
                Ok($name(uuid))
            }

            /// The UUID inside.
            pub fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = ValidationError;

            fn from_str(text: &str) -> Result<$name, ValidationError> {
                parse($what, text).and_then($name::new)
            }
        }

        as_text!($name, "format": "uuid");
    )+};
}

ids! {
    /// A volume; for a volume made by Kubernetes, the UUID in its `pvc-…` name.
    VolumeId = "volume id";
    /// One copy of a volume.
    ReplicaId = "replica id";
    /// One target of a volume; a volume gets a new one each time it moves.
    TargetId = "target id";
    /// A snapshot of a volume.
    SnapshotId = "snapshot id";
    /// Snapshots of several volumes taken at one moment.
    SnapshotGroupId = "snapshot group id";
    /// What is written in a pool's superblock: the pool itself, whatever node it hangs on.
    PoolUuid = "pool uuid";
    /// One run of a daemon: a new one after each start.
    InstanceId = "instance id";
    /// One rebuild of one child.
    RebuildId = "rebuild id";
    /// A store, from the first control plane that led over it on.
    StoreId = "store id";
    /// One failover of one volume.
    FailoverId = "failover id";
    /// One publication of a volume to a host: a new one each time the host is admitted.
    PublicationId = "publication id";
    /// A machine, whatever its name: the same after each boot.
    MachineId = "machine id";
}

impl RebuildId {
    /// The `nth` rebuild of a target: ids that need no randomness and do not meet.
    pub fn nth(target: TargetId, nth: u64) -> RebuildId {
        let mixed = u128::from(nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64;
        let uuid = Uuid::from_u128(target.0.as_u128() ^ (mixed | u128::from(nth)));
        // Nil only if the numbers happen to be equal; the target's own id then serves as well.
        RebuildId(if uuid.is_nil() { target.0 } else { uuid })
    }
}

/// Only the form with hyphens: one spelling for keys, names and searches.
fn parse(what: &'static str, text: &str) -> Result<Uuid, ValidationError> {
    let refused = || {
        ValidationError::text(
            what,
            text,
            "give a UUID such as 5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10",
        )
    };
    if text.len() != uuid::fmt::Hyphenated::LENGTH {
        return Err(refused());
    }
    Uuid::try_parse(text).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_id_is_refused_by_name() {
        for text in ["", "x", "00000000-0000-0000-0000-000000000000", "{5f0c54a1}"] {
            let refused = text.parse::<VolumeId>().unwrap_err().to_string();
            assert!(refused.starts_with("volume id "), "{refused}");
            assert!(refused.contains("UUID"), "{refused}");
        }
    }

    #[test]
    fn one_spelling_only() {
        let id: ReplicaId = "5F0C54A1-9D6E-4B6A-8A53-0C1F4B7F8A10".parse().unwrap();
        assert_eq!(id.to_string(), "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10");
        assert!("5f0c54a19d6e4b6a8a530c1f4b7f8a10".parse::<ReplicaId>().is_err());
        assert!("{5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10}".parse::<ReplicaId>().is_err());
    }

    proptest! {
        #[test]
        fn ids_survive_printing(bits in 1u128..) {
            let id = TargetId::new(Uuid::from_u128(bits)).unwrap();
            prop_assert_eq!(id.to_string().parse::<TargetId>().unwrap(), id);
            let json = serde_json::to_string(&id).unwrap();
            prop_assert_eq!(serde_json::from_str::<TargetId>(&json).unwrap(), id);
        }

        #[test]
        fn any_text_is_an_id_or_refused(text in ".{0,50}") {
            let _ = text.parse::<VolumeId>();
        }
    }
}
