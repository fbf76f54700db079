//! A store that refuses to write: it is full, or has too much to do.
//!
//! Nothing was written, so what is known here is still what is stored, and the term goes on.
//! Whoever asked for something is told why it was not done. Nothing is driven and nothing planned
//! before a pause has passed, each time a longer one: a term that ended instead would read
//! everything again, which is what a busy store can use least.

use std::time::Duration;

use model::{Problem, Timestamp};

use super::batch::Batch;
use super::engine_object::back_off;
use super::{Controller, Effect, Entry};

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(10);

/// When the store is asked again.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreBackoff {
    refusals: u32,
    until: Option<Timestamp>,
    problem: Option<Problem>,
}

impl StoreBackoff {
    /// Until when nothing is written, if that is still to come.
    pub(crate) fn until(&self, now: Timestamp) -> Option<Timestamp> {
        self.until.filter(|until| *until > now)
    }
}

impl Controller {
    /// The store has written something.
    pub(crate) fn store_accepts(&mut self) {
        self.store_backoff = StoreBackoff::default();
    }

    /// Why nothing is written now.
    pub(crate) fn why_not_written(&self) -> Option<Problem> {
        self.store_backoff.until(self.now)?;
        self.store_backoff.problem.clone()
    }

    /// The store refused a batch, and has written nothing of it.
    pub(crate) fn on_denied(&mut self, batch: &Batch, problem: Problem) {
        let backoff = &mut self.store_backoff;
        if backoff.refusals == 0 {
            tracing::warn!(%problem, "the store refuses a write; it is asked again after a pause");
        }
        let until = self.now.after(back_off(backoff.refusals).min(LONGEST));
        backoff.refusals = backoff.refusals.saturating_add(1);
        (backoff.until, backoff.problem) = (Some(until), Some(problem.clone()));
        if let Some(reconciling) = &batch.reconciling {
            self.wake(until, reconciling.clone());
        }
        // What the planner wanted it wants again.
        self.replan = true;
        for entry in batch.puts() {
            match entry {
                Entry::Sequence(_) => self.sequence_timer.is_wanted = true,
                Entry::Webhook(watch) => drop(self.unnoted.insert(watch.id().clone())),
                _ => {}
            }
        }
        if let Some(volume) = batch.confirms {
            self.confirmed(volume, false);
        }
        if let Some(asked) = &batch.asked {
            self.stop_waiting(asked.ticket);
            self.out.push(Effect::Reply(asked.ticket, Err(problem)));
        }
    }
}
