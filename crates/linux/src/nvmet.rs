//! What this machine shows to others over NVMe: the kernel's target, in configfs.
//!
//! ```text
//!   /sys/kernel/config/nvmet
//!       hosts/HOSTNQN
//!       subsystems/NQN: attr_serial, allowed_hosts/HOSTNQN, namespaces/NSID: device_path, enable
//!       ports/4420: addr_…, subsystems/NQN
//! ```
//!
//! Invariant: a subsystem is shown to the one host that it names, never to any.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::tree::{names, word};
use crate::{Kernel, SystemError, Tree};

const ROOT: &str = "/sys/kernel/config/nvmet";

/// A subsystem of the kernel's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSubsystem {
    /// Its name.
    pub nqn: String,
    /// Its serial number, which whoever made it chose.
    pub serial: String,
    /// Its namespaces that are enabled: id and UUID.
    pub namespaces: Vec<(u32, String)>,
    /// Whether a port shows it.
    pub is_shown: bool,
}

/// A namespace to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Exported<'a> {
    /// The subsystem.
    pub nqn: &'a str,
    /// The serial number of the subsystem.
    pub serial: &'a str,
    /// The host that may connect.
    pub host: &'a str,
    /// The id of the namespace.
    pub nsid: u32,
    /// The UUID of the namespace.
    pub uuid: &'a str,
    /// The device.
    pub device: &'a Path,
}

/// All subsystems.
pub fn subsystems(tree: &Tree) -> Vec<TargetSubsystem> {
    let root = tree.path(ROOT);
    let found = names(&root.join("subsystems")).into_iter().map(|nqn| {
        let folder = root.join("subsystems").join(&nqn);
        let namespaces = names(&folder.join("namespaces"));
        let namespaces = namespaces.into_iter().filter_map(|nsid| {
            let one = folder.join("namespaces").join(&nsid);
            let is_enabled = word(&one.join("enable")).as_deref() == Some("1");
            let uuid = word(&one.join("device_uuid"))?;
            is_enabled.then_some((nsid.parse().ok()?, uuid))
        });
        let ports = names(&root.join("ports"));
        let shows = |port: &String| {
            let link = root.join("ports").join(port).join("subsystems").join(&nqn);
            link.symlink_metadata().is_ok()
        };
        TargetSubsystem {
            serial: word(&folder.join("attr_serial")).unwrap_or_default(),
            namespaces: namespaces.collect(),
            is_shown: ports.iter().any(shows),
            nqn,
        }
    });
    found.collect()
}

fn make(kernel: &dyn Kernel, path: &str) -> Result<(), SystemError> {
    match kernel.make_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(|source| {
            SystemError::new("make", Path::new(path), source)
                .remedy_missing("load the kernel's target: modprobe nvmet-tcp, mount configfs")
        }),
    }
}

fn link(kernel: &dyn Kernel, from: &str, to: &str) -> Result<(), SystemError> {
    match kernel.make_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(|source| SystemError::new("link", Path::new(from), source)),
    }
}

fn set(kernel: &dyn Kernel, path: &str, value: &str) -> Result<(), SystemError> {
    // Attributes of what is enabled cannot be written, not even with the value that they have.
    if word(&kernel.tree().path(path)).as_deref() == Some(value) {
        return Ok(());
    }
    let done = kernel.set_attribute(path, value);
    done.map_err(|source| SystemError::new("set", Path::new(path), source))
}

/// Listens for NVMe/TCP at an address.
pub fn ensure_port(kernel: &dyn Kernel, address: IpAddr, port: u16) -> Result<(), SystemError> {
    let folder = format!("{ROOT}/ports/{port}");
    make(kernel, &folder)?;
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    set(kernel, &format!("{folder}/addr_trtype"), "tcp")?;
    set(kernel, &format!("{folder}/addr_adrfam"), family)?;
    set(kernel, &format!("{folder}/addr_traddr"), &address.to_string())?;
    set(kernel, &format!("{folder}/addr_trsvcid"), &port.to_string())
}

