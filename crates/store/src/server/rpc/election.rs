//! Elections: whoever is first in line leads, and says something.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait, metadata::MetadataMap};

use crate::proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse, election_server::Election,
};

use super::{
    super::{auth::Caller, status::Refusal},
    Service,
    queue::{Place, prefix, single},
};

/// Answers that wait for a client to take them.
const ANSWERS: usize = 4;

#[async_trait]
impl Election for Service {
    type ObserveStream = ReceiverStream<Result<LeaderResponse, Status>>;

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let caller = self.caller(&request)?;
        let CampaignRequest { name, lease, value } = request.into_inner();
        let _room = self.take_stream(&caller)?;
        let place = self.wait_in_line(&caller, (&name, value.clone()), lease).await?;
        // An earlier call of the same lease may have said something else.
        if self.first(&single(&place.key))?.is_some_and(|kv| kv.value != value) {
            self.write(&caller, &place, value).await?;
        }
        let Place { key, revision: rev, lease } = place;
        let leader = Some(LeaderKey { name, key, rev, lease });
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(CampaignResponse { header, leader }))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let caller = self.caller(&request)?;
        let ProclaimRequest { leader, value } = request.into_inner();
        let revision = self.write(&caller, &place(leader)?, value).await?;
        Ok(Response::new(ProclaimResponse { header: Some(self.shared.header(revision)) }))
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        let caller = self.caller(&request)?;
        let range = prefix(&request.into_inner().name);
        self.permit_election(&caller, &range)?;
        let kv = Some(self.first(&range)?.ok_or(Refusal::NoLeader)?);
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(LeaderResponse { header, kv }))
    }

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let caller = self.caller(&request)?;
        let metadata = request.metadata().clone();
        let range = prefix(&request.into_inner().name);
        self.permit_election(&caller, &range)?;
        let room = self.take_stream(&caller)?;
        let (answers, stream) = mpsc::channel(ANSWERS);
        let service = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = service.stop.cancelled() => {}
                () = answers.closed() => {}
                () = service.tell_leaders(&range, &caller, &metadata, &answers) => {}
            }
            drop(room);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        let caller = self.caller(&request)?;
        let place = place(request.into_inner().leader)?;
        // Whoever does not lead any more has resigned.
        let revision = match self.leave(&caller, &place).await {
            Err(Refusal::NotLeader) => self.shared.published(),
            other => other?,
        };
        Ok(Response::new(ResignResponse { header: Some(self.shared.header(revision)) }))
    }
}

impl Service {
    fn permit_election(
        &self,
        caller: &Caller,
        (key, range_end): &(Bytes, Bytes),
    ) -> Result<(), Refusal> {
        self.shared.settings().auth.permit_range(caller, key, range_end)
    }

    async fn tell_leaders(
        &self,
        range: &(Bytes, Bytes),
        caller: &Caller,
        metadata: &MetadataMap,
        answers: &mpsc::Sender<Result<LeaderResponse, Status>>,
    ) {
        let mut published = self.shared.subscribe();
        let mut told = 0;
        let mut settings = self.shared.settings();
        loop {
            published.borrow_and_update();
            let first = self.first(range);
            // After that: what was written since users were required is not for everybody.
            let now = self.shared.settings();
            let mut permitted = Ok(());
            if !Arc::ptr_eq(&now, &settings) {
                let caller = self.caller_now(caller, metadata, &settings);
                permitted = caller.and_then(|caller| self.permit_election(&caller, range));
                settings = now;
            }
            let answer = match permitted.and(first) {
                Ok(Some(kv)) if kv.mod_revision != told => {
                    told = kv.mod_revision;
                    let header = Some(self.shared.header(self.shared.published()));
                    Some(Ok(LeaderResponse { header, kv: Some(kv) }))
                }
                Ok(_) => None,
                Err(refusal) => Some(Err(refusal.into())),
            };
            if let Some(answer) = answer {
                let ended = answer.is_err();
                if answers.send(answer).await.is_err() || ended {
                    return;
                }
            }
            if published.changed().await.is_err() {
                return;
            }
        }
    }
}

fn place(leader: Option<LeaderKey>) -> Result<Place, Refusal> {
    let LeaderKey { key, rev, lease, .. } = leader.ok_or(Refusal::LeaderMissing)?;
    Ok(Place { key, revision: rev, lease })
}
