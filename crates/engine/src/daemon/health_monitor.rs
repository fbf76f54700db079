//! Looks at pools and targets from time to time, and tells when one is not well any more or well
//! again: disks that die, and commands that do not end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::Duration;

use model::{EventName, PoolName, PoolState, Severity, Subject, TargetId};

use super::engine::{Engine, Inner, STUCK};
use crate::volumes::{VolumeRequest, VolumeResponse};

/// How often it looks.
const EVERY: Duration = Duration::from_secs(10);

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
        let mut oldest = BTreeMap::new();
        for (target, volume) in self.open_targets() {
            let measured = self.ask_volume(volume, VolumeRequest::Measure).await;
            if let Ok(VolumeResponse::Measured(measured)) = measured {
                oldest.insert(target, measured.oldest);
            }
        }
        for (target, severity, message) in told.hear(&oldest) {
            self.tell_as(severity, Subject::Target(target), EventName::StateChanged, message);
        }
    }
}

impl Told {
    /// What is new, of targets whose oldest command has been at work for so long.
    fn hear(&mut self, oldest: &BTreeMap<TargetId, Duration>) -> Vec<(TargetId, Severity, String)> {
        let mut news = Vec::new();
        // One that was closed has nothing to tell.
        self.stuck.retain(|target| oldest.contains_key(target));
        for (target, age) in oldest {
            if *age >= STUCK && self.stuck.insert(*target) {
                let seconds = age.as_secs();
                let message = format!(
                    "a command of a host has been at work for {seconds} s; look at the children \
                     of the target and at their disks"
                );
                news.push((*target, Severity::Warning, message));
            } else if *age < STUCK && self.stuck.remove(target) {
                news.push((*target, Severity::Info, "commands of hosts end again".to_owned()));
            }
        }
        news
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_command_is_told_once_and_so_is_its_end() {
        let target: TargetId = "00000000-0000-4000-8000-000000000040".parse().unwrap();
        let mut told = Told::default();
        let mut check = |seconds: Option<u64>, expected: &[Severity]| {
            let age = seconds.map(|seconds| (target, Duration::from_secs(seconds)));
            let news = told.hear(&age.into_iter().collect());
            let severities: Vec<Severity> = news.iter().map(|(_, severity, _)| *severity).collect();
            assert_eq!(severities, expected, "{seconds:?}: {news:?}");
        };
        check(Some(29), &[]);
        check(Some(30), &[Severity::Warning]);
        check(Some(40), &[]);
        check(Some(3), &[Severity::Info]);
        check(Some(3), &[]);
        check(Some(31), &[Severity::Warning]);
        // It is closed, and opened again.
        check(None, &[]);
        check(Some(0), &[]);
    }
}