/// Shows a device to one host.
pub fn export(kernel: &dyn Kernel, port: u16, what: &Exported<'_>) -> Result<(), SystemError> {
    let subsystem = format!("{ROOT}/subsystems/{}", what.nqn);
    make(kernel, &subsystem)?;
    set(kernel, &format!("{subsystem}/attr_allow_any_host"), "0")?;
    set(kernel, &format!("{subsystem}/attr_serial"), what.serial)?;
    let host = format!("{ROOT}/hosts/{}", what.host);
    make(kernel, &host)?;
    link(kernel, &format!("{subsystem}/allowed_hosts/{}", what.host), &host)?;
    let namespace = format!("{subsystem}/namespaces/{}", what.nsid);
    make(kernel, &namespace)?;
    let device = what.device.display().to_string();
    set(kernel, &format!("{namespace}/device_path"), &device)?;
    set(kernel, &format!("{namespace}/device_uuid"), what.uuid)?;
    set(kernel, &format!("{namespace}/enable"), "1")?;
    link(kernel, &format!("{ROOT}/ports/{port}/subsystems/{}", what.nqn), &subsystem)
}

/// Tells hosts the size that a device has now.
pub fn revalidate(kernel: &dyn Kernel, nqn: &str, nsid: u32) -> Result<(), SystemError> {
    let path = format!("{ROOT}/subsystems/{nqn}/namespaces/{nsid}/revalidate_size");
    let done = kernel.set_attribute(&path, "1");
    done.map_err(|source| SystemError::new("set", Path::new(&path), source))
}

/// Takes a subsystem away: when this returns, no command of its host is being carried out, and
/// none will be. The order matters: unlinking ends the connections, disabling waits for commands.
pub fn withdraw(kernel: &dyn Kernel, nqn: &str) -> Result<(), SystemError> {
    let gone = |path: &str, done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(|source| SystemError::new("remove", Path::new(path), source)),
    };
    let tree = kernel.tree();
    for port in names(&tree.path(&format!("{ROOT}/ports"))) {
        let path = format!("{ROOT}/ports/{port}/subsystems/{nqn}");
        gone(&path, kernel.remove_link(&path))?;
    }
    let subsystem = format!("{ROOT}/subsystems/{nqn}");
    for nsid in names(&tree.path(&format!("{subsystem}/namespaces"))) {
        let namespace = format!("{subsystem}/namespaces/{nsid}");
        gone(&namespace, kernel.set_attribute(&format!("{namespace}/enable"), "0"))?;
        gone(&namespace, kernel.remove_folder(&namespace))?;
    }
    for host in names(&tree.path(&format!("{subsystem}/allowed_hosts"))) {
        let path = format!("{subsystem}/allowed_hosts/{host}");
        gone(&path, kernel.remove_link(&path))?;
    }
    gone(&subsystem, kernel.remove_folder(&subsystem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeKernel;

    const NQN: &str = "nqn.2026-11.test:one";

    #[test]
    fn a_device_is_shown_to_one_host_and_withdrawn_in_the_order_that_ends_its_commands() {
        let kernel = FakeKernel::new();
        ensure_port(&kernel, "10.0.0.1".parse().unwrap(), 4420).unwrap();
        let what = Exported {
            nqn: NQN,
            serial: "7",
            host: "nqn.2026-11.test:host",
            nsid: 3,
            uuid: "u",
            device: Path::new("/dev/nvme0n1p1"),
        };
        for _ in 0..2 {
            export(&kernel, 4420, &what).unwrap();
        }
        let found = subsystems(kernel.tree());
        assert_eq!(found[0].namespaces, [(3, "u".to_owned())]);
        assert!(found[0].is_shown && found[0].serial == "7");
        let any = kernel.file(&format!("{ROOT}/subsystems/{NQN}/attr_allow_any_host"));
        assert_eq!(std::fs::read_to_string(any).unwrap(), "0");

        let before = kernel.calls().len();
        withdraw(&kernel, NQN).unwrap();
        let calls = &kernel.calls()[before..];
        let at = |text: &str| calls.iter().position(|call| call.contains(text)).unwrap();
        assert!(at("remove_link") < at("enable") && at("enable") < at("remove_folder"));
        assert!(subsystems(kernel.tree()).is_empty());
        withdraw(&kernel, NQN).unwrap();
    }
}
