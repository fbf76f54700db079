//! Files and functions stay short enough to be read.
//!
//! `tidy/ratchet.txt` lists the exceptions with their length. An entry must say the exact length, so
//! it is lowered when the code shrinks, and removed when the code is within the limit. Nothing may
//! grow past its entry.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::source::is_for_tests;
use super::{Offence, Source, Tree, assert_clean};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const LINE_COLUMNS: usize = 100;

/// What is too long: the rule, the file, the function if it is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Long {
    rule: &'static str,
    path: String,
    name: String,
}

#[derive(Default)]
struct Measure {
    functions: Vec<(String, usize)>,
    test_lines: usize,
}

impl Measure {
    fn function(&mut self, name: &syn::Ident, attributes: &[syn::Attribute], block: &syn::Block) {
        if !is_for_tests(attributes) {
            self.functions.push((name.to_string(), lines(block)));
        }
    }
}

impl<'ast> Visit<'ast> for Measure {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_for_tests(&item.attrs) {
            self.test_lines += lines(item);
        } else {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, &item.attrs, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig.ident, &item.attrs, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

fn lines(item: &impl Spanned) -> usize {
    let span = item.span();
    span.end().line - span.start().line + 1
}

fn too_long(file: &Source) -> Vec<(Long, usize)> {
    let mut measure = Measure::default();
    measure.visit_file(&file.parse());
    let mut found = Vec::new();
    let mut add = |rule, name: String, length, limit| {
        if length > limit {
            found.push((Long { rule, path: file.path.clone(), name }, length));
        }
    };
    if !file.is_test() {
        let length = file.text.lines().count() - measure.test_lines;
        add("file", String::from("-"), length, FILE_LINES);
    }
    for (name, length) in measure.functions {
        add("function", name, length, FUNCTION_LINES);
    }
    for (number, line) in file.text.lines().enumerate() {
        add("line", (number + 1).to_string(), line.chars().count(), LINE_COLUMNS);
    }
    found
}

fn parse_ratchet(text: &str) -> BTreeMap<(String, String, String), usize> {
    let entries = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    entries
        .map(|entry| match entry.split(' ').collect::<Vec<_>>()[..] {
            [rule, path, name, length] => {
                let length = length.parse().unwrap_or_else(|_| panic!("bad length: {entry}"));
                ((rule.to_owned(), path.to_owned(), name.to_owned()), length)
            }
            _ => panic!("an entry is RULE PATH NAME LENGTH, not {entry:?}"),
        })
        .collect()
}

fn against_ratchet(tree: &Tree, ratchet: &str) -> Vec<Offence> {
    let mut allowed = parse_ratchet(ratchet);
    let mut offences = Vec::new();
    for (long, length) in tree.rust().flat_map(too_long) {
        let Long { rule, path, name } = long;
        match allowed.remove(&(rule.to_owned(), path.clone(), name.clone())) {
            Some(have) if have == length => {}
            Some(have) if length < have => {
                offences.push(format!("lower it: {rule} {path} {name} is {length}, not {have}"));
            }
            Some(have) => offences.push(format!("{rule} {path} {name} grew: {have} to {length}")),
            None => offences.push(format!("{rule} {path} {name} is too long: {length}")),
        }
    }
    let gone = allowed.into_keys();
    offences.extend(gone.map(|(rule, path, name)| format!("remove it: {rule} {path} {name}")));
    offences
}

#[test]
fn nothing_grew_past_its_ratchet() {
    let tree = Tree::of_the_project();
    assert_clean(&against_ratchet(&tree, tree.text("tidy/ratchet.txt")));
}

#[test]
fn a_made_up_long_thing_is_found() {
    let body = "    let _ = 1;\n".repeat(FUNCTION_LINES);
    let tree = Tree::of("crates/x/src/y.rs", &format!("fn long() {{\n{body}}}\n"));
    let found = against_ratchet(&tree, "");
    assert_eq!(found, ["function crates/x/src/y.rs long is too long: 72"]);

    assert_clean(&against_ratchet(&tree, "function crates/x/src/y.rs long 72\n"));
    let shrunk = against_ratchet(&tree, "function crates/x/src/y.rs long 80\n");
    assert_eq!(shrunk, ["lower it: function crates/x/src/y.rs long is 72, not 80"]);
    let grown = against_ratchet(&tree, "function crates/x/src/y.rs long 71\n");
    assert_eq!(grown, ["function crates/x/src/y.rs long grew: 71 to 72"]);
    let stale = against_ratchet(&Tree::default(), "function crates/x/src/y.rs long 72\n");
    assert_eq!(stale, ["remove it: function crates/x/src/y.rs long"]);

    let long_file = "// line\n".repeat(FILE_LINES + 1);
    assert_eq!(against_ratchet(&Tree::of("crates/x/src/y.rs", &long_file), "").len(), 1);
    assert_clean(&against_ratchet(&Tree::of("crates/x/src/tests.rs", &long_file), ""));
    let wide = format!("// {}\n", "x".repeat(LINE_COLUMNS));
    assert_eq!(against_ratchet(&Tree::of("crates/x/src/y.rs", &wide), "").len(), 1);
}

#[test]
fn test_modules_do_not_count_as_source() {
    let tests = "#[cfg(test)]\nmod tests {\n".to_owned() + &"// t\n".repeat(FILE_LINES) + "}\n";
    assert_clean(&against_ratchet(&Tree::of("crates/x/src/y.rs", &tests), ""));
}
