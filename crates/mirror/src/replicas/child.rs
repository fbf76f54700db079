//! One child: its attachment, the notes it has, and what it has proved.
//!
//! What a child is worth is `model::ChildState`; the edges are drawn there. Only [`Replicas`]
//! changes it, because the sets that it keeps follow from it.
//!
//! [`Replicas`]: super::Replicas

use alloc::boxed::Box;
use core::time::Duration;

use block::{ErrorClass, Instant, IoError};
use model::{ChildState, FaultReason, ReplicaId, SyncMetadata, SyncStamp};

use crate::api::{ReplicaInfo, Session};
use crate::context::Pending;

/// A child.
#[derive(Debug)]
pub(crate) struct Child {
    pub(super) replica: ReplicaId,
    pub(super) local: bool,
    pub(super) state: ChildState,
    pub(super) attachment: Attachment,
    notes: Notes,
    proof: Proof,
    /// How long its reads take, roughly.
    latency: Duration,
    /// The number of its last loss of writes that no flush covered; zero if that was made good.
    pub(super) loss: u64,
    /// Somebody does not want it rebuilt.
    unwanted: bool,
}

/// The way to a child.
#[derive(Debug, Default)]
pub(super) struct Attachment {
    /// Wanted or made.
    pub(super) session: Option<Session>,
    is_made: bool,
    pub(super) retry_at: Option<Instant>,
    backoff: Duration,
    incarnation: Option<u64>,
    /// When this one was asked for.
    asked: Option<Instant>,
    /// When this target was first attached.
    fenced: Option<Instant>,
}

/// What is known of the notes kept with a child.
#[derive(Debug, Default)]
struct Notes {
    /// The version that it has; none since it takes writes: zero.
    kept: u64,
    /// The version that is under way.
    keeping: Option<u64>,
    /// The newest note that it is known to have.
    had: Option<SyncStamp>,
    /// What was found with it, until the volume is opened.
    found: Option<Box<SyncMetadata>>,
}

/// What a child did that only the owner's commands can make it do (R1).
#[derive(Debug, Default)]
struct Proof {
    /// When the newest thing was asked that it has done.
    at: Option<Instant>,
    /// The number of that.
    request: u64,
    /// The request that is to prove something.
    awaited: Option<u64>,
}

impl Child {
    pub(super) fn new(replica: ReplicaId, local: bool, now: Instant) -> Child {
        Child {
            replica,
            local,
            state: ChildState::Faulted { reason: FaultReason::CannotOpen },
            attachment: Attachment { retry_at: Some(now), ..Attachment::default() },
            notes: Notes::default(),
            proof: Proof::default(),
            latency: Duration::ZERO,
            loss: 0,
            unwanted: false,
        }
    }

    pub(crate) fn replica(&self) -> ReplicaId {
        self.replica
    }

    pub(crate) fn state(&self) -> ChildState {
        self.state
    }

    /// Its attachment, if it is made.
    pub(crate) fn session(&self) -> Option<Session> {
        self.attachment.session.filter(|_| self.attachment.is_made)
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attachment.is_made
    }

