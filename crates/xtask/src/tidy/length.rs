//! Files, functions and lines stay short enough to be read.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::ratchet::Excess;
use super::source::{Source, is_for_tests};

const FILE_LINES: usize = 500;
const FUNCTION_LINES: usize = 70;
const LINE_COLUMNS: usize = 100;

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

/// What is too long in a file.
pub(crate) fn excess(file: &Source) -> Vec<(Excess, usize)> {
    let mut measure = Measure::default();
    measure.visit_file(&file.parse());
    let mut found = Vec::new();
    let mut add = |rule, name: &str, length, limit| {
        if length > limit {
            found.push((Excess::new(rule, file, name), length));
        }
    };
    if !file.is_test() {
        let length = file.text.lines().count() - measure.test_lines;
        add("file", "-", length, FILE_LINES);
        for (name, length) in &measure.functions {
            add("function", name, *length, FUNCTION_LINES);
        }
    }
    for (number, line) in file.text.lines().enumerate() {
        let number = (number + 1).to_string();
        add("line", &number, line.chars().count(), LINE_COLUMNS);
    }
    found
}

#[test]
fn made_up_long_things_are_found() {
    let found = |path: &str, text: &str| {
        let file = Source { path: path.to_owned(), text: text.to_owned() };
        let found: Vec<_> = excess(&file).into_iter().map(|(what, _)| what.rule).collect();
        found.join(" ")
    };
    let function = format!("fn long() {{\n{}}}\n", "    let _ = 1;\n".repeat(FUNCTION_LINES));
    assert_eq!(found("crates/x/src/y.rs", &function), "function");
    let file = "// line\n".repeat(FILE_LINES + 1);
    assert_eq!(found("crates/x/src/y.rs", &file), "file");
    assert_eq!(found("crates/x/src/tests.rs", &file), "");
    let wide = format!("// {}\n", "x".repeat(LINE_COLUMNS));
    assert_eq!(found("crates/x/src/y.rs", &wide), "line");
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// t\n".repeat(FILE_LINES));
    assert_eq!(found("crates/x/src/y.rs", &tests), "");
}
