//! The tours of docs/tour name functions of the code; each of them is in the file it links to.

use std::path::Path;

use super::{Offence, Tree, assert_clean};

const FOLDER: &str = "docs/tour/";

/// Links from a tour to Rust files: the name in backticks, and the path below the root.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("[`").skip(1).filter_map(|rest| {
        let (name, rest) = rest.split_once("`](")?;
        let (path, _) = rest.split_once(')')?;
        let path = path.strip_prefix("../../")?;
        let is_rust = Path::new(path).extension().is_some_and(|ending| ending == "rs");
        is_rust.then_some((name, path))
    })
}

fn offences(tree: &Tree) -> Vec<Offence> {
    let mut found = Vec::new();
    for tour in tree.files.iter().filter(|file| file.path.starts_with(FOLDER)) {
        for (name, path) in links(&tour.text) {
            let function = name.rsplit("::").next().unwrap_or(name);
            let file = tree.files.iter().find(|file| file.path == path);
            let is_there = file.is_some_and(|file| {
                let follows = |rest: &str| rest.starts_with(['(', '<', ' ', '{']);
                let defined = |word: &str| {
                    file.text.split(&format!("{word} {function}")).skip(1).any(follows)
                };
                defined("fn") || defined("macro_rules!")
            });
            if !is_there {
                found.push(format!("{}: {path} has no {function}", tour.path));
            }
        }
    }
    found
}

#[test]
fn every_link_of_a_tour_leads_to_its_function() {
    let tree = Tree::of_the_project();
    let tours = tree.files.iter().filter(|file| file.path.starts_with(FOLDER));
    let linked: usize = tours.map(|tour| links(&tour.text).count()).sum();
    assert!(linked > 40, "only {linked} links were found");
    assert_clean(&offences(&tree));
}

#[test]
fn a_made_up_wrong_link_is_found() {
    let found = |text: &str| {
        let mut tree = Tree::of("docs/tour/x.md", text);
        tree.files.extend(Tree::of("crates/x/src/y.rs", "fn write_all() {}\n").files);
        offences(&tree).len()
    };
    assert_eq!(found("[`Log::write_all`](../../crates/x/src/y.rs) writes"), 0);
    assert_eq!(found("[`write`](../../crates/x/src/y.rs) writes"), 1);
    assert_eq!(found("[`write_all`](../../crates/x/src/z.rs) writes"), 1);
    assert_eq!(found("[the format](../format/pool.md)"), 0);
}
