//! A machine that is a folder of files, for tests of those who ask the kernel for things.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

use crate::kernel::{MountCall, PartitionChange, ToolOutput, Usage};
use crate::loop_device::LoopConfig;
use crate::mounts::{DeviceNumber, MountTable};
use crate::{Kernel, Tree};

/// What a tool does on a made-up machine.
type Tool = Box<dyn Fn(&[&str]) -> ToolOutput + Send>;

/// A kernel that keeps a mount table, block devices as files, and does what it is told.
pub struct FakeKernel {
    root: tempfile::TempDir,
    tree: Tree,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    failures: BTreeMap<String, i32>,
    tools: BTreeMap<String, Tool>,
    replies: BTreeMap<String, String>,
    frozen: Vec<PathBuf>,
}

impl std::fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeKernel").field("root", &self.root.path()).finish_non_exhaustive()
    }
}

impl Default for FakeKernel {
    fn default() -> FakeKernel {
        FakeKernel::new()
    }
}

impl FakeKernel {
    /// A machine without devices and mounts.
    pub fn new() -> FakeKernel {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::at(root.path());
        FakeKernel { root, tree, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file.
    pub fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.root.path().join(file.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Where a file of this machine really lies.
    pub fn file(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Makes a symbolic link.
    pub fn link(&self, link: &str, to: &str) {
        let path = self.root.path().join(link.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// Removes a file or a folder with all that is in it.
    pub fn remove(&self, path: &str) {
        let path = self.root.path().join(path.trim_start_matches('/'));
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Makes a block device.
    pub fn device(&self, name: &str, number: &str) {
        self.write(&format!("sys/dev/block/{number}/dev"), number);
        self.write(&format!("sys/class/block/{name}/dev"), number);
    }

    /// Takes a block device away.
    pub fn remove_device(&self, name: &str, number: &str) {
        self.remove(&format!("sys/dev/block/{number}"));
        self.remove(&format!("sys/class/block/{name}"));
    }

    /// The next call of this name fails with this error number.
    pub fn fail_next(&self, call: &str, errno: i32) {
        self.state().failures.insert(call.to_owned(), errno);
    }

    /// What a tool does from now on.
    pub fn tool(&self, name: &str, tool: impl Fn(&[&str]) -> ToolOutput + Send + 'static) {
        self.state().tools.insert(name.to_owned(), Box::new(tool));
    }

    /// What a character device answers from now on.
    pub fn reply(&self, device: &str, reply: &str) {
        self.state().replies.insert(device.to_owned(), reply.to_owned());
    }

    /// Every call so far, as `name argument …`.
    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Whether a file system is frozen.
    pub fn is_frozen(&self, point: &Path) -> bool {
        self.state().frozen.iter().any(|frozen| frozen == point)
    }

    fn called(&self, name: &str, arguments: &str) -> io::Result<()> {
        let mut state = self.state();
        state.calls.push(format!("{name} {arguments}"));
        state.failures.remove(name).map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }

    fn number_of(&self, source: &Path) -> String {
        let name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = self.tree.text(&format!("/sys/class/block/{name}/dev"));
        let number = number.trim();
        if number.is_empty() { "0:99".to_owned() } else { number.to_owned() }
    }

    fn change_table(&self, change: impl FnOnce(&mut Vec<String>)) {
        let text = self.tree.text("/proc/self/mountinfo");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        change(&mut lines);
        let mut text = String::new();
        for line in lines {
            writeln!(text, "{line}").unwrap();
        }
        self.write("proc/self/mountinfo", text);
    }
}

fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\134").replace(' ', "\\040")
}

impl Kernel for FakeKernel {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn set_attribute(&self, path: &str, value: &str) -> io::Result<()> {
        self.called("set_attribute", &format!("{path} {value}"))?;
        fs::write(self.tree.path(path), value)
    }

    fn exchange(&self, device: &str, request: &str) -> io::Result<String> {
        self.called("exchange", &format!("{device} {request}"))?;
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        self.state().replies.get(device).cloned().ok_or_else(missing)
    }

    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        self.called("read_device", &format!("{} {offset}", device.display()))?;
        let path = self.tree.path(&device.display().to_string());
        fs::File::open(path)?.read_exact_at(buffer, offset)
    }

    fn device_size(&self, device: &Path) -> io::Result<u64> {
        let path = self.tree.path(&device.display().to_string());
        Ok(fs::metadata(path)?.len())
    }

    fn device_number(&self, path: &Path) -> io::Result<DeviceNumber> {
        // A device that is bound somewhere is the same device there.
        let bound = MountTable::read(&self.tree).at(path).map(|there| PathBuf::from(&there.root));
        let device = bound.filter(|root| root.starts_with("/dev")).unwrap_or(path.to_owned());
        let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = self.tree.text(&format!("/sys/class/block/{name}/dev"));
        number.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::NotFound))
    }

    fn mount(&self, call: &MountCall<'_>) -> io::Result<()> {
        let (source, point) = (escaped(call.source), escaped(call.point));
        self.called("mount", &format!("{source} {point} {} {}", call.filesystem, call.data))?;
        let mode = if call.flags.contains(MountFlags::RDONLY) { "ro" } else { "rw" };
        let number = self.number_of(call.source);
        let filesystem = call.filesystem;
        self.change_table(|lines| {
            let line = format!("90 1 {number} / {point} {mode} - {filesystem} {source} {mode}");
            lines.push(line);
        });
        Ok(())
    }

    fn bind(&self, source: &Path, point: &Path) -> io::Result<()> {
        let (source, point) = (escaped(source), escaped(point));
        self.called("bind", &format!("{source} {point}"))?;
        self.change_table(|lines| {
            let from = lines.iter().rev().find(|line| line.split(' ').nth(4) == Some(&source));
            let copy = from.map(|line| line.replacen(&source, &point, 1));
            lines
                .push(copy.unwrap_or_else(|| format!("91 1 0:98 {source} {point} rw - none - rw")));
        });
        Ok(())
    }

    fn remount_bind(&self, point: &Path, flags: MountFlags) -> io::Result<()> {
        let point = escaped(point);
        self.called("remount_bind", &format!("{point} {flags:?}"))?;
        let mode = if flags.contains(MountFlags::RDONLY) { "ro" } else { "rw" };
        self.change_table(|lines| {
            let found = lines.iter_mut().rev().find(|line| line.split(' ').nth(4) == Some(&point));
            if let Some(line) = found {
                let mut fields: Vec<String> = line.split(' ').map(str::to_owned).collect();
                mode.clone_into(&mut fields[5]);
                *line = fields.join(" ");
            }
        });
        Ok(())
    }

    fn set_propagation(&self, point: &Path, to: MountPropagationFlags) -> io::Result<()> {
        self.called("set_propagation", &format!("{} {to:?}", point.display()))
    }

    fn unmount(&self, point: &Path, flags: UnmountFlags) -> io::Result<()> {
        let point = escaped(point);
        self.called("unmount", &format!("{point} {flags:?}"))?;
        let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
        self.change_table(|lines| {
            let last = lines.iter().rposition(|line| line.split(' ').nth(4) == Some(&point));
            if let Some(last) = last {
                lines.remove(last);
                result = Ok(());
            }
        });
        result
    }

    fn set_frozen(&self, point: &Path, frozen: bool) -> io::Result<()> {
        self.called("set_frozen", &format!("{} {frozen}", point.display()))?;
        let mut state = self.state();
        let had = state.frozen.iter().position(|had| had == point);
        match (had, frozen) {
            (None, true) => state.frozen.push(point.to_owned()),
            (Some(had), false) => drop(state.frozen.remove(had)),
            (Some(_), true) => return Err(io::Error::from_raw_os_error(libc::EBUSY)),
            (None, false) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
        Ok(())
    }

    fn usage(&self, path: &Path) -> io::Result<Usage> {
        self.called("usage", &path.display().to_string())?;
        Ok(Usage::default())
    }

    fn attach_loop(&self, config: &LoopConfig<'_>) -> io::Result<PathBuf> {
        self.called("attach_loop", &config.file.display().to_string())?;
        let is_free =
            |number: &u32| !self.tree.path(&format!("/sys/class/block/loop{number}")).exists();
        let number = (0..256).find(is_free).unwrap_or_default();
        let name = format!("loop{number}");
        self.device(&name, &format!("7:{number}"));
        let folder = format!("sys/class/block/{name}/loop");
        self.write(&format!("{folder}/backing_file"), config.file.display().to_string());
        self.write(&format!("{folder}/dio"), if config.direct_io { "1" } else { "0" });
        Ok(PathBuf::from(format!("/dev/{name}")))
    }

    fn detach_loop(&self, device: &Path) -> io::Result<()> {
        self.called("detach_loop", &device.display().to_string())?;
        let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !self.tree.path(&format!("/sys/class/block/{name}/loop")).exists() {
            return Err(io::Error::from_raw_os_error(libc::ENXIO));
        }
        let number = self.number_of(device);
        self.remove_device(name, &number);
        Ok(())
    }

    fn refresh_loop(&self, device: &Path) -> io::Result<()> {
        self.called("refresh_loop", &device.display().to_string())
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        self.called("make_folder", path)?;
        fs::create_dir_all(self.tree.path(path))
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        self.called("remove_folder", path)?;
        fs::remove_dir_all(self.tree.path(path))
    }

    fn make_link(&self, link: &str, to: &str) -> io::Result<()> {
        self.called("make_link", &format!("{link} {to}"))?;
        fs::create_dir_all(self.tree.path(link).parent().unwrap())?;
        symlink(self.tree.path(to), self.tree.path(link))
    }

    fn remove_link(&self, link: &str) -> io::Result<()> {
        self.called("remove_link", link)?;
        fs::remove_file(self.tree.path(link))
    }

    fn open_table(&self, disk: &Path) -> io::Result<fs::File> {
        self.called("open_table", &disk.display().to_string())?;
        let disk = self.file(&disk.display().to_string());
        fs::OpenOptions::new().read(true).write(true).open(disk)
    }

    fn change_partition(&self, disk: &Path, change: &PartitionChange) -> io::Result<()> {
        self.called("change_partition", &format!("{} {change:?}", disk.display()))
    }

    fn zero_device(&self, device: &Path) -> io::Result<()> {
        self.called("zero_device", &device.display().to_string())
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> io::Result<ToolOutput> {
        self.called(tool, &arguments.join(" "))?;
        let state = self.state();
        let found = state.tools.get(tool).map(|tool| tool(arguments));
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}
