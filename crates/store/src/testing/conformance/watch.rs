//! Watching.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::target::{Target, put_request, revision};
use super::{Checked, Failure, holds, same};
use crate::proto::etcdserverpb as pb;
use crate::proto::etcdserverpb::watch_create_request::FilterType;
use crate::proto::etcdserverpb::watch_request::RequestUnion;
use crate::proto::mvccpb::Event;
use crate::proto::mvccpb::event::EventType;

/// A watch stream.
pub(super) struct Watcher {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl Watcher {
    /// A stream with one watcher on it.
    pub(super) async fn start(
        at: &Target,
        key: Bytes,
        range_end: Bytes,
        start_revision: i64,
    ) -> Result<Watcher, Failure> {
        let create =
            pb::WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
        Watcher::with(at, create).await
    }

    /// A stream with one watcher on it, which the server has confirmed.
    async fn with(at: &Target, create: pb::WatchCreateRequest) -> Result<Watcher, Failure> {
        let mut watcher = Watcher::open(at, create).await?;
        let answer = watcher.answer().await?;
        same("created", (answer.created, answer.canceled), (true, false))?;
        same("no events yet", answer.events.len(), 0)?;
        Ok(watcher)
    }

    async fn open(at: &Target, create: pb::WatchCreateRequest) -> Result<Watcher, Failure> {
        let (requests, receiver) = mpsc::channel(8);
        say(&requests, RequestUnion::CreateRequest(create)).await?;
        let answers = at.watch().watch(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Watcher { requests, answers })
    }

    async fn say(&self, request: RequestUnion) -> Checked {
        say(&self.requests, request).await
    }

    async fn answer(&mut self) -> Result<pb::WatchResponse, Failure> {
        self.answers.message().await?.ok_or(Failure::Missing("the next message of a stream"))
    }

    /// The events of the next message.
    pub(super) async fn events(&mut self) -> Result<Vec<Event>, Failure> {
        let answer = self.answer().await?;
        holds("not canceled", !answer.canceled)?;
        Ok(answer.events)
    }

    /// Events until `count` have come, however they are spread over messages.
    async fn next(&mut self, count: usize) -> Result<Vec<Event>, Failure> {
        let mut events = Vec::new();
        while events.len() < count {
            events.extend(self.events().await?);
        }
        Ok(events)
    }
}

async fn say(requests: &mpsc::Sender<pb::WatchRequest>, request: RequestUnion) -> Checked {
    let request = pb::WatchRequest { request_union: Some(request) };
    requests.send(request).await.map_err(|_| Failure::Missing("the other end of a stream"))
}

fn room(at: &Target, start_revision: i64) -> pb::WatchCreateRequest {
    let (key, range_end) = (at.key(""), at.end());
    pb::WatchCreateRequest { key, range_end, start_revision, ..Default::default() }
}

/// Events in short: `put a=1 @0`, `del a @1`, revisions counted from `first`.
fn told(at: &Target, events: &[Event], first: i64) -> Vec<String> {
    let mut lines = Vec::new();
    for event in events {
        let Some(kv) = &event.kv else { continue };
        let name = at.names(std::slice::from_ref(kv)).concat();
        let when = kv.mod_revision - first;
        lines.push(match event.r#type() {
            EventType::Put => {
                format!("put {name}={} @{when}", String::from_utf8_lossy(&kv.value))
            }
            EventType::Delete => format!("del {name} @{when}"),
        });
    }
    lines
}

fn lines(wanted: &[&str]) -> Vec<String> {
    wanted.iter().map(|&line| line.to_owned()).collect()
}

pub(super) async fn follows_a_prefix(at: Target) -> Checked {
    let mut watcher = Watcher::with(&at, room(&at, 0)).await?;
    let first = at.put("a", "1").await?;
    at.put("b", "1").await?;
    at.put("a", "2").await?;
    at.delete("b").await?;
    let events = watcher.next(4).await?;
    let want = ["put a=1 @0", "put b=1 @1", "put a=2 @2", "del b @3"];
    same("events", told(&at, &events, first), lines(&want))?;
    holds("no previous values unless asked", events.iter().all(|event| event.prev_kv.is_none()))
}

