//! Real programs under test: started, watched, killed, and never left behind.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// How long a healthy program may take to become ready or to stop, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The built `holdfast` binary, ready for arguments.
pub fn holdfast() -> Result<Command> {
    let me = std::env::current_exe().context("cannot tell where this program is")?;
    // Test binaries live in `deps/`, the benchmark beside `holdfast`.
    let found: Option<PathBuf> =
        me.ancestors().skip(1).take(2).map(|dir| dir.join("holdfast")).find(|path| path.is_file());
    match found {
        Some(path) => Ok(Command::new(path)),
        None => bail!("there is no holdfast binary beside {}: build it first", me.display()),
    }
}

/// A running program. Dropping it kills it and waits for its end.
pub struct Program {
    name: String,
    child: Child,
    log: Arc<Log>,
}

impl Program {
    /// Starts `command`, collecting what it says on standard output and standard error.
    pub fn start(command: &mut Command) -> Result<Program> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let log = Arc::new(Log::default());
        log.follow(child.stdout.take());
        log.follow(child.stderr.take());
        Ok(Program { name, child, log })
    }

    /// Waits until the program says a line for which `wanted` answers, and returns that answer.
    pub fn wait_for<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = 0;
        let mut state = self.log.state();
        loop {
            if let Some(found) = state.lines.iter().skip(seen).find_map(|line| wanted(line)) {
                return Ok(found);
            }
            seen = state.lines.len();
            let left = deadline.saturating_duration_since(Instant::now());
            if state.open == 0 || left.is_zero() {
                let said = state.lines.join("\n");
                bail!("{} did not say {what}; it said:\n{said}", self.name);
            }
            state = self.log.wait(state, left);
        }
    }

    /// Everything said so far, on both outputs.
    pub fn said(&self) -> String {
        self.log.state().lines.join("\n")
    }

    /// The process id.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Stops it until it is told to go on: when this is answered, none of its threads runs.
    pub fn pause(&self) -> Result<()> {
        use rustix::process::{Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP)?;
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED);
        let (_, status) = waited.context("cannot wait for a program")?.context("it is not ours")?;
        anyhow::ensure!(status.stopped(), "{} ended: {status:?}", self.name);
        Ok(())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        rustix::process::kill_process(self.pid(), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// `kill -9`, and wait for the end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))?;
        Ok(())
    }

    /// Asks it to stop, and waits for the end.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(rustix::process::Signal::TERM)?;
        self.wait()
    }

    /// Waits for it to end by itself.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        // The outputs close when the process ends: that is the event to wait for.
        let mut state = self.log.state();
        while state.open > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(anyhow!("{} did not end within {PATIENCE:?}", self.name));
            }
            state = self.log.wait(state, left);
        }
        drop(state);
        self.child.wait().with_context(|| format!("cannot wait for {}", self.name))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Already ended is fine: there is nothing left to clean up.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            #[expect(clippy::print_stderr, reason = "the log of a failed test belongs there")]
            {
                eprintln!("--- {} said:\n{}\n---", self.name, self.said());
            }
        }
    }
}

/// The lines of a program, from both of its outputs.
#[derive(Default)]
struct Log {
    state: Mutex<LogState>,
    changed: Condvar,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    open: usize,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changed, or for so long.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, LogState>,
        most: Duration,
    ) -> MutexGuard<'a, LogState> {
        self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0
    }

    fn follow(self: &Arc<Log>, output: Option<impl Read + Send + 'static>) {
        let Some(output) = output else { return };
        self.state().open += 1;
        let log = Arc::clone(self);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                log.state().lines.push(line);
                log.changed.notify_all();
            }
            log.state().open -= 1;
            log.changed.notify_all();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn waits_for_what_is_said_and_for_the_end() {
        let mut program = shell("echo one; echo two >&2; exit 3");
        let two = program.wait_for("two", |line| (line == "two").then_some(line.len())).unwrap();
        assert_eq!(two, 3);
        assert_eq!(program.wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_program_that_ends_without_the_word_is_an_error_with_its_log() {
        let program = shell("echo something else");
        let error = program.wait_for("ready", |line| (line == "ready").then_some(())).unwrap_err();
        assert!(error.to_string().contains("something else"), "{error}");
    }

    #[test]
    fn dropping_kills() {
        let program = shell("exec sleep 1000");
        let pid = program.pid();
        drop(program);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }
}
