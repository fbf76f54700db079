//! The calls into the kernel that change something, behind one trait.
//!
//! [`Kernel`] is small on purpose: each method is one system call, or one tool of the distribution.
//! What they mean for mounts, file systems, NVMe paths and loop devices is in the modules beside
//! it, which are tried against [`crate::testing::FakeKernel`] as well as against [`LiveKernel`].
//!
//! Invariant: an implementation never retries and never hides an error; the caller knows whether
//! an operation may be repeated.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use rustix::mount::{self, MountFlags, MountPropagationFlags, UnmountFlags};

use crate::Tree;
use crate::ioctl;
use crate::loop_device::LoopConfig;
use crate::mounts::DeviceNumber;

/// The longest output of a tool that is kept, in bytes: enough for any message, not for a flood.
const LONGEST_OUTPUT: usize = 16 << 10;

/// What a program asks of the kernel.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// Where `/sys`, `/proc` and `/dev` are read.
    fn tree(&self) -> &Tree;

    /// Writes an attribute of sysfs with one write.
    fn set_attribute(&self, path: &str, value: &str) -> io::Result<()>;

    /// Writes a request to a character device and reads what it answers on the same descriptor.
    fn exchange(&self, device: &str, request: &str) -> io::Result<String>;

    /// Reads exactly `buffer` at `offset` of a device, past the page cache where that can be had.
    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The size of a block device in bytes.
    fn device_size(&self, device: &Path) -> io::Result<u64>;

    /// The number of the block device at a path.
    fn device_number(&self, path: &Path) -> io::Result<DeviceNumber>;

    /// Mounts a file system.
    fn mount(&self, call: &MountCall<'_>) -> io::Result<()>;

    /// Makes `source` visible at `point` as well.
    fn bind(&self, source: &Path, point: &Path) -> io::Result<()>;

    /// Changes the flags of the mount at `point`, and of nothing else.
    fn remount_bind(&self, point: &Path, flags: MountFlags) -> io::Result<()>;

    /// Changes who sees mounts made below `point`.
    fn set_propagation(&self, point: &Path, to: MountPropagationFlags) -> io::Result<()>;

    /// Unmounts what was mounted last at `point`.
    fn unmount(&self, point: &Path, flags: UnmountFlags) -> io::Result<()>;

    /// Freezes the file system at `point`, or thaws it.
    fn set_frozen(&self, point: &Path, frozen: bool) -> io::Result<()>;

    /// How full the file system at `path` is.
    fn usage(&self, path: &Path) -> io::Result<Usage>;

    /// Attaches a file to a free loop device; its path.
    fn attach_loop(&self, config: &LoopConfig<'_>) -> io::Result<PathBuf>;

    /// Detaches a loop device from its file.
    fn detach_loop(&self, device: &Path) -> io::Result<()>;

    /// Makes a loop device look at the size of its file again.
    fn refresh_loop(&self, device: &Path) -> io::Result<()>;

    /// Makes a folder of configfs.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    /// Removes a folder of configfs.
    fn remove_folder(&self, path: &str) -> io::Result<()>;

    /// Makes a link of configfs to one of its folders.
    fn make_link(&self, link: &str, to: &str) -> io::Result<()>;

    /// Removes a link of configfs.
    fn remove_link(&self, link: &str) -> io::Result<()>;

    /// Opens the disk at a path to read and write its partition table.
    fn open_table(&self, disk: &Path) -> io::Result<File>;

    /// Tells the kernel of one partition of a disk that is in use.
    fn change_partition(&self, disk: &Path, change: &PartitionChange) -> io::Result<()>;

    /// Fills a device with zeros.
    fn zero_device(&self, device: &Path) -> io::Result<()>;

    /// Runs a tool of the distribution to its end.
    fn run(&self, tool: &str, arguments: &[&str]) -> io::Result<ToolOutput>;
}

/// A file system to be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountCall<'a> {
    /// The device, or a name for it.
    pub source: &'a Path,
    /// Where it becomes visible.
    pub point: &'a Path,
    /// The kernel's name of the file system.
    pub filesystem: &'a str,
    /// What the kernel knows of every file system.
    pub flags: MountFlags,
    /// What only this file system knows, as one list with commas.
    pub data: &'a str,
}

/// What becomes of a partition of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionChange {
    /// It appears.
    Add {
        /// Its number.
        number: u32,
        /// Where it begins.
        start: u64,
        /// How long it is.
        length: u64,
    },
    /// It becomes longer.
    Resize {
        /// Its number.
        number: u32,
        /// Where it begins.
        start: u64,
        /// How long it is.
        length: u64,
    },
    /// It goes; one that is in use does not.
    Delete {
        /// Its number.
        number: u32,
    },
}

