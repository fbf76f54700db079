//! The writer: one thread that owns the journal and does everything that changes the store.
//!
//! Group commit: it takes all requests that wait, applies them in memory, writes them as one frame,
//! syncs once, publishes, and only then answers them all. A batch that cannot be written is
//! answered with an error, is never published, and nothing is written after it: what the disk
//! holds of it is not known, so only a restart, which reads the disk, can go on.
//!
//! Deliberately not here: what a request does (machine), reads (they need no writer).

mod compaction;

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, oneshot};

use crate::proto::etcdserverpb::LeaseKeepAliveResponse;

use super::{
    disk::Head, entry::Entry, index::Index, journal::Journal, leases::Millis, machine::Machine,
    server_state::ServerState, status::Refusal, storage::Directory,
};
use compaction::{CompactionSchedule, Finished};

/// Most requests that wait.
const QUEUE: usize = 8192;
/// Most KiB of all requests that wait.
const QUEUE_KIB: usize = 128 << 10;
/// Most requests of one batch.
const BATCH: usize = 1024;
/// About the most bytes that one batch adds.
const BATCH_BYTES: usize = 8 << 20;

/// Runs on the state, or without it when nothing can be written any more.
type Job = Box<dyn FnOnce(Option<State<'_>>) -> Answer + Send>;
type State<'a> = (&'a mut Machine, &'a mut Index, Millis);
/// Sends the answer, or in its place why the batch failed.
type Answer = Box<dyn FnOnce(Option<Refusal>) + Send>;
type Reply = oneshot::Sender<Result<i64, Refusal>>;

enum Message {
    Job(Job),
    Compact(i64, Reply),
    Head(oneshot::Sender<Result<Head, Refusal>>),
    Rewrite(Reply),
    Rewritten(Finished),
    Stop,
}

/// Sends requests to the writer.
#[derive(Clone)]
pub(crate) struct Handle {
    inbox: SyncSender<Message>,
    room: Arc<Semaphore>,
    renewals: Renewals,
}

/// Leases whose renewal waits in the queue, and when it arrived: each stream waits for one.
type Renewals = Arc<Mutex<BTreeMap<i64, Instant>>>;

impl Handle {
    /// Renews a lease, as of now even if the queue is long.
    pub(crate) async fn renew(
        &self,
        bytes: usize,
        id: i64,
    ) -> Result<LeaseKeepAliveResponse, Refusal> {
        let arrived = Instant::now();
        self.renewals.lock().unwrap_or_else(PoisonError::into_inner).insert(id, arrived);
        self.call(bytes, move |machine, index, now| Ok(machine.lease_renew(index, id, now))).await
    }

    /// Runs a job on the writer; the answer comes when all it did is on disk. `bytes` is the size
    /// of the request.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        bytes: usize,
        job: impl FnOnce(&mut Machine, &mut Index, Millis) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let kib = u32::try_from(bytes.div_ceil(1024)).map_err(|_| Refusal::TooLarge)?;
        let Ok(_room) = self.room.try_acquire_many(kib) else {
            return Err(Refusal::TooManyRequests);
        };
        let (reply, answer) = oneshot::channel();
        self.send(Message::Job(Box::new(move |state| {
            let done = match state {
                Some((machine, index, now)) => job(machine, index, now),
                None => Err(Refusal::Stopped),
            };
            Box::new(move |failure| {
                // Whoever asked may have gone.
                let _ = reply.send(failure.map_or(done, Err));
            })
        })))?;
        answer.await.unwrap_or(Err(Refusal::Stopped))
    }

    /// Forgets history below a revision; the newest revision.
    pub(crate) async fn compact(&self, revision: i64) -> Result<i64, Refusal> {
        self.ask(|reply| Message::Compact(revision, reply)).await
    }

    /// Writes the journal anew; the newest revision.
    pub(crate) async fn rewrite(&self) -> Result<i64, Refusal> {
        self.ask(Message::Rewrite).await
    }

    /// The state between two batches, for a copy of the store.
    pub(crate) async fn head(&self) -> Result<Head, Refusal> {
        self.ask(Message::Head).await
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Message,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.send(message(reply))?;
        answer.await.unwrap_or(Err(Refusal::Stopped))
    }

    /// Tells the writer to write the end of the journal and stop.
    pub(crate) fn stop(&self) {
        // Full or gone: a full queue is emptied, and then it stops for lack of senders.
        let _ = self.inbox.send(Message::Stop);
    }

    fn send(&self, message: Message) -> Result<(), Refusal> {
        self.inbox.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::TooManyRequests,
            TrySendError::Disconnected(_) => Refusal::Stopped,
        })
    }
}

/// What the writer owns.
pub(crate) struct Writer {
    shared: Arc<ServerState>,
    machine: Machine,
    journal: Journal,
    folder: Arc<dyn Directory>,
    dir: PathBuf,
    upkeep: CompactionSchedule,
    started: Instant,
    inbox: Receiver<Message>,
    renewals: Renewals,
    failed: Option<Refusal>,
}

/// What the writer is made of.
pub(crate) struct Parts {
    /// The index, shared with readers.
    pub(crate) shared: Arc<ServerState>,
    /// The state machine.
    pub(crate) machine: Machine,
    /// Where to write.
    pub(crate) journal: Journal,
    /// Where the journal is.
    pub(crate) folder: Arc<dyn Directory>,
    /// The same, for messages.
    pub(crate) dir: PathBuf,
    /// How much history is kept.
    pub(crate) retention: super::config::Retention,
}

