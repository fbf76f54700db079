//! Two parameters of one primitive type can be swapped without anybody noticing; units cannot.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::ratchet::Excess;
use super::source::{Source, is_for_tests};

const PRIMITIVES: &[&str] = &[
    "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32",
    "u64", "u128", "usize",
];

#[derive(Default)]
struct Finder {
    /// The type whose methods are being looked at, with its path separator.
    owner: String,
    alike: Vec<(String, usize)>,
}

impl Finder {
    fn look(&mut self, signature: &syn::Signature) {
        let mut counts = BTreeMap::<&str, usize>::new();
        for input in &signature.inputs {
            if let syn::FnArg::Typed(argument) = input
                && let syn::Type::Path(path) = &*argument.ty
                && let Some(primitive) = PRIMITIVES.iter().find(|name| path.path.is_ident(name))
            {
                *counts.entry(primitive).or_default() += 1;
            }
        }
        if let Some(most) = counts.into_values().max().filter(|most| *most > 1) {
            self.alike.push((format!("{}{}", self.owner, signature.ident), most));
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.owner = format!("{}::", last.ident);
        }
        visit::visit_item_impl(self, item);
        self.owner.clear();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.look(&item.sig);
        visit::visit_impl_item_fn(self, item);
    }
}

/// Functions with parameters that could be swapped.
pub(crate) fn excess(file: &Source) -> Vec<(Excess, usize)> {
    if file.is_test() {
        return Vec::new();
    }
    let mut finder = Finder::default();
    finder.visit_file(&file.parse());
    let found = finder.alike.into_iter();
    found.map(|(name, count)| (Excess::new("alike", file, &name), count)).collect()
}

#[test]
fn a_made_up_swap_is_found() {
    let found = |text: &str| {
        let file = Source { path: "crates/x/src/y.rs".into(), text: text.to_owned() };
        excess(&file).into_iter().map(|(_, count)| count).collect::<Vec<_>>()
    };
    assert_eq!(found("fn copy(from: u64, to: u64, len: u64) {}"), [3]);
    assert_eq!(found("impl X { fn f(a: bool, b: u8, c: bool) {} }"), [2]);
    assert_eq!(found("fn copy(from: Lba, to: Lba, len: Blocks, fast: bool) {}"), [0; 0]);
}
