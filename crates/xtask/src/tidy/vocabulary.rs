//! One word for one concept, and the field's own where it has one (docs/glossary.md).
//!
//! A module is the noun of its main type: a reader looks for a thing, and a participle or an adverb
//! (`kept`, `settling`, `elsewhere`) names none. Words that were retired do not come back: the list
//! says what is used instead.

use syn::visit::{self, Visit};

use super::{Offence, Source, Tree, assert_clean};

/// Nouns that look like participles.
const NOUNS: &[&str] = &["framing", "mapping", "paging", "staging", "testing", "uring"];

/// Module names that are no nouns and have no such ending.
const NO_NOUNS: &[&str] = &[
    "ahead",
    "apart",
    "around",
    "aside",
    "beside",
    "breaks",
    "driven",
    "elsewhere",
    "faulty",
    "first",
    "heard",
    "held",
    "kept",
    "known",
    "lately",
    "obey",
    "seldom",
    "taken",
    "through",
    "told",
    "widen",
];

/// Identifiers that were retired, and what is used instead.
const RETIRED: &[(&str, &str)] = &[
    ("Calm", "SteadyState"),
    ("Care", "Maintenance"),
    ("Desk", "AdmissionContext"),
    ("Door", "…Availability"),
    ("Ensured", "Applied"),
    ("Farewell", "Deregister"),
    ("Geography", "DiskLayout"),
    ("Happened", "ControllerEvent"),
    ("Holdings", "SlotBuffers"),
    ("Illegal", "InvalidTransition"),
    ("Keeper", "…Store, or …Renewer"),
    ("Lately", "SlidingWindow"),
    ("Leaf", "EngineObject"),
    ("Lodger", "ReplicaEntry"),
    ("Memo", "SpecBackup"),
    ("Obstacle", "IneligibleReason"),
    ("Occupant", "Signature"),
    ("Patience", "StartupRetry"),
    ("Prover", "AuthWorker"),
    ("Rim", "Driver"),
    ("Seldom", "LogThrottle"),
    ("Situation", "VolumeHealth"),
    ("Starter", "JobOrigin"),
    ("Stray", "Orphan"),
    ("StrayTarget", "OrphanTarget"),
    ("Symptom", "DiskFinding"),
    ("Tally", "Counts"),
    ("Telling", "EventDraft"),
    ("Toy", "MockController"),
    ("Trouble", "Issue"),
    ("Typed", "…Args, or …Command"),
    ("UnderWay", "PendingOp"),
    ("Wish", "Request, or …Preference"),
    ("Yielding", "RebuildThrottle"),
    ("ask_around", "try_bypass"),
    ("bury", "reap"),
    ("choked", "waiting_for_checkpoint"),
    ("come_back", "bypass_failed"),
    ("give_way", "close_predecessor"),
    ("hungry", "waiting_for_memory"),
    ("is_deaf", "unsubscribe"),
    ("is_mute", "listing_fails"),
    ("keep_after_all", "cancel_removal"),
    ("lodger", "replica_entry"),
    ("memo", "spec_backup"),
    ("obey", "apply"),
    ("poke", "needs_rescan"),
    ("pump_sweep", "expire_intents"),
    ("resum", "rechecksum"),
    ("to_its_end", "run_detached"),
    ("went_around", "bypass_done"),
    ("why_never", "permanent_failure"),
    ("wish", "request"),
];

struct Finder<'a> {
    file: &'a Source,
    offences: Vec<Offence>,
}

impl Finder<'_> {
    fn check_module(&mut self, name: &str) {
        let looks_so = name.ends_with("ing") || name.ends_with("ed");
        if NO_NOUNS.contains(&name) || looks_so && !NOUNS.iter().any(|noun| name.ends_with(noun)) {
            let path = &self.file.path;
            self.offences.push(format!("{path}: module {name}: call it by the noun of its type"));
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !self.file.is_test() {
            self.check_module(&item.ident.to_string());
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // The parser's own words.
        if path.segments.first().is_none_or(|first| first.ident != "syn") {
            visit::visit_path(self, path);
        }
    }

    fn visit_ident(&mut self, ident: &'ast syn::Ident) {
        if let Some((word, instead)) = RETIRED.iter().find(|(word, _)| ident == word) {
            self.offences.push(format!("{}: {word}: say {instead}", self.file.path));
        }
    }
}

fn offences(tree: &Tree) -> Vec<Offence> {
    let of_file = |file: &Source| {
        let mut finder = Finder { file, offences: Vec::new() };
        finder.visit_file(&file.parse());
        finder.offences.dedup();
        finder.offences
    };
    tree.rust().flat_map(of_file).collect()
}

#[test]
fn modules_are_nouns_and_retired_words_stay_away() {
    assert_clean(&offences(&Tree::of_the_project()));
}

#[test]
fn made_up_words_are_found() {
    let found = |path: &str, text: &str| offences(&Tree::of(path, text)).len();
    for name in ["settling", "scrubbed", "kept", "elsewhere"] {
        let text = format!("mod {name};");
        assert_eq!(found("crates/pool/src/lib.rs", &text), 1, "{name}");
        assert_eq!(found("crates/pool/tests/it/main.rs", &text), 0, "{name} in a test");
    }
    for name in ["paging", "pool_mapping", "journal", "provided_buffers"] {
        assert_eq!(found("crates/pool/src/lib.rs", &format!("mod {name};")), 0, "{name}");
    }
    for (word, _) in RETIRED {
        assert_eq!(found("crates/pool/src/x.rs", &format!("fn f() {{ {word}(); }}")), 1, "{word}");
    }
    assert_eq!(found("crates/pool/src/x.rs", "fn f() { request(); }"), 0);
}

#[test]
fn each_word_is_retired_once_and_in_order() {
    assert!(RETIRED.is_sorted_by(|a, b| a.0 < b.0), "RETIRED is sorted and has no word twice");
}
