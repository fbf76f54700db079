//! Carries actions out, with what `linux` offers. Each may be repeated.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::md::NewArray;
use linux::mounts::MountTable;
use linux::nvme::{self, Connect, ConnectError, ControllerState, PathAddress, QueueCounts};
use linux::nvmet::Exported;
use linux::{Kernel, SystemError, device_mapper, gpt, md, nvmet};
use model::{Nqn, VolumeId};
use rustix::mount::UnmountFlags;

use crate::names::{self, LABEL, UNPREPARED_LABEL};
use crate::observe::{self, LocalDrive};
use crate::reconcile::{Action, Volume};
use crate::volume::MD_OFFSET;

/// Where nodes listen for NVMe/TCP.
pub const PORT: u16 = 4420;

/// Why an action was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// The kernel or a tool did not do it.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Another node could not be connected.
    #[error("cannot connect to node {node}")]
    Connect {
        /// Which.
        node: String,
        /// Why.
        source: ConnectError,
    },
    /// The kernel does not have what the action is about any more.
    #[error("{0} is not there any more; the next cycle decides again")]
    Gone(String),
}

/// What actions of one volume are carried out with.
pub struct Executor<'a> {
    /// The kernel.
    pub kernel: &'a dyn Kernel,
    /// This node.
    pub node: &'a str,
    /// The volume.
    pub volume: &'a Volume,
    /// The drives of this node.
    pub drives: &'a [LocalDrive],
    /// Where this node listens.
    pub address: IpAddr,
}

type Done = Result<(), ExecuteError>;

