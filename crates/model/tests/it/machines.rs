//! Each state machine against its drawing: every state with every event, and long random walks.

use std::fmt::Debug;

use model::*;
use proptest::prelude::*;

use crate::sample::{at, id, problem};

/// All edges there are, one a line: `from event to`.
fn edges<S: Clone + Debug, E: Clone + Debug>(
    states: &[S],
    events: &[E],
    on: impl Fn(S, E) -> Result<S, InvalidTransition>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for state in states {
        for event in events {
            if let Ok(to) = on(state.clone(), event.clone()) {
                lines.push(format!("{} {} {}", word(state), word(event), word(&to)));
            }
        }
    }
    lines.sort();
    lines.dedup();
    lines
}

/// `Faulted { reason: NoSpace }` → `Faulted(NoSpace)`, long ones cut after the name.
fn word(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    let name = text.split([' ', '(']).next().unwrap_or_default().to_string();
    let known = ["Clean", "Ordered", "Fenced", "Waiting", "Failing", "InSync", "Stale"];
    match known.iter().find(|known| text.len() > name.len() && text.contains(*known)) {
        Some(known) => format!("{name}({known})"),
        None => name,
    }
}

fn check(found: &[String], drawn: &str) {
    let mut drawn: Vec<_> = drawn.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    drawn.sort_unstable();
    assert_eq!(found, drawn);
}

fn operation(outcome: Option<Outcome>) -> Operation<u8> {
    Operation { change: 7, started_at: at(0), outcome }
}

#[test]
fn lifecycle() {
    let created = |operation| Lifecycle::Created { operation };
    let failed = Outcome::Failed { problem: problem() };
    let states = [
        Lifecycle::Creating {},
        created(None),
        created(Some(operation(None))),
        created(Some(operation(Some(Outcome::Done {})))),
        created(Some(operation(Some(failed.clone())))),
        Lifecycle::Deleting {},
        Lifecycle::Deleted {},
    ];
    let events = [
        LifecycleEvent::Made,
        LifecycleEvent::Begin(operation(None)),
        LifecycleEvent::Begin(operation(Some(Outcome::Done {}))),
        LifecycleEvent::End(Outcome::Done {}),
        LifecycleEvent::End(failed),
        LifecycleEvent::Commit,
        LifecycleEvent::Delete,
        LifecycleEvent::Gone,
        LifecycleEvent::Keep,
    ];
    let mut found = Vec::new();
    for state in &states {
        for event in &events {
            if let Ok(to) = state.clone().on(event.clone()) {
                found.push(format!("{state} {} {to}", word(event)));
            }
        }
    }
    found.sort();
    found.dedup();
    check(
        &found,
        "creating Made created
         created Begin running
         running End ended
         ended Commit created
         creating Delete deleting
         created Delete deleting
         deleting Delete deleting
         deleting Gone deleted
         deleting Keep created",
    );
}

const CHILD_STATES: [ChildState; 5] = [
    ChildState::InSync,
    ChildState::Stale,
    ChildState::Rebuilding,
    ChildState::Faulted { reason: FaultReason::IoError },
    ChildState::Offline,
];

const CHILD_EVENTS: [ChildEvent; 7] = [
    ChildEvent::Failed(FaultReason::NoSpace),
    ChildEvent::Detached,
    ChildEvent::Reopened(RecordedState::InSync),
    ChildEvent::Reopened(RecordedState::Stale),
    ChildEvent::Began,
    ChildEvent::Interrupted,
    ChildEvent::Copied,
];

#[test]
fn child() {
    check(
        &edges(&CHILD_STATES, &CHILD_EVENTS, ChildState::on),
        "Stale Began Rebuilding
         Rebuilding Copied InSync
         Rebuilding Interrupted Stale
         InSync Failed Faulted
         Stale Failed Faulted
         Rebuilding Failed Faulted
         InSync Detached Offline
         Stale Detached Offline
         Rebuilding Detached Offline
         Faulted Detached Offline
         Faulted Reopened(InSync) InSync
         Faulted Reopened(Stale) Stale
         Offline Reopened(InSync) InSync
         Offline Reopened(Stale) Stale",
    );
}

const NO_CHILD: SuspendReason = SuspendReason::NoChild;

const TARGET_STATES: [TargetState; 9] = [
    TargetState::Init,
    TargetState::Open,
    TargetState::Degraded,
    TargetState::Suspended { cause: NO_CHILD, io: SuspendedIo::Waiting },
    TargetState::Suspended { cause: NO_CHILD, io: SuspendedIo::Failing },
    TargetState::ShuttingDown { cause: StopCause::Ordered },
    TargetState::ShuttingDown { cause: StopCause::Fenced },
    TargetState::Shutdown { cause: StopCause::Ordered },
    TargetState::Shutdown { cause: StopCause::Fenced },
];

