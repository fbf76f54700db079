//! Questions about the server itself.

use sha2::{Digest as _, Sha256};

use super::target::{Target, revision};
use super::{Checked, Failure, holds, same};
use crate::proto::etcdserverpb as pb;

pub(super) async fn status(at: Target) -> Checked {
    let now = at.put("a", "1").await?;
    let answer = at.maintenance().status(pb::StatusRequest {}).await?.into_inner();
    let header = answer.header.ok_or(Failure::Missing("a header"))?;
    same("revision", header.revision, now)?;
    same("it leads", answer.leader, header.member_id)?;
    holds("the version is 3.x", answer.version.starts_with("3."))?;
    holds("it has a size", answer.db_size > 0)?;
    holds("the used part is not larger", answer.db_size_in_use <= answer.db_size)?;
    holds("it has a term", answer.raft_term > 0)?;
    holds("it has an index", answer.raft_index > 0)?;
    same("errors", answer.errors, Vec::new())?;
    same("it is no learner", answer.is_learner, false)
}

pub(super) async fn members(at: Target) -> Checked {
    let answer = at.cluster().member_list(pb::MemberListRequest::default()).await?.into_inner();
    let header = answer.header.ok_or(Failure::Missing("a header"))?;
    same("members", answer.members.len(), 1)?;
    let member = answer.members.into_iter().next().ok_or(Failure::Missing("a member"))?;
    same("number", member.id, header.member_id)?;
    holds("it has a name", !member.name.is_empty())?;
    holds("it has an address", member.client_urls.iter().all(|url| url.starts_with("http")))?;
    same("addresses", member.client_urls.is_empty(), false)
}

pub(super) async fn one_identity_everywhere(at: Target) -> Checked {
    let id = |header: Option<pb::ResponseHeader>| {
        let header = header.ok_or(Failure::Missing("a header"))?;
        Ok::<_, Failure>((header.cluster_id, header.member_id, header.raft_term))
    };
    let status = at.maintenance().status(pb::StatusRequest {}).await?.into_inner();
    let here = id(status.header)?;
    holds("it has numbers", here.0 != 0 && here.1 != 0 && here.2 != 0)?;
    same("range", id(at.range(at.all()).await?.header)?, here)?;
    let request = super::target::put_request(at.key("a"), "1");
    same("put", id(at.kv().put(request).await?.into_inner().header)?, here)?;
    same("txn", id(at.txn(pb::TxnRequest::default()).await?.header)?, here)?;
    let leases = at.lease().lease_leases(pb::LeaseLeasesRequest {}).await?.into_inner();
    same("leases", id(leases.header)?, here)?;
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 0 };
    let granted = at.lease().lease_grant(grant).await?.into_inner();
    same("grant", id(granted.header)?, here)
}

pub(super) async fn no_alarms(at: Target) -> Checked {
    let request = pb::AlarmRequest::default();
    let answer = at.maintenance().alarm(request).await?.into_inner();
    same("alarms", answer.alarms.len(), 0)
}

pub(super) async fn hash_depends_on_content(at: Target) -> Checked {
    let hash = async |revision| {
        let answer = at.maintenance().hash_kv(pb::HashKvRequest { revision }).await?.into_inner();
        Ok::<_, Failure>(answer.hash)
    };
    let first = at.put("a", "1").await?;
    let before = hash(0).await?;
    same("the same twice", hash(0).await?, before)?;
    at.put("a", "2").await?;
    holds("another after a write", hash(0).await? != before)?;
    same("the same as of then", hash(first).await?, before)
}

pub(super) async fn defragment(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    at.maintenance().defragment(pb::DefragmentRequest {}).await?;
    same("nothing is lost", at.must_get("a").await?.mod_revision, before)?;
    same("and it goes on", at.put("a", "2").await?, before + 1)
}

pub(super) async fn snapshot_carries_its_checksum(at: Target) -> Checked {
    let now = at.put("a", &"x".repeat(100_000)).await?;
    let mut stream = at.maintenance().snapshot(pb::SnapshotRequest {}).await?.into_inner();
    let mut bytes = Vec::new();
    let mut remaining = u64::MAX;
    while let Some(piece) = stream.message().await? {
        holds("what remains shrinks", piece.remaining_bytes < remaining || piece.blob.len() == 32)?;
        remaining = piece.remaining_bytes;
        bytes.extend_from_slice(&piece.blob);
    }
    same("nothing remains", remaining, 0)?;
    holds("the value is in it", bytes.len() > 100_000)?;
    let (body, sum) = bytes.split_at(bytes.len() - 32);
    same("SHA-256 of all before it", Sha256::digest(body).to_vec(), sum.to_vec())?;
    same("writes go on", revision(at.range(at.all()).await?.header), now)
}
