//! Volumes attached to this machine, and detached from it.
//!
//! ```text
//!   look ──► plan ──► record ──► publish ──► serve: a block device ──► probe, format ──► mount
//!                       │                                                  │
//!                       └──────────── on an error, all of it is undone ◄───┘
//! ```
//!
//! What is there is found by looking at the kernel, never believed from the record alone: a command
//! that was interrupted is finished, or undone, by the next.

mod device;
mod host;
pub mod plan;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::mounts::{self, MountOptions, MountTable};
use linux::{Kernel, SystemError, filesystem};
use model::{HostName, Nqn, Problem, Timestamp, ValidationError, Volume, VolumeId};

use crate::follow::ClientError;
use crate::record::{Attachment, ControlPlane, MountRecord, Records, Transport};
pub(crate) use device::connection;
use device::number_of;
use host::{Asker, Publishing};
pub(crate) use host::{Publication, new_instance, own_nqn};
pub use host::{own_machine, own_name};
use plan::{Existing, Found, Point, Refusal, Step, Wanted};

/// Why a volume is not attached, or not detached: one sentence with what helps.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// It cannot be as it was asked for.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No such volume.
    #[error("there is no volume {0}; holdfast volume list shows those that are there")]
    NoVolume(VolumeId),
    /// Somebody else uses it.
    #[error(
        "volume {volume} is published to host {}: detach it there, or attach as that host, --host",
        .hosts.join(", ")
    )]
    Elsewhere {
        /// Which volume.
        volume: VolumeId,
        /// The hosts that may use it.
        hosts: Vec<String>,
    },
    /// Published, but nobody serves it.
    #[error("volume {0} is not served yet; holdfast volume get {0} says why, then try again")]
    NotServed(VolumeId),
    /// Not published, and it was not for us to do.
    #[error(
        "volume {volume} is not published to host {host}: publish it first, \
         holdfast volume publish {volume} --host {host}"
    )]
    NotPublished {
        /// Which volume.
        volume: VolumeId,
        /// To whom.
        host: HostName,
    },
    /// The name of the host did not become this machine's.
    #[error("host {0} was not registered in time; holdfast host get {0} says why, then try again")]
    NotRegistered(HostName),
    /// Nothing tells this machine from others.
    #[error(
        "nothing identifies this machine: run systemd-machine-id-setup, or give this container \
         the /etc/machine-id of its node"
    )]
    NoIdentity,
    /// This machine has no name.
    #[error("this machine has no name that can be a host's: give one with --host NAME")]
    NoName,
    /// The control plane refused.
    #[error("{0}")]
    Control(#[from] Problem),
    /// The control plane cannot be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A name makes no sense.
    #[error(transparent)]
    Invalid(#[from] ValidationError),
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The kernel refused a connection.
    #[error(transparent)]
    Connect(#[from] linux::nvme::ConnectError),
    /// Another command works on it.
    #[error("another command attaches or detaches volume {0} just now: wait for it, and try again")]
    Busy(VolumeId),
    /// Somebody uses the device.
    #[error("{} is in use, {by}: end that first", .device.display())]
    DeviceBusy {
        /// The device.
        device: PathBuf,
        /// By whom.
        by: String,
    },
    /// It is not attached.
    #[error("volume {0} is not attached here; holdfast attached lists those that are")]
    NotAttached(VolumeId),
    /// The worker did not come up.
    #[error("the worker of the volume did not start: {said}; its log is {}", .log.display())]
    NoWorker {
        /// What it said last.
        said: String,
        /// Where the rest is.
        log: PathBuf,
    },
    /// No device appeared.
    #[error("the kernel shows no device of the volume; dmesg may say why")]
    NoDevice,
    /// A file or process.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl AttachError {
    fn io(doing: &'static str) -> impl FnOnce(io::Error) -> AttachError {
        move |source| AttachError::Io { doing, source }
    }
}

/// This machine as a place for volumes.
pub struct Attacher {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// What is attached.
    pub records: Records,
    /// The control plane.
    pub control: ControlPlane,
    /// Arguments of this program that make it the supervisor of a volume, whose id follows.
    pub supervisor: Vec<String>,
    /// Whether this is root.
    pub is_root: bool,
}

/// What is attached, and what was done for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The record of it.
    pub record: Attachment,
    /// Whether nothing had to be done.
    pub unchanged: bool,
}

/// A volume to be attached, in all that is asked of the control plane about it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which volume.
    pub volume: VolumeId,
    /// As which host; this machine's own name if nothing is said.
    pub host: Option<HostName>,
    /// How.
    pub wanted: Wanted,
    /// How long I/O waits for a path before it fails, in seconds.
    pub hold_seconds: u64,
}

