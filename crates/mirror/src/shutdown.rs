//! The end: ordered and clean, ordered but late, or fenced.
//!
//! ```text
//!   Stop ──► drain ──► flush ──► notes without marks ──► record: clean ──► Shutdown
//!              └── late, or a copy in sync is away ──► Shutdown, unclean
//!   Fenced ──► Shutdown at once: nothing is written, whoever owns the volume now is right (S2)
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use block::Instant;
use model::{Problem, ProblemKind, ShutdownState, StopCause, TargetEvent, TargetState};

use crate::api::{CommandId, Effect};
use crate::mirror::Mirror;

/// How far an ordered stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Draining,
    Flushing,
    /// Until this version of the note is everywhere.
    Keeping(u64),
    Closing,
}

/// An ordered stop.
#[derive(Debug)]
pub(crate) struct ActiveShutdown {
    pub(crate) deadline: Instant,
    stage: Stage,
    tokens: Vec<CommandId>,
}

impl Mirror {
    pub(crate) fn stop(&mut self, token: CommandId) {
        if self.is_down() {
            return self.effects.push_back(Effect::Answer { token, result: Ok(()) });
        }
        let deadline = self.now.after(self.config.stop_wait);
        let new = ActiveShutdown { deadline, stage: Stage::Draining, tokens: Vec::new() };
        self.stopping.get_or_insert(new).tokens.push(token);
        self.on(TargetEvent::Stop(StopCause::Ordered));
        let slots: Vec<_> = self.jobs.keys().copied().collect();
        for slot in slots {
            self.interrupt(slot);
        }
        self.drop_checks(&Problem::new(
            ProblemKind::Unavailable,
            "the target stops; check again later",
        ));
    }

    /// Somebody newer owns the volume.
    pub(crate) fn fenced(&mut self) {
        #[cfg(test)]
        if self.broken == crate::tests::Broken::FenceIgnored {
            return;
        }
        self.on(TargetEvent::Stop(StopCause::Fenced));
        self.needs_rescan = true;
        self.down();
    }

    /// Whether the volume is not, or not known to be, this target's any more.
    pub(crate) fn is_fenced(&self) -> bool {
        use TargetState::{Shutdown, ShuttingDown};
        let (Shutdown { cause } | ShuttingDown { cause }) = self.state else { return false };
        matches!(cause, StopCause::Fenced | StopCause::LabelConflict)
    }

    pub(crate) fn state_is_closing(&self) -> bool {
        let closing = |stopping: &ActiveShutdown| stopping.stage == Stage::Closing;
        self.is_down() || self.stopping.as_ref().is_some_and(closing)
    }

    /// Goes on with an ordered stop.
    pub(crate) fn pump_stop(&mut self) {
        if self.is_fenced() && self.ios.is_empty() {
            self.on(TargetEvent::Stopped);
        }
        let Some(stopping) = &self.stopping else { return };
        if self.is_down() {
            return;
        }
        if self.now >= stopping.deadline || !self.opened {
            return self.stopped();
        }
        if !self.is_settled() {
            return;
        }
        match stopping.stage {
            Stage::Draining if self.is_drained() && self.dirty.resync.is_empty() => {
                self.flush_ourselves();
                self.stage(Stage::Flushing);
            }
            Stage::Flushing if self.own_flush.is_none() => {
                self.dirty.sweep(self.now, Duration::ZERO);
                if self.dirty.has_marks() {
                    // A child failed meanwhile, or the flush did.
                    return self.stage(Stage::Draining);
                }
                let version = self.change_note();
                self.stage(Stage::Keeping(version));
            }
            Stage::Keeping(version)
                if self.durable_version() >= version && self.record_writer.is_recorded() =>
            {
                if let Some(record) = self.record_writer.closed() {
                    self.stage(Stage::Closing);
                    self.send_record(record);
                }
            }
            Stage::Closing if self.record_writer.end() == ShutdownState::Clean => self.stopped(),
            Stage::Closing if self.record_writer.is_idle(self.now) => {
                if let Some(record) = self.record_writer.closed() {
                    self.send_record(record);
                }
            }
            _ => {}
        }
    }

    fn is_drained(&self) -> bool {
        self.ops.is_empty() && self.bypass_reads == 0
    }

    fn stage(&mut self, stage: Stage) {
        if let Some(stopping) = &mut self.stopping {
            stopping.stage = stage;
        }
        self.needs_rescan = true;
    }

    fn stopped(&mut self) {
        self.on(TargetEvent::Stopped);
        self.down();
    }

    /// Lets go of everything; what waits is answered, what is outstanding ends by itself.
    pub(crate) fn down(&mut self) {
        (self.needs_rescan, self.steady) = (true, None);
        for child in self.children.iter_mut().flatten() {
            child.attached = false;
            child.retry_at = None;
            let replica = child.replica;
            let session = child.session.take();
            self.effects.extend(session.map(|session| Effect::Detach { child: replica, session }));
        }
        let slots: Vec<_> = self.jobs.keys().copied().collect();
        for slot in slots {
            self.end_job(slot, None);
        }
        self.fail_requests();
        if let Some(stopping) = self.stopping.take() {
            let answers = stopping.tokens.into_iter();
            self.effects.extend(answers.map(|token| Effect::Answer { token, result: Ok(()) }));
        }
    }
}
