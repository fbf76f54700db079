//! Looks at pools and targets from time to time, and tells when one is not well any more or well
//! again: disks that die, and commands that do not end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::Duration;

use model::{EventName, PoolName, PoolState, Severity, Subject, TargetId};

use super::engine::{Engine, Inner};
use crate::volumes::{Answer, Order as VolumeOrder};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(10);
/// A host's command that has been at work for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// What was told.
#[derive(Default)]
struct Told {
    pools: BTreeMap<PoolName, PoolState>,
    stuck: BTreeSet<TargetId>,
}

/// Looks until the engine is gone.
pub(super) async fn run(engine: Weak<Inner>) {
    let mut told = Told::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(engine) = engine.upgrade().map(Engine) else { return };
        engine.look_at_pools(&mut told).await;
        engine.look_at_targets(&mut told).await;
    }
}

impl Engine {
    async fn look_at_pools(&self, told: &mut Told) {
        let names: Vec<PoolName> = self.state().pools.keys().cloned().collect();
        told.pools.retain(|name, _| names.contains(name));
        for name in names {
            let Ok(found) = self.find_pool(&name).await else { continue };
            let state = found.status.state;
            let before = told.pools.insert(name.clone(), state.clone());
            let is_news = match &before {
                Some(before) => word(before) != word(&state),
                None => !matches!(state, PoolState::Online | PoolState::Offline),
            };
            if is_news {
                let (severity, message) = in_words(&state);
                self.tell_as(severity, Subject::Pool(name), EventName::StateChanged, message);
            }
        }
    }

    async fn look_at_targets(&self, told: &mut Told) {
        let mut stuck = BTreeSet::new();
        for (target, volume) in self.open_targets() {
            let measured = self.ask_volume(volume, VolumeOrder::Measure).await;
            let Ok(Answer::Measured(measured)) = measured else { continue };
            if measured.oldest < STUCK {
                continue;
            }
            if !told.stuck.contains(&target) {
                let seconds = measured.oldest.as_secs();
                let message = format!("a command of a host has been at work for {seconds} s");
                let (severity, name) = (Severity::Warning, EventName::StateChanged);
                self.tell_as(severity, Subject::Target(target), name, message);
            }
            stuck.insert(target);
        }
        told.stuck = stuck;
    }
}

fn word(state: &PoolState) -> &'static str {
    match state {
        PoolState::Online => "online",
        PoolState::Suspect { .. } => "suspect",
        PoolState::Faulted { .. } => "faulted",
        PoolState::Offline => "offline",
        PoolState::Unknown => "unknown",
    }
}

fn in_words(state: &PoolState) -> (Severity, String) {
    let (severity, symptoms) = match state {
        PoolState::Suspect { symptoms } => (Severity::Warning, &symptoms[..]),
        PoolState::Faulted { symptoms } => (Severity::Error, &symptoms[..]),
        PoolState::Online | PoolState::Offline | PoolState::Unknown => (Severity::Info, &[][..]),
    };
    let mut message = format!("it is {}", word(state));
    for symptom in symptoms {
        message = format!("{message}; {}: {}", symptom.disk, symptom.detail);
    }
    (severity, message)
}
