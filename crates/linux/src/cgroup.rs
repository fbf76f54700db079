//! A control group of its own for a process that outlives the service which started it.
//!
//! Service managers and container runtimes end a service by ending every process of its group.

use std::path::{Path, PathBuf};
use std::{fs, io, process};

use crate::Tree;
use crate::mounts::MountTable;

/// Below this folder of the hierarchy are all of ours.
const FOLDER: &str = "holdfast";

/// A group that this process has entered.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Makes a group, if there is none of this name, and moves this process into it.
    pub fn enter(tree: &Tree, name: &str) -> io::Result<Cgroup> {
        let table = MountTable::read(tree);
        let found = table.iter().find(|mount| mount.filesystem == "cgroup2");
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no cgroup2 is mounted");
        let root = found.ok_or_else(missing)?.point.clone();
        let path = root.join(FOLDER).join(name);
        let folder = tree.path(&path.to_string_lossy());
        fs::create_dir_all(&folder)?;
        fs::write(procs(&folder), process::id().to_string())?;
        Ok(Cgroup { folder })
    }

    /// Leaves it to the root group and removes it, if nobody else is in it.
    pub fn leave(self) -> io::Result<()> {
        let root = self.folder.ancestors().nth(2).unwrap_or(&self.folder);
        fs::write(procs(root), process::id().to_string())?;
        fs::remove_dir(&self.folder)
    }
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
}
