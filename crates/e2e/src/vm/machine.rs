//! A virtual machine: boot, run commands, pull a cable, cut the power.

use std::{
    env,
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use super::{
    cache::Cache,
    disk::{Attached, Disk, Loss},
    guest::{Agent, Job, Output},
    image::Image,
    kernel::Kernel,
    qemu::Qemu,
    qmp::Qmp,
    userland,
};

/// This machine's loopback, as the guest sees it through its first network card.
pub const HOST: &str = "10.0.2.2";

/// This machine's loopback, as the guest sees it through its second network card.
pub const SECOND_HOST: &str = "10.0.3.2";

/// A boot takes seconds; a busy machine may need longer.
const BOOT: Duration = Duration::from_mins(3);

/// A panic ends the machine; what costs seconds at boot and matters to no test is left out.
const BOOT_OPTIONS: &str = "console=ttyS0 quiet panic=-1 net.ifnames=0 random.trust_cpu=on \
    no_timer_check tsc=reliable mitigations=off nokaslr audit=0 lsm= cryptomgr.notests \
    initcall_blacklist=init_ima,init_evm";

/// How much of the console is printed when a test fails.
const CONSOLE_LINES: usize = 80;

/// A network card of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Towards [`HOST`].
    First,
    /// Towards [`SECOND_HOST`].
    Second,
}

/// What a machine shall be like.
pub struct VmBuilder {
    name: String,
    agent: PathBuf,
    kernel: Kernel,
    memory_mib: u32,
    disks: Vec<Disk>,
}

impl VmBuilder {
    /// Another kernel than 6.12.
    #[must_use]
    pub fn kernel(self, kernel: Kernel) -> VmBuilder {
        VmBuilder { kernel, ..self }
    }

    /// Another size of memory than 1.5 GiB.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u32) -> VmBuilder {
        VmBuilder { memory_mib, ..self }
    }

    /// One more disk: the first is `/dev/vda` in the guest.
    #[must_use]
    pub fn disk(mut self, disk: &Disk) -> VmBuilder {
        self.disks.push(disk.clone());
        self
    }

    /// Starts the machine and waits until it takes commands.
    pub fn boot(self) -> Result<Vm> {
        let cache = Cache::open()?;
        cache.sweep()?;
        let image = Image::ready(&cache, self.kernel, &self.agent)?;
        let number = next_number();
        let run_dir = cache.runs().join(format!("{}-{}-{number}", self.name, process::id()));
        fs::create_dir_all(&run_dir).with_context(|| format!("create {}", run_dir.display()))?;
        self.boot_in(&run_dir, &image, number).with_context(|| {
            format!("boot {}, see {}:\n{}", self.name, run_dir.display(), last_words(&run_dir))
        })
    }

    fn boot_in(&self, dir: &Path, image: &Image, number: u32) -> Result<Vm> {
        let disks = self.disks.iter().enumerate();
        let disks: Vec<Attached> = disks
            .map(|(index, disk)| Attached::new(disk.clone(), dir, index))
            .collect::<Result<_>>()?;
        let control = listen(&dir.join("control.sock"))?;
        let agent = listen(&dir.join("agent.sock"))?;
        let program = userland::find_program("qemu-system-x86_64", "qemu-system-x86")?;
        let arguments = self.arguments(dir, image, &disks, number);
        let qemu = Qemu::start(&program, arguments, &dir.join("qemu.log"))?;
        let control = Qmp::greet(accept(&control, &qemu)?)?;
        let agent = Agent::meet(accept(&agent, &qemu)?, BOOT)?;
        Ok(Vm {
            qemu: Some(qemu),
            agent,
            control: Mutex::new(control),
            disks,
            run_dir: dir.to_owned(),
            condemned: AtomicBool::new(false),
        })
    }

    fn arguments(&self, dir: &Path, image: &Image, disks: &[Attached], number: u32) -> Vec<String> {
        let dir = dir.display();
        let uuid = format!("6f1d0a57-0000-4000-8000-{:08x}{number:04x}", process::id());
        let options = [
            ("-name", self.name.clone()),
            ("-machine", "q35".to_owned()),
            ("-accel", "tcg,thread=multi".to_owned()),
            ("-cpu", "max".to_owned()),
            ("-smp", "2".to_owned()),
            ("-m", format!("{}M", self.memory_mib)),
            ("-display", "none".to_owned()),
            ("-kernel", image.vmlinuz.display().to_string()),
            ("-initrd", image.initramfs.display().to_string()),
            ("-append", format!("{BOOT_OPTIONS} HOST_UUID={uuid}")),
            ("-serial", format!("file:{dir}/console.log")),
            ("-chardev", format!("socket,id=control,path={dir}/control.sock")),
            ("-mon", "chardev=control,mode=control".to_owned()),
            ("-device", "virtio-serial-pci".to_owned()),
            ("-chardev", format!("socket,id=agent,path={dir}/agent.sock")),
            ("-device", "virtserialport,chardev=agent,nr=1,name=agent".to_owned()),
            ("-netdev", "user,id=net0,net=10.0.2.0/24".to_owned()),
            ("-device", "virtio-net-pci,netdev=net0,id=first,romfile=".to_owned()),
            ("-netdev", "user,id=net1,net=10.0.3.0/24".to_owned()),
            ("-device", "virtio-net-pci,netdev=net1,id=second,romfile=".to_owned()),
        ];
        let flags = ["-nodefaults", "-no-user-config", "-no-reboot"];
        let mut arguments: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        for (option, value) in options {
            arguments.extend([option.to_owned(), value]);
        }
        for (index, disk) in disks.iter().enumerate() {
            arguments.extend(disk.arguments(index));
        }
        arguments
    }
}

