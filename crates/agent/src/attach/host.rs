//! Who this machine is to the control plane.

use std::time::{Duration, Instant};

use api::rest::{Control as _, Remote, VolumeWish};
use linux::{Tree, machine};
use model::{
    Blame, Heartbeat, HostAddress, HostName, InstanceId, Kind, Nqn, Problem, Volume, VolumeId,
    VolumeTarget,
};
use tokio::runtime::Runtime;

use super::AttachError;
use crate::record::ControlPlane;

/// How long one question may take, and how long what is not ready yet is asked for again.
const PATIENCE: Duration = Duration::from_secs(40);
/// Between questions.
const AGAIN: Duration = Duration::from_millis(200);

/// The control plane, asked and waited for.
pub(super) struct Asker {
    runtime: Runtime,
    remote: Remote,
}

impl Asker {
    pub(super) fn new(control: &ControlPlane) -> Result<Asker, AttachError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(AttachError::io("start the runtime"))?;
        Ok(Asker { remote: control.client(PATIENCE)?, runtime })
    }

    /// Asks until it is answered, or refused for good.
    fn patiently<T, F>(&self, ask: impl Fn(Remote) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, Problem>>,
    {
        let until = Instant::now() + PATIENCE;
        self.runtime.block_on(async {
            loop {
                let problem = match ask(self.remote.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(problem) => problem,
                };
                if problem.kind.blame() != Blame::Retry || Instant::now() > until {
                    return Err(problem);
                }
                tokio::time::sleep(AGAIN).await;
            }
        })
    }

    pub(super) fn volume(&self, volume: VolumeId) -> Result<Volume, AttachError> {
        self.patiently(async |remote| remote.volume(volume).await).map_err(|problem| match problem
            .kind
        {
            Kind::NotFound => AttachError::NoVolume(volume),
            _ => AttachError::Control(problem),
        })
    }

    /// The name with which a host connects; one that nobody knows is registered.
    pub(super) fn host_nqn(&self, host: &HostName, tree: &Tree) -> Result<Nqn, AttachError> {
        let known = self.patiently(async |remote| remote.host(host.clone()).await);
        match known {
            Ok(known) => return Ok(known.spec().address.nqn.clone()),
            Err(problem) if problem.kind == Kind::NotFound => {}
            Err(problem) => return Err(AttachError::Control(problem)),
        }
        let nqn = own_nqn(host, tree)?;
        let heartbeat = Heartbeat {
            instance: new_instance()?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address: HostAddress { nqn: nqn.clone(), agent: None },
            told: None,
        };
        self.patiently(async |remote| {
            remote.host_heartbeat(host.clone(), heartbeat.clone()).await
        })?;
        Ok(nqn)
    }

    /// Lets a host use a volume, and waits until it is served. Whether it was changed for that.
    pub(super) fn publish(
        &self,
        volume: VolumeId,
        host: &HostName,
    ) -> Result<(VolumeTarget, bool), AttachError> {
        let has = |target: &VolumeTarget| target.hosts.contains(host);
        let before = self.volume(volume)?.status.and_then(|status| status.target);
        let change = !before.as_ref().is_some_and(has);
        if change {
            let wish = VolumeWish::Publish { host: Some(host.clone()), node: None };
            let published = self
                .patiently(async |remote| remote.change_volume(volume, wish.clone(), None).await);
            published.map_err(|problem| match problem.kind {
                Kind::AlreadyPublished => AttachError::Elsewhere {
                    volume,
                    hosts: before
                        .iter()
                        .flat_map(|it| &it.hosts)
                        .map(ToString::to_string)
                        .collect(),
                },
                _ => AttachError::Control(problem),
            })?;
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let target = self.volume(volume)?.status.and_then(|status| status.target);
            match target.filter(|target| has(target) && !target.addresses.is_empty()) {
                Some(target) => return Ok((target, change)),
                None if Instant::now() > until => return Err(AttachError::NotServed(volume)),
                None => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Takes the right to use a volume back.
    pub(super) fn unpublish(&self, volume: VolumeId, host: &HostName) -> Result<(), AttachError> {
        let wish = VolumeWish::Unpublish { host: Some(host.clone()), force: false };
        let asked =
            self.patiently(async |remote| remote.change_volume(volume, wish.clone(), None).await);
        match asked {
            Ok(_) => Ok(()),
            Err(problem) if [Kind::NotFound, Kind::NotPublished].contains(&problem.kind) => Ok(()),
            Err(problem) => Err(AttachError::Control(problem)),
        }
    }
}

/// The host that this machine is, unless told otherwise: its own name, as far as it can be one.
pub fn own_name(tree: &Tree) -> Option<HostName> {
    let name = machine::host_name(tree)?.to_ascii_lowercase();
    name.parse().ok().or_else(|| name.split('.').next()?.parse().ok())
}

/// The name with which this machine connects, if nobody knows another.
pub(crate) fn own_nqn(host: &HostName, tree: &Tree) -> Result<Nqn, AttachError> {
    match machine::host_nqn(tree).and_then(|text| text.parse().ok()) {
        Some(nqn) => Ok(nqn),
        None => Ok(format!("nqn.2026-11.io.holdfast:host:{host}").parse()?),
    }
}

/// Which run of a program this is.
pub(crate) fn new_instance() -> Result<InstanceId, AttachError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid");
    Ok(text.map_err(AttachError::io("get randomness"))?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use linux::Kernel;
    use linux::testing::FakeKernel;

    use super::*;

    #[test]
    fn a_machine_is_the_host_of_its_name_and_connects_as_its_administrator_says() {
        let machine = FakeKernel::new();
        assert_eq!(own_name(machine.tree()), None);
        machine.write("proc/sys/kernel/hostname", "DB-7.example.org\n");
        let host = own_name(machine.tree()).unwrap();
        assert!(host.as_str().starts_with("db-7"), "{host}");
        let nqn = own_nqn(&host, machine.tree()).unwrap();
        assert_eq!(nqn.as_str(), format!("nqn.2026-11.io.holdfast:host:{host}"));
        machine.write("etc/nvme/hostnqn", "nqn.2014-08.org.nvmexpress:uuid:1\n");
        let nqn = own_nqn(&host, machine.tree()).unwrap();
        assert_eq!(nqn.as_str(), "nqn.2014-08.org.nvmexpress:uuid:1");
        machine.write("etc/nvme/hostnqn", "nonsense\n");
        assert!(own_nqn(&host, machine.tree()).unwrap().as_str().contains("holdfast"));
    }
}
