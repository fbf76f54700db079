//! NVMe over Fabrics as the kernel shows it: subsystems, their controllers (paths), namespaces.
//!
//! ```text
//!   /sys/class/nvme-subsystem/nvme-subsys0
//!       subsysnqn, iopolicy
//!       nvme0 ──► a controller: state, address, transport, hostnqn
//!           nvme0c0n1: one path to a namespace, with its ANA state
//!       nvme0n1: the namespace with all its paths, the device that is used
//! ```
//!
//! Without native multipath, `nvme0n1` lies below its controller and is the only path.

mod fabrics;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use model::Nqn;

pub use fabrics::{Connect, ConnectError, Connected, QueueCounts, Transport, connect, disconnect};

use crate::Tree;
use crate::tree::{names, number, word};

const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";

/// A subsystem that this machine is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// The kernel's name, as `nvme-subsys0`.
    pub name: String,
    /// Its qualified name.
    pub nqn: Nqn,
    /// How the kernel chooses among usable paths.
    pub io_policy: Option<String>,
    /// Its controllers, by name.
    pub controllers: Vec<Controller>,
    /// Its namespaces, by name.
    pub namespaces: Vec<Namespace>,
}

/// A controller: for a host, one path to what a subsystem has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// The kernel's name, as `nvme0`.
    pub name: String,
    /// Whether commands can be sent.
    pub state: ControllerState,
    /// How it is reached; `pcie` for a local disk.
    pub transport: String,
    /// Where it is, if it is on a network.
    pub address: Option<PathAddress>,
    /// What the host called itself.
    pub host_nqn: Option<Nqn>,
    /// Its paths to namespaces.
    pub paths: Vec<NamespacePath>,
}

/// The address of a controller on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathAddress {
    /// Where it listens.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// What the kernel does with a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// It was just made.
    New,
    /// Commands flow.
    Live,
    /// It is reset.
    Resetting,
    /// It was lost, or never reached, and is tried again.
    Connecting,
    /// It goes.
    Deleting,
    /// It is given up.
    Dead,
    /// A word of a newer kernel.
    Other(String),
}

/// Asymmetric access: what a path is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnaState {
    /// The best.
    Optimized,
    /// It works, by a detour.
    NonOptimized,
    /// It does not work now; another may.
    Inaccessible,
    /// It will never work again.
    PersistentLoss,
    /// It is changing.
    Change,
}

/// One path to a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacePath {
    /// The kernel's name, as `nvme0c1n1`.
    pub name: String,
    /// What it is good for; none where the subsystem does not say.
    pub ana: Option<AnaState>,
}

/// A namespace: a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The kernel's name, as `nvme0n1`.
    pub name: String,
    /// Its number in the subsystem.
    pub nsid: Option<u32>,
    /// Its uuid, if it has one.
    pub uuid: Option<String>,
    /// Its size in bytes.
    pub bytes: u64,
}

impl Namespace {
    /// The device to be used.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

impl Controller {
    /// Whether commands can be sent to this namespace by this path.
    pub fn serves(&self, path: &NamespacePath) -> bool {
        let usable = [None, Some(AnaState::Optimized), Some(AnaState::NonOptimized)];
        self.state == ControllerState::Live && usable.contains(&path.ana)
    }

