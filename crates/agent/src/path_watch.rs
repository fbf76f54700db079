//! Whether the paths of attached volumes work, and what the control plane is told about it.
//!
//! ```text
//!            no path works              so for SUSPECT
//!   Good ─────────────────► Suspected ─────────────────► Failed
//!     ▲                        │ a path works               │ a path works
//!     └────────────────────────┴────────────────────────────┘
//! ```
//!
//! A report names every volume that has failed, and the paths of all that are attached: failovers
//! wait until hosts use the new target. It is sent when something changes, a little later so that
//! the loss of a node is one report and not one for each volume, and again as long as it is not
//! empty: the control plane may have restarted, and forgets what is not repeated. The first report
//! of a run is always sent: what another run told may be over.
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
use linux::Tree;
use model::{HostName, PathReport, PathState, PathStatus, VolumeId};

use crate::kernel_paths;
use crate::record::{Records, Transport};

/// How long a volume may be without a path before it has failed.
pub const SUSPECT: Duration = Duration::from_secs(1);
/// How long a report waits for others.
const GATHER: Duration = Duration::from_millis(100);
/// How often it is repeated while something is lost, and while all is well.
const REPEAT: Duration = Duration::from_secs(2);
const REPEAT_WELL: Duration = Duration::from_secs(5);
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Whether a path works.
    pub usable: bool,
    /// Where its path leads.
    pub address: SocketAddr,
    /// All of its paths.
    pub paths: Vec<PathStatus>,
}

/// The paths of all attached volumes.
#[derive(Clone, Debug, Default)]
pub struct PathWatch {
    volumes: BTreeMap<VolumeId, (PathHealth, SocketAddr)>,
    attached: BTreeMap<VolumeId, Vec<PathStatus>>,
    /// The last report that was taken; none: nothing was told in this run.
    taken: Option<PathReport>,
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
        let with_paths = seen.iter().filter(|(_, it)| !it.paths.is_empty());
        self.attached = with_paths.map(|(volume, it)| (*volume, it.paths.clone())).collect();
        if self.taken.as_ref() != Some(&self.report()) {
            self.due.get_or_insert(now.saturating_add(GATHER));
        }
    }

    /// How the paths of a volume are.
    pub fn health(&self, volume: VolumeId) -> Option<PathHealth> {
        self.volumes.get(&volume).map(|(health, _)| *health)
    }

    /// The report to be sent now, if one is due; [`PathWatch::sent`] says what became of it.
    pub fn poll_report(&self, now: Duration) -> Option<PathReport> {
        self.due.filter(|due| *due <= now).map(|_| self.report())
    }

    /// A report was sent, and taken or not.
    pub fn sent(&mut self, now: Duration, report: PathReport, taken: bool) {
        if taken {
            self.taken = Some(report);
        }
        let current = self.report();
        let is_told = self.taken.as_ref() == Some(&current);
        self.due = if taken && !is_told {
            Some(now.saturating_add(GATHER))
        } else if is_told && current == PathReport::default() {
            None
        } else if taken && current.lost.is_empty() {
            Some(now.saturating_add(REPEAT_WELL))
        } else {
            Some(now.saturating_add(REPEAT))
        };
    }

    fn report(&self) -> PathReport {
        let failed = self.volumes.iter().filter(|(_, (health, _))| *health == PathHealth::Failed);
        let lost = failed.map(|(volume, (_, address))| (*volume, *address)).collect();
        PathReport { lost, attached: self.attached.clone() }
    }
}

