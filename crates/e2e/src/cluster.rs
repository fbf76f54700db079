//! A cluster of nodes whose parts can be killed one by one, and this machine as its host.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::fleet::EngineProcess;
use crate::process::{PATIENCE, Program, holdfast};
use crate::store::{Kind, StoreServer};

/// Whether this machine lets us attach volumes by FUSE; says what is missing.
pub fn is_able() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let missing = ["/dev/loop-control", "/dev/fuse"].iter().find(|path| !Path::new(path).exists());
    if !is_root || missing.is_some() {
        #[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
        {
            eprintln!("left out: root {is_root}, missing {missing:?}");
        }
    }
    is_root && missing.is_none()
}

/// Looks until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE * 2;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// When a control plane takes a node for lost.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// After three seconds, so that tests are quick.
    Quick,
    /// As it does unless it is told otherwise.
    Default,
}

/// A store, a control plane, and engines with a pool each, as processes. This machine is its host.
pub struct Cluster {
    pace: Pace,
    control: Option<Program>,
    engines: Vec<Option<EngineProcess>>,
    store: StoreServer,
    /// Where REST is, in every run of the control plane.
    server: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// A cluster of three nodes.
    pub fn start() -> Result<Cluster> {
        Cluster::of(3, Pace::Quick)
    }

    /// A cluster of so many nodes.
    pub fn of(nodes: usize, pace: Pace) -> Result<Cluster> {
        let folder = tempfile::tempdir()?;
        let store = StoreServer::start(Kind::Embedded)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = format!("127.0.0.1:{port}");
        let mut cluster = Cluster { pace, control: None, engines: vec![], store, server, folder };
        cluster.start_control()?;
        for nth in 1..=nodes {
            let disk = cluster.folder.path().join(format!("disk-{nth}"));
            File::create(disk)?.set_len(4 << 30)?;
            cluster.engines.push(None);
            cluster.start_engine(nth)?;
        }
        for nth in 1..=nodes {
            let (pool, node) = (format!("pool-{nth}"), format!("node-{nth}"));
            let disk = cluster.folder.path().join(format!("disk-{nth}")).display().to_string();
            let words = ["pool", "create", &pool, "--node", &node, "--disk", &disk];
            until("a pool is made", || Ok(cluster.try_run(&words)?.status.success()))?;
        }
        Ok(cluster)
    }

    /// Starts the control plane, where it was before.
    pub fn start_control(&mut self) -> Result<()> {
        let mut command = holdfast()?;
        command.args(["control", "serve", "--listen", &self.server]);
        command.args(["--store", &self.store.endpoint()]);
        if let Pace::Quick = self.pace {
            command.args(["--heartbeat", "1s", "--heartbeat-deadline", "3s"]);
        }
        let program = Program::start(&mut command)?;
        program
            .wait_for("where it listens", |line| line.contains("listening on ").then_some(()))?;
        self.control = Some(program);
        Ok(())
    }

    /// `kill -9` of the control plane.
    pub fn kill_control(&mut self) -> Result<()> {
        self.control.take().context("there is none")?.kill()
    }

    /// Starts the engine of a node, with the disk it had; the first node is 1.
    pub fn start_engine(&mut self, nth: usize) -> Result<()> {
        let dir = self.folder.path().join(format!("engine-{nth}"));
        let name = format!("node-{nth}");
        let endpoint = self.store.endpoint();
        let more = ["--store", &endpoint, "--control", &self.server];
        let at = (name.as_str(), "127.0.0.1:0".parse()?);
        let engine = EngineProcess::start(at, None, &dir, &more)?;
        *self.engines.get_mut(nth - 1).context("no such node")? = Some(engine);
        Ok(())
    }

    /// `kill -9` of the engine that serves a volume; the number of its node.
    pub fn kill_target(&mut self, volume: &str) -> Result<usize> {
        let (node, _) = self.target(volume)?;
        let nth: usize = node.trim_start_matches("node-").parse()?;
        self.kill_engine(nth)?;
        Ok(nth)
    }

    /// Where a volume is served: the node, and its first address.
    pub fn target(&self, volume: &str) -> Result<(String, String)> {
        let found = self.json(&["volume", "get", volume])?;
        let target = &found["status"]["target"];
        let node = target["node"].as_str().context("a target")?.to_owned();
        let address = target["addresses"][0].as_str().unwrap_or_default().to_owned();
        Ok((node, address))
    }

    /// Waits until every copy of a volume is in sync.
    pub fn until_in_sync(&self, volume: &str) -> Result<()> {
        until("every copy is in sync again", || {
            // The next control plane leads when the lease of a killed one is over.
            let found = self.json(&["volume", "get", volume]);
            Ok(found.is_ok_and(|found| found["status"]["state"] == "online"))
        })
    }

