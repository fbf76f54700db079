//! What this machine can do with volumes: its kernel, modules, name and clock.

use std::io::Write as _;
use std::{fs, io};

use crate::nvme;
use crate::tree::{Tree, word};

/// Whether a part of the kernel can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// Now.
    Usable,
    /// After its module was loaded.
    Loadable,
    /// Not with this kernel, or not in this container.
    Absent,
}

/// The parts of the kernel that attach volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Version of the kernel.
    pub release: String,
    /// NVMe over TCP.
    pub nvme_tcp: Availability,
    /// Whether the kernel joins several paths to one device; absent where nobody says.
    pub multipath: Option<bool>,
    /// File systems in user space.
    pub fuse: Availability,
    /// Files as block devices.
    pub loop_devices: Availability,
    /// Block devices in user space.
    pub ublk: Availability,
}

impl Features {
    /// As the kernel shows them.
    pub fn read(tree: &Tree) -> Features {
        let release = word(&tree.path("/proc/sys/kernel/osrelease")).unwrap_or_default();
        let modules = tree.text(&format!("/lib/modules/{release}/modules.dep"));
        let part = |is_usable: bool, module: &str| {
            if is_usable {
                Availability::Usable
            } else if modules.contains(&format!("/{module}.ko")) {
                Availability::Loadable
            } else {
                Availability::Absent
            }
        };
        let device = |path: &str| tree.path(path).exists();
        Features {
            nvme_tcp: part(nvme::has_tcp(tree), "nvme-tcp"),
            multipath: nvme::native_multipath(tree),
            fuse: part(device("/dev/fuse"), "fuse"),
            loop_devices: part(device("/dev/loop-control"), "loop"),
            ublk: part(device("/dev/ublk-control"), "ublk_drv"),
            release,
        }
    }
}

/// What this machine calls itself.
pub fn host_name(tree: &Tree) -> Option<String> {
    word(&tree.path("/proc/sys/kernel/hostname"))
}

/// The name with which its administrator lets it connect to NVMe targets.
pub fn host_nqn(tree: &Tree) -> Option<String> {
    word(&tree.path("/etc/nvme/hostnqn"))
}

/// What tells this machine from all others, also from those made from the same image: the id of its
/// installation and the id of its hardware, as far as there are any; else one that is made once. An
/// id that exists and may not be read is an error: half of an identity is another one.
pub fn identity(tree: &Tree) -> io::Result<Option<String>> {
    let mut parts = Vec::new();
    for file in ["/etc/machine-id", "/sys/class/dmi/id/product_uuid"] {
        match fs::read_to_string(tree.path(file)) {
            Ok(text) if ["", "uninitialized"].contains(&text.trim()) => {}
            Ok(text) => parts.push(text.trim().to_ascii_lowercase()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(_) => {}
        }
    }
    if parts.is_empty() { made_identity(tree) } else { Ok(Some(parts.join(":"))) }
}

/// An identity of our own making, for a machine or container that has none: made once.
fn made_identity(tree: &Tree) -> io::Result<Option<String>> {
    let folder = tree.path("/var/lib/holdfast");
    let file = folder.join("machine-id");
    let Some(new) = word(&tree.path("/proc/sys/kernel/random/uuid")).filter(|_| !file.exists())
    else {
        return Ok(word(&file));
    };
    fs::create_dir_all(&folder)?;
    let draft = folder.join(format!("machine-id.{}", std::process::id()));
    let mut file_of_draft = fs::File::create(&draft)?;
    file_of_draft.write_all(new.as_bytes())?;
    file_of_draft.sync_all()?;
    // Of two that make one at once, the second takes the first one's.
    let linked = fs::hard_link(&draft, &file);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(word(&file)),
    }
}

/// Whether something keeps the clock right.
#[expect(unsafe_code, reason = "no safe wrapper has this call")]
pub fn is_clock_synchronised() -> bool {
    // SAFETY: a structure of zeros asks for nothing to be changed, and is a valid one to fill.
    let mut state: libc::timex = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is valid for the call, which reads and fills the structure.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    result >= 0 && state.status & libc::STA_UNSYNC == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;
    use crate::testing::FakeKernel;

    #[test]
    fn a_machine_is_told_from_another_made_from_the_same_image() {
        let machine = FakeKernel::new();
        let identity = || identity(machine.tree()).unwrap();
        machine.write("etc/machine-id", "uninitialized\n");
        assert_eq!(identity(), None);
        machine.write("proc/sys/kernel/random/uuid", "5f0c\n");
        assert_eq!(identity().as_deref(), Some("5f0c"));
        machine.write("proc/sys/kernel/random/uuid", "another\n");
        assert_eq!(identity().as_deref(), Some("5f0c"), "made once");
        machine.write("etc/machine-id", "3D1219c7\n");
        assert_eq!(identity().as_deref(), Some("3d1219c7"));
        machine.write("sys/class/dmi/id/product_uuid", "4C4C-01\n");
        assert_eq!(identity().as_deref(), Some("3d1219c7:4c4c-01"));
    }

    #[test]
    fn parts_are_there_or_could_be_loaded() {
        let machine = FakeKernel::new();
        machine.write("proc/sys/kernel/osrelease", "6.18.1\n");
        machine.write("proc/sys/kernel/hostname", "db-7\n");
        machine.write("dev/fuse", "");
        machine.write("sys/module/nvme_core/parameters/multipath", "N\n");
        machine.write(
            "lib/modules/6.18.1/modules.dep",
            "kernel/drivers/nvme/host/nvme-tcp.ko.zst: kernel/drivers/nvme/host/nvme-core.ko.zst\n",
        );
        let features = Features::read(machine.tree());
        assert_eq!(features.release, "6.18.1");
        assert_eq!(features.nvme_tcp, Availability::Loadable);
        assert_eq!(features.multipath, Some(false));
        assert_eq!(features.fuse, Availability::Usable);
        assert_eq!(features.loop_devices, Availability::Absent);
        assert_eq!(host_name(machine.tree()).as_deref(), Some("db-7"));
        assert_eq!(host_nqn(machine.tree()), None);
        machine.write("sys/module/nvme_tcp/refcnt", "0");
        assert_eq!(Features::read(machine.tree()).nvme_tcp, Availability::Usable);
    }
}
