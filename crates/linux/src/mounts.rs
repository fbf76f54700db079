//! The mount table of this process, and mounts made and removed.
//!
//! Invariant: [`ensure`] and [`release`] look before they act, so that repeating either changes
//! nothing; a mount that somebody else made is named, never replaced.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::mount::{MountFlags, UnmountFlags};

use crate::kernel::MountCall;
use crate::{Kernel, SystemError, Tree};

/// A block device as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// One device of it.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<DeviceNumber, Self::Err> {
        let (major, minor) = text.split_once(':').unwrap_or((text, ""));
        Ok(DeviceNumber { major: major.parse()?, minor: minor.parse()? })
    }
}

/// Who sees mounts made below a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// Nobody else.
    Private,
    /// The peers of its group, and it sees theirs.
    Shared,
    /// It sees its master's; nobody sees its own.
    Slave,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device its file system lies on; a number without a device for others.
    pub device: DeviceNumber,
    /// The folder of that file system that is visible here; not `/` for a bind mount of a part.
    pub root: PathBuf,
    /// Where it is visible.
    pub point: PathBuf,
    /// Options of this mount alone.
    pub options: Vec<String>,
    /// Who sees what is mounted below.
    pub propagation: Propagation,
    /// The kernel's name of the file system.
    pub filesystem: String,
    /// What was mounted, as it was called then.
    pub source: String,
    /// Options of the file system, wherever it is mounted.
    pub filesystem_options: Vec<String>,
}

impl Mount {
    /// Whether nothing can be written through it.
    pub fn is_read_only(&self) -> bool {
        let has_ro = |options: &[String]| options.iter().any(|option| option == "ro");
        has_ro(&self.options) || has_ro(&self.filesystem_options)
    }

    /// Whether the device under it has gone, as after a lost host connection: it can only be
    /// unmounted. A major number of zero is a file system without a device.
    pub fn is_stale(&self, tree: &Tree) -> bool {
        self.device.major != 0 && !tree.path(&format!("/sys/dev/block/{}", self.device)).exists()
    }

    fn parse(line: &str) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ');
        let device = before.nth(2)?.parse().ok()?;
        let root = PathBuf::from(unescaped(before.next()?));
        let point = PathBuf::from(unescaped(before.next()?));
        let options = split(before.next()?);
        let mut propagation = Propagation::Private;
        for tag in before {
            if tag.starts_with("shared:") {
                propagation = Propagation::Shared;
            } else if tag.starts_with("master:") && propagation == Propagation::Private {
                propagation = Propagation::Slave;
            }
        }
        let mut after = after.split(' ');
        let filesystem = after.next()?.to_owned();
        let source = unescaped(after.next()?);
        let filesystem_options = split(after.next().unwrap_or_default());
        Some(Mount {
            device,
            root,
            point,
            options,
            propagation,
            filesystem,
            source,
            filesystem_options,
        })
    }
}

fn split(options: &str) -> Vec<String> {
    options.split(',').map(unescaped).collect()
}

/// The mounts that this process sees, oldest first.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// As it is now. A line that cannot be read is left out.
    pub fn read(tree: &Tree) -> MountTable {
        let text = tree.text("/proc/self/mountinfo");
        MountTable { mounts: text.lines().filter_map(Mount::parse).collect() }
    }

    /// All of them.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// What is visible at exactly this point: the mount made last there.
    pub fn at(&self, point: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.point == point)
    }

    /// Where the file system of a device is visible.
    pub fn of(&self, device: DeviceNumber) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |mount| mount.device == device)
    }

    /// Mounts below a folder, deepest first: in this order they can be unmounted.
    pub fn below<'a>(&'a self, folder: &Path) -> Vec<&'a Mount> {
        let mut found: Vec<&Mount> = self
            .mounts
            .iter()
            .rev()
            .filter(|mount| mount.point != folder && mount.point.starts_with(folder))
            .collect();
        found.sort_by_key(|mount| std::cmp::Reverse(mount.point.components().count()));
        found
    }
}

/// Mount options as people write them: `noatime,nosuid,discard`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    flags: Vec<(&'static str, MountFlags)>,
    data: Vec<String>,
}

