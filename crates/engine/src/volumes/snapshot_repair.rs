//! Repairs of snapshots: blocks that a scrub found damaged in a snapshot of one copy are rewritten
//! from the snapshot of another.
//!
//! ```text
//!   waiting ──► another copy that is up: has it the same snapshot? ──no──► the next one
//!                          │ same id, attempt and time             ▲        │ none is left
//!                          ▼                                       │        ▼
//!               read the block there ──────── it is bad there ─────┘   left as it is
//!                          │
//!                          ▼
//!               Repair it on the copy that has it damaged
//! ```
//!
//! A snapshot does not change, so nothing is locked meanwhile, and copies that are out of sync can
//! be read as well. Copies of one snapshot id are of the same moment only if they were taken in one
//! attempt ([`SnapshotMoment`]); others are not read. The scrub reports what cannot be repaired.

use std::collections::VecDeque;
use std::time::Duration;

use block::{Instant, IoError, Lba, Span};
use mirror::Session;
use model::ReplicaId;
use nvme::initiator::Message;

use super::replica_protocol::{BLOCK, ReplicaMessage, SnapshotMoment, taken_of};

/// Most blocks that wait; others are found by the next scrub.
const MOST_WAITING: usize = 4096;
/// How long a step may take before it is taken for lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// A block of a snapshot that a copy has damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DamagedBlock {
    replica: ReplicaId,
    snapshot: SnapshotMoment,
    at: Lba,
}

/// The number of a step that was sent: its answer carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StepNumber(pub(super) u64);

/// What is done next about a block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Ask a copy whether it has the same snapshot.
    Compare,
    /// Read the block there.
    Read,
    /// Write it where it is damaged.
    Write(Vec<u8>),
}

/// The repair of a block.
#[derive(Debug)]
struct Repair {
    block: DamagedBlock,
    step: Step,
    /// Copies that were not asked yet, the one that is being asked first.
    sources: VecDeque<Session>,
    /// The number of the step that was sent, to whom, and when.
    sent: Option<(StepNumber, Session, Instant)>,
}

/// Repairs of the snapshots of a volume, one block at a time.
#[derive(Debug, Default)]
pub(super) struct SnapshotRepairs {
    waiting: VecDeque<DamagedBlock>,
    current: Option<Repair>,
    /// The number of the last step that was sent.
    steps: StepNumber,
    /// There was no room to send a step: it waits for the next tick.
    is_held: bool,
}

impl SnapshotRepairs {
    /// A scrub of a replica found these blocks of its snapshots damaged.
    pub(super) fn found(&mut self, replica: ReplicaId, places: Vec<(SnapshotMoment, Span)>) {
        let room = MOST_WAITING.saturating_sub(self.waiting.len());
        // One that no target took may be of another moment on each copy, whatever its label says.
        let places = places.into_iter().filter(|(snapshot, _)| snapshot.is_of_one_moment());
        let blocks = places.flat_map(|(snapshot, span)| {
            let lbas = (span.start().0..span.end().0).map(Lba);
            lbas.map(move |at| DamagedBlock { replica, snapshot, at })
        });
        self.waiting.extend(blocks.take(room));
    }

    /// What to send next, and to whom; nothing while an answer is awaited. `up` are the copies that
    /// can be asked.
    pub(super) fn next(
        &mut self,
        up: &[(Session, ReplicaId)],
        now: Instant,
    ) -> Option<(Session, StepNumber, Message)> {
        loop {
            if self.current.is_none() {
                let block = self.waiting.pop_front()?;
                let others = up.iter().filter(|(_, replica)| *replica != block.replica);
                let sources = others.map(|(session, _)| *session).collect();
                self.current = Some(Repair { block, step: Step::Compare, sources, sent: None });
            }
            let repair = self.current.as_mut()?;
            if let Some((_, session, since)) = repair.sent {
                let is_there = up.iter().any(|(there, _)| *there == session);
                if is_there && now.since(since) < PATIENCE {
                    return None;
                }
                repair.next_source();
                continue;
            }
            let Some((session, message)) = repair.message(up) else {
                self.current = None;
                continue;
            };
            self.steps.0 += 1;
            repair.sent = Some((self.steps, session, now));
            return Some((session, self.steps, message));
        }
    }

