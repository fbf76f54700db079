//! Each promise in `SPECIFICATION.md` names the test that keeps it, and that test exists.

use super::{Offence, Tree, assert_clean};

/// Rows of the tables: `| promise | proof |`, the proof being `file.rs::test_name`, more than one
/// separated by commas, or a benchmark figure `bench NAME: figure`.
fn offences(tree: &Tree) -> Vec<Offence> {
    let page = tree.text("SPECIFICATION.md");
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise"));
    rows.filter_map(|row| {
        let proof = row.trim_end_matches('|').rsplit('|').next()?;
        let unknown: Vec<_> = proof
            .split(',')
            .map(|name| name.trim().trim_matches('`'))
            .filter(|name| !exists(tree, name))
            .collect();
        (!unknown.is_empty()).then(|| format!("no such proof: {} in {row}", unknown.join(", ")))
    })
    .collect()
}

fn exists(tree: &Tree, proof: &str) -> bool {
    if let Some(figure) = proof.strip_prefix("bench ") {
        let Some((bench, figure)) = figure.split_once(": ") else { return false };
        let folder = format!("crates/e2e/src/bench/{bench}");
        let mut sources = tree.files.iter().filter(|file| file.path.starts_with(&folder));
        return sources.any(|file| file.text.contains(&format!("\"{figure}\"")));
    }
    let Some((path, test)) = proof.split_once("::") else { return false };
    let mut sources = tree.files.iter().filter(|file| file.path == path);
    sources.any(|file| file.text.contains(&format!("fn {test}(")))
}

#[test]
fn every_promise_names_its_proof() {
    let tree = Tree::of_the_project();
    assert!(tree.text("SPECIFICATION.md").contains("| promise | proof |"));
    assert_clean(&offences(&tree));
}

#[test]
fn a_made_up_promise_is_found() {
    let page = "| promise | proof |\n|---|---|\n| It flies. | `crates/x/src/y.rs::flies` |\n";
    let mut tree = Tree::of("SPECIFICATION.md", page);
    assert_eq!(offences(&tree).len(), 1);
    tree.files.extend(Tree::of("crates/x/src/y.rs", "fn flies() {}").files);
    assert_clean(&offences(&tree));
}
