//! Leases.

use tokio_stream::iter;
use tonic::Code::{FailedPrecondition, NotFound, OutOfRange};

use super::target::{Target, put_request};
use super::watch::Watcher;
use super::{Checked, Failure, holds, refused, same};
use crate::proto::etcdserverpb as pb;

const NOT_FOUND: (tonic::Code, &str) = (NotFound, "etcdserver: requested lease not found");

async fn grant(at: &Target, ttl: i64, id: i64) -> Result<pb::LeaseGrantResponse, tonic::Status> {
    Ok(at.lease().lease_grant(pb::LeaseGrantRequest { ttl, id }).await?.into_inner())
}

async fn revoke(at: &Target, id: i64) -> Result<(), tonic::Status> {
    at.lease().lease_revoke(pb::LeaseRevokeRequest { id }).await.map(|_| ())
}

async fn time_left(at: &Target, id: i64) -> Result<pb::LeaseTimeToLiveResponse, tonic::Status> {
    let request = pb::LeaseTimeToLiveRequest { id, keys: true };
    Ok(at.lease().lease_time_to_live(request).await?.into_inner())
}

/// Renews each of the leases on one stream; tells their times to live.
async fn renew(at: &Target, ids: &[i64]) -> Result<Vec<(i64, i64)>, Failure> {
    let requests: Vec<_> = ids.iter().map(|&id| pb::LeaseKeepAliveRequest { id }).collect();
    let mut answers = at.lease().lease_keep_alive(iter(requests)).await?.into_inner();
    let mut renewed = Vec::new();
    while let Some(answer) = answers.message().await? {
        renewed.push((answer.id, answer.ttl));
    }
    Ok(renewed)
}

pub(super) async fn grants(at: Target) -> Checked {
    let first = grant(&at, 60, 0).await?;
    holds("the server chooses a number", first.id > 0)?;
    same("time to live", first.ttl, 60)?;
    same("error", first.error, String::new())?;
    let second = grant(&at, 60, 0).await?;
    holds("another number", second.id != first.id)?;
    // Left over if an earlier run was interrupted.
    let _ = revoke(&at, 70_001).await;
    same("a chosen number", grant(&at, 60, 70_001).await?.id, 70_001)?;
    for id in [first.id, second.id, 70_001] {
        revoke(&at, id).await?;
    }
    Ok(())
}

pub(super) async fn refuses_bad_grants(at: Target) -> Checked {
    let lease = grant(&at, 60, 0).await?.id;
    let exists = (FailedPrecondition, "etcdserver: lease already exists");
    refused("the same number", grant(&at, 60, lease).await, exists)?;
    let too_long = (OutOfRange, "etcdserver: too large lease TTL");
    refused("too long", grant(&at, 9_000_000_001, 0).await, too_long)?;
    let shortest = grant(&at, 0, 0).await?;
    holds("no time becomes the shortest time", shortest.ttl > 0)?;
    revoke(&at, lease).await?;
    revoke(&at, shortest.id).await?;
    Ok(())
}

pub(super) async fn revocation_deletes_keys_at_once(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    at.put_leased("a", lease).await?;
    at.put_leased("b", lease).await?;
    let before = at.put("c", "stays").await?;
    revoke(&at, lease).await?;
    let left = at.range(at.all()).await?;
    same("left", at.names(&left.kvs).concat(), "c".into())?;
    same("in one revision", at.put("c", "again").await?, before + 2)?;
    refused("again", revoke(&at, lease).await, NOT_FOUND)
}

pub(super) async fn unknown_lease_everywhere(at: Target) -> Checked {
    refused("revoke", revoke(&at, 4711).await, NOT_FOUND)?;
    same("keep alive", renew(&at, &[4711]).await?, vec![(4711, 0)])?;
    let answer = time_left(&at, 4711).await?;
    same("time to live", (answer.id, answer.ttl, answer.granted_ttl), (4711, -1, 0))
}

