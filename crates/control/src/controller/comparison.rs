//! Comparisons of the copies of a volume, and targets that are opened for them and for repairs.
//!
//! ```text
//!   due (planner) ──► a target, opened for it if nobody uses the volume ──► part after part
//!                                                                              │
//!      every copy in sync and answering? ── no ──► later, from here on ◄───────┤
//!                                                                              ▼
//!                                                       the end: recorded, told
//! ```
//!
//! A part is 16 MiB, and at most one is asked for in each plan: so a comparison takes no more than
//! 32 MiB/s, and the target lets hosts go first.

use std::time::Duration;

use api::node::{BlockRange, CheckReport, CheckRequest};
use model::envelope::Versioned;
use model::{
    EventName, NodeName, Problem, ProblemKind, ReplicaId, Severity, Subject, TargetId, TargetState,
    Timestamp, Volume, VolumeId,
};
use planner::{View, is_comparable};
use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::{Call, Controller, PendingRequest, RequestOutcome};

/// Blocks of one part.
const PART: u64 = 4096;
/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Parts between two records of how far a comparison is: 4 GiB.
const RECORD_EVERY: u64 = 256;
/// How long a target without hosts stays after it was last needed.
pub(crate) const ATTEND: Duration = Duration::from_mins(1);
/// How long to wait after a part could not be compared, and how often before it is left for the
/// next time.
const AGAIN: Duration = Duration::from_secs(10);
const MOST_FAILURES: u32 = 30;
/// Most places that an event names; all are counted.
const NAMED: usize = 16;

/// The comparison of a volume's copies that is under way, or the last one, so that the next is due
/// at its time, and one that was interrupted goes on, also after a restart of the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComparisonRecord {
    /// Which volume.
    pub volume: VolumeId,
    /// When the last one ended.
    pub at: Option<Timestamp>,
    /// Where the one under way goes on; 0: none is.
    pub next_block: u64,
    /// Blocks that did not have the content that was written, copy by copy.
    pub bad_blocks: u64,
    /// Those of them that were rewritten from another copy.
    pub repaired_blocks: u64,
    /// Blocks that no copy can give.
    pub unreadable_blocks: u64,
    /// Blocks that are intact on several copies and not equal.
    pub differing_blocks: u64,
}

impl Versioned for ComparisonRecord {
    const KIND: &'static str = "compared";
    const VERSION: u32 = 1;
}

impl ComparisonRecord {
    fn new(volume: VolumeId, at: Option<Timestamp>) -> ComparisonRecord {
        ComparisonRecord {
            volume,
            at,
            next_block: 0,
            bad_blocks: 0,
            repaired_blocks: 0,
            unreadable_blocks: 0,
            differing_blocks: 0,
        }
    }

    fn add(&mut self, report: &CheckReport) {
        let count = |ranges: &mut dyn Iterator<Item = &BlockRange>| -> u64 {
            ranges.map(|range| range.blocks).sum()
        };
        self.bad_blocks += report.bad_blocks;
        self.repaired_blocks += report.repaired_blocks;
        self.unreadable_blocks += count(&mut report.unreadable.iter());
        self.differing_blocks += count(&mut report.differing.iter().map(|one| &one.range));
    }

    fn severity(&self) -> Severity {
        match (self.bad_blocks, self.unreadable_blocks + self.differing_blocks) {
            (_, 1..) => Severity::Error,
            (1.., 0) => Severity::Warning,
            (0, 0) => Severity::Info,
        }
    }

    fn in_words(&self) -> String {
        format!(
            "its copies were compared: {} bad blocks, {} repaired, {} that no copy can give, {} \
             intact and different",
            self.bad_blocks, self.repaired_blocks, self.unreadable_blocks, self.differing_blocks
        )
    }
}

/// A comparison under way.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    record: ComparisonRecord,
    /// When the next part may be asked for, and how often that failed in a row.
    due: Timestamp,
    failures: u32,
}

impl Controller {
    /// Somebody will want a target of this volume: it gets one if it has none.
    pub(crate) fn decide_attend(
        &self,
        asked: &PendingRequest,
        id: VolumeId,
    ) -> Result<Batch, Problem> {
        self.known_volume(id, asked)?;
        Ok(Batch::new().reply(asked.ticket, RequestOutcome::Changed).attend(id))
    }

