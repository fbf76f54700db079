//! Files and a memory-backed FUSE file as disks: attached, formatted, mounted, frozen, grown.
//!
//! Only root may do this, and only where loop devices and FUSE are; elsewhere the tests say so.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use linux::filesystem::{self, Checked, Content, FilesystemKind};
use linux::fuse::{self, Command, Reaction, Session, SessionState};
use linux::loop_device::{self, LoopConfig, LoopDevice};
use linux::mounts::{self, DeviceNumber, MountOptions, Mounted};
use linux::{Kernel, LiveKernel, freeze};

const SIZE: u64 = 64 << 20;

/// Whether this machine lets us; says what is missing.
fn is_able() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    let missing = ["/dev/loop-control", "/dev/fuse"].iter().find(|path| !Path::new(path).exists());
    if !is_root || missing.is_some() {
        eprintln!("left out: root {is_root}, missing {missing:?}");
    }
    is_root && missing.is_none()
}

fn number_of(device: &Path) -> DeviceNumber {
    let number = fs::metadata(device).unwrap().rdev();
    DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
}

/// A mount or a loop device that goes at the end, whatever happened.
struct Cleanup<F: FnMut()>(F);

impl<F: FnMut()> Drop for Cleanup<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn release(kernel: &LiveKernel, point: &Path) {
    mounts::release(kernel, point).unwrap();
}

/// Linux lets only who has CAP_SYS_RESOURCE grow a mounted ext4; many containers have it not.
fn may_grow_ext4() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(found.trim(), 16).unwrap() & 1 << 24 != 0
}

fn attach(file: &Path) -> LoopDevice {
    let config = LoopConfig { file, block_size: 4096, direct_io: true, read_only: false };
    loop_device::attach(&LiveKernel::default(), &config).unwrap()
}

#[test]
fn a_file_is_formatted_mounted_frozen_grown_and_given_a_new_uuid() {
    if !is_able() {
        return;
    }
    let kernel = LiveKernel::default();
    let folder = tempfile::tempdir().unwrap();
    let (file, point) = (folder.path().join("disk"), folder.path().join("mnt"));
    fs::create_dir(&point).unwrap();
    File::create(&file).unwrap().set_len(SIZE).unwrap();
    let device = attach(&file).device;
    let _detach = Cleanup(|| loop_device::detach(&kernel, &device).unwrap());
    let _unmount = Cleanup(|| release(&kernel, &point));
    assert!(loop_device::list(&kernel).iter().any(|found| found.device == device));

    let kind = FilesystemKind::Ext4;
    assert_eq!(filesystem::probe(&kernel, &device).unwrap(), Content::Empty);
    filesystem::format(&kernel, &device, kind, &[]).unwrap();
    let again = filesystem::format(&kernel, &device, kind, &[]).unwrap_err().to_string();
    assert!(again.contains("it holds ext4 with uuid"), "{again}");

    let disk = (device.as_path(), number_of(&device));
    let options = MountOptions::parse(["noatime"]).unwrap();
    let ensure = || mounts::ensure(&kernel, disk, (&point, "ext4"), &options).unwrap();
    assert_eq!((ensure(), ensure()), (Mounted::Now, Mounted::Before));
    fs::write(point.join("file"), "kept").unwrap();

    let shared: Arc<dyn Kernel> = Arc::new(LiveKernel::default());
    let frozen = freeze::freeze(shared, &point).unwrap();
    assert!(frozen.thaw().unwrap());

    let before = kernel.usage(&point).unwrap().total_bytes;
    File::options().write(true).open(&file).unwrap().set_len(2 * SIZE).unwrap();
    loop_device::refresh(&kernel, &device).unwrap();
    let grown = filesystem::grow(&kernel, (&device, &point), kind).map_err(|e| e.to_string());
    if may_grow_ext4() {
        assert_eq!(grown, Ok(()));
        assert!(kernel.usage(&point).unwrap().total_bytes > before * 3 / 2);
    } else {
        assert!(grown.unwrap_err().contains("CAP_SYS_RESOURCE"));
    }

    assert_eq!(mounts::release(&kernel, &point).unwrap(), 1);
    assert_eq!(filesystem::check(&kernel, &device, kind).unwrap(), Checked::Clean);
    let uuid = "11111111-2222-4333-8444-555555555555";
    filesystem::set_uuid(&kernel, disk, (kind, uuid), &point).unwrap();
    let expected = Content::Filesystem { kind, uuid: uuid.into() };
    assert_eq!(filesystem::probe(&kernel, &device).unwrap(), expected);
    assert_eq!(ensure(), Mounted::Now);
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "kept");
}

