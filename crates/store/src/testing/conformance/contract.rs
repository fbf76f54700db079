//! What the programs above rely on, asked of a [`Store`].

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};

use super::{Checked, Failure, holds, same};
use crate::contract::{
    Change, Compare, CompareOp, Keys, LeaseError, Op, Query, ReadError, Revision, Store,
    StoreExt as _, SystemClock, Txn, WatchError, WatchFrom, WriteError,
};
use crate::leader::{Guard, GuardedError};
use crate::lease::RenewedLease;

type Any = Arc<dyn Store>;

const MINUTE: Duration = Duration::from_mins(1);

async fn clear(store: &Any, room: &'static str) -> Result<Revision, Failure> {
    store.delete(Keys::prefix(room)).await?;
    Ok(store.range(Query::prefix(room).count_only()).await?.revision)
}

/// A lease kept alive in the background of this runtime.
async fn keep(store: &Any) -> Result<RenewedLease, Failure> {
    let clock = Arc::new(SystemClock::new());
    let (lease, keeper) = RenewedLease::grant(Arc::clone(store), clock, MINUTE).await?;
    tokio::spawn(keeper);
    Ok(lease)
}

pub(super) async fn put_get_delete(store: Any) -> Checked {
    let before = clear(&store, "everyday/").await?;
    let first = store.put("everyday/a", "1").await?;
    same("revision", first, before.next())?;
    store.put("everyday/a", "2").await?;
    let kv = store.get("everyday/a").await?.ok_or(Failure::Missing("the key"))?;
    same("value", kv.value.as_ref(), b"2")?;
    same("place", (kv.created, kv.changed, kv.version), (first, first.next(), 2))?;
    let old = store.range(Query::key("everyday/a").at(first)).await?;
    same("before", old.kvs.first().map(|kv| kv.value.to_vec()), Some(b"1".to_vec()))?;
    same("deleted", store.delete(Keys::one("everyday/a")).await?, 1)?;
    same("again", store.delete(Keys::one("everyday/a")).await?, 0)?;
    same("gone", store.get("everyday/a").await?, None)
}

pub(super) async fn pages_are_of_one_revision(store: Any) -> Checked {
    clear(&store, "pages/").await?;
    for number in 0..10 {
        store.put(format!("pages/{number}"), "old").await?;
    }
    let size = NonZeroU32::new(3).ok_or(Failure::Missing("three"))?;
    let mut pages = Box::pin(store.pages(Query::prefix("pages/"), size));
    let mut values = Vec::new();
    while let Some(page) = pages.next().await {
        for kv in page?.kvs {
            values.push(String::from_utf8_lossy(&kv.value).into_owned());
        }
        // Writes between pages must not be seen.
        store.put("pages/5", "new").await?;
        store.put("pages/99", "new").await?;
    }
    same("values", values, vec!["old".to_owned(); 10])
}

pub(super) async fn swaps_once(store: Any) -> Checked {
    clear(&store, "swap/").await?;
    let create = |value: &'static str| {
        Txn::new()
            .when(Compare::absent("swap/a"))
            .then(Op::put("swap/a", value))
            .otherwise(Op::get("swap/a"))
    };
    same("first", store.txn(create("1")).await?.succeeded, true)?;
    let second = store.txn(create("2")).await?;
    same("second", second.succeeded, false)?;
    let read = second.first_read().ok_or(Failure::Missing("what is there"))?;
    same("what is there", read.value.as_ref(), b"1")?;
    let swap = Txn::new().when(Compare::unchanged(read)).then(Op::put("swap/a", "3"));
    same("unchanged", store.txn(swap.clone()).await?.succeeded, true)?;
    same("changed", store.txn(swap).await?.succeeded, false)
}

pub(super) async fn conditions(store: Any) -> Checked {
    clear(&store, "when/").await?;
    let (lease, _) = store.grant(MINUTE).await?;
    let at = store.put_leased("when/a", "m", lease).await?;
    for (what, condition, want) in [
        ("version", Compare::version("when/a", CompareOp::Equal, 1), true),
        ("version above", Compare::version("when/a", CompareOp::Greater, 1), false),
        ("created", Compare::created("when/a", CompareOp::Equal, at), true),
        ("created before", Compare::created("when/a", CompareOp::Less, at), false),
        ("changed", Compare::changed("when/a", CompareOp::NotEqual, at), false),
        ("value", Compare::value("when/a", CompareOp::Greater, "l"), true),
        ("value of none", Compare::value("when/b", CompareOp::NotEqual, "l"), false),
        ("lease", Compare::lease("when/a", CompareOp::Equal, Some(lease)), true),
        ("no lease", Compare::lease("when/a", CompareOp::Equal, None), false),
        ("present", Compare::present("when/a"), true),
        ("absent", Compare::absent("when/b"), true),
    ] {
        let outcome = store.txn(Txn::new().when(condition)).await?;
        same(what, outcome.succeeded, want)?;
    }
    Ok(store.revoke(lease).await?)
}