pub(super) async fn follows_one_key(at: Target) -> Checked {
    let first = at.put("b", "1").await?;
    let mut watcher = Watcher::start(&at, at.key("b"), Bytes::new(), first).await?;
    at.put("ba", "1").await?;
    at.put("c", "1").await?;
    at.put("b", "2").await?;
    let events = watcher.next(2).await?;
    same("events", told(&at, &events, first), lines(&["put b=1 @0", "put b=2 @3"]))
}

pub(super) async fn replays_history(at: Target) -> Checked {
    at.put("a", "0").await?;
    let first = at.put("a", "1").await?;
    at.put("b", "1").await?;
    at.delete("a").await?;
    at.put("a", "2").await?;
    let mut watcher = Watcher::with(&at, room(&at, first)).await?;
    let events = watcher.next(4).await?;
    let want = ["put a=1 @0", "put b=1 @1", "del a @2", "put a=2 @3"];
    same("events", told(&at, &events, first), lines(&want))?;
    at.put("c", "1").await?;
    let events = watcher.next(1).await?;
    same("and goes on", told(&at, &events, first), lines(&["put c=1 @4"]))
}

pub(super) async fn begins_in_the_future(at: Target) -> Checked {
    let now = at.put("a", "0").await?;
    let mut watcher = Watcher::with(&at, room(&at, now + 3)).await?;
    at.put("a", "1").await?;
    at.put("a", "2").await?;
    at.put("a", "3").await?;
    let events = watcher.next(1).await?;
    same("events", told(&at, &events, now), lines(&["put a=3 @3"]))
}

pub(super) async fn previous_values(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let create = pb::WatchCreateRequest { prev_kv: true, ..room(&at, first) };
    let mut watcher = Watcher::with(&at, create).await?;
    at.put("a", "2").await?;
    at.delete("a").await?;
    at.put("a", "3").await?;
    let events = watcher.next(4).await?;
    let before = |event: &Event| event.prev_kv.as_ref().map(|kv| kv.value.to_vec());
    let before: Vec<_> = events.iter().map(before).collect();
    let want = vec![None, Some(b"1".to_vec()), Some(b"2".to_vec()), None];
    same("before each", before, want)?;
    let deletion = events.get(2).and_then(|event| event.kv.as_ref());
    let kv = deletion.ok_or(Failure::Missing("the deleted key"))?;
    same("a deletion has no value", kv.value.len(), 0)?;
    same("nor a creation", (kv.create_revision, kv.version), (0, 0))
}

pub(super) async fn filters(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    at.delete("a").await?;
    at.put("a", "2").await?;
    at.delete("a").await?;
    let create =
        pb::WatchCreateRequest { filters: vec![FilterType::Noput.into()], ..room(&at, first) };
    let events = Watcher::with(&at, create).await?.next(2).await?;
    same("no puts", told(&at, &events, first), lines(&["del a @1", "del a @3"]))?;
    let create =
        pb::WatchCreateRequest { filters: vec![FilterType::Nodelete.into()], ..room(&at, first) };
    let events = Watcher::with(&at, create).await?.next(2).await?;
    same("no deletions", told(&at, &events, first), lines(&["put a=1 @0", "put a=2 @2"]))
}

