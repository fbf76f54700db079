//! Watchers without a stream.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    proto::{
        etcdserverpb::{
            DeleteRangeRequest, PutRequest, RequestOp, TxnRequest, WatchCreateRequest,
            WatchResponse, request_op::Request, watch_create_request::FilterType,
        },
        mvccpb::event::EventType,
    },
    server::{
        auth::Caller, index::Index, journal::Identity, machine::Machine, rpc::watchers::Watchers,
        server_state::ServerState, settings::Settings,
    },
};

use super::start;

struct Scene {
    shared: Arc<ServerState>,
    machine: Machine,
    watchers: Watchers,
}

impl Scene {
    fn new() -> Self {
        let index = Index::build(Vec::new(), 1, 0);
        let machine = Machine::new(&index, start(Vec::new()));
        let shared = Arc::new(ServerState::new(
            index,
            Settings::default(),
            (Identity { cluster: 1, member: 1 }, 0),
        ));
        Self { shared, machine, watchers: Watchers::default() }
    }

    fn put(&mut self, key: &str, value: &str) {
        self.put_unpublished(key, value);
        self.shared.publish(self.shared.index().revision());
    }

    fn put_unpublished(&mut self, key: &str, value: &str) {
        let (key, value) = (key.to_owned().into(), value.to_owned().into());
        let request = PutRequest { key, value, ..PutRequest::default() };
        self.machine.put(&mut self.shared.index_mut(), &request).unwrap();
    }

    fn delete(&mut self, key: &'static str) {
        let request = DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
        self.machine.delete_range(&mut self.shared.index_mut(), &request).unwrap();
        self.shared.publish(self.shared.index().revision());
    }

    fn compact(&self, revision: i64) {
        let mut index = self.shared.index_mut();
        index.compact(revision);
        while !index.sweep(1) {}
    }

    fn create(&mut self, request: &WatchCreateRequest) -> Vec<WatchResponse> {
        let mut answers = Vec::new();
        self.watchers.create(request, Caller(None), &self.shared, &mut answers);
        answers
    }

    fn collect(&mut self) -> Vec<WatchResponse> {
        let mut answers = Vec::new();
        while self.watchers.collect(&self.shared, &mut answers) {}
        answers
    }
}

fn watch(key: &'static str, end: &'static str, start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: Bytes::from(key),
        range_end: Bytes::from(end),
        start_revision,
        ..WatchCreateRequest::default()
    }
}

/// Events as "P key revision" and "D key revision".
fn told(answers: &[WatchResponse]) -> Vec<String> {
    let events = answers.iter().flat_map(|answer| &answer.events);
    let tell = |event: &crate::proto::mvccpb::Event| {
        let kv = event.kv.as_ref().unwrap();
        let kind = if event.r#type() == EventType::Put { "P" } else { "D" };
        format!("{kind} {} {}", String::from_utf8_lossy(&kv.key), kv.mod_revision)
    };
    events.map(tell).collect()
}

#[test]
fn only_what_is_published_is_told() {
    let mut scene = Scene::new();
    scene.create(&watch("a", "b", 0));
    scene.put_unpublished("a1", "x");
    assert!(scene.collect().is_empty());
    scene.put("z", "x");
    assert_eq!(told(&scene.collect()), ["P a1 2"]);
    assert!(scene.collect().is_empty(), "nothing comes twice");
}

#[test]
fn history_comes_first_and_then_news_without_gap() {
    let mut scene = Scene::new();
    scene.put("a", "1");
    scene.put("b", "1");
    scene.delete("a");
    scene.create(&watch("a", "", 2));
    scene.put("a", "2");
    assert_eq!(told(&scene.collect()), ["P a 2", "D a 4", "P a 5"]);
    assert!(scene.collect().is_empty(), "nothing comes twice");
}

#[test]
fn filters_leave_out() {
    let mut scene = Scene::new();
    let filters = vec![i32::from(FilterType::Noput)];
    scene.create(&WatchCreateRequest { filters, ..watch("a", "", 0) });
    scene.put("a", "1");
    scene.delete("a");
    assert_eq!(told(&scene.collect()), ["D a 3"]);
}

#[test]
fn previous_values_come_when_asked() {
    let mut scene = Scene::new();
    scene.create(&WatchCreateRequest { prev_kv: true, ..watch("a", "", 0) });
    scene.create(&watch("a", "", 0));
    scene.put("a", "1");
    scene.put("a", "2");
    let answers = scene.collect();
    let prev =
        |answer: &WatchResponse| answer.events[1].prev_kv.as_ref().map(|kv| kv.value.clone());
    assert_eq!(prev(&answers[0]), Some(Bytes::from("1")));
    assert_eq!(prev(&answers[1]), None);
}