/// Watches the paths of this machine and reports them, without end.
pub async fn run(remote: &impl Control, host: &HostName, (tree, records): (&Tree, &Records)) {
    let begun = tokio::time::Instant::now();
    let mut watch = PathWatch::default();
    loop {
        watch.observe(begun.elapsed(), &observe(tree, records));
        if let Some(report) = watch.poll_report(begun.elapsed()) {
            let taken = remote.host_paths(host.clone(), report.clone()).await;
            if let Err(problem) = &taken {
                tracing::debug!(%host, %problem, "paths were not reported; will try again");
            }
            watch.sent(begun.elapsed(), report, taken.is_ok());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What the kernel shows, and what the workers of this machine said last.
fn observe(tree: &Tree, records: &Records) -> BTreeMap<VolumeId, Observed> {
    let attached = records.all().unwrap_or_default();
    let seen = attached.into_iter().filter_map(|it| {
        let (usable, paths) = match it.transport {
            Transport::Fuse => {
                let status = records.status(it.volume).filter(|status| !status.dismissed)?;
                (status.usable, status.paths)
            }
            Transport::Nvme => {
                let paths = kernel_paths::observe(tree, &it);
                (paths.iter().any(|path| path.state == PathState::Live), paths)
            }
        };
        let address = paths.first().map(|path| path.address);
        let address = address.or_else(|| it.addresses.first().copied())?;
        Some((it.volume, Observed { usable, address, paths }))
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
            (volume(*number), Observed { usable: *usable, address: at(1), paths: vec![] })
        };
        usable.iter().map(one).collect()
    }

    /// One whose first report was taken, with nothing attached.
    fn begun() -> PathWatch {
        let mut watch = PathWatch::default();
        watch.sent(ms(0), PathReport::default(), true);
        watch
    }

    #[test]
    fn the_first_report_is_sent_although_nothing_is_attached() {
        let mut watch = PathWatch::default();
        watch.observe(ms(0), &BTreeMap::new());
        assert_eq!(watch.poll_report(ms(100)), Some(PathReport::default()));
        watch.sent(ms(100), PathReport::default(), false);
        assert_eq!(watch.poll_report(ms(2100)), Some(PathReport::default()), "it was not taken");
        watch.sent(ms(2100), PathReport::default(), true);
        watch.observe(ms(2500), &BTreeMap::new());
        assert_eq!(watch.poll_report(ms(60_000)), None);
    }

    #[test]
    fn a_path_that_flaps_is_not_reported() {
        let mut watch = begun();
        for turn in 0..100 {
            watch.observe(ms(turn * 500), &seen(&[(1, turn % 2 == 0)]));
            assert_eq!(watch.poll_report(ms(turn * 500)), None);
        }
        assert_ne!(watch.health(volume(1)), Some(PathHealth::Failed));
    }

    #[test]
    fn the_loss_of_a_node_is_one_report_which_is_repeated_until_it_is_over() {
        let mut watch = begun();
        watch.observe(ms(0), &seen(&[(1, false), (2, true), (3, true)]));
        watch.observe(ms(50), &seen(&[(1, false), (2, false), (3, true)]));
        assert_eq!(watch.poll_report(ms(999)), None, "suspected only");
        watch.observe(ms(1000), &seen(&[(1, false), (2, false), (3, true)]));
        assert_eq!(watch.poll_report(ms(1000)), None, "others may follow");
        watch.observe(ms(1100), &seen(&[(1, false), (2, false), (3, true)]));
        let lost = [(volume(1), at(1)), (volume(2), at(1))].into();
        let both = PathReport { lost, ..PathReport::default() };
        assert_eq!(watch.poll_report(ms(1100)), Some(both.clone()));
        watch.sent(ms(1100), both.clone(), false);
        assert_eq!(watch.poll_report(ms(3099)), None);
        assert_eq!(watch.poll_report(ms(3100)), Some(both.clone()), "it was not taken");
        watch.sent(ms(3100), both.clone(), true);
        assert_eq!(watch.poll_report(ms(5100)), Some(both.clone()), "the next one may not know");
        watch.sent(ms(5100), both, true);
        watch.observe(ms(5500), &seen(&[(1, true), (2, true), (3, true)]));
        assert_eq!(watch.poll_report(ms(7100)), Some(PathReport::default()), "all is well");
        watch.sent(ms(7100), PathReport::default(), true);
        assert_eq!(watch.poll_report(ms(60_000)), None);
    }

    #[test]
    fn paths_are_told_when_they_change_and_repeated_while_all_is_well() {
        let mut watch = begun();
        let with = |port: u16| {
            let paths = vec![PathStatus { address: at(port), state: PathState::Live }];
            BTreeMap::from([(volume(1), Observed { usable: true, address: at(port), paths })])
        };
        watch.observe(ms(0), &with(1));
        assert_eq!(watch.poll_report(ms(99)), None);
        let report = watch.poll_report(ms(100)).unwrap();
        assert_eq!(report.attached[&volume(1)][0].address, at(1));
        watch.sent(ms(100), report, true);
        assert_eq!(watch.poll_report(ms(5099)), None);
        assert!(watch.poll_report(ms(5100)).is_some(), "the next control plane does not know");
        watch.observe(ms(200), &with(2));
        let report = watch.poll_report(ms(5100)).unwrap();
        assert_eq!(report.attached[&volume(1)][0].address, at(2), "it is used elsewhere now");
        watch.sent(ms(300), report, true);
        watch.observe(ms(400), &BTreeMap::new());
        let report = watch.poll_report(ms(5300)).unwrap();
        assert_eq!(report, PathReport::default(), "it is detached");
        watch.sent(ms(5300), report, true);
        assert_eq!(watch.poll_report(ms(60_000)), None);
    }

    #[test]
    fn what_is_detached_is_forgotten() {
        let mut watch = begun();
        for time in [0, 1000] {
            watch.observe(ms(time), &seen(&[(1, false)]));
        }
        assert_eq!(watch.health(volume(1)), Some(PathHealth::Failed));
        watch.observe(ms(1100), &seen(&[]));
        assert_eq!(watch.health(volume(1)), None);
        assert_eq!(watch.poll_report(ms(1100)), Some(PathReport::default()));
    }
}
