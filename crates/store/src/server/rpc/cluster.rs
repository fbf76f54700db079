//! The cluster: one member, and never another.

use tonic::{Request, Response, Status, async_trait};

use crate::proto::etcdserverpb::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse, cluster_server::Cluster,
};

use super::{
    super::{auth::Caller, settings::Setting, status::Refusal},
    SMALL, Service,
};

#[async_trait]
impl Cluster for Service {
    async fn member_add(
        &self,
        request: Request<MemberAddRequest>,
    ) -> Result<Response<MemberAddResponse>, Status> {
        self.permit_members(&request)?;
        check_urls(&request.into_inner().peer_ur_ls)?;
        Err(Refusal::NotEnoughMembers.into())
    }

    async fn member_remove(
        &self,
        request: Request<MemberRemoveRequest>,
    ) -> Result<Response<MemberRemoveResponse>, Status> {
        self.permit_members(&request)?;
        self.check_member(request.into_inner().id)?;
        Err(Refusal::NotEnoughMembers.into())
    }

    async fn member_update(
        &self,
        request: Request<MemberUpdateRequest>,
    ) -> Result<Response<MemberUpdateResponse>, Status> {
        self.permit_members(&request)?;
        let MemberUpdateRequest { id, peer_ur_ls: urls } = request.into_inner();
        self.check_member(id)?;
        let size = SMALL + urls.iter().map(String::len).sum::<usize>();
        let call = self.writer.call(size, move |machine, _, _| {
            machine.set(Setting::PeerUrls { urls });
            Ok(())
        });
        call.await?;
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(MemberUpdateResponse { header, members: vec![self.member()] }))
    }

    async fn member_list(
        &self,
        _: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(MemberListResponse { header, members: vec![self.member()] }))
    }

    async fn member_promote(
        &self,
        request: Request<MemberPromoteRequest>,
    ) -> Result<Response<MemberPromoteResponse>, Status> {
        self.permit_members(&request)?;
        self.check_member(request.into_inner().id)?;
        Err(Refusal::NotALearner.into())
    }
}

impl Service {
    fn permit_members<T>(&self, request: &Request<T>) -> Result<(), Refusal> {
        let caller: Caller = self.caller(request)?;
        self.shared.settings().auth.permit_root(&caller)
    }

    fn check_member(&self, id: u64) -> Result<(), Refusal> {
        if id == self.shared.identity().member { Ok(()) } else { Err(Refusal::MemberNotFound) }
    }

    fn member(&self) -> Member {
        Member {
            id: self.shared.identity().member,
            name: "holdfast".to_owned(),
            peer_ur_ls: self.shared.settings().peer_urls.clone(),
            client_ur_ls: self.place.advertised.clone(),
            is_learner: false,
        }
    }
}

fn check_urls(urls: &[String]) -> Result<(), Refusal> {
    let is_url = |url: &String| {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let port = rest.and_then(|rest| rest.rsplit_once(':')).map(|(_, port)| port);
        port.is_some_and(|port| port.parse::<u16>().is_ok())
    };
    if !urls.is_empty() && urls.iter().all(is_url) { Ok(()) } else { Err(Refusal::BadPeerUrls) }
}
