//! Stock kernels of Debian 12: which there are, and how one gets into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{cache::Cache, userland::command_output};

/// A kernel that Debian 12 ships.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// What Debian 12 installs by default. Built without `NVME_AUTH`, so no DH-HMAC-CHAP.
    V6_1,
    /// The newer series of Debian 12, with DH-HMAC-CHAP for host and target, ublk and TLS.
    V6_12,
}

impl Kernel {
    /// The package that always depends on the newest kernel of its series.
    fn metapackage(self) -> &'static str {
        match self {
            Kernel::V6_1 => "linux-image-amd64",
            Kernel::V6_12 => "linux-image-6.12-amd64",
        }
    }
}

/// A kernel in the cache.
pub(super) struct Unpacked {
    /// The package's name, for example `linux-image-6.1.0-54-amd64`.
    pub(super) package: String,
    /// The bootable kernel.
    pub(super) vmlinuz: PathBuf,
    /// `lib/modules/<release>`.
    pub(super) modules: PathBuf,
}

/// Takes the kernel out of the cache, or downloads and unpacks it first.
pub(super) fn unpacked(cache: &Cache, kernel: Kernel) -> Result<Unpacked> {
    let package = newest_package(kernel)?;
    let dir = cache.kernels().join(&package);
    if !dir.exists() {
        let _lock = cache.lock()?;
        if !dir.exists() {
            download(cache, &package, &dir)?;
        }
    }
    Ok(Unpacked {
        vmlinuz: only_entry(&dir.join("boot"), "vmlinuz-")?,
        modules: only_entry(&dir.join("lib/modules"), "")?,
        package,
    })
}

fn newest_package(kernel: Kernel) -> Result<String> {
    let meta = kernel.metapackage();
    let depends = command_output("apt-cache", &["depends", "--important", meta])
        .with_context(|| format!("look up {meta}; `apt-get update` may help"))?;
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .with_context(|| format!("{meta} depends on no kernel; `apt-get update` may help"))
}

fn download(cache: &Cache, package: &str, into: &Path) -> Result<()> {
    let work = cache.kernels().join(format!(".unpacking-{package}"));
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    }
    let tree = work.join("tree");
    fs::create_dir_all(&tree).with_context(|| format!("create {}", tree.display()))?;
    let script = "cd \"$1\" && apt-get -qq -o APT::Sandbox::User=root download \"$2\" \
                  && dpkg-deb --extract ./*.deb tree && rm -rf ./*.deb tree/usr";
    let work_arg = work.to_str().context("the cache's path is not UTF-8")?;
    command_output("sh", &["-c", script, "sh", work_arg, package])
        .with_context(|| format!("download {package}; `apt-get update` may help"))?;
    fs::rename(&tree, into).with_context(|| format!("move {package} into the cache"))?;
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))
}

fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!("{} should hold one {prefix}*; remove the directory", dir.display()),
    }
}
