//! The end: ordered and clean, ordered but late, or fenced.
//!
//! ```text
//!   Stop ──► drain ──► flush ──► notes without marks ──► record: clean ──► Shutdown
//!              └── late, or a copy in sync is away ──► Shutdown, unclean
//!   Fenced ──► Shutdown at once: nothing is written, whoever owns the volume now is right (S2)
//! ```

use alloc::vec::Vec;

use block::Instant;
use model::{Problem, ProblemKind, ShutdownState, StopCause, TargetEvent};

use crate::api::CommandId;
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
        if self.base.service.is_down() {
            return self.base.cx.answer(token, Ok(()));
        }
        let deadline = self.base.cx.now().after(self.base.cx.config().stop_wait);
        let new = ActiveShutdown { deadline, stage: Stage::Draining, tokens: Vec::new() };
        self.stopping.get_or_insert(new).tokens.push(token);
        self.base.service.set_stopping(true);
        self.base.service.on(&mut self.base.cx, TargetEvent::Stop(StopCause::Ordered));
        for slot in self.rebuilder.children().iter() {
            self.interrupt(slot);
        }
        let detail = "the target stops; check again later";
        let problem = Problem::new(ProblemKind::Unavailable, detail);
        self.rebuilder.drop_checks(&mut self.base, &problem);
    }

    /// Somebody newer owns the volume.
    pub(crate) fn fenced(&mut self) {
        #[cfg(test)]
        if self.base.cx.broken == crate::tests::Broken::FenceIgnored {
            return;
        }
        self.end(StopCause::Fenced);
    }

    /// The volume is not, or not known to be, this target's any more.
    pub(crate) fn end(&mut self, cause: StopCause) {
        self.base.service.on(&mut self.base.cx, TargetEvent::Stop(cause));
        self.base.cx.rescan();
        self.down();
    }

    pub(crate) fn state_is_closing(&self) -> bool {
        let closing = |stopping: &ActiveShutdown| stopping.stage == Stage::Closing;
        self.base.service.is_down() || self.stopping.as_ref().is_some_and(closing)
    }

    /// Goes on with an ordered stop.
    pub(crate) fn pump_stop(&mut self) {
        if self.base.service.is_fenced() && !self.base.cx.has_requests() {
            self.base.service.on(&mut self.base.cx, TargetEvent::Stopped);
        }
        let Some(stopping) = &self.stopping else { return };
        if self.base.service.is_down() {
            return;
        }
        if self.base.cx.now() >= stopping.deadline || !self.base.service.is_open() {
            return self.stopped();
        }
        if !self.base.is_settled() {
            return;
        }
        match stopping.stage {
            Stage::Draining
                if self.commands.is_drained() && self.base.log.in_doubt().is_empty() =>
            {
                self.commands.flush_ourselves(&mut self.base, &mut self.rebuilder);
                self.stage(Stage::Flushing);
            }
            Stage::Flushing if !self.commands.is_flushing() => {
                if self.base.log.sweep_all(self.base.cx.now()) {
                    // A child failed meanwhile, or the flush did.
                    return self.stage(Stage::Draining);
                }
                let version = self.base.change_note();
                self.stage(Stage::Keeping(version));
            }
            Stage::Keeping(version)
                if self.base.durable_version() >= version
                    && self.base.replicas.record().is_recorded() =>
            {
                if let Some(record) = self.base.replicas.record().closed() {
                    self.stage(Stage::Closing);
                    self.base.replicas.send_record(&mut self.base.cx, record);
                }
            }
            Stage::Closing if self.base.replicas.record().end() == ShutdownState::Clean => {
                self.stopped();
            }
            Stage::Closing if self.base.replicas.record().is_idle(self.base.cx.now()) => {
                if let Some(record) = self.base.replicas.record().closed() {
                    self.base.replicas.send_record(&mut self.base.cx, record);
                }
            }
            _ => {}
        }
    }

    fn stage(&mut self, stage: Stage) {
        if let Some(stopping) = &mut self.stopping {
            stopping.stage = stage;
        }
        self.base.cx.rescan();
    }

    fn stopped(&mut self) {
        self.base.service.on(&mut self.base.cx, TargetEvent::Stopped);
        self.down();
    }

    /// Lets go of everything; what waits is answered, what is outstanding ends by itself.
    pub(crate) fn down(&mut self) {
        self.base.cx.rescan();
        self.base.cx.unsettle();
        self.base.replicas.release_all(&mut self.base.cx);
        for slot in self.rebuilder.children().iter() {
            self.rebuilder.end_job(&mut self.base, slot, None);
        }
        self.fail_requests();
        if let Some(stopping) = self.stopping.take() {
            self.base.service.set_stopping(false);
            for token in stopping.tokens {
                self.base.cx.answer(token, Ok(()));
            }
        }
    }
}
