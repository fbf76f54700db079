//! What targets say of themselves, told on as events; and what had to wait for it.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use model::{
    ChildState, ConflictReason, EventName, FaultReason, LabelConflict, Rebuild, RebuildState,
    ReplicaId, Severity, StopCause, Subject, TargetId, TargetState, VolumeId,
};
use tracing::Instrument as _;

use super::engine::{Engine, Inner};
use crate::volumes::{Damage, EventKind, Places, VolumeEvent};

/// Most places that an event names.
const NAMED: usize = 8;

/// Tells news on until the engine is gone. Waits for them, so it has a thread of its own.
pub(super) fn tell_on(
    told: &Receiver<VolumeEvent>,
    engine: &Weak<Inner>,
    runtime: &tokio::runtime::Handle,
) {
    let mut last = Last::default();
    while let Ok(news) = told.recv() {
        let Some(engine) = engine.upgrade().map(Engine) else { return };
        if last.differs(&news) {
            engine.publish_events(&news);
        }
        if let EventKind::Target(state) = news.what
            && matters(state)
        {
            let span = tracing::info_span!("settle", target = %news.target, volume = %news.volume);
            let settling = async move { engine.target_changed(news.target, state).await };
            runtime.spawn(settling.instrument(span));
        }
    }
}

/// What was last told of each child. One that is lost is tried again and again, and each time in
/// vain it says so.
#[derive(Default)]
struct Last(BTreeMap<(TargetId, ReplicaId), ChildState>);

impl Last {
    /// Whether people know it yet.
    fn differs(&mut self, news: &VolumeEvent) -> bool {
        match news.what {
            EventKind::Child(replica, state) => {
                self.0.insert((news.target, replica), state) != Some(state)
            }
            EventKind::Target(TargetState::Shutdown { .. }) => {
                self.0.retain(|(target, _), _| *target != news.target);
                true
            }
            _ => true,
        }
    }
}

/// Whether something may have waited for this.
fn matters(state: TargetState) -> bool {
    matches!(state, TargetState::Open | TargetState::Degraded | TargetState::Shutdown { .. })
}

impl Engine {
    fn publish_events(&self, news: &VolumeEvent) {
        let target = Subject::Target(news.target);
        match &news.what {
            EventKind::Target(state) => {
                let (severity, name) = weigh(*state);
                let message = format!("volume {}: {}", news.volume, in_words(*state));
                self.tell_as(severity, target, name, message);
            }
            EventKind::Child(replica, ChildState::Faulted { reason }) => {
                let message = format!(
                    "copy {replica} is lost: {}",
                    self.why_lost(*reason, (news.target, *replica))
                );
                self.tell_as(Severity::Warning, target, EventName::ChildLost, message);
            }
            EventKind::Child(replica, state) => {
                let message = format!("copy {replica} is {state}");
                self.tell(target, EventName::StateChanged, message);
            }
            EventKind::Rebuild(rebuild) => self.tell_rebuild(target, rebuild),
            EventKind::Damage(damage) => self.tell_damage(news.volume, damage),
            EventKind::Conflict(conflict) => {
                let message = format!("volume {}: {conflict}; {}", news.volume, remedy(conflict));
                self.tell_as(Severity::Error, target, EventName::LabelConflict, message);
            }
        }
    }

    /// Tells what was found damaged, and counts it.
    fn tell_damage(&self, volume: VolumeId, damage: &Damage) {
        self.state().damage.add(damage);
        for (replica, places) in &damage.repaired {
            let what = in_blocks(places);
            let message = format!("{what} did not hold what was written; rewritten from a copy");
            let replica = Subject::Replica(*replica);
            self.tell_as(Severity::Warning, replica, EventName::Corrupted, message);
        }
        for (replica, places) in &damage.repaired_in_snapshots {
            let what = in_blocks(places);
            let message = format!(
                "{what} of snapshots did not hold what was written; rewritten from another copy of \
                 the snapshot"
            );
            let replica = Subject::Replica(*replica);
            self.tell_as(Severity::Warning, replica, EventName::Corrupted, message);
        }
        for (replica, places) in &damage.kept {
            let what = in_blocks(places);
            let message = format!(
                "{what} had a wrong checksum on every copy; kept as this copy holds them, as \
                 ordered"
            );
            self.tell_as(
                Severity::Warning,
                Subject::Replica(*replica),
                EventName::Accepted,
                message,
            );
        }
        for (replica, places) in &damage.accepted {
            let what = in_blocks(places);
            let message = format!(
                "{what} were being written when every copy went down, and no copy can prove \
                 them: this copy is believed, the others are rewritten from it"
            );
            self.tell(Subject::Replica(*replica), EventName::Accepted, message);
        }
        let of_volume = [
            (
                &damage.unreadable,
                "cannot be read from any copy; restore them from a snapshot or backup, or give \
                 them up with `holdfast volume check --compare --accept-loss`",
            ),
            (
                &damage.differing,
                "are intact on several copies and not equal; choose the copy to believe with \
                 `holdfast volume check --compare --believe REPLICA`",
            ),
        ];
        for (places, remedy) in of_volume.into_iter().filter(|(places, _)| places.blocks > 0) {
            let message = format!("{} {remedy}", in_blocks(places));
            self.tell_as(Severity::Error, Subject::Volume(volume), EventName::Corrupted, message);
        }
    }

