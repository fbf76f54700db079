//! Devices that pass I/O on, and hold it when its destination is lost: device mapper.
//!
//! `dmsetup` is used and not the ioctls: a leg is made once in the life of an array, and the tool
//! makes device nodes as well.

use std::path::{Path, PathBuf};

use crate::{Kernel, SystemError, Tree};

/// What becomes of I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It is passed on.
    Open,
    /// It waits.
    Held,
    /// It fails.
    Failed,
}

fn run(
    kernel: &dyn Kernel,
    (operation, name): (&'static str, &str),
    arguments: &[&str],
) -> Result<String, SystemError> {
    let object = Path::new(name);
    let output = kernel.run("dmsetup", arguments).map_err(|source| {
        SystemError::new(operation, object, source)
            .remedy_missing("install the package dmsetup, and load dm-multipath")
    })?;
    if output.code == Some(0) {
        return Ok(output.text);
    }
    let said = output.text.lines().last().unwrap_or_default().to_owned();
    Err(SystemError::refused(operation, object, format!("dmsetup says: {said}")))
}

/// The path of a device.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(format!("/dev/mapper/{name}"))
}

/// Names of all devices, with the kernel's own name of each.
pub fn devices(tree: &Tree) -> Vec<(String, String)> {
    let all = tree.names("/sys/class/block").into_iter().filter(|name| name.starts_with("dm-"));
    let named = all.filter_map(|name| {
        let given = tree.text(&format!("/sys/class/block/{name}/dm/name"));
        let given = given.trim().to_owned();
        (!given.is_empty()).then_some((given, name))
    });
    named.collect()
}

/// What becomes of the I/O of a device.
pub fn passage(kernel: &dyn Kernel, name: &str) -> Result<Passage, SystemError> {
    let status = run(kernel, ("look at", name), &["status", name])?;
    let table = run(kernel, ("look at", name), &["table", name])?;
    Ok(parse(&status, &table))
}

/// `0 2048 multipath 2 0 0 0 1 1 A 0 1 0 259:3 A 0`; the letter behind the device is that of the
/// path. In the table, a device that holds I/O has `queue_if_no_path`.
fn parse(status: &str, table: &str) -> Passage {
    let words: Vec<&str> = status.split_whitespace().collect();
    match words.get(2) {
        Some(&"linear") => Passage::Open,
        Some(&"multipath") => {
            let device = words.iter().rposition(|word| word.contains(':'));
            let state = device.and_then(|at| words.get(at + 1));
            if state == Some(&"A") {
                Passage::Open
            } else if table.contains("queue_if_no_path") {
                Passage::Held
            } else {
                Passage::Failed
            }
        }
        _ => Passage::Failed,
    }
}

/// A table for the whole of a device; one that may be lost holds I/O then.
fn table(kernel: &dyn Kernel, device: &Path, may_be_lost: bool) -> Result<String, SystemError> {
    let failed = |source| SystemError::new("look at", device, source);
    let sectors = kernel.device_size(device).map_err(failed)? / 512;
    let number = kernel.device_number(device).map_err(failed)?;
    let number = format!("{}:{}", number.major, number.minor);
    Ok(if may_be_lost {
        // By bios, because a namespace with several paths takes nothing else.
        format!(
            "0 {sectors} multipath 3 queue_if_no_path queue_mode bio 0 1 1 round-robin 0 1 0 \
             {number}"
        )
    } else {
        format!("0 {sectors} linear {number} 0")
    })
}

/// Makes a device over another.
pub fn create(
    kernel: &dyn Kernel,
    name: &str,
    device: &Path,
    may_be_lost: bool,
) -> Result<(), SystemError> {
    let table = table(kernel, device, may_be_lost)?;
    run(kernel, ("make", name), &["create", name, "--table", &table]).map(|_| ())
}

/// Lets a device be as large as the one below it has become.
pub fn resize(
    kernel: &dyn Kernel,
    name: &str,
    device: &Path,
    may_be_lost: bool,
) -> Result<(), SystemError> {
    let table = table(kernel, device, may_be_lost)?;
    run(kernel, ("grow", name), &["reload", name, "--table", &table])?;
    run(kernel, ("grow", name), &["resume", name]).map(|_| ())
}

/// Holds all I/O of a device, whatever is below it, until it is failed.
pub fn hold(kernel: &dyn Kernel, name: &str) -> Result<(), SystemError> {
    let arguments = ["suspend", "--noflush", "--nolockfs", name];
    run(kernel, ("hold the I/O of", name), &arguments).map(|_| ())
}

/// Lets I/O fail that waits, and all that follows.
pub fn fail(kernel: &dyn Kernel, name: &str) -> Result<(), SystemError> {
    run(kernel, ("release", name), &["wipe_table", "--noflush", name]).map(|_| ())
}

/// Removes a device; one that is not there is no error.
pub fn remove(kernel: &dyn Kernel, name: &str) -> Result<(), SystemError> {
    if !devices(kernel.tree()).iter().any(|(given, _)| given == name) {
        return Ok(());
    }
    run(kernel, ("remove", name), &["remove", "--retry", name]).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_path_holds_io_until_it_is_released() {
        let table = "0 2048 multipath 1 queue_if_no_path 0 1 1 round-robin 0 1 0 259:3";
        let status = |path: &str| format!("0 2048 multipath 2 0 0 0 1 1 A 0 1 0 259:3 {path} 0");
        assert_eq!(parse(&status("A"), table), Passage::Open);
        assert_eq!(parse(&status("F"), table), Passage::Held);
        assert_eq!(parse(&status("F"), &table.replace("queue_if_no_path", "")), Passage::Failed);
        assert_eq!(parse("0 2048 error", "0 2048 error"), Passage::Failed);
        assert_eq!(parse("0 2048 linear", "0 2048 linear 259:3 0"), Passage::Open);
        assert_eq!(parse("", ""), Passage::Failed);
    }
}