    pub(crate) fn is_current(&self, session: Session) -> bool {
        self.session() == Some(session)
    }

    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// When an attachment is to be tried.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.attachment.retry_at
    }

    /// When this target was first attached: no former owner was answered there since.
    pub(crate) fn fenced(&self) -> Option<Instant> {
        self.attachment.fenced
    }

    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.attachment.incarnation
    }

    pub(crate) fn loss(&self) -> u64 {
        self.loss
    }

    /// Whether a rebuild may begin as far as it is concerned.
    pub(crate) fn may_be_rebuilt(&self) -> bool {
        !self.unwanted && self.attachment.is_made
    }

    /// Whether somebody wants it rebuilt.
    pub(crate) fn set_wanted(&mut self, wanted: bool) {
        self.unwanted = !wanted;
    }

    /// Whatever else becomes of it: no former owner is answered there any more.
    pub(crate) fn note_fenced(&mut self, now: Instant) {
        self.attachment.fenced.get_or_insert(now);
    }

    /// Asks for an attachment, if it is time.
    pub(super) fn attach(&mut self, session: Session, now: Instant) {
        let attachment = &mut self.attachment;
        (attachment.session, attachment.is_made, attachment.retry_at) =
            (Some(session), false, None);
        attachment.asked = Some(now);
    }

    /// Whether an attachment is to be asked for.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.attachment.retry_at.is_some_and(|at| at <= now)
            && self.attachment.session.is_none()
            && self.state != ChildState::Offline
    }

    /// The attachment is made; until the volume is opened, the note that was found waits.
    pub(super) fn attached(&mut self, found: ReplicaInfo, is_open: bool) {
        let attachment = &mut self.attachment;
        (attachment.is_made, attachment.backoff) = (true, Duration::ZERO);
        attachment.incarnation = Some(found.incarnation);
        (self.proof.at, self.proof.awaited) = (attachment.asked, None);
        self.notes.had = found.note.as_ref().map(SyncMetadata::stamp);
        self.notes.found = found.note.filter(|_| !is_open).map(Box::new);
    }

    /// Lets go of the attachment, wanted or made.
    pub(super) fn release(&mut self) -> Option<Session> {
        self.attachment.is_made = false;
        self.attachment.session.take()
    }

    /// What is known only of an attachment goes with it.
    pub(super) fn give_up(&mut self) {
        (self.notes.found, self.proof.at, self.proof.awaited) = (None, None, None);
    }

    pub(super) fn back_off(&mut self, now: Instant, first: Duration, most: Duration) {
        let attachment = &mut self.attachment;
        attachment.backoff = (attachment.backoff * 2).clamp(first, most);
        attachment.retry_at = Some(now.after(attachment.backoff));
    }

    /// A read took so long; the newest eighth counts.
    pub(crate) fn took(&mut self, time: Duration) {
        self.latency = match self.latency {
            Duration::ZERO => time,
            old => old.saturating_sub(old / 8) + time / 8,
        };
    }

    #[cfg(test)]
    pub(super) fn place(&mut self, latency: Duration, local: bool) {
        (self.latency, self.local) = (latency, local);
    }

    pub(super) fn latency(&self) -> Duration {
        self.latency
    }

    /// The version of the note that it has, since it takes writes.
    pub(crate) fn kept(&self) -> u64 {
        self.notes.kept
    }

    /// Whether it is to get this version now: one note is under way at most.
    pub(crate) fn lacks_note(&self, version: u64) -> bool {
        self.notes.keeping.is_none() && self.notes.kept < version
    }

    pub(crate) fn sending_note(&mut self, version: u64) {
        self.notes.keeping = Some(version);
    }

    /// Whether a note is under way that now has ended.
    pub(crate) fn take_sent_note(&mut self, version: u64) -> bool {
        self.notes.keeping.take_if(|keeping| *keeping == version).is_some()
    }

    pub(crate) fn has_note(&mut self, version: u64, stamp: SyncStamp) {
        (self.notes.kept, self.notes.had) = (version, Some(stamp));
    }

    /// It takes no more writes: what it has is not the newest any more.
    pub(super) fn forget_kept_note(&mut self) {
        (self.notes.kept, self.notes.keeping) = (0, None);
    }

    /// The newest note that it is known to have.
    pub(crate) fn newest_note(&self) -> Option<SyncStamp> {
        self.notes.had
    }

    /// What was found with it, until the volume is opened.
    pub(crate) fn found_note(&self) -> Option<&SyncMetadata> {
        self.notes.found.as_deref()
    }

    pub(crate) fn take_found_note(&mut self) -> Option<Box<SyncMetadata>> {
        self.notes.found.take()
    }

    /// It has done what was asked under this number.
    pub(crate) fn note_proof(&mut self, pending: &Pending, request: u64) {
        if self.is_current(pending.session) {
            self.proof.at = self.proof.at.max(Some(pending.sent));
            self.proof.request = self.proof.request.max(request);
        }
    }

    /// Whether what it did last was asked less than this time ago.
    pub(crate) fn has_proved_within(&self, time: Duration, now: Instant) -> bool {
        let proved = self.proof.at.filter(|_| self.attachment.is_made);
        proved.is_some_and(|at| at.after(time) > now)
    }

    /// Whether it did something that was asked after this request, by this attachment or another.
    pub(crate) fn has_proved_since(&self, request: u64) -> bool {
        self.proof.request > request
    }

    /// Whether a proof is under way that was asked for after this request.
    pub(crate) fn is_proving_since(&self, request: u64) -> bool {
        self.proof.awaited.is_some_and(|awaited| awaited > request)
    }

    pub(crate) fn await_proof(&mut self, request: u64) {
        self.proof.awaited = Some(request);
    }

    pub(crate) fn proof_ended(&mut self, request: u64) {
        self.proof.awaited = self.proof.awaited.filter(|awaited| *awaited != request);
    }
}

/// How a child failed, by the fault of one of its I/Os.
pub(crate) fn reason(fault: IoError) -> FaultReason {
    match fault {
        IoError::TimedOut | IoError::Busy => FaultReason::TimedOut,
        fault => match fault.class() {
            ErrorClass::Path => FaultReason::ConnectionLost,
            ErrorClass::Capacity => FaultReason::NoSpace,
            _ => FaultReason::IoError,
        },
    }
}
