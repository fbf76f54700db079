//! From a store to a file.

use std::io::{self, Write};
use std::num::NonZeroU32;
use std::pin::pin;

use bytes::Bytes;
use futures::StreamExt as _;

use super::format::{Record, Writer};
use super::{Progress, Summary};
use crate::contract::{
    Keys, Op, OpResponse, Query, ReadError, Revision, Store, StoreExt as _, Txn, WriteError,
};

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The keys could not be read.
    #[error("cannot read the keys to export")]
    Keys(#[from] ReadError),
    /// The values could not be read.
    #[error("cannot read the values to export")]
    Values(#[from] WriteError),
    /// The store answered with fewer keys than it has.
    #[error("the store did not answer for all keys asked of it")]
    Incomplete,
    /// The file could not be written.
    #[error("cannot write the store export")]
    Write(#[from] io::Error),
}

/// Keys listed by one call.
const PAGE: NonZeroU32 = NonZeroU32::new(1000).unwrap();
/// Values read by one call: all of the longest kind still make an answer of bearable size.
const VALUES: usize = 32;

/// Writes all keys of `store` to `out`, as they are now.
///
/// Writing happens on the calling thread: hand in a buffered file.
pub async fn export(
    store: &dyn Store,
    out: &mut (dyn Write + Send),
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Summary, ExportError> {
    export_keys(store, Keys::ALL, out, progress).await
}

/// As [`export`], of these keys only: a store may be shared with others.
pub async fn export_keys(
    store: &dyn Store,
    keys: Keys,
    out: &mut (dyn Write + Send),
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Summary, ExportError> {
    let mut writer = Writer::new(out)?;
    let index = Index::read(store, keys).await?;
    let total = u64::try_from(index.keys.len()).unwrap_or(u64::MAX);
    let mut done = 0;
    for keys in index.keys.chunks(VALUES) {
        let read = keys.iter().fold(Txn::new(), |txn, (_, key)| {
            txn.then(Op::Get(Query::key(key.clone()).at(index.at)))
        });
        let outcome = store.txn(read).await?;
        for ((_, key), answer) in keys.iter().zip(&outcome.answers) {
            let OpResponse::Read(page) = answer else { return Err(ExportError::Incomplete) };
            let [kv] = page.kvs.as_slice() else { return Err(ExportError::Incomplete) };
            writer.push(&Record { key: key.clone(), value: kv.value.clone() })?;
            done += 1;
        }
        progress(Progress { done, total });
    }
    if done != total {
        return Err(ExportError::Incomplete);
    }
    let keys = writer.finish()?;
    Ok(Summary { keys, leased: index.leased })
}

/// All keys to export, in the order of their creation, at one revision.
struct Index {
    at: Revision,
    keys: Vec<(Revision, Bytes)>,
    leased: u64,
}

impl Index {
    async fn read(store: &dyn Store, keys: Keys) -> Result<Index, ExportError> {
        let mut index = Index { at: Revision::ZERO, keys: Vec::new(), leased: 0 };
        let mut pages = pin!(store.pages(Query::keys(keys).keys_only(), PAGE));
        while let Some(page) = pages.next().await {
            let page = page?;
            // All pages are of the revision of the first.
            if index.at == Revision::ZERO {
                index.at = page.revision;
            }
            for kv in page.kvs {
                match kv.lease {
                    Some(_) => index.leased += 1,
                    None => index.keys.push((kv.created, kv.key)),
                }
            }
        }
        index.keys.sort_unstable();
        Ok(index)
    }
}
