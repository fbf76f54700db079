//! Rules that measure, with a list of exceptions that may only shrink.
//!
//! `tidy/ratchet.txt` lists the exceptions with their measure. An entry must say the exact measure,
//! so it is lowered when the code gets better, and removed when the code keeps the rule. Nothing
//! may grow past its entry.

use std::collections::BTreeMap;

use super::{Offence, Source, Tree, assert_clean, length, modules, shape, signature};

/// Something past its limit: the rule, the file, the thing in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Excess {
    pub(crate) rule: String,
    pub(crate) path: String,
    pub(crate) name: String,
}

impl Excess {
    pub(crate) fn new(rule: &str, file: &Source, name: &str) -> Excess {
        Excess { rule: rule.to_owned(), path: file.path.clone(), name: name.to_owned() }
    }

    fn parse(entry: &str) -> (Excess, usize) {
        match entry.split(' ').map(str::to_owned).collect::<Vec<_>>().as_slice() {
            [rule, path, name, measure] => {
                let measure = measure.parse().unwrap_or_else(|_| panic!("bad number: {entry}"));
                let (rule, path, name) = (rule.clone(), path.clone(), name.clone());
                (Excess { rule, path, name }, measure)
            }
            _ => panic!("an entry is RULE PATH NAME NUMBER, not {entry:?}"),
        }
    }
}

impl std::fmt::Display for Excess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.rule, self.path, self.name)
    }
}

/// What is past its limit and not excepted, and exceptions that no longer hold.
pub(crate) fn against(found: Vec<(Excess, usize)>, ratchet: &str) -> Vec<Offence> {
    let entries = ratchet.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut allowed: BTreeMap<_, _> = entries.map(Excess::parse).collect();
    let mut offences = Vec::new();
    for (excess, measure) in found {
        match allowed.remove(&excess) {
            Some(have) if have == measure => {}
            Some(have) if measure < have => {
                offences.push(format!("lower it: {excess} is {measure}, not {have}"));
            }
            Some(have) => offences.push(format!("{excess} grew: {have} to {measure}")),
            None => offences.push(format!("{excess} is past its limit: {measure}")),
        }
    }
    offences.extend(allowed.into_keys().map(|excess| format!("remove it: {excess}")));
    offences
}

#[test]
fn nothing_grew_past_its_ratchet() {
    let tree = Tree::of_the_project();
    let by_file =
        tree.rust().flat_map(|file| [length::excess(file), signature::excess(file)].concat());
    let by_crate = shape::excess(tree.rust()).into_iter().chain(modules::excess(tree.rust()));
    let found = by_file.chain(by_crate).collect();
    assert_clean(&against(found, tree.text("tidy/ratchet.txt")));
}

#[test]
fn a_ratchet_only_shrinks() {
    let file = Source { path: "crates/x/src/y.rs".into(), text: String::new() };
    let found = |measure| vec![(Excess::new("function", &file, "long"), measure)];
    let entry = "function crates/x/src/y.rs long 80\n";
    assert_clean(&against(found(80), entry));
    let new = against(found(80), "# nothing\n");
    assert_eq!(new, ["function crates/x/src/y.rs long is past its limit: 80"]);
    let shrunk = against(found(72), entry);
    assert_eq!(shrunk, ["lower it: function crates/x/src/y.rs long is 72, not 80"]);
    let grown = against(found(81), entry);
    assert_eq!(grown, ["function crates/x/src/y.rs long grew: 80 to 81"]);
    assert_eq!(against(vec![], entry), ["remove it: function crates/x/src/y.rs long"]);
}