pub(super) async fn refusals(store: Any) -> Checked {
    let now = clear(&store, "refused/").await?;
    let twice = Txn::new().then(Op::put("refused/a", "1")).then(Op::put("refused/a", "2"));
    let answer = store.txn(twice).await;
    holds("written twice", matches!(answer, Err(WriteError::Refused { .. })))?;
    let (lease, _) = store.grant(MINUTE).await?;
    store.revoke(lease).await?;
    let answer = store.put_leased("refused/a", "1", lease).await;
    holds("ended lease", matches!(answer, Err(WriteError::LeaseGone { .. })))?;
    let answer = store.keep_alive(lease).await;
    holds("renewed", matches!(answer, Err(LeaseError::Gone { lease: gone }) if gone == lease))?;
    let answer = store.revoke(lease).await;
    holds("revoked", matches!(answer, Err(LeaseError::Gone { .. })))?;
    let answer = store.range(Query::key("refused/a").at(Revision(now.0 + 1000))).await;
    holds("future", matches!(answer, Err(ReadError::Future { .. })))?;
    same("nothing was written", store.put("refused/a", "1").await?, now.next())
}

pub(super) async fn watch_reports_each_revision_once(store: Any) -> Checked {
    let now = clear(&store, "watch/").await?;
    let from = WatchFrom::new(Keys::prefix("watch/"), now.next()).with_previous();
    let mut watch = store.watch(from);
    store.put("watch/a", "1").await?;
    store.put("elsewhere", "1").await?;
    let both = Txn::new().then(Op::put("watch/b", "1")).then(Op::delete(Keys::one("watch/a")));
    let last = store.txn(both).await?.revision;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let news = watch.next().await.ok_or(Failure::Missing("changes"))??;
        let newest = news.changes.last().map(Change::at);
        same("told how far", Some(news.upto), newest)?;
        seen.extend(news.changes);
    }
    let places: Vec<_> = seen.iter().map(|change| change.at().0 - now.0).collect();
    same("revisions", places, vec![1, 3, 3])?;
    let deletion = seen.iter().find_map(|change| match change {
        Change::Deleted { key, before, at } => Some((key.clone(), before.clone(), *at)),
        Change::Put { .. } => None,
    });
    let (key, before, at) = deletion.ok_or(Failure::Missing("the deletion"))?;
    same("deleted", (key.as_ref(), at), (b"watch/a".as_ref(), last))?;
    same("as it was", before.map(|kv| kv.value.to_vec()), Some(b"1".to_vec()))
}

pub(super) async fn watch_reports_compaction(store: Any) -> Checked {
    let now = clear(&store, "compacted/").await?;
    store.put("compacted/a", "1").await?;
    let last = store.put("compacted/a", "2").await?;
    store.compact(last).await?;
    let mut watch = store.watch(WatchFrom::new(Keys::prefix("compacted/"), now.next()));
    match watch.next().await {
        Some(Err(WatchError::Compacted { upto, .. })) => same("upto", upto, last)?,
        other => same("compaction", format!("{other:?}"), "an error".to_owned())?,
    }
    holds("and ends", watch.next().await.is_none())?;
    let answer = store.range(Query::key("compacted/a").at(now.next())).await;
    holds("reads too", matches!(answer, Err(ReadError::Compacted { .. })))?;
    let answer = store.compact(last).await;
    holds("again", matches!(answer, Err(WriteError::Compacted { .. })))
}