/// How full a file system is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes it can hold.
    pub total_bytes: u64,
    /// Bytes that users without privileges can still write.
    pub available_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes it can hold; zero where it has no limit.
    pub total_inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
}

/// How a tool ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed, errors last, bounded.
    pub text: String,
}

/// The kernel this process runs on.
#[derive(Clone, Debug, Default)]
pub struct LiveKernel {
    tree: Tree,
}

impl Kernel for LiveKernel {
    fn tree(&self) -> &Tree {
        &self.tree
    }

    fn set_attribute(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.tree.path(path))?;
        file.write_all(value.as_bytes())
    }

    fn exchange(&self, device: &str, request: &str) -> io::Result<String> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.tree.path(device))?;
        file.write_all(request.as_bytes())?;
        let mut reply = [0; 4096];
        let length = file.read(&mut reply)?;
        let reply = reply.get(..length).unwrap_or_default();
        Ok(String::from_utf8_lossy(reply).into_owned())
    }

    fn read_device(&self, device: &Path, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let file = File::open(device)?;
        // What an earlier user of the device left in the page cache is not what lies on it.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        file.read_exact_at(buffer, offset)
    }

    fn device_size(&self, device: &Path) -> io::Result<u64> {
        ioctl::device_size(&File::open(device)?)
    }

    fn device_number(&self, path: &Path) -> io::Result<DeviceNumber> {
        let found = std::fs::metadata(path)?;
        if !found.file_type().is_block_device() {
            return Err(io::Error::other("it is not a block device"));
        }
        let number = found.rdev();
        Ok(DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) })
    }

    fn mount(&self, call: &MountCall<'_>) -> io::Result<()> {
        let data = std::ffi::CString::new(call.data)?;
        mount::mount(call.source, call.point, call.filesystem, call.flags, data.as_c_str())?;
        Ok(())
    }

    fn bind(&self, source: &Path, point: &Path) -> io::Result<()> {
        Ok(mount::mount_bind(source, point)?)
    }

    fn remount_bind(&self, point: &Path, flags: MountFlags) -> io::Result<()> {
        Ok(mount::mount_remount(point, flags | MountFlags::BIND, c"")?)
    }

    fn set_propagation(&self, point: &Path, to: MountPropagationFlags) -> io::Result<()> {
        Ok(mount::mount_change(point, to)?)
    }

    fn unmount(&self, point: &Path, flags: UnmountFlags) -> io::Result<()> {
        Ok(mount::unmount(point, flags | UnmountFlags::NOFOLLOW)?)
    }

    fn set_frozen(&self, point: &Path, frozen: bool) -> io::Result<()> {
        let folder = File::open(point)?;
        if frozen { ioctl::freeze(&folder) } else { ioctl::thaw(&folder) }
    }

    fn usage(&self, path: &Path) -> io::Result<Usage> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Usage {
            total_bytes: bytes(found.f_blocks),
            available_bytes: bytes(found.f_bavail),
            used_bytes: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            total_inodes: found.f_files,
            free_inodes: found.f_ffree,
        })
    }

    fn attach_loop(&self, config: &LoopConfig<'_>) -> io::Result<PathBuf> {
        let mut open = OpenOptions::new();
        open.read(true).write(!config.read_only);
        if config.direct_io {
            open.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        ioctl::attach_loop(&open.open(config.file)?, config)
    }

    fn detach_loop(&self, device: &Path) -> io::Result<()> {
        ioctl::detach_loop(&File::open(device)?)
    }

    fn refresh_loop(&self, device: &Path) -> io::Result<()> {
        ioctl::refresh_loop(&File::open(device)?)
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir(self.tree.path(path))
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        std::fs::remove_dir(self.tree.path(path))
    }

    fn make_link(&self, link: &str, to: &str) -> io::Result<()> {
        std::os::unix::fs::symlink(self.tree.path(to), self.tree.path(link))
    }

    fn remove_link(&self, link: &str) -> io::Result<()> {
        std::fs::remove_file(self.tree.path(link))
    }

    fn open_table(&self, disk: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(disk)
    }

    fn change_partition(&self, disk: &Path, change: &PartitionChange) -> io::Result<()> {
        ioctl::change_partition(&File::open(disk)?, change)
    }

    fn zero_device(&self, device: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(device)?;
        let length = ioctl::device_size(&file)?;
        ioctl::zero(&file, length)?;
        file.sync_all()
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> io::Result<ToolOutput> {
        // Messages are read by programs: they must not follow the operator's language.
        let output =
            Command::new(tool).args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).output()?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        let start = text.len().saturating_sub(LONGEST_OUTPUT);
        let start = (start..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(start);
        Ok(ToolOutput { code: output.status.code(), text: text.split_off(start) })
    }
}
