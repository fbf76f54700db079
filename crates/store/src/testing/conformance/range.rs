//! Reading.

use bytes::Bytes;
use tonic::Code::{InvalidArgument, OutOfRange};

use super::target::{Target, revision};
use super::{Checked, holds, refused, same};
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::{self as pb};

pub(super) async fn one_key_and_its_place_in_history(at: Target) -> Checked {
    let created = at.put("a", "1").await?;
    let changed = at.put("a", "2").await?;
    let answer = at.range(pb::RangeRequest { key: at.key("a"), ..Default::default() }).await?;
    same("count", answer.count, 1)?;
    same("more", answer.more, false)?;
    same("revision", revision(answer.header), changed)?;
    let kv = at.must_get("a").await?;
    same("key", kv.key, at.key("a"))?;
    same("value", kv.value.as_ref(), b"2")?;
    same("version", kv.version, 2)?;
    same("create revision", kv.create_revision, created)?;
    same("mod revision", kv.mod_revision, changed)?;
    same("lease", kv.lease, 0)
}

pub(super) async fn missing_key(at: Target) -> Checked {
    let answer = at.range(pb::RangeRequest { key: at.key("a"), ..Default::default() }).await?;
    same("keys", answer.kvs.len(), 0)?;
    same("count", answer.count, 0)
}

async fn five(at: &Target) -> Result<i64, super::Failure> {
    let mut last = 0;
    for name in ["a", "b", "c", "d", "e"] {
        last = at.put(name, name).await?;
    }
    Ok(last)
}

pub(super) async fn limit_and_more(at: Target) -> Checked {
    five(&at).await?;
    let answer = at.range(pb::RangeRequest { limit: 2, ..at.all() }).await?;
    same("two of five", at.names(&answer.kvs), vec!["a".into(), "b".into()])?;
    same("more after two", answer.more, true)?;
    same("count is of all", answer.count, 5)?;
    let answer = at.range(pb::RangeRequest { limit: 5, ..at.all() }).await?;
    same("all five", answer.kvs.len(), 5)?;
    same("more after five", answer.more, false)
}

pub(super) async fn sorted_by_each_target(at: Target) -> Checked {
    // Each order below is another permutation of the same three keys.
    at.put("b", "1").await?;
    at.put("a", "3").await?;
    at.put("c", "0").await?;
    at.put("c", "0").await?;
    at.put("c", "2").await?;
    at.put("a", "3").await?;
    let sorted = async |order: SortOrder, target: SortTarget| {
        let (sort_order, sort_target) = (order.into(), target.into());
        let answer = at.range(pb::RangeRequest { sort_order, sort_target, ..at.all() }).await?;
        Ok::<_, super::Failure>(at.names(&answer.kvs).concat())
    };
    for (target, ascending) in [
        (SortTarget::Key, "abc"),
        (SortTarget::Version, "bac"),
        (SortTarget::Create, "bac"),
        (SortTarget::Mod, "bca"),
        (SortTarget::Value, "bca"),
    ] {
        let descending: String = ascending.chars().rev().collect();
        let what = format!("{target:?}");
        same(&what, sorted(SortOrder::Ascend, target).await?, ascending.into())?;
        same(&what, sorted(SortOrder::Descend, target).await?, descending)?;
        // No order means ascending by the target.
        same(&what, sorted(SortOrder::None, target).await?, ascending.into())?;
    }
    Ok(())
}

pub(super) async fn sorted_then_limited(at: Target) -> Checked {
    five(&at).await?;
    let request = pb::RangeRequest { limit: 2, sort_order: SortOrder::Descend.into(), ..at.all() };
    let answer = at.range(request).await?;
    same("the last two", at.names(&answer.kvs).concat(), "ed".into())?;
    same("more", answer.more, true)
}

pub(super) async fn count_only(at: Target) -> Checked {
    five(&at).await?;
    let answer = at.range(pb::RangeRequest { count_only: true, ..at.all() }).await?;
    same("count", answer.count, 5)?;
    same("keys", answer.kvs.len(), 0)?;
    let request = pb::RangeRequest { count_only: true, limit: 2, ..at.all() };
    let answer = at.range(request).await?;
    same("count with a limit", (answer.count, answer.more), (5, false))
}

pub(super) async fn keys_only(at: Target) -> Checked {
    five(&at).await?;
    let answer = at.range(pb::RangeRequest { keys_only: true, ..at.all() }).await?;
    same("keys", at.names(&answer.kvs).concat(), "abcde".into())?;
    holds("values are left out", answer.kvs.iter().all(|kv| kv.value.is_empty()))?;
    holds("the rest is there", answer.kvs.iter().all(|kv| kv.version == 1))
}

