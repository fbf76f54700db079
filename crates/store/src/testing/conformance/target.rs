//! A server under test, and short words for what most cases do.

use bytes::Bytes;
use tonic::transport::{Channel, Endpoint};

use super::Failure;
use crate::proto::etcdserverpb as pb;
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::cluster_client::ClusterClient;
use crate::proto::etcdserverpb::kv_client::KvClient;
use crate::proto::etcdserverpb::lease_client::LeaseClient;
use crate::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::proto::etcdserverpb::watch_client::WatchClient;
use crate::proto::mvccpb::KeyValue;
use crate::proto::v3electionpb::election_client::ElectionClient;
use crate::proto::v3lockpb::lock_client::LockClient;

/// A server under test, seen from one case.
#[derive(Clone)]
pub struct Target {
    channel: Channel,
    endpoint: String,
    room: &'static str,
}

const LARGEST: usize = 256 << 20;

impl Target {
    /// Connects for the case called `room`, under which all its keys are.
    pub(super) async fn connect(endpoint: &str, room: &'static str) -> Result<Target, Failure> {
        let channel = Endpoint::from_shared(endpoint.to_owned())?.connect().await?;
        Ok(Target { channel, endpoint: endpoint.to_owned(), room })
    }

    /// A key of this case.
    pub(super) fn key(&self, name: &str) -> Bytes {
        Bytes::from(format!("{}/{name}", self.room))
    }

    /// The end of the range of all keys of this case.
    pub(super) fn end(&self) -> Bytes {
        Bytes::from(format!("{}0", self.room))
    }

    /// Deletes what an earlier run left.
    pub(super) async fn tidy(&self) -> Result<(), Failure> {
        let request =
            pb::DeleteRangeRequest { key: self.key(""), range_end: self.end(), prev_kv: false };
        self.kv().delete_range(request).await?;
        Ok(())
    }

    pub(super) fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    pub(super) fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(super) fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    pub(super) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    pub(super) fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel.clone())
    }

    pub(super) fn lock(&self) -> LockClient<Channel> {
        LockClient::new(self.channel.clone())
    }

    pub(super) fn election(&self) -> ElectionClient<Channel> {
        ElectionClient::new(self.channel.clone())
    }

    /// Where the server is, for whoever speaks to it by another way.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(super) fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    /// Writes a key; tells the revision.
    pub(super) async fn put(&self, name: &str, value: &str) -> Result<i64, Failure> {
        let request = put_request(self.key(name), value);
        Ok(revision(self.kv().put(request).await?.into_inner().header))
    }

    /// Writes a key and hangs it on a lease; tells the revision.
    pub(super) async fn put_leased(&self, name: &str, lease: i64) -> Result<i64, Failure> {
        let request = pb::PutRequest { lease, ..put_request(self.key(name), "leased") };
        Ok(revision(self.kv().put(request).await?.into_inner().header))
    }

    /// Deletes a key; tells the revision.
    pub(super) async fn delete(&self, name: &str) -> Result<i64, Failure> {
        let request = pb::DeleteRangeRequest { key: self.key(name), ..Default::default() };
        Ok(revision(self.kv().delete_range(request).await?.into_inner().header))
    }

    /// Reads a key.
    pub(super) async fn get(&self, name: &str) -> Result<Option<KeyValue>, Failure> {
        let answer = self.range(pb::RangeRequest { key: self.key(name), ..Default::default() });
        Ok(answer.await?.kvs.into_iter().next())
    }

    /// Reads a key that must be there.
    pub(super) async fn must_get(&self, name: &str) -> Result<KeyValue, Failure> {
        self.get(name).await?.ok_or(Failure::Missing("a key that was written"))
    }

    /// Reads.
    pub(super) async fn range(
        &self,
        request: pb::RangeRequest,
    ) -> Result<pb::RangeResponse, tonic::Status> {
        Ok(self.kv().range(request).await?.into_inner())
    }

    /// A read of all keys of this case.
    pub(super) fn all(&self) -> pb::RangeRequest {
        pb::RangeRequest { key: self.key(""), range_end: self.end(), ..Default::default() }
    }

    /// Does a transaction.
    pub(super) async fn txn(
        &self,
        request: pb::TxnRequest,
    ) -> Result<pb::TxnResponse, tonic::Status> {
        Ok(self.kv().txn(request).await?.into_inner())
    }

    /// Makes a lease of `ttl` seconds.
    pub(super) async fn grant(&self, ttl: i64) -> Result<i64, Failure> {
        let request = pb::LeaseGrantRequest { ttl, id: 0 };
        Ok(self.lease().lease_grant(request).await?.into_inner().id)
    }

    /// Forgets history below `revision`.
    pub(super) async fn compact(&self, revision: i64) -> Result<(), tonic::Status> {
        let request = pb::CompactionRequest { revision, physical: true };
        self.kv().compact(request).await.map(|_| ())
    }

    /// The names of keys, without the case's name before them.
    pub(super) fn names(&self, kvs: &[KeyValue]) -> Vec<String> {
        let room = self.room.len() + 1;
        let name = |kv: &KeyValue| {
            String::from_utf8_lossy(kv.key.get(room..).unwrap_or_default()).into_owned()
        };
        kvs.iter().map(name).collect()
    }
}

pub(super) fn put_request(key: Bytes, value: &str) -> pb::PutRequest {
    let value = Bytes::copy_from_slice(value.as_bytes());
    pb::PutRequest { key, value, ..Default::default() }
}

pub(super) fn revision(header: Option<pb::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}
