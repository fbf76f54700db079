//! The manifests that people begin with say nothing that the driver would refuse.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use csi::parameters;

type Given = BTreeMap<String, String>;

/// The documents of a file, each with its kind and its `parameters`.
fn documents(file: &str) -> Vec<(String, Given)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/kubernetes");
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let read = |document: &str| {
        let kind = document.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap();
        let lines = document.lines().skip_while(|line| *line != "parameters:").skip(1);
        let given = lines.map_while(|line| line.strip_prefix("  ")?.split_once(": "));
        let given = given.map(|(name, text)| (name.to_owned(), text.trim_matches('"').to_owned()));
        (kind.to_owned(), given.collect())
    };
    text.split("---\n").map(read).collect()
}

#[test]
fn every_class_of_the_examples_is_understood() {
    let mut seen = 0;
    for (kind, mut given) in documents("storage-classes.yaml") {
        assert_eq!(kind, "StorageClass");
        assert!(!given.is_empty());
        // The provisioner adds these.
        for (name, text) in [("name", "data-db-0"), ("namespace", "shop")] {
            given.insert(format!("csi.storage.k8s.io/pvc/{name}"), text.to_owned());
        }
        parameters::class(&given).unwrap();
        seen += 1;
    }
    for (kind, given) in documents("attributes-classes.yaml") {
        assert_eq!(kind, "VolumeAttributesClass");
        assert!(!given.is_empty());
        parameters::modification(&given).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 5);
}
