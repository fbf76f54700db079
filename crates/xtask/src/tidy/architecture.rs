//! `ARCHITECTURE.md` shows the table of edges as it is.

use std::fmt::Write;

use super::Tree;
use super::edges::{Layer, Row, TABLE};

const BEGIN: &str = "<!-- table of edges: begin -->\n";
const END: &str = "<!-- table of edges: end -->\n";

fn drawing(table: &[Row]) -> String {
    let mut out = String::from("| layer | crate | may use |\n|---|---|---|\n");
    for row in table {
        let layer = match row.layer {
            Layer::Core => "core",
            Layer::Edge => "edge",
            Layer::Program => "program",
            Layer::Binary => "binary",
            Layer::Proof => "proof",
        };
        let uses: Vec<_> = row.uses.iter().map(|name| format!("`{name}`")).collect();
        let uses = if uses.is_empty() { "–".to_owned() } else { uses.join(", ") };
        writeln!(out, "| {layer} | `{}` | {uses} |", row.name).expect("a string takes all");
    }
    out
}

fn shown(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(BEGIN)?;
    let (table, _) = rest.split_once(END)?;
    Some(table)
}

/// A table between its marks.
fn around(table: &str) -> String {
    [BEGIN, table, END].concat()
}

/// With `HOLDFAST_BLESS=1` it rewrites the page instead of complaining.
#[test]
fn architecture_shows_the_edges() {
    let tree = Tree::of_the_project();
    let page = tree.text("ARCHITECTURE.md");
    let shown = shown(page).expect("ARCHITECTURE.md has the marks of the table of edges");
    let wanted = drawing(TABLE);
    if shown != wanted && std::env::var_os("HOLDFAST_BLESS").is_some() {
        let path = crate::root().join("ARCHITECTURE.md");
        std::fs::write(path, page.replace(&around(shown), &around(&wanted)))
            .expect("the page can be written");
        return;
    }
    assert_eq!(shown, wanted, "run `HOLDFAST_BLESS=1 cargo test --package xtask`");
}

#[test]
fn every_crate_has_a_line_in_the_code_map() {
    let tree = Tree::of_the_project();
    let page = tree.text("ARCHITECTURE.md");
    let missing: Vec<_> =
        TABLE.iter().filter(|row| !page.contains(&format!("### `{}`", row.name))).collect();
    assert!(missing.is_empty(), "no section for {:?}", missing.first().map(|row| row.name));
}

#[test]
fn a_made_up_drawing_is_found() {
    let other = format!("text\n{BEGIN}| layer | crate |\n{END}more\n");
    assert_ne!(shown(&other), Some(drawing(TABLE).as_str()));
    assert_eq!(shown("no marks"), None);
}
