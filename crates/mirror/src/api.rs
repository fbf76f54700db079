//! The words between a mirror and its owner.

use alloc::boxed::Box;
use alloc::vec::Vec;

use block::{Blocks, Command, Completion, IoError, Lba, Span};
use model::{
    ChildState, Epoch, FaultReason, LabelConflict, Problem, QosLimits, Rebuild, ReplicaId, Size,
    SnapshotId, SyncMetadata, TargetRecord, TargetState, Timestamp,
};

use crate::config::MirrorConfig;
use crate::rebuilder::Checked;

/// The owner's name for a host command or an order; free again once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// The mirror's name for something it asked for; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One attempt to take a snapshot of the volume: no other of any target has the same number. What
/// copies took in one attempt is of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// Number of one attachment of one child; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// Whose bytes an I/O moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// Those of a host's command.
    Host(CommandId),
    /// A buffer of the owner for copies, of [`MirrorConfig::chunk`] blocks: numbers are below
    /// [`MirrorConfig::copies`]. An I/O uses it from the start.
    Copy(u32),
    /// None.
    None,
}

/// What a mirror is opened with.
#[derive(Clone, Debug)]
pub struct OpenParams {
    /// The volume's record as this target stored it when it took its epoch.
    pub record: TargetRecord,
    /// Size of the volume.
    pub size: Blocks,
    /// The replicas there is a way to, and whether it is a local one.
    pub children: Vec<(ReplicaId, bool)>,
    /// What hosts may ask at most.
    pub limits: QosLimits,
    /// How patient and how large to be.
    pub config: MirrorConfig,
    /// The time of day, for histories.
    pub wall: Timestamp,
}

/// What an attached replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Its size; not smaller than the volume.
    pub size: Blocks,
    /// Another number means that writes which no flush covered may be lost.
    pub incarnation: u64,
    /// What was kept with it; a new replica has nothing.
    pub note: Option<SyncMetadata>,
}

/// Why a replica could not be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachFault {
    /// A newer epoch owns it.
    Fenced,
    /// Anything else.
    Failed(FaultReason),
}

/// Why a record was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// Somebody else owns the volume.
    Fenced,
    /// The store did not answer, or not in time: the record may be stored or not.
    Away,
    /// It holds an ownership that was over before ours began: it went back.
    Behind {
        /// Its epoch.
        epoch: Epoch,
    },
}

/// How something asked for went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The snapshot was there before it was asked for; by which attempt, unless no target took it.
    WasThere(Option<Attempt>),
    /// The blocks of the span that hold something, in order.
    Written(Vec<Span>),
    /// The size of the replica.
    Size(Blocks),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An attachment was made or failed.
    Attached {
        /// Which.
        session: Session,
        /// How.
        result: Result<Box<ReplicaInfo>, AttachFault>,
    },
    /// An attachment was lost without being asked for; its I/Os still end one by one.
    Lost {
        /// Which.
        session: Session,
        /// Why.
        why: AttachFault,
    },
    /// Something asked of a replica has ended. Each ends exactly once, soon after a
    /// [`Effect::Detach`] at the latest.
    Ended {
        /// Which.
        io: RequestId,
        /// How.
        result: Result<Answer, IoError>,
    },
    /// The store has answered.
    Recorded {
        /// Which.
        io: RequestId,
        /// How.
        result: Result<(), StoreFault>,
    },
}

/// What is to be done with a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebuildCommand {
    /// Begin, after it was cancelled or failed.
    Start,
    /// Wait; the child gets new writes meanwhile.
    Pause,
    /// Go on.
    Resume,
    /// End; the child stays stale.
    Cancel,
}

/// What is wanted of a mirror. Asking again for what is so already is answered well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorRequest {
    /// One more replica; it is rebuilt.
    AddChild {
        /// Which.
        replica: ReplicaId,
        /// Whether it is in a pool of the same engine.
        local: bool,
    },
    /// One replica fewer.
    RemoveChild(ReplicaId),
    /// Leave a replica alone until told otherwise.
    Offline(ReplicaId),
    /// Use a replica again.
    Online(ReplicaId),
    /// Something about the rebuild of a replica.
    Rebuild(ReplicaId, RebuildCommand),
    /// The volume has this size now; its replicas were grown before.
    Resize(Blocks),
    /// A snapshot on every copy in sync, of one moment, on all or none.
    Snapshot(SnapshotId, Attempt),
    /// Read a span on every copy in sync, and mend what is damaged; at most 4096 blocks. What was
    /// found is told before the answer ([`Effect::Checked`]).
    Check {
        /// Where.
        span: Span,
        /// Where good copies differ, this one is right and the others get its bytes. Without, they
        /// are told and left alone.
        believed: Option<ReplicaId>,
        /// What becomes of blocks that no copy can give.
        unreadable: UnreadableBlocks,
    },
    /// What hosts may ask at most.
    Limit(QosLimits),
    /// What rebuilds together may copy in a second; nothing: as fast as hosts let them.
    RebuildLimit(Option<Size>),
    /// Finish what was begun, record a clean end, and be down.
    Stop,
}