pub(super) async fn time_to_live(at: Target) -> Checked {
    let lease = at.grant(600).await?;
    at.put_leased("a", lease).await?;
    at.put_leased("b", lease).await?;
    let answer = time_left(&at, lease).await?;
    same("granted", answer.granted_ttl, 600)?;
    holds("left", (1..=600).contains(&answer.ttl))?;
    let mut keys = answer.keys;
    keys.sort();
    same("keys", keys, vec![at.key("a"), at.key("b")])?;
    let request = pb::LeaseTimeToLiveRequest { id: lease, keys: false };
    let answer = at.lease().lease_time_to_live(request).await?.into_inner();
    same("keys only if asked for", answer.keys.len(), 0)?;
    Ok(revoke(&at, lease).await?)
}

pub(super) async fn expiry_deletes_keys(at: Target) -> Checked {
    let lease = at.grant(1).await?;
    at.put_leased("a", lease).await?;
    let last = at.put_leased("b", lease).await?;
    let mut watcher = Watcher::start(&at, at.key(""), at.end(), last + 1).await?;
    let answer = watcher.events().await?;
    same("both deletions together", answer.len(), 2)?;
    let revisions: Vec<_> =
        answer.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).collect();
    holds("in one revision", revisions.first() == revisions.last())?;
    same("gone", at.range(at.all()).await?.count, 0)?;
    same("the lease too", time_left(&at, lease).await?.ttl, -1)
}

pub(super) async fn kept_alive_outlives_its_twin(at: Target) -> Checked {
    let kept = at.grant(2).await?;
    at.put_leased("kept", kept).await?;
    // Granted after, so it cannot end before the other unless that one was renewed.
    let twin = at.grant(2).await?;
    let last = at.put_leased("twin", twin).await?;
    let mut watcher = Watcher::start(&at, at.key("twin"), "".into(), last + 1).await?;
    let mut gone = Box::pin(watcher.events());
    let mut tick = tokio::time::interval(std::time::Duration::from_millis(500));
    loop {
        tokio::select! {
            deletion = &mut gone => {
                same("the twin ended", deletion?.len(), 1)?;
                break;
            }
            _ = tick.tick() => {
                let renewed = renew(&at, &[kept]).await?;
                holds("renewed", matches!(renewed.as_slice(), [(id, 1..)] if *id == kept))?;
            }
        }
    }
    same("the kept one lives", at.must_get("kept").await?.lease, kept)?;
    Ok(revoke(&at, kept).await?)
}

pub(super) async fn listed(at: Target) -> Checked {
    let (first, second) = (at.grant(60).await?, at.grant(60).await?);
    let list = async || {
        let answer = at.lease().lease_leases(pb::LeaseLeasesRequest {}).await?.into_inner();
        let ids: Vec<i64> = answer.leases.iter().map(|lease| lease.id).collect();
        Ok::<_, Failure>((ids.contains(&first), ids.contains(&second)))
    };
    same("both", list().await?, (true, true))?;
    revoke(&at, first).await?;
    same("one", list().await?, (false, true))?;
    revoke(&at, second).await?;
    same("none", list().await?, (false, false))
}

pub(super) async fn a_plain_put_takes_the_key_off(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    at.put_leased("a", lease).await?;
    at.put("a", "free").await?;
    same("keys of the lease", time_left(&at, lease).await?.keys.len(), 0)?;
    revoke(&at, lease).await?;
    same("still there", at.must_get("a").await?.lease, 0)
}

pub(super) async fn a_key_moves_between_leases(at: Target) -> Checked {
    let (first, second) = (at.grant(60).await?, at.grant(60).await?);
    at.put_leased("a", first).await?;
    let request = pb::PutRequest { lease: second, ..put_request(at.key("a"), "moved") };
    at.kv().put(request).await?;
    revoke(&at, first).await?;
    same("survives the first", at.must_get("a").await?.lease, second)?;
    revoke(&at, second).await?;
    same("goes with the second", at.get("a").await?, None)
}
