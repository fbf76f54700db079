//! The engines as processes: started, started again when they end, stopped.
//!
//! Each is its own process group, so that Ctrl-C reaches only `up`, which stops them in order:
//! first the targets of all, which end cleanly while their copies are there, then the engines. An
//! engine that a killed `up` has left behind is recognised by its folder and stopped first.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use model::NodeName;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{At, secret};
use crate::engine::CLOSED;

/// The longest wait before an engine is started again.
const LONGEST: Duration = Duration::from_secs(30);

/// An engine that ran so long has started well.
const WELL: Duration = Duration::from_mins(1);

/// How long an engine may take to stop.
const PATIENCE: Duration = Duration::from_secs(70);

/// The names of so many nodes.
pub(super) fn names(count: u8) -> Vec<String> {
    (1..=count).map(|nth| format!("node-{nth}")).collect()
}

/// Where the engine of a node is.
pub(super) fn folder(dir: &Path, node: &str) -> PathBuf {
    dir.join(node)
}

struct Engine {
    node: String,
    folder: PathBuf,
    arguments: Vec<String>,
    running: Option<Running>,
    wait: Duration,
}

/// An engine that was started.
struct Running {
    child: Child,
    since: Instant,
    /// While this is open it serves its copies, even if it is stopping.
    alone: Option<ChildStdin>,
    /// What it says of its targets.
    said: Option<ChildStdout>,
}

/// All engines.
pub(super) struct Engines(Vec<Engine>);

/// The address of a node, counted from 0.
fn address(first: Ipv4Addr, nth: u8) -> IpAddr {
    Ipv4Addr::from_bits(first.to_bits().saturating_add(nth.into())).into()
}

/// The ports of an engine: NVMe/TCP and the node API.
const PORTS: [u16; 2] = [4420, 7442];

/// Whether an engine can have its ports: it would say so only in its log.
fn free(address: IpAddr) -> Result<()> {
    for port in PORTS {
        let place = SocketAddr::new(address, port);
        TcpListener::bind(place).with_context(|| {
            format!(
                "an engine cannot listen on {place}; if another holdfast up runs, choose other \
                 addresses with --address"
            )
        })?;
    }
    Ok(())
}

impl Engines {
    /// Starts one for each node.
    pub(super) fn start(dir: &Path, (count, first): (u8, Ipv4Addr), at: &At) -> Result<Engines> {
        let mut engines = Vec::new();
        let cores = std::thread::available_parallelism()?.get();
        for (nth, node) in (0..).zip(names(count)) {
            let core = usize::from(nth) % cores;
            let mut engine = Engine::new(dir, &node, (address(first, nth), core), at)?;
            engine.stop_left_behind()?;
            free(address(first, nth))?;
            engine.start()?;
            engines.push(engine);
        }
        Ok(Engines(engines))
    }

    /// Starts again what ends; returns only when that cannot be done.
    pub(super) async fn watch(&mut self) -> anyhow::Error {
        let each: Vec<_> = self.0.iter_mut().map(|engine| Box::pin(engine.watch())).collect();
        if each.is_empty() {
            return std::future::pending().await;
        }
        futures::future::select_all(each).await.0
    }

    /// Asks all to stop and waits.
    pub(super) async fn stop(&mut self) {
        futures::future::join_all(self.0.iter_mut().map(Engine::close_targets)).await;
        futures::future::join_all(self.0.iter_mut().map(Engine::stop)).await;
    }
}

impl Engine {
    fn new(dir: &Path, node: &str, (address, core): (IpAddr, usize), at: &At) -> Result<Engine> {
        let folder = folder(dir, node);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let _: NodeName = node.parse()?;
        let place = folder.to_str().context("the folder's name must be UTF-8")?.to_owned();
        let secret = secret::place(dir);
        let secret = secret.to_str().context("the folder's name must be UTF-8")?;
        let [listen, api] = PORTS.map(|port| SocketAddr::new(address, port).to_string());
        let options = [
            ("--node", node.to_owned()),
            ("--listen", listen),
            ("--api", api),
            ("--cores", core.to_string()),
            ("--dir", place),
            ("--control", at.rest.to_string()),
            ("--store", at.store.clone()),
            ("--cluster-secret", secret.to_owned()),
        ];
        let words = ["engine", "run", "--staged"].map(str::to_owned).into_iter();
        let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let arguments = words.chain(options).collect();
        let wait = Duration::from_secs(1);
        Ok(Engine { node: node.to_owned(), folder, arguments, running: None, wait })
    }

    fn pid_file(&self) -> PathBuf {
        self.folder.join("engine.pid")
    }