    /// Whether a step can be sent now.
    pub(super) fn can_step(&self) -> bool {
        let is_ready = self.current.as_ref().map(|repair| repair.sent.is_none());
        !self.is_held && is_ready.unwrap_or(!self.waiting.is_empty())
    }

    /// Time has passed.
    pub(super) fn tick(&mut self) {
        self.is_held = false;
    }

    /// The last message could not be sent: it is sent later.
    pub(super) fn not_sent(&mut self) {
        self.is_held = true;
        if let Some(repair) = &mut self.current {
            repair.sent = None;
        }
    }

    /// A step has ended; which block of a snapshot is repaired now, if one is.
    pub(super) fn ended(
        &mut self,
        step: StepNumber,
        result: Result<Vec<u8>, IoError>,
    ) -> Option<(ReplicaId, Span)> {
        let repair = self.current.as_mut()?;
        // An answer to a step that was given up may be the bytes of another block.
        repair.sent.take_if(|(sent, ..)| *sent == step)?;
        match (&repair.step, result) {
            (Step::Compare, Ok(bytes)) if taken_of(&bytes) == [repair.block.snapshot] => {
                repair.step = Step::Read;
            }
            (Step::Read, Ok(bytes)) if bytes.len() == BLOCK => repair.step = Step::Write(bytes),
            (Step::Write(_), result) => {
                let block = repair.block;
                self.current = None;
                return result.ok().and(Span::one(block.at)).map(|span| (block.replica, span));
            }
            _ => repair.next_source(),
        }
        None
    }
}

impl Repair {
    /// The copy that was asked cannot help.
    fn next_source(&mut self) {
        self.sent = None;
        if matches!(self.step, Step::Write(_)) {
            // The damaged copy is away, or was slow: the next scrub finds the block again.
            self.sources.clear();
        } else {
            self.sources.pop_front();
        }
        self.step = Step::Compare;
    }

