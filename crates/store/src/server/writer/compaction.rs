//! What the writer does beside requests: forget old history, and write the journal anew when most
//! of it is dead.
//!
//! A new journal is written beside the old one by a thread of its own, while the writer goes on.
//! Then the writer copies over what was added meanwhile, and the new file takes the old one's name.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, mpsc::SyncSender},
    thread,
    time::{Duration, Instant},
};

use super::{Message, Reply, Writer};
use crate::server::{
    config::Retention,
    disk::{NEW_NAME, write_checkpoint},
    entry::Entry,
    journal::{Journal, Mark, NAME},
    machine::Pressure,
    random,
    status::Refusal,
};

/// How often to look.
const TICK: Duration = Duration::from_secs(5);
/// A journal is written anew when it is longer than twice what it must hold and this.
const SLACK: u64 = 16 << 20;
/// Changes that are looked at under one lock when history is dropped.
const SWEEP: usize = 10_000;
/// How long history is kept when three quarters of the quota are used.
const SHORT_AGE: Duration = Duration::from_mins(5);
/// How many times the age of history is noted within the time it is kept.
const NOTES: u32 = 60;

/// When to do what.
pub(super) struct CompactionSchedule {
    retention: Retention,
    next: Instant,
    /// Which revision was the newest when.
    notes: VecDeque<(Instant, i64)>,
    rewrite: Option<Rewrite>,
    /// Length at which a failed rewrite is tried again.
    retry_at: u64,
    inbox: SyncSender<Message>,
}

struct Rewrite {
    from: Mark,
    waiting: Vec<Reply>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A new journal, without what was written meanwhile.
pub(super) struct Finished(io::Result<Journal>);

impl CompactionSchedule {
    pub(super) fn new(retention: Retention, inbox: SyncSender<Message>) -> Self {
        let next = Instant::now() + TICK;
        Self { retention, next, notes: VecDeque::new(), rewrite: None, retry_at: 0, inbox }
    }

    pub(super) fn next_tick(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// The thread that writes a new journal, if one does.
    pub(super) fn into_thread(self) -> Option<thread::JoinHandle<()>> {
        self.rewrite?.thread
    }

    /// The revision to compact to.
    fn target(&mut self, now: Instant, revision: i64, pressure: Pressure) -> i64 {
        let kept = self.kept(now, revision, pressure);
        if pressure == Pressure::Full { revision } else { kept }
    }

    fn kept(&mut self, now: Instant, revision: i64, pressure: Pressure) -> i64 {
        let by_number =
            self.retention.revisions.map_or(0, |kept| revision.saturating_sub(i64::from(kept)));
        let Some(mut age) = self.retention.age else { return by_number };
        if pressure != Pressure::None {
            age = age.min(SHORT_AGE);
        }
        let mut by_age = 0;
        while let Some(&(noted, old)) = self.notes.front()
            && now.saturating_duration_since(noted) >= age
        {
            by_age = old;
            self.notes.pop_front();
        }
        let due = |noted: Instant| now.saturating_duration_since(noted) >= age / NOTES;
        if self.notes.back().is_none_or(|(noted, _)| due(*noted)) {
            self.notes.push_back((now, revision));
        }
        by_number.max(by_age)
    }
}

impl Writer {
    /// Looks whether something is to be done.
    pub(super) fn keep_up(&mut self) {
        let now = Instant::now();
        if now < self.upkeep.next || self.failed.is_some() {
            if self.failed.is_some() {
                self.upkeep.next = now + TICK;
            }
            return;
        }
        self.upkeep.next = now + TICK;
        let (revision, compacted, bytes, pressure) = {
            let index = self.shared.index();
            let pressure = self.machine.pressure(&index);
            (index.revision(), index.compacted(), index.bytes(), pressure)
        };
        let target = self.upkeep.target(now, revision, pressure);
        if target > compacted {
            // A failure is remembered, and told to whoever writes next.
            let _ = self.compact(target);
        }
        let needed = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_mul(2);
        let length = self.journal.len();
        if length > needed.saturating_add(SLACK) && length > self.upkeep.retry_at {
            self.rewrite(None);
        }
    }

