//! A cluster of three nodes whose parts can be killed one by one, and this machine as its host.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::fleet::EngineProcess;
use e2e::process::{PATIENCE, Program, holdfast};
use e2e::store::{Kind, StoreServer};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Whether this machine lets us attach volumes by FUSE; says what is missing.
pub(crate) fn is_able() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let missing = ["/dev/loop-control", "/dev/fuse"].iter().find(|path| !Path::new(path).exists());
    if !is_root || missing.is_some() {
        eprintln!("left out: root {is_root}, missing {missing:?}");
    }
    is_root && missing.is_none()
}

/// Looks until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE * 2;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub(crate) struct Cluster {
    control: Option<Program>,
    engines: Vec<Option<EngineProcess>>,
    store: StoreServer,
    /// Where REST is, in every run of the control plane.
    server: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// A store, a control plane, and three engines with a pool each.
    pub(crate) fn start() -> Result<Cluster> {
        let folder = tempfile::tempdir()?;
        let store = StoreServer::start(Kind::Embedded)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = format!("127.0.0.1:{port}");
        let mut cluster = Cluster { control: None, engines: vec![], store, server, folder };
        cluster.start_control()?;
        for nth in 1..=3 {
            let disk = cluster.folder.path().join(format!("disk-{nth}"));
            File::create(disk)?.set_len(4 << 30)?;
            cluster.engines.push(None);
            cluster.start_engine(nth)?;
        }
        for nth in 1..=3 {
            let (pool, node) = (format!("pool-{nth}"), format!("node-{nth}"));
            let disk = cluster.folder.path().join(format!("disk-{nth}")).display().to_string();
            let words = ["pool", "create", &pool, "--node", &node, "--disk", &disk];
            until("a pool is made", || Ok(cluster.try_run(&words)?.status.success()))?;
        }
        Ok(cluster)
    }

    pub(crate) fn start_control(&mut self) -> Result<()> {
        let mut command = holdfast()?;
        command.args(["control", "serve", "--listen", &self.server]);
        command.args(["--store", &self.store.endpoint()]);
        command.args(["--heartbeat", "1s", "--heartbeat-deadline", "3s"]);
        let program = Program::start(&mut command)?;
        program
            .wait_for("where it listens", |line| line.contains("listening on ").then_some(()))?;
        self.control = Some(program);
        Ok(())
    }

    /// `kill -9` of the control plane.
    pub(crate) fn kill_control(&mut self) -> Result<()> {
        self.control.take().context("there is none")?.kill()
    }

    pub(crate) fn start_engine(&mut self, nth: usize) -> Result<()> {
        let dir = self.folder.path().join(format!("engine-{nth}"));
        let name = format!("node-{nth}");
        let endpoint = self.store.endpoint();
        let more = ["--store", &endpoint, "--control", &self.server];
        let at = (name.as_str(), "127.0.0.1:0".parse()?);
        let engine = EngineProcess::start(at, None, &dir, &more)?;
        *self.engines.get_mut(nth - 1).context("three nodes")? = Some(engine);
        Ok(())
    }

    /// `kill -9` of the engine that serves a volume; the number of its node.
    pub(crate) fn kill_target(&mut self, volume: &str) -> Result<usize> {
        let found = self.json(&["volume", "get", volume])?;
        let node = found["status"]["target"]["node"].as_str().context("a target")?.to_owned();
        let nth: usize = node.trim_start_matches("node-").parse()?;
        let engine = self.engines.get_mut(nth - 1).and_then(Option::take);
        engine.context("it is down")?.program.kill()?;
        Ok(nth)
    }

    /// A volume with copies on all nodes.
    pub(crate) fn volume(&self, nth: u32, size: &str) -> Result<String> {
        let id = format!("00000000-0000-4000-8000-{nth:012}");
        let words = ["volume", "create", "--id", &id, "--size", size, "--replicas", "3"];
        until("a volume is made", || Ok(self.try_run(&words)?.status.success()))?;
        Ok(id)
    }

    /// Where attached volumes are known.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// A folder for a mount, which does not exist.
    pub(crate) fn mount_point(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let mut command = holdfast()?;
        command.args(words).env("HOLDFAST_SERVER", &self.server);
        command.env("HOLDFAST_RUN_DIR", self.run_dir()).env("HOLDFAST_HOST", "host-1");
        Ok(command)
    }

    /// A program of this machine that goes on.
    pub(crate) fn start_program(&self, words: &[&str]) -> Result<Program> {
        Program::start(&mut self.command(words)?)
    }

    /// The agent of this machine.
    pub(crate) fn agent(&self) -> Result<Program> {
        Program::start(&mut self.command(&["agent", "run"])?)
    }

    pub(crate) fn try_run(&self, words: &[&str]) -> Result<Output> {
        Ok(self.command(words)?.output()?)
    }

    /// What a command prints; it must succeed.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.try_run(words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {said}{}", self.logs());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// What a command is refused with.
    pub(crate) fn refused(&self, words: &[&str]) -> Result<String> {
        let output = self.try_run(words)?;
        ensure!(!output.status.success(), "{words:?} succeeded");
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    pub(crate) fn json(&self, words: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.run(&[words, &["-o", "json"]].concat())?)?)
    }

    /// What the workers said.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        let entries = fs::read_dir(self.run_dir().join("attachments"));
        for entry in entries.into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|it| it == "log") {
                all += &fs::read_to_string(entry.path()).unwrap_or_default();
            }
        }
        all
    }

    /// `kill -9` of the worker of the only attached volume.
    pub(crate) fn kill_worker(&self) -> Result<()> {
        let attached = self.json(&["attached"])?;
        let pid = attached[0]["worker"]["pid"].as_i64().context("a worker")?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process")?;
        Ok(rustix::process::kill_process(pid, Signal::KILL)?)
    }

    /// Nothing of any attachment is left on this machine.
    pub(crate) fn check_nothing_left(&self) -> Result<()> {
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

/// A program that commits: appends a record, syncs it, and counts it as acknowledged.
pub(crate) struct Committer {
    path: PathBuf,
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Duration>>,
}

fn record(number: u64) -> String {
    format!("{number:015}\n")
}

impl Committer {
    /// Begins to commit to a new file.
    pub(crate) fn start(path: PathBuf) -> Result<Committer> {
        let mut file = File::create_new(&path)?;
        let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, ends) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ends.load(Ordering::SeqCst) {
                let begun = Instant::now();
                let number = count.load(Ordering::SeqCst);
                file.write_all(record(number).as_bytes()).context("a write failed")?;
                file.sync_all().context("a sync failed")?;
                count.store(number + 1, Ordering::SeqCst);
                longest = longest.max(begun.elapsed());
            }
            Ok(longest)
        });
        Ok(Committer { path, acknowledged, stop, thread })
    }

    /// Waits until so many more were acknowledged.
    pub(crate) fn go_on(&self, what: &str, more: u64) -> Result<()> {
        let wanted = self.acknowledged.load(Ordering::SeqCst) + more;
        let begun = Instant::now();
        until("more is committed", || {
            if self.thread.is_finished() {
                bail!("the writer ended after {what}");
            }
            Ok(self.acknowledged.load(Ordering::SeqCst) >= wanted)
        })?;
        println!("after {what}: {more} more commits within {:?}", begun.elapsed());
        Ok(())
    }

    /// Stops it; every call it made must have succeeded. How many were acknowledged.
    pub(crate) fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::SeqCst);
        let longest = self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        println!("{acknowledged} commits, the longest took {longest:?}");
        check(&self.path, acknowledged)?;
        Ok(acknowledged)
    }
}

/// The log holds exactly what was acknowledged.
pub(crate) fn check(path: &Path, acknowledged: u64) -> Result<()> {
    let found = fs::read_to_string(path)?;
    let expected: String = (0..acknowledged).map(record).collect();
    ensure!(found == expected, "{} of {} bytes are right", common(&found, &expected), found.len());
    Ok(())
}

fn common(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}
