//! Words that do not belong in the project: promises to do it later.

use super::{Offence, Source, Tree, assert_clean};

/// Written in two halves, so that this file does not offend itself.
fn unfinished() -> [String; 4] {
    [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["for ", "now"]].map(|halves| halves.concat())
}

fn offences(tree: &Tree) -> Vec<Offence> {
    let unfinished = unfinished();
    let of_file = |file: &Source| -> Vec<Offence> {
        let bad =
            |line: &str| unfinished.iter().find(|word| comment(line).contains(*word)).cloned();
        let numbered = file.text.lines().enumerate();
        numbered
            .filter_map(|(at, line)| Some((at + 1, bad(line)?)))
            .map(|(at, word)| format!("{}:{at}: {word}: do it or leave it", file.path))
            .collect()
    };
    tree.rust().flat_map(of_file).collect()
}

/// The comment of a line, if it has one.
fn comment(line: &str) -> &str {
    line.split_once("//").map_or("", |(_, comment)| comment)
}

#[test]
fn nothing_is_put_off() {
    assert_clean(&offences(&Tree::of_the_project()));
}

#[test]
fn made_up_promises_are_found() {
    for word in unfinished() {
        for mark in ["//", "///", "//!"] {
            let text = format!("fn f() {{}} {mark} {word} better\n");
            assert_eq!(offences(&Tree::of("crates/x/src/y.rs", &text)).len(), 1, "{text}");
        }
    }
    assert_clean(&offences(&Tree::of("crates/x/src/y.rs", "fn f() {} // done\n")));
}
