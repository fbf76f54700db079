//! Questions about the server itself.

use sha2::{Digest as _, Sha256};
use tonic::Code;

use super::target::{Target, put_request, revision};
use super::{Checked, Failure, holds, refused, same};
use crate::proto::etcdserverpb as pb;
use crate::proto::etcdserverpb::alarm_request::AlarmAction;

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
    holds("it has an address", member.client_ur_ls.iter().all(|url| url.starts_with("http")))?;
    same("addresses", member.client_ur_ls.is_empty(), false)
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
    let request = put_request(at.key("a"), "1");
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

pub(super) async fn one_member_stays_one(at: Target) -> Checked {
    let list = at.cluster().member_list(pb::MemberListRequest::default()).await?.into_inner();
    let id = list.members.first().map_or(0, |member| member.id);
    let not_found = (Code::NotFound, "etcdserver: member not found");
    let remove = at.cluster().member_remove(pb::MemberRemoveRequest { id: 1 }).await;
    refused("removing nobody", remove, not_found)?;
    let promote = at.cluster().member_promote(pb::MemberPromoteRequest { id: 1 }).await;
    refused("promoting nobody", promote, not_found)?;
    let promote = at.cluster().member_promote(pb::MemberPromoteRequest { id }).await;
    let why = (Code::FailedPrecondition, "etcdserver: can only promote a learner member");
    refused("promoting a voter", promote, why)?;
    let lead = pb::MoveLeaderRequest { target_id: 1 };
    let why = (Code::FailedPrecondition, "etcdserver: bad leader transferee");
    refused("nobody leads", at.maintenance().move_leader(lead).await, why)?;
    at.maintenance().move_leader(pb::MoveLeaderRequest { target_id: id }).await?;
    let url = "http://localhost:2380".to_owned();
    let update = pb::MemberUpdateRequest { id, peer_ur_ls: vec![url.clone()] };
    let updated = at.cluster().member_update(update).await?.into_inner().members;
    same("its new address", updated[0].peer_ur_ls.clone(), vec![url])?;
    let bad = pb::MemberAddRequest { peer_ur_ls: vec!["nowhere".to_owned()], is_learner: false };
    let why = (Code::InvalidArgument, "etcdserver: given member URLs are invalid");
    refused("no address", at.cluster().member_add(bad).await, why)?;
    at.maintenance().hash(pb::HashRequest {}).await?;
    Ok(())
}

/// Raises an alarm, does something, and clears the alarm whatever came of it.
async fn alarmed(
    at: &Target,
    alarm: pb::AlarmType,
    body: impl AsyncFnOnce() -> Checked,
) -> Checked {
    let request = |action: AlarmAction| pb::AlarmRequest {
        action: action.into(),
        alarm: alarm.into(),
        // Of a member that is named: 0 is another one to etcd when an alarm is raised.
        member_id: 0,
    };
    let status = at.maintenance().status(pb::StatusRequest {}).await?.into_inner();
    let member_id = status.leader;
    let raise = pb::AlarmRequest { member_id, ..request(AlarmAction::Activate) };
    let raised = at.maintenance().alarm(raise).await?.into_inner().alarms;
    same("raised", raised.len(), 1)?;
    let done = body().await;
    let clear = pb::AlarmRequest { member_id, ..request(AlarmAction::Deactivate) };
    at.maintenance().alarm(clear).await?;
    let left = at.maintenance().alarm(pb::AlarmRequest::default()).await?.into_inner().alarms;
    done.and(same("cleared", left.len(), 0))
}

pub(super) async fn space_alarm_lets_delete(at: Target) -> Checked {
    at.put("a", "1").await?;
    alarmed(&at, pb::AlarmType::Nospace, async || {
        let full = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        refused("a put", at.kv().put(put_request(at.key("b"), "1")).await, full)?;
        let grant = pb::LeaseGrantRequest { ttl: 60, id: 0 };
        refused("a lease", at.lease().lease_grant(grant).await, full)?;
        let now = at.delete("a").await?;
        at.compact(now).await?;
        same("reading", at.range(at.all()).await?.count, 0)?;
        let (status, health) = at.fetch("/health").await?;
        same("health", (status, health.contains("false")), (503, true))?;
        let status = at.maintenance().status(pb::StatusRequest {}).await?.into_inner();
        holds("it says so", status.errors.iter().any(|error| error.contains("NOSPACE")))
    })
    .await?;
    at.put("b", "1").await?;
    Ok(())
}

pub(super) async fn corrupt_alarm_stops_writes(at: Target) -> Checked {
    at.put("a", "1").await?;
    alarmed(&at, pb::AlarmType::Corrupt, async || {
        let corrupt = (Code::DataLoss, "etcdserver: corrupt cluster");
        refused("a put", at.kv().put(put_request(at.key("b"), "1")).await, corrupt)?;
        let delete = pb::DeleteRangeRequest { key: at.key("a"), ..Default::default() };
        refused("a deletion", at.kv().delete_range(delete).await, corrupt)
    })
    .await?;
    at.put("b", "1").await?;
    Ok(())
}
