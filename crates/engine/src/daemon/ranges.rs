//! Runs of blocks, a page at a time: a page goes on after the block where the last one ended.

use api::node::{ApiResult, Range};
use api::{Page, Paging};
use block::{Blocks, Bytes};
use model::{Size, ValidationError};

/// The block where a page begins.
pub(super) fn start(paging: &Paging) -> ApiResult<Blocks> {
    let Some(after) = &paging.after else { return Ok(Blocks::ZERO) };
    let remedy = "give it as the page before said";
    after.parse().map(Blocks).map_err(|_| ValidationError::text("after", after, remedy).into())
}

/// The first runs (start, end), and where the next page begins if there are more.
pub(super) fn page(runs: &[(u64, u64)], limit: usize) -> Page<Range> {
    let bytes = |blocks: u64| Size::from(Bytes(blocks.saturating_mul(Size::BLOCK.bytes().0)));
    let range = |(start, end): &(u64, u64)| Range {
        offset: bytes(*start),
        length: bytes(end.saturating_sub(*start)),
    };
    let kept = runs.get(..limit).unwrap_or(runs);
    let has_more = runs.len() > kept.len();
    let after = kept.last().filter(|_| has_more).map(|(_, end)| end.to_string());
    Page { items: kept.iter().map(range).collect(), after }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_without_gap_or_repetition() {
        let runs = [(0, 1), (4, 8), (9, 10)];
        let all = page(&runs, 3);
        assert_eq!((all.items.len(), all.after), (3, None));
        let first = page(&runs, 2);
        assert_eq!(first.items, all.items[..2]);
        let paging = Paging { limit: None, after: first.after };
        assert_eq!(start(&paging).unwrap(), Blocks(8));
        assert_eq!(all.items[1], Range { offset: Size::kib(16), length: Size::kib(16) });
    }

    #[test]
    fn what_no_page_said_is_refused() {
        let paging = Paging { limit: None, after: Some("x".into()) };
        assert_eq!(start(&paging).unwrap_err().field.as_deref(), Some("after"));
    }
}
