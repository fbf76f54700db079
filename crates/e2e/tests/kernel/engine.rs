//! Our target on this machine, which the guest reaches through its network cards.

use std::fs::{File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use e2e::loop_device::LoopDevice;
use e2e::process::{Program, holdfast};
use e2e::vm::{HOST, Link, SECOND_HOST, Vm};
use tempfile::TempDir;

use crate::lab::{Portal, SIZE, Secrets, Target, Way};

/// What the namespace lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// A file of its size.
    File,
    /// A replica in a pool on two files.
    Pool,
    /// The same, encrypted.
    EncryptedPool,
    /// A replica in a pool on a loop device.
    LoopDevice,
}

impl Ground {
    /// Makes what it needs in a folder; the options that serve it.
    fn options(self, nqn: &str, dir: &Path, device: Option<&LoopDevice>) -> Result<Vec<String>> {
        let shown = dir.display();
        if self == Ground::File {
            file(&dir.join("namespace"), SIZE)?;
            return Ok(vec!["--ns".into(), format!("{nqn}=file:{shown}/namespace")]);
        }
        let pool = match device {
            Some(device) => format!("tank={},create", device.path().display()),
            None => format!("tank={shown}/a,{shown}/b,create,size={SIZE}"),
        };
        let mut namespace = format!("{nqn}=replica:tank/vol,size={SIZE}");
        if self == Ground::EncryptedPool {
            let key = dir.join("key");
            std::fs::write(&key, "5".repeat(64)).context("make a key")?;
            std::fs::set_permissions(&key, Permissions::from_mode(0o600)).context("hide a key")?;
            namespace = format!("{namespace},key={shown}/key");
        }
        Ok(vec!["--pool".into(), pool, "--ns".into(), namespace])
    }

    /// The device that it lies on; without one, where there are none, it is like any other pool.
    fn device(self, dir: &Path) -> Result<Option<LoopDevice>> {
        if self != Ground::LoopDevice {
            return Ok(None);
        }
        let disk = dir.join("disk");
        file(&disk, 2 * SIZE)?;
        Ok(LoopDevice::new(&disk, 512))
    }
}

fn file(path: &Path, bytes: u64) -> Result<()> {
    File::create(path)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("create {}", path.display()))
}

/// `holdfast engine serve` with one namespace.
pub(crate) struct Engine {
    nqn: String,
    ports: [u16; 2],
    options: Vec<String>,
    program: Program,
    _device: Option<LoopDevice>,
    _dir: TempDir,
}

impl Engine {
    pub(crate) fn start(ground: Ground, secrets: Option<&Secrets>) -> Result<Engine> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let nqn = format!("nqn.2026-11.test:engine-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = TempDir::new().context("make a directory for the disk image")?;
        let device = ground.device(dir.path())?;
        let mut options = ground.options(&nqn, dir.path(), device.as_ref())?;
        if let Some(Secrets { host_nqn, host, controller }) = secrets {
            options.extend(["--host".into(), format!("{nqn}={host_nqn},{host},{controller}")]);
        }
        let ports = [free_port()?, free_port()?];
        let program = serve(ports, &options)?;
        Ok(Engine { nqn, ports, options, program, _device: device, _dir: dir })
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
        self.program = serve(self.ports, &self.options)?;
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

fn serve(ports: [u16; 2], options: &[String]) -> Result<Program> {
    let mut command = holdfast()?;
    command.args(["engine", "serve", "--cores", "0"]);
    for port in ports {
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
    }
    command.args(options);
    let program = Program::start(&mut command)?;
    program.wait_for("that it listens", |line| line.contains("listening").then_some(()))?;
    Ok(program)
}

/// Free now; the target takes it at once, and takes it again after it was killed.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}
