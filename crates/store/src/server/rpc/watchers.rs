//! The watchers of one stream, without the stream.
//!
//! Nothing is queued: each watcher knows the next revision it needs, and takes events from the log
//! of the index when the client has room. So a slow client costs nothing but its place.
//!
//! Invariants: a watcher gets every matching event from its start on, in order of revision, once;
//! all events of one revision come in one answer, unless the client allows fragments.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use crate::proto::{
    etcdserverpb::{
        ResponseHeader, WatchCreateRequest, WatchResponse, watch_create_request::FilterType,
    },
    mvccpb::Event,
};

use super::super::{
    auth::Caller,
    index::{Change, Index},
    keys::KeyRange,
    server_state::ServerState,
    status::Refusal,
};

/// Most watchers of one stream.
const WATCHERS: usize = 10_000;
/// About the most bytes of events taken at once, but never less than one revision.
const BYTES_AT_ONCE: usize = 1 << 20;
/// About the most changes looked at under one lock.
const CHANGES_AT_ONCE: usize = 10_000;
/// Most bytes of one fragment.
const FRAGMENT_BYTES: usize = 1 << 20;
/// Stands for all watchers of a stream, or for none.
const NO_WATCHER: i64 = -1;

/// The watchers of one stream.
#[derive(Default)]
pub(crate) struct Watchers {
    watchers: BTreeMap<i64, Watcher>,
    next_id: i64,
    /// The client wants to know how far the stream is, as soon as all watchers are up to date.
    progress_wanted: bool,
}

#[expect(clippy::struct_excessive_bools, reason = "each is a wish of the client by itself")]
struct Watcher {
    /// Who asked for it, and for what.
    caller: Caller,
    asked: (Bytes, Bytes),
    range: KeyRange,
    /// The next revision to report.
    next: i64,
    puts: bool,
    deletes: bool,
    prev_kv: bool,
    fragment: bool,
    progress_notify: bool,
    /// Whether it got something since the last notification.
    busy: bool,
}

impl Watchers {
    /// Starts a watcher, or tells why not.
    pub(crate) fn create(
        &mut self,
        request: &WatchCreateRequest,
        caller: Caller,
        shared: &ServerState,
        answers: &mut Vec<WatchResponse>,
    ) {
        let (published, compacted) = {
            let index = shared.index();
            (shared.published(), index.compacted())
        };
        let mut answer = WatchResponse {
            header: Some(shared.header(published)),
            created: true,
            ..WatchResponse::default()
        };
        // The smallest key there is stands for an empty one.
        let key = if request.key.is_empty() { &Bytes::from_static(&[0]) } else { &request.key };
        let range = KeyRange::new(key, &request.range_end);
        let id = match self.choose_id(request, &range) {
            Ok(id) => id,
            Err(why) => {
                answer.watch_id = NO_WATCHER;
                answer.canceled = true;
                why.clone_into(&mut answer.cancel_reason);
                answers.push(answer);
                return;
            }
        };
        answer.watch_id = id;
        answers.push(answer);
        let start = request.start_revision;
        if start > 0 && start < compacted {
            answers.push(cut_off(shared, id, published, compacted));
            return;
        }
        let unwanted = |filter: FilterType| request.filters.contains(&i32::from(filter));
        let watcher = Watcher {
            caller,
            asked: (key.clone(), request.range_end.clone()),
            range,
            next: if start > 0 { start } else { published + 1 },
            puts: !unwanted(FilterType::Noput),
            deletes: !unwanted(FilterType::Nodelete),
            prev_kv: request.prev_kv,
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            busy: false,
        };
        self.watchers.insert(id, watcher);
    }

