//! Each promise in `SPECIFICATION.md` and in the `PROMISES.md` of a crate names the test or the
//! benchmark figure that proves it, and that proof exists.

use std::collections::BTreeMap;

use super::{Offence, Source, Tree, assert_clean};

const HEADER: &str = "| promise | proof |";

/// The promises to users, and those of each crate.
fn ledgers(tree: &Tree) -> impl Iterator<Item = &Source> {
    tree.files.iter().filter(|file| {
        let of_crate = file.path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
        file.path == "SPECIFICATION.md"
            || of_crate.is_some_and(|(_, inside)| inside == "PROMISES.md")
    })
}

/// Rows of the tables: `| promise | proof |`, the proof being `file.rs::test_name`, more than one
/// separated by commas, or a benchmark figure `bench NAME: figure`. A promise has one row.
fn offences(tree: &Tree) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut seen = BTreeMap::new();
    for ledger in ledgers(tree) {
        if !ledger.text.lines().any(|line| line == HEADER) {
            offences.push(format!("{}: no table of promises", ledger.path));
        }
        for row in rows(&ledger.text) {
            let (promise, proof) = cells(row);
            let unknown: Vec<_> = proof
                .split(',')
                .map(|name| name.trim().trim_matches('`'))
                .filter(|name| !exists(tree, name))
                .collect();
            if !unknown.is_empty() {
                let unknown = unknown.join(", ");
                offences.push(format!("{}: no such proof: {unknown} in {row}", ledger.path));
            }
            if let Some(other) = seen.insert(promise, &ledger.path) {
                offences.push(format!("{}: also in {other}: {promise}", ledger.path));
            }
        }
    }
    offences
}

/// Every line of a table but its head.
fn rows(page: &str) -> impl Iterator<Item = &str> {
    let head = |line: &str| line == HEADER || line.starts_with("|---");
    page.lines().filter(move |line| line.starts_with('|') && !head(line))
}

fn cells(row: &str) -> (&str, &str) {
    let row = row.trim_matches('|');
    let (promise, proof) = row.rsplit_once('|').unwrap_or((row, ""));
    (promise.trim(), proof.trim())
}

fn exists(tree: &Tree, proof: &str) -> bool {
    if let Some(figure) = proof.strip_prefix("bench ") {
        let Some((bench, figure)) = figure.split_once(": ") else { return false };
        let folder = format!("crates/e2e/src/bench/{bench}");
        let mut sources = tree.files.iter().filter(|file| file.path.starts_with(&folder));
        return sources.any(|file| file.text.contains(&format!("\"{figure}\"")));
    }
    let Some((path, test)) = proof.split_once("::") else { return false };
    let mut sources = tree.files.iter().filter(|file| file.path == path);
    // As a function, or as a row of a table that a macro makes tests of.
    let (function, row) = (format!("fn {test}("), format!("    {test}: "));
    sources.any(|file| {
        let is_row = |line: &str| line.starts_with(&row);
        file.text.contains(&function)
            || (file.text.contains("macro_rules!") && file.text.lines().any(is_row))
    })
}

#[test]
fn every_promise_names_its_proof() {
    let tree = Tree::of_the_project();
    assert!(tree.text("SPECIFICATION.md").contains(HEADER));
    assert!(tree.text("crates/pool/PROMISES.md").contains(HEADER));
    assert_clean(&offences(&tree));
}

#[test]
fn a_made_up_promise_is_found() {
    let page = "| promise | proof |\n|---|---|\n| It flies. | `crates/x/src/y.rs::flies` |\n";
    for ledger in ["SPECIFICATION.md", "crates/x/PROMISES.md"] {
        let mut tree = Tree::of(ledger, page);
        assert_eq!(offences(&tree).len(), 1, "{ledger}");
        tree.files.extend(Tree::of("crates/x/src/y.rs", "fn flies() {}").files);
        assert_clean(&offences(&tree));
        tree.files.extend(Tree::of("crates/z/PROMISES.md", page).files);
        assert_eq!(offences(&tree).len(), 1, "{ledger}: one promise in two files");
    }
}

#[test]
fn a_made_up_ledger_without_rows_in_form_is_found() {
    let found = |page: &str| offences(&Tree::of("crates/x/PROMISES.md", page)).len();
    assert_eq!(found("It flies.\n"), 1);
    assert_eq!(found("| promise | proof |\n|---|---|\n| It flies. |\n"), 1);
    assert_eq!(found("| promise | proof |\n|---|---|\n|It flies.|crates/x/src/y.rs|\n"), 1);
}
