//! An archive in the "newc" format, which the kernel unpacks as its first root.
//!
//! Parents are added on their own and come before their children; times are zero, so that equal
//! input gives equal bytes. Not here: hard links, owners other than root.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::PathBuf,
};

use anyhow::{Context, Result};

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const SYMLINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

enum Entry {
    Directory,
    Bytes(Vec<u8>),
    File(PathBuf),
    Symlink(String),
    Device { major: u32, minor: u32 },
}

/// What goes into the archive, by absolute path in the guest without the leading slash.
#[derive(Default)]
pub(super) struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    pub(super) fn directory(&mut self, path: &str) {
        self.add(path, Entry::Directory);
    }

    /// A file (executable, which harms no data file) with these bytes.
    pub(super) fn bytes(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.add(path, Entry::Bytes(bytes.into()));
    }

    /// A copy of a file of this machine, read when the archive is written.
    pub(super) fn file(&mut self, path: &str, from: PathBuf) {
        self.add(path, Entry::File(from));
    }

    pub(super) fn symlink(&mut self, path: &str, to: &str) {
        self.add(path, Entry::Symlink(to.to_owned()));
    }

    pub(super) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.add(path, Entry::Device { major, minor });
    }

    fn add(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        let mut end = 0;
        while let Some(next) = path.get(end..).and_then(|rest| rest.find('/')) {
            end += next;
            if let Some(parent) = path.get(..end) {
                self.entries.entry(parent.to_owned()).or_insert(Entry::Directory);
            }
            end += 1;
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// Writes the whole archive.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<()> {
        for (inode, (path, entry)) in (1..).zip(&self.entries) {
            let from_file;
            let (mode, body, device): (u32, &[u8], (u32, u32)) = match entry {
                Entry::Directory => (DIRECTORY, &[], (0, 0)),
                Entry::Bytes(bytes) => (PROGRAM, bytes, (0, 0)),
                Entry::File(from) => {
                    from_file =
                        fs::read(from).with_context(|| format!("read {}", from.display()))?;
                    (PROGRAM, &from_file, (0, 0))
                }
                Entry::Symlink(to) => (SYMLINK, to.as_bytes(), (0, 0)),
                Entry::Device { major, minor } => (CHARACTER_DEVICE, &[], (*major, *minor)),
            };
            write_member(out, &Member { inode, mode, device, path, body })
                .with_context(|| format!("archive {path}"))?;
        }
        let end = Member { inode: 0, mode: 0, device: (0, 0), path: "TRAILER!!!", body: &[] };
        write_member(out, &end).context("end the archive")
    }
}

struct Member<'a> {
    inode: u32,
    mode: u32,
    device: (u32, u32),
    path: &'a str,
    body: &'a [u8],
}

fn write_member(out: &mut impl Write, member: &Member) -> io::Result<()> {
    let size = u32::try_from(member.body.len()).map_err(io::Error::other)?;
    let name_size = u32::try_from(member.path.len() + 1).map_err(io::Error::other)?;
    // Order of the fields: inode, mode, user, group, links, time, size, device of the archive (two
    // numbers), device described (two numbers), length of the name, checksum (unused).
    let (major, minor) = member.device;
    let fields = [member.inode, member.mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
    out.write_all(b"070701")?;
    for field in fields {
        write!(out, "{field:08X}")?;
    }
    out.write_all(member.path.as_bytes())?;
    out.write_all(b"\0")?;
    out.write_all(padding(6 + 8 * 13 + member.path.len() + 1))?;
    out.write_all(member.body)?;
    out.write_all(padding(member.body.len()))
}

fn padding(written: usize) -> &'static [u8] {
    &[0; 3][..(4 - written % 4) % 4]
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, process::Stdio};

    use super::Archive;

    /// The system's own `cpio` reads back what was put in, with parents before children.
    #[test]
    fn cpio_reads_the_archive() {
        let mut archive = Archive::default();
        archive.bytes("a/b/file", *b"12345");
        archive.symlink("a/link", "b/file");
        archive.directory("empty");
        let mut bytes = Vec::new();
        archive.write(&mut bytes).unwrap();

        let mut cpio = std::process::Command::new("cpio")
            .args(["--list", "--verbose", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Debian's package cpio is installed");
        cpio.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = cpio.wait_with_output().unwrap();
        assert!(output.status.success());
        let listing = String::from_utf8(output.stdout).unwrap();
        let seen: Vec<(&str, &str)> = listing
            .lines()
            .map(|line| {
                let mut fields = line.split_whitespace();
                let mode = fields.next().unwrap();
                (mode, fields.nth(7).unwrap())
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("drwxr-xr-x", "a"),
                ("drwxr-xr-x", "a/b"),
                ("-rwxr-xr-x", "a/b/file"),
                ("lrwxrwxrwx", "a/link"),
                ("drwxr-xr-x", "empty"),
            ]
        );
    }
}
