//! What can be changed about a subsystem that is served.

use std::collections::BTreeMap;

use block::{Blocks, Bytes, Geometry};
use nvme::target::Hosts;
use nvme::wire::{AnaState, Nqn};
use reactor::{Access, Io};

use super::config::{Backing, Host, Subsystem};
use super::exported_subsystem::{ExportedSubsystem, keys_of};
use super::handle::{AdminError, AdminResponse};
use super::host_connection::JobOrigin;
use crate::device::{DeviceId, Devices, OpenError};

impl ExportedSubsystem {
    /// Whether it is served like this, after all the orders that came.
    pub(super) fn is_like(&self, wanted: &Subsystem) -> bool {
        self.wanted == *wanted
    }

    /// Who may connect.
    pub(super) fn hosts(&self) -> Hosts {
        self.wanted.hosts()
    }

    /// Sets the state of this path to a namespace.
    pub(super) fn set_ana(
        &mut self,
        nsid: u32,
        state: AnaState,
    ) -> Result<AdminResponse, AdminError> {
        let nqn = self.subsystem.nqn().clone();
        let missing = || AdminError::NoNamespace { nqn: nqn.clone(), nsid };
        let namespace = self.subsystem.namespace(nsid).ok_or_else(missing)?;
        let group = namespace.config().ana_group;
        let Ok(changed) = self.subsystem.set_ana(group, state) else { return Err(missing()) };
        if let Some(namespace) = self.wanted.namespaces.get_mut(&nsid) {
            namespace.ana = state;
        }
        Ok(AdminResponse::of(changed))
    }

    /// Sets who may connect, and with which secrets.
    pub(super) fn set_hosts(&mut self, hosts: BTreeMap<Nqn, Host>) -> AdminResponse {
        let changed = self.wanted.hosts != hosts;
        if changed {
            self.keys = keys_of(&hosts);
            self.wanted.hosts = hosts;
            self.subsystem.set_hosts(self.wanted.hosts());
            self.subsystem.set_single_association(self.wanted.single_associations());
        }
        AdminResponse::of(changed)
    }

    /// Lets a namespace have more blocks.
    pub(super) fn grow(
        &mut self,
        nsid: u32,
        asked: Bytes,
        devices: &mut Devices<JobOrigin>,
        io: &mut impl Io,
    ) -> Result<AdminResponse, AdminError> {
        let nqn = self.subsystem.nqn().clone();
        let missing = || AdminError::NoNamespace { nqn: nqn.clone(), nsid };
        let device = self.device(nsid).ok_or_else(missing)?;
        let has = devices.geometry(device).ok_or_else(missing)?;
        let geometry = Geometry::of_bytes(has.block_size(), asked)
            .map_err(|source| AdminError::Geometry { nqn: nqn.clone(), nsid, source })?;
        if geometry == has {
            return Ok(AdminResponse::Unchanged);
        }
        let shrinks = || AdminError::Shrinks { nqn: nqn.clone(), nsid, has: has.bytes(), asked };
        if geometry.blocks() < has.blocks() {
            return Err(shrinks());
        }
        let namespace = self.wanted.namespaces.get_mut(&nsid).ok_or_else(missing)?;
        match &mut namespace.backing {
            Backing::Memory(size) | Backing::Volume { geometry: size, .. } => *size = geometry,
            Backing::Replica { pool, id } | Backing::Member { pool, id } => {
                let has = devices.pools.entity(*pool, *id).map_or(Blocks::ZERO, |one| one.size);
                if has < geometry.blocks() {
                    let path = format!("replica {:032x}", id.0);
                    let has = geometry.block_size().bytes_of(has).unwrap_or(Bytes::ZERO);
                    return Err(AdminError::Small { path, has, asked });
                }
            }
            Backing::File { path, .. } => {
                let shown = || path.display().to_string();
                // Its size is read by opening it once more.
                let opened = io.open(path, Access::ReadWrite).map_err(|source| {
                    let source = OpenError::Open { path: shown(), source };
                    super::ServeError::Device { nsid, nqn: nqn.as_str().to_owned(), source }
                })?;
                io.close_file(opened.file);
                if opened.bytes < geometry.bytes().0 {
                    let has = Bytes(opened.bytes);
                    return Err(AdminError::Small { path: shown(), has, asked });
                }
            }
        }
        if !devices.grow(device, geometry) {
            return Err(shrinks());
        }
        self.subsystem.resize_namespace(nsid, geometry).map_err(|_| missing())?;
        Ok(AdminResponse::Changed)
    }

    /// Closes its devices; nothing is at work on them any more.
    pub(super) fn close(&mut self, devices: &mut Devices<JobOrigin>, io: &mut impl Io) {
        let all: Vec<DeviceId> = self.devices.values().map(|medium| medium.device).collect();
        self.devices.clear();
        for device in all {
            if !devices.remove(device, io) {
                tracing::error!("a device of {} is still in use", self.subsystem.nqn());
            }
        }
    }
}
