//! Devices of made-up machines, and of this one where its tools are.

use std::fs;
use std::process::Command;

use super::*;
use crate::testing::FakeKernel;

const SIZE: usize = 4 << 20;

fn machine(content: &[(usize, &[u8])]) -> FakeKernel {
    let kernel = FakeKernel::new();
    let mut bytes = vec![0; SIZE];
    for (at, mark) in content {
        bytes[*at..at + mark.len()].copy_from_slice(mark);
    }
    kernel.write("dev/sda", bytes);
    kernel.tool("mkfs.xfs", |_| ToolOutput { code: Some(0), text: String::new() });
    kernel
}

fn content(marks: &[(usize, &[u8])]) -> Content {
    probe(&machine(marks), Path::new("/dev/sda")).unwrap()
}

#[test]
fn only_zeros_are_empty() {
    assert_eq!(content(&[]), Content::Empty);
    assert_eq!(content(&[(0, b"x")]), Content::Unknown);
    assert_eq!(content(&[(SIZE - 1, b"x")]), Content::Unknown);
    assert_eq!(content(&[(1 << 19, b"x")]), Content::Unknown);
    assert_eq!(content(&[(512, b"LABELONE")]), Content::Known("an LVM physical volume"));
    assert_eq!(content(&[(1080, b"\x53\xef")]), Content::Known("ext2 or ext3"));
    let ext4 = content(&[(1080, b"\x53\xef"), (1120, b"\x40"), (1128, &[0xab; 16])]);
    let uuid = "abababab-abab-abab-abab-abababababab".to_owned();
    assert_eq!(ext4, Content::Filesystem { kind: FilesystemKind::Ext4, uuid });
}

#[test]
fn what_is_not_empty_is_not_formatted() {
    for marks in [&[(0, &b"XFSB"[..])][..], &[(SIZE - 512, b"EFI PART")], &[(700_000, b"row 1")]] {
        let kernel = machine(marks);
        let refused = format(&kernel, Path::new("/dev/sda"), FilesystemKind::Xfs, &[]);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.starts_with("cannot format /dev/sda: it holds "), "{refused}");
        assert!(!kernel.calls().iter().any(|call| call.starts_with("mkfs")), "{marks:?}");
    }
    let kernel = machine(&[]);
    format(&kernel, Path::new("/dev/sda"), FilesystemKind::Xfs, &["-m", "reflink=0"]).unwrap();
    let calls = kernel.calls();
    assert_eq!(calls.last().unwrap(), "mkfs.xfs -q -K -m reflink=0 /dev/sda");
}

#[test]
fn a_device_that_cannot_be_read_is_not_empty() {
    let kernel = machine(&[]);
    kernel.fail_next("read_device", libc::EIO);
    let refused = format(&kernel, Path::new("/dev/sda"), FilesystemKind::Xfs, &[]).unwrap_err();
    let text = refused.to_string();
    assert!(text.starts_with("cannot read /dev/sda: the device failed"), "{text}");
}

#[test]
fn a_missing_or_failing_tool_is_named() {
    let kernel = machine(&[]);
    let device = Path::new("/dev/sda");
    let missing = format(&kernel, device, FilesystemKind::Btrfs, &[]).unwrap_err().to_string();
    assert_eq!(missing, "cannot format /dev/sda; install btrfs-progs, which has mkfs.btrfs");
    kernel
        .tool("mkfs.btrfs", |_| ToolOutput { code: Some(1), text: "ERROR: too small\n\n".into() });
    let failed = format(&kernel, device, FilesystemKind::Btrfs, &[]).unwrap_err().to_string();
    assert_eq!(
        failed,
        "cannot format /dev/sda: mkfs.btrfs ended with exit code 1: ERROR: too small"
    );
}

#[test]
fn checks_tell_clean_from_repaired_from_damaged() {
    let kernel = machine(&[]);
    for (code, expected) in [(0, Ok(Checked::Clean)), (1, Ok(Checked::Repaired)), (4, Err(()))] {
        kernel.tool("e2fsck", move |_| ToolOutput { code: Some(code), text: "said".into() });
        let found = check(&kernel, Path::new("/dev/sda"), FilesystemKind::Ext4);
        assert_eq!(found.map_err(drop), expected);
    }
}

#[test]
fn xfs_replays_its_log_before_it_gets_a_new_uuid() {
    let kernel = machine(&[]);
    kernel.device("sda", "8:0");
    kernel.tool("xfs_admin", |_| ToolOutput { code: Some(0), text: String::new() });
    let device = (Path::new("/dev/sda"), "8:0".parse().unwrap());
    let uuid = "00000000-0000-0000-0000-000000000001";
    set_uuid(&kernel, device, (FilesystemKind::Xfs, uuid), Path::new("/scratch")).unwrap();
    let calls = kernel.calls();
    assert_eq!(calls[0], "mount /dev/sda /scratch xfs nouuid");
    assert!(calls[1].starts_with("unmount /scratch"), "{calls:?}");
    assert_eq!(calls[2], format!("xfs_admin -U {uuid} /dev/sda"));
}

/// What the tools of this machine really write is recognised; those that are missing are tried by
/// the lanes that install them.
#[test]
fn real_file_systems_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    for (kind, tool, arguments) in [
        (FilesystemKind::Ext4, "mkfs.ext4", &["-q", "-F"][..]),
        (FilesystemKind::Xfs, "mkfs.xfs", &["-q"]),
        (FilesystemKind::Btrfs, "mkfs.btrfs", &["-q"]),
    ] {
        let file = folder.path().join(kind.name());
        fs::File::create(&file).unwrap().set_len(320 << 20).unwrap();
        let Ok(made) = Command::new(tool).args(arguments).arg(&file).output() else { continue };
        assert!(made.status.success(), "{made:?}");
        let kernel = FakeKernel::new();
        kernel.link("dev/disk", file.to_str().unwrap());
        let found = probe(&kernel, Path::new("/dev/disk")).unwrap();
        assert!(matches!(found, Content::Filesystem { kind: is, .. } if is == kind), "{found}");
    }
}