const TARGET_EVENTS: [TargetEvent; 10] = [
    TargetEvent::OpenedWhole,
    TargetEvent::OpenedPartial,
    TargetEvent::Lost,
    TargetEvent::Recovered,
    TargetEvent::Suspended(SuspendReason::NotRecorded),
    TargetEvent::SuspendExpired,
    TargetEvent::Resumed,
    TargetEvent::Stop(StopCause::Ordered),
    TargetEvent::Stop(StopCause::Fenced),
    TargetEvent::Stopped,
];

#[test]
fn target() {
    let found = edges(&TARGET_STATES, &TARGET_EVENTS, TargetState::on);
    check(
        &found,
        "Init OpenedWhole Open
         Init OpenedPartial Degraded
         Open Lost Degraded
         Degraded Lost Degraded
         Degraded Recovered Open
         Open Suspended Suspended(Waiting)
         Degraded Suspended Suspended(Waiting)
         Suspended(Waiting) Suspended Suspended(Waiting)
         Suspended(Failing) Suspended Suspended(Failing)
         Suspended(Waiting) SuspendExpired Suspended(Failing)
         Suspended(Failing) SuspendExpired Suspended(Failing)
         Suspended(Waiting) Resumed Degraded
         Suspended(Failing) Resumed Degraded
         Init Stop(Ordered) ShuttingDown(Ordered)
         Open Stop(Ordered) ShuttingDown(Ordered)
         Degraded Stop(Ordered) ShuttingDown(Ordered)
         Suspended(Waiting) Stop(Ordered) ShuttingDown(Ordered)
         Suspended(Failing) Stop(Ordered) ShuttingDown(Ordered)
         Init Stop(Fenced) ShuttingDown(Fenced)
         Open Stop(Fenced) ShuttingDown(Fenced)
         Degraded Stop(Fenced) ShuttingDown(Fenced)
         Suspended(Waiting) Stop(Fenced) ShuttingDown(Fenced)
         Suspended(Failing) Stop(Fenced) ShuttingDown(Fenced)
         ShuttingDown(Ordered) Stop(Ordered) ShuttingDown(Ordered)
         ShuttingDown(Ordered) Stop(Fenced) ShuttingDown(Fenced)
         ShuttingDown(Fenced) Stop(Ordered) ShuttingDown(Fenced)
         ShuttingDown(Fenced) Stop(Fenced) ShuttingDown(Fenced)
         ShuttingDown(Ordered) Stopped Shutdown(Ordered)
         ShuttingDown(Fenced) Stopped Shutdown(Fenced)",
    );
}

#[test]
fn liveness() {
    let states = [
        Liveness::Online,
        Liveness::NOT_SEEN,
        Liveness::Unknown { reason: UnknownReason::Late },
        Liveness::Offline { reason: OfflineReason::Lapsed },
        Liveness::Offline { reason: OfflineReason::Left },
        Liveness::Offline { reason: OfflineReason::Refused },
        Liveness::Offline { reason: OfflineReason::Unresponsive },
    ];
    let signs = [
        LivenessEvent::Heartbeat,
        LivenessEvent::Late,
        LivenessEvent::ListingFailed,
        LivenessEvent::Lapsed,
        LivenessEvent::Left,
        LivenessEvent::Refused,
        LivenessEvent::Unresponsive,
    ];
    check(
        &edges(&states, &signs, Liveness::on),
        "Online Heartbeat Online
         Unknown Heartbeat Online
         Offline Heartbeat Online
         Online Late Unknown
         Unknown Late Unknown
         Online ListingFailed Unknown
         Unknown ListingFailed Unknown
         Online Lapsed Offline
         Unknown Lapsed Offline
         Online Left Offline
         Unknown Left Offline
         Online Refused Offline
         Unknown Refused Offline
         Online Unresponsive Offline
         Unknown Unresponsive Offline",
    );
}

fn stages() -> Vec<FailoverStage> {
    vec![
        FailoverStage::Init {},
        FailoverStage::RepublishVolume {},
        FailoverStage::ReplacePath { to: id(1) },
        FailoverStage::DeleteTarget { to: id(1) },
        FailoverStage::Successful { to: id(1) },
        FailoverStage::Errored { problem: problem() },
    ]
}

fn stage_events() -> Vec<FailoverEvent> {
    vec![
        FailoverEvent::Begin,
        FailoverEvent::Republished { to: id(1) },
        FailoverEvent::Unreachable,
        FailoverEvent::PathsReplaced,
        FailoverEvent::TargetDeleted,
        FailoverEvent::Fail(problem()),
    ]
}

#[test]
fn failover() {
    check(
        &edges(&stages(), &stage_events(), FailoverStage::on),
        "Init Begin RepublishVolume
         RepublishVolume Republished ReplacePath
         ReplacePath PathsReplaced DeleteTarget
         ReplacePath Unreachable RepublishVolume
         DeleteTarget TargetDeleted Successful
         Init Fail Errored
         RepublishVolume Fail Errored
         ReplacePath Fail Errored",
    );
}

