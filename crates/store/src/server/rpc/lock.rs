//! Locks: whoever is first in line holds it.

use bytes::Bytes;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::{
    etcdserverpb::DeleteRangeRequest,
    v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse, lock_server::Lock},
};

use super::{SMALL, Service};

#[async_trait]
impl Lock for Service {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let caller = self.caller(&request)?;
        let LockRequest { name, lease } = request.into_inner();
        let _room = self.take_stream(&caller)?;
        let place = self.wait_in_line(&caller, (&name, Bytes::new()), lease).await?;
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(LockResponse { header, key: place.key }))
    }

    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        let caller = self.caller(&request)?;
        let key = request.into_inner().key;
        let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        let call = self.writer.call(SMALL, move |machine, index, _| {
            machine.auth().permit_delete(&caller, &delete)?;
            machine.delete_range(index, &delete)
        });
        let revision = call.await?.header.map_or(0, |header| header.revision);
        Ok(Response::new(UnlockResponse { header: Some(self.shared.header(revision)) }))
    }
}