/// Options that the kernel knows of every file system.
const FLAGS: [(&str, MountFlags); 11] = [
    ("ro", MountFlags::RDONLY),
    ("nosuid", MountFlags::NOSUID),
    ("nodev", MountFlags::NODEV),
    ("noexec", MountFlags::NOEXEC),
    ("sync", MountFlags::SYNCHRONOUS),
    ("dirsync", MountFlags::DIRSYNC),
    ("noatime", MountFlags::NOATIME),
    ("nodiratime", MountFlags::NODIRATIME),
    ("relatime", MountFlags::RELATIME),
    ("strictatime", MountFlags::STRICTATIME),
    ("lazytime", MountFlags::LAZYTIME),
];
/// Those of them that belong to a mount, and not to its file system.
const REMOUNTED: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC)
    .union(MountFlags::NOATIME)
    .union(MountFlags::NODIRATIME)
    .union(MountFlags::RELATIME);
/// Options that say what is so anyway.
const DEFAULTS: [&str; 6] = ["defaults", "rw", "suid", "dev", "exec", "async"];

impl MountOptions {
    /// From single options. One with a comma, a space or a control character is refused: it would
    /// be another option than the one that was read by whoever allowed it.
    pub fn parse<'a>(options: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
        let mut parsed = MountOptions::default();
        for option in options {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b',';
            if option.is_empty() || !option.bytes().all(is_plain) {
                return Err(format!("{option:?} is not a mount option, e.g. noatime"));
            }
            if let Some(flag) = FLAGS.iter().find(|(name, _)| *name == option) {
                if !parsed.flags.contains(flag) {
                    parsed.flags.push(*flag);
                }
            } else if !DEFAULTS.contains(&option) && !parsed.data.iter().any(|had| had == option) {
                parsed.data.push(option.to_owned());
            }
        }
        Ok(parsed)
    }

    /// With one more that we add ourselves.
    #[must_use]
    pub fn with(mut self, option: &'static str) -> MountOptions {
        if let Some(flag) = FLAGS.iter().find(|(name, _)| *name == option) {
            if !self.flags.contains(flag) {
                self.flags.push(*flag);
            }
        } else if !self.data.iter().any(|had| had == option) {
            self.data.push(option.to_owned());
        }
        self
    }

    /// Whether nothing may be written.
    pub fn is_read_only(&self) -> bool {
        self.flags().contains(MountFlags::RDONLY)
    }

    fn flags(&self) -> MountFlags {
        self.flags.iter().fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag)
    }
}

/// What [`ensure`] found or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// It was mounted now.
    Now,
    /// It was mounted so before.
    Before,
}

/// Makes sure that the file system of `device` is visible at `point`.
///
/// ```text
///   nothing there ──► mount                 this device there ──► unchanged, or refused: mode
///   stale there   ──► unmount, then mount   another one there ──► refused, named
/// ```
pub fn ensure(
    kernel: &dyn Kernel,
    (device, number): (&Path, DeviceNumber),
    (point, filesystem): (&Path, &str),
    options: &MountOptions,
) -> Result<Mounted, SystemError> {
    let refused = |why: String| Err(SystemError::refused("mount at", point, why));
    if let Some(there) = MountTable::read(kernel.tree()).at(point) {
        if there.device == number {
            if there.filesystem != filesystem {
                return refused(format!(
                    "{} is mounted there as {}",
                    there.source, there.filesystem
                ));
            }
            if there.is_read_only() != options.is_read_only() {
                let mode = if there.is_read_only() { "read-only" } else { "writable" };
                return refused(format!("{} is mounted there already, {mode}", there.source));
            }
            return Ok(Mounted::Before);
        }
        if !there.is_stale(kernel.tree()) {
            return refused(format!("{} ({}) is mounted there", there.source, there.filesystem));
        }
        unmount(kernel, point, UnmountFlags::DETACH)?;
    }
    let data = options.data.join(",");
    let call = MountCall { source: device, point, filesystem, flags: options.flags(), data: &data };
    kernel.mount(&call).map_err(|source| {
        let error = SystemError::new("mount at", point, source);
        match error.errno() {
            Some(libc::ENODEV) => error.remedy(format!("load it: modprobe {filesystem}")),
            Some(libc::EINVAL) => error.remedy(format!(
                "the options {data:?} or what lies on {} do not fit {filesystem}: see dmesg",
                device.display()
            )),
            Some(libc::ENOENT) => error.remedy("make the folder first"),
            Some(libc::EROFS) if options.is_read_only() => error.remedy(
                "it was not unmounted cleanly, and replaying its log needs a writable device: \
                 mount it writable once, then read-only",
            ),
            _ => error,
        }
    })?;
    Ok(Mounted::Now)
}

