//! The block device of a volume: made by a worker or by the kernel, and removed again.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linux::fuse;
use linux::loop_device::{self, LoopConfig, LoopDevice};
use linux::mounts::{DeviceNumber, MountTable};
use linux::nvme::{self, Connect, ConnectError, PathAddress};
use model::VolumeId;
use rustix::mount::UnmountFlags;

use super::{AttachError, Attacher};
use crate::record::{Attachment, Transport};

/// How long the kernel may take to make or remove a device.
const KERNEL: Duration = Duration::from_secs(20);
/// Between two looks.
const AGAIN: Duration = Duration::from_millis(20);
/// The block of every volume, in bytes.
const BLOCK: u32 = 4096;

/// The number of a block device.
pub(super) fn number_of(device: &Path) -> Result<DeviceNumber, AttachError> {
    let found = fs::metadata(device).map_err(AttachError::io("look at the device"))?;
    let number = found.rdev();
    Ok(DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
}

/// Looks until something is so; whether it became so in time.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + KERNEL;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(AGAIN);
    }
}

impl Attacher {
    /// Starts a supervisor, and puts a loop device on the file that it serves.
    pub(super) fn serve_by_fuse(&self, record: &mut Attachment) -> Result<(), AttachError> {
        let volume = record.volume;
        let point = self.records.fuse_point(volume);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&point)
            .map_err(AttachError::io("make the folder of the volume's file"))?;
        self.start_supervisor(volume)?;
        let file = point.join(fuse::FILE_NAME);
        let config = LoopConfig {
            file: &file,
            block_size: BLOCK,
            direct_io: true,
            read_only: record.read_only,
        };
        let made = loop_device::attach(&*self.kernel, &config)?;
        record.device = Some(made.device);
        self.write(record)
    }

    fn start_supervisor(&self, volume: VolumeId) -> Result<(), AttachError> {
        let log = self.records.file(volume, "log");
        let file = File::options().create(true).append(true).open(&log);
        let file = file.map_err(AttachError::io("open the log of the worker"))?;
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.supervisor).arg(volume.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::from(file));
        // It stays when this program ends, wherever that was started.
        command.current_dir("/");
        let child = command.spawn().map_err(AttachError::io("start the supervisor"))?;
        let said = first_words(child).map_err(AttachError::io("hear the supervisor"))?;
        if said == crate::supervisor::SERVING {
            return Ok(());
        }
        let text = fs::read_to_string(&log).unwrap_or_default();
        let said = text.lines().last().unwrap_or("it said nothing").to_owned();
        // The log goes with the rest of what is undone: what matters is in the error.
        Err(AttachError::NoWorker { said, log })
    }

    /// Connects the kernel to the target, by the first of its addresses that answers: a target has
    /// one association with a host at a time.
    pub(super) fn serve_by_nvme(&self, record: &mut Attachment) -> Result<(), AttachError> {
        let kernel = &*self.kernel;
        self.check_disconnected(record)?;
        let mut refused = None;
        for address in &record.addresses {
            let at = PathAddress { address: address.ip(), port: address.port() };
            match nvme::connect(kernel, &connection(record, at)?) {
                Ok(_) | Err(ConnectError::Already { .. }) => {
                    refused = None;
                    break;
                }
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            return Err(error.into());
        }
        let mut device = None;
        let tree = kernel.tree();
        until(|| {
            let found = nvme::subsystem(tree, &record.subsystem);
            let namespace = found.and_then(|found| found.namespaces.into_iter().next());
            device = namespace.filter(|it| it.bytes > 0).map(|it| it.device());
            device.is_some()
        });
        record.device = Some(device.ok_or(AttachError::NoDevice)?);
        self.write(record)
    }

    /// Refuses while the kernel is connected to the volume by an earlier publication: it would use
    /// the new path for the device, and the caches, of the old one.
    fn check_disconnected(&self, record: &Attachment) -> Result<(), AttachError> {
        let found = nvme::subsystem(self.kernel.tree(), &record.subsystem);
        let Some(found) = found else { return Ok(()) };
        let is_other = |it: &nvme::Controller| it.host_nqn.as_ref() != Some(&record.host_nqn);
        if !found.controllers.iter().any(is_other) {
            return Ok(());
        }
        let device = found.namespaces.first().map(nvme::Namespace::device).unwrap_or_default();
        let by = format!(
            "connected by an earlier publication of the volume (nvme disconnect -n {})",
            record.subsystem
        );
        Err(AttachError::DeviceBusy { device, by })
    }

    /// The recorded device, if it is the volume's still. The kernel gives a name that became free,
    /// by a reboot or a lost connection, to another volume.
    pub(super) fn own_device<'a>(&self, record: &'a Attachment) -> Option<&'a Path> {
        let device = record.device.as_deref()?;
        let is_own = match record.transport {
            Transport::Fuse => self.loops(record.volume).iter().any(|it| it.device == device),
            Transport::Nvme => {
                let found = nvme::subsystem(self.kernel.tree(), &record.subsystem);
                let of_volume = found.into_iter().flat_map(|found| found.namespaces);
                of_volume.into_iter().any(|it| {
                    it.device() == device && it.nsid.is_none_or(|nsid| nsid == crate::worker::NSID)
                })
            }
        };
        is_own.then_some(device)
    }

    /// The loop devices on the file of a volume, one unless something went wrong.
    pub(super) fn loops(&self, volume: VolumeId) -> Vec<LoopDevice> {
        let file = self.records.fuse_point(volume).join(fuse::FILE_NAME);
        let found = loop_device::list(&*self.kernel);
        found.into_iter().filter(|device| device.file == file).collect()
    }

    /// Removes the device of a volume with all that is below it, whatever of it is there.
    pub(super) fn remove(&self, record: &Attachment) -> Result<(), AttachError> {
        match record.transport {
            Transport::Fuse => self.remove_fuse(record.volume),
            Transport::Nvme => self.remove_nvme(record),
        }
    }

    fn remove_fuse(&self, volume: VolumeId) -> Result<(), AttachError> {
        let kernel = &*self.kernel;
        for found in self.loops(volume) {
            self.check_unused(&found.device)?;
            loop_device::detach(kernel, &found.device)?;
        }
        if !until(|| self.loops(volume).is_empty()) {
            let device = self.loops(volume).pop().map(|found| found.device).unwrap_or_default();
            let by = "a program has it open (fuser -v shows it)".to_owned();
            return Err(AttachError::DeviceBusy { device, by });
        }
        let point = self.records.fuse_point(volume);
        // The kernel lets go of the file a little after the loop device is gone.
        let mut refused = None;
        let is_mounted = || MountTable::read(kernel.tree()).at(&point).is_some();
        until(|| {
            refused = kernel.unmount(&point, UnmountFlags::empty()).err();
            !is_mounted()
        });
        if let (true, Some(source)) = (is_mounted(), refused) {
            return Err(AttachError::io("unmount the file of the volume")(source));
        }
        if !until(|| !self.records.is_alive(volume)) {
            let source = io::Error::from(io::ErrorKind::TimedOut);
            return Err(AttachError::io("end the supervisor of the volume")(source));
        }
        Ok(())
    }

    fn remove_nvme(&self, record: &Attachment) -> Result<(), AttachError> {
        let kernel = &*self.kernel;
        if let Some(device) = self.own_device(record) {
            self.check_unused(device)?;
        }
        let found = nvme::subsystem(kernel.tree(), &record.subsystem);
        for controller in found.iter().flat_map(|found| &found.controllers) {
            nvme::disconnect(kernel, &controller.name)?;
        }
        Ok(())
    }

    /// Refuses while something else lies on the device.
    fn check_unused(&self, device: &Path) -> Result<(), AttachError> {
        let Ok(number) = number_of(device) else { return Ok(()) };
        let table = MountTable::read(self.kernel.tree());
        let by = match table.of(number).next() {
            Some(mount) => format!("mounted at {}", mount.point.display()),
            None => match holder(device) {
                Some(holder) => format!("by {holder}"),
                None => return Ok(()),
            },
        };
        Err(AttachError::DeviceBusy { device: device.to_owned(), by })
    }
}