impl Attacher {
    /// Attaches a volume. On an error, nothing of what this call did is left.
    pub fn attach(&self, request: &Request) -> Result<Attached, AttachError> {
        self.attach_as(request, Publishing::AsNeeded)
    }

    /// Attaches a volume that somebody else has published to this host; one that is not published
    /// is refused. For orchestrators, which keep account of publications themselves.
    pub fn attach_published(&self, request: &Request) -> Result<Attached, AttachError> {
        self.attach_as(request, Publishing::ByOthers)
    }

    fn attach_as(
        &self,
        request: &Request,
        publishing: Publishing,
    ) -> Result<Attached, AttachError> {
        let volume = request.volume;
        if !self.is_root {
            return Err(Refusal::NotRoot.into());
        }
        // What needs no look at the volume is refused before anything is made.
        let found = self.look(self.record(volume)?.as_ref(), &request.wanted)?;
        plan::plan(&request.wanted, &found)?;
        self.records.prepare().map_err(AttachError::io("make the folder of attachments"))?;
        let _lock = self.lock(volume)?;
        let attached = self.attach_locked(request, publishing);
        if attached.is_err() && self.record(volume)?.is_none() {
            self.records.remove(volume).map_err(AttachError::io("remove the lock"))?;
        }
        attached
    }

    fn attach_locked(
        &self,
        request: &Request,
        publishing: Publishing,
    ) -> Result<Attached, AttachError> {
        let (volume, wanted) = (request.volume, &request.wanted);
        let record = self.record(volume)?;
        let mut found = self.look(record.as_ref(), wanted)?;
        if let (Existing::Attached { .. }, Some(record)) = (&found.existing, &record)
            && !is_current(record)
        {
            let device = record.device.clone().unwrap_or_default();
            found.existing = Existing::Stale { device };
        }
        let steps = plan::plan(wanted, &found)?;
        if let (true, Some(record)) = (steps.is_empty(), &record) {
            return Ok(Attached { record: record.clone(), unchanged: true });
        }
        let is_new = found.existing == Existing::Nothing || found.existing == Existing::Leftovers;
        if is_new {
            let mut record = self.begin(request, (record.as_ref(), &steps), publishing)?;
            let done = self.serve_and_mount(&mut record, wanted, &steps);
            return self.finish(record, done);
        }
        let mut record = record.ok_or(AttachError::NotAttached(volume))?;
        plan::check_sharing(wanted, Asker::new(&self.control)?.volume(volume)?.spec().shared)?;
        if let Err(error) = self.serve_and_mount(&mut record, wanted, &steps) {
            self.unmount(&mut record)?;
            return Err(error);
        }
        Ok(Attached { record, unchanged: false })
    }

    fn finish(
        &self,
        record: Attachment,
        done: Result<(), AttachError>,
    ) -> Result<Attached, AttachError> {
        let Err(error) = done else { return Ok(Attached { record, unchanged: false }) };
        if let Err(left) = self.undo(record) {
            tracing::error!(error = %left, "not everything could be undone; try holdfast detach");
        }
        Err(error)
    }

