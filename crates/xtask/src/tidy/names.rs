//! A thing lives with what it is about, so no module is called after nothing in particular;
//! and `unsafe` lives in two crates only.

use syn::visit::{self, Visit};

use super::{Offence, Source, Tree, assert_clean};

const EMPTY_NAMES: &[&str] =
    &["base", "common", "helper", "helpers", "misc", "shared", "types", "util", "utils"];

/// Crates where the kernel's contracts are kept by hand, each block with its argument.
const MAY_BE_UNSAFE: &[&str] = &["linux", "reactor"];

struct Finder<'a> {
    file: &'a Source,
    offences: Vec<Offence>,
}

impl Finder<'_> {
    fn refuse_unsafe(&mut self, what: &str) {
        if !MAY_BE_UNSAFE.contains(&self.file.krate()) {
            self.offences.push(format!("{}: {what} outside reactor and linux", self.file.path));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        if EMPTY_NAMES.contains(&name.as_str()) {
            self.offences.push(format!("{}: module {name} says nothing", self.file.path));
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_expr_unsafe(&mut self, expression: &'ast syn::ExprUnsafe) {
        self.refuse_unsafe("an unsafe block");
        visit::visit_expr_unsafe(self, expression);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if signature.unsafety.is_some() {
            self.refuse_unsafe("an unsafe function");
        }
        visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.unsafety.is_some() {
            self.refuse_unsafe("an unsafe impl");
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        let path = attribute.path();
        if path.is_ident("ignore") {
            self.offences.push(format!("{}: an ignored test", self.file.path));
        }
        if path.is_ident("allow") {
            self.offences.push(format!("{}: allow; use expect with a reason", self.file.path));
        }
        visit::visit_attribute(self, attribute);
    }
}

fn offences(tree: &Tree) -> Vec<Offence> {
    let of_file = |file: &Source| {
        let mut finder = Finder { file, offences: Vec::new() };
        finder.visit_file(&file.parse());
        finder.offences
    };
    tree.rust().flat_map(of_file).collect()
}

#[test]
fn names_attributes_and_unsafe_are_as_agreed() {
    assert_clean(&offences(&Tree::of_the_project()));
}

#[test]
fn made_up_offences_are_found() {
    let found = |path: &str, text: &str| offences(&Tree::of(path, text)).len();
    for name in EMPTY_NAMES {
        assert_eq!(found("crates/pool/src/lib.rs", &format!("mod {name};")), 1, "{name}");
    }
    for text in ["fn f() { unsafe { g() } }", "unsafe fn f() {}", "unsafe impl Send for X {}"] {
        assert_eq!(found("crates/pool/src/x.rs", text), 1, "{text}");
        assert_eq!(found("crates/reactor/src/x.rs", text), 0, "{text}");
    }
    assert_eq!(found("crates/pool/src/x.rs", "#[test] #[ignore] fn f() {}"), 1);
    assert_eq!(found("crates/pool/src/x.rs", "#[allow(dead_code)] fn f() {}"), 1);
    assert_eq!(found("crates/pool/src/x.rs", "mod journal; fn f() {}"), 0);
}
