//! Whether this machine can attach volumes, and what helps if not.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use linux::Kernel;
use linux::machine::{self, Availability, Features};
use serde::Serialize;

use crate::attach::plan::{Choice, transport};

/// How a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works without.
    Missing,
    /// Nothing can be attached as long as it is so.
    Bad,
}

/// What was found of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Which part.
    pub part: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub found: String,
    /// The one command, or deed, that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    fn new(part: &str, verdict: Verdict, found: &str, remedy: &str) -> Finding {
        let remedy = (verdict != Verdict::Good && !remedy.is_empty()).then(|| remedy.to_owned());
        Finding { part: part.to_owned(), verdict, found: found.to_owned(), remedy }
    }

    fn of(part: &str, is_good: bool, (found, missing): (&str, &str), remedy: &str) -> Finding {
        let verdict = if is_good { Verdict::Good } else { Verdict::Missing };
        Finding::new(part, verdict, if is_good { found } else { missing }, remedy)
    }
}

/// What was looked at.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether this is root.
    pub is_root: bool,
    /// What the kernel can.
    pub features: Features,
    /// Tools that are not there.
    pub missing_tools: Vec<&'static str>,
    /// Whether something keeps the clock right.
    pub is_clock_right: bool,
    /// Places that were asked for, and whether somebody answered.
    pub ports: Vec<(SocketAddr, bool)>,
}

/// Tools, and the package of Debian and its kin that has each.
const TOOLS: [(&str, &str); 6] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_growfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("modprobe", "kmod"),
];

impl Facts {
    /// Looks. `ports`: the control plane, and targets if they are known.
    pub fn look(kernel: &dyn Kernel, is_root: bool, ports: &[SocketAddr]) -> Facts {
        let answers = |address: &SocketAddr| {
            TcpStream::connect_timeout(address, Duration::from_secs(2)).is_ok()
        };
        Facts {
            is_root,
            features: Features::read(kernel.tree()),
            missing_tools: TOOLS.iter().map(|it| it.0).filter(|tool| !is_installed(tool)).collect(),
            is_clock_right: machine::is_clock_synchronised(),
            ports: ports.iter().map(|address| (*address, answers(address))).collect(),
        }
    }
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(Into::into);
    std::env::split_paths(&path).chain(usual).any(|folder| folder.join(tool).is_file())
}

/// What is good and what is missing, in the order of importance.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let features = &facts.features;
    let mut all = Vec::new();
    match transport(Choice::Auto, features) {
        Ok(transport) => {
            let found = format!("volumes are attached by {transport}");
            all.push(Finding::new("attach", Verdict::Good, &found, ""));
        }
        Err(refusal) => {
            let remedy = "modprobe -a fuse loop";
            all.push(Finding::new("attach", Verdict::Bad, &refusal.to_string(), remedy));
        }
    }
    if !facts.is_root {
        let found = "only root may make block devices";
        all.push(Finding::new("root", Verdict::Bad, found, "run it with sudo"));
    }
    all.push(kernel(&features.release));
    let module = |part: &str, state, name: &str| match state {
        Availability::Usable => Finding::new(part, Verdict::Good, "there", ""),
        Availability::Loadable => {
            let remedy = format!("modprobe {name}");
            Finding::new(part, Verdict::Missing, "not loaded", &remedy)
        }
        Availability::Absent => {
            let remedy = "install a kernel, or start a container, that has it";
            Finding::new(part, Verdict::Missing, "not in this kernel", remedy)
        }
    };
    all.push(module("nvme-tcp", features.nvme_tcp, "nvme-tcp"));
    let joins = features.multipath == Some(true);
    let words = ("on", "off, or the module is not loaded");
    let remedy = "echo 'options nvme_core multipath=Y' > /etc/modprobe.d/nvme.conf, and restart";
    all.push(Finding::of("native multipath", joins, words, remedy));
    all.push(module("fuse", features.fuse, "fuse"));
    all.push(module("loop devices", features.loop_devices, "loop"));
    all.push(module("ublk", features.ublk, "ublk_drv"));
    for (tool, package) in TOOLS {
        let is_there = !facts.missing_tools.contains(&tool);
        let remedy = format!("apt install {package}");
        all.push(Finding::of(tool, is_there, ("there", "not installed"), &remedy));
    }
    let words = ("synchronised", "nothing keeps the clock right");
    all.push(Finding::of("time", facts.is_clock_right, words, "apt install chrony"));
    for (address, answers) in &facts.ports {
        let remedy = "start what listens there, and open the port in the firewall";
        let words = ("answers", "does not answer");
        all.push(Finding::of(&address.to_string(), *answers, words, remedy));
    }
    all
}

/// Before 6.9 the kernel does not send requests again: the end of a worker is an I/O error.
fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 1) {
        let found = format!("{release}: too old for io_uring as it is used here");
        return Finding::new("kernel", Verdict::Bad, &found, "install Linux 6.1 or newer");
    }
    if version < (6, 9) {
        let found = format!("{release}: a worker that is killed takes its device along");
        return Finding::new("kernel", Verdict::Missing, &found, "install Linux 6.9 or newer");
    }
    Finding::new("kernel", Verdict::Good, release, "")
}

/// Whether a volume could be attached.
pub fn can_attach(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.verdict != Verdict::Bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            is_root: true,
            features: Features {
                release: "6.18.1-amd64".into(),
                nvme_tcp: Availability::Loadable,
                multipath: None,
                fuse: Availability::Usable,
                loop_devices: Availability::Usable,
                ublk: Availability::Absent,
            },
            missing_tools: vec!["mkfs.xfs"],
            is_clock_right: false,
            ports: vec![("127.0.0.1:7440".parse().unwrap(), false)],
        }
    }

    fn finding(facts: &Facts, part: &str) -> Finding {
        findings(facts).into_iter().find(|finding| finding.part == part).unwrap()
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_that_helps() {
        let facts = facts();
        assert!(can_attach(&findings(&facts)));
        for (part, remedy) in [
            ("nvme-tcp", "modprobe nvme-tcp"),
            ("mkfs.xfs", "apt install xfsprogs"),
            ("time", "apt install chrony"),
            ("127.0.0.1:7440", "start what listens there"),
        ] {
            let found = finding(&facts, part);
            assert_eq!(found.verdict, Verdict::Missing, "{part}");
            assert!(found.remedy.unwrap().starts_with(remedy), "{part}");
        }
        assert_eq!(finding(&facts, "fuse").remedy, None);
        assert_eq!(finding(&facts, "attach").found, "volumes are attached by fuse");
    }

    #[test]
    fn without_what_it_takes_nothing_can_be_attached() {
        let no_fuse = Features { fuse: Availability::Absent, ..facts().features };
        let old = Features { release: "5.15.0-1".into(), ..facts().features };
        for (facts, part) in [
            (Facts { features: no_fuse, ..facts() }, "attach"),
            (Facts { features: old, ..facts() }, "kernel"),
            (Facts { is_root: false, ..facts() }, "root"),
        ] {
            assert!(!can_attach(&findings(&facts)), "{part}");
            let found = finding(&facts, part);
            assert!(found.verdict == Verdict::Bad && found.remedy.is_some(), "{found:?}");
        }
    }
}
