//! Writing and deleting single keys and ranges.

use bytes::Bytes;
use tonic::Code::{InvalidArgument, NotFound};

use super::target::{Target, put_request, revision};
use super::{Checked, Failure, refused, same};
use crate::proto::etcdserverpb as pb;

pub(super) async fn counts_versions_and_revisions(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let second = at.put("b", "1").await?;
    let third = at.put("a", "1").await?;
    same("each write is one revision", (second - first, third - first), (1, 2))?;
    same("version", at.must_get("a").await?.version, 2)
}

pub(super) async fn answers_the_previous(at: Target) -> Checked {
    let put = async |value: &str| {
        let request = pb::PutRequest { prev_kv: true, ..put_request(at.key("a"), value) };
        Ok::<_, Failure>(at.kv().put(request).await?.into_inner().prev_kv)
    };
    same("before the first", put("1").await?, None)?;
    let previous = put("2").await?.ok_or(Failure::Missing("the previous value"))?;
    same("value", previous.value.as_ref(), b"1")?;
    same("version", previous.version, 1)?;
    let answer = at.kv().put(put_request(at.key("a"), "3")).await?.into_inner();
    same("only if asked for", answer.prev_kv, None)
}

pub(super) async fn empty_value(at: Target) -> Checked {
    at.put("a", "").await?;
    same("value", at.must_get("a").await?.value.as_ref(), b"")
}

pub(super) async fn keeps_the_value(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    let keep = pb::PutRequest { key: at.key("a"), lease, ignore_value: true, ..Default::default() };
    let missing = at.kv().put(keep.clone()).await;
    refused("nothing to keep", missing, (InvalidArgument, "etcdserver: key not found"))?;
    at.put("a", "1").await?;
    at.kv().put(keep.clone()).await?;
    let kv = at.must_get("a").await?;
    same("value", kv.value.as_ref(), b"1")?;
    same("lease", kv.lease, lease)?;
    same("version", kv.version, 2)?;
    let both = pb::PutRequest { value: Bytes::from_static(b"2"), ..keep };
    let answer = at.kv().put(both).await;
    refused("value given", answer, (InvalidArgument, "etcdserver: value is provided"))
}

pub(super) async fn keeps_the_lease(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    let keep = pb::PutRequest { ignore_lease: true, ..put_request(at.key("a"), "2") };
    let missing = at.kv().put(keep.clone()).await;
    refused("nothing to keep", missing, (InvalidArgument, "etcdserver: key not found"))?;
    at.put_leased("a", lease).await?;
    at.kv().put(keep.clone()).await?;
    let kv = at.must_get("a").await?;
    same("value", kv.value.as_ref(), b"2")?;
    same("lease", kv.lease, lease)?;
    let answer = at.kv().put(pb::PutRequest { lease, ..keep }).await;
    refused("lease given", answer, (InvalidArgument, "etcdserver: lease is provided"))
}

pub(super) async fn refuses_bad_requests(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let answer = at.kv().put(put_request(Bytes::new(), "1")).await;
    let no_key = (InvalidArgument, "etcdserver: key is not provided");
    refused("put without a key", answer, no_key)?;
    let answer = at.kv().delete_range(pb::DeleteRangeRequest::default()).await;
    refused("delete without a key", answer, no_key)?;
    let request = pb::PutRequest { lease: 4711, ..put_request(at.key("b"), "1") };
    let answer = at.kv().put(request).await;
    refused("unknown lease", answer, (NotFound, "etcdserver: requested lease not found"))?;
    same("nothing was written", at.put("a", "2").await? - before, 1)
}

pub(super) async fn refuses_what_is_too_large(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let too_large = (InvalidArgument, "etcdserver: request is too large");
    let answer = at.kv().put(put_request(at.key("a"), &"x".repeat(1_572_865))).await;
    refused("more than 1.5 MiB", answer, too_large)?;
    let last = at.put("a", &"x".repeat(1_572_000)).await?;
    same("less than 1.5 MiB is written", last - before, 1)?;
    at.tidy().await
}

pub(super) async fn deletes_one(at: Target) -> Checked {
    at.put("a", "1").await?;
    let before = at.put("ab", "1").await?;
    let request = pb::DeleteRangeRequest { key: at.key("a"), prev_kv: true, ..Default::default() };
    let answer = at.kv().delete_range(request).await?.into_inner();
    same("revision", revision(answer.header), before + 1)?;
    same("deleted", answer.deleted, 1)?;
    same("previous", at.names(&answer.prev_kvs), vec!["a".into()])?;
    same("gone", at.get("a").await?, None)?;
    same("the other is there", at.must_get("ab").await?.version, 1)
}

pub(super) async fn deletes_a_range(at: Target) -> Checked {
    for name in ["a", "b", "c", "d"] {
        at.put(name, "1").await?;
    }
    let request =
        pb::DeleteRangeRequest { key: at.key("b"), range_end: at.key("d"), ..Default::default() };
    let answer = at.kv().delete_range(request).await?.into_inner();
    same("deleted", answer.deleted, 2)?;
    same("previous only if asked for", answer.prev_kvs.len(), 0)?;
    let left = at.range(at.all()).await?;
    same("left", at.names(&left.kvs).concat(), "ad".into())
}

pub(super) async fn deletes_nothing(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let request = pb::DeleteRangeRequest { key: at.key("b"), ..Default::default() };
    let answer = at.kv().delete_range(request).await?.into_inner();
    same("deleted", answer.deleted, 0)?;
    same("no revision was made", revision(answer.header), before)
}

pub(super) async fn created_again_after_deletion(at: Target) -> Checked {
    at.put("a", "1").await?;
    at.put("a", "2").await?;
    at.delete("a").await?;
    let again = at.put("a", "3").await?;
    let kv = at.must_get("a").await?;
    same("version", kv.version, 1)?;
    same("create revision", kv.create_revision, again)
}
