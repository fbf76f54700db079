//! What is known of an attached volume, in a folder that outlives every process of it.
//!
//! ```text
//!   RUN/attachments/VOLUME.json     what was asked for and made: written by attach and detach
//!   RUN/attachments/VOLUME.status   addresses and paths: written by the worker
//!   RUN/attachments/VOLUME.lock     held while attach or detach works on the volume
//!   RUN/attachments/VOLUME.alive    held as long as the supervisor runs
//!   RUN/attachments/VOLUME.log      what supervisor and worker say
//!   RUN/attachments/VOLUME.fuse/    where the file of the volume is mounted
//! ```
//!
//! Invariants:
//! - A record is written before what it announces is done, and removed after all of it is undone.
//! - A file is replaced as a whole: who reads it sees an old or a new one. Only root may read it.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{HostName, Nqn, PathState, PathStatus, Timestamp, VolumeId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How long somebody else may work on a volume, and how often it is looked whether that ended.
const LOCK: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(50);

/// Where run-time state of hosts lies unless told otherwise.
pub const RUN: &str = "/run/holdfast";

/// How a volume becomes a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    /// By the kernel's NVMe/TCP with native multipath.
    Nvme,
    /// By a worker of ours that serves a FUSE file, with a loop device above it.
    Fuse,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Transport::Nvme => "nvme",
            Transport::Fuse => "fuse",
        })
    }
}

/// How to ask the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControlPlane {
    /// Host and port.
    pub server: String,
    /// Authorities of its certificate; absent: plain HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// A file with the token to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

/// A mount that attach made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MountRecord {
    /// Where.
    pub point: PathBuf,
    /// Whether the folder was made for it, and goes with it.
    pub made_folder: bool,
}

/// An attached volume, or one that is being attached or detached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attachment {
    /// Which volume.
    pub volume: VolumeId,
    /// As which host.
    pub host: HostName,
    /// The name with which that host connects.
    pub host_nqn: Nqn,
    /// What it connects to.
    pub subsystem: Nqn,
    /// Where that was when it was attached; the status knows better.
    pub addresses: Vec<SocketAddr>,
    /// Whom to ask where it is.
    pub control: ControlPlane,
    /// How it becomes a device.
    pub transport: Transport,
    /// Whether nothing may be written.
    pub read_only: bool,
    /// How long I/O waits for a path before it fails.
    pub hold_seconds: u64,
    /// Whether attach published the volume, so that detach takes that back.
    pub published: bool,
    /// Its size when it was attached.
    pub bytes: u64,
    /// The block device, once it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// Its mount, if one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountRecord>,
    /// Since when.
    pub since: Timestamp,
}

/// What the worker of a volume last said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// Its process.
    pub pid: u32,
    /// Whether commands flow.
    pub usable: bool,
    /// Size of the volume.
    pub bytes: u64,
    /// Its paths.
    pub paths: Vec<PathStatus>,
    /// Every address of the target that it knows, in use or not.
    #[serde(default)]
    pub addresses: Vec<SocketAddr>,
    /// Whether a successor gets the requests that were not answered.
    pub can_resend: bool,
    /// Whether the publication by which the volume was attached is over: the device only fails.
    #[serde(default)]
    pub dismissed: bool,
}

impl WorkerStatus {
    /// How many paths work.
    pub fn live_paths(&self) -> usize {
        self.paths.iter().filter(|path| path.state == PathState::Live).count()
    }
}

/// The folder of all attachments.
#[derive(Clone, Debug)]
pub struct Records {
    folder: PathBuf,
}

/// A lock on a file, as long as it is kept.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "closing it gives the lock back")] File);

impl Records {
    /// Below this folder.
    pub fn at(run: &Path) -> Records {
        Records { folder: run.join("attachments") }
    }