    /// Cleans up, publishes, and writes what will be done.
    fn begin(
        &self,
        request: &Request,
        (old, steps): (Option<&Attachment>, &[Step]),
        publishing: Publishing,
    ) -> Result<Attachment, AttachError> {
        let volume = request.volume;
        let asker = Asker::new(&self.control)?;
        let found = asker.volume(volume)?;
        plan::check_sharing(&request.wanted, found.spec().shared)?;
        let tree = self.kernel.tree();
        let host = request.host.clone().or_else(|| own_name(tree)).ok_or(AttachError::NoName)?;
        check_free(&found, &host)?;
        let was_published = old.is_some_and(|old| old.published);
        if let (true, Some(old)) = (steps.contains(&Step::CleanUp), old) {
            let mut old = old.clone();
            self.unmount(&mut old)?;
            self.remove(&old)?;
        }
        let host_nqn = asker.claim_name(&host, tree)?;
        let transport = steps.iter().find_map(|step| match step {
            Step::Serve(transport) => Some(*transport),
            _ => None,
        });
        let mut record = Attachment {
            volume,
            host,
            host_nqn,
            subsystem: Nqn::volume(volume),
            addresses: Vec::new(),
            control: self.control.clone(),
            transport: transport.unwrap_or(Transport::Fuse),
            read_only: request.wanted.read_only,
            hold_seconds: request.hold_seconds,
            published: publishing == Publishing::AsNeeded,
            bytes: found.spec().size.bytes().0,
            device: None,
            mount: None,
            since: now(),
        };
        // Written before it is published: an interrupted command takes that back, and what was
        // published before stays so.
        self.write(&record)?;
        let published = asker.publish(volume, &record.host, publishing);
        // Looked at once more now that the name cannot change hands any more.
        match published.and_then(|it| asker.check_name(&record.host, tree).map(|()| it)) {
            Ok((target, changed)) => {
                if let Publication::Admitted(Some(nqn)) = Publication::of(&target, &record.host) {
                    record.host_nqn = nqn;
                }
                record.addresses = target.addresses;
                record.subsystem = target.nqn;
                record.published = changed || was_published;
                self.write(&record)?;
                Ok(record)
            }
            Err(error) => {
                self.records.remove(volume).map_err(AttachError::io("remove the record"))?;
                Err(error)
            }
        }
    }

    fn serve_and_mount(
        &self,
        record: &mut Attachment,
        wanted: &Wanted,
        steps: &[Step],
    ) -> Result<(), AttachError> {
        for step in steps {
            match step {
                Step::CleanUp | Step::Publish => {}
                Step::Serve(Transport::Fuse) => self.serve_by_fuse(record)?,
                Step::Serve(Transport::Nvme) => self.serve_by_nvme(record)?,
                Step::Mount { make_folder } => self.mount(record, wanted, *make_folder)?,
            }
        }
        Ok(())
    }

    fn mount(
        &self,
        record: &mut Attachment,
        wanted: &Wanted,
        make_folder: bool,
    ) -> Result<(), AttachError> {
        let (Some(point), Some(device)) = (wanted.mount.clone(), record.device.clone()) else {
            return Ok(());
        };
        let kernel = &*self.kernel;
        let content = filesystem::probe(kernel, &device)?;
        let filesystem = plan::filesystem(wanted, &content)?;
        record.mount = Some(MountRecord { point: point.clone(), made_folder: make_folder });
        self.write(record)?;
        if filesystem.format {
            filesystem::format(kernel, &device, filesystem.kind, &[])?;
        } else if !wanted.read_only {
            filesystem::check(kernel, &device, filesystem.kind)?;
        }
        if make_folder {
            std::fs::create_dir_all(&point)
                .map_err(AttachError::io("make the folder of --mount"))?;
        }
        let mut options = MountOptions::default();
        if wanted.read_only {
            options = options.with("ro");
        }
        let disk = (device.as_path(), number_of(&device)?);
        mounts::ensure(kernel, disk, (&point, filesystem.kind.name()), &options)?;
        Ok(())
    }

    /// Detaches a volume: nothing of it is left on this machine. What could not be told to the
    /// control plane is returned.
    pub fn detach(&self, volume: VolumeId) -> Result<Option<AttachError>, AttachError> {
        if !self.is_root {
            return Err(Refusal::NotRoot.into());
        }
        // Looked at once more when nobody else works on it.
        self.record(volume)?.ok_or(AttachError::NotAttached(volume))?;
        let _lock = self.lock(volume)?;
        let record = self.record(volume)?.ok_or(AttachError::NotAttached(volume))?;
        self.undo(record)
    }

    /// The device of a volume that is attached here, and is its own still.
    pub fn device(&self, volume: VolumeId) -> Result<Option<PathBuf>, AttachError> {
        let record = self.record(volume)?;
        Ok(record.and_then(|record| self.own_device(&record).map(Path::to_owned)))
    }

    /// Undoes all that a record announces.
    fn undo(&self, mut record: Attachment) -> Result<Option<AttachError>, AttachError> {
        self.unmount(&mut record)?;
        self.remove(&record)?;
        let mut told = None;
        // A later publication of the volume to this host is not ours to take back. A command that
        // was interrupted may not have written which one it made.
        let is_ours = record.device.is_none() || is_current(&record);
        if record.published && is_ours {
            let asker = Asker::new(&record.control);
            told = asker.and_then(|it| it.unpublish(record.volume, &record.host)).err();
        }
        self.records.remove(record.volume).map_err(AttachError::io("remove the record"))?;
        Ok(told)
    }

