//! The programs of a guest: found on this machine, with the shared libraries they load.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// What a guest can call besides busybox, and the package that has it.
const TOOLS: &[(&str, &str)] = &[
    // Not busybox's shell: that one prefers its own commands to those below.
    ("dash", "dash"),
    ("nvme", "nvme-cli"),
    ("fio", "fio"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_repair", "xfsprogs"),
    ("xfs_io", "xfsprogs"),
    ("xfs_growfs", "xfsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("resize2fs", "e2fsprogs"),
    ("blkdiscard", "util-linux"),
    ("fsfreeze", "util-linux"),
    ("wipefs", "util-linux"),
];

/// A program of this machine.
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
}

/// All tools a guest gets.
pub(super) fn tools() -> Result<Vec<Tool>> {
    TOOLS
        .iter()
        .map(|(name, package)| Ok(Tool { name, path: find_program(name, package)? }))
        .collect()
}

/// The one program that holds all simple commands, and needs no library.
pub(super) fn busybox() -> Result<PathBuf> {
    find_program("busybox", "busybox-static")
}

/// The names busybox answers to.
pub(super) fn applets(busybox: &Path) -> Result<Vec<String>> {
    let busybox = busybox.to_str().context("the path of busybox is not UTF-8")?;
    Ok(command_output(busybox, &["--list"])?.lines().map(str::to_owned).collect())
}

/// Looks where root would look, also when `PATH` has no `sbin`.
pub(super) fn find_program(name: &str, package: &str) -> Result<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{name} is not installed: `apt-get install {package}`"))
}

/// The shared libraries all these programs load, the dynamic loader among them.
pub(super) fn libraries(programs: &[&Path]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for program in programs {
        let program = program.to_str().context("a program's path is not UTF-8")?;
        let listing = command_output("ldd", &[program])?;
        found.extend(listing.lines().filter_map(library_of_line).map(PathBuf::from));
    }
    Ok(found)
}

/// `libz.so.1 => /lib/libz.so.1 (0x…)` or `/lib64/ld-linux.so.2 (0x…)`.
fn library_of_line(line: &str) -> Option<&str> {
    let line = line.trim();
    let path = line.split_once("=> ").map_or(line, |(_, path)| path);
    path.starts_with('/').then(|| path.split(' ').next()).flatten()
}

/// What the command printed; an error with what it complained about if it failed.
pub(super) fn command_output(program: &str, args: &[&str]) -> Result<String> {
    String::from_utf8(command_bytes(program, args)?)
        .with_context(|| format!("{program} printed something that is not UTF-8"))
}

/// As [`command_output`], for output that is not text.
pub(super) fn command_bytes(program: &str, args: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}: {}", args.join(" "), output.status, complaint.trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::library_of_line;

    #[test]
    fn ldd_names_libraries_in_two_ways() {
        let named = "\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f00)";
        assert_eq!(library_of_line(named), Some("/lib/x86_64-linux-gnu/libz.so.1"));
        let loader = "\t/lib64/ld-linux-x86-64.so.2 (0x00007f00)";
        assert_eq!(library_of_line(loader), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library_of_line("\tlinux-vdso.so.1 (0x00007f00)"), None);
        assert_eq!(library_of_line("\tstatically linked"), None);
    }
}
