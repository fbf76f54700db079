//! Forgetting history.

use tonic::Code::OutOfRange;

use super::target::Target;
use super::{Checked, refused, same};
use crate::proto::etcdserverpb as pb;

pub(super) const COMPACTED: (tonic::Code, &str) =
    (OutOfRange, "etcdserver: mvcc: required revision has been compacted");

pub(super) async fn forgets_what_is_older(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let second = at.put("a", "2").await?;
    let third = at.put("a", "3").await?;
    at.compact(second).await?;
    let read = |revision| at.range(pb::RangeRequest { revision, ..at.all() });
    refused("before", read(first).await, COMPACTED)?;
    let value = |answer: pb::RangeResponse| answer.kvs.first().map(|kv| kv.value.to_vec());
    same("at", value(read(second).await?), Some(b"2".to_vec()))?;
    same("after", value(read(third).await?), Some(b"3".to_vec()))
}

pub(super) async fn keeps_what_is_live(at: Target) -> Checked {
    let created = at.put("a", "1").await?;
    at.put("b", "1").await?;
    at.delete("b").await?;
    let last = at.put("c", "1").await?;
    at.compact(last).await?;
    let answer = at.range(at.all()).await?;
    same("left", at.names(&answer.kvs).concat(), "ac".into())?;
    same("an old key keeps its place", at.must_get("a").await?.create_revision, created)?;
    same("revisions go on", at.put("b", "2").await?, last + 1)?;
    same("a deleted key begins anew", at.must_get("b").await?.version, 1)
}

pub(super) async fn refuses_twice_and_the_future(at: Target) -> Checked {
    at.put("a", "1").await?;
    let now = at.put("a", "2").await?;
    at.compact(now).await?;
    refused("again", at.compact(now).await, COMPACTED)?;
    refused("before", at.compact(now - 1).await, COMPACTED)?;
    let words = "etcdserver: mvcc: required revision is a future revision";
    refused("the future", at.compact(now + 1).await, (OutOfRange, words))
}
