//! Reads: which keys, at which revision, filtered, sorted and cut.

use std::{cmp::Ordering, sync::Arc};

use crate::proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader,
    range_request::{SortOrder, SortTarget},
};

use super::{
    index::Index, keys::KeyRange, record::Record, server_state::ServerState, status::Refusal,
};

/// Keys that are read under one lock.
const KEYS_AT_ONCE: usize = 1000;
/// How often a range is begun again because its revision was compacted meanwhile.
const ATTEMPTS: usize = 8;

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
    let mut selection = Selection::new(request);
    index.range(&range, at).for_each(|record| selection.add(record));
    Ok(selection.finish(current))
}

/// The same for readers that hold no lock: it is taken for some keys at a time, so that a long
/// range keeps nobody from writing. A revision is read whole or not at all.
pub(crate) fn range_in_pieces(
    state: &ServerState,
    request: &RangeRequest,
) -> Result<RangeResponse, Refusal> {
    for _ in 0..ATTEMPTS {
        let current = state.published();
        let at = readable(&state.index(), request.revision, current)?;
        let range = KeyRange::new(&request.key, &request.range_end);
        let mut selection = Selection::new(request);
        match scan(state, (&range, at), |record| selection.add(record)) {
            Ok(()) => return Ok(selection.finish(current)),
            // The newest revision is asked for, and there is a newer one.
            Err(Refusal::Compacted) if request.revision <= 0 => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::TooManyRequests)
}

/// Walks over a range at a revision, some keys under one lock.
pub(crate) fn scan(
    state: &ServerState,
    (range, at): (&KeyRange, i64),
    mut each: impl FnMut(&Arc<Record>),
) -> Result<(), Refusal> {
    let mut range = range.clone();
    loop {
        let piece = {
            let index = state.index();
            readable(&index, at, i64::MAX)?;
            index.piece(&range, KEYS_AT_ONCE, at)
        };
        piece.records.iter().for_each(&mut each);
        let Some(last) = piece.last else { return Ok(()) };
        let Some(rest) = range.after(&last) else { return Ok(()) };
        range = rest;
    }
}

/// The records that a request asks for, as they are found in order of keys.
struct Selection<'a> {
    request: &'a RangeRequest,
    limit: Option<usize>,
    keep: usize,
    count: usize,
    found: Vec<Arc<Record>>,
}

impl<'a> Selection<'a> {
    fn new(request: &'a RangeRequest) -> Self {
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        // Unsorted and unfiltered, nothing after the limit is needed but its number.
        let keep = limit.filter(|_| is_plain(request)).map_or(usize::MAX, |limit| limit + 1);
        let keep = if request.count_only { 0 } else { keep };
        Self { request, limit, keep, count: 0, found: Vec::new() }
    }

    fn add(&mut self, record: &Arc<Record>) {
        self.count += 1;
        if self.found.len() < self.keep && passes(self.request, record) {
            self.found.push(Arc::clone(record));
        }
    }

    fn finish(mut self, current: i64) -> RangeResponse {
        let mut response = RangeResponse { header: header(current), ..RangeResponse::default() };
        sort(self.request, &mut self.found);
        if let Some(limit) = self.limit
            && self.found.len() > limit
        {
            self.found.truncate(limit);
            response.more = true;
        }
        response.count = length(self.count);
        response.kvs = self.found.into_iter().map(|record| record.to_key_value()).collect();
        if self.request.keys_only {
            for kv in &mut response.kvs {
                kv.value.clear();
            }
        }
        response
    }
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
fn sort(request: &RangeRequest, found: &mut [Arc<Record>]) {
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
