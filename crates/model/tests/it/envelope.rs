//! What is read from the store and from disks, and what is not.

use block::testing::corpus;
use model::envelope::{DecodeError, decode, encode};
use model::*;
use proptest::prelude::*;

use crate::sample;

fn changed(change: impl Fn(&mut serde_json::Value)) -> Result<Volume, DecodeError> {
    let mut value = serde_json::from_str(&encode(&sample::volume()).unwrap()).unwrap();
    change(&mut value);
    decode(value.to_string().as_bytes())
}

#[test]
fn a_newer_version_is_refused_even_if_its_content_is_strange() {
    let refused = changed(|json| {
        json["version"] = 2.into();
        json["record"] = "something else".into();
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused, DecodeError::Newer { kind: "volume", found: 2, newest: 1 });
    assert!(refused.to_string().contains("upgrade Holdfast"), "{refused}");
}

#[test]
fn another_kind_or_damage_is_refused() {
    let other = decode::<Pool>(encode(&sample::volume()).unwrap().as_bytes()).unwrap_err();
    assert_eq!(other, DecodeError::OtherKind { expected: "pool", found: "volume".into() });
    for damage in [
        changed(|json| json["version"] = 0.into()),
        changed(|json| json["record"]["spec"]["size"] = (-1).into()),
        changed(|json| json["record"]["generation"] = 0.into()),
        changed(|json| json["record"]["id"] = "nil".into()),
    ] {
        assert!(matches!(damage, Err(DecodeError::Damaged { kind: "volume", .. })), "{damage:?}");
    }
}

#[test]
fn an_unknown_field_is_refused_by_name_wherever_it_is() {
    let places: [&[&str]; 6] = [
        &[],
        &["record"],
        &["record", "spec"],
        &["record", "spec", "topology", "nodes"],
        &["record", "lifecycle"],
        &["record", "lifecycle", "operation", "change"],
    ];
    for place in places {
        let refused = changed(|json| {
            let at = place.iter().fold(json, |json, &name| &mut json[name]);
            at["later"] = 1.into();
        });
        let refused = refused.expect_err(&format!("{place:?}")).to_string();
        assert!(refused.contains("later"), "{place:?}: {refused}");
    }
}

/// Reads what is kept with replicas and snapshots; what is read is written and read the same.
fn read_kept(bytes: &[u8]) {
    fn read<R: envelope::Versioned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        if let Ok(found) = decode::<R>(bytes) {
            assert_eq!(decode::<R>(encode(&found).unwrap().as_bytes()).as_ref(), Ok(&found));
        }
    }
    read::<ReplicaLabel>(bytes);
    read::<SyncMetadata>(bytes);
    read::<SnapshotLabel>(bytes);
}

fn kept() -> [(&'static str, String); 3] {
    [
        ("label", encode(&sample::label()).unwrap()),
        ("note", encode(&sample::note()).unwrap()),
        ("snapshot", encode(&sample::snapshot_label()).unwrap()),
    ]
}

#[test]
fn every_seed_and_every_find_of_the_fuzzer_is_survived() {
    let seeds = kept().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    for input in corpus(env!("CARGO_MANIFEST_DIR"), "pool_labels", &seeds).unwrap() {
        read_kept(&input);
    }
}

proptest! {
    #[test]
    fn no_change_of_what_is_kept_does_harm(
        which in 0usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = kept()[which].1.clone().into_bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_kept(&bytes);
        read_kept(&bytes[..cut.index(bytes.len())]);
    }

    #[test]
    fn any_bytes_are_a_record_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode::<TargetRecord>(&bytes).is_err());
    }

    /// A damaged record is refused or is another sound one; it never does harm.
    #[test]
    fn a_flipped_byte_does_no_harm(at: prop::sample::Index, byte: u8) {
        let mut bytes = encode(&sample::label()).unwrap().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(label) = decode::<ReplicaLabel>(&bytes) {
            prop_assert!(!label.set.in_sync().is_empty());
        }
    }
}

/// Whatever people stick on a volume, what is wanted of it has room beside its copies.
#[test]
fn a_memo_leaves_out_what_has_no_room() {
    let kept = |spec: &VolumeSpec| {
        let volume = Volume::new(*sample::volume().id(), spec.clone(), Timestamp::EPOCH).unwrap();
        let spec_backup = SpecBackup::of(&volume);
        assert!(spec_backup.fits());
        *spec_backup.spec
    };
    let labelled = |prefix: &str| {
        let long = "x".repeat(60);
        let labels = (10..10 + MOST_LABELS).map(|nth| {
            (
                format!("{prefix}{long}{nth}").parse().unwrap(),
                format!("{long}{nth}").parse().unwrap(),
            )
        });
        VolumeSpec { labels: labels.collect(), ..sample::volume_spec() }
    };
    let small = sample::volume_spec();
    assert_eq!(kept(&small), small);
    let many = labelled("");
    assert_eq!(kept(&many), many);
    let without = VolumeSpec { labels: Labels::new(), ..small };
    assert_eq!(kept(&labelled(&format!("{}/", "y".repeat(250)))), without);
}

#[test]
fn names_that_were_replaced_are_still_read() {
    let stored = encode(&sample::rebuild()).unwrap();
    let earlier = stored.replace("\"partial\"", "\"delta\"");
    assert_ne!(stored, earlier);
    assert_eq!(decode::<Rebuild>(earlier.as_bytes()).unwrap(), sample::rebuild());
    let earlier: Subject = serde_json::from_str(r#"{"kind":"watch","id":"pager"}"#).unwrap();
    assert_eq!(earlier, Subject::Webhook("pager".parse().unwrap()));
}
