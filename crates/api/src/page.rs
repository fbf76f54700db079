//! Long lists, a page at a time.
//!
//! A page ends with the key after which the next begins. The key is opaque to callers: it is the
//! sort key of the last item, so a list that changes meanwhile neither repeats nor loses the rest.

use model::{Problem, ValidationError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most items of one page, and what a page has unless fewer are asked for.
pub const MOST_PER_PAGE: u32 = 1000;

/// Which page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Paging {
    /// At most so many: 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Go on after this, as the page before said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "PageOf{T}")]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Where the next page begins; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl Paging {
    /// How many items to give.
    pub fn limit(&self) -> Result<usize, Problem> {
        let limit = self.limit.unwrap_or(MOST_PER_PAGE);
        if !(1..=MOST_PER_PAGE).contains(&limit) {
            let remedy = format!("give 1 to {MOST_PER_PAGE}, or leave it out");
            return Err(ValidationError::new("limit", limit, remedy).into());
        }
        usize::try_from(limit).map_err(|_| ValidationError::new("limit", limit, "give less").into())
    }

    /// A page of a sorted list: what comes after the given key, up to the limit.
    pub fn cut<T>(
        &self,
        sorted: impl IntoIterator<Item = T>,
        key: impl Fn(&T) -> String,
    ) -> Result<Page<T>, Problem> {
        let limit = self.limit()?;
        let is_new = |item: &T| self.after.as_ref().is_none_or(|after| key(item) > *after);
        let mut rest = sorted.into_iter().filter(is_new);
        let items: Vec<T> = rest.by_ref().take(limit).collect();
        let after = rest.next().and(items.last()).map(key);
        Ok(Page { items, after })
    }
}
