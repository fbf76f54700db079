//! Watches: addresses that are called when something happens.
//!
//! How far the calls of a watch went is stored with it, a moment later: after a change of leader
//! some events are posted again, and none is left out.
//!
//! Deliberately not here: the calls ([`crate::callbacks`]).

use std::time::Duration;

use model::{
    EventName, Kind, Problem, Severity, Subject, Timestamp, Watch, WatchChange, WatchName,
    WatchSpec, WatchStatus, keys,
};

use super::batch::Batch;
use super::wishes::{Desk, expect};
use super::{Asked, Core, Done, Entry};

/// How many watches there may be: each may have a call under way.
pub(crate) const MOST_WATCHES: usize = 64;

/// The least time between two writes of how far calls went.
const NOTE_EVERY: Duration = Duration::from_millis(500);

impl Core {
    /// Calls were made, or were in vain.
    pub(crate) fn on_called(&mut self, name: WatchName, made: Timestamp, status: WatchStatus) {
        let Some(watch) = self.state.watches.get_mut(&name) else { return };
        if watch.created_at() != made {
            return;
        }
        let went_on = |it: &WatchStatus| (it.after, it.delivered, it.missed);
        if watch.status.as_ref().map(went_on) != Some(went_on(&status)) {
            self.unnoted.insert(name);
        }
        watch.status = Some(status);
    }

    /// When the store is to be told how far calls went.
    pub(crate) fn calls_noted_at(&self) -> Option<Timestamp> {
        // Those that are due now and still here are locked: the store's answer wakes.
        (!self.unnoted.is_empty() && self.note_at > self.now).then_some(self.note_at)
    }

    /// Tells the store how far calls went, of all watches at once.
    pub(crate) fn note_calls(&mut self) {
        if self.unnoted.is_empty() || self.note_at > self.now {
            return;
        }
        let mut batch = Batch::new();
        for name in std::mem::take(&mut self.unnoted) {
            let Some(watch) = self.state.watches.get(&name) else { continue };
            if self.is_locked(&keys::of::<Watch>(&name)) {
                self.unnoted.insert(name);
            } else {
                batch = batch.put(watch.clone());
            }
        }
        if !batch.is_empty() {
            self.note_at = self.now.after(NOTE_EVERY);
            self.try_commit(batch);
        }
    }

    pub(crate) fn decide_create_watch(
        &self,
        desk: &mut Desk<'_, '_>,
        asked: &Asked,
        name: &WatchName,
        spec: &WatchSpec,
    ) -> Result<Batch, Problem> {
        if let Some(have) = self.state.watches.get(name) {
            have.again(spec)?;
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        }
        if self.state.watches.len() + self.coming_watches() + desk.watches >= MOST_WATCHES {
            let detail = format!(
                "there are {MOST_WATCHES} watches already; delete one, or let one address hear of \
                 more things"
            );
            return Err(Problem::new(Kind::CapacityLimit, detail));
        }
        desk.watches += 1;
        let mut watch = Watch::new(name.clone(), spec.clone(), self.now)?;
        watch.made()?;
        let after = self.state.last_event();
        watch.status = Some(WatchStatus { after, ..WatchStatus::default() });
        let batch = Batch::new().put(watch).reply(asked.ticket, Done::Created);
        Ok(told(batch, name, EventName::Created, "it is called from now on"))
    }

    /// How many are being stored.
    fn coming_watches(&self) -> usize {
        let puts = self.writes.values().flat_map(Batch::puts);
        let is_new = |entry: &&Entry| match entry {
            Entry::Watch(watch) => !self.state.watches.contains_key(watch.id()),
            _ => false,
        };
        puts.filter(is_new).count()
    }

    pub(crate) fn decide_change_watch(
        &self,
        asked: &Asked,
        name: &WatchName,
        change: &WatchChange,
    ) -> Result<Batch, Problem> {
        let watch = self.known::<WatchSpec>(name)?;
        expect(watch, asked)?;
        let mut watch = watch.clone();
        let before = watch.spec().clone();
        watch.change(change.clone(), self.now)?;
        if *watch.spec() == before {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        }
        let batch = Batch::new().put(watch).reply(asked.ticket, Done::Changed);
        Ok(told(batch, name, EventName::Changed, "it was told to watch or to call otherwise"))
    }

    pub(crate) fn decide_delete_watch(
        &self,
        asked: &Asked,
        name: &WatchName,
    ) -> Result<Batch, Problem> {
        let Some(watch) = self.state.watches.get(name) else {
            return Ok(Batch::new().reply(asked.ticket, Done::Unchanged));
        };
        expect(watch, asked)?;
        let batch = Batch::new().drop(watch.clone()).reply(asked.ticket, Done::Gone);
        Ok(told(batch, name, EventName::Deleted, "it is called no more"))
    }
}

/// The event names the watch and not its address, which may be nobody else's business.
fn told(batch: Batch, name: &WatchName, event: EventName, message: &str) -> Batch {
    batch.tell(Subject::Watch(name.clone()), event, Severity::Info, message)
}
