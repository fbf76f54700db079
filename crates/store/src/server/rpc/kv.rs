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
        let request = request.into_inner();
        validate::range(&request)?;
        let mut response = {
            let index = self.shared.index();
            query::range(&index, &request, self.shared.published())?
        };
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let request = request.into_inner();
        validate::put(&request)?;
        let call = self
            .writer
            .call(request.encoded_len(), move |machine, index, _| machine.put(index, &request));
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let request = request.into_inner();
        validate::delete(&request)?;
        let call = self.writer.call(request.encoded_len(), move |machine, index, _| {
            machine.delete_range(index, &request)
        });
        let mut response = call.await?;
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        validate::txn(&request)?;
        let mut response = if validate::is_read_only(&request) {
            let index = self.shared.index();
            txn::read(&index, &request, self.shared.published())?
        } else {
            let call = self
                .writer
                .call(request.encoded_len(), move |machine, index, _| machine.txn(index, &request));
            call.await?
        };
        self.shared.sign(&mut response.header);
        Ok(Response::new(response))
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let revision = self.writer.compact(request.into_inner().revision).await?;
        Ok(Response::new(CompactionResponse { header: Some(self.shared.header(revision)) }))
    }
}
