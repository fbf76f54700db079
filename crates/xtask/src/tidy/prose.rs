//! Prose in documents wraps, so that it can be read beside code and a change shows in a diff.

use std::path::Path;

use super::{Offence, Source, Tree, assert_clean};

const COLUMNS: usize = 120;

/// Lines of `*.md` that are longer than [`COLUMNS`]. Tables and code blocks cannot wrap, and a line
/// of one word has no place to.
fn offences(tree: &Tree) -> Vec<Offence> {
    tree.files.iter().filter(|file| is_document(file)).flat_map(too_wide).collect()
}

fn is_document(file: &Source) -> bool {
    Path::new(&file.path).extension().is_some_and(|ending| ending == "md")
}

fn too_wide(file: &Source) -> Vec<Offence> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (at, line) in file.text.lines().enumerate() {
        let text = line.trim_start();
        if text.starts_with("```") {
            in_code = !in_code;
        }
        let columns = line.chars().count();
        let can_wrap = !in_code && !text.starts_with('|') && text.contains(' ');
        if can_wrap && columns > COLUMNS {
            found.push(format!("{}:{}: {columns} columns of prose", file.path, at + 1));
        }
    }
    found
}

#[test]
fn prose_wraps() {
    assert_clean(&offences(&Tree::of_the_project()));
}

#[test]
fn a_made_up_wide_line_is_found() {
    let found = |text: &str| offences(&Tree::of("docs/x.md", text)).len();
    let wide = "a word ".repeat(20);
    assert_eq!(found(&wide), 1);
    assert_eq!(found(&format!("- {wide}\n")), 1);
    assert_eq!(found(&format!("```text\n```\n{wide}\n")), 1);
    assert_eq!(found(&format!("```text\n{wide}\n```\n")), 0);
    assert_eq!(found(&format!("| {wide} |\n")), 0);
    assert_eq!(found(&"x".repeat(COLUMNS + 1)), 0);
    assert_eq!(found(&"ä ".repeat(COLUMNS / 2)), 0);
}
