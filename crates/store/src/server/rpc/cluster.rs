//! The cluster: one member.

use tonic::{Request, Response, Status, async_trait};

use crate::proto::etcdserverpb::{
    Member, MemberListRequest, MemberListResponse, cluster_server::Cluster,
};

use super::Service;

#[async_trait]
impl Cluster for Service {
    async fn member_list(
        &self,
        _: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let scheme = if self.place.tls { "https" } else { "http" };
        let member = Member {
            id: self.shared.identity().member,
            name: "holdfast".to_owned(),
            peer_urls: Vec::new(),
            client_urls: vec![format!("{scheme}://{}", self.place.address)],
            is_learner: false,
        };
        Ok(Response::new(MemberListResponse {
            header: Some(self.shared.header(self.shared.published())),
            members: vec![member],
        }))
    }
}
