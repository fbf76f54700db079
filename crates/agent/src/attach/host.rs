//! Who this machine is to the control plane.

use std::time::{Duration, Instant};

use api::rest::{Control as _, Remote, VolumeAction};
use linux::{Tree, machine};
use model::{
    ErrorClass, Heartbeat, HostAddress, HostName, InstanceId, MachineId, Nqn, Problem, ProblemKind,
    Volume, VolumeId, VolumeTarget,
};
use tokio::runtime::Runtime;

use super::AttachError;
use crate::record::ControlPlane;

/// How long one question may take, and how long what is not ready yet is asked for again.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long one question may take whose answer is not needed.
const GLANCE: Duration = Duration::from_secs(3);
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
                if problem.kind.class() != ErrorClass::Retry || Instant::now() > until {
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
            ProblemKind::NotFound => AttachError::NoVolume(volume),
            _ => AttachError::Control(problem),
        })
    }

    /// Makes sure that the name of a host belongs to this machine: one that nobody has is
    /// registered, one that belongs to another machine is refused. A host that was made known by
    /// hand, without a machine, is whoever says so.
    pub(super) fn claim_name(&self, host: &HostName, tree: &Tree) -> Result<Nqn, AttachError> {
        let machine = own_machine(tree)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let known = self.patiently(async |remote| remote.host(host.clone()).await);
            match known.map(|known| known.spec().address.clone()) {
                Ok(known) if known.machine.is_none_or(|it| it == machine) => return Ok(known.nqn),
                Ok(_) => {}
                Err(problem) if problem.kind == ProblemKind::NotFound => {}
                Err(problem) => return Err(AttachError::Control(problem)),
            }
            if Instant::now() > until {
                return Err(AttachError::NotRegistered(host.clone()));
            }
            let address =
                HostAddress { nqn: own_nqn(host, tree)?, agent: None, machine: Some(machine) };
            let heartbeat = Heartbeat {
                instance: new_instance()?,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                address,
                told: None,
            };
            // Two machines may ask at once: which of them has the name is looked at again.
            self.patiently(async |remote| {
                remote.host_heartbeat(host.clone(), heartbeat.clone()).await
            })?;
            std::thread::sleep(AGAIN);
        }
    }

    /// Refuses if the name of the host has become another machine's. Once a volume is published to
    /// it, it cannot any more.
    pub(super) fn check_name(&self, host: &HostName, tree: &Tree) -> Result<(), AttachError> {
        let machine = own_machine(tree)?;
        let known = self.patiently(async |remote| remote.host(host.clone()).await)?;
        match known.spec().address.machine {
            Some(other) if other != machine => Err(AttachError::NotRegistered(host.clone())),
            _ => Ok(()),
        }
    }

    /// With which name the host may connect to the volume now; nothing while no target says so.
    /// Asked once: who cannot be reached does not hold up what is attached already.
    pub(super) fn publication(&self, volume: VolumeId, host: &HostName) -> Option<Publication> {
        let asked = async { tokio::time::timeout(GLANCE, self.remote.volume(volume)).await };
        let found = self.runtime.block_on(asked).ok()?.ok()?;
        let target = found.status?.target?;
        Some(Publication::of(&target, host))
    }

    /// Lets a host use a volume, if it may not yet and that is for us to decide, and waits until it
    /// is served. Whether it was changed for that.
    pub(super) fn publish(
        &self,
        volume: VolumeId,
        host: &HostName,
        publishing: Publishing,
    ) -> Result<(VolumeTarget, bool), AttachError> {
        let has = |target: &VolumeTarget| target.hosts.contains(host);
        let before = self.volume(volume)?.status.and_then(|status| status.target);
        let change = !before.as_ref().is_some_and(has);
        if change && publishing == Publishing::ByOthers {
            return Err(AttachError::NotPublished { volume, host: host.clone() });
        }
        if change {
            let action = VolumeAction::Publish { host: Some(host.clone()), node: None };
            let published = self
                .patiently(async |remote| remote.change_volume(volume, action.clone(), None).await);
            published.map_err(|problem| match problem.kind {
                ProblemKind::AlreadyPublished => AttachError::Elsewhere {
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
        let action = VolumeAction::Unpublish { host: Some(host.clone()), force: false };
        let asked =
            self.patiently(async |remote| remote.change_volume(volume, action.clone(), None).await);
        match asked {
            Ok(_) => Ok(()),
            Err(problem)
                if [ProblemKind::NotFound, ProblemKind::NotPublished].contains(&problem.kind) =>
            {
                Ok(())
            }
            Err(problem) => Err(AttachError::Control(problem)),
        }
    }
}

/// What a target says of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Publication {
    /// It may connect, with this name; none where a control plane does not tell it.
    Admitted(Option<Nqn>),
    /// It may not.
    Dismissed,
}

impl Publication {
    pub(crate) fn of(target: &VolumeTarget, host: &HostName) -> Publication {
        if target.hosts.contains(host) {
            Publication::Admitted(target.host_nqns.get(host).cloned())
        } else {
            Publication::Dismissed
        }
    }

    /// Whether something that connects with this name belongs to it. Who was dismissed once never
    /// belongs to a later publication: others may have written meanwhile.
    pub(crate) fn admits(&self, nqn: &Nqn) -> bool {
        match self {
            Publication::Admitted(name) => name.as_ref().is_none_or(|name| name == nqn),
            Publication::Dismissed => false,
        }
    }
}

/// Who publishes a volume that is to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publishing {
    /// Attach, where it is not published yet.
    AsNeeded,
    /// Somebody else, before: who keeps account of publications is not to be surprised by one.
    ByOthers,
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

/// Which machine this is, whatever its name.
pub fn own_machine(tree: &Tree) -> Result<MachineId, AttachError> {
    let identity = machine::identity(tree).map_err(AttachError::io(
        "read what identifies this machine, /sys/class/dmi/id/product_uuid: run it as root",
    ))?;
    let identity = identity.ok_or(AttachError::NoIdentity)?;
    // Hashed, as its owner asks of whoever shows it around; under a name that nobody else hashes.
    let name = ::nvme::wire::Nqn::new(&format!("nqn.2026-11.io.holdfast:machine:{identity}"));
    let hashed = engine::serve::identity_of(&name.map_err(|_| AttachError::NoIdentity)?, 0).uuid;
    Ok(hyphenated(hashed).parse()?)
}

/// A UUID as it is written.
pub(super) fn hyphenated(bytes: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let at = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)].join("-")
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
    fn a_machine_is_known_by_more_than_its_name() {
        let [one, other] = [FakeKernel::new(), FakeKernel::new()];
        let said = own_machine(one.tree()).unwrap_err().to_string();
        assert!(said.contains("systemd-machine-id-setup"), "{said}");
        for machine in [&one, &other] {
            machine.write("etc/machine-id", "3d1219c7c4c5404aaa1f6d2a48adfda4\n");
        }
        assert_eq!(own_machine(one.tree()).unwrap(), own_machine(other.tree()).unwrap());
        other.write("sys/class/dmi/id/product_uuid", "4c4c4544-0042\n");
        assert_ne!(own_machine(one.tree()).unwrap(), own_machine(other.tree()).unwrap());
        let shown = own_machine(one.tree()).unwrap().to_string().replace('-', "");
        assert_ne!(shown, "3d1219c7c4c5404aaa1f6d2a48adfda4", "the id itself is not shown");
    }

    #[test]
    fn what_was_connected_before_a_host_was_dismissed_is_never_admitted_again() {
        let nqn =
            |text: &str| -> Nqn { format!("nqn.2026-11.io.holdfast:{text}").parse().unwrap() };
        let first = Publication::Admitted(Some(nqn("first")));
        assert!(first.admits(&nqn("first")) && !first.admits(&nqn("second")));
        assert!(!Publication::Dismissed.admits(&nqn("first")));
        assert!(!Publication::Admitted(Some(nqn("second"))).admits(&nqn("first")));
    }

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
