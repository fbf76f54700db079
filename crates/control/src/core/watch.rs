//! Watches: addresses that are called when something happens.
//!
//! Deliberately not here: the calls ([`crate::callbacks`]).

use model::{
    EventName, Kind, Problem, Severity, Subject, Watch, WatchChange, WatchName, WatchSpec,
};

use super::batch::Batch;
use super::wishes::{Desk, expect};
use super::{Asked, Core, Done, Entry};

/// How many watches there may be: each may have a call under way.
pub(crate) const MOST_WATCHES: usize = 64;

impl Core {
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
