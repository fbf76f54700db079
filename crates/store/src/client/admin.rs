//! Questions about the servers themselves.

use std::time::Duration;

use super::endpoints::Idempotent;
use super::{Client, lease_error, read_error, wire};
use crate::contract::{LeaseError, LeaseId, ReadError, Revision};
use crate::proto::etcdserverpb as pb;

/// How a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Version of the protocol it speaks, e.g. "3.5.0".
    pub version: String,
    /// Bytes of its database on disk.
    pub database_bytes: u64,
    /// Its revision.
    pub revision: Revision,
    /// Number of the cluster.
    pub cluster: u64,
    /// Number of the server.
    pub member: u64,
    /// What it complains about.
    pub errors: Vec<String>,
}

/// A server of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
}

impl Client {
    /// How the current server is.
    pub async fn status(&self) -> Result<ServerStatus, ReadError> {
        let answer = self
            .ring
            .call(Idempotent::Yes, |server| async move {
                server.maintenance().status(pb::StatusRequest {}).await
            })
            .await
            .map_err(|failure| read_error("status".into(), failure))?;
        let header = answer.header.unwrap_or_default();
        Ok(ServerStatus {
            version: answer.version,
            database_bytes: u64::try_from(answer.db_size).unwrap_or(0),
            revision: Revision(header.revision),
            cluster: header.cluster_id,
            member: header.member_id,
            errors: answer.errors,
        })
    }

    /// The servers of the cluster.
    pub async fn members(&self) -> Result<Vec<Member>, ReadError> {
        let answer = self
            .ring
            .call(Idempotent::Yes, |server| async move {
                server.cluster().member_list(pb::MemberListRequest::default()).await
            })
            .await
            .map_err(|failure| read_error("member list".into(), failure))?;
        let member = |member: pb::Member| Member {
            id: member.id,
            name: member.name,
            client_urls: member.client_ur_ls,
        };
        Ok(answer.members.into_iter().map(member).collect())
    }

    /// How long a lease has to live, unless it is gone.
    pub async fn time_to_live(&self, lease: LeaseId) -> Result<Duration, LeaseError> {
        let request = pb::LeaseTimeToLiveRequest { id: lease.0, keys: false };
        let answer = self
            .ring
            .call(Idempotent::Yes, |server| async move {
                server.lease().lease_time_to_live(request).await
            })
            .await
            .map_err(|failure| lease_error(format!("question for lease {lease}"), failure))?;
        if answer.ttl < 0 {
            return Err(LeaseError::Gone { lease });
        }
        Ok(wire::seconds(answer.ttl))
    }

    /// All leases.
    pub async fn leases(&self) -> Result<Vec<LeaseId>, LeaseError> {
        let answer = self
            .ring
            .call(Idempotent::Yes, |server| async move {
                server.lease().lease_leases(pb::LeaseLeasesRequest {}).await
            })
            .await
            .map_err(|failure| lease_error("list of leases".into(), failure))?;
        Ok(answer.leases.into_iter().map(|lease| LeaseId(lease.id)).collect())
    }
}
