//! From a file to a store.

use std::io::{self, Read, Seek};

use super::format::{FormatError, Reader, Record, verify};
use super::{Progress, Summary};
use crate::contract::{
    Compare, Keys, Op, OpResponse, Query, ReadError, Store, Txn, TxnOutcome, WriteError, printable,
};

/// What the store may hold already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// Nothing.
    Empty,
    /// Anything: keys of the file replace those of the same name, the others stay.
    Anything,
}

/// Why a file was not, or not wholly, imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file is no good; nothing was written.
    #[error("nothing was imported")]
    Format(#[from] FormatError),
    /// The store is not empty; nothing was written.
    #[error("the store already holds {keys} keys: import into an empty one, or force it")]
    NotEmpty {
        /// How many.
        keys: u64,
    },
    /// The store could not be looked at; nothing was written.
    #[error("cannot see whether the store is empty")]
    Look(#[from] ReadError),
    /// Somebody else writes to the store.
    #[error("key {key} appeared during the import, after {done} keys: stop whoever writes to it")]
    Appeared {
        /// The key.
        key: String,
        /// Keys imported before.
        done: u64,
    },
    /// A write failed.
    #[error("the import stopped after {done} keys")]
    Write {
        /// Keys imported before.
        done: u64,
        /// Why.
        source: WriteError,
    },
}

/// Keys written by one transaction, at most; etcd takes 128 operations.
const KEYS: usize = 100;
/// Bytes written by one transaction, at most, unless one key alone is larger; etcd takes 1.5 MiB.
const BYTES: usize = 1 << 20;
/// How often a batch is sent whose outcome is unknown each time.
const ATTEMPTS: u32 = 5;

/// Writes all keys of an export into `store`. The file is read twice: the first time to check it.
///
/// Reading happens on the calling thread: hand in a buffered file.
pub async fn import(
    store: &dyn Store,
    source: &mut (impl Read + Seek + Send),
    onto: Onto,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Summary, ImportError> {
    let total = verify(&mut *source)?;
    source.rewind().map_err(FormatError::from)?;
    if onto == Onto::Empty {
        let keys = store.range(Query::keys(Keys::ALL).count_only()).await?.count;
        if keys > 0 {
            return Err(ImportError::NotEmpty { keys });
        }
    }
    let mut reader = Reader::new(&mut *source)?;
    let mut done = 0;
    let mut next = reader.next()?;
    while let Some(first) = next.take() {
        let batch;
        (batch, next) = read_batch(first, &mut reader)?;
        write(store, &batch, onto, done).await?;
        done += u64::try_from(batch.len()).unwrap_or(0);
        progress(Progress { done, total });
    }
    Ok(Summary { keys: done, leased: 0 })
}

/// Records for one transaction, and the first one after them.
///
/// Keys of one transaction share their create revision and are exported in their own order, so
/// only a run of ascending keys may share one: then the order of creation is kept.
fn read_batch(
    first: Record,
    reader: &mut Reader<impl Read>,
) -> Result<(Vec<Record>, Option<Record>), io::Error> {
    let size = |record: &Record| 2 * record.key.len() + record.value.len() + 64;
    let mut bytes = size(&first);
    let mut batch = vec![first];
    loop {
        // Damage here would be of a file that was sound a moment ago.
        let Some(record) = reader.next().map_err(io::Error::other)? else {
            return Ok((batch, None));
        };
        bytes += size(&record);
        let ascends = batch.last().is_none_or(|last| last.key < record.key);
        if !ascends || bytes > BYTES || batch.len() >= KEYS {
            return Ok((batch, Some(record)));
        }
        batch.push(record);
    }
}

async fn write(
    store: &dyn Store,
    batch: &[Record],
    onto: Onto,
    done: u64,
) -> Result<(), ImportError> {
    let mut txn = Txn::new();
    for record in batch {
        txn = txn.then(Op::put(record.key.clone(), record.value.clone()));
        if onto == Onto::Empty {
            txn = txn
                .when(Compare::absent(record.key.clone()))
                .otherwise(Op::get(record.key.clone()));
        }
    }
    let mut attempt = 1;
    loop {
        match store.txn(txn.clone()).await {
            Ok(outcome) if outcome.succeeded => return Ok(()),
            // An earlier attempt of ours that was thought lost.
            Ok(outcome) if attempt > 1 && holds(&outcome, batch) => return Ok(()),
            Ok(outcome) => {
                let key = outcome.first_read().map_or_else(String::new, |kv| printable(&kv.key));
                return Err(ImportError::Appeared { key, done });
            }
            // Sending it again is safe here: it changes nothing that is already there.
            Err(error) if error.may_be_applied() && attempt < ATTEMPTS => attempt += 1,
            Err(source) => return Err(ImportError::Write { done, source }),
        }
    }
}

/// Whether all keys of the batch are there with their values.
fn holds(outcome: &TxnOutcome, batch: &[Record]) -> bool {
    let there = |(answer, record): (&OpResponse, &Record)| match answer {
        OpResponse::Read(page) => page.kvs.first().is_some_and(|kv| kv.value == record.value),
        _ => false,
    };
    outcome.answers.len() == batch.len() && outcome.answers.iter().zip(batch).all(there)
}

impl From<io::Error> for ImportError {
    fn from(error: io::Error) -> ImportError {
        ImportError::Format(FormatError::Io(error))
    }
}
