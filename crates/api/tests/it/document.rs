//! The committed documents: current, complete, with examples that fit.
//!
//! `HOLDFAST_BLESS=1 cargo test -p api` writes it anew.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::fake::Fake;
use crate::schema::{self, references};

fn document() -> Value {
    api::node::api::<Fake>().document()
}

fn rest() -> Value {
    api::rest::api::<api::rest::Remote>().document()
}

fn operations(document: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, value)| (path, method, value))
    })
}

#[test]
fn the_committed_documents_are_current() {
    for (name, document) in [("node.json", document()), ("v1.json", rest())] {
        let text = serde_json::to_string_pretty(&document).unwrap() + "\n";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi").join(name);
        if std::env::var_os("HOLDFAST_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == committed, "openapi/{name} has changed: HOLDFAST_BLESS=1 accepts it");
    }
}

/// Each constant of the table is served, and nothing is served that is not in the table.
#[test]
fn every_route_of_the_table_is_in_the_document() {
    let table = include_str!("../../src/node/routes.rs");
    let without_faults = |path: &&str| *path != "/v1/faults";
    let in_table: BTreeSet<&str> =
        table.split('"').filter(|text| text.starts_with("/v1/")).filter(without_faults).collect();
    let constants = table.matches("pub const ").count();
    let faults = 2;
    let document = document();
    let in_document: BTreeSet<&str> =
        operations(&document).map(|(path, ..)| path.as_str()).collect();
    assert_eq!(in_table, in_document);
    assert_eq!(operations(&document).count(), constants - faults);
}

#[test]
fn names_are_unique_and_parameters_are_those_of_the_path() {
    names_are_unique(&document());
    names_are_unique(&rest());
}

fn names_are_unique(document: &Value) {
    let mut names = BTreeSet::new();
    for (path, method, operation) in operations(document) {
        let name = operation["operationId"].as_str().unwrap();
        assert!(names.insert(name.to_owned()), "{name} is there twice");
        let parameters = operation["parameters"].as_array().unwrap();
        let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
        let named: Vec<_> =
            in_path.map(|p| format!("{{{}}}", p["name"].as_str().unwrap())).collect();
        let wanted: Vec<_> = path.split('/').filter(|part| part.starts_with('{')).collect();
        assert_eq!(named, wanted, "{method} {path}");
    }
}

#[test]
fn every_reference_leads_somewhere() {
    for document in [document(), rest()] {
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() > 20, "{found:?}");
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}

#[test]
fn the_examples_fit_their_schemas() {
    let document = document();
    let mut count = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            schema::check(&document, schema, example).unwrap_or_else(|why| panic!("{name}: {why}"));
            count += 1;
        }
    }
    assert_eq!(count, 3, "an example has lost its schema");
}

/// The golden files of the model against the schemas of their types.
#[test]
fn resources_fit_their_schemas() {
    let document = rest();
    let specs = [
        ("node.json", "NodeSpec", "NodeStatus"),
        ("host.json", "HostSpec", "HostStatus"),
        ("volume.json", "VolumeSpec", "VolumeStatus"),
        ("snapshot.json", "SnapshotSpec", "SnapshotStatus"),
        ("snapshot-group.json", "SnapshotGroupSpec", "SnapshotGroupStatus"),
        ("watch.json", "WebhookSpec", "WebhookStatus"),
        ("pool.json", "PoolSpec", "PoolStatus"),
        ("replica.json", "ReplicaSpec", "ReplicaStatus"),
        ("target.json", "TargetSpec", "TargetStatus"),
    ];
    for (file, spec, status) in specs {
        let object: Value = crate::fake::golden(file);
        for (name, part) in [(spec, "spec"), (status, "status")] {
            let schema = &document["components"]["schemas"][name];
            schema::check(&document, schema, &object[part])
                .unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    }
}

#[test]
fn what_does_not_fit_is_seen() {
    let document = document();
    let schema = &document["components"]["schemas"]["PoolSpec"];
    let good: Value = crate::fake::golden("pool.json");
    for (key, value) in
        [("node", Value::from(7)), ("surprise", Value::from(1)), ("disks", "x".into())]
    {
        let mut bad = good["spec"].clone();
        bad[key] = value;
        assert!(schema::check(&document, schema, &bad).is_err(), "{key}");
    }
}
