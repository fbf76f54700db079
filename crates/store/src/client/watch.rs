//! A watch that outlives its connections.
//!
//! Invariant: `next` is the first revision not yet delivered; every new connection starts there,
//! and whatever arrives from before it is dropped. So nothing is missed and nothing comes twice.

use std::sync::Arc;

use futures::Stream;
use futures::stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};
use tracing::debug;

use super::endpoints::{Backoff, Endpoints, Failure, classify, require_leader};
use super::{class, wire};
use crate::contract::{Change, Changes, Revision, WatchError, WatchFrom};
use crate::proto::etcdserverpb as pb;

/// Changes from `from` on.
pub(super) fn watch(
    ring: Arc<Endpoints>,
    from: WatchFrom,
) -> impl Stream<Item = Result<Changes, WatchError>> + Send {
    let next = from.revision;
    let watching =
        WatchTask { ring, from, next, live: None, partial: Vec::new(), pause: Backoff::new() };
    stream::unfold(Some(watching), |watching| async move {
        let mut watching = watching?;
        match watching.advance().await {
            Ok(changes) => Some((Ok(changes), Some(watching))),
            Err(error) => Some((Err(error), None)),
        }
    })
}

struct WatchTask {
    ring: Arc<Endpoints>,
    from: WatchFrom,
    next: Revision,
    live: Option<Live>,
    /// Changes of the newest revision seen, while more of them may follow in the next fragment.
    partial: Vec<Change>,
    pause: Backoff,
}

/// One connection.
struct Live {
    turn: usize,
    endpoint: String,
    answers: Streaming<pb::WatchResponse>,
    /// The server ends the stream when this side ends.
    _requests: mpsc::Sender<pb::WatchRequest>,
}

impl WatchTask {
    /// Waits for the next changes, through as many connections as it takes.
    async fn advance(&mut self) -> Result<Changes, WatchError> {
        loop {
            let mut live = match self.live.take() {
                Some(live) => live,
                None => match self.open().await? {
                    Some(live) => live,
                    None => continue,
                },
            };
            match live.answers.message().await {
                Ok(Some(answer)) => {
                    self.pause = Backoff::new();
                    let news = self.take(answer, &live)?;
                    self.live = Some(live);
                    if let Some(changes) = news {
                        return Ok(changes);
                    }
                }
                Ok(None) => {
                    let end = Status::unavailable("the server ended the stream");
                    self.lost(live.turn, live.endpoint, end).await?;
                }
                Err(status) => self.lost(live.turn, live.endpoint, status).await?,
            }
        }
    }

    /// Starts over on the current server; `None` if that failed and may be tried again.
    async fn open(&mut self) -> Result<Option<Live>, WatchError> {
        let (turn, server) = self.ring.current();
        let (sender, receiver) = mpsc::channel(1);
        let (key, range_end) = self.from.keys.to_wire();
        let create = pb::WatchCreateRequest {
            key,
            range_end,
            start_revision: self.next.0,
            progress_notify: self.from.progress,
            prev_kv: self.from.previous,
            fragment: true,
            ..Default::default()
        };
        let create = pb::watch_request::RequestUnion::CreateRequest(create);
        // Cannot fail: the channel is empty and its other end is held here.
        let _ = sender.try_send(pb::WatchRequest { request_union: Some(create) });
        let mut request = Request::new(ReceiverStream::new(receiver));
        require_leader(&mut request);
        if let Err(status) = server.log_in().await {
            self.lost(turn, server.name, status).await?;
            return Ok(None);
        }
        match server.watch().watch(request).await {
            Ok(answer) => Ok(Some(Live {
                turn,
                endpoint: server.name,
                answers: answer.into_inner(),
                _requests: sender,
            })),
            // The next attempt gets a token first.
            Err(status) if server.may_log_in(&status) => {
                self.pause.wait().await;
                Ok(None)
            }
            Err(status) => {
                self.lost(turn, server.name, status).await?;
                Ok(None)
            }
        }
    }

    /// Waits a little and goes on with the next server, unless trying again is no use.
    async fn lost(
        &mut self,
        turn: usize,
        endpoint: String,
        status: Status,
    ) -> Result<(), WatchError> {
        self.partial.clear();
        let what = self.from.keys.to_string();
        if let Failure::Refused { endpoint, code, reason } = classify(endpoint.clone(), status) {
            return Err(WatchError::Refused { what, endpoint, reason, class: class(code) });
        }
        debug!(%endpoint, %what, from = %self.next, "watch lost its connection");
        self.ring.leave(turn);
        self.pause.wait().await;
        Ok(())
    }

    /// Takes one message and tells what of it can be delivered now.
    fn take(
        &mut self,
        answer: pb::WatchResponse,
        live: &Live,
    ) -> Result<Option<Changes>, WatchError> {
        let what = || self.from.keys.to_string();
        if answer.compact_revision != 0 {
            let upto = Revision(answer.compact_revision);
            return Err(WatchError::Compacted { what: what(), upto });
        }
        if answer.canceled {
            let endpoint = live.endpoint.clone();
            let (reason, class) = (answer.cancel_reason, crate::contract::ErrorClass::Caller);
            return Err(WatchError::Refused { what: what(), endpoint, reason, class });
        }
        if answer.created {
            return Ok(None);
        }
        if answer.events.is_empty() && !answer.fragment {
            let upto = wire::revision(answer.header.as_ref());
            return Ok(self.deliver(upto, Vec::new()));
        }
        let mut changes = std::mem::take(&mut self.partial);
        let fresh = answer.events.into_iter().filter_map(wire::change);
        changes.extend(fresh.filter(|change| change.at() >= self.next));
        let Some(newest) = changes.last().map(Change::at) else { return Ok(None) };
        if answer.fragment {
            let complete = changes.partition_point(|change| change.at() < newest);
            self.partial = changes.split_off(complete);
        }
        match changes.last().map(Change::at) {
            Some(upto) => Ok(self.deliver(upto, changes)),
            None => Ok(None),
        }
    }

    fn deliver(&mut self, upto: Revision, changes: Vec<Change>) -> Option<Changes> {
        if upto < self.next {
            return None;
        }
        self.next = upto.next();
        Some(Changes { upto, changes })
    }
}