/// Makes sure that `source` is visible at `point` too, read-only if asked.
pub fn ensure_bind(
    kernel: &dyn Kernel,
    source: &Path,
    point: &Path,
    read_only: bool,
) -> Result<Mounted, SystemError> {
    let table = MountTable::read(kernel.tree());
    if let Some(there) = table.at(point) {
        let same = table
            .at(source)
            .is_some_and(|from| from.device == there.device && from.root == there.root);
        if same && there.is_read_only() == read_only {
            return Ok(Mounted::Before);
        }
        if same && read_only {
            // The second of the two steps below was interrupted.
            return make_read_only(kernel, point).map(|()| Mounted::Now);
        }
        let why = format!("{} ({}) is mounted there", there.source, there.filesystem);
        return Err(SystemError::refused("bind at", point, why));
    }
    kernel.bind(source, point).map_err(|source| SystemError::new("bind at", point, source))?;
    if read_only {
        // A bind mount takes no flags when it is made; until they are set, writes are possible.
        if let Err(error) = make_read_only(kernel, point) {
            unmount(kernel, point, UnmountFlags::DETACH)?;
            return Err(error);
        }
    }
    Ok(Mounted::Now)
}

/// Makes a mount read-only and leaves its other flags: a remount sets all of them.
fn make_read_only(kernel: &dyn Kernel, point: &Path) -> Result<(), SystemError> {
    let table = MountTable::read(kernel.tree());
    let options = table.at(point).map(|there| there.options.as_slice()).unwrap_or_default();
    let has = |name: &str| options.iter().any(|option| option == name);
    let flags = FLAGS.iter().filter(|(name, flag)| has(name) && REMOUNTED.contains(*flag));
    let flags = flags.fold(MountFlags::RDONLY, |flags, (_, flag)| flags | *flag);
    kernel
        .remount_bind(point, flags)
        .map_err(|source| SystemError::new("make read-only", point, source))
}

/// Makes sure that nothing is mounted at `point`: every layer is unmounted, the last first. How
/// many there were.
pub fn release(kernel: &dyn Kernel, point: &Path) -> Result<usize, SystemError> {
    let mut layers = 0;
    let mut seen = BTreeSet::new();
    while let Some(there) = MountTable::read(kernel.tree()).at(point).cloned() {
        let left = MountTable::read(kernel.tree()).iter().filter(|m| m.point == point).count();
        if !seen.insert(left) {
            let why = format!("{} is mounted there again and again", there.source);
            return Err(SystemError::refused("unmount", point, why));
        }
        // A file system whose device has gone may wait for ever for what it cannot write.
        let stale = there.is_stale(kernel.tree());
        let flags = if stale { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        unmount(kernel, point, flags)?;
        layers += 1;
    }
    Ok(layers)
}

fn unmount(kernel: &dyn Kernel, point: &Path, flags: UnmountFlags) -> Result<(), SystemError> {
    match kernel.unmount(point, flags) {
        // Nothing is mounted there: that is what was asked for.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result.map_err(|source| SystemError::new("unmount", point, source)),
    }
}

/// Who uses devices.
#[derive(Debug, Default)]
pub(crate) struct Users {
    mounts: MountTable,
    /// Paths of devices that are swap space.
    swaps: Vec<String>,
}

impl Users {
    pub(crate) fn read(tree: &Tree) -> Users {
        let swaps = tree.text("/proc/swaps");
        let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        Users { mounts: MountTable::read(tree), swaps: swaps.map(unescaped).collect() }
    }

    /// The first point where the device with this number is mounted.
    pub(crate) fn mount_point(&self, number: &str) -> Option<&Path> {
        let mount = self.mounts.of(number.parse().ok()?).next()?;
        Some(&mount.point)
    }

    /// What was mounted as the file system with this number.
    pub(crate) fn source(&self, number: &str) -> Option<&str> {
        let mount = self.mounts.of(number.parse().ok()?).next()?;
        Some(&mount.source)
    }

    pub(crate) fn is_swap(&self, path: &str) -> bool {
        self.swaps.iter().any(|swap| swap == path)
    }
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
