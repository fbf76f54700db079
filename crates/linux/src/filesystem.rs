//! File systems on a device: what is there, made, checked, grown, given a new identity.
//!
//! Invariants:
//! - A device is formatted only when its first and last mebibytes read as zeros. What is not known
//!   is somebody's data, whatever no tool recognises in it.
//! - Nothing here mounts or unmounts, except [`set_uuid`], which says where.
//!
//! Not here: mounting ([`crate::mounts`]), choosing a file system.

mod probe;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

pub use probe::{Content, probe};

use crate::kernel::ToolOutput;
use crate::{Kernel, SystemError, mounts};

/// A file system that volumes are formatted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FilesystemKind {
    /// The common one.
    Ext4,
    /// For large files and many writers; can only grow.
    Xfs,
    /// With checksums and snapshots of its own.
    Btrfs,
}

impl FilesystemKind {
    /// All of them.
    pub const ALL: [FilesystemKind; 3] =
        [FilesystemKind::Ext4, FilesystemKind::Xfs, FilesystemKind::Btrfs];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            FilesystemKind::Ext4 => "ext4",
            FilesystemKind::Xfs => "xfs",
            FilesystemKind::Btrfs => "btrfs",
        }
    }

    /// The package of Debian and its kin that has the tools.
    fn package(self) -> &'static str {
        match self {
            FilesystemKind::Ext4 => "e2fsprogs",
            FilesystemKind::Xfs => "xfsprogs",
            FilesystemKind::Btrfs => "btrfs-progs",
        }
    }
}

impl fmt::Display for FilesystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FilesystemKind {
    type Err = String;

    fn from_str(text: &str) -> Result<FilesystemKind, String> {
        let found = FilesystemKind::ALL.into_iter().find(|kind| kind.name() == text);
        found
            .ok_or_else(|| format!("{text:?} is not a file system we make: use ext4, xfs or btrfs"))
    }
}

/// Runs a tool of a file system, and tells how it failed in its own last line.
fn run(
    kernel: &dyn Kernel,
    (kind, operation, device): (FilesystemKind, &'static str, &Path),
    (tool, arguments): (&str, &[&str]),
    is_good: impl Fn(i32) -> bool,
) -> Result<ToolOutput, SystemError> {
    let output = kernel.run(tool, arguments).map_err(|source| {
        SystemError::new(operation, device, source)
            .remedy_missing(&format!("install {}, which has {tool}", kind.package()))
    })?;
    if output.code.is_some_and(&is_good) {
        return Ok(output);
    }
    let said = output.text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let ended = output.code.map_or("a signal".to_owned(), |code| format!("exit code {code}"));
    Err(SystemError::refused(operation, device, format!("{tool} ended with {ended}: {said}")))
}

fn text_of(path: &Path) -> Result<&str, SystemError> {
    path.to_str().ok_or_else(|| SystemError::refused("use", path, "its name is not UTF-8"))
}

/// Formats a device that is empty; refuses any other.
///
/// Blocks are not discarded: a new volume has none, and another one would not be empty.
pub fn format(
    kernel: &dyn Kernel,
    device: &Path,
    kind: FilesystemKind,
    options: &[&str],
) -> Result<(), SystemError> {
    let content = probe(kernel, device)?;
    if content != Content::Empty {
        return Err(SystemError::refused("format", device, format!("it holds {content}")));
    }
    let path = text_of(device)?;
    let (tool, fixed): (_, &[&str]) = match kind {
        FilesystemKind::Ext4 => ("mkfs.ext4", &["-q", "-E", "nodiscard", "-m", "0"]),
        FilesystemKind::Xfs => ("mkfs.xfs", &["-q", "-K"]),
        FilesystemKind::Btrfs => ("mkfs.btrfs", &["-q", "-K"]),
    };
    let arguments = [fixed, options, &[path]].concat();
    run(kernel, (kind, "format", device), (tool, &arguments), |code| code == 0)?;
    Ok(())
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Nothing was wrong.
    Clean,
    /// What was wrong is repaired, as its own journal or a safe rule said.
    Repaired,
}

/// Checks an unmounted file system, and repairs what can be repaired without asking anybody.
///
/// XFS and btrfs recover from their logs when they are mounted; before that, a check by their tools
/// says nothing (XFS) or takes as long as reading all of it (btrfs). So only ext4 is checked.
pub fn check(
    kernel: &dyn Kernel,
    device: &Path,
    kind: FilesystemKind,
) -> Result<Checked, SystemError> {
    if kind != FilesystemKind::Ext4 {
        return Ok(Checked::Clean);
    }
    let arguments = ["-p", text_of(device)?];
    let of = (kind, "check", device);
    // 0: clean, 1: repaired; 2 would be that the machine must be restarted; above: not repaired.
    let output = run(kernel, of, ("e2fsck", &arguments), |code| code == 0 || code == 1);
    let output = output.map_err(|error| {
        error.remedy(format!("look at it by hand: e2fsck -f {}", device.display()))
    })?;
    Ok(if output.code == Some(0) { Checked::Clean } else { Checked::Repaired })
}

/// Grows a mounted file system to its device.
pub fn grow(
    kernel: &dyn Kernel,
    (device, point): (&Path, &Path),
    kind: FilesystemKind,
) -> Result<(), SystemError> {
    let (device_path, point_path) = (text_of(device)?, text_of(point)?);
    let (tool, arguments): (_, &[&str]) = match kind {
        FilesystemKind::Ext4 => ("resize2fs", &[device_path]),
        FilesystemKind::Xfs => ("xfs_growfs", &["-d", point_path]),
        FilesystemKind::Btrfs => ("btrfs", &["filesystem", "resize", "max", point_path]),
    };
    let of = (kind, "grow the file system on", device);
    run(kernel, of, (tool, arguments), |code| code == 0).map_err(|error| {
        if error.to_string().contains("Permission denied") {
            error.remedy("growing it while mounted needs CAP_SYS_RESOURCE")
        } else {
            error
        }
    })?;
    Ok(())
}

/// Gives an unmounted file system another uuid, so that a clone can be mounted beside its source.
///
/// `scratch` is an empty folder: XFS keeps its log until it was mounted, and then refuses a new
/// uuid. It is mounted there with `nouuid`, so that its source may be mounted meanwhile.
pub fn set_uuid(
    kernel: &dyn Kernel,
    (device, number): (&Path, mounts::DeviceNumber),
    (kind, uuid): (FilesystemKind, &str),
    scratch: &Path,
) -> Result<(), SystemError> {
    let path = text_of(device)?;
    let of = (kind, "give a new uuid to", device);
    match kind {
        FilesystemKind::Ext4 => {
            // tune2fs wants a file system that was checked since it was used.
            run(kernel, of, ("e2fsck", &["-f", "-p", path]), |code| code <= 1)?;
            run(kernel, of, ("tune2fs", &["-U", uuid, path]), |code| code == 0)?;
        }
        FilesystemKind::Xfs => {
            let options = mounts::MountOptions::default().with("nouuid");
            mounts::ensure(kernel, (device, number), (scratch, kind.name()), &options)?;
            mounts::release(kernel, scratch)?;
            run(kernel, of, ("xfs_admin", &["-U", uuid, path]), |code| code == 0)?;
        }
        FilesystemKind::Btrfs => {
            run(kernel, of, ("btrfstune", &["-f", "-U", uuid, path]), |code| code == 0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