impl Executor<'_> {
    /// Carries an action out.
    pub fn run(&self, action: &Action) -> Done {
        let kernel = self.kernel;
        match action {
            Action::StopArray { .. } => self.stop()?,
            Action::RemoveLeg { partition, epoch } => {
                device_mapper::remove(kernel, &names::leg(partition, *epoch))?;
            }
            Action::Disconnect { source, .. } => self.disconnect(source)?,
            Action::CreatePartition { partition, drive, bytes } => {
                let disk = PathBuf::from(format!("/dev/{drive}"));
                gpt::create(kernel, &disk, (partition, UNPREPARED_LABEL), *bytes)?;
            }
            Action::PreparePartition { partition } => {
                let (disk, device) = self.partition(partition)?;
                let zeroed = kernel.zero_device(&device);
                zeroed.map_err(|error| self.gone(&format!("{}: {error}", device.display())))?;
                gpt::relabel(kernel, &disk, partition, (UNPREPARED_LABEL, LABEL))?;
            }
            Action::Revoke { target, .. } => {
                nvmet::withdraw(kernel, &self.subsystem(self.node, target)?)?;
            }
            Action::Export { partition, target, epoch, nsid, .. } => {
                self.export(partition, target, (*epoch, *nsid))?;
            }
            Action::GrowPartition { partition, bytes } => self.grow_partition(partition, *bytes)?,
            Action::RemovePartition { partition } => {
                let (disk, _) = self.partition(partition)?;
                gpt::remove(kernel, &disk, partition, &[LABEL, UNPREPARED_LABEL])?;
            }
            Action::Connect { source, address, .. } => self.connect(source, address)?,
            Action::CreateLeg { partition, epoch } => {
                let (device, is_remote) = self.below(partition)?;
                device_mapper::create(kernel, &names::leg(partition, *epoch), &device, is_remote)?;
            }
            Action::ReleaseLeg { partition, epoch } => {
                device_mapper::fail(kernel, &names::leg(partition, *epoch))?;
                let request = self.volume.spec.request(partition);
                if let Some(request) = request.filter(|it| it.node_id != self.node) {
                    self.disconnect(&request.node_id)?;
                }
            }
            _ => self.run_md(action)?,
        }
        Ok(())
    }

    fn run_md(&self, action: &Action) -> Done {
        let kernel = self.kernel;
        let leg = |partition: &str, epoch: u64| device_mapper::path(&names::leg(partition, epoch));
        let id = &self.volume.spec.volume_id;
        let uuid = names::array_uuid(id);
        let path = PathBuf::from("/dev/md").join(names::array(id));
        match action {
            Action::CreateArray { epoch, members, .. } => {
                let slots = 0..self.volume.spec.slots();
                let in_slot = |slot: u16| {
                    let found = members.iter().find(|(at, _)| *at == slot);
                    found.map(|(_, partition)| leg(partition, *epoch))
                };
                let members: Vec<Option<PathBuf>> = slots.map(in_slot).collect();
                let new = NewArray {
                    path: &path,
                    uuid: &uuid,
                    is_striped: self.volume.spec.stripe_width > 1,
                    members: &members,
                    offset_kib: MD_OFFSET / 1024,
                };
                md::create(kernel, &new)?;
            }
            Action::AssembleArray { epoch, members, .. } => {
                let members: Vec<PathBuf> = members.iter().map(|it| leg(it, *epoch)).collect();
                md::assemble(kernel, &path, &uuid, &members)?;
            }
            Action::AddMember { partition, epoch, was_member, .. } => {
                let array = self.array()?;
                md::add(kernel, &array.path(), &leg(partition, *epoch), *was_member)?;
            }
            Action::RemoveMember { partition, epoch, .. } => {
                let name = names::leg(partition, *epoch);
                let device = device_mapper::devices(kernel.tree());
                if let Some((_, device)) = device.into_iter().find(|(given, _)| *given == name) {
                    md::remove(kernel, &self.array()?, &device)?;
                }
                device_mapper::remove(kernel, &name)?;
            }
            Action::SetSlots { slots, .. } => {
                md::set_slots(kernel, &self.array()?.path(), *slots)?;
            }
            Action::GrowArray { .. } => {
                let epoch = self.volume.status.epoch;
                for request in &self.volume.spec.partitions {
                    let name = names::leg(&request.partition_uuid, epoch);
                    let all = device_mapper::devices(kernel.tree());
                    if all.iter().any(|(given, _)| *given == name) {
                        let (device, is_remote) = self.below(&request.partition_uuid)?;
                        device_mapper::resize(kernel, &name, &device, is_remote)?;
                    }
                }
                md::grow(kernel, &self.array()?.path())?;
            }
            // The others were carried out above.
            _ => {}
        }
        Ok(())
    }

    fn gone(&self, what: &str) -> ExecuteError {
        ExecuteError::Gone(format!("volume {}: {what}", self.volume.name))
    }

    fn subsystem(&self, source: &str, target: &str) -> Result<String, ExecuteError> {
        let id: VolumeId =
            self.volume.spec.volume_id.parse().map_err(|_| self.gone("a valid volumeId"))?;
        Ok(names::subsystem(&id, source, target))
    }

    fn array(&self) -> Result<md::MdArray, ExecuteError> {
        observe::md_array(self.kernel, self.volume).ok_or_else(|| self.gone("the array"))
    }

    /// The disk and the device of a partition of this node.
    fn partition(&self, uuid: &str) -> Result<(PathBuf, PathBuf), ExecuteError> {
        for drive in self.drives {
            let partitions = drive.layout.iter().flat_map(|layout| &layout.partitions);
            if let Some(found) = partitions.into_iter().find(|it| it.uuid == uuid) {
                return Ok((drive.path(), gpt::device(&drive.path(), found.number)));
            }
        }
        Err(self.gone(&format!("partition {uuid}")))
    }

    /// The device below a leg, and whether it is another node's.
    fn below(&self, partition: &str) -> Result<(PathBuf, bool), ExecuteError> {
        if let Ok((_, device)) = self.partition(partition) {
            return Ok((device, false));
        }
        let device = observe::imported_device(self.kernel, partition);
        let device = device.ok_or_else(|| self.gone(&format!("partition {partition}")))?;
        Ok((device, true))
    }

    /// All legs hold their I/O before the first one fails: else MD would acknowledge what only the
    /// others have. This node's own copy fails last, so that MD cannot record that the others did.
    fn stop(&self) -> Done {
        let array = observe::md_array(self.kernel, self.volume);
        let is_local = |partition: &str| {
            self.volume.spec.request(partition).is_some_and(|request| request.node_id == self.node)
        };
        let mut legs: Vec<String> = Vec::new();
        for (name, _) in device_mapper::devices(self.kernel.tree()) {
            let Some((partition, _)) = names::parse_leg(&name) else { continue };
            if self.volume.spec.request(partition).is_some() {
                legs.push(name.clone());
            }
        }
        legs.sort_by_key(|name| names::parse_leg(name).is_some_and(|(uuid, _)| is_local(uuid)));
        for name in &legs {
            device_mapper::hold(self.kernel, name)?;
        }
        for name in &legs {
            device_mapper::fail(self.kernel, name)?;
        }
        if let Some(array) = array {
            self.unmount(&array.path())?;
            md::stop(self.kernel, &array.path())?;
        }
        for name in &legs {
            device_mapper::remove(self.kernel, name)?;
        }
        Ok(())
    }

    fn unmount(&self, device: &Path) -> Done {
        let number = self.kernel.device_number(device);
        let Ok(number) = number else { return Ok(()) };
        let table = MountTable::read(self.kernel.tree());
        for mount in table.of(number) {
            let done = self.kernel.unmount(&mount.point, UnmountFlags::DETACH);
            done.map_err(|error| self.gone(&format!("{}: {error}", mount.point.display())))?;
        }
        Ok(())
    }

    fn export(&self, partition: &str, target: &str, (epoch, nsid): (u64, u32)) -> Done {
        let (_, device) = self.partition(partition)?;
        nvmet::ensure_port(self.kernel, self.address, PORT)?;
        let what = Exported {
            nqn: &self.subsystem(self.node, target)?,
            serial: &epoch.to_string(),
            host: &names::host_nqn(target),
            nsid,
            uuid: partition,
            device: &device,
        };
        Ok(nvmet::export(self.kernel, PORT, &what)?)
    }

    fn grow_partition(&self, partition: &str, bytes: u64) -> Done {
        let (disk, _) = self.partition(partition)?;
        gpt::grow(self.kernel, &disk, (partition, LABEL), bytes)?;
        for subsystem in nvmet::subsystems(self.kernel.tree()) {
            for (nsid, uuid) in &subsystem.namespaces {
                if uuid == partition {
                    nvmet::revalidate(self.kernel, &subsystem.nqn, *nsid)?;
                }
            }
        }
        Ok(())
    }

    fn disconnect(&self, source: &str) -> Done {
        let nqn = self.subsystem(source, self.node)?;
        for subsystem in nvme::subsystems(self.kernel.tree()) {
            if subsystem.nqn.as_str() == nqn {
                for controller in &subsystem.controllers {
                    nvme::disconnect(self.kernel, &controller.name)?;
                }
            }
        }
        Ok(())
    }

    fn connect(&self, source: &str, address: &str) -> Done {
        let nqn: Nqn = self
            .subsystem(source, self.node)?
            .parse()
            .map_err(|_| self.gone("a valid subsystem name"))?;
        let host: Nqn =
            names::host_nqn(self.node).parse().map_err(|_| self.gone("a valid host name"))?;
        let address =
            address.parse().map_err(|_| self.gone(&format!("an IP address of node {source}")))?;
        let serial_is_old = |controller: &str| {
            let serial = self.kernel.tree().text(&format!("/sys/class/nvme/{controller}/serial"));
            serial.trim() != self.volume.status.epoch.to_string()
        };
        if let Some(there) = nvme::subsystem(self.kernel.tree(), &nqn) {
            for controller in &there.controllers {
                let is_live = controller.state == ControllerState::Live;
                if !is_live || serial_is_old(&controller.name) {
                    nvme::disconnect(self.kernel, &controller.name)?;
                }
            }
        }
        let place = PathAddress { address, port: PORT };
        let wanted = Connect {
            reconnect_delay: Some(Duration::from_secs(1)),
            keep_alive: Some(Duration::from_secs(2)),
            controller_loss: Some(Duration::from_secs(3)),
            fast_io_fail: Some(Duration::from_secs(1)),
            queues: QueueCounts { io: 16, ..QueueCounts::default() },
            ..Connect::tcp(place, nqn, host, names::host_id(self.node))
        };
        match nvme::connect(self.kernel, &wanted) {
            Ok(_) | Err(ConnectError::Already { .. }) => Ok(()),
            Err(source_error) => {
                Err(ExecuteError::Connect { node: source.to_owned(), source: source_error })
            }
        }
    }
}