/// Another block device above this one.
fn holder(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let mut holders =
        fs::read_dir(PathBuf::from(format!("/sys/class/block/{name}/holders"))).ok()?;
    holders.next()?.ok()?.file_name().into_string().ok()
}

/// How the kernel connects an attached volume to one address of its target.
pub(crate) fn connection(record: &Attachment, at: PathAddress) -> Result<Connect, AttachError> {
    let names = (record.subsystem.clone(), record.host_nqn.clone());
    let mut connect = Connect::tcp(at, names.0, names.1, host_id(record)?);
    connect.reconnect_delay = Some(Duration::from_secs(1));
    connect.keep_alive = Some(Duration::from_secs(5));
    connect.fast_io_fail = Some(Duration::from_secs(record.hold_seconds));
    // The device stays while its target is elsewhere: a new path may come.
    connect.controller_loss = Some(Duration::MAX);
    Ok(connect)
}

/// The id of a host as the kernel wants it, the same for the same name.
fn host_id(record: &Attachment) -> Result<String, AttachError> {
    let nqn = ::nvme::wire::Nqn::new(record.host_nqn.as_str()).map_err(|_| AttachError::NoName)?;
    Ok(super::host::hyphenated(engine::serve::identity_of(&nqn, 0).uuid))
}

/// What a child says first, in one piece; nothing if it ends before.
fn first_words(mut child: Child) -> io::Result<Vec<u8>> {
    let mut said = vec![0; crate::supervisor::SERVING.len()];
    let Some(mut output) = child.stdout.take() else { return Ok(Vec::new()) };
    match output.read_exact(&mut said) {
        Ok(()) => Ok(said),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            child.wait()?;
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use linux::testing::FakeKernel;

    use super::*;
    use crate::record::Records;
    use crate::record::testing::attachment;

    fn machine(run: &Path) -> (Arc<FakeKernel>, Attacher) {
        let kernel = Arc::new(FakeKernel::new());
        let records = Records::at(run);
        records.prepare().unwrap();
        let control = attachment("00000000-0000-4000-8000-000000000001").control;
        let shared: Arc<FakeKernel> = Arc::clone(&kernel);
        let attacher =
            Attacher { kernel: shared, records, control, supervisor: vec![], is_root: true };
        (kernel, attacher)
    }

    /// The kernel shows a namespace of the subsystem of a record.
    fn show(kernel: &FakeKernel, record: &Attachment, namespace: &str) {
        let folder = "sys/class/nvme-subsystem/nvme-subsys0";
        kernel.write(&format!("{folder}/subsysnqn"), record.subsystem.as_str());
        kernel.write(&format!("{folder}/nvme0/state"), "live");
        kernel.write(&format!("{folder}/nvme0/hostnqn"), record.host_nqn.as_str());
        kernel.write(&format!("{folder}/{namespace}/size"), "2048");
        kernel.write("sys/class/nvme/nvme0/delete_controller", "");
    }

    #[test]
    fn a_recorded_name_that_is_another_volumes_now_is_not_used() {
        let run = tempfile::tempdir().unwrap();
        let (kernel, attacher) = machine(run.path());
        let mut ours = attachment("00000000-0000-4000-8000-000000000001");
        ours.transport = Transport::Nvme;
        ours.device = Some("/dev/nvme0n1".into());
        let other = attachment("00000000-0000-4000-8000-000000000002");
        show(&kernel, &other, "nvme0n1");
        assert_eq!(attacher.own_device(&ours), None, "the kernel gave the name to another volume");
        let existing = attacher.existing(&ours);
        assert_eq!(existing, super::super::plan::Existing::Leftovers);
        let (kernel, attacher) = machine(run.path());
        show(&kernel, &ours, "nvme0n1");
        assert_eq!(attacher.own_device(&ours), ours.device.as_deref());
    }

    #[test]
    fn a_kernel_that_is_connected_by_an_earlier_publication_is_not_connected_again() {
        let run = tempfile::tempdir().unwrap();
        let (kernel, attacher) = machine(run.path());
        let mut record = attachment("00000000-0000-4000-8000-000000000001");
        show(&kernel, &record, "nvme0n1");
        record.host_nqn = "nqn.2026-11.io.holdfast:host:later".parse().unwrap();
        let said = attacher.serve_by_nvme(&mut record).unwrap_err().to_string();
        assert!(said.contains("earlier publication of the volume (nvme disconnect"), "{said}");
        assert_eq!(kernel.calls(), Vec::<String>::new(), "nothing was done");
    }

    #[test]
    fn the_kernel_is_connected_by_the_first_address_that_answers_and_disconnected_again() {
        let run = tempfile::tempdir().unwrap();
        let (kernel, attacher) = machine(run.path());
        let mut record = attachment("00000000-0000-4000-8000-000000000001");
        record.transport = Transport::Nvme;
        record.addresses = ["10.0.0.1:4420", "10.0.0.2:4420"].map(|at| at.parse().unwrap()).into();
        kernel.reply("/dev/nvme-fabrics", "instance=0,cntlid=1\n");
        kernel.fail_next("exchange", libc::ECONNREFUSED);
        show(&kernel, &record, "nvme0n1");
        attacher.serve_by_nvme(&mut record).unwrap();
        assert_eq!(record.device.as_deref(), Some(Path::new("/dev/nvme0n1")));
        assert_eq!(attacher.records.read(record.volume).unwrap(), Some(record.clone()));
        let lines = kernel.calls();
        let line = lines.last().unwrap();
        let wanted = format!("traddr=10.0.0.2,trsvcid=4420,hostnqn={}", record.host_nqn);
        assert!(line.contains(&wanted), "{line}");
        assert!(line.contains(",ctrl_loss_tmo=-1,fast_io_fail_tmo=600"), "{line}");
        attacher.remove(&record).unwrap();
        assert_eq!(
            kernel.calls().last().unwrap(),
            "set_attribute /sys/class/nvme/nvme0/delete_controller 1"
        );
    }

    #[test]
    fn a_refused_connection_is_said_with_a_remedy() {
        let run = tempfile::tempdir().unwrap();
        let (kernel, attacher) = machine(run.path());
        let mut record = attachment("00000000-0000-4000-8000-000000000001");
        kernel.fail_next("exchange", libc::ECONNREFUSED);
        let said = attacher.serve_by_nvme(&mut record).unwrap_err().to_string();
        assert!(said.contains("nothing answers at 127.0.0.11:4420"), "{said}");
        assert_eq!(record.device, None);
    }
}
