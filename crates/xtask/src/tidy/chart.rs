//! Every value of the chart is in its schema and in `docs/values.md`, and nothing else is.
//!
//! `HOLDFAST_BLESS=1 cargo test -p xtask` writes the page.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Offence, assert_clean};

const PAGE: &str = "docs/values.md";
const HEAD: &str = "# Values of the chart

Made from `chart/values.yaml`; `HOLDFAST_BLESS=1 cargo test -p xtask` makes it anew.
`chart/values.schema.json` says what each may be, and Helm refuses anything else.

| value | default | meaning |
|---|---|---|
";

/// A line of `values.yaml`: where it is, what it is if it is not a table, and what is said of it.
#[derive(Debug, PartialEq)]
struct Entry {
    path: String,
    default: String,
    meaning: String,
}

/// The lines that set something. Two spaces are a level, a comment is about the next line.
fn entries(text: &str) -> Vec<Entry> {
    let (mut above, mut comment, mut found) = (Vec::<&str>::new(), Vec::new(), Vec::new());
    for line in text.lines() {
        let level = (line.len() - line.trim_start().len()) / 2;
        let line = line.trim();
        if let Some(words) = line.strip_prefix("# ") {
            comment.push(words);
        } else if let Some((key, value)) = line.split_once(':')
            && !line.starts_with('-')
        {
            above.truncate(level);
            above.push(key);
            let entry = Entry {
                path: above.join("."),
                default: value.trim().to_owned(),
                meaning: comment.join(" "),
            };
            found.push(entry);
            comment.clear();
        } else if line.starts_with('-')
            && let Some(list) = found.last_mut()
        {
            let item = line.trim_start_matches("- ");
            let already = list.default.trim_matches(['[', ']']).to_owned();
            let all =
                if already.is_empty() { item.to_owned() } else { format!("{already}, {item}") };
            list.default = format!("[{all}]");
        }
    }
    found
}

/// A row for each value; what is said of a table is said of its first value.
fn page(entries: &[Entry]) -> String {
    let mut page = HEAD.to_owned();
    let mut of_table = String::new();
    for entry in entries {
        let meaning = [of_table.as_str(), &entry.meaning].join(" ").trim().replace('|', "\\|");
        if entry.default.is_empty() {
            of_table = meaning;
            continue;
        }
        of_table.clear();
        let _ = writeln!(page, "| `{}` | `{}` | {meaning} |", entry.path, entry.default);
    }
    page
}

/// Values that the schema does not have, and those that only the schema has.
fn offences(entries: &[Entry], schema: &Value) -> Vec<Offence> {
    let mut known = Vec::new();
    collect(schema, "", &mut known);
    // Helm itself sets it.
    known.retain(|(path, _)| path != "global");
    // A table whose keys are free, such as a selector, is one value.
    let has = |path: &str| {
        known
            .iter()
            .any(|(one, is_free)| one == path || (*is_free && path.starts_with(&format!("{one}."))))
    };
    let missing = entries.iter().filter(|entry| !has(&entry.path));
    let missing = missing.map(|entry| format!("values.schema.json lacks {}", entry.path));
    let is_set = |path: &str| entries.iter().any(|entry| entry.path == path);
    let more = known.iter().filter(|(path, _)| !is_set(path));
    missing.chain(more.map(|(path, _)| format!("values.yaml lacks {path}"))).collect()
}

/// Every path of a schema, and whether what is below it is free.
fn collect(schema: &Value, above: &str, into: &mut Vec<(String, bool)>) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, inner) in properties {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        collect(inner, &path, into);
        into.push((path, inner.get("properties").is_none()));
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(crate::root().join(path)).unwrap_or_default()
}

#[test]
fn every_value_of_the_chart_is_in_its_schema() {
    let entries = entries(&read("chart/values.yaml"));
    assert!(entries.len() > 40, "only {} values were found", entries.len());
    let schema = serde_json::from_str(&read("chart/values.schema.json")).unwrap();
    assert_clean(&offences(&entries, &schema));
}

#[test]
fn the_page_of_values_is_current() {
    let wanted = page(&entries(&read("chart/values.yaml")));
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        std::fs::write(crate::root().join(PAGE), &wanted).unwrap();
    }
    assert_eq!(read(PAGE), wanted, "{PAGE} is made from chart/values.yaml");
}

#[test]
fn a_made_up_value_is_found_and_shown() {
    let text = "# About a.\na:\n  # The b.\n  b: [0]\n  list:\n  - one\n  - two\n";
    let entries = entries(text);
    let rows = "| `a.b` | `[0]` | About a. The b. |\n| `a.list` | `[one, two]` |  |\n";
    assert_eq!(page(&entries).strip_prefix(HEAD), Some(rows));
    let schema =
        |inner: Value| serde_json::json!({ "properties": { "a": { "properties": inner } } });
    let both = serde_json::json!({ "b": {}, "list": {} });
    assert_eq!(offences(&entries, &schema(both)), [""; 0]);
    let other = serde_json::json!({ "b": {}, "c": {} });
    let found = offences(&entries, &schema(other));
    assert_eq!(found, ["values.schema.json lacks a.list", "values.yaml lacks a.c"]);
}
