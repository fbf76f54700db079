//! Rules on labels.

use std::collections::BTreeMap;

use model::*;

use crate::sample::{good, labels};

/// `a` any value, `a=x|y` one of these; several separated by spaces.
fn rules(text: &str) -> BTreeMap<LabelKey, std::collections::BTreeSet<LabelValue>> {
    text.split_whitespace()
        .map(|rule| match rule.split_once('=') {
            Some((key, values)) => (good(key), values.split('|').map(good).collect()),
            None => (good(rule), [].into()),
        })
        .collect()
}

fn check(include: &str, exclude: &str, has: &[(&str, &str)], admitted: bool) {
    let rules =
        LabelRules { include: rules(include), exclude: rules(exclude), ..LabelRules::default() };
    assert_eq!(rules.admits(&labels(has)), admitted, "+{include} -{exclude} {has:?}");
}

#[test]
fn no_rule_forbids_nothing() {
    check("", "", &[], true);
    check("", "", &[("a", "x")], true);
}

#[test]
fn include_asks_for_the_label() {
    check("a", "", &[("a", "x")], true);
    check("a", "", &[("b", "x")], false);
    check("a=x|y", "", &[("a", "y")], true);
    check("a=x|y", "", &[("a", "z")], false);
    check("a=x b", "", &[("a", "x")], false);
}

#[test]
fn exclude_forbids_it() {
    check("", "a", &[("a", "x")], false);
    check("", "a", &[("b", "x")], true);
    check("", "a=x", &[("a", "y")], true);
    check("", "a=x", &[("a", "x")], false);
    check("a", "a=x", &[("a", "y")], true);
}

#[test]
fn spread_and_same_as_ask_that_the_label_is_there() {
    let spread = LabelRules { spread: [good("rack")].into(), ..LabelRules::default() };
    let same = LabelRules { same_as: [good("rack")].into(), ..LabelRules::default() };
    for rules in [spread, same] {
        assert!(rules.admits(&labels(&[("rack", "1")])) && !rules.admits(&labels(&[])));
    }
}