    fn start(&mut self) -> Result<()> {
        let path = self.folder.join("engine.log");
        let log = std::fs::File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("cannot write {}", path.display()))?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = std::process::Command::new(program);
        command.args(&self.arguments).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(log).process_group(0);
        let child = Command::from(command).kill_on_drop(true).spawn();
        let mut child =
            child.with_context(|| format!("cannot start the engine of {}", self.node))?;
        let pid = child.id().map(|pid| pid.to_string()).unwrap_or_default();
        std::fs::write(self.pid_file(), pid)?;
        let (alone, said) = (child.stdin.take(), child.stdout.take());
        self.running = Some(Running { child, since: Instant::now(), alone, said });
        Ok(())
    }

    /// An engine of a run of `up` that was killed still holds the files of its pool.
    fn stop_left_behind(&self) -> Result<()> {
        let Some(pid) = self.left_behind() else { return Ok(()) };
        tracing::warn!("stopping the engine of {} that an earlier run left behind", self.node);
        let _ = kill_process(pid, Signal::TERM);
        let since = Instant::now();
        while self.left_behind().is_some() {
            if since.elapsed() > PATIENCE {
                kill_process(pid, Signal::KILL)?;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// The process whose number was written down, if it is still an engine of this folder.
    fn left_behind(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.pid_file()).ok()?;
        let line = std::fs::read(format!("/proc/{}/cmdline", text.trim())).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let ours = self.arguments.iter().all(|word| words.contains(&word.as_bytes()));
        // Another --listen of `up` changes only where it registers.
        let here = words.contains(&self.folder.as_os_str().as_encoded_bytes());
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        (ours || here).then_some(pid)
    }

    /// Starts it again whenever it ends.
    async fn watch(&mut self) -> anyhow::Error {
        loop {
            if let Some(running) = &mut self.running {
                let ended = running.child.wait().await;
                self.wait = if running.since.elapsed() > WELL {
                    Duration::from_secs(1)
                } else {
                    (self.wait * 2).min(LONGEST)
                };
                let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
                let (node, wait) = (&self.node, self.wait);
                tracing::warn!(
                    "the engine of {node} ended ({how}); it is started again in {wait:?}{}",
                    self.last_word()
                );
                self.running = None;
            }
            tokio::time::sleep(self.wait).await;
            if let Err(error) = self.start() {
                return error;
            }
        }
    }

    /// Why it ended, if it said so.
    fn last_word(&self) -> String {
        let path = self.folder.join("engine.log");
        let log = std::fs::read(&path).unwrap_or_default();
        let end = String::from_utf8_lossy(log.get(log.len().saturating_sub(4096)..).unwrap_or(&[]));
        let why = end.lines().last().filter(|line| line.starts_with("error: "));
        let why = why.map(|line| format!("; {line}")).unwrap_or_default();
        format!("{why}; see {}", path.display())
    }

    /// Asks it to stop, and waits until its targets are closed or it has ended.
    async fn close_targets(&mut self) {
        let Some(running) = &mut self.running else { return };
        let pid = running.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // Gone already: that is what is wanted.
            let _ = kill_process(pid, Signal::TERM);
        }
        let Some(said) = running.said.take() else { return };
        let mut lines = BufReader::new(said).lines();
        let closed = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if line == CLOSED {
                    break;
                }
            }
        };
        // One that says nothing is waited for, and killed, with the others.
        let _ = tokio::time::timeout(PATIENCE, closed).await;
    }

    async fn stop(&mut self) {
        let Some(running) = &mut self.running else { return };
        drop(running.alone.take());
        if tokio::time::timeout(PATIENCE, running.child.wait()).await.is_err() {
            tracing::warn!("the engine of {} did not stop and was killed", self.node);
            let _ = running.child.kill().await;
        }
        let _ = std::fs::remove_file(self.pid_file());
    }
}

/// Ends the engine of a node at once, as a power cut would; `up` starts it again.
pub(super) fn kill(dir: &Path, node: &str) -> Result<()> {
    let file = folder(dir, node).join("engine.pid");
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let pid = Pid::from_raw(text.trim().parse()?).context("the engine has no process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_names_and_addresses_of_their_own() {
        assert_eq!(names(3), ["node-1", "node-2", "node-3"]);
        let first = Ipv4Addr::new(127, 0, 0, 254);
        assert_eq!(address(first, 0).to_string(), "127.0.0.254");
        assert_eq!(address(first, 2).to_string(), "127.0.1.0");
    }

    #[test]
    fn ports_in_use_are_named_with_what_to_do() {
        // Addresses of loopback are plenty: this one is of this process.
        let pid = std::process::id().to_be_bytes();
        let address: IpAddr = [127, 0xC8 | pid[1], pid[2], pid[3].max(1)].into();
        free(address).unwrap();
        let _taken = TcpListener::bind((address, 7442)).unwrap();
        let refused = free(address).unwrap_err().to_string();
        assert!(refused.contains(":7442") && refused.contains("--address"), "{refused}");
    }

    #[test]
    fn only_an_engine_of_this_folder_is_taken_for_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let rest = "127.0.0.1:7440".parse().unwrap();
        let at = At { rest, store: "http://127.0.0.1:7441".to_owned() };
        let engine =
            Engine::new(dir.path(), "node-1", (Ipv4Addr::LOCALHOST.into(), 0), &at).unwrap();
        assert!(engine.left_behind().is_none());
        // This test runs under another name: it is not an engine.
        std::fs::write(engine.pid_file(), std::process::id().to_string()).unwrap();
        assert!(engine.left_behind().is_none());
        let words = [&["-c".to_owned(), "echo; read x".to_owned()], &engine.arguments[..]].concat();
        let mut child = std::process::Command::new("sh")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A process that was just made has no command line yet; one that has spoken has.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        std::fs::write(engine.pid_file(), child.id().to_string()).unwrap();
        assert!(engine.left_behind().is_some());
        engine.stop_left_behind_in_test(&mut child);
        assert!(engine.left_behind().is_none());
    }

    impl Engine {
        /// The child of a test must be waited for, or its number stays taken.
        fn stop_left_behind_in_test(&self, child: &mut std::process::Child) {
            let pid = self.left_behind().unwrap();
            kill_process(pid, Signal::TERM).unwrap();
            child.wait().unwrap();
        }
    }
}
