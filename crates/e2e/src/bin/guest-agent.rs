//! Runs inside a virtual machine and starts what the host asks for; see `e2e::vm::wire`.
//!
//! It ends when the host closes its side, and init then ends the machine. Not here: deadlines and
//! everything else that can be decided on the host.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use e2e::vm::wire::{Frame, Kind, MAX_BODY};

/// The first port of the first virtio console, as QEMU's command line says.
const PORT: &str = "/dev/vport0p1";

/// Status of a job that could not be started.
const NOT_STARTED: i32 = 127;

type Port = Arc<Mutex<File>>;
type Jobs = Arc<Mutex<BTreeMap<u32, Running>>>;

struct Running {
    /// Leader of the process group of the job.
    leader: u32,
    input: Option<ChildStdin>,
}

fn main() -> io::Result<()> {
    let mut from_host = File::options().read(true).write(true).open(PORT)?;
    let port: Port = Arc::new(Mutex::new(from_host.try_clone()?));
    let jobs = Jobs::default();
    send(&port, &Frame::new(Kind::Ready, 0, []))?;
    while let Some(frame) = Frame::read(&mut from_host)? {
        match frame.kind {
            Kind::Start => start(&port, &jobs, frame)?,
            Kind::Input => feed(&jobs, &frame),
            Kind::Kill => kill(&jobs, frame.job)?,
            Kind::Ready | Kind::Stdout | Kind::Stderr | Kind::Exited => {
                return Err(io::Error::other("the host sent a frame only a guest sends"));
            }
        }
    }
    Ok(())
}

fn start(port: &Port, jobs: &Jobs, frame: Frame) -> io::Result<()> {
    let job = frame.job;
    let script = String::from_utf8(frame.body).map_err(io::Error::other)?;
    let spawned = Command::new("/bin/sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            send(port, &Frame::new(Kind::Stderr, job, format!("cannot start a shell: {error}")))?;
            return send(port, &Frame::exited(job, NOT_STARTED));
        }
    };
    let running = Running { leader: child.id(), input: child.stdin.take() };
    lock(jobs).insert(job, running);
    let port = Arc::clone(port);
    let jobs = Arc::clone(jobs);
    thread::spawn(move || {
        let status = follow(&port, job, child);
        lock(&jobs).remove(&job);
        // If the host is gone, so is this machine, soon.
        let _gone = send(&port, &Frame::exited(job, status.map_or(NOT_STARTED, status_number)));
    });
    Ok(())
}

/// Passes on all output, then waits for the end.
fn follow(port: &Port, job: u32, mut child: Child) -> io::Result<ExitStatus> {
    let stderr = child.stderr.take().map(|stderr| {
        let port = Arc::clone(port);
        thread::spawn(move || pass_on(&port, stderr, job, Kind::Stderr))
    });
    if let Some(stdout) = child.stdout.take() {
        pass_on(port, stdout, job, Kind::Stdout);
    }
    if let Some(stderr) = stderr {
        let _panicked = stderr.join();
    }
    child.wait()
}

fn pass_on(port: &Port, mut from: impl Read, job: u32, kind: Kind) {
    let mut buffer = vec![0; MAX_BODY];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let body = buffer.get(..length).unwrap_or_default();
        if send(port, &Frame::new(kind, job, body)).is_err() {
            return;
        }
    }
}

/// A job that no longer reads loses its input, as in any pipe.
fn feed(jobs: &Jobs, frame: &Frame) {
    let Some(mut input) = lock(jobs).get_mut(&frame.job).and_then(|job| job.input.take()) else {
        return;
    };
    let taken = !frame.body.is_empty() && input.write_all(&frame.body).is_ok();
    if taken && let Some(job) = lock(jobs).get_mut(&frame.job) {
        job.input = Some(input);
    }
}

fn kill(jobs: &Jobs, job: u32) -> io::Result<()> {
    let Some(leader) = lock(jobs).get(&job).map(|job| job.leader) else {
        return Ok(());
    };
    Command::new("kill").args(["-KILL", "--", &format!("-{leader}")]).status().map(|_| ())
}

fn status_number(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(NOT_STARTED)
}

fn send(port: &Port, frame: &Frame) -> io::Result<()> {
    frame.write(&mut *lock(port))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
