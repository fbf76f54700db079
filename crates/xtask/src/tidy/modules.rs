//! Top-level modules of a crate use each other in one direction, as crates do.
//!
//! Modules that use each other in a circle are one module in several files: none can be read,
//! tested or moved without the others. Each member of a circle is measured by how many others it
//! has there.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::ratchet::Excess;
use super::source::{Source, is_for_tests};

/// Which top-level modules of one crate use which; tests are left out.
#[derive(Default)]
struct Graph<'a> {
    /// The file that holds a module, or its `mod.rs`.
    files: BTreeMap<String, &'a Source>,
    uses: BTreeMap<String, BTreeSet<String>>,
}

/// The path of a file's module below the root of its crate; `None` for what is no module.
fn module_path(file: &Source) -> Option<Vec<String>> {
    let (_, inside) = file.path.split_once("/src/")?;
    let mut parts: Vec<_> = inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod" || (parts.len() == 1 && is_root(last))) {
        parts.pop();
    }
    Some(parts)
}

fn is_root(name: &str) -> bool {
    matches!(name, "lib" | "main")
}

/// Each path of a tree of imports, as names.
fn flatten(tree: &syn::UseTree, before: &[String], found: &mut Vec<Vec<String>>) {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        syn::UseTree::Path(path) => flatten(&path.tree, &with(&path.ident), found),
        syn::UseTree::Name(name) => found.push(with(&name.ident)),
        syn::UseTree::Rename(rename) => found.push(with(&rename.ident)),
        syn::UseTree::Glob(_) => found.push(before.to_vec()),
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, before, found));
        }
    }
}

/// The paths that a file names, from the root of its crate.
struct Finder {
    module: Vec<String>,
    found: Vec<Vec<String>>,
}

impl Finder {
    fn look(&mut self, path: &[String]) {
        let mut base = self.module.clone();
        let mut rest = path;
        match path.first().map(String::as_str) {
            Some("crate") => base.clear(),
            Some("super" | "self") => {}
            _ => return,
        }
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => {
                    base.pop();
                }
                _ => break,
            }
            rest = others;
        }
        base.extend_from_slice(rest);
        self.found.push(base);
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_some() && !is_for_tests(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            let mut paths = Vec::new();
            flatten(&item.tree, &[], &mut paths);
            for path in &paths {
                self.look(path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.look(&names);
        visit::visit_path(self, path);
    }
}

/// What the root of a crate gives out of its modules: name and module.
fn exports(root: &Source) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for item in root.parse().items {
        let syn::Item::Use(item) = item else { continue };
        let mut paths = Vec::new();
        flatten(&item.tree, &[], &mut paths);
        for mut path in paths {
            path.retain(|name| name != "crate" && name != "self");
            if let [module, .., name] = path.as_slice() {
                exports.insert(name.clone(), module.clone());
            }
        }
    }
    exports
}

impl<'a> Graph<'a> {
    fn of(files: &[&'a Source]) -> Graph<'a> {
        let mut graph = Graph::default();
        let mut exported = BTreeMap::new();
        for file in files {
            match module_path(file).as_deref() {
                Some([]) => exported = exports(file),
                Some([module]) => {
                    graph.files.insert(module.clone(), file);
                }
                Some([module, ..]) => {
                    graph.files.entry(module.clone()).or_insert(file);
                }
                None => {}
            }
        }
        for file in files {
            let Some(module) = module_path(file).filter(|path| !path.is_empty()) else { continue };
            let own = module.first().cloned().unwrap_or_default();
            let mut finder = Finder { module, found: Vec::new() };
            finder.visit_file(&file.parse());
            let tops = finder.found.iter().filter_map(|path| path.first());
            let used = tops.map(|top| exported.get(top).unwrap_or(top).clone());
            let used = used.filter(|top| *top != own && graph.files.contains_key(top));
            graph.uses.entry(own.clone()).or_default().extend(used);
        }
        graph
    }

    /// All that a module uses, by whatever way.
    fn reached(&self, from: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            for used in self.uses.get(module).into_iter().flatten() {
                if reached.insert(used.as_str()) {
                    next.push(used);
                }
            }
        }
        reached
    }

    fn circles(&self) -> Vec<(Excess, usize)> {
        let reached: BTreeMap<_, _> =
            self.files.keys().map(|module| (module.as_str(), self.reached(module))).collect();
        let mut found = Vec::new();
        for (module, from_here) in &reached {
            let leads_back = |other: &&&str| {
                *other != module && reached.get(**other).is_some_and(|it| it.contains(module))
            };
            let others = from_here.iter().filter(leads_back).count();
            if others > 0
                && let Some(file) = self.files.get(*module)
            {
                found.push((Excess::new("circle", file, module), others));
            }
        }
        found
    }
}

/// Top-level modules that use each other in a circle.
pub(crate) fn excess<'a>(files: impl Iterator<Item = &'a Source>) -> Vec<(Excess, usize)> {
    let mut crates = BTreeMap::<&str, Vec<&Source>>::new();
    for file in files.filter(|file| !file.is_test() && file.path.contains("/src/")) {
        crates.entry(file.krate()).or_default().push(file);
    }
    crates.values().flat_map(|files| Graph::of(files).circles()).collect()
}

#[test]
fn a_circle_of_modules_is_found() {
    let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let measured = |files: &[Source]| {
        let found = excess(files.iter()).into_iter();
        found.map(|(excess, measure)| (excess.name, measure)).collect::<Vec<_>>()
    };
    let root = file("crates/x/src/lib.rs", "mod a; mod b; mod c; pub use b::Thing;");
    let a = file("crates/x/src/a/deep.rs", "use crate::{Thing, c::C};");
    let b = file("crates/x/src/b.rs", "fn f() { crate::c::g(); }");
    let down = file("crates/x/src/c.rs", "#[cfg(test)] mod tests { use crate::a::A; }");
    assert_eq!(measured(&[root.clone(), a.clone(), b.clone(), down]), []);
    let up = file("crates/x/src/c.rs", "use super::a::A;");
    let circle = ["a", "b", "c"].map(|name| (name.to_owned(), 2));
    assert_eq!(measured(&[root, a, b, up]), circle);
}
