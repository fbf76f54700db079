//! Which crate may depend on which, and what must never lie below the core.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{Offence, Tree, assert_clean};

/// A layer of the workspace; dependencies point to the same or a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    Core,
    Edge,
    Program,
    Binary,
    Proof,
}

/// A crate, what it is for, and the crates of ours that it may use.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) layer: Layer,
    pub(crate) uses: &'static [&'static str],
}

const fn row(name: &'static str, layer: Layer, uses: &'static [&'static str]) -> Row {
    Row { name, layer, uses }
}

/// The allowed edges, as `ARCHITECTURE.md` shows them. A new edge is a reviewed change of its own.
pub(crate) const TABLE: &[Row] = &[
    row("block", Layer::Core, &[]),
    row("mirror", Layer::Core, &["block", "model"]),
    row("model", Layer::Core, &["block"]),
    row("nvme", Layer::Core, &["block"]),
    row("planner", Layer::Core, &["model"]),
    row("pool", Layer::Core, &["block"]),
    row("api", Layer::Edge, &["model"]),
    row("linux", Layer::Edge, &["block", "model"]),
    row("reactor", Layer::Edge, &[]),
    row("store", Layer::Edge, &[]),
    row("control", Layer::Program, &["api", "model", "planner", "store"]),
    row("csi", Layer::Program, &["agent", "api", "block", "linux", "model"]),
    row(
        "engine",
        Layer::Program,
        &["api", "block", "linux", "mirror", "model", "nvme", "pool", "reactor", "store"],
    ),
    row("agent", Layer::Program, &["api", "block", "engine", "linux", "model", "nvme", "reactor"]),
    row("mesh", Layer::Program, &["csi", "linux", "model"]),
    row("operator", Layer::Program, &["api", "model"]),
    row(
        "holdfast",
        Layer::Binary,
        &[
            "agent", "api", "block", "control", "csi", "engine", "linux", "mesh", "model", "nvme",
            "operator", "pool", "store",
        ],
    ),
    row(
        "e2e",
        Layer::Proof,
        &["api", "block", "control", "engine", "model", "nvme", "pool", "reactor", "store"],
    ),
    row("xtask", Layer::Proof, &[]),
];

/// What must never lie below a core crate: it would bring I/O, threads or a clock within reach.
const IMPURE: &[&str] =
    &["async-std", "io-uring", "libc", "mio", "nix", "rustix", "socket2", "tokio"];

fn cargo_metadata(arguments: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(arguments)
        .current_dir(crate::root())
        .output()
        .expect("cargo is there: it runs this test");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {error}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

/// The edges between crates of ours, of every kind but a crate's use of itself in its tests.
fn edges(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let packages = list(metadata, "packages");
    let ours: BTreeSet<_> = packages.iter().map(|package| text(package, "name")).collect();
    let uses = |package: &Value| {
        list(package, "dependencies")
            .iter()
            .map(|dependency| text(dependency, "name"))
            .filter(|name| ours.contains(name) && *name != text(package, "name"))
            .map(str::to_owned)
            .collect()
    };
    packages.iter().map(|package| (text(package, "name").to_owned(), uses(package))).collect()
}

fn forbidden(found: &BTreeMap<String, BTreeSet<String>>, table: &[Row]) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (krate, uses) in found {
        let Some(row) = table.iter().find(|row| row.name == krate) else {
            offences.push(format!("crate {krate} is not in the table of edges"));
            continue;
        };
        for used in uses.iter().filter(|used| !row.uses.contains(&used.as_str())) {
            offences.push(format!("{krate} may not use {used}"));
        }
    }
    for row in table {
        if !found.contains_key(row.name) {
            offences.push(format!("the table names crate {}, which does not exist", row.name));
        }
    }
    offences
}

/// Edges of the table itself that point up.
fn upward(table: &[Row]) -> Vec<Offence> {
    let layer = |name: &str| table.iter().find(|row| row.name == name).map(|row| row.layer);
    let mut offences = Vec::new();
    for row in table {
        for used in row.uses {
            if layer(used).is_none_or(|below| below > row.layer || below == Layer::Proof) {
                offences.push(format!("{} → {used} points up", row.name));
            }
        }
    }
    offences
}

/// Names of everything below `krate` in the resolved graph, build and test tools left out.
fn below(metadata: &Value, krate: &str) -> BTreeSet<String> {
    let names: BTreeMap<_, _> = list(metadata, "packages")
        .iter()
        .map(|package| (text(package, "id"), text(package, "name")))
        .collect();
    let nodes: BTreeMap<_, _> =
        list(&metadata["resolve"], "nodes").iter().map(|node| (text(node, "id"), node)).collect();
    let mut found = BTreeSet::new();
    let mut waiting: Vec<_> =
        nodes.keys().copied().filter(|id| names.get(id) == Some(&krate)).collect();
    while let Some(id) = waiting.pop() {
        for dependency in list(nodes[id], "deps") {
            let is_normal = list(dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null());
            let below = text(dependency, "pkg");
            if is_normal && found.insert(names[below].to_owned()) {
                waiting.push(below);
            }
        }
    }
    found
}

fn impure(krate: &str, below: &BTreeSet<String>) -> Vec<Offence> {
    let found = IMPURE.iter().filter(|name| below.contains(**name));
    found.map(|name| format!("core crate {krate} has {name} below it")).collect()
}

fn core() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.layer == Layer::Core).map(|row| row.name)
}

/// Core crates say at the top of `lib.rs` that they are pure.
fn not_marked_pure(tree: &Tree, krate: &str) -> Vec<Offence> {
    let path = format!("crates/{krate}/src/lib.rs");
    let text = tree.text(&path);
    let marks = ["#![no_std]", "#![forbid(unsafe_code)]"];
    let missing = marks.iter().filter(|mark| !text.lines().any(|line| line == **mark));
    missing.map(|mark| format!("{path} lacks {mark}")).collect()
}

#[test]
fn dependencies_point_down() {
    assert_clean(&upward(TABLE));
    assert_clean(&forbidden(&edges(&cargo_metadata(&["--no-deps"])), TABLE));
}

#[test]
fn core_is_pure() {
    let metadata = cargo_metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let tree = Tree::of_the_project();
    for krate in core() {
        assert_clean(&impure(krate, &below(&metadata, krate)));
        assert_clean(&not_marked_pure(&tree, krate));
    }
}

#[test]
fn a_made_up_edge_is_found() {
    let table = [row("block", Layer::Core, &[]), row("engine", Layer::Program, &["block"])];
    let found = |uses: &[&str]| {
        BTreeMap::from([
            ("block".to_owned(), uses.iter().map(|name| (*name).to_owned()).collect()),
            ("engine".to_owned(), BTreeSet::from(["block".to_owned()])),
        ])
    };
    assert_clean(&forbidden(&found(&[]), &table));
    assert_eq!(forbidden(&found(&["engine"]), &table), ["block may not use engine"]);
    let upside_down = [row("block", Layer::Core, &["engine"]), row("engine", Layer::Program, &[])];
    assert_eq!(upward(&upside_down), ["block → engine points up"]);
}

#[test]
fn a_made_up_impurity_is_found() {
    // `store` is an edge: it has tokio below it, which a core crate must not have.
    let metadata = cargo_metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let found = impure("store", &below(&metadata, "store"));
    assert!(found.contains(&"core crate store has tokio below it".to_owned()), "{found:?}");
    let unmarked = Tree::of("crates/pool/src/lib.rs", "//! A pool.\n");
    assert_eq!(not_marked_pure(&unmarked, "pool").len(), 2);
}
