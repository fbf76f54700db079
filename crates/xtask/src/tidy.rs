//! The rules of the house, as tests.
//!
//! A rule is a function from a [`Tree`] to its offences, so that each rule can be shown to find a
//! made-up one. The reason for a rule stands where the rule is.

mod architecture;
mod chart;
mod edges;
mod length;
mod modules;
mod names;
mod prose;
mod ratchet;
mod shape;
mod signature;
mod source;
mod specification;
mod tour;
mod vocabulary;
mod words;

pub(crate) use source::{Source, Tree};

/// An offence: where, and what to do about it.
pub(crate) type Offence = String;

/// Compares with no offence at all, so that a failing test prints each one on its own line.
#[track_caller]
fn assert_clean(offences: &[Offence]) {
    assert!(offences.is_empty(), "\n{}\n", offences.join("\n"));
}
