//! Events on the wire: server-sent events with resume, and their reader.
//!
//! A stream begins with the reader's place (an `id` without data), goes on with events, and has a
//! comment now and then so that both ends notice when the other is gone. A `missed` event says that
//! some were forgotten before the reader came back; it then looks at the things themselves.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::events::{EventCursor, Log};
use crate::{CallError, Reply};

/// So often something is sent, so that a connection that is gone is noticed.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A reader may be silent for so long before its connection is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// The largest event a reader takes.
const MOST_BYTES: usize = 1 << 20;

/// Events as an answer, without end.
pub struct EventStream<E> {
    log: Arc<Log<E>>,
    last: Option<String>,
}

impl<E> EventStream<E> {
    /// What comes after the event with this id; without one, what comes from now on.
    pub fn new(log: Arc<Log<E>>, last: Option<String>) -> EventStream<E> {
        EventStream { log, last }
    }
}

struct Writing<E> {
    log: Arc<Log<E>>,
    told: tokio::sync::watch::Receiver<Option<u64>>,
    place: Option<EventCursor>,
    ready: VecDeque<Bytes>,
}

impl<E: Serialize> Writing<E> {
    fn fetch(&mut self) {
        let batch = self.log.after(self.place);
        if batch.missed {
            self.ready.push_back(Bytes::from_static(b"event: missed\ndata: {}\n\n"));
            self.place = Some(self.log.now());
        }
        for (place, event) in batch.events {
            self.place = Some(place);
            match serde_json::to_string(&*event) {
                Ok(json) => {
                    let text = format!("id: {place}\nevent: event\ndata: {json}\n\n");
                    self.ready.push_back(text.into());
                }
                Err(error) => tracing::error!(%error, %place, "an event cannot be written"),
            }
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Some(text);
            }
            // A close that comes before the events were fetched does not swallow them: they are
            // fetched first, and the mark of the close stays.
            let closed = self.told.borrow_and_update().is_none();
            self.fetch();
            if !self.ready.is_empty() {
                continue;
            }
            if closed {
                return None;
            }
            match tokio::time::timeout(HEARTBEAT, self.told.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

impl<E: Serialize + JsonSchema + Send + Sync + 'static> Reply for EventStream<E> {
    const STATUSES: &'static [u16] = &[200];
    const MEDIA: &'static str = "text/event-stream";

    fn reply(self) -> Response {
        let told = self.log.told();
        let place = match &self.last {
            Some(last) => EventCursor::parse(last),
            None => Some(self.log.now()),
        };
        let hello = place.map(|place| Bytes::from(format!("id: {place}\n\n")));
        let ready = hello.into_iter().collect();
        let writing = Writing { log: self.log, told, place, ready };
        let pieces = stream::unfold(writing, |mut writing| async move {
            let piece = writing.next().await?;
            Some((Ok::<_, Infallible>(piece), writing))
        });
        let mut answer = Response::new(Body::from_stream(pieces));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<E>()
    }
}

/// What a reader is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem<E> {
    /// Something happened.
    Event(E),
    /// Some events were forgotten: look at the things themselves.
    Missed,
}

/// Events as a client reads them.
pub struct Subscription<E> {
    body: Incoming,
    bytes: Vec<u8>,
    last: Option<String>,
    types: PhantomData<fn() -> E>,
}

impl<E: DeserializeOwned> Subscription<E> {
    pub(crate) fn new(body: Incoming, last: Option<String>) -> Subscription<E> {
        Subscription { body, bytes: Vec::new(), last, types: PhantomData }
    }

    /// The place to go on from, for the next subscription.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// The next; `None`: the server has ended the stream, subscribe again.
    ///
    /// It may be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Result<Option<StreamItem<E>>, CallError> {
        loop {
            while let Some(message) = self.message() {
                if let Some(seen) = self.take(&message)? {
                    return Ok(Some(seen));
                }
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            match frame.await.map_err(|_| CallError::TimedOut { after: SILENCE })? {
                None => return Ok(None),
                Some(Err(error)) => return Err(CallError::Broken { source: error.into() }),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.bytes.extend_from_slice(&data);
                    }
                }
            }
            if self.bytes.len() > MOST_BYTES {
                let reason = format!("an event is larger than {MOST_BYTES} bytes");
                return Err(CallError::Unreadable { reason });
            }
        }
    }

    /// A whole message, up to its empty line.
    fn message(&mut self) -> Option<String> {
        let end = self.bytes.windows(2).position(|pair| pair == b"\n\n")?;
        let rest = self.bytes.split_off(end + 2);
        let message = std::mem::replace(&mut self.bytes, rest);
        Some(String::from_utf8_lossy(&message).into_owned())
    }

    fn take(&mut self, message: &str) -> Result<Option<StreamItem<E>>, CallError> {
        let field = |name: &str| {
            let value = message.lines().find_map(|line| line.strip_prefix(name));
            value.map(|value| value.strip_prefix(' ').unwrap_or(value))
        };
        if let Some(id) = field("id:") {
            self.last = Some(id.to_owned());
        }
        let Some(data) = field("data:") else { return Ok(None) };
        match field("event:") {
            Some("missed") => Ok(Some(StreamItem::Missed)),
            Some("event") => match serde_json::from_str(data) {
                Ok(event) => Ok(Some(StreamItem::Event(event))),
                Err(error) => Err(CallError::Unreadable { reason: error.to_string() }),
            },
            // A newer server may tell more.
            _ => Ok(None),
        }
    }
}
