//! A client of etcd, or of the embedded server: nobody here can tell the difference.
//!
//! Invariants:
//! - Every call ends within its deadline.
//! - A read is repeated, also at other endpoints, until it is answered or its deadline has passed.
//!   A write is repeated only if it surely never left this process.
//! - An error names the endpoint and the keys.
//!
//! Deliberately not here: keeping leases alive ([`crate::lease`]) and locks ([`crate::leader`]),
//! which need no more than a [`Store`].

mod access;
mod admin;
mod endpoints;
mod options;
mod session;
mod watch;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use tokio_stream::once;

pub use access::Grant;
pub use admin::{Member, ServerStatus};
use endpoints::{Endpoints, Failure, Idempotent};
pub use options::{ConnectError, Login, Options, Tls};

use crate::contract::{
    ErrorClass, LeaseError, LeaseId, Page, Query, ReadError, Revision, Store, Txn, TxnOutcome,
    Watch, WatchFrom, WriteError,
};
use crate::proto::etcdserverpb as pb;

/// A client; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    ring: Arc<Endpoints>,
}

impl Client {
    /// A client of the servers at `endpoints` (`http://host:port` or `https://host:port`), once one
    /// of them has answered.
    pub async fn connect<E: AsRef<str>>(
        endpoints: &[E],
        options: Options,
    ) -> Result<Client, ConnectError> {
        let client = Client::lazy(endpoints, options)?;
        match client.status().await {
            Ok(_) => Ok(client),
            Err(source) => {
                let endpoints = client.ring.names().collect::<Vec<_>>().join(", ");
                Err(ConnectError::Unreachable { endpoints, source })
            }
        }
    }

    /// The same without waiting: the first call connects.
    ///
    /// Must be called from within a tokio runtime.
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one client")]
    pub fn lazy<E: AsRef<str>>(endpoints: &[E], options: Options) -> Result<Client, ConnectError> {
        Ok(Client { ring: Arc::new(Endpoints::new(endpoints, &options)?) })
    }
}

impl Store for Client {
    fn range(&self, query: Query) -> BoxFuture<'_, Result<Page, ReadError>> {
        async move {
            let request = wire::range_request(&query);
            self.ring
                .call(Idempotent::Yes, |server| {
                    let request = request.clone();
                    async move { server.kv().range(request).await }
                })
                .await
                .map(wire::page)
                .map_err(|failure| read_error(query.to_string(), failure))
        }
        .boxed()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, WriteError>> {
        async move {
            let repeat = if txn.writes() { Idempotent::No } else { Idempotent::Yes };
            let what = txn.to_string();
            let request = wire::txn_request(txn);
            let answer = self
                .ring
                .call(repeat, |server| {
                    let request = request.clone();
                    async move { server.kv().txn(request).await }
                })
                .await;
            answer.map(wire::txn_outcome).map_err(|failure| write_error(what, failure))
        }
        .boxed()
    }

    fn watch(&self, from: WatchFrom) -> Watch {
        watch::watch(Arc::clone(&self.ring), from).boxed()
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<(LeaseId, Duration), LeaseError>> {
        async move {
            let request = pb::LeaseGrantRequest { ttl: wire::whole_seconds(ttl), id: 0 };
            let answer =
                self.ring
                    .call(Idempotent::Yes, |server| async move {
                        server.lease().lease_grant(request).await
                    })
                    .await
                    .map_err(|failure| lease_error("making of a lease".into(), failure))?;
            Ok((LeaseId(answer.id), wire::seconds(answer.ttl)))
        }
        .boxed()
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, LeaseError>> {
        async move {
            let request = pb::LeaseKeepAliveRequest { id: lease.0 };
            let answer = self
                .ring
                .call(Idempotent::Yes, |server| async move {
                    let mut request = tonic::Request::new(once(request));
                    endpoints::require_leader(&mut request);
                    let mut answers = server.lease().lease_keep_alive(request).await?.into_inner();
                    let answer = answers.message().await?;
                    answer.map(tonic::Response::new).ok_or_else(|| {
                        tonic::Status::unavailable("the stream ended without an answer")
                    })
                })
                .await
                .map_err(|failure| lease_error(format!("renewal of lease {lease}"), failure))?;
            // The server has no error here: a lease it does not know has no time to live.
            if answer.ttl <= 0 {
                return Err(LeaseError::Gone { lease });
            }
            Ok(wire::seconds(answer.ttl))
        }
        .boxed()
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), LeaseError>> {
        async move {
            let request = pb::LeaseRevokeRequest { id: lease.0 };
            let answer = self
                .ring
                .call(Idempotent::Yes, |server| async move {
                    server.lease().lease_revoke(request).await
                })
                .await;
            match answer {
                Ok(_) => Ok(()),
                Err(failure) if failure.says(LEASE_NOT_FOUND) => Err(LeaseError::Gone { lease }),
                Err(failure) => Err(lease_error(format!("revocation of lease {lease}"), failure)),
            }
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), WriteError>> {
        async move {
            let request = pb::CompactionRequest { revision: revision.0, physical: false };
            // Forgetting twice forgets no more.
            self.ring
                .call(Idempotent::Yes, |server| async move { server.kv().compact(request).await })
                .await
                .map(|_| ())
                .map_err(|failure| write_error(format!("compaction at {revision}"), failure))
        }
        .boxed()
    }
}

// The words by which etcd's errors are told apart: codes alone are shared by several.
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";
const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

fn read_error(what: String, failure: Failure) -> ReadError {
    match failure {
        Failure::NotSent { endpoint, source } | Failure::Lost { endpoint, source } => {
            ReadError::Unreachable { what, endpoint, source }
        }
        Failure::Refused { reason, .. } if reason == COMPACTED => ReadError::Compacted { what },
        Failure::Refused { reason, .. } if reason == FUTURE => ReadError::Future { what },
        Failure::Refused { endpoint, reason, code } => {
            ReadError::Refused { what, endpoint, reason, class: class(code) }
        }
    }
}

fn write_error(what: String, failure: Failure) -> WriteError {
    match failure {
        Failure::NotSent { endpoint, source } => WriteError::NotSent { what, endpoint, source },
        Failure::Lost { endpoint, source } => WriteError::Unknown { what, endpoint, source },
        Failure::Refused { endpoint, reason, code } => match reason.as_str() {
            LEASE_NOT_FOUND => WriteError::LeaseGone { what },
            COMPACTED => WriteError::Compacted { what },
            NO_SPACE => WriteError::Full { what, endpoint },
            _ => WriteError::Refused { what, endpoint, reason, class: class(code) },
        },
    }
}

fn lease_error(what: String, failure: Failure) -> LeaseError {
    match failure {
        Failure::NotSent { endpoint, source } | Failure::Lost { endpoint, source } => {
            LeaseError::Unreachable { what, endpoint, source }
        }
        Failure::Refused { endpoint, reason, code } => {
            LeaseError::Refused { what, endpoint, reason, class: class(code) }
        }
    }
}

fn class(code: tonic::Code) -> ErrorClass {
    use tonic::Code;
    match code {
        Code::ResourceExhausted | Code::Unavailable => ErrorClass::Retry,
        Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented | Code::Internal => {
            ErrorClass::Operator
        }
        _ => ErrorClass::Caller,
    }
}