    fn message(&self, up: &[(Session, ReplicaId)]) -> Option<(Session, Message)> {
        let (of, at) = (self.block.snapshot.tail(), self.block.at);
        match &self.step {
            Step::Compare => Some((*self.sources.front()?, ReplicaMessage::Taken.ask(of))),
            Step::Read => {
                Some((*self.sources.front()?, ReplicaMessage::ReadSnapshot.ask_of(of, at)))
            }
            Step::Write(bytes) => {
                let damaged = up.iter().find(|(_, replica)| *replica == self.block.replica);
                let message = ReplicaMessage::RepairSnapshot.tell_of(of, at, bytes);
                damaged.map(|(session, _)| (*session, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::replica_protocol::encode_taken;
    use block::Blocks;

    fn replica(number: u8) -> ReplicaId {
        format!("5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a{number:02x}").parse().unwrap()
    }

    fn at(seconds: u64) -> Instant {
        Instant::since_start(Duration::from_secs(seconds))
    }

    const MOMENT: SnapshotMoment = SnapshotMoment { id: 0xabc, attempt: 7, created: 9 };
    const UP: [u64; 3] = [11, 12, 13];

    fn up() -> Vec<(Session, ReplicaId)> {
        (1..=3).zip(UP).map(|(number, session)| (Session(session), replica(number))).collect()
    }

    /// One block of a snapshot of the first copy is damaged.
    fn damaged() -> SnapshotRepairs {
        let mut repairs = SnapshotRepairs::default();
        let span = Span::new(Lba(5), Blocks(1)).unwrap();
        repairs.found(replica(1), vec![(MOMENT, span)]);
        repairs
    }

    fn same() -> Vec<u8> {
        encode_taken([MOMENT].into_iter())
    }

    #[test]
    fn a_block_of_a_snapshot_is_repaired_from_a_copy_of_the_same_moment() {
        let mut repairs = damaged();
        let asked = (Session(12), StepNumber(1), ReplicaMessage::Taken.ask(MOMENT.tail()));
        assert_eq!(repairs.next(&up(), at(0)), Some(asked));
        assert_eq!(repairs.next(&up(), at(1)), None, "an answer is awaited");
        assert_eq!(repairs.ended(StepNumber(1), Ok(same())), None);
        let read = ReplicaMessage::ReadSnapshot.ask_of(MOMENT.tail(), Lba(5));
        assert_eq!(repairs.next(&up(), at(1)), Some((Session(12), StepNumber(2), read)));
        repairs.ended(StepNumber(2), Ok(vec![3; 4096]));
        let write = ReplicaMessage::RepairSnapshot.tell_of(MOMENT.tail(), Lba(5), &[3; 4096]);
        assert_eq!(repairs.next(&up(), at(1)), Some((Session(11), StepNumber(3), write)));
        let repaired = repairs.ended(StepNumber(3), Ok(Vec::new()));
        assert_eq!(repaired, Some((replica(1), Span::one(Lba(5)).unwrap())));
        assert_eq!(repairs.next(&up(), at(1)), None);
    }

    #[test]
    fn a_snapshot_that_no_target_took_is_left_alone() {
        let mut repairs = SnapshotRepairs::default();
        let untaken = SnapshotMoment { attempt: 0, ..MOMENT };
        repairs.found(replica(1), vec![(untaken, Span::one(Lba(5)).unwrap())]);
        assert_eq!(repairs.next(&up(), at(0)), None);
    }

    #[test]
    fn a_snapshot_of_another_moment_or_that_is_bad_too_is_not_copied() {
        let mut repairs = damaged();
        let (_, step, _) = repairs.next(&up(), at(0)).unwrap();
        let other = SnapshotMoment { attempt: 8, ..MOMENT };
        repairs.ended(step, Ok(encode_taken([other].into_iter())));
        let (source, step, message) = repairs.next(&up(), at(0)).unwrap();
        assert_eq!((source, message), (Session(13), ReplicaMessage::Taken.ask(MOMENT.tail())));
        repairs.ended(step, Ok(same()));
        let (_, step, _) = repairs.next(&up(), at(0)).unwrap();
        let span = Span::one(Lba(5)).unwrap();
        repairs.ended(step, Err(IoError::Checksum { span }));
        assert_eq!(repairs.next(&up(), at(0)), None, "nobody can give it");
    }

    #[test]
    fn a_copy_that_goes_away_or_is_silent_is_not_waited_for() {
        let mut repairs = damaged();
        let (_, given_up, _) = repairs.next(&up(), at(0)).unwrap();
        let gone: Vec<_> =
            up().into_iter().filter(|(session, _)| *session != Session(12)).collect();
        assert_eq!(repairs.next(&gone, at(0)).unwrap().0, Session(13));
        assert_eq!(repairs.ended(given_up, Ok(same())), None, "it was given up");
        assert_eq!(repairs.next(&gone, at(20)), None, "the last one is silent");
        assert!(repairs.current.is_none());
    }

    /// One copy answers the question for a block when it was given up, and another block is read
    /// there.
    #[test]
    fn a_late_answer_of_a_copy_is_not_taken_for_that_to_a_later_step() {
        let mut repairs = damaged();
        repairs.found(replica(1), vec![(MOMENT, Span::one(Lba(6)).unwrap())]);
        let pair: Vec<_> = up().into_iter().take(2).collect();
        let (source, compare, _) = repairs.next(&pair, at(0)).unwrap();
        repairs.ended(compare, Ok(same()));
        let (_, late, _) = repairs.next(&pair, at(0)).unwrap();
        let (_, compare, _) = repairs.next(&pair, at(20)).unwrap();
        repairs.ended(compare, Ok(same()));
        let (again, read, _) = repairs.next(&pair, at(20)).unwrap();
        assert_eq!(source, again, "the same copy is asked for the other block");
        assert_eq!(repairs.ended(late, Ok(vec![5; 4096])), None);
        assert_eq!(repairs.next(&pair, at(20)), None, "its own answer is awaited");
        repairs.ended(read, Ok(vec![6; 4096]));
        let write = ReplicaMessage::RepairSnapshot.tell_of(MOMENT.tail(), Lba(6), &[6; 4096]);
        let (damaged, _, message) = repairs.next(&pair, at(20)).unwrap();
        assert_eq!((damaged, message), (Session(11), write));
    }
}