pub(super) async fn old_revisions(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let second = at.put("b", "1").await?;
    let third = at.put("a", "2").await?;
    let fourth = at.delete("a").await?;
    for (revision_asked, want) in
        [(first, vec!["1"]), (second, vec!["1", "1"]), (third, vec!["2", "1"]), (fourth, vec!["1"])]
    {
        let request = pb::RangeRequest { revision: revision_asked, ..at.all() };
        let answer = at.range(request).await?;
        let values: Vec<_> =
            answer.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect();
        same(
            &format!("values at {revision_asked}"),
            values,
            want.iter().map(|&v| v.into()).collect(),
        )?;
        same("the header tells the newest revision", revision(answer.header), fourth)?;
    }
    Ok(())
}

pub(super) async fn future_revision(at: Target) -> Checked {
    let now = at.put("a", "1").await?;
    let answer = at.range(pb::RangeRequest { revision: now + 1, ..at.all() }).await;
    let words = "etcdserver: mvcc: required revision is a future revision";
    refused("the next revision", answer, (OutOfRange, words))?;
    let answer = at.range(pb::RangeRequest { revision: -1, ..at.all() }).await?;
    same("a negative revision is now", answer.count, 1)
}

pub(super) async fn filtered_by_revisions(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    at.put("b", "1").await?;
    let third = at.put("c", "1").await?;
    let last = at.put("a", "2").await?;
    let names = async |request: pb::RangeRequest| {
        let answer = at.range(request).await?;
        Ok::<_, super::Failure>((at.names(&answer.kvs).concat(), answer.count))
    };
    let of = |text: &str| (text.to_owned(), 3);
    let filter = pb::RangeRequest { min_mod_revision: third, ..at.all() };
    same("changed since the third", names(filter).await?, of("ac"))?;
    let filter = pb::RangeRequest { max_mod_revision: last - 1, ..at.all() };
    same("changed before the last", names(filter).await?, of("bc"))?;
    let filter = pb::RangeRequest { min_create_revision: first + 1, ..at.all() };
    same("created after the first", names(filter).await?, of("bc"))?;
    let filter = pb::RangeRequest { max_create_revision: first, ..at.all() };
    same("created up to the first", names(filter).await?, of("a"))?;
    let filter = pb::RangeRequest { min_mod_revision: third, limit: 1, ..at.all() };
    same("filtered, then limited", names(filter).await?, of("a"))
}

pub(super) async fn from_a_key_on(at: Target) -> Checked {
    five(&at).await?;
    let zero = Bytes::from_static(b"\0");
    let request =
        pb::RangeRequest { key: at.key("d"), range_end: zero.clone(), ..Default::default() };
    let answer = at.range(request).await?;
    let first_two = answer.kvs.get(..2).unwrap_or_default();
    same("from the fourth on", at.names(first_two).concat(), "de".into())?;
    let request = pb::RangeRequest { key: zero.clone(), range_end: zero, ..Default::default() };
    let everything = at.range(request).await?;
    holds("everything is at least this case", everything.count >= 5)?;
    let request =
        pb::RangeRequest { key: at.key("b"), range_end: at.key("d"), ..Default::default() };
    let answer = at.range(request).await?;
    same("the end is not in the range", at.names(&answer.kvs).concat(), "bc".into())
}

pub(super) async fn backward_range_is_empty(at: Target) -> Checked {
    five(&at).await?;
    let request =
        pb::RangeRequest { key: at.key("d"), range_end: at.key("b"), ..Default::default() };
    let answer = at.range(request).await?;
    same("backward", (answer.kvs.len(), answer.count), (0, 0))
}

pub(super) async fn refuses_no_key(at: Target) -> Checked {
    let answer = at.range(pb::RangeRequest::default()).await;
    refused("no key", answer, (InvalidArgument, "etcdserver: key is not provided"))
}

pub(super) async fn serializable(at: Target) -> Checked {
    five(&at).await?;
    let answer = at.range(pb::RangeRequest { serializable: true, ..at.all() }).await?;
    same("keys", at.names(&answer.kvs).concat(), "abcde".into())
}

pub(super) async fn more_than_four_mebibytes(at: Target) -> Checked {
    let value = "x".repeat(1 << 20);
    for name in ["a", "b", "c", "d", "e", "f"] {
        at.put(name, &value).await?;
    }
    let answer = at.range(at.all()).await?;
    same("keys", at.names(&answer.kvs).concat(), "abcdef".into())?;
    holds("values are whole", answer.kvs.iter().all(|kv| kv.value.len() == 1 << 20))?;
    at.tidy().await
}