    /// The target of the volume stays for a while although nobody uses it, and one is opened if it
    /// has none.
    pub(crate) fn attend(&mut self, volume: VolumeId) {
        let until = self.now.after(ATTEND);
        let had = self.state.facts.attended.insert(volume, until);
        if had.is_none_or(|until| until <= self.now) {
            self.enqueue(&Subject::Volume(volume));
        }
        // When it is over there may be a target to close.
        self.wake(until, Subject::Volume(volume));
    }

    /// A scrub found damage that is not repaired: the target of the volume repairs it.
    pub(crate) fn attend_damage(&mut self, replica: ReplicaId) {
        let volume = self.state.facts.replicas.get(&replica).map(|it| it.spec().volume);
        if let Some(volume) = volume {
            self.attend(volume);
        }
    }

    pub(crate) fn forget_attended(&mut self) {
        let now = self.now;
        self.state.facts.attended.retain(|_, until| *until > now);
    }

    /// Goes on where an interrupted comparison was.
    pub(crate) fn begin_comparison(&mut self, volume: VolumeId) {
        let last = self.state.comparisons.get(&volume).cloned();
        let record = match last {
            Some(last) if last.next_block > 0 => last,
            last => ComparisonRecord::new(volume, last.and_then(|last| last.at)),
        };
        self.state.facts.comparing.insert(volume);
        let due = self.now;
        self.comparisons.insert(volume, Comparison { record, due, failures: 0 });
        self.attend(volume);
    }

    /// Asks for the next part of each comparison whose volume is well; the others are ended, and
    /// go on when it is.
    pub(crate) fn advance_comparisons(&mut self) {
        let volumes: Vec<VolumeId> = self.comparisons.keys().copied().collect();
        for id in volumes {
            let is_well = {
                let view = View::new(&self.state.facts, &self.settings, self.now);
                // Its target may just be being opened.
                self.state
                    .volume(id)
                    .is_some_and(|volume| is_comparable(&view, volume) || is_being_served(volume))
            };
            if !is_well {
                self.pause_comparison(id);
                continue;
            }
            self.attend(id);
            let is_due = self.comparisons.get(&id).is_some_and(|it| it.due <= self.now);
            match self.serving_target(id) {
                _ if !is_due => {}
                Some((target, node)) => self.ask_for_part(id, target, node),
                None => self.comparison_failed(id, &self.why_not_served(id)),
            }
        }
    }

    /// The target of a volume that can be asked now.
    pub(crate) fn serving_target(&self, volume: VolumeId) -> Option<(TargetId, NodeName)> {
        let target = self.target_of(volume)?;
        let serves = target.status.as_ref().map(|status| status.state);
        let serves = serves.is_some_and(TargetState::serves);
        let node = target.spec().node.clone();
        (serves && self.state.is_online(&node)).then(|| (*target.id(), node))
    }

    /// Why a volume that wants a target has none.
    pub(crate) fn why_not_served(&self, id: VolumeId) -> Problem {
        let subject = Subject::Volume(id);
        let blocked = self.blocked.iter().find(|blocked| blocked.subject == subject);
        let reason = blocked.map_or("no target of it answers", |blocked| &blocked.reason);
        let detail = format!("volume {id} cannot be checked now: {reason}");
        Problem::new(ProblemKind::Unavailable, detail)
    }

    fn ask_for_part(&mut self, id: VolumeId, target: TargetId, node: NodeName) {
        let subject = Subject::Volume(id);
        let Some(first_block) = self.comparisons.get(&id).map(|it| it.record.next_block) else {
            return;
        };
        let blocks = self.blocks_of(id).saturating_sub(first_block).min(PART);
        if blocks == 0 {
            return self.end_comparison(id);
        }
        let request =
            CheckRequest { first_block, blocks, believe: None, accept_loss: false, keep: None };
        if self.is_due(&subject) {
            self.call(subject, node, Call::CheckTarget(target, request));
        }
    }

    fn blocks_of(&self, id: VolumeId) -> u64 {
        self.state.volume(id).map_or(0, |volume| volume.spec().size.bytes().0 / BLOCK)
    }

