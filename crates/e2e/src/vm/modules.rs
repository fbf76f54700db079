//! Which kernel modules a guest gets, with all they depend on, and in which order they load.
//!
//! Debian's package holds no `modules.dep` (it is made at installation), so the dependencies are
//! read out of the modules themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::userland::command_bytes;

/// What every guest loads at boot, be it a module or built into the kernel.
const AT_BOOT: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_net",
    "virtio_blk",
    // Found by the crypto layer under the name "crc32c", which no dependency tells.
    "crc32c_generic",
    "crc32c_intel",
    "nvme_tcp",
    "nvmet_tcp",
];

/// What a guest loads when it is used: file systems by mounting one, the rest by `modprobe`.
const ON_DEMAND: &[&str] = &[
    "xfs",
    "ext4",
    "loop",
    "null_blk",
    "brd",
    "dm_mod",
    "raid1",
    "raid10",
    "fuse",
    "nvme_loop",
    "ublk_drv",
];

/// Those of the above that not every kernel has.
const NOT_EVERYWHERE: &[&str] = &["crc32c_generic", "crc32c_intel", "nvme_loop", "ublk_drv"];

/// What a module is told when it is loaded: no devices before a test asks for one.
const OPTIONS: &[(&str, &str)] = &[("null_blk", "nr_devices=0"), ("brd", "rd_nr=0")];

/// The modules of a guest.
#[derive(Default)]
pub(super) struct Modules {
    /// By name, not compressed.
    pub(super) bytes: BTreeMap<String, Vec<u8>>,
    /// What `modprobe NAME` loads, in this order, one module with its options a line. The name
    /// `boot` stands for all that is loaded at boot.
    pub(super) needs: BTreeMap<String, String>,
}

impl Modules {
    /// Takes what a guest needs out of `lib/modules/<release>`.
    pub(super) fn find(release_dir: &Path) -> Result<Modules> {
        let tree = Tree::open(release_dir)?;
        let mut modules = Modules::default();
        modules.add(&tree, "boot", AT_BOOT)?;
        for name in ON_DEMAND {
            modules.add(&tree, name, &[name])?;
        }
        Ok(modules)
    }

    fn add(&mut self, tree: &Tree, name: &str, wanted: &[&str]) -> Result<()> {
        let mut order = Vec::new();
        for module in wanted {
            self.add_module(tree, module, &mut order)?;
        }
        let mut needs = String::new();
        for module in order {
            let options = OPTIONS.iter().find(|(name, _)| *name == module);
            needs.push_str(&module);
            needs.push(' ');
            needs.push_str(options.map_or("", |(_, options)| options));
            needs.push('\n');
        }
        self.needs.insert(name.to_owned(), needs);
        Ok(())
    }

    /// Depth first, so that each module comes after those it depends on.
    fn add_module(&mut self, tree: &Tree, name: &str, order: &mut Vec<String>) -> Result<()> {
        if order.iter().any(|known| known == name) {
            return Ok(());
        }
        let Some(path) = tree.files.get(name) else {
            if tree.built_in.contains(name) || NOT_EVERYWHERE.contains(&name) {
                return Ok(());
            }
            bail!("this kernel has no module {name}");
        };
        if !self.bytes.contains_key(name) {
            self.bytes.insert(name.to_owned(), read_module(path)?);
        }
        let bytes = self.bytes.get(name).map(Vec::as_slice).unwrap_or_default();
        for needed in dependencies(bytes) {
            self.add_module(tree, &needed, order).with_context(|| format!("needed by {name}"))?;
        }
        order.push(name.to_owned());
        Ok(())
    }
}

struct Tree {
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
}

impl Tree {
    fn open(release_dir: &Path) -> Result<Tree> {
        let mut files = BTreeMap::new();
        let mut pending = vec![release_dir.join("kernel")];
        while let Some(dir) = pending.pop() {
            for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    pending.push(entry.path());
                } else if let Some(name) = module_name(&entry.file_name().to_string_lossy()) {
                    files.insert(name, entry.path());
                }
            }
        }
        let list = release_dir.join("modules.builtin");
        let built_in = fs::read_to_string(&list)
            .with_context(|| format!("read {}", list.display()))?
            .lines()
            .filter_map(|line| module_name(line.rsplit('/').next()?))
            .collect();
        Ok(Tree { files, built_in })
    }
}

/// `nvme-tcp.ko.xz` is the module `nvme_tcp`.
fn module_name(file: &str) -> Option<String> {
    let stem = file.strip_suffix(".xz").unwrap_or(file).strip_suffix(".ko")?;
    Some(stem.replace('-', "_"))
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|end| end == "xz") {
        let path = path.to_str().context("a module's path is not UTF-8")?;
        command_bytes("xz", &["--decompress", "--stdout", path])
    } else {
        fs::read(path).with_context(|| format!("read {}", path.display()))
    }
}

/// A module's information is a list of `key=value` that end with a zero byte.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module.get(at + KEY.len()..).unwrap_or_default();
    let value = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value)
        .split(',')
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{dependencies, module_name};

    #[test]
    fn a_module_tells_what_it_depends_on() {
        let module = b"\x7fELF..depends=no\0license=GPL\0depends=nvme-core,nvme_fabrics\0name=x\0";
        assert_eq!(dependencies(module), ["nvme_core", "nvme_fabrics"]);
        assert!(dependencies(b"\0depends=\0").is_empty());
    }

    #[test]
    fn a_module_is_named_by_its_file() {
        assert_eq!(module_name("nvme-tcp.ko.xz").as_deref(), Some("nvme_tcp"));
        assert_eq!(module_name("xfs.ko").as_deref(), Some("xfs"));
        assert_eq!(module_name("modules.order"), None);
    }
}
