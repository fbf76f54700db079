//! Whether the paths of attached volumes work, and what the control plane is told about it.
//!
//! ```text
//!            no path works              so for SUSPECT
//!   Good ─────────────────► Suspected ─────────────────► Failed
//!     ▲                        │ a path works               │ a path works
//!     └────────────────────────┴────────────────────────────┘
//! ```
//!
//! A report names every volume that has failed. It is sent when that changes, a little later so
//! that the loss of a node is one report and not one for each volume, and again as long as it is
//! not empty: the control plane may have restarted, and forgets what is not repeated.
//!
//! Invariants:
//! - A volume is reported only when no path of it has worked for [`SUSPECT`] without a break.
//! - A report that was not taken is sent again, and so is an empty one after one that was not.
//!
//! Not here: what becomes of a report (`control`), how paths are connected (`worker`).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::rest::Control;
use model::{HostName, PathReport, VolumeId};

use crate::record::{Records, Transport};

/// How long a volume may be without a path before it has failed.
pub const SUSPECT: Duration = Duration::from_secs(1);
/// How long a report waits for others.
const GATHER: Duration = Duration::from_millis(100);
/// How often it is repeated.
const REPEAT: Duration = Duration::from_secs(2);
/// How often workers are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// How the paths of a volume are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathHealth {
    /// One works.
    Good,
    /// None has worked since then.
    Suspected {
        /// Since when.
        since: Duration,
    },
    /// None has worked for too long.
    Failed,
}

/// What is seen of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Whether a path works.
    pub usable: bool,
    /// Where its path leads.
    pub address: SocketAddr,
}

/// What is lost, by volume.
pub type Lost = BTreeMap<VolumeId, SocketAddr>;

/// The paths of all attached volumes.
#[derive(Clone, Debug, Default)]
pub struct PathWatch {
    volumes: BTreeMap<VolumeId, (PathHealth, SocketAddr)>,
    /// The last report that was taken.
    taken: Lost,
    /// When the next report may be sent; none: there is nothing to say.
    due: Option<Duration>,
}

impl PathWatch {
    /// Everything that is attached, as it is seen at a time. What is not among it is forgotten.
    pub fn observe(&mut self, now: Duration, seen: &BTreeMap<VolumeId, Observed>) {
        self.volumes.retain(|volume, _| seen.contains_key(volume));
        for (volume, observed) in seen {
            let before = self.volumes.get(volume).map_or(PathHealth::Good, |(health, _)| *health);
            let health = match (observed.usable, before) {
                (true, _) => PathHealth::Good,
                (false, PathHealth::Good) => PathHealth::Suspected { since: now },
                (false, PathHealth::Suspected { since })
                    if now.saturating_sub(since) >= SUSPECT =>
                {
                    PathHealth::Failed
                }
                (false, before) => before,
            };
            self.volumes.insert(*volume, (health, observed.address));
        }
        if self.lost() != self.taken {
            self.due.get_or_insert(now.saturating_add(GATHER));
        }
    }

    /// How the paths of a volume are.
    pub fn health(&self, volume: VolumeId) -> Option<PathHealth> {
        self.volumes.get(&volume).map(|(health, _)| *health)
    }

    /// The report to be sent now, if one is due; [`PathWatch::sent`] says what became of it.
    pub fn poll_report(&self, now: Duration) -> Option<Lost> {
        self.due.filter(|due| *due <= now).map(|_| self.lost())
    }

    /// A report was sent, and taken or not.
    pub fn sent(&mut self, now: Duration, report: Lost, taken: bool) {
        if taken {
            self.taken = report;
        }
        let is_over = self.taken.is_empty() && self.lost().is_empty();
        self.due = (!is_over).then(|| now.saturating_add(REPEAT));
        if taken && self.lost() != self.taken {
            self.due = Some(now.saturating_add(GATHER));
        }
    }

    fn lost(&self) -> Lost {
        let failed = self.volumes.iter().filter(|(_, (health, _))| *health == PathHealth::Failed);
        failed.map(|(volume, (_, address))| (*volume, *address)).collect()
    }
}

