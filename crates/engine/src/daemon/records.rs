//! The records of volumes in the store: who owns each, and which copies may be believed.
//!
//! The control plane takes an epoch by writing the record; the engine of the target changes it from
//! then on. A reactor hands its record over and goes on; it is written by a task, and the answer
//! goes back to the reactor.
//!
//! Invariant: a record is written only in place of the one that was read just before, and only if
//! that is of the same ownership and not newer. So a late attempt never replaces a newer record.

use std::sync::{Arc, Mutex, PoisonError};

use api::node::ApiResult;
use mirror::StoreFault;
use model::envelope::{self, DecodeError};
use model::{
    Epoch, Problem, ProblemKind, ShutdownState, StoreMark, StoreSequence, TargetId, TargetRecord,
    VolumeId, keys,
};
use store::contract::{Compare, KeyValue, Op, Revision, Store, StoreExt as _, Txn};
use tokio::sync::{Semaphore, mpsc};

use super::problems;
use crate::volumes::{RecordStore, Recorded, may_replace};

/// Records that may wait to be written.
const WAITING: usize = 1024;
/// Records that are written at once.
const AT_ONCE: usize = 64;
/// How often a record that changed meanwhile is read again.
const TRIES: u32 = 4;

/// Reads and writes records.
#[derive(Clone)]
pub(super) struct Records {
    store: Arc<dyn Store>,
    waiting: mpsc::Sender<(TargetRecord, Recorded)>,
    told: Told,
}

/// How far the store had come, as the control plane told this engine.
type Told = Arc<Mutex<Option<StoreMark>>>;

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("target {target} owns the volume, with epoch {epoch}")]
    Fenced { target: TargetId, epoch: Epoch },
    #[error(
        "the store holds epoch {epoch} of target {target}, which was over before ours began: it \
         went back"
    )]
    Behind { target: TargetId, epoch: Epoch },
    #[error(
        "the store was put back to an earlier state; nothing is recorded before the control plane \
         has compared all volumes with their copies, see `holdfast recover`"
    )]
    WentBack,
    #[error("the store holds no record of the volume; it was lost, or the volume was deleted")]
    Missing,
    #[error(transparent)]
    Unreadable(#[from] DecodeError),
    #[error("the record cannot be written as text: {0}")]
    Text(String),
    #[error("the record cannot be read")]
    Read(#[from] store::contract::ReadError),
    #[error("the record cannot be written")]
    Write(#[from] store::contract::WriteError),
    #[error("the record changes all the time")]
    Restless,
}

impl Records {
    /// Must be called within the runtime on which records are to be written.
    pub(super) fn new(store: Arc<dyn Store>) -> Records {
        let (waiting, arriving) = mpsc::channel(WAITING);
        let told = Told::default();
        tokio::spawn(write_all((Arc::clone(&store), Arc::clone(&told)), arriving));
        Records { store, waiting, told }
    }

    /// The control plane told how far the store has come. A store that is known to have gone back
    /// is not written: by its records somebody may own a volume who lost it since.
    pub(super) fn hear(&self, mark: StoreMark) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(mark);
    }

    /// The record of a volume, as it was taken for this target.
    pub(super) async fn read(&self, volume: VolumeId) -> ApiResult<Option<TargetRecord>> {
        match read(&*self.store, volume).await {
            Ok(found) => Ok(found.map(|(record, _)| record)),
            Err(error) => Err(Problem::new(ProblemKind::StoreUnavailable, problems::chain(&error))),
        }
    }
}

impl Records {
    /// Says that the volume is in use again: whoever finds the record after a crash looks for
    /// differences between its copies.
    pub(super) async fn reopen(&self, record: TargetRecord) -> ApiResult<TargetRecord> {
        if record.end() == ShutdownState::Unclean {
            return Ok(record);
        }
        let open = record.record(record.epoch(), record.set().clone())?;
        let told = *self.told.lock().unwrap_or_else(PoisonError::into_inner);
        write((&*self.store, told), &open).await.map_err(|error| {
            let kind = match error {
                WriteError::Fenced { .. } => ProblemKind::Fenced,
                _ => ProblemKind::StoreUnavailable,
            };
            Problem::new(kind, problems::chain(&error))
        })?;
        Ok(open)
    }
}

impl RecordStore for Records {
    fn record(&self, record: TargetRecord, done: Recorded) {
        use mpsc::error::TrySendError::{Closed, Full};
        if let Err(Full((_, done)) | Closed((_, done))) = self.waiting.try_send((record, done)) {
            done(Err(StoreFault::Away));
        }
    }
}

async fn write_all(
    (store, told): (Arc<dyn Store>, Told),
    mut arriving: mpsc::Receiver<(TargetRecord, Recorded)>,
) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some((record, done)) = arriving.recv().await {
        // It is never closed.
        let place = Arc::clone(&places).acquire_owned().await;
        let store = Arc::clone(&store);
        let told = *told.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::spawn(async move {
            let written = write((&*store, told), &record).await;
            drop(place);
            done(written.map_err(|error| {
                let volume = record.volume();
                tracing::warn!(%volume, error = problems::chain(&error), "not recorded");
                match error {
                    WriteError::Fenced { .. } => StoreFault::Fenced,
                    WriteError::Behind { epoch, .. } => StoreFault::Behind { epoch },
                    _ => StoreFault::Away,
                }
            }));
        });
    }
}

