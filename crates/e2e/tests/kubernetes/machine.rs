//! A machine of the cluster: namespaces for processes, mounts, network and name.
//!
//! Everything that is started in it dies with its first process, which dies with this one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::wait::until;

/// What the first process does: wait for the end, and for processes that lost their parents.
const FIRST: &str = "while :; do sleep 3600 & wait $!; done";

pub(crate) struct Machine {
    pub(crate) name: String,
    dir: PathBuf,
    holder: Child,
    first: u32,
}

impl Machine {
    /// A machine with a directory for what it writes, and no network yet.
    pub(crate) fn new(name: &str, dir: &Path) -> Result<Machine> {
        for part in ["lib", "log"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "--propagation", "private", "sh", "-c", FIRST]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = command.spawn().context("cannot run unshare (util-linux)")?;
        let children = format!("/proc/{id}/task/{id}/children", id = holder.id());
        let first = until(&format!("{name} exists"), || {
            let children = fs::read_to_string(&children)?;
            Ok(children.split_whitespace().next().and_then(|pid| pid.parse().ok()))
        })?;
        let machine = Machine { name: name.to_owned(), dir: dir.to_owned(), holder, first };
        let dir = dir.display();
        machine.shell(&format!(
            "hostname {name}
            mount --make-rshared /
            mount --bind {dir}/lib /var/lib
            mount --bind {dir}/log /var/log
            mount -t tmpfs tmpfs /run
            mkdir -p /var/lib/kubelet /run/netns /run/containerd
            ip link set lo up
            echo 1 > /proc/sys/net/ipv4/ip_forward"
        ))?;
        Ok(machine)
    }

    /// The process whose namespaces these are.
    pub(crate) fn pid(&self) -> u32 {
        self.first
    }

    /// What the machine has in `/var/lib`.
    pub(crate) fn lib(&self) -> PathBuf {
        self.dir.join("lib")
    }

    /// A command to be run in it.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.first));
        command.args(["--mount", "--net", "--uts", "--pid", "--wd=/", "--", program]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a script to its end; any failure in it ends it.
    pub(crate) fn shell(&self, script: &str) -> Result<String> {
        let mut command = self.command("sh");
        command.args(["-ec", script]);
        output(&mut command, None)
    }

    /// Starts a program that runs until the machine ends; its log is a file.
    pub(crate) fn start(&self, program: &str, arguments: &[String]) -> Result<()> {
        let name = Path::new(program).file_name().context("a program has a name")?;
        let log = self.dir.join(format!("{}.log", name.to_string_lossy()));
        let log = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut command = self.command(program);
        command.args(arguments).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(())
    }
}

impl Machine {
    /// Ends all its processes; again is the same as once.
    pub(crate) fn end(&mut self) {
        // The first process goes with its parent, and all others with the first.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        let first = format!("/proc/{}", self.first);
        let _ = until(&format!("{} is gone", self.name), || {
            Ok((!Path::new(&first).exists()).then_some(()))
        });
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a command to its end; the answer is its standard output.
pub(crate) fn output(command: &mut Command, input: Option<&str>) -> Result<String> {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let line = words.join(" ");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
    if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
        pipe.write_all(input.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{line}: {}: {}", done.status, said.trim());
    Ok(String::from_utf8(done.stdout)?)
}
