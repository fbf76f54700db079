//! From the journal to memory at start, and from memory to a new journal when the old one has
//! grown too long.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    entry::Entry,
    index::Index,
    journal::{Damage, Frames, Identity, Journal, NAME},
    keys::KeyRange,
    media::{Folder, Media},
};

/// Name of a journal that is not finished yet.
pub(crate) const NEW_NAME: &str = "store.journal.new";
/// Keys that a checkpoint reads under one lock.
const KEYS_AT_ONCE: usize = 256;
/// About the most bytes of one frame of a checkpoint.
const FRAME_BYTES: usize = 1 << 20;

/// What was found on disk.
pub(crate) struct Loaded {
    /// All keys.
    pub(crate) index: Index,
    /// All leases: number and seconds granted.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Where to write on.
    pub(crate) journal: Journal,
}

/// Why the store cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// The journal is damaged, newer or none.
    #[error(transparent)]
    Damage(#[from] Damage),
    /// The first journal cannot be made, or the end of an old one cannot be cut off.
    #[error("it cannot be written")]
    Write(#[source] io::Error),
}

/// Numbers for a store or a journal that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// Who a new store is.
    pub(crate) identity: Identity,
    /// Salt of a new journal.
    pub(crate) salt: u64,
}

/// Loads the store of a folder, or makes an empty one.
pub(crate) fn load(folder: &dyn Folder, fresh: Fresh) -> Result<Loaded, LoadError> {
    if let Some(file) = folder.open(NAME).map_err(Damage::Read)? {
        return replay(file);
    }
    let journal = make_empty(folder, fresh).map_err(LoadError::Write)?;
    Ok(Loaded { index: Index::build(Vec::new(), 1, 0), leases: Vec::new(), journal })
}

fn make_empty(folder: &dyn Folder, fresh: Fresh) -> io::Result<Journal> {
    let mut journal = Journal::create(folder.create(NEW_NAME)?, fresh.identity, fresh.salt)?;
    journal.append(&[Entry::Compacted { compacted: 0, revision: 1 }])?;
    journal.sync()?;
    folder.rename(NEW_NAME, NAME)?;
    Ok(journal)
}

fn replay(file: Box<dyn Media>) -> Result<Loaded, LoadError> {
    let mut frames = Frames::open(file)?;
    let mut records = Vec::new();
    let mut leases = BTreeMap::new();
    let (mut compacted, mut revision) = (0, 1);
    loop {
        let at = frames.position();
        let Some(payload) = frames.next_payload()? else { break };
        let mut rest = &payload[..];
        while !rest.is_empty() {
            match Entry::decode(&mut rest).map_err(|_| Damage::At(at))? {
                Entry::Changed(record) => records.push(record),
                Entry::LeaseGranted { id, ttl } => {
                    leases.insert(id, ttl);
                }
                Entry::LeaseEnded { id } => {
                    leases.remove(&id);
                }
                Entry::Compacted { compacted: c, revision: r } => {
                    compacted = compacted.max(c);
                    revision = revision.max(r);
                }
                Entry::Closed => {}
            }
        }
    }
    // A checkpoint is in order of keys; what follows it is in order of revisions.
    records.sort_by_key(|record| record.revision);
    Ok(Loaded {
        index: Index::build(records, revision, compacted),
        leases: leases.into_iter().collect(),
        journal: frames.into_journal().map_err(LoadError::Write)?,
    })
}

/// What a checkpoint begins with: the state of the store at one moment between two batches.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// Who the store is.
    pub(crate) identity: Identity,
    /// The newest revision; later ones stay out.
    pub(crate) revision: i64,
    /// What was compacted last.
    pub(crate) compacted: i64,
    /// All leases: number and seconds granted.
    pub(crate) leases: Vec<(i64, i64)>,
}

/// Writes all that the store held at `head` into an empty file, as a journal that can be loaded.
///
/// The writer may go on meanwhile: later revisions are left out, and what a later compaction takes
/// away nobody may read once the frame that tells of it follows.
pub(crate) fn write_checkpoint(
    file: Box<dyn Media>,
    salt: u64,
    head: &Head,
    index: &RwLock<Index>,
) -> io::Result<Journal> {
    let mut journal = Journal::create(file, head.identity, salt)?;
    let Head { compacted, revision, .. } = *head;
    let mut entries = vec![Entry::Compacted { compacted, revision }];
    entries.extend(head.leases.iter().map(|&(id, ttl)| Entry::LeaseGranted { id, ttl }));
    journal.append(&entries)?;
    let open_end = Bytes::from_static(&[0]);
    let mut next = open_end.clone();
    loop {
        let range = KeyRange::new(&next, &open_end);
        let some = index.read().unwrap_or_else(PoisonError::into_inner);
        let histories = some.histories(&range, KEYS_AT_ONCE, revision);
        drop(some);
        let Some(last) = histories.last() else { break };
        next = just_after(&last.key);
        entries.clear();
        let mut bytes = 0;
        for record in histories.iter().flat_map(|history| &history.versions) {
            entries.push(Entry::Changed(Arc::clone(record)));
            bytes += record.cost();
            if bytes > FRAME_BYTES {
                journal.append(&entries)?;
                entries.clear();
                bytes = 0;
            }
        }
        if !entries.is_empty() {
            journal.append(&entries)?;
        }
    }
    Ok(journal)
}

fn just_after(key: &[u8]) -> Bytes {
    let mut after = BytesMut::with_capacity(key.len() + 1);
    after.put_slice(key);
    after.put_u8(0);
    after.freeze()
}