    fn choose_id(
        &mut self,
        request: &WatchCreateRequest,
        range: &KeyRange,
    ) -> Result<i64, &'static str> {
        if self.watchers.len() >= WATCHERS {
            return Err("too many watchers on one stream: open another one");
        }
        if range.is_empty() {
            return Err("mvcc: watcher range is empty");
        }
        if request.watch_id != 0 {
            let taken = self.watchers.contains_key(&request.watch_id);
            let wrong = taken || request.watch_id == NO_WATCHER;
            let why = "mvcc: duplicate watch ID provided on the WatchStream";
            return if wrong { Err(why) } else { Ok(request.watch_id) };
        }
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok(self.next_id - 1)
    }

    /// Ends a watcher.
    pub(crate) fn cancel(
        &mut self,
        id: i64,
        shared: &ServerState,
        answers: &mut Vec<WatchResponse>,
    ) {
        if self.watchers.remove(&id).is_some() {
            answers.push(WatchResponse {
                header: Some(shared.header(shared.published())),
                watch_id: id,
                canceled: true,
                ..WatchResponse::default()
            });
        }
    }

    /// Ends the watchers that may not see any more what they asked for, and takes back what they
    /// were to be told.
    pub(crate) fn recheck(
        &mut self,
        shared: &ServerState,
        permits: impl Fn(&Caller, &Bytes, &Bytes) -> Result<(), Refusal>,
        answers: &mut Vec<WatchResponse>,
    ) {
        let mut refusals = BTreeMap::new();
        self.watchers.retain(|id, watcher| {
            let (key, range_end) = &watcher.asked;
            let refusal = permits(&watcher.caller, key, range_end).err();
            let stays = refusal.is_none();
            refusals.extend(refusal.map(|refusal| (*id, refusal)));
            stays
        });
        answers.retain(|it| it.events.is_empty() || !refusals.contains_key(&it.watch_id));
        let ended = refusals.into_iter().map(|(watch_id, refusal)| WatchResponse {
            watch_id,
            created: false,
            ..refused(shared, &refusal)
        });
        answers.extend(ended);
    }

    /// The client wants to know how far the stream is.
    pub(crate) fn want_progress(&mut self) {
        self.progress_wanted = true;
    }

    /// Tells watchers that asked for it, and got nothing for a while, how far they are.
    pub(crate) fn notify(&mut self, shared: &ServerState, answers: &mut Vec<WatchResponse>) {
        let published = shared.published();
        for (id, watcher) in &mut self.watchers {
            if watcher.progress_notify && !watcher.busy {
                // A watcher may wait for a revision that is far away.
                let reached = published.min(watcher.next - 1);
                answers.push(WatchResponse {
                    header: Some(shared.header(reached)),
                    watch_id: *id,
                    ..WatchResponse::default()
                });
            }
            watcher.busy = false;
        }
    }

    /// Takes what the watchers need next; whether there is more.
    pub(crate) fn collect(
        &mut self,
        shared: &ServerState,
        answers: &mut Vec<WatchResponse>,
    ) -> bool {
        let published = shared.published();
        let index = shared.index();
        self.cut_off_late(&index, shared, published, answers);
        let behind = self.watchers.values().map(|watcher| watcher.next).min();
        let mut reached = published;
        if let Some(first) = behind.filter(|first| *first <= published) {
            let mut events = BTreeMap::new();
            reached = self.walk(&index, first, published, &mut events);
            drop(index);
            for (id, events) in events {
                self.answer(id, events, shared.header(reached), answers);
            }
            for watcher in self.watchers.values_mut() {
                watcher.next = watcher.next.max(reached + 1);
            }
        }
        if reached == published && self.progress_wanted {
            self.progress_wanted = false;
            answers.push(WatchResponse {
                header: Some(shared.header(published)),
                watch_id: NO_WATCHER,
                ..WatchResponse::default()
            });
        }
        reached < published
    }

    fn cut_off_late(
        &mut self,
        index: &Index,
        shared: &ServerState,
        published: i64,
        answers: &mut Vec<WatchResponse>,
    ) {
        let floor = index.floor();
        let late = self.watchers.extract_if(.., |_, watcher| watcher.next < floor);
        for (id, _) in late {
            answers.push(cut_off(shared, id, published, index.compacted()));
        }
    }

    /// Takes events from `first` on; the last revision that was taken whole.
    fn walk(
        &self,
        index: &Index,
        first: i64,
        published: i64,
        events: &mut BTreeMap<i64, Vec<Event>>,
    ) -> i64 {
        let mut bytes = 0;
        let mut previous = first;
        for (looked_at, change) in index.changes_from(first).enumerate() {
            let main = change.record.revision.main;
            if main > published {
                break;
            }
            let enough = bytes >= BYTES_AT_ONCE || looked_at >= CHANGES_AT_ONCE;
            if enough && main > previous {
                return previous;
            }
            previous = main;
            for (id, watcher) in &self.watchers {
                if watcher.wants(change) {
                    bytes += change.record.cost();
                    events.entry(*id).or_default().push(watcher.event(change));
                }
            }
        }
        published
    }

    fn answer(
        &mut self,
        id: i64,
        events: Vec<Event>,
        header: ResponseHeader,
        answers: &mut Vec<WatchResponse>,
    ) {
        let Some(watcher) = self.watchers.get_mut(&id) else { return };
        watcher.busy = true;
        let whole = WatchResponse {
            header: Some(header),
            watch_id: id,
            events,
            ..WatchResponse::default()
        };
        if watcher.fragment && whole.encoded_len() > FRAGMENT_BYTES {
            fragments(whole, answers);
        } else {
            answers.push(whole);
        }
    }
}

impl Watcher {
    fn wants(&self, change: &Change) -> bool {
        let record = &change.record;
        let kind = if record.is_tombstone() { self.deletes } else { self.puts };
        kind && record.revision.main >= self.next && self.range.contains(&record.key)
    }

    fn event(&self, change: &Change) -> Event {
        change.record.to_event(change.prev.as_deref().filter(|_| self.prev_kv))
    }
}

/// Tells a client that it may not watch what it asked for, as etcd does.
pub(crate) fn refused(shared: &ServerState, refusal: &Refusal) -> WatchResponse {
    WatchResponse {
        header: Some(shared.header(shared.published())),
        watch_id: NO_WATCHER,
        created: true,
        canceled: true,
        cancel_reason: format!("rpc error: code = {:?} desc = {refusal}", refusal.code()),
        ..WatchResponse::default()
    }
}

/// Tells a watcher that what it needs is compacted.
fn cut_off(shared: &ServerState, id: i64, published: i64, compacted: i64) -> WatchResponse {
    WatchResponse {
        header: Some(shared.header(published)),
        watch_id: id,
        canceled: true,
        compact_revision: compacted,
        cancel_reason: Refusal::Compacted.to_string(),
        ..WatchResponse::default()
    }
}

/// Cuts an answer in pieces; all but the last say that more follow.
fn fragments(whole: WatchResponse, answers: &mut Vec<WatchResponse>) {
    let empty = WatchResponse { events: Vec::new(), ..whole.clone() };
    let mut piece = WatchResponse { fragment: true, ..empty.clone() };
    let mut bytes = 0;
    for event in whole.events {
        let size = event.encoded_len();
        if bytes > 0 && bytes + size > FRAGMENT_BYTES {
            answers.push(std::mem::replace(
                &mut piece,
                WatchResponse { fragment: true, ..empty.clone() },
            ));
            bytes = 0;
        }
        bytes += size;
        piece.events.push(event);
    }
    piece.fragment = false;
    answers.push(piece);
}
