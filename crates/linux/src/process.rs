//! What a process that the kernel writes dirty pages through asks for itself.
//!
//! When memory is short, the kernel frees it by writing to volumes. A server of a volume that then
//! needs memory itself would wait for its own answer: so it has all its memory beforehand.

use std::io;

use rustix::mm::MlockAllFlags;

/// Keeps all memory of this process, now and later, in RAM.
pub fn lock_memory() -> io::Result<()> {
    Ok(rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)?)
}

/// Keeps what this process has touched in RAM, and no more: for one that does little.
pub fn lock_used_memory() -> io::Result<()> {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(rustix::mm::mlockall(all)?)
}

/// Tells the kernel that memory for the calling thread and those it starts must not be freed by
/// writing to the volume it serves. It needs CAP_SYS_RESOURCE.
pub fn set_io_flusher() -> io::Result<()> {
    Ok(rustix::process::configure_io_flusher_behavior(true)?)
}
