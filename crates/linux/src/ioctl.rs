//! The device controls that no library wraps.
#![expect(unsafe_code, reason = "device controls take raw pointers")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::ioctl::{Getter, IntegerSetter, NoArg, Opcode, Setter, ioctl, opcode};

use crate::kernel::PartitionChange;
use crate::loop_device::LoopConfig;

const FREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
const THAW: Opcode = opcode::read_write::<i32>(b'X', 120);
const SIZE: Opcode = opcode::read::<u64>(0x12, 114);
const PARTITION: Opcode = 0x1269;
const ZERO: Opcode = 0x127F;
const LOOP_CLEAR: Opcode = 0x4C01;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_GET_FREE: Opcode = 0x4C82;

/// Another process may take the free device between the question and the attachment.
const LOOP_TRIES: usize = 64;

const LOOP_READ_ONLY: u32 = 1;
const LOOP_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawLoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct blkpg_partition`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawPartition {
    start: i64,
    length: i64,
    number: i32,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawPartitionChange {
    operation: i32,
    flags: i32,
    length: i32,
    partition: *const RawPartition,
}

const _: () = assert!(size_of::<RawPartition>() == 152);
const _: () = assert!(size_of::<RawPartitionChange>() == 24);
const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<RawLoopConfig>() == 304);

/// No new change of the file system begins, and all before are on the device.
pub(crate) fn freeze(folder: &File) -> io::Result<()> {
    // SAFETY: FIFREEZE ignores its argument; `NoArg` passes none and reads nothing back.
    Ok(unsafe { ioctl(folder, NoArg::<FREEZE>::new()) }?)
}

/// Changes go on.
pub(crate) fn thaw(folder: &File) -> io::Result<()> {
    // SAFETY: FITHAW ignores its argument; `NoArg` passes none and reads nothing back.
    Ok(unsafe { ioctl(folder, NoArg::<THAW>::new()) }?)
}

pub(crate) fn device_size(device: &File) -> io::Result<u64> {
    // SAFETY: BLKGETSIZE64 writes exactly one u64, which is what the getter has room for.
    Ok(unsafe { ioctl(device, Getter::<SIZE, u64>::new()) }?)
}

/// Tells the kernel of a partition; its table on the disk is somebody else's work.
pub(crate) fn change_partition(disk: &File, change: &PartitionChange) -> io::Result<()> {
    let (operation, number, start, length) = match *change {
        PartitionChange::Add { number, start, length } => (1, number, start, length),
        PartitionChange::Delete { number } => (2, number, 0, 0),
        PartitionChange::Resize { number, start, length } => (3, number, start, length),
    };
    let too_large = |_| io::Error::other("the partition is too large for the kernel");
    let partition = RawPartition {
        start: i64::try_from(start).map_err(too_large)?,
        length: i64::try_from(length).map_err(too_large)?,
        number: i32::try_from(number).map_err(too_large)?,
        device_name: [0; 64],
        volume_name: [0; 64],
    };
    let request =
        RawPartitionChange { operation, flags: 0, length: 152, partition: &raw const partition };
    // SAFETY: BLKPG reads a `blkpg_ioctl_arg` and the `blkpg_partition` that it points to. Both
    // have the kernel's layout (checked above) and live until the call returns.
    Ok(unsafe { ioctl(disk, Setter::<PARTITION, RawPartitionChange>::new(request)) }?)
}

/// Zeros from the beginning of a device, which need not be written one by one.
pub(crate) fn zero(device: &File, length: u64) -> io::Result<()> {
    // SAFETY: BLKZEROOUT reads two u64, start and length, which the setter points to.
    Ok(unsafe { ioctl(device, Setter::<ZERO, [u64; 2]>::new([0, length])) }?)
}

pub(crate) fn attach_loop(file: &File, config: &LoopConfig<'_>) -> io::Result<PathBuf> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..LOOP_TRIES {
        let path = PathBuf::from(format!("/dev/loop{}", free_loop(&control)?));
        let device = OpenOptions::new().read(true).write(!config.read_only).open(&path)?;
        match configure_loop(&device, file, config) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn free_loop(control: &File) -> io::Result<i32> {
    struct GetFree;
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns the number as its result.
    unsafe impl rustix::ioctl::Ioctl for GetFree {
        type Output = i32;
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            LOOP_GET_FREE
        }

        fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
            core::ptr::null_mut()
        }

        unsafe fn output_from_ptr(
            out: rustix::ioctl::IoctlOutput,
            _: *mut rustix::ffi::c_void,
        ) -> rustix::io::Result<i32> {
            Ok(out)
        }
    }
    // SAFETY: as above, and `control` is the loop control device.
    Ok(unsafe { ioctl(control, GetFree) }?)
}

fn configure_loop(device: &File, file: &File, config: &LoopConfig<'_>) -> io::Result<()> {
    let mut flags = 0;
    if config.read_only {
        flags |= LOOP_READ_ONLY;
    }
    if config.direct_io {
        flags |= LOOP_DIRECT_IO;
    }
    let mut file_name = [0; 64];
    let name = config.file.as_os_str().as_encoded_bytes();
    // The name is for people, and ends with a zero: a long one is cut.
    for (to, from) in file_name.iter_mut().take(63).zip(name) {
        *to = *from;
    }
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let raw = RawLoopConfig { fd, block_size: config.block_size, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, whose layout and size `RawLoopConfig`
    // has; the descriptor in it stays open during the call, and the kernel takes its own reference.
    Ok(unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, RawLoopConfig>::new(raw)) }?)
}

pub(crate) fn detach_loop(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD ignores its argument.
    Ok(unsafe { ioctl(device, IntegerSetter::<LOOP_CLEAR>::new_usize(0)) }?)
}

pub(crate) fn refresh_loop(device: &File) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY ignores its argument.
    Ok(unsafe { ioctl(device, IntegerSetter::<LOOP_SET_CAPACITY>::new_usize(0)) }?)
}
