//! A control group of its own for a process that outlives the service which started it.
//!
//! Service managers and container runtimes end a service by ending every process of its group.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use crate::Tree;
use crate::mounts::MountTable;

/// Below this folder of the hierarchy are all of ours.
const FOLDER: &str = "holdfast";

/// A group that this process has entered: one of each hierarchy, of which version 2 has one.
#[derive(Debug)]
pub struct Cgroup {
    folders: Vec<PathBuf>,
}

impl Cgroup {
    /// Makes a group, if there is none of this name, and moves this process into it.
    pub fn enter(tree: &Tree, name: &str) -> io::Result<Cgroup> {
        let table = MountTable::read(tree);
        let is_hierarchy = |kind: &str| kind == "cgroup2" || kind == "cgroup";
        let hierarchies = table.iter().filter(|mount| is_hierarchy(&mount.filesystem));
        let mut folders = Vec::new();
        for root in hierarchies.map(|mount| &mount.point) {
            let mut folder = tree.path(&root.to_string_lossy());
            for part in [FOLDER, name] {
                folder.push(part);
                fs::create_dir_all(&folder)?;
                inherit(&folder)?;
            }
            fs::write(procs(&folder), process::id().to_string())?;
            folders.push(folder);
        }
        if folders.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no cgroup is mounted"));
        }
        Ok(Cgroup { folders })
    }

    /// Leaves it to the root group and removes it, if nobody else is in it.
    pub fn leave(self) -> io::Result<()> {
        for folder in self.folders {
            let root = folder.ancestors().nth(2).unwrap_or(&folder);
            fs::write(procs(root), process::id().to_string())?;
            fs::remove_dir(&folder)?;
        }
        Ok(())
    }
}

/// In version 1, a new group has no processors and no memory, and takes no process until it has.
fn inherit(folder: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = folder.join(file);
        let Ok(now) = fs::read_to_string(&own) else { continue };
        let parent = folder.parent().unwrap_or(folder).join(file);
        if now.trim().is_empty() {
            fs::write(own, fs::read(parent)?)?;
        }
    }
    Ok(())
}

fn procs(folder: &Path) -> PathBuf {
    folder.join("cgroup.procs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kernel;
    use crate::testing::FakeKernel;

    #[test]
    fn a_process_moves_into_a_group_of_its_own() {
        let kernel = FakeKernel::new();
        let refused = Cgroup::enter(kernel.tree(), "v").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        kernel.write("proc/self/mountinfo", "32 21 0:45 / /sys/fs/cgroup rw - cgroup2 none rw\n");
        Cgroup::enter(kernel.tree(), "v").unwrap();
        let moved =
            fs::read_to_string(kernel.tree().path("/sys/fs/cgroup/holdfast/v/cgroup.procs"));
        assert_eq!(moved.unwrap(), process::id().to_string());
    }

    #[test]
    fn in_version_1_it_moves_in_every_hierarchy() {
        let kernel = FakeKernel::new();
        let line = |number: u32, name: &str| {
            format!("{number} 21 0:45 / /sys/fs/cgroup/{name} rw - cgroup {name} rw,{name}\n")
        };
        kernel.write("proc/self/mountinfo", [line(32, "devices"), line(33, "cpuset")].concat());
        kernel.write("sys/fs/cgroup/cpuset/cpuset.cpus", "0-3");
        // As the kernel makes them.
        for group in ["holdfast", "holdfast/v"] {
            kernel.write(&format!("sys/fs/cgroup/cpuset/{group}/cpuset.cpus"), "\n");
        }
        Cgroup::enter(kernel.tree(), "v").unwrap();
        let read = |path: &str| {
            let path = kernel.tree().path(&format!("/sys/fs/cgroup/{path}"));
            fs::read_to_string(path).unwrap()
        };
        for name in ["devices", "cpuset"] {
            let moved = read(&format!("{name}/holdfast/v/cgroup.procs"));
            assert_eq!(moved, process::id().to_string(), "{name}");
        }
        assert_eq!(read("cpuset/holdfast/v/cpuset.cpus"), "0-3");
    }
}