pub(super) async fn cancel_ends_one_of_two(at: Target) -> Checked {
    let mut watcher = Watcher::with(&at, room(&at, 0)).await?;
    watcher.say(RequestUnion::CreateRequest(room(&at, 0))).await?;
    let second = watcher.answer().await?;
    same("second", (second.created, second.watch_id), (true, 1))?;
    watcher.say(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 0 })).await?;
    let end = watcher.answer().await?;
    same("canceled", (end.canceled, end.watch_id), (true, 0))?;
    same("no reason but the client's", end.cancel_reason, String::new())?;
    let first = at.put("a", "1").await?;
    at.put("a", "2").await?;
    for want in ["put a=1 @0", "put a=2 @1"] {
        let answer = watcher.answer().await?;
        same("only the other one hears", answer.watch_id, 1)?;
        same("event", told(&at, &answer.events, first), lines(&[want]))?;
    }
    Ok(())
}

pub(super) async fn compacted_history(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    at.put("a", "2").await?;
    let last = at.put("a", "3").await?;
    at.compact(last).await?;
    let mut watcher = Watcher::open(&at, room(&at, first)).await?;
    let created = watcher.answer().await?;
    same("created first", (created.created, created.canceled), (true, false))?;
    let end = watcher.answer().await?;
    same("then canceled", (end.created, end.canceled), (false, true))?;
    same("from where it can be watched", end.compact_revision, last)?;
    same("events", end.events.len(), 0)?;
    let events = Watcher::with(&at, room(&at, last)).await?.next(1).await?;
    same("from there it goes on", told(&at, &events, last), lines(&["put a=3 @0"]))
}

pub(super) async fn compacted_while_connected(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let mut watcher = Watcher::with(&at, room(&at, first)).await?;
    let events = watcher.next(1).await?;
    same("before", told(&at, &events, first), lines(&["put a=1 @0"]))?;
    let last = at.put("a", "2").await?;
    let events = watcher.next(1).await?;
    same("then", told(&at, &events, first), lines(&["put a=2 @1"]))?;
    at.compact(last).await?;
    at.put("a", "3").await?;
    let events = watcher.next(1).await?;
    same("a watcher that has kept up goes on", told(&at, &events, first), lines(&["put a=3 @2"]))
}

pub(super) async fn one_transaction_one_message(at: Target) -> Checked {
    let mut watcher = Watcher::with(&at, room(&at, 0)).await?;
    let put = |name: &str| {
        let put = pb::request_op::Request::RequestPut(put_request(at.key(name), "1"));
        pb::RequestOp { request: Some(put) }
    };
    let success = ["c", "a", "b"].map(put).to_vec();
    let answer = at.txn(pb::TxnRequest { success, ..Default::default() }).await?;
    let first = revision(answer.header);
    let events = watcher.events().await?;
    let want = ["put c=1 @0", "put a=1 @0", "put b=1 @0"];
    same("in the order of the operations", told(&at, &events, first), lines(&want))?;
    let mut replay = Watcher::with(&at, room(&at, first)).await?;
    let events = replay.events().await?;
    same("also from history", told(&at, &events, first), lines(&want))
}

async fn write_large(at: &Target) -> Result<i64, Failure> {
    let value = "x".repeat(500_000);
    let first = at.put("0", &value).await?;
    for name in 1..20 {
        at.put(&name.to_string(), &value).await?;
    }
    Ok(first)
}

fn check_large(events: &[Event], first: i64) -> Checked {
    let revisions: Vec<_> =
        events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).collect();
    same("each once and in order", revisions, (first..first + 20).collect())?;
    let whole = |event: &Event| event.kv.as_ref().is_some_and(|kv| kv.value.len() == 500_000);
    holds("whole values", events.iter().all(whole))
}

pub(super) async fn large_events(at: Target) -> Checked {
    let first = write_large(&at).await?;
    let events = Watcher::with(&at, room(&at, first)).await?.next(20).await?;
    check_large(&events, first)?;
    at.tidy().await
}

