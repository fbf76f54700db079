//! The system packages that the chores need, on Debian and Ubuntu.

use std::process::Command;

use anyhow::{Result, bail};

/// What a chore needs from the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Compiling: the linker Rust uses, and a C compiler for the cryptography underneath TLS.
    Build,
    /// The real programs we test and measure against.
    Peers,
    /// What the container image contains besides our binary.
    Image,
    /// Nodes of Kubernetes on this machine.
    Kubernetes,
    /// Virtual machines with a stock kernel, and what goes into them.
    Machines,
}

impl Need {
    fn packages(self) -> &'static [&'static str] {
        match self {
            Need::Build => &["gcc", "libc6-dev"],
            Need::Peers => &[
                "etcd-server",
                "etcd-client",
                "fio",
                "nbdkit",
                "postgresql",
                "python3-venv",
                "qemu-utils",
            ],
            Need::Image => {
                &["binutils", "btrfs-progs", "coreutils", "dash", "e2fsprogs", "xfsprogs"]
            }
            Need::Kubernetes => &[
                "busybox-static",
                "containerd",
                "containernetworking-plugins",
                "dnsmasq-base",
                "etcd-server",
                "iproute2",
                "nftables",
                "runc",
                "util-linux",
            ],
            Need::Machines => &[
                "busybox-static",
                "cpio",
                "debian-archive-keyring",
                "e2fsprogs",
                "fio",
                "nvme-cli",
                "qemu-system-x86",
                "xfsprogs",
                "xz-utils",
            ],
        }
    }
}

/// Makes sure that all packages are there: as root it installs what is missing, otherwise it says
/// the one command to run.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let missing = missing(needs, installed);
    if missing.is_empty() {
        return Ok(());
    }
    if is_root() {
        crate::run(Command::new("apt-get").args(["update", "--quiet"]))?;
        let mut install = Command::new("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        install.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
        return crate::run(install.args(&missing));
    }
    bail!(
        "these system packages are missing: {list}\nInstall them, then run this again:\n\n    \
         sudo apt-get install --no-install-recommends {list}\n",
        list = missing.join(" ")
    )
}

/// The packages needed but not there, each once.
fn missing(needs: &[Need], installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut missing: Vec<_> = needs.iter().flat_map(|need| need.packages()).copied().collect();
    missing.sort_unstable();
    missing.dedup();
    missing.retain(|package| !installed(package));
    missing
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_package_is_named_once() {
        let found = missing(&[Need::Peers, Need::Machines], |package| package != "fio");
        assert_eq!(found, ["fio"]);
        assert_eq!(missing(&[Need::Build], |_| true), [""; 0]);
    }

    #[test]
    fn asks_the_system() {
        assert!(installed("dpkg"));
        assert!(!installed("holdfast-no-such-package"));
    }
}
