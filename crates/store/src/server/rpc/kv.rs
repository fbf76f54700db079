//! Keys and values.

use prost::Message;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse, kv_server::Kv,
};

use super::{
    super::{query, txn, validate},
    Service,
};

#[async_trait]
impl Kv for Service {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::range(&request)?;
        let settings = self.shared.settings();
        settings.auth.permit_range(&caller, &request.key, &request.range_end)?;
        let mut response = query::range_in_pieces(&self.shared, &request)?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::put(&request)?;
        let call = self.writer.call(request.encoded_len(), move |machine, index, _| {
            machine.auth().permit_put(&caller, &request)?;
            machine.permit_lease(&caller, request.lease)?;
            machine.put(index, &request)
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::delete(&request)?;
        let call = self.writer.call(request.encoded_len(), move |machine, index, _| {
            machine.auth().permit_delete(&caller, &request)?;
            machine.delete_range(index, &request)
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        validate::txn(&request)?;
        let mut response = if validate::is_read_only(&request) {
            self.shared.settings().auth.permit_txn(&caller, &request)?;
            let index = self.shared.index();
            txn::read(&index, &request, self.shared.published())?
        } else {
            let call = self.writer.call(request.encoded_len(), move |machine, index, _| {
                machine.auth().permit_txn(&caller, &request)?;
                machine.txn(index, &request)
            });
            call.await?
        };
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let caller = self.caller(&request)?;
        self.shared.settings().auth.permit_compact(&caller)?;
        let revision = self.writer.compact(request.into_inner().revision).await?;
        Ok(Response::new(CompactionResponse { header: Some(self.shared.header(revision)) }))
    }
}
