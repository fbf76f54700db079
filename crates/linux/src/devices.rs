//! The disks of a machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use block::Bytes;
use model::{BlockDevice, DeviceKind, DevicePath, IneligibleReason, Nqn, NqnKind, Size};

use crate::Tree;
use crate::mounts::Users;
use crate::traits;
use crate::tree::{names, number, word};

/// The kernel counts sizes in these, whatever the device's own block is.
const SECTOR: u64 = 512;
/// Folders of `/dev/disk` with names that do not change, best first.
const LASTING: [&str; 3] = ["by-id", "by-partuuid", "by-path"];
/// Devices that are no storage: memory, optical and floppy drives.
const NO_DISKS: [&str; 4] = ["ram", "zram", "sr", "fd"];

/// All disks and partitions, by name. A pool needs `least`; `look` says what lies on a device that
/// nothing else keeps from being used.
pub fn block_devices(
    tree: &Tree,
    least: Size,
    look: impl Fn(&Path) -> Option<IneligibleReason>,
) -> Vec<BlockDevice> {
    let links = lasting_links(tree);
    let users = Users::read(tree);
    let found = tree.names("/sys/class/block").into_iter().filter_map(|name| {
        let entry = Entry::open(tree, name)?;
        let mut device = entry.describe()?;
        device.links = links.get(&entry.name).cloned().unwrap_or_default();
        device.obstacles = entry.obstacles(&users, device.size < least);
        if device.obstacles.is_empty() {
            device.obstacles.extend(look(&tree.path(device.path.as_str())));
        }
        Some(device)
    });
    found.collect()
}

/// Lasting names by the kernel's name.
fn lasting_links(tree: &Tree) -> BTreeMap<String, Vec<DevicePath>> {
    let mut links: BTreeMap<String, Vec<DevicePath>> = BTreeMap::new();
    for folder in LASTING {
        let folder = format!("/dev/disk/{folder}");
        for name in tree.names(&folder) {
            let link = format!("{folder}/{name}");
            let Ok(to) = fs::read_link(tree.path(&link)) else { continue };
            let to = to.file_name().and_then(|to| to.to_str());
            if let (Some(to), Ok(link)) = (to, link.parse()) {
                links.entry(to.to_owned()).or_default().push(link);
            }
        }
    }
    links
}

/// One device in `/sys`.
struct Entry {
    name: String,
    /// Its folder, without links: a partition lies in that of its disk.
    folder: PathBuf,
}

impl Entry {
    fn open(tree: &Tree, name: String) -> Option<Entry> {
        let is_such = |kind: &str| {
            let rest = name.strip_prefix(kind);
            rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if NO_DISKS.iter().any(|kind| is_such(kind)) {
            return None;
        }
        let folder = fs::canonicalize(tree.path("/sys/class/block").join(&name)).ok()?;
        // One path of several to a device that has a name of its own.
        let is_hidden = number(&folder.join("hidden")) == Some(1);
        (!is_hidden).then_some(Entry { name, folder })
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    fn path(&self) -> Option<DevicePath> {
        // The kernel writes '!' for a '/' within a name.
        format!("/dev/{}", self.name.replace('!', "/")).parse().ok()
    }

    /// The disk that this is a part of.
    fn parent(&self) -> Option<Entry> {
        let folder = self.folder.parent().filter(|_| self.has("partition"))?;
        let name = folder.file_name()?.to_str()?.to_owned();
        Some(Entry { name, folder: folder.to_owned() })
    }

    fn kind(&self) -> DeviceKind {
        if self.has("partition") {
            DeviceKind::Partition
        } else if self.has("dm") || self.has("md") {
            DeviceKind::Composed
        } else if self.has("loop") || self.name.starts_with("loop") {
            DeviceKind::Loop
        } else {
            DeviceKind::Disk
        }
    }

    /// What it is; nothing if it has no size, like an empty loop device or card reader.
    fn describe(&self) -> Option<BlockDevice> {
        let sectors = number(&self.folder.join("size")).filter(|sectors| *sectors > 0)?;
        let parent = self.parent();
        // Partitions have no queue and no maker of their own.
        let disk = parent.as_ref().unwrap_or(self);
        Some(BlockDevice {
            path: self.path()?,
            links: Vec::new(),
            kind: self.kind(),
            size: Bytes(sectors.saturating_mul(SECTOR)).into(),
            traits: traits::of_folder(&self.folder),
            model: word(&disk.folder.join("device/model")),
            serial: word(&disk.folder.join("device/serial")).or_else(|| disk.virtual_serial()),
            parent: parent.and_then(|parent| parent.path()),
            obstacles: Vec::new(),
        })
    }

    /// Disks of virtual machines tell it elsewhere.
    fn virtual_serial(&self) -> Option<String> {
        word(&self.folder.join("serial"))
    }

    fn obstacles(&self, users: &Users, is_small: bool) -> Vec<IneligibleReason> {
        let mut found = Vec::new();
        if is_small {
            found.push(IneligibleReason::TooSmall);
        }
        if number(&self.folder.join("ro")) == Some(1) {
            found.push(IneligibleReason::ReadOnly);
        }
        if names(&self.folder).iter().any(|part| self.folder.join(part).join("partition").exists())
        {
            found.push(IneligibleReason::Partitioned);
        }
        let device = word(&self.folder.join("dev")).unwrap_or_default();
        if let Some(point) = users.mount_point(&device) {
            found.push(IneligibleReason::Mounted { path: point.display().to_string() });
        }
        if self.path().is_some_and(|path| users.is_swap(path.as_str())) {
            found.push(IneligibleReason::Held { by: "swap".into() });
        }
        let holders = names(&self.folder.join("holders"));
        found.extend(holders.into_iter().map(|by| IneligibleReason::Held { by }));
        if self.is_own_volume() {
            found.push(IneligibleReason::OwnVolume);
        }
        found
    }

    /// Whether it is a volume that this machine attached over NVMe.
    fn is_own_volume(&self) -> bool {
        let disk = self.parent();
        let folder = disk.as_ref().map_or(&self.folder, |disk| &disk.folder);
        // Of a device with several paths, the name is in the folder of its subsystem.
        let name = word(&folder.join("device/subsysnqn"))
            .or_else(|| word(&folder.parent()?.join("subsysnqn")));
        let named = name.and_then(|name| name.parse::<Nqn>().ok()).and_then(|nqn| nqn.named());
        matches!(named, Some(NqnKind::Volume(_)))
    }
}

#[cfg(test)]
mod tests;