#[test]
fn a_start_below_the_compaction_is_cut_off() {
    let mut scene = Scene::new();
    for _ in 0..4 {
        scene.put("a", "1");
    }
    scene.compact(4);
    let answers = scene.create(&watch("a", "", 3));
    assert!(answers[0].created && !answers[0].canceled);
    assert!(answers[1].canceled);
    assert_eq!(answers[1].compact_revision, 4);
    scene.create(&watch("a", "", 4));
    assert_eq!(told(&scene.collect()), ["P a 4", "P a 5"]);
}

#[test]
fn a_compaction_does_not_cut_off_a_watcher_that_is_a_little_late() {
    let mut scene = Scene::new();
    scene.create(&WatchCreateRequest { prev_kv: true, ..watch("a", "", 0) });
    scene.put("a", "1");
    scene.put("a", "2");
    scene.delete("a");
    scene.compact(4);
    assert_eq!(told(&scene.collect()), ["P a 2", "P a 3", "D a 4"]);
}

#[test]
fn a_watcher_that_is_very_late_is_cut_off() {
    let mut scene = Scene::new();
    scene.create(&watch("a", "", 0));
    for _ in 0..6000 {
        scene.put("a", "1");
    }
    scene.compact(6001);
    let answers = scene.collect();
    assert!(answers[0].canceled);
    assert_eq!(answers[0].compact_revision, 6001);
    assert_eq!(answers.len(), 1);
}

#[test]
fn numbers_are_unique_on_a_stream() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.create(&WatchCreateRequest { watch_id: 1, ..watch("a", "", 0) })[0].watch_id,
        1
    );
    assert_eq!(scene.create(&watch("a", "", 0))[0].watch_id, 0);
    assert_eq!(scene.create(&watch("a", "", 0))[0].watch_id, 2);
    let twice = scene.create(&WatchCreateRequest { watch_id: 1, ..watch("a", "", 0) });
    assert!(twice[0].canceled && twice[0].watch_id == -1);
    assert!(scene.create(&watch("b", "a", 0))[0].canceled, "an empty range");
}

#[test]
fn progress_is_told_when_all_are_up_to_date() {
    let mut scene = Scene::new();
    scene.create(&watch("a", "", 0));
    scene.put("a", "1");
    scene.watchers.want_progress();
    let answers = scene.collect();
    assert_eq!(told(&answers[..1]), ["P a 2"]);
    assert_eq!(answers[1].watch_id, -1);
    assert_eq!(answers[1].header.as_ref().unwrap().revision, 2);
    assert!(scene.collect().is_empty());
}

#[test]
fn quiet_watchers_that_asked_are_notified() {
    let mut scene = Scene::new();
    scene.create(&WatchCreateRequest { progress_notify: true, ..watch("a", "", 0) });
    scene.create(&watch("a", "", 0));
    scene.put("z", "1");
    scene.collect();
    let mut answers = Vec::new();
    scene.watchers.notify(&scene.shared, &mut answers);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].header.as_ref().unwrap().revision, 2);
}

#[test]
fn large_answers_are_cut_only_when_asked() {
    let mut scene = Scene::new();
    scene.create(&WatchCreateRequest { fragment: true, ..watch("a", "b", 0) });
    scene.create(&watch("a", "b", 0));
    let put = |key: &'static str| PutRequest {
        key: key.into(),
        value: vec![0; 700 << 10].into(),
        ..PutRequest::default()
    };
    let op = |key| RequestOp { request: Some(Request::RequestPut(put(key))) };
    let request = TxnRequest { success: vec![op("a0"), op("a1")], ..TxnRequest::default() };
    scene.machine.txn(&mut scene.shared.index_mut(), &request).unwrap();
    scene.shared.publish(2);
    let answers = scene.collect();
    let of = |id| answers.iter().filter(move |answer| answer.watch_id == id);
    assert!(of(0).any(|answer| answer.fragment));
    assert!(!of(0).next_back().unwrap().fragment);
    assert!(of(1).all(|answer| !answer.fragment && answer.events.len() == 2));
    for id in 0..2 {
        let all: Vec<_> = of(id).cloned().collect();
        assert_eq!(told(&all), ["P a0 2", "P a1 2"]);
    }
}

#[test]
fn a_watcher_of_the_future_is_not_told_that_it_is_there() {
    let mut scene = Scene::new();
    scene.put("k", "1");
    let published = scene.shared.published();
    let start_revision = published + 100;
    scene.create(&WatchCreateRequest { progress_notify: true, ..watch("k", "", start_revision) });
    let mut answers = Vec::new();
    scene.watchers.notify(&scene.shared, &mut answers);
    let told: Vec<_> = answers.iter().map(|answer| answer.header.unwrap().revision).collect();
    assert_eq!(told, [published]);
}
