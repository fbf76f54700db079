//! How the target serves: opening, holding, resuming, ending.
//!
//! The states and their edges are `model::TargetState`. Hosts wait from the moment that a copy
//! recorded in sync is not there until the record says so or it is back, [`MirrorConfig::hold`] at
//! most.
//!
//! [`MirrorConfig::hold`]: crate::MirrorConfig::hold

use block::{Instant, IoError};
use model::{StopCause, SuspendReason, TargetEvent, TargetState};

use crate::api::Effect;
use crate::context::Context;
use crate::replicas::Replicas;
use crate::reservation::Readiness;

/// How the target serves.
#[derive(Debug)]
pub(crate) struct Service {
    state: TargetState,
    is_open: bool,
    /// Since when hosts wait, and whether they have waited long enough.
    hold_from: Option<Instant>,
    is_failing: bool,
    is_stopping: bool,
}

impl Service {
    pub(crate) fn new(now: Instant) -> Service {
        Service {
            state: TargetState::Init,
            is_open: false,
            hold_from: Some(now),
            is_failing: false,
            is_stopping: false,
        }
    }

    pub(crate) fn state(&self) -> TargetState {
        self.state
    }

    /// Whether it was opened, however it serves since.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether hosts have waited so long that their commands fail.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Whether somebody ordered it to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Whether commands are served, and nothing keeps them.
    pub(crate) fn is_steady(&self) -> bool {
        self.is_open && self.hold_from.is_none() && !self.is_failing && !self.is_stopping
    }

    /// Whether it serves nothing and never will again.
    pub(crate) fn is_down(&self) -> bool {
        matches!(self.state, TargetState::Shutdown { .. }) || self.is_fenced()
    }

    /// Whether the volume is not, or not known to be, this target's any more.
    pub(crate) fn is_fenced(&self) -> bool {
        use TargetState::{Shutdown, ShuttingDown};
        let (Shutdown { cause } | ShuttingDown { cause }) = self.state else { return false };
        matches!(cause, StopCause::Fenced | StopCause::LabelConflict)
    }

    /// Whether it is open and not down: children, record and regions are worked on.
    pub(crate) fn is_active(&self) -> bool {
        self.is_open && !self.is_down()
    }

    /// How every command ends that cannot be served: nothing while they may wait.
    pub(crate) fn terminal_error(&self) -> Option<IoError> {
        if self.is_fenced() {
            return Some(IoError::Fenced);
        }
        (self.is_failing || self.is_down()).then_some(IoError::Unreachable)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        match (self.is_down(), self.is_open, self.is_failing) {
            (true, ..) => Readiness::Down,
            (_, true, _) => Readiness::Ready,
            (_, _, true) => Readiness::Unavailable,
            (_, _, false) => Readiness::Opening,
        }
    }

    /// When hosts will have waited long enough.
    pub(crate) fn hold_ends(&self, cx: &Context) -> Option<Instant> {
        let from = self.hold_from.filter(|_| !self.is_failing)?;
        Some(from.after(cx.config().hold))
    }

    pub(crate) fn open(&mut self) {
        self.is_open = true;
    }

    pub(crate) fn set_stopping(&mut self, is_stopping: bool) {
        self.is_stopping = is_stopping;
    }

    pub(crate) fn on(&mut self, cx: &mut Context, event: TargetEvent) {
        if let Ok(state) = self.state.on(event)
            && state != self.state
        {
            self.state = state;
            cx.emit(Effect::TargetChanged(state));
        }
    }

    /// Follows what the children and the record are. Whether hosts have just waited long enough:
    /// then [`Service::expire`] says so when what they wait for is given up.
    pub(crate) fn follow(&mut self, cx: &mut Context, replicas: &Replicas) -> bool {
        if self.is_down() {
            return false;
        }
        let nobody = replicas.in_sync().is_empty();
        if self.is_open && replicas.all_take_writes() && !nobody {
            self.hold_from = None;
            if core::mem::take(&mut self.is_failing) {
                cx.rescan();
            }
            self.on(cx, TargetEvent::Resumed);
            let whole = replicas.is_whole();
            self.on(cx, if whole { TargetEvent::Recovered } else { TargetEvent::Lost });
            return false;
        }
        let from = *self.hold_from.get_or_insert(cx.now());
        if nobody {
            self.on(cx, TargetEvent::Suspended(SuspendReason::NoChild));
        } else if replicas.record().is_away() {
            self.on(cx, TargetEvent::Suspended(SuspendReason::NotRecorded));
        }
        let expires = !self.is_failing && cx.now() >= from.after(cx.config().hold);
        self.is_failing |= expires;
        expires
    }

    /// Hosts have waited long enough: their commands fail from now on.
    pub(crate) fn expire(&mut self, cx: &mut Context, replicas: &Replicas) {
        let nobody = replicas.in_sync().is_empty();
        let cause = if nobody { SuspendReason::NoChild } else { SuspendReason::NotRecorded };
        self.on(cx, TargetEvent::Suspended(cause));
        self.on(cx, TargetEvent::SuspendExpired);
        cx.rescan();
    }
}
