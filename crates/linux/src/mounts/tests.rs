//! Tables of made-up machines, and mounts on them.

use super::*;
use crate::testing::FakeKernel;

const TABLE: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,discard
30 21 259:0 / /var/lib/x\\040y rw,nosuid shared:7 master:2 - xfs /dev/nvme0n1 rw,attr2
31 21 259:0 /sub /srv/bound ro,nosuid master:7 - xfs /dev/nvme0n1 rw
32 21 0:45 / /proc rw - proc proc rw
a line that is none
";

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.write("proc/self/mountinfo", TABLE);
    kernel.device("nvme0n1", "259:0");
    kernel
}

fn number(text: &str) -> DeviceNumber {
    text.parse().unwrap()
}

#[test]
fn a_table_is_read() {
    let kernel = kernel();
    let table = MountTable::read(kernel.tree());
    assert_eq!(table.iter().count(), 4);
    let mount = table.at(Path::new("/var/lib/x y")).unwrap();
    assert_eq!((mount.filesystem.as_str(), mount.source.as_str()), ("xfs", "/dev/nvme0n1"));
    assert_eq!(mount.propagation, Propagation::Shared);
    assert!(!mount.is_read_only());
    let bound = table.at(Path::new("/srv/bound")).unwrap();
    assert_eq!((bound.root.as_path(), bound.propagation), (Path::new("/sub"), Propagation::Slave));
    assert!(bound.is_read_only());
    assert_eq!(table.of(number("259:0")).count(), 2);
    assert_eq!(table.below(Path::new("/srv")).len(), 1);
}

#[test]
fn a_mount_is_stale_when_its_device_is_gone() {
    let kernel = kernel();
    let table = MountTable::read(kernel.tree());
    let stale: Vec<_> = table.iter().filter(|mount| mount.is_stale(kernel.tree())).collect();
    // The disk of `/` has no entry in this machine; `/proc` never has a device.
    assert_eq!(stale.len(), 1);
    assert_eq!(stale[0].point, Path::new("/"));
}

#[test]
fn white_space_in_a_path_is_read_back() {
    for (text, path) in [
        ("/mnt/a\\040b", "/mnt/a b"),
        ("/mnt/a\\134b", "/mnt/a\\b"),
        ("/plain", "/plain"),
        ("/ends\\", "/ends\\"),
        ("/not\\9octal", "/not\\9octal"),
    ] {
        assert_eq!(unescaped(text), path);
    }
}

#[test]
fn options_are_flags_or_data() {
    let options = MountOptions::parse(["ro", "noatime", "rw", "discard", "noatime"]).unwrap();
    assert!(options.is_read_only());
    assert_eq!(options.flags(), MountFlags::RDONLY | MountFlags::NOATIME);
    assert_eq!(options.data, ["discard"]);
    for bad in ["", "a,b", "a b", "a\nb"] {
        let refused = MountOptions::parse([bad]).unwrap_err();
        assert!(refused.contains("not a mount option"), "{refused}");
    }
}

#[test]
fn a_device_is_mounted_once() {
    let kernel = kernel();
    kernel.device("loop3", "7:3");
    let ensure = |point: &str, options: &[&str]| {
        let options = MountOptions::parse(options.iter().copied()).unwrap();
        let device = (Path::new("/dev/loop3"), number("7:3"));
        ensure(&kernel, device, (Path::new(point), "ext4"), &options).map_err(|e| e.to_string())
    };
    assert_eq!(ensure("/mnt", &["noatime"]), Ok(Mounted::Now));
    assert_eq!(ensure("/mnt", &["noatime"]), Ok(Mounted::Before));
    assert_eq!(
        ensure("/mnt", &["ro"]),
        Err("cannot mount at /mnt: /dev/loop3 is mounted there already, writable".into())
    );
    assert_eq!(
        ensure("/srv/bound", &[]),
        Err("cannot mount at /srv/bound: /dev/nvme0n1 (xfs) is mounted there".into())
    );
    assert_eq!(release(&kernel, Path::new("/mnt")).unwrap(), 1);
    assert_eq!(release(&kernel, Path::new("/mnt")).unwrap(), 0);
}

#[test]
fn what_a_lost_device_left_is_replaced() {
    let kernel = kernel();
    kernel.device("loop3", "7:3");
    let device = (Path::new("/dev/loop3"), number("7:3"));
    let point = (Path::new("/var/lib/x y"), "xfs");
    kernel.remove_device("nvme0n1", "259:0");
    let mounted = ensure(&kernel, device, point, &MountOptions::default()).unwrap();
    assert_eq!(mounted, Mounted::Now);
    let table = MountTable::read(kernel.tree());
    assert_eq!(table.at(point.0).unwrap().source, "/dev/loop3");
    assert_eq!(table.iter().filter(|mount| mount.point == point.0).count(), 1);
}

#[test]
fn a_bind_mount_is_read_only_or_not_there() {
    let kernel = kernel();
    let (from, to) = (Path::new("/var/lib/x y"), Path::new("/pod"));
    kernel.fail_next("remount_bind", libc::EPERM);
    let refused = ensure_bind(&kernel, from, to, true).unwrap_err().to_string();
    assert!(refused.contains("cannot make read-only /pod: it is not permitted"), "{refused}");
    assert!(MountTable::read(kernel.tree()).at(to).is_none());
    assert_eq!(ensure_bind(&kernel, from, to, true).unwrap(), Mounted::Now);
    assert!(MountTable::read(kernel.tree()).at(to).unwrap().is_read_only());
    assert_eq!(ensure_bind(&kernel, from, to, true).unwrap(), Mounted::Before);
    let other = ensure_bind(&kernel, Path::new("/proc"), to, false).unwrap_err().to_string();
    assert_eq!(other, "cannot bind at /pod: /dev/nvme0n1 (xfs) is mounted there");
}

#[test]
fn a_bind_mount_that_becomes_read_only_keeps_its_other_flags() {
    let kernel = kernel();
    let (from, to) = (Path::new("/var/lib/x y"), Path::new("/pod"));
    let given = MountTable::read(kernel.tree()).at(from).unwrap().options.clone();
    assert!(given.iter().any(|option| option == "nosuid"), "{given:?}");
    ensure_bind(&kernel, from, to, true).unwrap();
    let calls = kernel.calls();
    let remounted = calls.iter().find(|call| call.starts_with("remount_bind")).unwrap();
    assert!(remounted.contains("NOSUID") && remounted.contains("RDONLY"), "{remounted}");
}

#[test]
fn a_log_that_cannot_be_replayed_read_only_is_said_so() {
    let kernel = kernel();
    kernel.device("loop3", "7:3");
    kernel.fail_next("mount", libc::EROFS);
    let device = (Path::new("/dev/loop3"), number("7:3"));
    let read_only = MountOptions::default().with("ro");
    let refused = ensure(&kernel, device, (Path::new("/m"), "ext4"), &read_only).unwrap_err();
    assert!(refused.to_string().contains("mount it writable once"), "{refused}");
}

#[test]
fn the_kernels_refusal_has_a_remedy() {
    let kernel = kernel();
    kernel.device("loop3", "7:3");
    let device = (Path::new("/dev/loop3"), number("7:3"));
    kernel.fail_next("mount", libc::ENODEV);
    let refused = ensure(&kernel, device, (Path::new("/m"), "btrfs"), &MountOptions::default());
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "cannot mount at /m; load it: modprobe btrfs");
    assert_eq!(refused.errno(), Some(libc::ENODEV));
}