/// What becomes of blocks that no copy can give, when a check finds some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnreadableBlocks {
    /// They are told, and stay as they are.
    #[default]
    Tell,
    /// They are lost: they become zeroes on every copy.
    Zero,
    /// This copy keeps what its disk holds there, whatever its checksum says, and the others get
    /// that.
    Keep(ReplicaId),
}

/// What is to be done next, in this order unless said otherwise. I/Os of one child may run at once
/// and in any order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Connect a replica, make it remember this epoch durably and refuse lower ones, register with
    /// the epoch as the key and preempt-and-abort every other registrant. When it is answered well,
    /// nothing sent by an older epoch or session can take effect any more.
    Attach {
        /// Which replica.
        child: ReplicaId,
        /// Name of the attachment.
        session: Session,
        /// Epoch of this target.
        epoch: Epoch,
    },
    /// Close an attachment: its I/Os end now, one way or another.
    Detach {
        /// Which replica.
        child: ReplicaId,
        /// Which attachment.
        session: Session,
    },
    /// Carry out a block command on a child.
    Io {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// What.
        command: Command,
        /// With which bytes.
        buffer: Buffer,
    },
    /// Say which blocks of a span hold something; if that cannot be known, all of them.
    Written {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// Where.
        span: Span,
    },
    /// Have a replica believe what it holds: every copy was asked, and none can prove these blocks.
    /// Answered when it is durable. Blocks that are proven stay so, and those whose checksum is
    /// wrong too, unless an operator keeps what the disk holds there.
    Accept {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// Where.
        span: Span,
        /// Also where the checksum is wrong.
        is_damaged: bool,
    },
    /// Write a good block over one that a replica has damaged, where that is: in a layer that
    /// snapshots share, if it is there. Answered when it is durable. Whatever interrupts it, the
    /// block is as good as this or known to be bad.
    Repair {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// Which block.
        at: Lba,
        /// With which bytes.
        buffer: Buffer,
    },
    /// Keep a note with a replica, durably and as a whole, instead of the one it has.
    Keep {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// The note.
        note: Box<SyncMetadata>,
    },
    /// Take a snapshot of a replica, durably and with the attempt, unless it has one of this id;
    /// which of both is answered.
    Snapshot {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// Its id.
        snapshot: SnapshotId,
        /// To be remembered with it.
        attempt: Attempt,
    },
    /// Drop a snapshot of a replica again; one that is not there is dropped.
    DropSnapshot {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
        /// Its id.
        snapshot: SnapshotId,
    },
    /// Say how large a replica is now.
    Measure {
        /// Name for the answer.
        io: RequestId,
        /// Which replica.
        child: ReplicaId,
        /// By which attachment.
        session: Session,
    },
    /// Store a record by compare-and-swap. It is well if the store now holds exactly this; somebody
    /// else owns the volume if it holds another epoch or a later generation.
    Record {
        /// Name for the answer.
        io: RequestId,
        /// The record.
        record: Box<TargetRecord>,
    },
    /// A host's command has ended; its buffer is the owner's again.
    Done {
        /// Which one.
        token: CommandId,
        /// How.
        result: Completion,
    },
    /// An order has ended.
    Answer {
        /// Which one.
        token: CommandId,
        /// How.
        result: Result<(), Problem>,
    },
    /// The target serves otherwise than before.
    TargetChanged(TargetState),
    /// A child is worth something else than before.
    ChildChanged(ReplicaId, ChildState),
    /// A rebuild began, waits, goes on or ended; an ended one belongs into a history.
    RebuildChanged(Box<Rebuild>),
    /// Blocks that one copy had wrong were rewritten from another.
    Repaired(ReplicaId, Span),
    /// No copy could prove what was being written there when they crashed: this one is believed.
    Accepted(ReplicaId, Span),
    /// No copy could give these blocks: what this one holds there is kept, as an operator said.
    Kept(ReplicaId, Span),
    /// No copy in sync can read these blocks.
    Unreadable(Span),
    /// These copies are good there and hold different bytes.
    Differing(Span, Vec<ReplicaId>),
    /// What an [`MirrorRequest::Check`] found; its answer follows.
    Checked {
        /// Which order.
        token: CommandId,
        /// What.
        found: Box<Checked>,
    },
    /// What is kept with a copy contradicts the store, or what others know of it.
    Conflict(LabelConflict),
}