    /// Forgets history below a revision; the newest revision.
    pub(super) fn compact(&mut self, target: i64) -> Result<i64, Refusal> {
        let shared = Arc::clone(&self.shared);
        let (revision, compacted) = {
            let index = shared.index();
            (index.revision(), index.compacted())
        };
        if target <= compacted {
            return Err(Refusal::Compacted);
        }
        if target > revision {
            return Err(Refusal::FutureRevision);
        }
        self.commit(&[Entry::Compacted { compacted: target, revision }])?;
        shared.index_mut().compact(target);
        // Between two pieces readers get their turn.
        while !shared.index_mut().sweep(SWEEP) {}
        self.machine.relieve(&shared.index());
        self.commit_outbox(revision);
        Ok(revision)
    }

    /// Begins to write the journal anew, unless that is under way.
    pub(super) fn rewrite(&mut self, reply: Option<Reply>) {
        if let Some(failed) = &self.failed {
            if let Some(reply) = reply {
                let _ = reply.send(Err(failed.clone()));
            }
            return;
        }
        if let Some(rewrite) = &mut self.upkeep.rewrite {
            rewrite.waiting.extend(reply);
            return;
        }
        let from = self.journal.mark();
        let waiting = reply.into_iter().collect();
        self.upkeep.rewrite = Some(Rewrite { from, waiting, thread: None });
        let head = self.head();
        let folder = Arc::clone(&self.folder);
        let shared = Arc::clone(&self.shared);
        let inbox = self.upkeep.inbox.clone();
        let write = move || {
            let written = folder.create(NEW_NAME).and_then(|file| {
                let journal = Journal::create(file, head.identity, random())?;
                let journal = write_checkpoint(journal, &head, shared.lock())?;
                journal.sync()?;
                Ok(journal)
            });
            // The writer may have stopped.
            let _ = inbox.send(Message::Rewritten(Finished(written)));
        };
        let thread = thread::Builder::new().name("store-rewrite".to_owned()).spawn(write);
        match (thread, &mut self.upkeep.rewrite) {
            (Ok(thread), Some(rewrite)) => rewrite.thread = Some(thread),
            (Ok(_), None) => {}
            (Err(error), _) => self.rewritten(Finished(Err(error))),
        }
    }

    /// Puts the new journal in place of the old one.
    pub(super) fn rewritten(&mut self, Finished(written): Finished) {
        let Some(Rewrite { from, waiting, .. }) = self.upkeep.rewrite.take() else { return };
        let done = match &self.failed {
            Some(failed) => Err(failed.clone()),
            None => self.replace(written, from),
        };
        for reply in waiting {
            let _ = reply.send(done.clone());
        }
    }

    fn replace(&mut self, written: io::Result<Journal>, from: Mark) -> Result<i64, Refusal> {
        let complete = written.and_then(|mut journal| {
            let gone = || io::Error::other("the journal is gone");
            let old = self.folder.open(NAME)?.ok_or_else(gone)?;
            journal.copy_tail(&self.journal, old, from)?;
            journal.sync()?;
            Ok(journal)
        });
        let journal = complete.map_err(|error| {
            // The old journal is whole: nothing is lost but room.
            self.upkeep.retry_at = self.journal.len().saturating_add(SLACK);
            let _ = self.folder.remove(NEW_NAME);
            let why = format!("cannot write {NEW_NAME} in {}: {error}", self.dir.display());
            tracing::warn!("{why}");
            Refusal::Broken(why.as_str().into())
        })?;
        let renamed = self.folder.rename(NEW_NAME, NAME).and_then(|()| self.folder.sync());
        renamed.map_err(|error| self.fail(&error))?;
        self.journal = journal;
        self.upkeep.retry_at = 0;
        self.shared.set_disk_bytes(self.journal.len());
        Ok(self.shared.published())
    }
}