fn rebuild_events() -> Vec<RebuildEvent> {
    vec![
        RebuildEvent::Start,
        RebuildEvent::Pause,
        RebuildEvent::Resume,
        RebuildEvent::Finish,
        RebuildEvent::Fail(problem()),
        RebuildEvent::Cancel,
    ]
}

#[test]
fn rebuild() {
    let states = [
        RebuildState::Pending {},
        RebuildState::Running {},
        RebuildState::Paused {},
        RebuildState::Completed {},
        RebuildState::Failed { problem: problem() },
        RebuildState::Cancelled {},
    ];
    check(
        &edges(&states, &rebuild_events(), RebuildState::on),
        "Pending Start Running
         Running Pause Paused
         Paused Resume Running
         Running Finish Completed
         Running Fail Failed
         Paused Fail Failed
         Pending Cancel Cancelled
         Running Cancel Cancelled
         Paused Cancel Cancelled",
    );
}

#[test]
fn progress_is_100_percent_only_at_the_end() {
    let progress = |total, done| Progress { total, done, copied: Size::ZERO };
    assert_eq!(progress(Size::mib(1000), Size::mib(999)).percent(), 99);
    assert_eq!(progress(Size::mib(1000), Size::mib(1000)).percent(), 100);
    assert_eq!(progress(Size::ZERO, Size::ZERO).percent(), 100);
    assert_eq!(progress(Size::mib(1), Size::mib(9)).percent(), 100);
}

proptest! {
    /// A child is in sync only after a rebuild or because it is recorded so, and the first reason
    /// of a failure is kept.
    #[test]
    fn a_child_is_never_believed_without_reason(
        walk in prop::collection::vec(prop::sample::select(&CHILD_EVENTS[..]), 0..60)
    ) {
        let mut state = ChildState::Offline;
        for event in walk {
            let Ok(next) = state.on(event) else { continue };
            let reasons = [ChildEvent::Copied, ChildEvent::Reopened(RecordedState::InSync)];
            prop_assert!(next != ChildState::InSync || reasons.contains(&event));
            let faulted = |state: ChildState| state.name() == "faulted";
            prop_assert!(!(faulted(state) && faulted(next)));
            state = next;
        }
    }

    /// A target that stops never serves again, and one that was fenced stays fenced.
    #[test]
    fn a_stopped_target_stays_stopped(
        walk in prop::collection::vec(prop::sample::select(&TARGET_EVENTS[..]), 0..60)
    ) {
        let (mut state, mut stopping, mut fenced) = (TargetState::Init, false, false);
        for event in walk {
            let Ok(next) = state.on(event) else { continue };
            stopping |= matches!(event, TargetEvent::Stop(_));
            fenced |= event == TargetEvent::Stop(StopCause::Fenced);
            prop_assert!(!(stopping && next.serves()));
            if let TargetState::ShuttingDown { cause } | TargetState::Shutdown { cause } = next {
                prop_assert_eq!(cause == StopCause::Fenced, fenced);
            }
            state = next;
        }
    }

    /// A failover only ends once, and the hosts are on the new target when it ends well.
    #[test]
    fn a_failover_ends_once(
        walk in prop::collection::vec(prop::sample::select(stage_events()), 0..60)
    ) {
        let mut failover = crate::sample::failover();
        let (mut replaced, mut ended) = (false, false);
        for (second, event) in (100..).zip(walk) {
            let before = failover.clone();
            let taken = failover.on(event.clone(), at(second)).is_ok();
            if !taken {
                prop_assert_eq!(&failover, &before);
                continue;
            }
            prop_assert!(!ended);
            replaced |= event == FailoverEvent::PathsReplaced;
            ended = failover.stage().is_ended();
            let successful = matches!(failover.stage(), FailoverStage::Successful { .. });
            prop_assert!(!successful || replaced);
            prop_assert!(failover.retries() == 0 && failover.updated_at() > before.updated_at());
        }
    }

    /// A rebuild has an end exactly when it has ended, and only one.
    #[test]
    fn a_rebuild_ends_once(
        walk in prop::collection::vec(prop::sample::select(rebuild_events()), 0..60)
    ) {
        let plan = RebuildPlan {
            volume: id(1), target: id(2), replica: id(3), sources: [id(4)].into(),
            extent: RebuildKind::Full,
        };
        let mut rebuild = Rebuild::new(id(5), plan, at(0));
        for (second, event) in (1..).zip(walk) {
            let before = rebuild.clone();
            if rebuild.on(event, at(second)).is_err() {
                prop_assert_eq!(&rebuild, &before);
            }
            prop_assert_eq!(rebuild.state().is_ended(), rebuild.ended_at().is_some());
            prop_assert!(!before.state().is_ended() || rebuild == before);
        }
    }
}
