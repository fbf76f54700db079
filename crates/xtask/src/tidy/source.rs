//! The files of the project, read once.

use std::path::Path;
use std::process::Command;

/// A set of files: path below the root, and text.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    pub(crate) files: Vec<Source>,
}

/// One text file.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Tree {
    /// Every text file that git tracks or would track.
    pub(crate) fn of_the_project() -> Tree {
        let root = crate::root();
        let listed = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .expect("git lists the files of its own checkout");
        assert!(listed.status.success(), "git ls-files: {}", listed.status);
        let paths = String::from_utf8(listed.stdout).expect("paths are UTF-8");
        let read = |path: &str| {
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some(Source { path: path.to_owned(), text })
        };
        let files: Vec<_> = paths.lines().filter_map(read).collect();
        assert!(files.len() > 20, "only {} files were found", files.len());
        Tree { files }
    }

    /// A made-up tree of one file.
    pub(crate) fn of(path: &str, text: &str) -> Tree {
        Tree { files: vec![Source { path: path.to_owned(), text: text.to_owned() }] }
    }

    /// The Rust files written by people.
    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.is_rust() && !file.is_generated())
    }

    /// One file by its path.
    pub(crate) fn text(&self, path: &str) -> &str {
        let found = self.files.iter().find(|file| file.path == path);
        &found.unwrap_or_else(|| panic!("there is no {path}")).text
    }
}

impl Source {
    fn is_rust(&self) -> bool {
        Path::new(&self.path).extension().is_some_and(|ending| ending == "rs")
    }

    /// Generated files say so in their first line.
    fn is_generated(&self) -> bool {
        self.text.lines().next().is_some_and(|line| line.contains("@generated"))
    }

    /// The crate it belongs to, by its folder.
    pub(crate) fn krate(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("")
    }

    /// Whether all of it is test code: a test crate, or a `tests.rs` beside what it tests.
    pub(crate) fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.any(|part| part == "tests" || part == "tests.rs")
            || matches!(self.krate(), "e2e" | "sim")
            || self.path.starts_with("fuzz/")
            || self.path.starts_with("crates/xtask/src/tidy")
    }

    /// Its syntax tree.
    pub(crate) fn parse(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

/// Whether an item is only compiled for tests.
pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.contains("\"testing\"")
        }
        _ => false,
    })
}
