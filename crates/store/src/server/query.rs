//! Reads: which keys, at which revision, filtered, sorted and cut.

use std::{cmp::Ordering, sync::Arc};

use crate::proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader,
    range_request::{SortOrder, SortTarget},
};

use super::{index::Index, keys::KeyRange, record::Record, status::Refusal};

/// A header that only tells the revision; the edge adds who answered.
#[expect(clippy::unnecessary_wraps, reason = "every answer has the header as an option")]
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

/// The revision that a request means, if it can be read when `current` is the newest.
pub(crate) fn readable(index: &Index, asked: i64, current: i64) -> Result<i64, Refusal> {
    if asked > current {
        return Err(Refusal::FutureRevision);
    }
    let at = if asked <= 0 { current } else { asked };
    if at < index.compacted() { Err(Refusal::Compacted) } else { Ok(at) }
}

/// Answers a checked range request when `current` is the newest revision to be seen.
pub(crate) fn range(
    index: &Index,
    request: &RangeRequest,
    current: i64,
) -> Result<RangeResponse, Refusal> {
    let at = readable(index, request.revision, current)?;
    let range = KeyRange::new(&request.key, &request.range_end);
    let all = index.range(&range, at);
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
    let mut response = RangeResponse { header: header(current), ..RangeResponse::default() };
    if request.count_only {
        response.count = length(all.count());
        return Ok(response);
    }
    let mut count = 0;
    // Unsorted and unfiltered, nothing after the limit is needed but its number.
    let keep = limit.filter(|_| is_plain(request)).map_or(usize::MAX, |limit| limit + 1);
    let mut found: Vec<&Arc<Record>> = Vec::new();
    for record in all {
        count += 1;
        if found.len() < keep && passes(request, record) {
            found.push(record);
        }
    }
    sort(request, &mut found);
    if let Some(limit) = limit
        && found.len() > limit
    {
        found.truncate(limit);
        response.more = true;
    }
    response.count = length(count);
    response.kvs = found.into_iter().map(|record| record.to_key_value()).collect();
    if request.keys_only {
        for kv in &mut response.kvs {
            kv.value.clear();
        }
    }
    Ok(response)
}

fn is_plain(request: &RangeRequest) -> bool {
    request.sort_order() == SortOrder::None
        && request.sort_target() == SortTarget::Key
        && request.min_mod_revision == 0
        && request.max_mod_revision == 0
        && request.min_create_revision == 0
        && request.max_create_revision == 0
}

fn passes(request: &RangeRequest, record: &Record) -> bool {
    let within =
        |value: i64, min: i64, max: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(record.revision.main, request.min_mod_revision, request.max_mod_revision)
        && within(record.create_revision, request.min_create_revision, request.max_create_revision)
}

/// Sorts records that are in order of keys.
fn sort(request: &RangeRequest, found: &mut [&Arc<Record>]) {
    let by: fn(&Record, &Record) -> Ordering = match request.sort_target() {
        SortTarget::Key => |a, b| a.key.cmp(&b.key),
        SortTarget::Version => |a, b| a.version.cmp(&b.version),
        SortTarget::Create => |a, b| a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => |a, b| a.revision.main.cmp(&b.revision.main),
        SortTarget::Value => |a, b| a.value.cmp(&b.value),
    };
    match (request.sort_order(), request.sort_target()) {
        (SortOrder::None | SortOrder::Ascend, SortTarget::Key) => {}
        (SortOrder::Descend, _) => found.sort_by(|a, b| by(b, a)),
        (SortOrder::None | SortOrder::Ascend, _) => found.sort_by(|a, b| by(a, b)),
    }
}

/// A length as the protocol has it.
pub(crate) fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
