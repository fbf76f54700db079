//! Encrypted replicas by the node API: their keys come from a folder that the operator fills, one
//! file per key, named as the key.
//!
//! ```text
//!   order names key K ──► replica is new:        its data key is made and wrapped by K
//!                    ──► K opens it:             it is unlocked
//!                    ──► another key opens it:   rotation: wrapped by K, with its snapshots
//!                    ──► none does:              refused
//!   pool is opened   ──► every key is tried on what is encrypted in it
//! ```
//!
//! A pool does not say which key wraps what: a key that does not fit is told by trying it.
//!
//! Invariant: nothing of a key is in an answer, an event or the log; names of keys and files are.

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::node::ApiResult;
use model::{Encryption, EventName, KeyName, ProblemKind, ReplicaId, ReplicaSpec, Subject};
use pool::{Entity, Id, KEY_CHECK};

use super::engine::{Engine, ReplicaEntry};
use super::pool_mapping;
use super::problems::{self, chain, in_field};
use crate::pools::{EntityStatus, KeyError, PoolError, PoolRequest, WrappingKey};

/// Whether the data of a replica can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    /// It is not encrypted.
    None,
    /// This key opened it.
    Opened(KeyName),
    /// No key did.
    Closed,
}

impl Lock {
    /// The request that it answers to, as far as is known.
    pub(super) fn encryption(&self) -> Option<Encryption> {
        match self {
            Lock::Opened(key) => Some(Encryption { key: key.clone() }),
            Lock::None | Lock::Closed => None,
        }
    }

    /// Why it cannot be used, if so.
    pub(super) fn detail(&self) -> Option<String> {
        let closed = "it is encrypted and none of the keys of this node opens it; \
                      put its key into the folder of keys and order it again";
        (*self == Lock::Closed).then(|| closed.to_owned())
    }
}

/// Where keys are.
pub(super) struct Keys(pub(super) Option<PathBuf>);

const FIELD: &str = "spec.encryption.key";

impl Keys {
    /// The file of a key.
    fn file(&self, name: &KeyName) -> Option<PathBuf> {
        self.0.as_ref().map(|folder| folder.join(name.as_str()))
    }
}

/// Every key in a folder that can be read; the others are logged.
fn read_all(folder: Option<PathBuf>) -> BTreeMap<KeyName, WrappingKey> {
    let Some(folder) = folder else { return BTreeMap::new() };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::error!(%error, folder = %folder.display(), "cannot list the keys");
            return BTreeMap::new();
        }
    };
    let mut found = BTreeMap::new();
    for entry in entries.flatten() {
        // Other names are none of a key: folders and links that Kubernetes puts beside them.
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.parse::<KeyName>().ok()) else {
            continue;
        };
        match WrappingKey::read(&entry.path()) {
            Ok(key) => drop(found.insert(name, key)),
            Err(error) => tracing::error!(error = chain(&error), "a key cannot be used"),
        }
    }
    found
}

fn check_of(entity: &Entity) -> Option<&[u8]> {
    entity.key.get(..KEY_CHECK)
}

impl Engine {
    async fn key(&self, name: &KeyName) -> ApiResult<WrappingKey> {
        let path = self.0.keys.file(name).ok_or_else(|| {
            let node = &self.0.info.name;
            let detail = format!("node {node} has no keys; start its engine with --keys DIR");
            in_field(FIELD, ProblemKind::NotSupported, detail)
        })?;
        let read = self.run_blocking(move || WrappingKey::read(&path)).await?;
        read.map_err(|error| in_field(FIELD, ProblemKind::PermissionDenied, chain(&error)))
    }

    async fn keys(&self) -> ApiResult<BTreeMap<KeyName, WrappingKey>> {
        let folder = self.0.keys.0.clone();
        self.run_blocking(move || read_all(folder)).await
    }

    /// The wrapped key of a replica that is to be made: new, unless it has that of its source.
    pub(super) async fn new_key(
        &self,
        spec: &ReplicaSpec,
        source: Option<&Entity>,
    ) -> ApiResult<Vec<u8>> {
        let has = source.map(Entity::is_encrypted);
        match (&spec.encryption, has) {
            (None, Some(true)) => {
                let detail = "the snapshot it starts from is encrypted; name a key";
                Err(in_field("spec.encryption", ProblemKind::InvalidArgument, detail))
            }
            (Some(_), Some(false)) => {
                let detail = "the snapshot it starts from is not encrypted; leave it out";
                Err(in_field("spec.encryption", ProblemKind::InvalidArgument, detail))
            }
            (None, _) | (Some(_), Some(true)) => Ok(Vec::new()),
            (Some(request), None) => {
                let key = self.key(&request.key).await?;
                key.new_data_key().map_err(|error| problems::of_pool(&error.into()))
            }
        }
    }