/// Watches the workers of this machine and reports what they have lost, without end.
pub async fn run(remote: &impl Control, host: &HostName, records: &Records) {
    let begun = tokio::time::Instant::now();
    let mut watch = PathWatch::default();
    loop {
        watch.observe(begun.elapsed(), &observe(records));
        if let Some(lost) = watch.poll_report(begun.elapsed()) {
            let report = PathReport { lost: lost.clone() };
            let taken = remote.host_paths(host.clone(), report).await;
            if let Err(problem) = &taken {
                tracing::debug!(%host, %problem, "paths were not reported; will try again");
            }
            watch.sent(begun.elapsed(), lost, taken.is_ok());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What the workers of this machine said last.
fn observe(records: &Records) -> BTreeMap<VolumeId, Observed> {
    let attached = records.all().unwrap_or_default();
    let by_worker = attached.into_iter().filter(|it| it.transport == Transport::Fuse);
    let seen = by_worker.filter_map(|it| {
        let status = records.status(it.volume).filter(|status| !status.dismissed)?;
        let address = status.paths.first().map(|path| path.address);
        let address = address.or_else(|| it.addresses.first().copied())?;
        Some((it.volume, Observed { usable: status.usable, address }))
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(number: u32) -> VolumeId {
        format!("00000000-0000-4000-8000-{number:012}").parse().unwrap()
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn seen(usable: &[(u32, bool)]) -> BTreeMap<VolumeId, Observed> {
        let one = |(number, usable): &(u32, bool)| {
            (volume(*number), Observed { usable: *usable, address: at(1) })
        };
        usable.iter().map(one).collect()
    }

    #[test]
    fn a_path_that_flaps_is_not_reported() {
        let mut watch = PathWatch::default();
        for turn in 0..100 {
            watch.observe(ms(turn * 500), &seen(&[(1, turn % 2 == 0)]));
            assert_eq!(watch.poll_report(ms(turn * 500)), None);
        }
        assert_ne!(watch.health(volume(1)), Some(PathHealth::Failed));
    }

    #[test]
    fn the_loss_of_a_node_is_one_report_which_is_repeated_until_it_is_over() {
        let mut watch = PathWatch::default();
        watch.observe(ms(0), &seen(&[(1, false), (2, true), (3, true)]));
        watch.observe(ms(50), &seen(&[(1, false), (2, false), (3, true)]));
        assert_eq!(watch.poll_report(ms(999)), None, "suspected only");
        watch.observe(ms(1000), &seen(&[(1, false), (2, false), (3, true)]));
        assert_eq!(watch.poll_report(ms(1000)), None, "others may follow");
        watch.observe(ms(1100), &seen(&[(1, false), (2, false), (3, true)]));
        let both: Lost = [(volume(1), at(1)), (volume(2), at(1))].into();
        assert_eq!(watch.poll_report(ms(1100)), Some(both.clone()));
        watch.sent(ms(1100), both.clone(), false);
        assert_eq!(watch.poll_report(ms(3099)), None);
        assert_eq!(watch.poll_report(ms(3100)), Some(both.clone()), "it was not taken");
        watch.sent(ms(3100), both.clone(), true);
        assert_eq!(watch.poll_report(ms(5100)), Some(both.clone()), "the next one may not know");
        watch.sent(ms(5100), both, true);
        watch.observe(ms(5500), &seen(&[(1, true), (2, true), (3, true)]));
        assert_eq!(watch.poll_report(ms(7100)), Some(Lost::new()), "all is well");
        watch.sent(ms(7100), Lost::new(), true);
        assert_eq!(watch.poll_report(ms(60_000)), None);
    }

    #[test]
    fn what_is_detached_is_forgotten() {
        let mut watch = PathWatch::default();
        for time in [0, 1000] {
            watch.observe(ms(time), &seen(&[(1, false)]));
        }
        assert_eq!(watch.health(volume(1)), Some(PathHealth::Failed));
        watch.observe(ms(1100), &seen(&[]));
        assert_eq!(watch.health(volume(1)), None);
        assert_eq!(watch.poll_report(ms(1100)), Some(Lost::new()));
    }
}
