//! Things as people type them: by name, by id, or by the beginning of an id.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use api::rest::{Control, GroupQuery, IdOrName, Remote, SnapshotQuery, VolumeQuery};
use model::{GivenName, Resource, SnapshotGroupId, SnapshotId, Spec, VolumeId};

/// How many are named when it is not clear which is meant.
const NAMED: usize = 5;

/// A volume as typed.
pub(crate) type VolumeReference = Reference<VolumeId>;
/// A snapshot as typed.
pub(crate) type SnapshotReference = Reference<SnapshotId>;
/// A group of snapshots as typed.
pub(crate) type GroupReference = Reference<SnapshotGroupId>;

/// What was typed where one thing is meant.
#[derive(Clone, Debug)]
pub(crate) enum Reference<I> {
    /// A whole id: nobody has to be asked.
    Id(I),
    /// A name, or the beginning of an id.
    Text(IdOrName),
}

/// What can be called by a name.
pub(crate) trait Named: Copy + fmt::Display + Sized {
    /// The word for one, and the command that shows all.
    const KIND: (&'static str, &'static str);

    /// Those that may be meant, a few at most.
    async fn candidates(
        remote: &Remote,
        called: IdOrName,
    ) -> Result<Vec<(Self, Option<GivenName>)>>;
}

impl<I: FromStr> FromStr for Reference<I> {
    type Err = model::ValidationError;

    fn from_str(text: &str) -> Result<Reference<I>, Self::Err> {
        text.parse().map(Reference::Id).or_else(|_| text.parse().map(Reference::Text))
    }
}

impl<I: Named> Reference<I> {
    /// The one that is meant.
    pub(crate) async fn find(self, remote: &Remote) -> Result<I> {
        let text = match self {
            Reference::Id(id) => return Ok(id),
            Reference::Text(text) => text,
        };
        let found = I::candidates(remote, text.clone()).await?;
        let (kind, list) = I::KIND;
        match &found[..] {
            [(id, _)] => Ok(*id),
            [] => {
                bail!("no {kind} has the name {text} or an id that begins so; `{list}` shows all")
            }
            several => {
                let line = |(id, name): &(I, Option<GivenName>)| match name {
                    Some(name) => format!("\n  {id} {name}"),
                    None => format!("\n  {id}"),
                };
                let some: String = several.iter().take(NAMED).map(line).collect();
                let more = if several.len() > NAMED { "\n  and others" } else { "" };
                bail!("several ids begin with {text}; type more of it:{some}{more}")
            }
        }
    }

    /// The one that is meant, if any was typed.
    pub(crate) async fn find_any(
        typed: Option<Reference<I>>,
        remote: &Remote,
    ) -> Result<Option<I>> {
        match typed {
            Some(called) => called.find(remote).await.map(Some),
            None => Ok(None),
        }
    }
}

/// A few more than are named.
const LIMIT: Option<u32> = Some(6);

fn named<S: Spec<Id: Copy>>(items: Vec<Resource<S>>) -> Vec<(S::Id, Option<GivenName>)> {
    items.into_iter().map(|it| (*it.id(), it.spec().name().cloned())).collect()
}

impl Named for VolumeId {
    const KIND: (&'static str, &'static str) = ("volume", "holdfast volume list");

    async fn candidates(
        remote: &Remote,
        called: IdOrName,
    ) -> Result<Vec<(Self, Option<GivenName>)>> {
        let called = Some(called);
        let asked = VolumeQuery { called, limit: LIMIT, ..VolumeQuery::default() };
        Ok(named(remote.volumes(asked).await?.items))
    }
}

impl Named for SnapshotId {
    const KIND: (&'static str, &'static str) = ("snapshot", "holdfast snapshot list");

    async fn candidates(
        remote: &Remote,
        called: IdOrName,
    ) -> Result<Vec<(Self, Option<GivenName>)>> {
        let called = Some(called);
        let asked = SnapshotQuery { called, limit: LIMIT, ..SnapshotQuery::default() };
        Ok(named(remote.snapshots(asked).await?.items))
    }
}

impl Named for SnapshotGroupId {
    const KIND: (&'static str, &'static str) = ("snapshot group", "holdfast group list");

    async fn candidates(
        remote: &Remote,
        called: IdOrName,
    ) -> Result<Vec<(Self, Option<GivenName>)>> {
        let called = Some(called);
        let asked = GroupQuery { called, limit: LIMIT, ..GroupQuery::default() };
        Ok(named(remote.groups(asked).await?.items))
    }
}
