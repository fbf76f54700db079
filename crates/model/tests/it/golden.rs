//! Every resource as JSON, in files that may only change on purpose.
//!
//! `HOLDFAST_BLESS=1 cargo test -p model golden` writes them anew.

use std::fmt::Debug;
use std::path::Path;

use model::envelope::{Versioned, decode, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::sample;

/// The value is written as the file says, and the file is read as the value.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, value: &T) {
    let text = serde_json::to_string_pretty(value).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{name}: {error}; run again with HOLDFAST_BLESS=1"));
    assert_eq!(text, golden, "{name} has changed: is that meant? HOLDFAST_BLESS=1 accepts it");
    assert_eq!(&serde_json::from_str::<T>(&golden).unwrap(), value, "{name}");
}

/// The same for a record of the store or of a disk, with its kind and version.
fn check_stored<R: Versioned + PartialEq + Debug>(name: &str, record: &R) {
    let stored = encode(record).unwrap();
    assert_eq!(&decode::<R>(stored.as_bytes()).unwrap(), record);
    check(name, &serde_json::from_str::<serde_json::Value>(&stored).unwrap());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    assert_eq!(&decode::<R>(&std::fs::read(path).unwrap()).unwrap(), record, "{name}");
}

#[test]
fn resources() {
    check("node.json", &sample::node());
    check("heartbeat.json", &sample::heartbeat());
    check("host.json", &sample::host());
    check("pool.json", &sample::pool());
    check("replica.json", &sample::replica());
    check("target.json", &sample::target());
    check("target-order.json", &sample::target().order());
    check("volume.json", &sample::volume());
    check("volume-small.json", &sample::small_volume());
    check("snapshot.json", &sample::snapshot());
    check("snapshot-group.json", &sample::snapshot_group());
    check("watch.json", &sample::watch());
    check("block-device.json", &sample::block_device());
    check(
        "problem.json",
        &model::Problem {
            field: Some("topology.nodes.spread".into()),
            request: Some("01HF".into()),
            ..sample::problem()
        },
    );
}

#[test]
fn records() {
    check_stored("stored-volume.json", &sample::volume());
    check_stored("stored-target-record.json", &sample::target_record());
    check_stored("stored-replica-label.json", &sample::label());
    check_stored("stored-replica-note.json", &sample::note());
    check_stored("stored-volume-memo.json", &model::SpecBackup::of(&sample::volume()));
    check_stored("stored-snapshot-label.json", &sample::snapshot_label());
    check_stored("stored-failover.json", &sample::failover());
    check_stored("stored-rebuild.json", &sample::rebuild());
    check_stored("stored-quarantine.json", &sample::quarantine());
    check_stored("stored-event.json", &sample::event());
}

/// The table that callers program against.
#[test]
fn error_kinds() {
    use std::fmt::Write;
    let mut table = String::new();
    for kind in model::ProblemKind::ALL {
        let csi = kind.csi();
        writeln!(table, "{kind:18} {} {:2} {csi:?} {:?}", kind.http(), csi.number(), kind.class())
            .unwrap();
    }
    check("error-kinds.json", &table.lines().map(String::from).collect::<Vec<_>>());
}
