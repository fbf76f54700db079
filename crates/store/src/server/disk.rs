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
    record::Record,
    settings::Settings,
    storage::Directory,
};

/// Name of a journal that is not finished yet.
pub(crate) const NEW_NAME: &str = "store.journal.new";
/// Keys that a checkpoint reads under one lock.
const KEYS_AT_ONCE: usize = 256;
/// About the most bytes of one frame of a checkpoint.
const FRAME_BYTES: usize = 1 << 20;
/// How often a copy is begun anew because a compaction overtook it.
const COPY_ATTEMPTS: usize = 5;

/// What was found on disk.
pub(crate) struct Loaded {
    /// All keys.
    pub(crate) index: Index,
    /// All leases: number and seconds granted.
    pub(crate) leases: Vec<(i64, i64)>,
    /// Users, roles, alarms and addresses.
    pub(crate) settings: Settings,
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
    /// What was read may not be on the disk, and cannot be brought there.
    #[error("it cannot be made durable")]
    Sync(#[source] io::Error),
}

/// Numbers for a store or a journal that is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    /// Who a new store is.
    pub(crate) identity: Identity,
    /// Salt of a new journal.
    pub(crate) salt: u64,
}

/// Loads the store of a folder, or makes an empty one. All of it is on the disk when this returns:
/// what a process reads may be in the page cache only, and what it serves must outlive a power cut.
pub(crate) fn load(folder: &dyn Directory, fresh: Fresh) -> Result<Loaded, LoadError> {
    let Some(file) = folder.open(NAME).map_err(Damage::Read)? else {
        let journal = make_empty(folder, fresh).map_err(LoadError::Write)?;
        let (index, leases) = (Index::build(Vec::new(), 1, 0), Vec::new());
        return Ok(Loaded { index, leases, settings: Settings::default(), journal });
    };
    let frames = Frames::open(file)?;
    if frames.is_own() {
        let (contents, frames) = replay(frames, |_| Ok(()))?;
        let journal = frames.into_journal().map_err(LoadError::Sync)?;
        // The process that gave the journal its name may have died before that was durable.
        folder.sync().map_err(LoadError::Sync)?;
        return Ok(contents.into_loaded(journal));
    }
    load_copy(folder, frames, fresh.salt)
}

/// Loads a journal that somebody put in place: nothing is known of what is on the disk, so all of
/// it is written anew.
fn load_copy(folder: &dyn Directory, frames: Frames, salt: u64) -> Result<Loaded, LoadError> {
    let new =
        folder.create(NEW_NAME).and_then(|file| Journal::create(file, frames.identity(), salt));
    let mut journal = new.map_err(LoadError::Write)?;
    let copied = replay(frames, |payload| journal.append_payload(payload));
    let (contents, _) = copied.inspect_err(|_| {
        // A journal that is refused is left alone, and so is its folder.
        let _ = folder.remove(NEW_NAME);
    })?;
    journal.sync().map_err(LoadError::Sync)?;
    folder.rename(NEW_NAME, NAME).map_err(LoadError::Write)?;
    folder.sync().map_err(LoadError::Sync)?;
    Ok(contents.into_loaded(journal))
}

fn make_empty(folder: &dyn Directory, fresh: Fresh) -> io::Result<Journal> {
    let mut journal = Journal::create(folder.create(NEW_NAME)?, fresh.identity, fresh.salt)?;
    journal.append(&[Entry::Compacted { compacted: 0, revision: 1 }])?;
    journal.sync()?;
    folder.rename(NEW_NAME, NAME)?;
    folder.sync()?;
    Ok(journal)
}

/// What the frames of a journal say.
struct Contents {
    records: Vec<Arc<Record>>,
    leases: BTreeMap<i64, i64>,
    settings: Settings,
    compacted: i64,
    revision: i64,
}

impl Contents {
    fn into_loaded(mut self, journal: Journal) -> Loaded {
        // A checkpoint is in order of keys; what follows it is in order of revisions.
        self.records.sort_by_key(|record| record.revision);
        Loaded {
            index: Index::build(self.records, self.revision, self.compacted),
            leases: self.leases.into_iter().collect(),
            settings: self.settings,
            journal,
        }
    }

    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Changed(record) => self.records.push(record),
            Entry::LeaseGranted { id, ttl } => {
                self.leases.insert(id, ttl);
            }
            Entry::LeaseEnded { id } => {
                self.leases.remove(&id);
            }
            Entry::Compacted { compacted, revision } => {
                self.compacted = self.compacted.max(compacted);
                self.revision = self.revision.max(revision);
            }
            Entry::Setting(setting) => self.settings.apply(&setting),
            Entry::Closed => {}
        }
    }
}

/// Reads all frames once, and hands each on as it was read: a second reading might find other
/// bytes, once the kernel has dropped pages that a failed sync called clean.
fn replay(
    mut frames: Frames,
    mut copy: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(Contents, Frames), LoadError> {
    let (records, leases, settings) = (Vec::new(), BTreeMap::new(), Settings::default());
    let mut contents = Contents { records, leases, settings, compacted: 0, revision: 1 };
    loop {
        let at = frames.position();
        let Some(payload) = frames.next_payload()? else { return Ok((contents, frames)) };
        let mut rest = payload;
        while !rest.is_empty() {
            contents.add(Entry::decode(&mut rest).map_err(|_| Damage::At(at))?);
        }
        copy(payload).map_err(LoadError::Write)?;
    }
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
    /// Users, roles, alarms and addresses.
    pub(crate) settings: Arc<Settings>,
}

/// Writes all that the store held at `head` into an empty journal.
///
/// The writer may go on meanwhile: later revisions are left out, and what a later compaction takes
/// away is missing. So the frame that tells of that compaction must follow, and, if it went beyond
/// `head`, all later changes too; see [`write_copy`] for a journal that ends at `head`.
pub(crate) fn write_checkpoint(
    mut journal: Journal,
    head: &Head,
    index: &RwLock<Index>,
) -> io::Result<Journal> {
    let Head { compacted, revision, .. } = *head;
    let mut entries = vec![Entry::Compacted { compacted, revision }];
    entries.extend(head.leases.iter().map(|&(id, ttl)| Entry::LeaseGranted { id, ttl }));
    entries.extend(head.settings.all().into_iter().map(Entry::Setting));
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

/// Writes a copy of the store: complete at the revision of its head, whatever is compacted then.
/// `begin` tells the state of the store and gives an empty journal.
pub(crate) fn write_copy(
    mut begin: impl FnMut() -> io::Result<(Head, Journal)>,
    index: &RwLock<Index>,
) -> io::Result<(Head, Journal)> {
    for _ in 0..COPY_ATTEMPTS {
        let (head, journal) = begin()?;
        let mut journal = write_checkpoint(journal, &head, index)?;
        let compacted = index.read().unwrap_or_else(PoisonError::into_inner).compacted();
        if compacted > head.revision {
            // Versions that were the newest at the head may be gone.
            continue;
        }
        if compacted > head.compacted {
            journal.append(&[Entry::Compacted { compacted, revision: head.revision }])?;
        }
        return Ok((head, journal));
    }
    Err(io::Error::other(
        "history is compacted faster than it is copied; try again when fewer keys are written",
    ))
}

fn just_after(key: &[u8]) -> Bytes {
    let mut after = BytesMut::with_capacity(key.len() + 1);
    after.put_slice(key);
    after.put_u8(0);
    after.freeze()
}
