//! What an engine keeps with replicas and snapshots: labels and notes.

#![no_main]

use model::envelope::{Versioned, decode, encode};
use model::{ReplicaLabel, SyncMetadata, SnapshotLabel};

fn read<R: Versioned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(found) = decode::<R>(bytes) {
        let again = encode(&found).expect("what was read can be written");
        assert_eq!(decode::<R>(again.as_bytes()).as_ref(), Ok(&found));
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    read::<ReplicaLabel>(input);
    read::<SyncMetadata>(input);
    read::<SnapshotLabel>(input);
});
