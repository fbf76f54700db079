//! `cargo xtask image`: container images as OCI archives, without a container engine.
//!
//! The same files give the same archive, byte by byte: entries are sorted, times are zero, owners
//! are root, and nothing is compressed.

mod archive;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use archive::{Archive, Kind};

/// Programs of the system that the roles start; `chown` prepares the directory of the store.
const TOOLS: &[&str] = &[
    "btrfs",
    "chown",
    "e2fsck",
    "mkfs.btrfs",
    "mkfs.ext4",
    "mkfs.xfs",
    "resize2fs",
    "sh",
    "tune2fs",
    "xfs_admin",
    "xfs_db",
    "xfs_growfs",
    "xfs_repair",
];

/// Directories of Debian that are links since `/usr` was merged.
const MERGED: &[&str] = &["bin", "lib", "lib64", "sbin"];

/// An image in the making: what it contains, and what it runs.
pub(crate) struct Image {
    name: String,
    entrypoint: Vec<String>,
    files: BTreeMap<String, Entry>,
}

enum Entry {
    Directory { mode: u32 },
    Bytes { bytes: Vec<u8>, mode: u32 },
    Link { to: String },
}

impl Image {
    /// An image with this name, such as `holdfast:0.1.0`, that has only directories.
    pub(crate) fn new(name: &str, entrypoint: &[&str]) -> Image {
        let entrypoint = entrypoint.iter().map(|&word| word.to_owned()).collect();
        let mut image = Image { name: name.to_owned(), entrypoint, files: BTreeMap::new() };
        for name in MERGED {
            image.directory(&format!("usr/{name}"), 0o755);
            image.files.insert((*name).to_owned(), Entry::Link { to: format!("usr/{name}") });
        }
        for name in ["dev", "etc", "proc", "run", "sys", "var"] {
            image.directory(name, 0o755);
        }
        image.directory("tmp", 0o1777);
        image.text("etc/nsswitch.conf", "hosts: files dns\n");
        image.text("etc/passwd", "root:x:0:0:root:/:/bin/sh\nholdfast:x:65532:65532::/:/bin/sh\n");
        image.text("etc/group", "root:x:0:\nholdfast:x:65532:\n");
        image
    }

    fn directory(&mut self, path: &str, mode: u32) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent, 0o755);
        }
        self.files.entry(path.to_owned()).or_insert(Entry::Directory { mode });
    }

    fn text(&mut self, path: &str, text: &str) {
        let (bytes, mode) = (text.as_bytes().to_vec(), 0o644);
        self.files.insert(path.to_owned(), Entry::Bytes { bytes, mode });
    }

    /// A file of this machine under another name, with the libraries it is linked with.
    pub(crate) fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        self.file(from, to)?;
        for library in libraries(from)? {
            let to = library.to_str().context("a library with an odd path")?;
            self.file(&library, to)?;
        }
        Ok(())
    }

    /// A program of this machine, found as the shell finds it.
    fn tool(&mut self, name: &str) -> Result<()> {
        let found = ["/usr/sbin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(name));
        let path = found.into_iter().find(|path| path.exists());
        let path = path.with_context(|| format!("{name} is not installed on this machine"))?;
        let to = path.to_str().context("a program with an odd path")?.to_owned();
        self.program(&path, &to)
    }

    /// Links are followed: the image has the file itself, where `/usr` is merged.
    fn file(&mut self, from: &Path, to: &str) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mode = fs::metadata(from)?.permissions().mode() & 0o111;
        let mode = if mode == 0 { 0o644 } else { 0o755 };
        let to = to.trim_start_matches('/');
        let first = to.split('/').next().unwrap_or_default();
        let to = if MERGED.contains(&first) { format!("usr/{to}") } else { to.to_owned() };
        if let Some((parent, _)) = to.rsplit_once('/') {
            self.directory(parent, 0o755);
        }
        self.files.insert(to, Entry::Bytes { bytes, mode });
        Ok(())
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut archive = Archive::default();
        for (path, entry) in &self.files {
            match entry {
                Entry::Directory { mode } => archive.add(path, Kind::Directory, *mode)?,
                Entry::Bytes { bytes, mode } => archive.add(path, Kind::File(bytes), *mode)?,
                Entry::Link { to } => archive.add(path, Kind::Link(to), 0o777)?,
            }
        }
        Ok(archive.finish())
    }

    /// Writes the archive.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let layer = self.layer()?;
        let config = json!({
            "architecture": architecture()?,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "WorkingDir": "/",
            },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        });
        let config = serde_json::to_vec(&config)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": blob("application/vnd.oci.image.config.v1+json", &config),
            "layers": [blob("application/vnd.oci.image.layer.v1.tar", &layer)],
        });
        let manifest = serde_json::to_vec(&manifest)?;
        let mut described = blob("application/vnd.oci.image.manifest.v1+json", &manifest);
        let tag = self.name.rsplit_once(':').context("an image has a name and a tag")?.1;
        described["platform"] = json!({ "architecture": architecture()?, "os": "linux" });
        described["annotations"] = json!({
            "io.containerd.image.name": self.name,
            "org.opencontainers.image.ref.name": tag,
        });
        let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [described] }))?;
        let mut archive = Archive::default();
        for dir in ["blobs", "blobs/sha256"] {
            archive.add(dir, Kind::Directory, 0o755)?;
        }
        for bytes in [&config, &manifest, &layer] {
            let name = digest(bytes).replace(':', "/");
            archive.add(&format!("blobs/{name}"), Kind::File(bytes), 0o644)?;
        }
        archive.add("index.json", Kind::File(&index), 0o644)?;
        let layout = br#"{"imageLayoutVersion":"1.0.0"}"#;
        archive.add("oci-layout", Kind::File(layout), 0o644)?;
        // Written beside its place and moved there when whole.
        let parent = path.parent().context("an archive is a file in a directory")?;
        fs::create_dir_all(parent)?;
        let part = path.with_extension("part");
        fs::write(&part, archive.finish())
            .with_context(|| format!("cannot write {}", part.display()))?;
        fs::rename(&part, path).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The image of all roles.
