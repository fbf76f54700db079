//! Targets by the node API. This engine serves replicas and no targets: it says so, and that there
//! are none.

use api::node::Answered;
use api::{Page, Paging};
use model::{Kind, Problem};

/// An order about targets.
pub(super) fn not_served<T>() -> Answered<T> {
    let detail = "this engine serves replicas and no targets; choose a node whose engine does";
    Err(Problem::new(Kind::NotSupported, detail))
}

/// A question about one target or rebuild.
pub(super) fn no_such<T>(kind: &str, id: impl std::fmt::Display) -> Answered<T> {
    let detail = format!("there is no {kind} {id}: this engine serves no targets");
    Err(Problem::new(Kind::NotFound, detail))
}

/// All of them.
pub(super) fn none<T>(paging: &Paging) -> Answered<Page<T>> {
    paging.cut([], |_| String::new())
}
