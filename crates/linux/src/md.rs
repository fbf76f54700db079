//! Arrays of MD: `mdadm` for what concerns superblocks, sysfs for the rest.
//!
//! `mdadm` writes superblocks and the bitmap; doing that here would be a second implementation of a
//! format whose mistakes lose data. What is only read, or said to the kernel, is in sysfs.

use std::path::{Path, PathBuf};

use crate::tree::{names, number, word};
use crate::{Kernel, SystemError, Tree};

/// An array that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdArray {
    /// The kernel's name, as `md127`.
    pub name: String,
    /// What it says of itself: clean, active, …
    pub state: String,
    /// Places for members.
    pub slots: u16,
    /// Its size.
    pub bytes: u64,
    /// Its members.
    pub members: Vec<MdMember>,
    /// What it is doing: idle, resync, recover, …
    pub action: String,
    /// How much of that is done, in per mille.
    pub done: Option<u64>,
}

/// A member of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdMember {
    /// The kernel's name of the device.
    pub device: String,
    /// Its place, if it has one.
    pub slot: Option<u16>,
    /// Its data can be read.
    pub is_in_sync: bool,
    /// It failed.
    pub is_faulty: bool,
}

impl MdArray {
    /// Its device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/{}", self.name))
    }
}

/// All arrays.
pub fn arrays(tree: &Tree) -> Vec<MdArray> {
    let all = tree.names("/sys/class/block").into_iter().filter(|name| name.starts_with("md"));
    let found = all.filter_map(|name| {
        let block = tree.path("/sys/class/block").join(&name);
        let folder = block.join("md");
        let state = word(&folder.join("array_state"))?;
        if state == "clear" || state == "inactive" {
            return None;
        }
        let members = names(&folder).into_iter().filter_map(|entry| {
            let device = entry.strip_prefix("dev-")?.to_owned();
            let member = folder.join(&entry);
            let state = word(&member.join("state")).unwrap_or_default();
            let has = |flag: &str| state.split(',').any(|one| one == flag);
            let slot = word(&member.join("slot")).and_then(|slot| slot.parse().ok());
            Some(MdMember { device, slot, is_in_sync: has("in_sync"), is_faulty: has("faulty") })
        });
        let progress = word(&folder.join("sync_completed"));
        let done = progress.and_then(|text| {
            let (done, all) = text.split_once('/')?;
            let (done, all): (u64, u64) = (done.trim().parse().ok()?, all.trim().parse().ok()?);
            done.saturating_mul(1000).checked_div(all)
        });
        let slots = word(&folder.join("raid_disks"))?;
        Some(MdArray {
            state,
            slots: slots.split_whitespace().next()?.parse().ok()?,
            bytes: number(&block.join("size")).unwrap_or_default().saturating_mul(512),
            members: members.collect(),
            action: word(&folder.join("sync_action")).unwrap_or_default(),
            done,
            name,
        })
    });
    found.collect()
}

fn mdadm(
    kernel: &dyn Kernel,
    (operation, object): (&'static str, &Path),
    arguments: &[&str],
) -> Result<(), SystemError> {
    let output = kernel.run("mdadm", arguments).map_err(|source| {
        SystemError::new(operation, object, source).remedy_missing("install the package mdadm")
    })?;
    if output.code == Some(0) {
        return Ok(());
    }
    let said = output.text.lines().rev().find(|line| !line.trim().is_empty());
    let message = format!("mdadm says: {}", said.unwrap_or_default().trim());
    Err(SystemError::refused(operation, object, message))
}

fn text(path: &Path) -> Result<&str, SystemError> {
    path.to_str().ok_or_else(|| SystemError::refused("use", path, "its name is not UTF-8"))
}

/// An array to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewArray<'a> {
    /// Its path below `/dev/md`.
    pub path: &'a Path,
    /// Its UUID.
    pub uuid: &'a str,
    /// Mirrors of stripes, and not mirrors alone.
    pub is_striped: bool,
    /// Members in the order of their places; absent: the place stays free.
    pub members: &'a [Option<PathBuf>],
    /// What MD keeps for itself at the beginning of each member, in KiB.
    pub offset_kib: u64,
}

/// Makes an array of members that are all zeros.
pub fn create(kernel: &dyn Kernel, new: &NewArray<'_>) -> Result<(), SystemError> {
    let level = if new.is_striped { "--level=10" } else { "--level=1" };
    let count = format!("--raid-devices={}", new.members.len());
    let uuid = format!("--uuid={}", new.uuid);
    let offset = format!("--data-offset={}K", new.offset_kib);
    let mut arguments = vec!["--create", text(new.path)?, level, &count, &uuid, &offset];
    arguments.extend(["--metadata=1.2", "--homehost=any", "--assume-clean", "--bitmap=internal"]);
    arguments.extend(["--bitmap-chunk=128M", "--failfast", "--run"]);
    if new.is_striped {
        arguments.extend(["--chunk=64", "--layout=n2"]);
    }
    for member in new.members {
        arguments.push(member.as_deref().map_or(Ok("missing"), text)?);
    }
    mdadm(kernel, ("make the array", new.path), &arguments)
}

