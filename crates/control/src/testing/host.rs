//! A host: its agent says that it is there and which paths it has, and follows targets that move.

use std::collections::BTreeMap;

use model::{
    Heartbeat, HostAddress, HostName, InstanceId, MachineId, Nqn, PathReport, PathState,
    PathStatus, ValidationError, VolumeId, VolumeTarget,
};

/// What a host does about its paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostConduct {
    /// It follows, one step at a time: connects the new path, waits for it, drops the old one.
    #[default]
    Follows,
    /// It says that it is there, and keeps the paths that it has.
    Stays,
    /// It says nothing any more.
    Silent,
}

/// A machine that uses volumes.
#[derive(Clone, Debug)]
pub struct HostAgent {
    instance: InstanceId,
    address: HostAddress,
    /// What it does.
    pub conduct: HostConduct,
    /// The paths of each volume that it has attached.
    pub attached: BTreeMap<VolumeId, Vec<PathStatus>>,
}

impl HostAgent {
    /// The host of this name, with nothing attached.
    pub fn new(name: &HostName) -> Result<HostAgent, ValidationError> {
        let nqn: Nqn = format!("nqn.2026-11.io.example:{name}").parse()?;
        let machine: MachineId = "00000000-0000-4000-b000-000000000001".parse()?;
        Ok(HostAgent {
            instance: "00000000-0000-4000-8000-000000000001".parse()?,
            address: HostAddress { nqn, agent: None, machine: Some(machine) },
            conduct: HostConduct::default(),
            attached: BTreeMap::new(),
        })
    }

    pub(crate) fn heartbeat(&self) -> Heartbeat<HostAddress> {
        let (instance, address) = (self.instance, self.address.clone());
        Heartbeat { instance, version: "1".into(), address, told: None }
    }

    pub(crate) fn report(&self) -> PathReport {
        PathReport { lost: BTreeMap::new(), attached: self.attached.clone() }
    }

    /// One step towards a target that serves.
    pub(crate) fn follow(&mut self, volume: VolumeId, target: &VolumeTarget) {
        let Some(paths) = self.attached.get_mut(&volume) else { return };
        let leads_there = |path: &PathStatus| target.addresses.contains(&path.address);
        match paths.iter_mut().find(|path| leads_there(path)) {
            None => {
                let state = PathState::Connecting;
                let new = target.addresses.first();
                paths.extend(new.map(|address| PathStatus { address: *address, state }));
            }
            Some(path) if path.state != PathState::Live => path.state = PathState::Live,
            Some(_) => paths.retain(leads_there),
        }
    }
}
