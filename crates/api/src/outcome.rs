//! Answers to orders: whether anything changed, and what is there now.

use http::{HeaderMap, header};
use model::{Generation, Problem, ProblemKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What an order did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// It was not there and is now.
    Created,
    /// It was there and is different now.
    Changed,
    /// It was so before.
    Unchanged,
}

/// The answer to an order: what it did, and what is there now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "AppliedOf{T}")]
pub struct Applied<T> {
    /// What the order did.
    pub effect: Effect,
    /// What is there now.
    pub now: T,
}

impl<T> Applied<T> {
    /// It was made.
    pub fn created(now: T) -> Applied<T> {
        Applied { effect: Effect::Created, now }
    }

    /// It was changed.
    pub fn changed(now: T) -> Applied<T> {
        Applied { effect: Effect::Changed, now }
    }

    /// It was so before.
    pub fn unchanged(now: T) -> Applied<T> {
        Applied { effect: Effect::Unchanged, now }
    }
}

/// The answer to an order to remove something: it is not there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Deleted {
    /// Whether it was there before.
    pub existed: bool,
}

/// The generation a caller has seen, as `If-Match: "7"`; the same text as an `ETag`.
pub struct IfMatch;

impl IfMatch {
    /// The tag of a generation.
    pub fn tag(generation: Generation) -> String {
        format!("\"{generation}\"")
    }

    /// What the caller has seen; nothing: it does not care (`*` is the same).
    pub fn read(headers: &HeaderMap) -> Result<Option<Generation>, Problem> {
        let Some(value) = headers.get(header::IF_MATCH) else { return Ok(None) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(None);
        }
        let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let generation = number.and_then(|number| number.parse().ok()).and_then(Generation::new);
        let refused = || {
            let detail = "If-Match is not one generation in quotes, such as \"7\"; take the ETag \
                          of the answer that you have seen";
            let field = Some("If-Match".to_owned());
            Problem { field, ..Problem::new(ProblemKind::InvalidArgument, detail) }
        };
        generation.map(Some).ok_or_else(refused)
    }
}