/// Starts an array with these members.
pub fn assemble(
    kernel: &dyn Kernel,
    path: &Path,
    uuid: &str,
    members: &[PathBuf],
) -> Result<(), SystemError> {
    let uuid = format!("--uuid={uuid}");
    let mut arguments = vec!["--assemble", text(path)?, "--run", "--config=none", &uuid];
    for member in members {
        arguments.push(text(member)?);
    }
    mdadm(kernel, ("start the array", path), &arguments)
}

/// Adds a member: what it lacks by the bitmap if it was one, else everything.
pub fn add(
    kernel: &dyn Kernel,
    array: &Path,
    member: &Path,
    was_member: bool,
) -> Result<(), SystemError> {
    let (array_text, member_text) = (text(array)?, text(member)?);
    let of = ("add a member to", array);
    if was_member {
        return mdadm(kernel, of, &["--manage", array_text, "--re-add", member_text]);
    }
    // One that never was in sync starts anew; without a superblock this says so and ends well.
    mdadm(kernel, of, &["--zero-superblock", "--force", member_text]).or_else(|error| {
        let is_clean = error.to_string().contains("Unrecognised md component");
        if is_clean { Ok(()) } else { Err(error) }
    })?;
    mdadm(kernel, of, &["--manage", array_text, "--add", "--failfast", member_text])
}

/// Fails a member and takes it out; one that is not there is no error.
pub fn remove(kernel: &dyn Kernel, array: &MdArray, device: &str) -> Result<(), SystemError> {
    if !array.members.iter().any(|member| member.device == device) {
        return Ok(());
    }
    let path = format!("/sys/class/block/{}/md/dev-{device}/state", array.name);
    for word in ["faulty", "remove"] {
        let done = kernel.set_attribute(&path, word);
        done.map_err(|source| SystemError::new("remove a member by", Path::new(&path), source))?;
    }
    Ok(())
}

/// Gives an array so many places.
pub fn set_slots(kernel: &dyn Kernel, array: &Path, slots: u16) -> Result<(), SystemError> {
    let count = format!("--raid-devices={slots}");
    mdadm(kernel, ("change", array), &["--grow", text(array)?, &count, "--force"])
}

/// Lets an array use all of its members.
pub fn grow(kernel: &dyn Kernel, array: &Path) -> Result<(), SystemError> {
    mdadm(kernel, ("grow", array), &["--grow", text(array)?, "--size=max"])
}

/// Stops an array.
pub fn stop(kernel: &dyn Kernel, array: &Path) -> Result<(), SystemError> {
    mdadm(kernel, ("stop", array), &["--stop", text(array)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FakeKernel;

    fn machine() -> FakeKernel {
        let kernel = FakeKernel::new();
        let set = |file: &str, text: &str| {
            kernel.write(&format!("sys/class/block/md127/{file}"), text);
        };
        set("size", "2048\n");
        set("md/array_state", "active\n");
        set("md/raid_disks", "2\n");
        set("md/sync_action", "recover\n");
        set("md/sync_completed", "512 / 2048\n");
        set("md/dev-dm-1/state", "in_sync,failfast\n");
        set("md/dev-dm-1/slot", "0\n");
        set("md/dev-dm-2/state", "faulty\n");
        set("md/dev-dm-2/slot", "none\n");
        kernel
    }

    #[test]
    fn an_array_is_read_with_its_members_and_its_progress() {
        let found = arrays(machine().tree());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].slots, found[0].bytes, found[0].done), (2, 1 << 20, Some(250)));
        let [first, second] = &found[0].members[..] else { panic!("{found:?}") };
        assert!(first.is_in_sync && !first.is_faulty && first.slot == Some(0));
        assert!(!second.is_in_sync && second.is_faulty && second.slot.is_none());
    }

    #[test]
    fn a_member_is_failed_before_it_is_removed() {
        let kernel = machine();
        let array = arrays(kernel.tree()).remove(0);
        remove(&kernel, &array, "dm-1").unwrap();
        let calls = kernel.calls();
        let at = |text: &str| calls.iter().position(|call| call.contains(text)).unwrap();
        assert!(at("faulty") < at("remove"), "{calls:?}");
        remove(&kernel, &array, "dm-9").unwrap();
    }
}