pub(super) async fn lease_takes_its_keys_along(store: Any) -> Checked {
    clear(&store, "lease/").await?;
    let (lease, ttl) = store.grant(Duration::from_millis(1)).await?;
    holds("at least a second", ttl >= Duration::from_secs(1))?;
    let last = store.put_leased("lease/a", "1", lease).await?;
    holds("it can be renewed", store.keep_alive(lease).await? >= Duration::from_secs(1))?;
    let mut watch = store.watch(WatchFrom::new(Keys::prefix("lease/"), last.next()));
    let news = watch.next().await.ok_or(Failure::Missing("the end of the lease"))??;
    let gone = |change: &Change| matches!(change, Change::Deleted { .. });
    same("deleted", news.changes.iter().filter(|change| gone(change)).count(), 1)?;
    same("gone", store.get("lease/a").await?, None)
}

pub(super) async fn kept_lease_tells_when_lost(store: Any) -> Checked {
    let clock = Arc::new(SystemClock::new());
    let short = Duration::from_secs(1);
    let (lease, keeper) = RenewedLease::grant(Arc::clone(&store), clock, short).await?;
    let keeper = tokio::spawn(keeper);
    holds("kept", !lease.is_lost())?;
    store.revoke(lease.id()).await?;
    lease.lost().await;
    holds("lost", lease.is_lost())?;
    same("the keeper ends", keeper.await.is_ok(), true)
}

pub(super) async fn one_leader_at_a_time(store: Any) -> Checked {
    clear(&store, "leader").await?;
    let campaign = |name: &'static str, lease| {
        Guard::campaign(Arc::clone(&store), "leader", name, lease).boxed()
    };
    let won = |result: Result<Guard, crate::leader::CampaignError>| {
        result.map_err(|_| Failure::Missing("leadership"))
    };
    let first = won(campaign("first", keep(&store).await?).await)?;
    let mut second = campaign("second", keep(&store).await?);
    let value = async || {
        let kv = store.get("leader").await?;
        Ok::<_, Failure>(kv.map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    };
    tokio::select! {
        _ = &mut second => return Err(Failure::Missing("the first leader")),
        leader = value() => same("leader", leader?, Some("first".into()))?,
    }
    let since = first.since();
    first.resign().await?;
    let second = won(second.await)?;
    same("then the other", value().await?, Some("second".into()))?;
    holds("later", second.since() > since)?;
    second.resign().await?;
    same("then nobody", value().await?, None)
}

pub(super) async fn former_leader_writes_nothing(store: Any) -> Checked {
    clear(&store, "fence/").await?;
    let lease = keep(&store).await?;
    let campaign = |name: &'static str, lease| {
        Guard::campaign(Arc::clone(&store), "fence/leader", name, lease)
    };
    let old = campaign("old", lease.clone()).await.map_err(|_| Failure::Missing("old"))?;
    let write = |value: &'static str| Txn::new().then(Op::put("fence/a", value));
    let wrote = old.txn(write("old")).await.map_err(|_| Failure::Missing("a guarded write"))?;
    holds("it tells its revision", wrote.revision > old.since())?;
    store.revoke(lease.id()).await?;
    let refused = |answer| matches!(answer, Err(GuardedError::LostLeadership { .. }));
    holds("nobody leads", refused(old.txn(write("late")).await))?;
    let lease = keep(&store).await?;
    let new = campaign("new", lease).await.map_err(|_| Failure::Missing("new"))?;
    new.txn(write("new")).await.map_err(|_| Failure::Missing("a guarded write"))?;
    holds("somebody else leads", refused(old.txn(write("late")).await))?;
    let kv = store.get("fence/a").await?.ok_or(Failure::Missing("the key"))?;
    same("value", kv.value.as_ref(), b"new")?;
    old.resign().await?;
    holds("a former leader cannot resign for the new", store.get("fence/leader").await?.is_some())
}

pub(super) async fn guarded_conditions_are_the_callers(store: Any) -> Checked {
    clear(&store, "guarded/").await?;
    let lease = keep(&store).await?;
    let guard = Guard::campaign(Arc::clone(&store), "guarded/leader", "me", lease)
        .await
        .map_err(|_| Failure::Missing("leadership"))?;
    let create = Txn::new()
        .when(Compare::absent("guarded/a"))
        .then(Op::put("guarded/a", "1"))
        .otherwise(Op::get("guarded/a"));
    let answer = guard.txn(create.clone()).await.map_err(|_| Failure::Missing("the first"))?;
    same("first", answer.succeeded, true)?;
    let answer = guard.txn(create).await.map_err(|_| Failure::Missing("the second"))?;
    same("second", answer.succeeded, false)?;
    same("and reads", answer.first_read().map(|kv| kv.value.to_vec()), Some(b"1".to_vec()))
}