    fn read(subsystem: &Path, name: &str) -> Option<Controller> {
        let folder = subsystem.join(name);
        let state = word(&folder.join("state"))?;
        let paths = names(&folder).into_iter().filter(|path| is_namespace(path));
        let paths = paths.map(|path| {
            let ana = word(&folder.join(&path).join("ana_state"));
            NamespacePath { name: path, ana: ana.as_deref().map(parse_ana) }
        });
        Some(Controller {
            name: name.to_owned(),
            state: parse_state(&state),
            transport: word(&folder.join("transport")).unwrap_or_default(),
            address: word(&folder.join("address")).as_deref().and_then(parse_address),
            host_nqn: word(&folder.join("hostnqn")).and_then(|nqn| nqn.parse().ok()),
            paths: paths.collect(),
        })
    }
}

/// All subsystems, by name. What goes while it is read is left out.
pub fn subsystems(tree: &Tree) -> Vec<Subsystem> {
    let found = tree.names(SUBSYSTEMS).into_iter().filter_map(|name| {
        let folder = tree.path(SUBSYSTEMS).join(&name);
        let nqn = word(&folder.join("subsysnqn"))?.parse().ok()?;
        let entries = names(&folder);
        let controllers = entries
            .iter()
            .filter(|entry| is_controller(entry))
            .filter_map(|entry| Controller::read(&folder, entry))
            .collect::<Vec<_>>();
        // With native multipath a namespace is the subsystem's, without it is its controller's.
        let shared = entries.iter().map(|entry| (folder.join(entry), entry.clone()));
        let alone = controllers.iter().flat_map(|controller| {
            let below = folder.join(&controller.name);
            controller.paths.iter().map(move |path| (below.join(&path.name), path.name.clone()))
        });
        let namespaces = shared
            .chain(alone)
            .filter(|(_, entry)| is_namespace(entry) && !is_path(entry))
            .map(|(folder, name)| Namespace {
                nsid: number(&folder.join("nsid")).and_then(|nsid| u32::try_from(nsid).ok()),
                uuid: word(&folder.join("uuid")),
                bytes: number(&folder.join("size")).unwrap_or_default().saturating_mul(512),
                name,
            })
            .collect();
        let io_policy = word(&folder.join("iopolicy"));
        Some(Subsystem { name, nqn, io_policy, controllers, namespaces })
    });
    found.collect()
}

/// The subsystem of this name.
pub fn subsystem(tree: &Tree, nqn: &Nqn) -> Option<Subsystem> {
    subsystems(tree).into_iter().find(|subsystem| subsystem.nqn == *nqn)
}

/// Whether the kernel joins several paths to one device. Absent: the module is not loaded, or the
/// kernel was built without.
pub fn native_multipath(tree: &Tree) -> Option<bool> {
    let file = tree.path("/sys/module/nvme_core/parameters/multipath");
    word(&file).map(|value| value == "Y" || value == "1")
}

/// Whether NVMe/TCP can be spoken: the module is there, loaded or built in.
pub fn has_tcp(tree: &Tree) -> bool {
    tree.path("/sys/module/nvme_tcp").exists()
}

fn is_controller(name: &str) -> bool {
    let rest = name.strip_prefix("nvme");
    rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `nvme0n1`, or one path to it, `nvme0c1n1`; partitions have a `p` behind.
fn is_namespace(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("nvme") else { return false };
    let Some((before, nsid)) = rest.rsplit_once('n') else { return false };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits(nsid) && before.split('c').all(digits)
}

fn is_path(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|rest| rest.contains('c'))
}

fn parse_state(text: &str) -> ControllerState {
    match text {
        "new" => ControllerState::New,
        "live" => ControllerState::Live,
        "resetting" => ControllerState::Resetting,
        "connecting" => ControllerState::Connecting,
        "deleting" | "deleting (no IO)" => ControllerState::Deleting,
        "dead" => ControllerState::Dead,
        other => ControllerState::Other(other.to_owned()),
    }
}

fn parse_ana(text: &str) -> AnaState {
    match text {
        "optimized" => AnaState::Optimized,
        "non-optimized" => AnaState::NonOptimized,
        "persistent-loss" => AnaState::PersistentLoss,
        "change" => AnaState::Change,
        // The kernel sends no command by a path whose state it does not know.
        _ => AnaState::Inaccessible,
    }
}

/// `traddr=10.0.0.1,trsvcid=4420,src_addr=10.0.0.2`
fn parse_address(text: &str) -> Option<PathAddress> {
    let value = |key: &str| {
        text.split(',').find_map(|field| field.trim().strip_prefix(key)?.strip_prefix('='))
    };
    // A link-local address has its interface behind a percent sign.
    let address = value("traddr")?.split('%').next()?;
    Some(PathAddress { address: address.parse().ok()?, port: value("trsvcid")?.parse().ok()? })
}

#[cfg(test)]
mod tests;