/// A machine that runs. Dropping it ends it; if a test is failing, its console is kept and shown.
pub struct Vm {
    qemu: Option<Qemu>,
    agent: Arc<Agent>,
    control: Mutex<Qmp>,
    disks: Vec<Attached>,
    run_dir: PathBuf,
    condemned: AtomicBool,
}

impl Vm {
    /// Describes a machine. `agent` is the program `guest-agent` of this crate.
    pub fn builder(name: &str, agent: &Path) -> VmBuilder {
        VmBuilder {
            name: name.to_owned(),
            agent: agent.to_owned(),
            kernel: Kernel::V6_12,
            // Half of it is what the root can hold: the image (200 MB), our program and the file of
            // the kernel's target (320 MB), whose memory the kernel gives back some time after.
            memory_mib: 1536,
            disks: Vec::new(),
        }
    }

    /// Runs a shell script to its end.
    pub fn run(&self, script: &str, deadline: Duration) -> Result<Output> {
        self.run_with_input(script, &[], deadline)
    }

    /// Runs a shell script that reads these bytes.
    pub fn run_with_input(&self, script: &str, input: &[u8], deadline: Duration) -> Result<Output> {
        let output = self.agent.start(script, input)?.wait(deadline);
        if output.is_err() {
            self.log_blocked_tasks();
        }
        output
    }

    /// Starts a shell script and returns at once; any number may run side by side.
    pub fn spawn(&self, script: &str) -> Result<Job> {
        self.agent.start(script, &[])
    }

    /// Puts a program of this machine into the guest, with the libraries that are not there yet.
    /// What only a debugger needs stays out.
    pub fn install(&self, name: &str, program: &Path) -> Result<()> {
        let stripped = self.run_dir.join(name);
        let shown = |path: &Path| path.display().to_string();
        userland::command_output("strip", &["-o", &shown(&stripped), &shown(program)])?;
        self.put(&stripped, &format!("/usr/bin/{name}"))?;
        for library in userland::libraries(&[program])? {
            let place = library.display();
            if self.run(&format!("test -e {place}"), BOOT)?.status != 0 {
                self.put(&library, &place.to_string())?;
            }
        }
        fs::remove_file(&stripped).with_context(|| format!("remove {}", stripped.display()))
    }