pub(crate) fn holdfast(binary: &Path, name: &str, output: &Path) -> Result<()> {
    let mut image = Image::new(name, &["/usr/bin/holdfast"]);
    // Debug information is of no use there.
    let stripped = output.with_extension("stripped");
    fs::create_dir_all(output.parent().context("an archive is a file in a directory")?)?;
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(binary).status();
    ensure!(strip.context("cannot run strip (binutils)")?.success(), "strip failed");
    let done = (|| {
        image.program(&stripped, "/usr/bin/holdfast")?;
        for tool in TOOLS {
            image.tool(tool)?;
        }
        let settings = Path::new("/etc/mke2fs.conf");
        if settings.exists() {
            image.file(settings, "/etc/mke2fs.conf")?;
        }
        image.write(output)
    })();
    fs::remove_file(&stripped)?;
    done
}

/// The libraries that the dynamic linker loads for a program; none for scripts and static ones.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let other = said.contains("not a dynamic executable") || text.contains("not a dynamic");
        ensure!(other, "ldd {}: {said}", program.display());
        return Ok(Vec::new());
    }
    text.lines().filter_map(|line| library(line).transpose()).collect()
}

/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, or the path alone for the linker itself.
fn library(line: &str) -> Result<Option<PathBuf>> {
    let line = line.trim();
    ensure!(!line.ends_with("not found"), "a library is missing: {line}");
    let path = line.split_once("=> ").map_or(line, |(_, path)| path);
    let path = path.split(" (").next().unwrap_or_default();
    Ok(path.starts_with('/').then(|| PathBuf::from(path)))
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("images are not made for {other}"),
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex: Vec<_> = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", hex.concat())
}

fn blob(media: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media, "digest": digest(bytes), "size": bytes.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_archive() {
        let dir = std::env::temp_dir().join(format!("holdfast-image-{}", std::process::id()));
        let [first, second] = ["first.tar", "second.tar"].map(|name| {
            let mut image = Image::new("test:1", &["/bin/sh"]);
            image.tool("sh").unwrap();
            let path = dir.join(name);
            image.write(&path).unwrap();
            fs::read(path).unwrap()
        });
        fs::remove_dir_all(&dir).unwrap();
        assert!(first == second && first.len() > 100_000, "{} bytes", first.len());
        let listed = String::from_utf8_lossy(&first);
        for part in ["oci-layout", "index.json", "usr/bin/sh", "libc.so.6"] {
            assert!(listed.contains(part), "{part}");
        }
    }

    #[test]
    fn libraries_are_read_from_what_ldd_says() {
        let check = |line: &str, wanted: Option<&str>| {
            assert_eq!(library(line).unwrap(), wanted.map(PathBuf::from), "{line}");
        };
        check("\tlinux-vdso.so.1 (0x00007ffd)", None);
        check("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)", Some("/lib/x/libc.so.6"));
        check("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", Some("/lib64/ld-linux-x86-64.so.2"));
        assert!(library("\tlibfoo.so => not found").is_err());
    }
}
