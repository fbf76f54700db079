//! Loop devices: a file as a block device.

use std::path::{Path, PathBuf};

use crate::tree::{number, word};
use crate::{Kernel, SystemError};

/// How a file becomes a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopConfig<'a> {
    /// The file.
    pub file: &'a Path,
    /// The logical block of the device, in bytes.
    pub block_size: u32,
    /// The file's own page cache is left out.
    pub direct_io: bool,
    /// Nothing can be written.
    pub read_only: bool,
}

/// An attached loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// Its path in `/dev`.
    pub device: PathBuf,
    /// The file behind it; the kernel appends ` (deleted)` when it is gone.
    pub file: PathBuf,
    /// Whether the file's page cache is really left out: the kernel decides.
    pub direct_io: bool,
}

/// Attaches a file. Where direct I/O was asked for and the kernel does not grant it, the device is
/// detached again: it would cache what its owner was told is on the medium.
pub fn attach(kernel: &dyn Kernel, config: &LoopConfig<'_>) -> Result<LoopDevice, SystemError> {
    let failed = |source| {
        SystemError::new("attach a loop device to", config.file, source)
            .remedy_missing("load it: modprobe loop")
    };
    let device = kernel.attach_loop(config).map_err(failed)?;
    let attached = LoopDevice {
        direct_io: attribute(kernel, &device, "dio").as_deref() == Some("1"),
        device,
        file: config.file.to_owned(),
    };
    if config.direct_io && !attached.direct_io {
        detach(kernel, &attached.device)?;
        return Err(SystemError::refused(
            "attach a loop device to",
            config.file,
            "the kernel grants no direct I/O on this file",
        ));
    }
    Ok(attached)
}

/// Detaches a device. The kernel does so when its last user is gone.
pub fn detach(kernel: &dyn Kernel, device: &Path) -> Result<(), SystemError> {
    match kernel.detach_loop(device) {
        // It was detached before, or never attached.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        result => result.map_err(|source| SystemError::new("detach", device, source)),
    }
}

/// Makes the device as large as its file has become.
pub fn refresh(kernel: &dyn Kernel, device: &Path) -> Result<(), SystemError> {
    kernel.refresh_loop(device).map_err(|source| SystemError::new("grow", device, source))
}

/// All attached ones.
pub fn list(kernel: &dyn Kernel) -> Vec<LoopDevice> {
    let names = kernel.tree().names("/sys/class/block");
    let found = names.into_iter().filter_map(|name| {
        name.strip_prefix("loop")?.parse::<u32>().ok()?;
        let device = PathBuf::from(format!("/dev/{name}"));
        let file = attribute(kernel, &device, "backing_file")?;
        let direct_io = attribute(kernel, &device, "dio").as_deref() == Some("1");
        Some(LoopDevice { device, file: PathBuf::from(file), direct_io })
    });
    found.collect()
}

fn attribute(kernel: &dyn Kernel, device: &Path, name: &str) -> Option<String> {
    let device = device.file_name()?.to_str()?;
    word(&kernel.tree().path(&format!("/sys/class/block/{device}/loop/{name}")))
}

/// The size of a device in bytes as sysfs shows it.
pub fn shown_size(kernel: &dyn Kernel, device: &Path) -> Option<u64> {
    let device = device.file_name()?.to_str()?;
    let sectors = number(&kernel.tree().path(&format!("/sys/class/block/{device}/size")))?;
    sectors.checked_mul(512)
}