async fn read(
    store: &dyn Store,
    volume: VolumeId,
) -> Result<Option<(TargetRecord, KeyValue)>, WriteError> {
    let Some(found) = store.get(keys::target_record(volume)).await? else {
        return Ok(None);
    };
    Ok(Some((envelope::decode(&found.value)?, found)))
}

/// The condition that the store has not gone back, as far as it knows itself and this engine was
/// told; or that the record was written since: then its volume was compared with its copies.
async fn believed(
    (store, told): (&dyn Store, Option<StoreMark>),
    written: Revision,
) -> Result<Option<Compare>, WriteError> {
    let found = store.get(keys::of::<StoreSequence>(StoreSequence::ID)).await?;
    let sequence = match &found {
        Some(found) => Some(envelope::decode::<StoreSequence>(&found.value)?),
        None => None,
    };
    let is_later = |told: StoreMark| sequence.is_none_or(|sequence| told.is_after(sequence.mark));
    let went_back = sequence.is_some_and(|sequence| sequence.went_back);
    let is_newer = went_back && found.as_ref().is_some_and(|found| written > found.changed);
    if (went_back || told.is_some_and(is_later)) && !is_newer {
        return Err(WriteError::WentBack);
    }
    Ok(found.as_ref().map(Compare::unchanged))
}

