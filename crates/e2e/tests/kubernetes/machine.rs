//! A machine of the cluster: namespaces for processes, mounts, network and name.
//!
//! Everything that is started in it dies with its first process, which ends when the process that
//! created the machine does: it waits for the end of a pipe that this one holds.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::wait::until;

/// What the first process does: wait for the end, and for processes that lost their parents.
const FIRST: &str = "exec 3<&0; cat <&3 > /dev/null & wait $!";

pub(crate) struct Machine {
    pub(crate) name: String,
    dir: PathBuf,
    /// Absent: somebody else created the machine, and ends it.
    holder: Option<Child>,
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
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = command.spawn().context("cannot run unshare (util-linux)")?;
        let children = format!("/proc/{id}/task/{id}/children", id = holder.id());
        let first: u32 = until(&format!("{name} exists"), || {
            let children = fs::read_to_string(&children)?;
            Ok(children.split_whitespace().next().and_then(|pid| pid.parse().ok()))
        })?;
        fs::write(dir.join("pid"), first.to_string())?;
        let (name, holder) = (name.to_owned(), Some(holder));
        let machine = Machine { name: name.clone(), dir: dir.to_owned(), holder, first };
        // Each machine is another host, and its identity stays when it is started again.
        let seed: u64 = name.bytes().fold(u64::from(std::process::id()), |id, byte| {
            (id << 8 | u64::from(byte)).rotate_left(3)
        });
        fs::write(dir.join("machine-id"), format!("{seed:032x}\n"))?;
        let dir = dir.display();
        machine.shell(&format!(
            "hostname {name}
            touch /etc/machine-id
            mount --bind {dir}/machine-id /etc/machine-id
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

    /// A machine that another process has created in this directory.
    pub(crate) fn attach(name: &str, dir: &Path) -> Result<Machine> {
        let first = fs::read_to_string(dir.join("pid"))
            .with_context(|| format!("no machine is running in {}", dir.display()))?;
        let first = first.parse().context("a process has a number")?;
        Ok(Machine { name: name.to_owned(), dir: dir.to_owned(), holder: None, first })
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
        let file = |kind| self.dir.join(format!("{}.{kind}", name.to_string_lossy()));
        let log = File::options().create(true).append(true).open(file("log"));
        let log = log.with_context(|| format!("open {}", file("log").display()))?;
        let mut command = self.command("sh");
        // Its number in the machine, so that it can be killed there.
        command.args(["-c", "echo $$ > \"$0\"; exec \"$@\""]).arg(file("pid")).arg(program);
        command.args(arguments).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {program}"))?;
        Ok(())
    }

    /// `kill -9` of a program that was started.
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        let file = self.dir.join(format!("{name}.pid"));
        self.shell(&format!("kill -9 $(cat {})", file.display())).map(drop)
    }
}

impl Machine {
    /// Ends all its processes; again is the same as once.
    pub(crate) fn end(&mut self) {
        let Some(mut holder) = self.holder.take() else { return };
        // The first process goes with its parent, and all others with the first.
        let _ = holder.kill();
        let _ = holder.wait();
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
