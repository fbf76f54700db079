//! Readers of events come, go, and go on where they were.

use api::StreamItem;
use model::Event;

use crate::fake::{Running, golden};

fn tell(running: &Running, message: &str) {
    let sample = golden::<serde_json::Value>("stored-event.json")["record"].clone();
    let sample: Event = serde_json::from_value(sample).unwrap();
    running.events.push(|number| Event { number, message: message.to_owned(), ..sample });
}

fn message(seen: Option<StreamItem<Event>>) -> String {
    match seen {
        Some(StreamItem::Event(event)) => event.message,
        Some(StreamItem::Missed) => "(missed)".to_owned(),
        None => "(end)".to_owned(),
    }
}

#[tokio::test]
async fn a_reader_goes_on_after_the_last_it_saw() {
    let running = Running::new().await;
    let node = running.remote();
    tell(&running, "before");
    let mut reader = node.events(None).await.unwrap();
    tell(&running, "one");
    assert_eq!(message(reader.next().await.unwrap()), "one");
    let last = reader.last().map(str::to_owned);
    drop(reader);
    tell(&running, "two");
    tell(&running, "three");
    let mut reader = node.events(last).await.unwrap();
    assert_eq!(message(reader.next().await.unwrap()), "two");
    assert_eq!(message(reader.next().await.unwrap()), "three");
    running.events.close();
    assert_eq!(message(reader.next().await.unwrap()), "(end)");
}

#[tokio::test]
async fn who_missed_some_is_told_so() {
    let running = Running::new().await;
    let node = running.remote();
    // The log keeps four.
    (1..=6).for_each(|n| tell(&running, &n.to_string()));
    let instance = "00000000-0000-4000-8000-000000000001";
    let other = "00000000-0000-4000-8000-000000000002";
    for (last, expected) in [
        (format!("{instance}.1"), "(missed) 3"),
        (format!("{instance}.2"), "3 4"),
        (format!("{instance}.5"), "6"),
        (format!("{instance}.7"), "(missed) 3"),
        (format!("{other}.6"), "(missed) 3"),
        ("nonsense".to_owned(), "(missed) 3"),
    ] {
        let mut reader = node.events(Some(last.clone())).await.unwrap();
        for expected in expected.split(' ') {
            assert_eq!(message(reader.next().await.unwrap()), expected, "after {last}");
        }
    }
}

#[tokio::test]
async fn a_stop_ends_readers_and_the_server() {
    let mut running = Running::new().await;
    let mut reader = running.remote().events(None).await.unwrap();
    tell(&running, "last words");
    running.events.close();
    running.stop.take().unwrap().send(()).unwrap();
    assert_eq!(message(reader.next().await.unwrap()), "last words");
    assert_eq!(message(reader.next().await.unwrap()), "(end)");
    running.ended.await.unwrap();
}