impl Writer {
    /// Starts the writer's thread.
    pub(crate) fn start(parts: Parts) -> io::Result<(Handle, thread::JoinHandle<()>)> {
        let (sender, inbox) = sync_channel(QUEUE);
        let renewals = Renewals::default();
        let room = Arc::new(Semaphore::new(QUEUE_KIB));
        let handle = Handle { inbox: sender, room, renewals: Arc::clone(&renewals) };
        let upkeep = CompactionSchedule::new(parts.retention, handle.inbox.clone());
        let writer = Self {
            shared: parts.shared,
            machine: parts.machine,
            journal: parts.journal,
            folder: parts.folder,
            dir: parts.dir,
            upkeep,
            started: Instant::now(),
            inbox,
            renewals,
            failed: None,
        };
        let thread =
            thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run())?;
        Ok((handle, thread))
    }

    fn run(mut self) {
        loop {
            let message = match self.inbox.recv_timeout(self.pause()) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut next = match message {
                None => self.batch(None),
                Some(message) => Some(message),
            };
            while let Some(message) = next.take() {
                match message {
                    Message::Stop => return self.close(),
                    Message::Job(job) => next = self.batch(Some(job)),
                    other => self.handle(other),
                }
            }
            self.keep_up();
        }
        self.close();
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Compact(revision, reply) => {
                let done = self.compact(revision);
                let _ = reply.send(done);
            }
            Message::Head(reply) => {
                let _ = reply.send(self.failed.clone().map_or_else(|| Ok(self.head()), Err));
            }
            Message::Rewrite(reply) => self.rewrite(Some(reply)),
            Message::Rewritten(finished) => self.rewritten(finished),
            Message::Job(_) | Message::Stop => {}
        }
    }

    /// Applies all jobs that wait, the given one first, as one group; what else waits behind them.
    fn batch(&mut self, first: Option<Job>) -> Option<Message> {
        let mut answers = Vec::new();
        let mut next = first.map(Message::Job);
        let shared = Arc::clone(&self.shared);
        let now = self.now();
        if self.failed.is_none() {
            let mut index = shared.index_mut();
            let full = index.bytes().saturating_add(BATCH_BYTES);
            self.count_renewals();
            self.machine.expire(&mut index, now);
            while let Some(Message::Job(job)) = next {
                answers.push(job(Some((&mut self.machine, &mut index, now))));
                let more = answers.len() < BATCH && index.bytes() < full;
                next = if more { self.inbox.try_recv().ok() } else { None };
            }
            self.machine.relieve(&index);
            let revision = index.revision();
            drop(index);
            self.commit_outbox(revision);
        } else if let Some(Message::Job(job)) = next.take() {
            answers.push(job(None));
        }
        for answer in answers {
            answer(self.failed.clone());
        }
        next
    }

    /// A renewal that arrived in time counts, however long it waits for the disk.
    fn count_renewals(&mut self) {
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, arrived) in std::mem::take(&mut *renewals) {
            let at = arrived.saturating_duration_since(self.started).as_millis();
            self.machine.lease_arrived(id, Millis(u64::try_from(at).unwrap_or(u64::MAX)));
        }
    }

    /// Writes what the machine did, then lets readers see it.
    fn commit_outbox(&mut self, revision: i64) {
        let entries = self.machine.take_outbox();
        if self.commit(&entries).is_err() {
            return;
        }
        if entries.iter().any(|entry| matches!(entry, Entry::Setting(_))) {
            self.shared.publish_settings(self.machine.settings());
        }
        self.shared.publish(revision);
    }

    fn commit(&mut self, entries: &[Entry]) -> Result<(), Refusal> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if entries.is_empty() {
            return Ok(());
        }
        let written = self.journal.append(entries).and_then(|()| {
            let began = Instant::now();
            let synced = self.journal.sync();
            self.shared.sync_times().note(began.elapsed());
            synced
        });
        self.shared.set_disk_bytes(self.journal.len());
        written.map_err(|error| self.fail(&error))
    }

    fn fail(&mut self, error: &io::Error) -> Refusal {
        let why = format!(
            "the store cannot write to {}: {error}; nothing is written any more until the cause \
             is removed and the store is started again",
            self.dir.display()
        );
        tracing::error!("{why}");
        let refusal = Refusal::Broken(why.as_str().into());
        self.failed = Some(refusal.clone());
        self.shared.fail(why);
        refusal
    }

    fn close(mut self) {
        // A journal that ends with this entry has no torn end, so any damage is damage.
        let _ = self.commit(&[Entry::Closed]);
        let Self { inbox, upkeep, .. } = self;
        // Nobody listens any more, so the thread cannot hang; nothing may write after us.
        drop(inbox);
        if let Some(thread) = upkeep.into_thread() {
            let _ = thread.join();
        }
    }

    fn head(&self) -> Head {
        let index = self.shared.index();
        Head {
            identity: self.journal.identity(),
            revision: index.revision(),
            compacted: index.compacted(),
            leases: self.machine.leases().granted().collect(),
            settings: self.shared.settings(),
        }
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn pause(&self) -> Duration {
        let tick = self.upkeep.next_tick();
        match self.machine.leases().next_deadline() {
            Some(deadline) if self.failed.is_none() => {
                tick.min(Duration::from_millis(deadline.0.saturating_sub(self.now().0)))
            }
            _ => tick,
        }
    }
}
