//! Locks and elections that the server itself does.

use std::future::Future;
use std::pin::pin;

use bytes::Bytes;
use tonic::{Code, Status};

use super::target::Target;
use super::{Checked, Failure, holds, refused, same};
use crate::proto::v3electionpb as election;
use crate::proto::v3lockpb::{LockRequest, UnlockRequest};

/// Whether a call waits, once the server has seen it.
async fn waits<T>(
    at: &Target,
    call: &mut (impl Future<Output = T> + Unpin),
) -> Result<bool, Failure> {
    for _ in 0..20 {
        if futures::poll!(&mut *call).is_ready() {
            return Ok(false);
        }
        // Somebody else's call goes there and back meanwhile.
        at.put("meanwhile", "1").await?;
    }
    Ok(true)
}

pub(super) async fn one_at_a_time(at: Target) -> Checked {
    let name = at.key("lock");
    let request = |lease| LockRequest { name: name.clone(), lease };
    let (first, second) = (at.grant(60).await?, at.grant(60).await?);
    let held = at.lock().lock(request(first)).await?.into_inner().key;
    same(
        "its key",
        held.clone(),
        Bytes::from([&name[..], format!("/{first:x}").as_bytes()].concat()),
    )?;
    same("again", at.lock().lock(request(first)).await?.into_inner().key, held.clone())?;
    let mut client = at.lock();
    let mut next = pin!(client.lock(request(second)));
    holds("the second waits", waits(&at, &mut next).await?)?;
    at.lock().unlock(UnlockRequest { key: held }).await?;
    let key = next.await?.into_inner().key;
    holds("its lease is in its key", key.ends_with(format!("/{second:x}").as_bytes()))?;
    at.lock().unlock(UnlockRequest { key }).await?;
    Ok(())
}

pub(super) async fn leases_let_go(at: Target) -> Checked {
    let name = at.key("lock");
    let request = |lease| LockRequest { name: name.clone(), lease };
    let (first, second) = (at.grant(60).await?, at.grant(60).await?);
    at.lock().lock(request(first)).await?;
    let mut client = at.lock();
    let mut next = pin!(client.lock(request(second)));
    holds("the second waits", waits(&at, &mut next).await?)?;
    let revoke = crate::proto::etcdserverpb::LeaseRevokeRequest { id: first };
    at.lease().lease_revoke(revoke).await?;
    next.await?;
    let without = at.lock().lock(LockRequest { name: at.key("other"), lease: 0 }).await?;
    holds("a lease of its own", without.into_inner().key.starts_with(&at.key("other/")))
}

pub(super) async fn campaign_proclaim_resign(at: Target) -> Checked {
    let name = at.key("election");
    let ask = || election::LeaderRequest { name: name.clone() };
    let none = at.election().leader(ask()).await;
    refused("nobody leads", none, (Code::Unknown, "election: no leader"))?;
    let campaign = |lease, value: &'static str| election::CampaignRequest {
        name: name.clone(),
        lease,
        value: value.into(),
    };
    let (first, second) = (at.grant(60).await?, at.grant(60).await?);
    let leads = at.election().campaign(campaign(first, "one")).await?.into_inner().leader;
    same("the lease", leads.as_ref().map(|it| it.lease), Some(first))?;
    // etcd begins its answer with the first leader, so there must be one.
    let mut observed = at.election().observe(ask()).await?.into_inner();
    let mut said = async || {
        let answer = observed.message().await?;
        let kv = answer.and_then(|answer| answer.kv).ok_or(Failure::Missing("a leader"))?;
        Ok::<_, Failure>(String::from_utf8_lossy(&kv.value).into_owned())
    };
    same("observed", said().await?, "one".to_owned())?;
    let mut client = at.election();
    let mut next = pin!(client.campaign(campaign(second, "two")));
    holds("the second waits", waits(&at, &mut next).await?)?;
    let proclaim = election::ProclaimRequest { leader: leads.clone(), value: "more".into() };
    at.election().proclaim(proclaim.clone()).await?;
    same("proclaimed", said().await?, "more".to_owned())?;
    let kv = at.election().leader(ask()).await?.into_inner().kv;
    same("asked", kv.map(|kv| kv.value), Some(Bytes::from("more")))?;
    let resign = election::ResignRequest { leader: leads };
    at.election().resign(resign.clone()).await?;
    let next: Result<_, Status> = next.await;
    let leads = next?.into_inner().leader;
    same("the next", leads.as_ref().map(|it| it.lease), Some(second))?;
    same("observed", said().await?, "two".to_owned())?;
    let late = at.election().proclaim(proclaim).await;
    refused("a former leader", late, (Code::Unknown, "election: not leader"))?;
    at.election().resign(resign).await?;
    at.election().resign(election::ResignRequest { leader: leads }).await?;
    Ok(())
}