    /// Why a copy is lost, with the remedy if there is one to tell.
    fn why_lost(&self, reason: FaultReason, (target, replica): (TargetId, ReplicaId)) -> String {
        if reason != FaultReason::Unauthenticated {
            return format!("{reason:?}");
        }
        let state = self.state();
        let way = state.targets.get(&target).and_then(|target| target.ways.get(&replica));
        let way = way.map(|way| format!("{:?}", way.addresses)).unwrap_or_default();
        format!(
            "its engine at {way} and this one did not prove to each other that they are of one \
             cluster; give both the same --cluster-secret"
        )
    }

    fn tell_rebuild(&self, target: Subject, rebuild: &Rebuild) {
        let (replica, done) = (rebuild.replica, rebuild.progress);
        let (severity, name) = match rebuild.state() {
            RebuildState::Failed { .. } => (Severity::Warning, EventName::RebuildEnded),
            state if state.is_ended() => (Severity::Info, EventName::RebuildEnded),
            RebuildState::Running {} => (Severity::Info, EventName::RebuildStarted),
            _ => (Severity::Info, EventName::StateChanged),
        };
        let message = format!(
            "rebuild of copy {replica} is {}: {} of {} looked at, {} copied",
            rebuild.state(),
            done.done,
            done.total,
            done.copied
        );
        self.tell_as(severity, target, name, message);
    }
}

/// Blocks, and the first places of them.
fn in_blocks(places: &Places) -> String {
    let named: Vec<String> = places
        .first
        .iter()
        .take(NAMED)
        .map(|span| match span.len().0 {
            1 => span.start().0.to_string(),
            _ => format!("{}-{}", span.start().0, span.end().0 - 1),
        })
        .collect();
    let listed: u64 = places.first.iter().take(NAMED).map(|span| span.len().0).sum();
    let more = if listed < places.blocks { ", ..." } else { "" };
    let noun = if places.blocks == 1 { "block" } else { "blocks" };
    format!("{} {noun} ({}{more})", places.blocks, named.join(", "))
}

fn weigh(state: TargetState) -> (Severity, EventName) {
    match state {
        TargetState::Shutdown { cause: StopCause::Fenced } => {
            (Severity::Warning, EventName::Fenced)
        }
        TargetState::Shutdown { cause: StopCause::LabelConflict } => {
            (Severity::Error, EventName::LabelConflict)
        }
        TargetState::Suspended { .. } => (Severity::Error, EventName::StateChanged),
        TargetState::Degraded => (Severity::Warning, EventName::StateChanged),
        _ => (Severity::Info, EventName::StateChanged),
    }
}

/// What is done about a copy in conflict, and by whom.
fn remedy(conflict: &LabelConflict) -> &'static str {
    match conflict.reason {
        ConflictReason::RolledBack { .. } => {
            "it is copied anew from another copy in sync; if there is none, nothing is served: run \
             'holdfast recover' to say which copy is right"
        }
        _ => {
            "the store is older than its disks, the copy is left as it is: run 'holdfast recover' \
             to adopt the newest label"
        }
    }
}

fn in_words(state: TargetState) -> String {
    match state {
        TargetState::Shutdown { cause: StopCause::LabelConflict } => {
            "not served: labels of its copies are newer than the store; run 'holdfast recover'"
                .to_owned()
        }
        TargetState::Suspended { cause, io } => format!("held: {cause:?}, I/O is {io:?}"),
        TargetState::ShuttingDown { cause } | TargetState::Shutdown { cause } => {
            format!("{state}: {cause:?}")
        }
        _ => state.to_string(),
    }
}

/// Starts the thread.
pub(super) fn start(engine: &Engine, told: Receiver<VolumeEvent>) -> std::io::Result<()> {
    let weak = Arc::downgrade(&engine.0);
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("news".to_owned())
        .spawn(move || tell_on(&told, &weak, &runtime))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(n: u32) -> T {
        format!("00000000-0000-4000-8000-{n:012}").parse().unwrap()
    }

    #[test]
    fn a_child_that_is_still_lost_is_no_news() {
        let mut last = Last::default();
        let lost = ChildState::Faulted { reason: FaultReason::ConnectionLost };
        let mut differs =
            |target, what| last.differs(&VolumeEvent { volume: id(1), target: id(target), what });
        let child = |state| EventKind::Child(id(20), state);
        assert!(differs(2, child(lost)));
        assert!(!differs(2, child(lost)));
        assert!(differs(3, child(lost)), "of another target");
        assert!(differs(2, child(ChildState::Stale)));
        assert!(differs(2, child(lost)), "lost again");
        assert!(differs(2, EventKind::Target(TargetState::Shutdown { cause: StopCause::Ordered })));
        assert!(differs(2, child(lost)), "opened again");
    }
}
