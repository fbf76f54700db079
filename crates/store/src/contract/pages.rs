//! Reading many keys a page at a time.

use std::num::NonZeroU32;

use futures::stream::{self, Stream};

use super::{Page, Query, ReadError, Store};

/// All pages of `query` at one revision: that of the query, or of the first answer.
pub(super) fn pages<S: Store + ?Sized>(
    store: &S,
    query: Query,
    page: NonZeroU32,
) -> impl Stream<Item = Result<Page, ReadError>> + Send {
    let first = Some(query.limit(page.get().into()));
    stream::try_unfold(first, move |query| async move {
        let Some(query) = query else { return Ok(None) };
        let page = store.range(query.clone()).await?;
        let rest = match page.kvs.last() {
            Some(last) if page.more => Some(Query {
                keys: query.keys.after(&last.key),
                at: query.at.or(Some(page.revision)),
                ..query
            }),
            _ => None,
        };
        Ok(Some((page, rest)))
    })
}