/// A volume in memory, and those who serve it to the kernel.
struct Server {
    descriptor: File,
    bytes: Mutex<Vec<u8>>,
    flushes: AtomicUsize,
    /// The server dies with the next request that it got and did not answer.
    dies: AtomicBool,
}

impl Server {
    /// Serves until the file system is unmounted, or it dies.
    fn run(self: Arc<Server>, mut session: Session) -> JoinHandle<SessionState> {
        thread::spawn(move || {
            let mut message = vec![0; 2 << 20];
            while let Ok(length) = (&self.descriptor).read(&mut message) {
                let reaction = session.receive(&message[..length]);
                if self.dies.swap(false, Ordering::SeqCst) {
                    break;
                }
                match reaction {
                    Reaction::Reply(reply) => self.answer(&reply),
                    Reaction::Submit(id, command) => {
                        let data = self.carry_out(command, &message[..length]);
                        let mut reply = session.complete(id, command, Ok(&data));
                        reply.extend(data);
                        self.answer(&reply);
                    }
                    Reaction::Ignore => {}
                    Reaction::Unmounted => break,
                }
            }
            session.state()
        })
    }

    fn answer(&self, reply: &[u8]) {
        (&self.descriptor).write_all(reply).unwrap();
    }

    fn carry_out(&self, command: Command, message: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.lock().unwrap();
        let place = |offset: u64, length: u64| {
            let start = usize::try_from(offset).unwrap();
            start..start + usize::try_from(length).unwrap()
        };
        match command {
            Command::Read { offset, length } => {
                return bytes[place(offset, u64::from(length))].to_vec();
            }
            Command::Write { offset, length } => {
                let place = place(offset, u64::from(length));
                let payload = &message[message.len() - place.len()..];
                bytes[place].copy_from_slice(payload);
            }
            Command::Flush => {
                self.flushes.fetch_add(1, Ordering::SeqCst);
            }
            Command::Discard { offset, length } | Command::WriteZeroes { offset, length } => {
                bytes[place(offset, length)].fill(0);
            }
        }
        Vec::new()
    }
}

#[test]
fn a_volume_behind_fuse_is_a_disk_that_outlives_its_server() {
    if !is_able() {
        return;
    }
    let kernel = LiveKernel::default();
    let folder = tempfile::tempdir().unwrap();
    let [fuse_point, point] = ["fuse", "mnt"].map(|name| folder.path().join(name));
    fs::create_dir(&fuse_point).unwrap();
    fs::create_dir(&point).unwrap();
    let server = Arc::new(Server {
        descriptor: fuse::mount(&kernel, &fuse_point).unwrap(),
        bytes: Mutex::new(vec![0; usize::try_from(SIZE).unwrap()]),
        flushes: AtomicUsize::new(0),
        dies: AtomicBool::new(false),
    });
    let _unmount_fuse = Cleanup(|| release(&kernel, &fuse_point));
    let first = Arc::clone(&server).run(Session::new(SIZE, 4096, false));

    let device: PathBuf = attach(&fuse_point.join(fuse::FILE_NAME)).device;
    let _detach = Cleanup(|| loop_device::detach(&kernel, &device).unwrap());
    assert_eq!(filesystem::probe(&kernel, &device).unwrap(), Content::Empty);
    filesystem::format(&kernel, &device, FilesystemKind::Ext4, &[]).unwrap();
    let disk = (device.as_path(), number_of(&device));
    mounts::ensure(&kernel, disk, (&point, "ext4"), &MountOptions::default()).unwrap();
    let _unmount = Cleanup(|| release(&kernel, &point));

    let flushes = || server.flushes.load(Ordering::SeqCst);
    let write = |name: &str, text: &str| {
        let mut file = File::create(point.join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    };
    let before = flushes();
    write("first", "one");
    assert!(flushes() > before, "fsync reached the volume");

    // The server got a request, and dies before it answers.
    server.dies.store(true, Ordering::SeqCst);
    let state = thread::scope(|scope| {
        let writer = scope.spawn(|| write("second", "two"));
        let state = first.join().unwrap();
        let notice = fuse::resend(state).expect("this kernel sends requests again");
        server.answer(&notice);
        let second = Arc::clone(&server).run(Session::resume(SIZE, 4096, false, state));
        writer.join().unwrap();
        drop(second);
        state
    });
    assert!(state.can_resend);
    assert_eq!(fs::read_to_string(point.join("second")).unwrap(), "two");
    assert_eq!(mounts::release(&kernel, &point).unwrap(), 1);
    assert_eq!(filesystem::check(&kernel, &device, FilesystemKind::Ext4).unwrap(), Checked::Clean);
}