/// Makes the store hold this record, if it is ours to write.
async fn write(
    (store, told): (&dyn Store, Option<StoreMark>),
    record: &TargetRecord,
) -> Result<(), WriteError> {
    let text = envelope::encode(record).map_err(|error| WriteError::Text(error.to_string()))?;
    for _ in 0..TRIES {
        let (old, found) = read(store, record.volume()).await?.ok_or(WriteError::Missing)?;
        if old == *record {
            return Ok(());
        }
        // Ours was taken from it: a store does not know an earlier owner after a later one, nor two
        // of one epoch.
        let is_other = old.epoch() == record.epoch() && old.target() != record.target();
        if old.epoch() < record.epoch() || is_other {
            return Err(WriteError::Behind { target: old.target(), epoch: old.epoch() });
        }
        if !may_replace(&old, record) {
            return Err(WriteError::Fenced { target: old.target(), epoch: old.epoch() });
        }
        let believed = believed((store, told), found.changed).await?;
        let replace = Txn::new().when(Compare::unchanged(&found));
        let replace = believed.into_iter().fold(replace, Txn::when);
        let replace = replace.then(Op::put(found.key, text.clone()));
        if store.txn(replace).await?.succeeded {
            return Ok(());
        }
    }
    Err(WriteError::Restless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ReplicaSet, SetChange};
    use std::sync::mpsc::sync_channel;
    use store::contract::SystemClock;
    use store::testing::MemoryStore;

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(number: u8) -> T {
        format!("5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a{number:02x}").parse().unwrap()
    }

    fn first() -> TargetRecord {
        let set = ReplicaSet::new([id(1), id(2), id(3)].into()).unwrap();
        TargetRecord::new(id(9), id(40), "node-1".parse().unwrap(), set)
    }

    /// The record after one more copy was recorded stale.
    fn without(record: &TargetRecord, replica: u8) -> TargetRecord {
        let set = record.set().on(SetChange::Stale(id(replica))).unwrap();
        record.record(record.epoch(), set).unwrap()
    }

    async fn put(store: &MemoryStore, record: &TargetRecord) {
        let text = envelope::encode(record).unwrap();
        store.put(keys::target_record(record.volume()), text).await.unwrap();
    }

    /// What a reactor is told, and what the store then holds.
    async fn check(
        stored: Option<&TargetRecord>,
        new: &TargetRecord,
        told: Result<(), StoreFault>,
        held: Option<&TargetRecord>,
    ) {
        let store = MemoryStore::new(Arc::new(SystemClock::new()));
        if let Some(stored) = stored {
            put(&store, stored).await;
        }
        let records = Records::new(Arc::new(store));
        let (answer, answered) = sync_channel(1);
        records.record(new.clone(), Box::new(move |result| answer.send(result).unwrap()));
        let result = tokio::task::spawn_blocking(move || answered.recv().unwrap()).await.unwrap();
        assert_eq!(result, told);
        assert_eq!(records.read(new.volume()).await.unwrap().as_ref(), held);
    }

    #[tokio::test]
    async fn only_the_owner_replaces_a_record_and_only_an_older_one() {
        let old = first();
        let newer = without(&old, 1);
        let newest = without(&newer, 2);
        let taken = old.take(id(41), "node-2".parse().unwrap());
        check(Some(&old), &newer, Ok(()), Some(&newer)).await;
        check(Some(&newer), &newer, Ok(()), Some(&newer)).await;
        check(Some(&newest), &newer, Err(StoreFault::Fenced), Some(&newest)).await;
        // Somebody else changed the set meanwhile: one generation never has two contents.
        let other = without(&old, 2);
        check(Some(&other), &newer, Err(StoreFault::Fenced), Some(&other)).await;
        check(Some(&taken), &newer, Err(StoreFault::Fenced), Some(&taken)).await;
        // A store that went back to before this ownership.
        let epoch = old.epoch();
        check(Some(&old), &taken, Err(StoreFault::Behind { epoch }), Some(&old)).await;
        check(None, &newer, Err(StoreFault::Away), None).await;
    }

    /// Each recovery goes far ahead, and a new copy begins with nothing.
    #[test]
    fn a_replica_takes_the_epochs_of_many_recoveries() {
        let many = (0..1000).try_fold(Epoch::FIRST, |epoch, _| epoch.leap()).unwrap();
        assert!(many.number() < nvme::target::MAX_KEY_STEP, "{many}");
    }

    /// An owner of the backup's time, that lost the volume since, finds itself in the store again.
    #[tokio::test]
    async fn a_store_that_went_back_is_not_written() {
        let (old, new) = (first(), without(&first(), 1));
        let mark = |number| StoreMark { store: id(50), number };
        let told = |number| StoreSequence { mark: mark(number), went_back: false };
        let known = StoreSequence { went_back: true, ..told(7) };
        for (sequence, is_written) in
            [(Some(told(7)), true), (Some(told(6)), false), (Some(known), false), (None, false)]
        {
            let store = MemoryStore::new(Arc::new(SystemClock::new()));
            put(&store, &old).await;
            if let Some(sequence) = sequence {
                let key = keys::of::<StoreSequence>(StoreSequence::ID);
                store.put(key, envelope::encode(&sequence).unwrap()).await.unwrap();
            }
            let records = Records::new(Arc::new(store.clone()));
            records.hear(mark(7));
            let (answer, answered) = sync_channel(1);
            records.record(new.clone(), Box::new(move |result| answer.send(result).unwrap()));
            let result = tokio::task::spawn_blocking(move || answered.recv().unwrap()).await;
            assert_eq!(result.unwrap().is_ok(), is_written, "{sequence:?}");
            let held = if is_written { &new } else { &old };
            assert_eq!(records.read(new.volume()).await.unwrap().as_ref(), Some(held));
            if sequence != Some(known) {
                continue;
            }
            // The control plane has compared this volume with its copies, and written it again.
            put(&store, &old).await;
            let (answer, answered) = sync_channel(1);
            records.record(new.clone(), Box::new(move |result| answer.send(result).unwrap()));
            let result = tokio::task::spawn_blocking(move || answered.recv().unwrap()).await;
            assert_eq!(result.unwrap(), Ok(()), "other volumes are no concern of it");
        }
    }

    #[tokio::test]
    async fn a_volume_that_is_used_again_is_recorded_so() {
        let store = MemoryStore::new(Arc::new(SystemClock::new()));
        let records = Records::new(Arc::new(store.clone()));
        let closed = first().close(Epoch::FIRST).unwrap();
        put(&store, &closed).await;
        let open = records.reopen(closed.clone()).await.unwrap();
        assert_eq!(open.end(), ShutdownState::Unclean);
        assert_eq!(records.read(closed.volume()).await.unwrap(), Some(open.clone()));
        assert_eq!(records.reopen(open.clone()).await.unwrap(), open);
        put(&store, &open.take(id(41), "node-2".parse().unwrap())).await;
        assert_eq!(records.reopen(closed).await.unwrap_err().kind, ProblemKind::Fenced);
    }
}