    /// Where REST is: host and port.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// `kill -9` of the engine of a node.
    pub fn kill_engine(&mut self, nth: usize) -> Result<()> {
        let engine = self.engines.get_mut(nth - 1).and_then(Option::take);
        engine.context("it is down")?.program.kill()
    }

    /// Lets the engine of a node stand still.
    pub fn pause_engine(&self, nth: usize) -> Result<()> {
        self.engine(nth)?.program.pause()
    }

    /// Lets it go on.
    pub fn resume_engine(&self, nth: usize) -> Result<()> {
        self.engine(nth)?.program.signal(Signal::CONT)
    }

    fn engine(&self, nth: usize) -> Result<&EngineProcess> {
        self.engines.get(nth - 1).and_then(Option::as_ref).context("it is down")
    }

    /// The server of the store.
    pub fn store(&mut self) -> &mut StoreServer {
        &mut self.store
    }

    /// A volume with three copies.
    pub fn volume(&self, nth: u32, size: &str) -> Result<String> {
        let id = format!("00000000-0000-4000-8000-{nth:012}");
        let words = ["volume", "create", "--id", &id, "--size", size, "--replicas", "3"];
        until("a volume is made", || Ok(self.try_run(&words)?.status.success()))?;
        Ok(id)
    }

    /// Where attached volumes are known.
    pub fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// A folder for a mount, which does not exist.
    pub fn mount_point(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = holdfast()?;
        command.args(words).env("HOLDFAST_SERVER", &self.server);
        command.env("HOLDFAST_RUN_DIR", self.run_dir()).env("HOLDFAST_HOST", "host-1");
        Ok(command)
    }

    /// A program of this machine that goes on.
    pub fn start_program(&self, words: &[&str]) -> Result<Program> {
        Program::start(&mut self.command(words)?)
    }

    /// The agent of this machine.
    pub fn agent(&self) -> Result<Program> {
        Program::start(&mut self.command(&["agent", "run"])?)
    }

    /// Runs a command as this host; it may fail.
    pub fn try_run(&self, words: &[&str]) -> Result<Output> {
        Ok(self.command(words)?.output()?)
    }

    /// What a command prints; it must succeed.
    pub fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.try_run(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {said}{}", self.logs());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What a command is refused with.
    pub fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.try_run(words)?;
        ensure!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The JSON that a command prints; it must succeed.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(&[words, &["-o", "json"]].concat())?)?)
    }

    /// What the workers said.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        let entries = fs::read_dir(self.run_dir().join("attachments"));
        for entry in entries.into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|it| it == "log") {
                all += &fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
        all
    }

    /// What this machine knows of an attached volume.
    pub fn attached(&self, volume: &str) -> Result<Value> {
        let attached = self.json(&["attached"])?;
        let mut attached = attached.as_array().into_iter().flatten();
        attached.find(|it| it["volume"] == volume).cloned().context("it is not attached")
    }

    /// The process that serves an attached volume.
    pub fn worker_of(&self, volume: &str) -> Result<Pid> {
        let pid = self.attached(volume)?["worker"]["pid"].as_i64().context("a worker")?;
        Pid::from_raw(i32::try_from(pid)?).context("a process")
    }

    /// `kill -9` of the worker of an attached volume.
    pub fn kill_worker_of(&self, volume: &str) -> Result<()> {
        Ok(rustix::process::kill_process(self.worker_of(volume)?, Signal::KILL)?)
    }

    /// Nothing of any attachment is left on this machine.
    pub fn check_nothing_left(&self) -> Result<()> {
        let place = self.folder.path().display().to_string();
        let run = self.run_dir();
        let left: Vec<_> = match fs::read_dir(run.join("attachments")) {
            Ok(entries) => entries.collect::<Result<_, _>>()?,
            Err(_) => Vec::new(),
        };
        ensure!(left.is_empty(), "files are left: {left:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        ensure!(!mounts.contains(&place), "mounts are left: {mounts}");
        let loops = Command::new("losetup").arg("-a").output()?;
        let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
        ensure!(!loops.contains(&place), "loop devices are left: {loops}");
        for entry in fs::read_dir("/proc")?.flatten() {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let is_ours = words.contains(" agent ") && words.contains(&*run.to_string_lossy());
            ensure!(!is_ours, "a process is left: {words}");
        }
        Ok(())
    }
}

impl Drop for Cluster {
    /// A test that failed must not leave a file system behind that waits for dead engines.
    fn drop(&mut self) {
        let records = fs::read_dir(self.run_dir().join("attachments"));
        for entry in records.into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|ending| ending == "fuse") {
                let flags = rustix::mount::UnmountFlags::FORCE;
                let _ = rustix::mount::unmount(&path, flags);
            }
        }
        let attached = self.json(&["attached"]).unwrap_or_default();
        for one in attached.as_array().into_iter().flatten() {
            if let Some(volume) = one["volume"].as_str() {
                let _ = self.try_run(&["detach", volume]);
            }
        }
    }
}
