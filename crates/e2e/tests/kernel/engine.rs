//! Our target on this machine, which the guest reaches through its network cards.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use e2e::process::{Program, holdfast};
use e2e::vm::{HOST, Link, SECOND_HOST, Vm};
use tempfile::TempDir;

use crate::lab::{Portal, SIZE, Secrets, Target, Way};

/// `holdfast engine serve` with one namespace in a file.
pub(crate) struct Engine {
    nqn: String,
    ports: [u16; 2],
    image: PathBuf,
    secrets: Option<Secrets>,
    program: Program,
    _dir: TempDir,
}

impl Engine {
    pub(crate) fn start(secrets: Option<&Secrets>) -> Result<Engine> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let nqn = format!("nqn.2026-11.test:engine-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = TempDir::new().context("make a directory for the disk image")?;
        let image = dir.path().join("namespace");
        File::create(&image)
            .and_then(|file| file.set_len(SIZE))
            .with_context(|| format!("create {}", image.display()))?;
        let ports = [free_port()?, free_port()?];
        let program = serve(&nqn, ports, &image, secrets)?;
        Ok(Engine { nqn, ports, image, secrets: secrets.cloned(), program, _dir: dir })
    }
}

impl Target for Engine {
    fn nqn(&self) -> &str {
        &self.nqn
    }

    fn portal(&self, way: Way) -> Portal {
        let [first, second] = self.ports;
        match way {
            Way::First => Portal { address: HOST, port: first },
            Way::Second => Portal { address: SECOND_HOST, port: second },
        }
    }

    fn set_second_way(&mut self, vm: &Vm, open: bool) -> Result<()> {
        vm.set_link(Link::Second, open)
    }

    fn kill(&mut self, _: &Vm) -> Result<()> {
        self.program.kill()
    }

    fn revive(&mut self, _: &Vm) -> Result<()> {
        self.program = serve(&self.nqn, self.ports, &self.image, self.secrets.as_ref())?;
        Ok(())
    }

    fn said(&self) -> String {
        self.program.said()
    }

    fn remove(self: Box<Self>, _: &Vm) -> Result<()> {
        let Engine { mut program, .. } = *self;
        program.stop().map(drop)
    }
}

fn serve(nqn: &str, ports: [u16; 2], image: &Path, secrets: Option<&Secrets>) -> Result<Program> {
    let mut command = holdfast()?;
    command.args(["engine", "serve", "--cores", "0"]);
    for port in ports {
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
    }
    command.args(["--ns", &format!("{nqn}=file:{}", image.display())]);
    if let Some(Secrets { host_nqn, host, controller }) = secrets {
        command.args(["--host", &format!("{nqn}={host_nqn},{host},{controller}")]);
    }
    let program = Program::start(&mut command)?;
    program.wait_for("that it listens", |line| line.contains("listening").then_some(()))?;
    Ok(program)
}

/// Free now; the target takes it at once, and takes it again after it was killed.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}
