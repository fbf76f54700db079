//! What the writer and all connections share: the index, and how far it is published.

use std::sync::{
    Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::watch;

use crate::proto::etcdserverpb::ResponseHeader;

use super::{index::Index, journal::Identity, metrics::SyncTimes, settings::Settings};

/// The term that answers show: there is one member, and it has led since the beginning.
const TERM: u64 = 2;

/// What the writer and all connections share.
#[derive(Debug)]
pub(crate) struct ServerState {
    index: RwLock<Index>,
    settings: RwLock<Arc<Settings>>,
    published: watch::Sender<i64>,
    identity: Identity,
    failure: OnceLock<String>,
    disk_bytes: AtomicU64,
    sync_times: SyncTimes,
}

impl ServerState {
    /// Shares a loaded index; all of it is published.
    pub(crate) fn new(
        index: Index,
        settings: Settings,
        (identity, disk_bytes): (Identity, u64),
    ) -> Self {
        let published = watch::Sender::new(index.revision());
        Self {
            index: RwLock::new(index),
            settings: RwLock::new(Arc::new(settings)),
            published,
            identity,
            failure: OnceLock::new(),
            disk_bytes: AtomicU64::new(disk_bytes),
            sync_times: SyncTimes::default(),
        }
    }

    /// The lock itself, for a checkpoint that takes it many times.
    pub(crate) fn lock(&self) -> &RwLock<Index> {
        &self.index
    }

    /// The index, to read at a published revision.
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index, to change. Only the writer does so.
    pub(crate) fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Users, roles, alarms and addresses as they are on disk.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets clients see settings that are on disk.
    pub(crate) fn publish_settings(&self, settings: &Settings) {
        let mut published = self.settings.write().unwrap_or_else(PoisonError::into_inner);
        if **published != *settings {
            *published = Arc::new(settings.clone());
        }
    }

    /// How long syncs of the journal took.
    pub(crate) fn sync_times(&self) -> &SyncTimes {
        &self.sync_times
    }

    /// The newest revision that is on disk: what clients may see.
    pub(crate) fn published(&self) -> i64 {
        *self.published.borrow()
    }

    /// Lets clients see a revision that is on disk.
    pub(crate) fn publish(&self, revision: i64) {
        self.published.send_if_modified(|published| {
            let newer = revision > *published;
            *published = revision.max(*published);
            newer
        });
    }

    /// Tells of each newly published revision.
    pub(crate) fn subscribe(&self) -> watch::Receiver<i64> {
        self.published.subscribe()
    }

    /// Who this store is.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// The header of an answer at a revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster,
            member_id: self.identity.member,
            revision,
            raft_term: TERM,
        }
    }

    /// Adds to a header that only has the revision who answered.
    pub(crate) fn sign(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.as_ref().map_or_else(|| self.published(), |header| header.revision);
        *header = Some(self.header(revision));
    }

    /// Remembers why nothing can be written any more.
    pub(crate) fn fail(&self, why: String) {
        // The first reason counts.
        let _ = self.failure.set(why);
    }

    /// Why nothing can be written any more.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Bytes of the journal.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    /// Remembers the bytes of the journal.
    pub(crate) fn set_disk_bytes(&self, bytes: u64) {
        self.disk_bytes.store(bytes, Ordering::Relaxed);
    }
}