pub(super) async fn large_events_in_fragments(at: Target) -> Checked {
    let first = write_large(&at).await?;
    let create = pb::WatchCreateRequest { fragment: true, ..room(&at, first) };
    let mut watcher = Watcher::with(&at, create).await?;
    let mut events = Vec::new();
    loop {
        let answer = watcher.answer().await?;
        events.extend(answer.events);
        if !answer.fragment && events.len() >= 20 {
            break;
        }
    }
    check_large(&events, first)?;
    at.tidy().await
}

pub(super) async fn chosen_numbers(at: Target) -> Checked {
    let create = pb::WatchCreateRequest { watch_id: 7, ..room(&at, 0) };
    let mut watcher = Watcher::open(&at, create.clone()).await?;
    same("the number chosen", watcher.answer().await?.watch_id, 7)?;
    watcher.say(RequestUnion::CreateRequest(create)).await?;
    let again = watcher.answer().await?;
    same("not twice", (again.created, again.canceled, again.watch_id), (true, true, -1))?;
    let words = "mvcc: duplicate watch ID provided on the WatchStream";
    same("and why", again.cancel_reason, words.into())?;
    let first = at.put("a", "1").await?;
    let answer = watcher.answer().await?;
    same("the first goes on", answer.watch_id, 7)?;
    same("event", told(&at, &answer.events, first), lines(&["put a=1 @0"]))
}

pub(super) async fn progress_on_request(at: Target) -> Checked {
    let create = pb::WatchCreateRequest { progress_notify: true, ..room(&at, 0) };
    let mut watcher = Watcher::with(&at, create).await?;
    let first = at.put("a", "1").await?;
    watcher.next(1).await?;
    watcher.say(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await?;
    let answer = watcher.answer().await?;
    same("about the whole stream", (answer.watch_id, answer.events.len()), (-1, 0))?;
    same("how far", revision(answer.header), first)
}

pub(super) async fn everything(at: Target) -> Checked {
    let zero = Bytes::from_static(b"\0");
    let mut watcher = Watcher::start(&at, Bytes::new(), zero, 0).await?;
    let first = at.put("a", "1").await?;
    let events = watcher.next(1).await?;
    same("event", told(&at, &events, first), lines(&["put a=1 @0"]))
}

pub(super) async fn resumes_on_a_new_stream(at: Target) -> Checked {
    let mut watcher = Watcher::with(&at, room(&at, 0)).await?;
    let first = at.put("a", "1").await?;
    let events = watcher.next(1).await?;
    let seen = events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).max();
    drop(watcher);
    at.put("a", "2").await?;
    at.put("a", "3").await?;
    let mut watcher = Watcher::with(&at, room(&at, seen.unwrap_or(0) + 1)).await?;
    let events = watcher.next(2).await?;
    same("no gap, nothing twice", told(&at, &events, first), lines(&["put a=2 @1", "put a=3 @2"]))
}

pub(super) async fn ends_with_a_lease(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    let first = at.put_leased("a", lease).await?;
    let create = pb::WatchCreateRequest { prev_kv: true, ..room(&at, first + 1) };
    let mut watcher = Watcher::with(&at, create).await?;
    at.lease().lease_revoke(pb::LeaseRevokeRequest { id: lease }).await?;
    let events = watcher.next(1).await?;
    same("event", told(&at, &events, first), lines(&["del a @1"]))?;
    let before = events.first().and_then(|event| event.prev_kv.as_ref()).map(|kv| kv.lease);
    same("its lease is told", before, Some(lease))
}

pub(super) async fn goes_on_when_all_is_said(at: Target) -> Checked {
    let create = pb::WatchCreateRequest { key: at.key("a"), ..Default::default() };
    let request = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    // The client's half of the stream ends behind its only request.
    let mut answers = at.watch().watch(tokio_stream::once(request)).await?.into_inner();
    let created = answers.message().await?.ok_or(Failure::Missing("an answer"))?;
    holds("created", created.created)?;
    at.put("a", "1").await?;
    let answer = answers.message().await?.ok_or(Failure::Missing("an event"))?;
    same("events", answer.events.len(), 1)
}
