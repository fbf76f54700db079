//! Leases.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, lease_server::Lease,
};

use super::{SMALL, Service};

/// Answers that wait for a client to take them.
const ANSWERS: usize = 16;

#[async_trait]
impl Lease for Service {
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let call = self.writer.call(SMALL, move |machine, index, now| {
            machine.auth().permit_any(&caller)?;
            machine.lease_grant(index, &request, now)
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let caller = self.caller(&request)?;
        let id = request.into_inner().id;
        let call = self.writer.call(SMALL, move |machine, index, _| {
            machine.permit_lease(&caller, id)?;
            machine.lease_revoke(index, id)
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let room = self.take_keep_alive(&self.caller(&request)?)?;
        let (answers, stream) = mpsc::channel(ANSWERS);
        let service = self.clone();
        let requests = request.into_inner();
        tokio::spawn(async move {
            tokio::select! {
                () = service.stop.cancelled() => {}
                () = answers.closed() => {}
                () = service.renew(requests, &answers) => {}
            }
            drop(room);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let call = self.writer.call(SMALL, move |machine, index, now| {
            machine.auth().permit_any(&caller)?;
            if request.keys {
                machine.permit_lease_keys(&caller, request.id)?;
            }
            Ok(machine.lease_time_to_live(index, &request, now))
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        self.shared.settings().auth.permit_any(&self.caller(&request)?)?;
        let call = self.writer.call(SMALL, |machine, index, _| Ok(machine.lease_leases(index)));
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }
}

impl Service {
    /// Renews leases for as long as the client asks.
    async fn renew(
        &self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        answers: &mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
    ) {
        while let Ok(Some(LeaseKeepAliveRequest { id })) = requests.message().await {
            let answer =
                self.writer.renew(SMALL, id).await.map_err(Status::from).map(|mut response| {
                    self.shared.sign(&mut response.header);
                    response
                });
            let ended = answer.is_err();
            if answers.send(answer).await.is_err() || ended {
                return;
            }
        }
    }
}