    /// Makes an encrypted replica usable, and its data key one that is wrapped by the named key.
    /// Answers whether that changed anything.
    pub(super) async fn unlock(
        &self,
        replica: ReplicaId,
        spec: &ReplicaSpec,
        pool: Id,
    ) -> ApiResult<bool> {
        let Some(Encryption { key: name }) = &spec.encryption else { return Ok(false) };
        let key = self.key(name).await?;
        let id = pool_mapping::id_of(replica.uuid());
        let unlock = || PoolRequest::Unlock { pool, id, key: key.clone() };
        let rotated = match self.ask(pool, unlock()).await? {
            Ok(_) => false,
            Err(PoolError::Key(KeyError::Wrong)) => {
                self.rotate(pool, id, &key).await?;
                self.carry_out(pool, unlock()).await?;
                let message = format!("its key is wrapped by {name} from now on");
                self.tell(Subject::Replica(replica), EventName::Changed, message);
                true
            }
            Err(error) => return Err(problems::of_pool(&error)),
        };
        let mut state = self.state();
        let replica_entry = state.replicas.get_mut(&replica);
        let before = replica_entry
            .map(|ReplicaEntry { lock, .. }| std::mem::replace(lock, Lock::Opened(name.clone())));
        Ok(rotated || before == Some(Lock::Closed))
    }

    /// Wraps the data key of a replica, and of the snapshots and clones that share it, by this
    /// key. One that no key opens is left alone.
    async fn rotate(&self, pool: Id, id: Id, new: &WrappingKey) -> ApiResult<()> {
        let entities = self.status(pool).await?.entities;
        let same = |one: &&EntityStatus| one.entity.id == id;
        let check = entities.iter().find(same).and_then(|one| check_of(&one.entity));
        let family =
            entities.iter().filter(|one| check.is_some() && check_of(&one.entity) == check);
        let keys = self.keys().await?;
        let mut done = false;
        for one in family {
            let id_now = one.entity.id;
            for old in keys.values() {
                let (old, new) = (old.clone(), new.clone());
                match self.ask(pool, PoolRequest::Rotate { pool, id: id_now, old, new }).await? {
                    Ok(_) => {
                        done |= id_now == id;
                        break;
                    }
                    Err(PoolError::Key(KeyError::Wrong)) => {}
                    Err(error) => return Err(problems::of_pool(&error)),
                }
            }
        }
        if done {
            return Ok(());
        }
        let detail = "neither this key nor any other of this node opens the replica; \
                      supply the key that it was made with, or last rotated to";
        Err(in_field(FIELD, ProblemKind::PermissionDenied, detail))
    }

    /// Tries every key on what is encrypted in a pool that was just opened.
    pub(super) async fn unlock_all(&self, pool: Id, entities: &[EntityStatus]) -> ApiResult<()> {
        if !entities.iter().any(|one| one.entity.is_encrypted()) {
            return Ok(());
        }
        let keys = self.keys().await?;
        for one in entities.iter().filter(|one| one.entity.is_encrypted()) {
            let id = one.entity.id;
            let mut lock = Lock::Closed;
            for (name, key) in &keys {
                match self.ask(pool, PoolRequest::Unlock { pool, id, key: key.clone() }).await? {
                    Ok(_) => {
                        lock = Lock::Opened(name.clone());
                        break;
                    }
                    Err(PoolError::Key(_)) => {}
                    Err(error) => return Err(problems::of_pool(&error)),
                }
            }
            if lock == Lock::Closed {
                let id = format!("{:032x}", id.0);
                tracing::error!(%id, "no key opens what is encrypted");
            }
            let replica = pool_mapping::replica_id(id);
            let mut state = self.state();
            if let Some(replica_entry) =
                replica.and_then(|replica| state.replicas.get_mut(&replica))
            {
                replica_entry.lock = lock;
            }
        }
        Ok(())
    }
}

/// Refuses to change whether a replica is encrypted.
pub(super) fn check(replica: ReplicaId, spec: &ReplicaSpec, entity: &Entity) -> ApiResult<()> {
    if entity.is_encrypted() == spec.encryption.is_some() {
        return Ok(());
    }
    let not = if entity.is_encrypted() { "" } else { "not " };
    let detail = format!("replica {replica} is {not}encrypted, for good");
    Err(in_field("spec.encryption", ProblemKind::AlreadyExists, detail))
}
