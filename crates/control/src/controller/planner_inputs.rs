//! What is left alone for a while, what space is spoken for, since when copies are missing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::{Lifecycle, Replica, ReplicaState, Size, Subject, VolumeChange};
use planner::{Reservation, View};

use super::engine_object::back_off;
use super::replica::is_going;
use super::{Batch, Call, Controller, Entry};

/// Failures before this count at the first step of the back-off.
const FIRST_STEP: u32 = 3;
/// So long after its rest is over, a failure is forgotten.
const FORGIVEN: Duration = Duration::from_mins(5);

/// What planning cost in this term.
#[derive(Debug, Default)]
pub struct WorkCounts {
    plans: AtomicU64,
    plan_micros: AtomicU64,
    views: AtomicU64,
}

impl WorkCounts {
    pub(crate) fn count_plan(&self, took: Duration) {
        self.plans.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.plan_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// How many plans were made.
    pub fn plans(&self) -> u64 {
        self.plans.load(Ordering::Relaxed)
    }

    /// How long that took, together.
    pub fn plan_time(&self) -> Duration {
        Duration::from_micros(self.plan_micros.load(Ordering::Relaxed))
    }

    /// How often everything that is known was indexed: each costs as much as there is.
    pub fn views(&self) -> u64 {
        self.views.load(Ordering::Relaxed)
    }
}

impl Controller {
    /// What planning cost in this term.
    pub fn work(&self) -> &WorkCounts {
        &self.work
    }

    /// An index over all that is known now.
    pub(crate) fn view(&self) -> View<'_> {
        self.work.views.fetch_add(1, Ordering::Relaxed);
        View::new(&self.state.facts, &self.settings, self.now)
    }

    /// A repair failed: the thing is left alone for a while, each time longer.
    pub(crate) fn back_off_volume(&mut self, subject: Subject) {
        let tries = self.back_offs.get(&subject).map_or(0, |(tries, _)| *tries);
        let until = self.now.after(back_off(tries + FIRST_STEP));
        self.wake(until, subject.clone());
        self.back_offs.insert(subject, (tries + 1, until));
    }

    /// Space that is spoken for by writes under way.
    pub(crate) fn refresh_reservations(&mut self) {
        let mut reservations = Vec::new();
        for entry in self.writes.values().flat_map(Batch::puts) {
            let Entry::Replica(replica) = entry else { continue };
            if self.state.facts.replicas.contains_key(replica.id()) {
                continue;
            }
            let spec = replica.spec();
            let bytes = if spec.thin { Size::ZERO } else { spec.size };
            let (pool, committed) = (spec.pool.clone(), spec.size);
            reservations.push(Reservation { pool, bytes, committed });
        }
        self.state.facts.reservations = reservations;
    }

    /// Since when copies that should be there cannot be used.
    pub(crate) fn refresh_missing(&mut self) {
        let mut missing = Vec::new();
        let mut found = Vec::new();
        for (id, replica) in &self.state.facts.replicas {
            let known = self.state.facts.missing.contains_key(id);
            if self.answers(replica) {
                found.extend(known.then_some(*id));
            } else if !known && matches!(replica.lifecycle(), Lifecycle::Created { .. }) {
                missing.push(*id);
            }
        }
        for id in found {
            self.state.facts.missing.remove(&id);
        }
        for id in missing {
            self.state.facts.missing.insert(id, self.now);
        }
    }

    /// Whether a copy can be read and written now, as far as its node says.
    pub(crate) fn answers(&self, replica: &Replica) -> bool {
        let online = replica.status.as_ref().is_some_and(|it| it.state == ReplicaState::Online);
        online
            && self.state.node_of(&replica.spec().pool).is_some_and(|node| {
                node.status.as_ref().is_some_and(|status| status.liveness.is_online())
            })
    }

    /// Whether a copy holds every acknowledged write, as far as is recorded.
    pub(crate) fn is_in_sync(&self, replica: &Replica) -> bool {
        self.state.facts.is_in_sync(replica)
    }

    /// What nothing is planned for: it is being worked on, or its repair failed a moment ago.
    pub(crate) fn refresh_busy(&mut self) {
        let now = self.now;
        self.back_offs.retain(|_, (_, until)| until.after(FORGIVEN) > now);
        let resting = self.back_offs.iter().filter(|(_, (_, until))| *until > now);
        let mut busy: BTreeSet<Subject> = resting.map(|(subject, _)| subject.clone()).collect();
        for (subject, engine_object) in &self.engine_objects {
            let call = engine_object.call.and_then(|id| self.calls.get(&id));
            let compares = call.is_some_and(|call| matches!(call.call, Call::CheckTarget(..)));
            if engine_object.call.is_some() && !compares {
                busy.insert(subject.clone());
                busy.extend(self.volume_of(subject));
            }
        }
        for entry in self.writes.values().flat_map(Batch::puts) {
            let subject = entry.subject();
            busy.extend(subject.as_ref().and_then(|subject| self.volume_of(subject)));
            busy.extend(subject);
        }
        let facts = &self.state.facts;
        for (id, volume) in &facts.volumes {
            let planned = match volume.lifecycle() {
                Lifecycle::Created { operation } => matches!(
                    operation.as_ref().map(|operation| &operation.change),
                    None | Some(VolumeChange::SetReplicas { .. } | VolumeChange::Resize { .. })
                ),
                _ => false,
            };
            if !planned {
                busy.insert(Subject::Volume(*id));
            }
        }
        for (id, target) in &facts.targets {
            let engine_object = self.engine_objects.get(&Subject::Target(*id));
            let is_held = engine_object
                .is_some_and(|engine_object| engine_object.applied == Some(target.generation()));
            let known = target.status.is_some();
            let online = self.state.is_online(&target.spec().node);
            // One that was replaced has nothing to do but to go.
            let counts = known && online && !is_going(target) && !target.spec().shutdown;
            if !is_held && counts {
                busy.insert(Subject::Volume(target.spec().volume));
            }
        }
        for (id, replica) in &facts.replicas {
            if matches!(replica.lifecycle(), Lifecycle::Creating {}) {
                busy.insert(Subject::Volume(replica.spec().volume));
                busy.insert(Subject::Replica(*id));
            }
        }
        for (id, snapshot) in &facts.snapshots {
            if !matches!(snapshot.lifecycle(), Lifecycle::Created { .. }) {
                busy.insert(Subject::Snapshot(*id));
            }
        }
        busy.extend(self.disputed_subjects());
        self.state.facts.busy = busy;
    }

    fn volume_of(&self, subject: &Subject) -> Option<Subject> {
        let facts = &self.state.facts;
        let volume = match subject {
            Subject::Replica(id) => facts.replicas.get(id)?.spec().volume,
            Subject::Target(id) => facts.targets.get(id)?.spec().volume,
            Subject::Snapshot(id) => facts.snapshots.get(id)?.spec().volume,
            _ => return None,
        };
        Some(Subject::Volume(volume))
    }
}
