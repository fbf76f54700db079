//! The image a guest boots from: a kernel, and an initramfs with modules, programs and init.
//!
//! An initramfs is named after a digest of all that goes into it, so an old one is never used for
//! a new agent or a new tool.

use std::{
    fs,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result};

use super::{
    cache::Cache,
    cpio::Archive,
    kernel::{self, Kernel, Unpacked},
    modules::Modules,
    userland,
};

const INIT: &str = include_str!("guest/init.sh");
const MODPROBE: &str = include_str!("guest/modprobe.sh");
/// Changes whenever the choice of modules does.
const MODULES_SOURCE: &str = include_str!("modules.rs");

/// The files QEMU boots.
pub(super) struct Image {
    pub(super) vmlinuz: PathBuf,
    pub(super) initramfs: PathBuf,
}

impl Image {
    /// Takes the image out of the cache, or makes it.
    pub(super) fn ready(cache: &Cache, kernel: Kernel, agent: &Path) -> Result<Image> {
        let kernel = kernel::unpacked(cache, kernel)?;
        let programs = Programs::find(agent)?;
        let digest = digest(&kernel, &programs)?;
        let name = format!("{}-{digest:016x}.cpio", kernel.package);
        let initramfs = cache.images().join(name);
        if initramfs.exists() {
            // Its age says how long ago it was used.
            File::options()
                .append(true)
                .open(&initramfs)
                .and_then(|file| file.set_modified(SystemTime::now()))
                .with_context(|| format!("touch {}", initramfs.display()))?;
        } else {
            let _lock = cache.lock()?;
            if !initramfs.exists() {
                write_archive(&archive(&kernel, &programs)?, &initramfs)?;
            }
        }
        Ok(Image { vmlinuz: kernel.vmlinuz, initramfs })
    }
}

/// Programs and libraries of this machine that go into the guest.
struct Programs {
    busybox: PathBuf,
    /// Path in the guest, path on this machine.
    copies: Vec<(String, PathBuf)>,
}

impl Programs {
    fn find(agent: &Path) -> Result<Programs> {
        let tools = userland::tools()?;
        let mut copies = vec![("usr/bin/guest-agent".to_owned(), agent.to_owned())];
        copies
            .extend(tools.iter().map(|tool| (format!("usr/bin/{}", tool.name), tool.path.clone())));
        let dynamic: Vec<&Path> = copies.iter().map(|(_, from)| from.as_path()).collect();
        for library in userland::libraries(&dynamic)? {
            let name = library.to_str().context("a library's path is not UTF-8")?.to_owned();
            copies.push((name, library));
        }
        Ok(Programs { busybox: userland::busybox()?, copies })
    }
}

fn digest(kernel: &Unpacked, programs: &Programs) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    (INIT, MODPROBE, MODULES_SOURCE, &kernel.package).hash(&mut hasher);
    let busybox = [(String::new(), programs.busybox.clone())];
    for (name, from) in programs.copies.iter().chain(&busybox) {
        let found = fs::metadata(from).with_context(|| format!("look at {}", from.display()))?;
        (name, from, found.len(), found.modified()?).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn archive(kernel: &Unpacked, programs: &Programs) -> Result<Archive> {
    let mut archive = Archive::default();
    for dir in ["dev", "proc", "sys", "run", "tmp", "mnt", "root", "etc"] {
        archive.directory(dir);
    }
    // The kernel opens the console for init before any file system is mounted.
    archive.character_device("dev/console", 5, 1);
    archive.bytes("init", INIT);
    archive.file("bin/busybox", programs.busybox.clone());
    for applet in userland::applets(&programs.busybox)? {
        if applet != "busybox" {
            archive.symlink(&format!("bin/{applet}"), "/bin/busybox");
        }
    }
    archive.symlink("bin/sh", "/usr/bin/dash");
    for (path, from) in &programs.copies {
        archive.file(path, from.clone());
    }
    let modules = Modules::find(&kernel.modules)?;
    for (name, bytes) in modules.bytes {
        archive.bytes(&format!("modules/{name}.ko"), bytes);
    }
    for (name, list) in modules.needs {
        archive.bytes(&format!("modules/needs/{name}"), list);
    }
    for path in ["sbin/modprobe", "bin/modprobe"] {
        archive.bytes(path, MODPROBE);
    }
    Ok(archive)
}

fn write_archive(archive: &Archive, path: &Path) -> Result<()> {
    let unfinished = path.with_extension("unfinished");
    let file =
        File::create(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
    let mut out = BufWriter::new(file);
    archive.write(&mut out)?;
    out.flush().context("write the initramfs")?;
    fs::rename(&unfinished, path).with_context(|| format!("name {}", path.display()))
}
