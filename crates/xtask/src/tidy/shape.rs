//! Machines stay small: a struct with few fields, whose methods stand together, and parameters that
//! have names.
//!
//! Cutting one `impl` into files by length hides a large machine from the rule of length; here it
//! shows.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::ratchet::Excess;
use super::source::{Source, is_for_tests};

const FIELDS: usize = 20;
const FILES_OF_ONE_IMPL: usize = 6;

#[derive(Default)]
struct Finder {
    structs: Vec<(String, usize)>,
    implemented: BTreeSet<String>,
    /// The type whose methods are being looked at, with its path separator.
    owner: String,
    tuples: Vec<(String, usize)>,
}

impl Finder {
    fn look(&mut self, signature: &syn::Signature) {
        let is_tuple = |input: &&syn::FnArg| {
            matches!(input, syn::FnArg::Typed(argument)
                if matches!(&*argument.ty, syn::Type::Tuple(tuple) if !tuple.elems.is_empty()))
        };
        let count = signature.inputs.iter().filter(is_tuple).count();
        if count > 0 {
            self.tuples.push((format!("{}{}", self.owner, signature.ident), count));
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if let syn::Fields::Named(fields) = &item.fields {
            self.structs.push((item.ident.to_string(), fields.named.len()));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let syn::Type::Path(path) = &*item.self_ty
            && let Some(last) = path.path.segments.last()
        {
            self.owner = format!("{}::", last.ident);
            if item.trait_.is_none() && !is_for_tests(&item.attrs) {
                self.implemented.insert(last.ident.to_string());
            }
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

/// Structs with many fields, types whose methods are spread over many files, tuples as parameters.
pub(crate) fn excess<'a>(files: impl Iterator<Item = &'a Source>) -> Vec<(Excess, usize)> {
    let mut found = Vec::new();
    // By crate and type: where its fields are, and the files with methods of it.
    let mut homes = BTreeMap::<(String, String), &Source>::new();
    let mut spread = BTreeMap::<(String, String), usize>::new();
    for file in files.filter(|file| !file.is_test()) {
        let mut finder = Finder::default();
        finder.visit_file(&file.parse());
        let key = |name: &str| (file.krate().to_owned(), name.to_owned());
        for (name, fields) in finder.structs {
            homes.insert(key(&name), file);
            if fields > FIELDS {
                found.push((Excess::new("fields", file, &name), fields));
            }
        }
        for name in finder.implemented {
            *spread.entry(key(&name)).or_default() += 1;
        }
        let tuples = finder.tuples.into_iter();
        found.extend(tuples.map(|(name, count)| (Excess::new("tuple", file, &name), count)));
    }
    let many = spread.into_iter().filter(|(_, files)| *files > FILES_OF_ONE_IMPL);
    found.extend(many.filter_map(|(key, files)| {
        let home = homes.get(&key)?;
        Some((Excess::new("spread", home, &key.1), files))
    }));
    found
}

#[cfg(test)]
fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
    let source =
        |(path, text): &(&str, &str)| Source { path: (*path).to_owned(), text: (*text).to_owned() };
    let files: Vec<_> = files.iter().map(source).collect();
    let found = excess(files.iter()).into_iter();
    found.map(|(what, measure)| (what.to_string(), measure)).collect()
}

#[test]
fn a_made_up_large_machine_is_found() {
    let fields = (0..=FIELDS).map(|number| format!("field_{number}: u8")).collect::<Vec<_>>();
    let fields = fields.join(", ");
    let large = format!("struct Large {{ {fields} }}");
    assert_eq!(
        found(&[("crates/x/src/y.rs", &large)]),
        [("fields crates/x/src/y.rs Large".to_owned(), FIELDS + 1)]
    );
    assert_eq!(found(&[("crates/x/src/y.rs", "struct Small { one: u8 }")]), []);
}

#[test]
fn a_made_up_impl_in_many_files_is_found() {
    let paths: Vec<_> =
        (0..=FILES_OF_ONE_IMPL).map(|number| format!("crates/x/src/part_{number}.rs")).collect();
    let mut files = vec![("crates/x/src/y.rs", "struct Wide { one: u8 } impl Clone for Wide {}")];
    files.extend(paths.iter().map(|path| (path.as_str(), "impl Wide {}")));
    assert_eq!(
        found(&files),
        [("spread crates/x/src/y.rs Wide".to_owned(), FILES_OF_ONE_IMPL + 1)]
    );
    assert_eq!(found(&files[..FILES_OF_ONE_IMPL]), []);
}

#[test]
fn a_made_up_tuple_is_found() {
    let tuple = "impl X { fn place(&self, (node, pool): (Node, Pool), none: ()) {} }";
    let expected = [("tuple crates/x/src/y.rs X::place".to_owned(), 1)];
    assert_eq!(found(&[("crates/x/src/y.rs", tuple)]), expected);
    assert_eq!(found(&[("crates/x/src/y.rs", "fn place(spot: Spot) -> (u8, u8) {}")]), []);
}
