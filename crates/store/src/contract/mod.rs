//! What the programs above ask of a store: small enough to replace, exact enough to rely on.
//!
//! [`Store`] is implemented by the etcd [`Client`](crate::client::Client), and in memory for tests
//! and for simulation (feature `testing`). One suite of cases holds for all of them.
//!
//! Invariants:
//! - A read without a revision is linearizable: it sees every write answered before it began.
//! - A write that fails with [`WriteError::Unknown`] may have been carried out. Nothing in this
//!   crate sends such a write a second time.
//! - A watch delivers each change after its start once, in order, all changes of a revision
//!   together; or it ends with an error.
//!
//! Deliberately not here: sockets, retries ([`crate::client`]), what keys mean.

mod clock;
mod error;
mod key;
mod pages;
mod txn;
mod watch;

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub use clock::{Clock, SystemClock};
pub use error::{Cause, ErrorClass, LeaseError, ReadError, WatchError, WriteError};
pub use key::{KeyValue, Keys, LeaseId, Revision, printable};
pub use txn::{
    Compare, CompareOp, Op, OpResponse, Operand, Page, Projection, Query, Txn, TxnOutcome,
};
pub use watch::{Change, Changes, WatchFrom};

/// Changes as they happen; see [`Store::watch`].
pub type Watch = BoxStream<'static, Result<Changes, WatchError>>;

/// Keys, revisions, compare-and-swap, leases and watches, as etcd defines them.
pub trait Store: Send + Sync {
    /// Reads keys.
    fn range(&self, query: Query) -> BoxFuture<'_, Result<Page, ReadError>>;

    /// Compares, then does one of two lists of operations, all in one revision.
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, WriteError>>;

    /// Reports changes from a revision on, across lost connections, until the stream is dropped or
    /// ends with an error.
    fn watch(&self, from: WatchFrom) -> Watch;

    /// Makes a lease that lives for `ttl` (in whole seconds, rounded up) after it was last kept
    /// alive; the store may choose to let it live longer and says so.
    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<(LeaseId, Duration), LeaseError>>;

    /// Renews a lease once and tells how long it has to live from now.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, LeaseError>>;

    /// Ends a lease and deletes its keys.
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), LeaseError>>;

    /// Forgets history below `revision`.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), WriteError>>;
}

/// The everyday calls, made from the few of [`Store`].
pub trait StoreExt: Store {
    /// Reads one key.
    fn get(
        &self,
        key: impl Into<Bytes>,
    ) -> impl Future<Output = Result<Option<KeyValue>, ReadError>> + Send {
        let answer = self.range(Query::key(key));
        async move { Ok(answer.await?.kvs.into_iter().next()) }
    }

    /// Writes one key, whatever it held before, and tells the revision of the write.
    fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send {
        let answer = self.txn(Txn::new().then(Op::put(key, value)));
        async move { Ok(answer.await?.revision) }
    }

    /// Writes one key and hangs it on a lease.
    fn put_leased(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: LeaseId,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send {
        let answer = self.txn(Txn::new().then(Op::put(key, value).leased(lease)));
        async move { Ok(answer.await?.revision) }
    }

    /// Deletes keys and tells how many there were.
    fn delete(&self, keys: Keys) -> impl Future<Output = Result<u64, WriteError>> + Send {
        let answer = self.txn(Txn::new().then(Op::delete(keys)));
        async move { Ok(answer.await?.deleted()) }
    }

    /// Reads keys page by page, all at the revision of the first page; `page` keys at a time.
    fn pages(
        &self,
        query: Query,
        page: std::num::NonZeroU32,
    ) -> impl futures::Stream<Item = Result<Page, ReadError>> + Send {
        pages::pages(self, query, page)
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