    /// A part was compared.
    pub(crate) fn on_checked(&mut self, id: VolumeId, asked: &CheckRequest, report: &CheckReport) {
        let Some(comparison) = self.comparisons.get_mut(&id) else { return };
        comparison.failures = 0;
        let record = &mut comparison.record;
        if record.next_block != asked.first_block {
            return;
        }
        record.add(report);
        record.next_block += asked.blocks;
        let stored = (record.next_block / PART).is_multiple_of(RECORD_EVERY);
        let stored = stored.then(|| record.clone());
        if let Some(message) = places(report) {
            self.tell(Subject::Volume(id), EventName::Corrupted, Severity::Error, message);
        }
        if let Some(record) = stored {
            self.try_commit(Batch::new().put(record));
        }
    }

    /// A part could not be compared: it is tried again, and after many failures left for the next
    /// time.
    pub(crate) fn comparison_failed(&mut self, id: VolumeId, problem: &Problem) {
        let due = self.now.after(AGAIN);
        let Some(comparison) = self.comparisons.get_mut(&id) else { return };
        comparison.failures += 1;
        comparison.due = due;
        if comparison.failures < MOST_FAILURES {
            return self.wake(due, Subject::Volume(id));
        }
        comparison.record.at = Some(self.now);
        let message = format!("its copies could not be compared: {problem}");
        let subject = Subject::Volume(id);
        self.tell(subject, EventName::ScrubEnded, Severity::Warning, message);
        self.pause_comparison(id);
    }

    /// Ended where it is: it goes on from there.
    fn pause_comparison(&mut self, id: VolumeId) {
        self.state.facts.comparing.remove(&id);
        let record = self.comparisons.remove(&id).map(|comparison| comparison.record);
        let record = record.filter(|record| record.next_block > 0 || record.at.is_some());
        if let Some(record) = record.filter(|_| self.state.volume(id).is_some()) {
            self.try_commit(Batch::new().put(record));
        }
    }

    fn end_comparison(&mut self, id: VolumeId) {
        self.state.facts.comparing.remove(&id);
        let Some(Comparison { mut record, .. }) = self.comparisons.remove(&id) else { return };
        (record.at, record.next_block) = (Some(self.now), 0);
        let (severity, message) = (record.severity(), record.in_words());
        let batch = Batch::new().put(record);
        let subject = Subject::Volume(id);
        self.try_commit(batch.tell(subject, EventName::ScrubEnded, severity, message));
    }

    /// What is remembered of the comparisons of a volume goes with it.
    pub(crate) fn forget_comparison(&self, id: VolumeId, batch: Batch) -> Batch {
        self.state.comparisons.get(&id).cloned().into_iter().fold(batch, Batch::drop)
    }
}

/// Whether its target is being opened or closed.
fn is_being_served(volume: &Volume) -> bool {
    use model::VolumeChange::{Publish, Unpublish};
    let change = volume.lifecycle().operation().map(|operation| &operation.change);
    matches!(change, Some(Publish { .. } | Unpublish { .. }))
}

/// Where a part needs a decision of people.
fn places(report: &CheckReport) -> Option<String> {
    let name = |range: &BlockRange| match range.blocks {
        1 => range.first_block.to_string(),
        blocks => format!("{}-{}", range.first_block, range.first_block + blocks - 1),
    };
    let list = |ranges: Vec<String>| {
        let more = if ranges.len() > NAMED { ", ..." } else { "" };
        format!("{}{more}", ranges[..ranges.len().min(NAMED)].join(", "))
    };
    let mut told = Vec::new();
    if !report.unreadable.is_empty() {
        let ranges = report.unreadable.iter().map(name).collect();
        told.push(format!("no copy can give blocks {}", list(ranges)));
    }
    if !report.differing.is_empty() {
        let ranges = report.differing.iter().map(|one| name(&one.range)).collect();
        told.push(format!(
            "copies are intact and different in blocks {}; `holdfast volume check --compare` \
             names the copies, with --believe REPLICA the others get its content",
            list(ranges)
        ));
    }
    (!told.is_empty()).then(|| told.join("; "))
}
