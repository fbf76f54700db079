//! What an engine keeps with replicas and snapshots: labels and notes.

#![no_main]

use model::stored::{Record, decode, encode};
use model::{Label, Note, SnapshotLabel};

fn read<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(found) = decode::<R>(bytes) {
        let again = encode(&found).expect("what was read can be written");
        assert_eq!(decode::<R>(again.as_bytes()).as_ref(), Ok(&found));
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    read::<Label>(input);
    read::<Note>(input);
    read::<SnapshotLabel>(input);
});
