//! The host's side of the guest agent: jobs, their output, their end.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, BufReader},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::wire::{Frame, Kind, MAX_BODY};

/// How a job ended and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// What was run.
    pub script: String,
    /// Exit status; a signal is 128 + its number.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// The standard output of a job that succeeded; otherwise an error that shows everything.
    pub fn ok(self) -> Result<String> {
        if self.status == 0 {
            return Ok(self.stdout);
        }
        bail!("in the guest: {}", self.describe())
    }

    fn describe(&self) -> String {
        let mut text = format!("`{}` ended with status {}", self.script, self.status);
        for (name, content) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !content.is_empty() {
                // Writing to a string cannot fail.
                let _infallible = write!(text, "\n--- {name}\n{}", content.trim_end());
            }
        }
        text
    }
}

/// The connection to one guest's agent.
pub(super) struct Agent {
    writer: Mutex<UnixStream>,
    jobs: Arc<Mutex<BTreeMap<u32, Sender<Frame>>>>,
    next_job: AtomicU32,
}

impl Agent {
    /// Waits until the agent says that it runs.
    pub(super) fn meet(stream: UnixStream, deadline: Duration) -> Result<Arc<Agent>> {
        let mut reader = BufReader::new(stream.try_clone().context("share the agent's socket")?);
        stream.set_read_timeout(Some(deadline)).context("set a deadline")?;
        match Frame::read(&mut reader) {
            Ok(Some(Frame { kind: Kind::Ready, .. })) => {}
            Ok(Some(other)) => bail!("the guest's first word was {other:?}"),
            Ok(None) => bail!("the machine ended while it booted"),
            Err(error) => return Err(error).context("wait for the guest to boot"),
        }
        stream.set_read_timeout(None).context("clear the deadline")?;
        let jobs: Arc<Mutex<BTreeMap<u32, Sender<Frame>>>> = Arc::default();
        let known = Arc::clone(&jobs);
        thread::spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&mut reader) {
                // Nobody may be interested any more: the job was given up.
                let _given_up = lock(&known).get(&frame.job).map(|job| job.send(frame));
            }
            // Whoever waits learns that the machine is gone.
            lock(&known).clear();
        });
        Ok(Arc::new(Agent { writer: Mutex::new(stream), jobs, next_job: AtomicU32::new(1) }))
    }

    /// Starts a shell script, which reads `input` and then end of file.
    pub(super) fn start(self: &Arc<Self>, script: &str, input: &[u8]) -> Result<Job> {
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = channel();
        lock(&self.jobs).insert(number, sender);
        let job = Job {
            agent: Arc::clone(self),
            number,
            events,
            output: Output {
                script: script.to_owned(),
                status: -1,
                stdout: String::new(),
                stderr: String::new(),
            },
            ended: false,
        };
        self.send(&Frame::new(Kind::Start, number, script))?;
        for chunk in input.chunks(MAX_BODY) {
            self.send(&Frame::new(Kind::Input, number, chunk))?;
        }
        self.send(&Frame::new(Kind::Input, number, []))?;
        Ok(job)
    }

    fn send(&self, frame: &Frame) -> Result<()> {
        let sent: io::Result<()> = frame.write(&mut *lock(&self.writer));
        sent.context("the machine is gone")
    }
}

/// A script that runs in the guest. Dropping it kills it.
pub struct Job {
    agent: Arc<Agent>,
    number: u32,
    events: Receiver<Frame>,
    output: Output,
    ended: bool,
}

impl Job {
    /// Waits for the end; an error after the deadline, with what was printed so far.
    pub fn wait(mut self, deadline: Duration) -> Result<Output> {
        let until = Instant::now() + deadline;
        while !self.ended {
            self.take_event(until).with_context(|| format!("it had {deadline:?}"))?;
        }
        Ok(self.output.clone())
    }

    /// Waits until the standard output holds the text.
    pub fn wait_for(&mut self, text: &str, deadline: Duration) -> Result<()> {
        let until = Instant::now() + deadline;
        while !self.output.stdout.contains(text) {
            if self.ended {
                bail!("it never printed {text:?}; in the guest: {}", self.output.describe());
            }
            self.take_event(until).with_context(|| format!("wait for {text:?}"))?;
        }
        Ok(())
    }

    /// Whether the job still runs.
    pub fn is_running(&mut self) -> Result<bool> {
        while !self.ended {
            match self.events.try_recv() {
                Ok(frame) => self.on_frame(&frame)?,
                Err(_) => break,
            }
        }
        Ok(!self.ended)
    }

    fn take_event(&mut self, until: Instant) -> Result<()> {
        match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(frame) => self.on_frame(&frame),
            Err(RecvTimeoutError::Timeout) => {
                bail!("out of time in the guest: {}", self.output.describe())
            }
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the machine is gone; in the guest: {}", self.output.describe())
            }
        }
    }

    fn on_frame(&mut self, frame: &Frame) -> Result<()> {
        let text = String::from_utf8_lossy(&frame.body);
        match frame.kind {
            Kind::Stdout => self.output.stdout.push_str(&text),
            Kind::Stderr => self.output.stderr.push_str(&text),
            Kind::Exited => {
                self.output.status = frame.status().context("read a status")?;
                self.ended = true;
            }
            Kind::Ready | Kind::Start | Kind::Input | Kind::Kill => {
                bail!("the guest sent {:?} about a job", frame.kind)
            }
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        lock(&self.agent.jobs).remove(&self.number);
        if !self.ended {
            // If the machine is gone, so is the job.
            let _gone = self.agent.send(&Frame::new(Kind::Kill, self.number, []));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
