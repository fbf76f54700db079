//! The watch stream.

use std::{future, sync::Arc, time::Duration};

use bytes::Bytes;

use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait, metadata::MetadataMap};

use crate::proto::etcdserverpb::{
    WatchRequest, WatchResponse, watch_request::RequestUnion, watch_server::Watch,
};

use super::{
    super::{auth::Caller, status::Refusal},
    Service, watchers,
    watchers::Watchers,
};

/// Answers that wait for a client to take them.
const ANSWERS: usize = 4;

#[async_trait]
impl Watch for Service {
    type WatchStream = ReceiverStream<Result<WatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<WatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let room = self.take_stream(&self.caller(&request)?)?;
        let metadata = request.metadata().clone();
        let (answers, stream) = mpsc::channel(ANSWERS);
        let service = self.clone();
        let requests = request.into_inner();
        tokio::spawn(async move {
            tokio::select! {
                () = service.stop.cancelled() => {
                    let _ = answers.try_send(Err(Refusal::Stopped.into()));
                }
                () = answers.closed() => {}
                () = service.serve(requests, &metadata, &answers) => {}
            }
            drop(room);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Service {
    /// Serves one stream until the client ends it.
    async fn serve(
        &self,
        mut requests: Streaming<WatchRequest>,
        metadata: &MetadataMap,
        answers: &mpsc::Sender<Result<WatchResponse, Status>>,
    ) {
        let mut watchers = Watchers::default();
        let mut settings = self.shared.settings();
        let mut published = self.shared.subscribe();
        let mut progress = ticker(self.place.progress_interval);
        let mut outgoing = Vec::new();
        let mut more_requests = true;
        loop {
            published.borrow_and_update();
            let more = watchers.collect(&self.shared, &mut outgoing);
            // After that: what was written since users were required is not for everybody.
            let now = self.shared.settings();
            if !Arc::ptr_eq(&now, &settings) {
                let permits = |caller: &Caller, key: &Bytes, end: &Bytes| {
                    let caller = self.caller_now(caller, metadata, &settings)?;
                    now.auth.permit_range(&caller, key, end)
                };
                watchers.recheck(&self.shared, permits, &mut outgoing);
                settings = now;
            }
            for answer in outgoing.drain(..) {
                if answers.send(Ok(answer)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                request = requests.message(), if more_requests => match request {
                    Ok(Some(request)) => {
                        self.ask(&mut watchers, (request, metadata), &mut outgoing);
                    }
                    // It has said all it wants, and still listens: so do callers over HTTP.
                    Ok(None) => more_requests = false,
                    Err(_) => return,
                },
                changed = published.changed(), if !more => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = future::ready(()), if more => {}
                _ = progress.tick(), if !more => watchers.notify(&self.shared, &mut outgoing),
            }
        }
    }

    fn ask(
        &self,
        watchers: &mut Watchers,
        (request, metadata): (WatchRequest, &MetadataMap),
        outgoing: &mut Vec<WatchResponse>,
    ) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                let auth = &self.shared.settings().auth;
                let least = Bytes::from_static(&[0]);
                let key = if create.key.is_empty() { &least } else { &create.key };
                let permitted = self.caller_of(metadata).and_then(|caller| {
                    auth.permit_range(&caller, key, &create.range_end).map(|()| caller)
                });
                match permitted {
                    Ok(caller) => watchers.create(&create, caller, &self.shared, outgoing),
                    Err(refusal) => outgoing.push(watchers::refused(&self.shared, &refusal)),
                }
            }
            Some(RequestUnion::CancelRequest(cancel)) => {
                watchers.cancel(cancel.watch_id, &self.shared, outgoing);
            }
            Some(RequestUnion::ProgressRequest(_)) => watchers.want_progress(),
            None => {}
        }
    }
}

fn ticker(period: Duration) -> Interval {
    let mut ticker = interval(period.max(Duration::from_millis(10)));
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticker.reset();
    ticker
}