    /// Copies a program into the guest.
    fn put(&self, from: &Path, to: &str) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        let script = format!("set -e; mkdir -p $(dirname {to}); cat > {to}; chmod +x {to}");
        self.run_with_input(&script, &bytes, BOOT)?.ok().map(drop)
    }

    /// Makes a port of the guest's first card reachable on this machine's loopback.
    pub fn forward(&self, guest_port: u16) -> Result<SocketAddr> {
        let mut refusal = anyhow!("no port was tried");
        // Between finding a free port and QEMU's taking it, another process may take it.
        for _ in 0..8 {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
            let address = free.local_addr().context("find a free port")?;
            drop(free);
            let rule = format!("hostfwd_add net0 tcp:{address}-10.0.2.15:{guest_port}");
            match self.control(|control| control.human(&rule)) {
                Ok(()) => return Ok(address),
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Pulls the cable of a network card, or plugs it in again.
    pub fn set_link(&self, link: Link, up: bool) -> Result<()> {
        let name = match link {
            Link::First => "first",
            Link::Second => "second",
        };
        let arguments = json!({ "name": name, "up": up });
        self.control(|control| control.execute("set_link", &arguments)).map(drop)
    }

    /// Kills the machine as a power cut would, and leaves on its disks what would be left.
    pub fn power_cut(mut self, loss: Loss) -> Result<()> {
        self.qemu = None;
        self.disks.iter().try_for_each(|disk| disk.after_power_cut(loss))
    }

    /// Everything the kernel and init printed so far.
    pub fn console(&self) -> String {
        let console = fs::read(self.run_dir.join("console.log")).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }

    /// A test failed: the machine's end shall show its console and keep it, as after a panic.
    pub fn condemn(&self) {
        self.condemned.store(true, Ordering::Relaxed);
    }

    fn control<T>(&self, act: impl FnOnce(&mut Qmp) -> Result<T>) -> Result<T> {
        act(&mut self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a deadline: the kernel writes to the console who waits for what.
    fn log_blocked_tasks(&self) {
        if let Ok(job) = self.agent.start("echo w > /proc/sysrq-trigger", &[]) {
            let _best_effort = job.wait(Duration::from_secs(10));
        }
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.qemu = None;
        if thread::panicking() || self.condemned.load(Ordering::Relaxed) {
            show(&format!("{}:\n{}", self.run_dir.display(), last_words(&self.run_dir)));
        } else if env::var_os("HOLDFAST_VM_KEEP").is_none() {
            let _left_for_the_sweep = fs::remove_dir_all(&self.run_dir);
        }
    }
}

#[expect(clippy::print_stderr, reason = "the console of a failed test belongs to its output")]
fn show(text: &str) {
    eprintln!("{text}");
}

/// The end of what QEMU and the guest's console printed.
fn last_words(dir: &Path) -> String {
    let mut words = String::new();
    for log in ["qemu.log", "console.log"] {
        let bytes = fs::read(dir.join(log)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let skipped = lines.len().saturating_sub(CONSOLE_LINES);
        // Writing to a string cannot fail.
        let _infallible = writeln!(words, "--- end of {log}");
        for line in lines.iter().skip(skipped) {
            let _infallible = writeln!(words, "{line}");
        }
    }
    words
}

fn next_number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

fn listen(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path).with_context(|| format!("listen on {}", path.display()))
}

/// QEMU connects as soon as it starts, or ends with a complaint.
fn accept(listener: &UnixListener, qemu: &Qemu) -> Result<UnixStream> {
    if !qemu.wait_for_connection(listener)? {
        bail!("QEMU ended before it connected");
    }
    Ok(listener.accept().context("accept QEMU's connection")?.0)
}