    /// Makes the folder, for root only.
    pub fn prepare(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    /// The file of a volume with this ending.
    pub fn file(&self, volume: VolumeId, ending: &str) -> PathBuf {
        self.folder.join(format!("{volume}.{ending}"))
    }

    /// Where the file of a volume is mounted.
    pub fn fuse_point(&self, volume: VolumeId) -> PathBuf {
        self.file(volume, "fuse")
    }

    /// The record of a volume, if there is one that can be read.
    pub fn read(&self, volume: VolumeId) -> io::Result<Option<Attachment>> {
        read(&self.file(volume, "json"))
    }

    /// Writes a record.
    pub fn write(&self, attachment: &Attachment) -> io::Result<()> {
        write(&self.file(attachment.volume, "json"), attachment)
    }

    /// What a worker last said.
    pub fn status(&self, volume: VolumeId) -> Option<WorkerStatus> {
        read(&self.file(volume, "status")).ok().flatten()
    }

    /// Keeps what a worker says.
    pub fn write_status(&self, volume: VolumeId, status: &WorkerStatus) -> io::Result<()> {
        write(&self.file(volume, "status"), status)
    }

    /// All attached volumes, by id; a record that cannot be read is left out, and logged.
    pub fn all(&self) -> io::Result<Vec<Attachment>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "json") {
                match read::<Attachment>(&path) {
                    Ok(found) => all.extend(found),
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "record cannot be read");
                    }
                }
            }
        }
        all.sort_by_key(|attachment| attachment.volume);
        Ok(all)
    }

    /// Forgets a volume of which nothing is left.
    pub fn remove(&self, volume: VolumeId) -> io::Result<()> {
        ignore_missing(fs::remove_dir(self.fuse_point(volume)))?;
        let ours = format!("{volume}.");
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let last = [self.file(volume, "json"), self.file(volume, "lock")];
            if name.as_encoded_bytes().starts_with(ours.as_bytes()) && !last.contains(&entry.path())
            {
                ignore_missing(fs::remove_file(entry.path()))?;
            }
        }
        ignore_missing(fs::remove_file(self.file(volume, "json")))?;
        // Last: whoever waits for it finds nothing to do.
        ignore_missing(fs::remove_file(self.file(volume, "lock")))
    }

    /// Keeps others from attaching or detaching a volume; nothing if somebody does.
    pub fn lock(&self, volume: VolumeId) -> io::Result<Option<Held>> {
        self.hold(volume, "lock")
    }

    /// As [`Records::lock`], and waits as long as the agent may take to connect a path.
    pub fn lock_patiently(&self, volume: VolumeId) -> io::Result<Option<Held>> {
        let until = Instant::now() + LOCK;
        loop {
            let held = self.lock(volume)?;
            if held.is_some() || Instant::now() > until {
                return Ok(held);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Says that the supervisor of a volume runs, as long as it is kept; nothing if one does.
    pub fn be_alive(&self, volume: VolumeId) -> io::Result<Option<Held>> {
        self.hold(volume, "alive")
    }

    /// Whether the supervisor of a volume runs.
    pub fn is_alive(&self, volume: VolumeId) -> bool {
        let file = File::open(self.file(volume, "alive"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    fn hold(&self, volume: VolumeId, ending: &str) -> io::Result<Option<Held>> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(self.file(volume, ending))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Held(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => Ok(Some(serde_json::from_slice(&bytes?)?)),
    }
}

/// Replaces a file as a whole.
fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let next = PathBuf::from(next);
    let mut file = File::create(&next)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(&serde_json::to_vec_pretty(value)?)?;
    file.sync_all()?;
    fs::rename(next, path)
}

/// A record for tests.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    pub(crate) fn attachment(id: &str) -> Attachment {
        let volume: VolumeId = id.parse().unwrap();
        Attachment {
            volume,
            host: "host-1".parse().unwrap(),
            host_nqn: "nqn.2026-11.io.holdfast:host:host-1".parse().unwrap(),
            subsystem: Nqn::volume(volume),
            addresses: vec!["127.0.0.11:4420".parse().unwrap()],
            control: ControlPlane { server: "127.0.0.1:7440".into(), ca: None, token_file: None },
            transport: Transport::Fuse,
            read_only: false,
            hold_seconds: 600,
            published: true,
            bytes: 1 << 30,
            device: None,
            mount: None,
            since: Timestamp::from_millis(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::attachment;
    use super::*;

    #[test]
    fn a_record_is_kept_for_root_alone_until_it_is_removed() {
        let run = tempfile::tempdir().unwrap();
        let records = Records::at(run.path());
        assert_eq!(records.all().unwrap(), []);
        records.prepare().unwrap();
        let [a, b] =
            ["1", "2"].map(|n| attachment(&format!("00000000-0000-4000-8000-00000000000{n}")));
        assert_eq!(records.read(a.volume).unwrap(), None);
        records.write(&b).unwrap();
        records.write(&a).unwrap();
        assert_eq!(records.read(a.volume).unwrap(), Some(a.clone()));
        let mode = fs::metadata(records.file(a.volume, "json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let status = WorkerStatus { pid: 7, ..WorkerStatus::default() };
        records.write_status(a.volume, &status).unwrap();
        assert_eq!(records.status(a.volume), Some(status));
        assert_eq!(records.all().unwrap(), [a.clone(), b.clone()]);
        fs::write(records.file(b.volume, "json"), "{").unwrap();
        assert!(records.read(b.volume).is_err());
        assert_eq!(
            records.all().unwrap(),
            std::slice::from_ref(&a),
            "one that is damaged hides no other"
        );
        let _lock = records.lock(a.volume).unwrap();
        // A worker that was killed while it wrote leaves a part.
        fs::write(records.file(a.volume, "status.next"), "{").unwrap();
        records.remove(a.volume).unwrap();
        records.remove(a.volume).unwrap();
        records.remove(b.volume).unwrap();
        assert_eq!(fs::read_dir(run.path().join("attachments")).unwrap().count(), 0);
    }

    #[test]
    fn one_works_on_a_volume_at_a_time_and_a_supervisor_is_seen() {
        let run = tempfile::tempdir().unwrap();
        let records = Records::at(run.path());
        records.prepare().unwrap();
        let volume = attachment("00000000-0000-4000-8000-000000000001").volume;
        let held = records.lock(volume).unwrap();
        assert!(held.is_some() && records.lock(volume).unwrap().is_none());
        drop(held);
        assert!(records.lock(volume).unwrap().is_some());
        assert!(!records.is_alive(volume));
        let alive = records.be_alive(volume).unwrap();
        assert!(alive.is_some() && records.is_alive(volume));
        drop(alive);
        assert!(!records.is_alive(volume));
    }
}
