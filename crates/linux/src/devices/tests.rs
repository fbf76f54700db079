//! Machines made of files.

use std::os::unix::fs::symlink;

use super::*;

const GIB: u64 = (1 << 30) / SECTOR;

struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/class/block")).unwrap();
        Machine { root }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, link: &str, to: &str) {
        let path = self.root.path().join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// A device with some files in its folder, below that of `parent` if it is a partition.
    fn device(&self, name: &str, parent: Option<&str>, files: &[(&str, &str)]) {
        let place = parent.map_or(name.to_owned(), |parent| format!("{parent}/{name}"));
        for (file, text) in files {
            self.write(&format!("sys/devices/{place}/{file}"), text);
        }
        self.link(&format!("sys/class/block/{name}"), &format!("../../devices/{place}"));
    }

    fn disk(&self, name: &str, sectors: u64, more: &[(&str, &str)]) {
        let size = sectors.to_string();
        let files = [("size", size.as_str()), ("queue/logical_block_size", "4096\n")];
        self.device(name, None, &[&files, more].concat());
    }

    fn list(&self) -> Vec<BlockDevice> {
        let tree = Tree::at(self.root.path());
        block_devices(&tree, Size::gib(1), |path| {
            let text = fs::read_to_string(path).ok()?;
            text.starts_with("XFSB").then(|| IneligibleReason::FileSystem { name: "XFS".into() })
        })
    }

    fn only(&self) -> BlockDevice {
        let mut found = self.list();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

/// What keeps a disk with these files from being used.
fn check(files: &[(&str, &str)], expected: &[IneligibleReason]) {
    let machine = Machine::new();
    machine.disk("sda", 4 * GIB, files);
    assert_eq!(machine.only().obstacles, expected, "{files:?}");
}

#[test]
fn an_empty_disk_is_described_and_usable() {
    let machine = Machine::new();
    machine.disk(
        "nvme0n1",
        8 * GIB,
        &[("device/model", "Fast 9000  \n"), ("device/serial", "S1\n"), ("queue/rotational", "0")],
    );
    for name in ["by-path/pci-1", "by-id/nvme-eui.1"] {
        machine.link(&format!("dev/disk/{name}"), "../../nvme0n1");
    }
    let found = machine.only();
    assert!(found.is_usable());
    assert_eq!(found.path.as_str(), "/dev/nvme0n1");
    let links: Vec<_> = found.links.iter().map(DevicePath::as_str).collect();
    assert_eq!(links, ["/dev/disk/by-id/nvme-eui.1", "/dev/disk/by-path/pci-1"]);
    assert_eq!((found.size, found.traits.logical_block_size), (Size::gib(8), 4096));
    assert_eq!((found.model.as_deref(), found.serial.as_deref()), (Some("Fast 9000"), Some("S1")));
    assert_eq!((found.kind, found.traits.rotational), (DeviceKind::Disk, false));
}

#[test]
fn what_the_kernel_says_keeps_a_disk_from_being_used() {
    check(&[], &[]);
    check(&[("ro", "1")], &[IneligibleReason::ReadOnly]);
    check(&[("holders/md0/x", "")], &[IneligibleReason::Held { by: "md0".into() }]);
    check(&[("sda1/partition", "1")], &[IneligibleReason::Partitioned]);
    let own = Nqn::volume("6f5a1a3c-5d63-4e0c-8f43-35d4f1d0a111".parse().unwrap());
    check(&[("device/subsysnqn", own.as_str())], &[IneligibleReason::OwnVolume]);
    check(&[("device/subsysnqn", "nqn.2019-08.org.other:disk")], &[]);
}

#[test]
fn who_uses_it_is_told() {
    let machine = Machine::new();
    machine.disk("sda", 4 * GIB, &[("dev", "8:0\n")]);
    machine.disk("sdb", 4 * GIB, &[("dev", "8:16\n")]);
    machine.write("proc/self/mountinfo", "30 1 8:0 / /mnt/a\\040b rw - xfs /dev/sda rw\n");
    machine.write("proc/swaps", "Filename Type Size\n/dev/sdb partition 1\n");
    let obstacles: Vec<_> = machine.list().into_iter().map(|device| device.obstacles).collect();
    let mounted = IneligibleReason::Mounted { path: "/mnt/a b".into() };
    assert_eq!(obstacles, [vec![mounted], vec![IneligibleReason::Held { by: "swap".into() }]]);
}

#[test]
fn contents_are_looked_at_only_where_nothing_else_forbids_it() {
    let machine = Machine::new();
    machine.disk("sda", 4 * GIB, &[]);
    machine.disk("sdb", 4 * GIB, &[("ro", "1")]);
    machine.write("dev/sda", "XFSB");
    machine.write("dev/sdb", "XFSB");
    let obstacles: Vec<_> = machine.list().into_iter().map(|device| device.obstacles).collect();
    let xfs = IneligibleReason::FileSystem { name: "XFS".into() };
    assert_eq!(obstacles, [vec![xfs], vec![IneligibleReason::ReadOnly]]);
}

#[test]
fn a_partition_is_like_its_disk_but_smaller() {
    let machine = Machine::new();
    machine.disk("sda", 4 * GIB, &[("device/model", "M"), ("queue/rotational", "1")]);
    machine.device("sda1", Some("sda"), &[("size", "100"), ("partition", "1")]);
    let found = machine.list();
    let [disk, part] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(disk.obstacles, [IneligibleReason::Partitioned]);
    assert_eq!(part.obstacles, [IneligibleReason::TooSmall]);
    assert_eq!((part.kind, part.traits.logical_block_size), (DeviceKind::Partition, 4096));
    assert_eq!((part.model.as_deref(), part.traits.rotational), (Some("M"), true));
    assert_eq!(part.parent.as_ref().map(DevicePath::as_str), Some("/dev/sda"));
}

#[test]
fn what_is_no_disk_is_left_out() {
    let machine = Machine::new();
    for name in ["ram0", "zram1", "sr0", "fd0"] {
        machine.disk(name, 4 * GIB, &[]);
    }
    machine.disk("loop0", 0, &[]);
    machine.disk("nvme0c0n1", 4 * GIB, &[("hidden", "1")]);
    machine.disk("sda", 4 * GIB, &[("size", "not a number")]);
    assert_eq!(machine.list(), []);
    machine.disk("loop1", 4 * GIB, &[]);
    machine.device("dm-0", None, &[("size", "8388608"), ("dm/name", "lv")]);
    let kinds: Vec<_> = machine.list().into_iter().map(|device| device.kind).collect();
    assert_eq!(kinds, [DeviceKind::Composed, DeviceKind::Loop]);
}

#[test]
fn a_machine_without_anything_has_no_disks() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(block_devices(&Tree::at(root.path()), Size::gib(1), |_| None), []);
}