    /// Unmounts what attach mounted.
    fn unmount(&self, record: &mut Attachment) -> Result<(), AttachError> {
        let Some(mount) = record.mount.take() else { return Ok(()) };
        if self.is_ours(&mount.point, record) {
            mounts::release(&*self.kernel, &mount.point)?;
        }
        if mount.made_folder {
            // Somebody may have put something there, or removed it.
            let _ = std::fs::remove_dir(&mount.point);
        }
        self.write(record)
    }

    fn look(&self, record: Option<&Attachment>, wanted: &Wanted) -> Result<Found, AttachError> {
        let existing = match record {
            None => Existing::Nothing,
            Some(record) => self.existing(record),
        };
        let point = wanted.mount.as_ref().map_or(Ok(Point::Absent), |at| self.point(at, record))?;
        let features = linux::machine::Features::read(self.kernel.tree());
        Ok(Found { is_root: self.is_root, features, existing, point })
    }

    fn existing(&self, record: &Attachment) -> Existing {
        let is_served = match record.transport {
            Transport::Fuse => self.records.is_alive(record.volume),
            Transport::Nvme => true,
        };
        if !is_served || self.own_device(record).is_none() {
            return Existing::Leftovers;
        }
        let point = record.mount.as_ref().map(|mount| mount.point.clone());
        let mount = point.filter(|point| self.is_ours(point, record));
        Existing::Attached { transport: record.transport, read_only: record.read_only, mount }
    }

    /// Whether the volume's device is what is mounted at a point.
    fn is_ours(&self, point: &Path, record: &Attachment) -> bool {
        let device = self.own_device(record);
        let number = device.and_then(|device| number_of(device).ok());
        let table = MountTable::read(self.kernel.tree());
        number.is_some() && table.at(point).map(|mount| mount.device) == number
    }

    fn point(&self, point: &Path, record: Option<&Attachment>) -> Result<Point, AttachError> {
        if let Some(mount) = MountTable::read(self.kernel.tree()).at(point) {
            return Ok(match record {
                Some(record) if self.is_ours(point, record) => Point::Ours,
                _ => Point::Mounted { source: mount.source.clone() },
            });
        }
        match std::fs::read_dir(point) {
            Ok(mut entries) => {
                Ok(if entries.next().is_none() { Point::Empty } else { Point::NotEmpty })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Point::Absent),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Point::NotAFolder),
            Err(error) => Err(AttachError::io("look at the folder of --mount")(error)),
        }
    }

    fn record(&self, volume: VolumeId) -> Result<Option<Attachment>, AttachError> {
        self.records.read(volume).map_err(AttachError::io("read the record of the volume"))
    }

    fn write(&self, record: &Attachment) -> Result<(), AttachError> {
        self.records.write(record).map_err(AttachError::io("write the record of the volume"))
    }

    fn lock(&self, volume: VolumeId) -> Result<crate::record::Held, AttachError> {
        let held = self.records.lock_patiently(volume);
        held.map_err(AttachError::io("lock the volume"))?.ok_or(AttachError::Busy(volume))
    }
}

/// Refuses a volume that another host uses, before anything is made for this one.
fn check_free(volume: &Volume, host: &HostName) -> Result<(), AttachError> {
    let target = volume.status.as_ref().and_then(|status| status.target.as_ref());
    match target {
        Some(target)
            if !volume.spec().shared
                && !target.hosts.is_empty()
                && !target.hosts.contains(host) =>
        {
            let hosts = target.hosts.iter().map(ToString::to_string).collect();
            Err(AttachError::Elsewhere { volume: *volume.id(), hosts })
        }
        _ => Ok(()),
    }
}

/// Whether the publication that a volume was attached by still stands, as far as can be found out.
/// If not, its target refuses it for good.
fn is_current(record: &Attachment) -> bool {
    let asker = Asker::new(&record.control).ok();
    let found = asker.and_then(|it| it.publication(record.volume, &record.host));
    found.is_none_or(|publication| publication.admits(&record.host_nqn))
}

fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    Timestamp::from_millis(millis)
}
