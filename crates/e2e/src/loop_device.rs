//! Loop devices: files that the kernel shows as disks.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device over a file; gone when dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// None if this system has none: only root may, and containers often have no loop devices.
    pub fn new(file: &Path, sector: u32) -> Option<LoopDevice> {
        let size = format!("--sector-size={sector}");
        let options = ["--find", "--show", &size];
        let output = Command::new("losetup").args(options).arg(file).output().ok()?;
        let device = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| LoopDevice(device.trim().into()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // It stays behind at worst; nothing else can be done here.
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
