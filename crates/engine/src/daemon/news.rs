//! What targets say of themselves, told on as events; and what had to wait for it.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};

use model::{
    ChildState, EventName, Rebuild, RebuildState, Severity, StopCause, Subject, TargetState,
};

use super::engine::{Engine, Inner};
use crate::volumes::{News, What};

/// Tells news on until the engine is gone. Waits for them, so it has a thread of its own.
pub(super) fn tell_on(
    told: &Receiver<News>,
    engine: &Weak<Inner>,
    runtime: &tokio::runtime::Handle,
) {
    while let Ok(news) = told.recv() {
        let Some(engine) = engine.upgrade().map(Engine) else { return };
        engine.tell_news(&news);
        if let What::Target(state) = news.what
            && matters(state)
        {
            runtime.spawn(async move { engine.target_changed(news.target, state).await });
        }
    }
}

/// Whether something may have waited for this.
fn matters(state: TargetState) -> bool {
    matches!(state, TargetState::Open | TargetState::Degraded | TargetState::Shutdown { .. })
}

impl Engine {
    fn tell_news(&self, news: &News) {
        let target = Subject::Target(news.target);
        match &news.what {
            What::Target(state) => {
                let (severity, name) = weigh(*state);
                let message = format!("volume {}: {}", news.volume, in_words(*state));
                self.tell_as(severity, target, name, message);
            }
            What::Child(replica, ChildState::Faulted { reason }) => {
                let message = format!("copy {replica} is lost: {reason:?}");
                self.tell_as(Severity::Warning, target, EventName::ChildLost, message);
            }
            What::Child(replica, state) => {
                let message = format!("copy {replica} is {state}");
                self.tell(target, EventName::StateChanged, message);
            }
            What::Rebuild(rebuild) => self.tell_rebuild(target, rebuild),
            What::Repaired(replica, span) => {
                let (at, count) = (span.start().0, span.len().0);
                let message = format!("{count} blocks from {at} on were wrong and are rewritten");
                let replica = Subject::Replica(*replica);
                self.tell_as(Severity::Warning, replica, EventName::Corrupted, message);
            }
        }
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

fn weigh(state: TargetState) -> (Severity, EventName) {
    match state {
        TargetState::Shutdown { cause: StopCause::Fenced } => {
            (Severity::Warning, EventName::Fenced)
        }
        TargetState::Held { .. } => (Severity::Error, EventName::StateChanged),
        TargetState::Degraded => (Severity::Warning, EventName::StateChanged),
        _ => (Severity::Info, EventName::StateChanged),
    }
}

fn in_words(state: TargetState) -> String {
    match state {
        TargetState::Held { cause, io } => format!("held: {cause:?}, I/O is {io:?}"),
        TargetState::ShuttingDown { cause } | TargetState::Shutdown { cause } => {
            format!("{state}: {cause:?}")
        }
        _ => state.to_string(),
    }
}

/// Starts the thread.
pub(super) fn start(engine: &Engine, told: Receiver<News>) -> std::io::Result<()> {
    let weak = Arc::downgrade(&engine.0);
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new()
        .name("news".to_owned())
        .spawn(move || tell_on(&told, &weak, &runtime))
        .map(drop)
}
