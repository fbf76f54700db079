//! Under which key each record lies in the store: the one place that says so.
//!
//! ```text
//! /holdfast/leader                     which control plane leads; hangs on its lease
//! /holdfast/volume/ID                  a resource, by its kind and id
//! /holdfast/targetRecord/VOLUME        who owns a volume; written by the engine of its target
//! /holdfast/failover/ID                a target on the move
//! /holdfast/rebuild/ID                 a rebuild that has ended
//! /holdfast/scrubbed/REPLICA           when a copy was last checked to the end
//! /holdfast/compared/VOLUME            when its copies were last compared, and how far that is
//! /holdfast/storeSequence/cluster      how far the store has come
//! /holdfast/quarantine/REPLICA         a copy that is set aside
//! /holdfast/maintenance/cluster        failover and healing are paused, and until when
//! /holdfast/event/NUMBER               something that happened; 20 digits, so that order is order
//! ```
//!
//! The kind in a key is the kind in the record ([`crate::envelope`]).

use alloc::format;
use alloc::string::String;
use core::fmt::Display;

use crate::VolumeId;
use crate::envelope::Versioned;

/// Every key of Holdfast begins with this.
pub const ROOT: &str = "/holdfast/";

/// The key that says which control plane leads.
pub const LEADER: &str = "/holdfast/leader";

/// What the keys of all records of a kind begin with.
pub fn all<R: Versioned>() -> String {
    format!("{ROOT}{}/", R::KIND)
}

/// The key of one record.
pub fn of<R: Versioned>(id: impl Display) -> String {
    format!("{ROOT}{}/{id}", R::KIND)
}

/// The key of the record that says who owns a volume.
pub fn target_record(volume: VolumeId) -> String {
    of::<crate::TargetRecord>(volume)
}

/// The key of an event.
pub fn event(number: u64) -> String {
    of::<crate::Event>(format_args!("{number:020}"))
}

/// The kind and the rest of a key of ours.
pub fn parse(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix(ROOT)?.split_once('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_drawn() {
        let volume: VolumeId = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10".parse().unwrap();
        let of_volume = of::<crate::Volume>(volume);
        assert_eq!(of_volume, "/holdfast/volume/5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10");
        assert!(target_record(volume).starts_with("/holdfast/targetRecord/5f0c"));
        assert_eq!(event(7), "/holdfast/event/00000000000000000007");
        assert_eq!(all::<crate::Volume>(), "/holdfast/volume/");
        assert_eq!(parse(&event(7)), Some(("event", "00000000000000000007")));
        assert_eq!(parse(LEADER), None);
        assert_eq!(parse("/other/volume/x"), None);
    }
}
