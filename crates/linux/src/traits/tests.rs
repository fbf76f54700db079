//! Disks made of files.

use std::os::unix::fs::symlink;

use super::*;

struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        Machine { root: tempfile::tempdir().unwrap() }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, link: &str, to: &str) {
        let path = self.root.path().join(link);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(self.root.path().join(to), path).unwrap();
    }

    fn disk(&self, files: &[(&str, &str)]) -> DiskTraits {
        for (file, text) in files {
            self.write(&format!("sys/devices/sda/{file}"), text);
        }
        of_folder(&self.root.path().join("sys/devices/sda"))
    }

    /// The number of the file system that the files of this machine are on.
    fn own_number(&self) -> String {
        device_number(fs::metadata(self.root.path()).unwrap().dev())
    }

    fn traits_of_its_files(&self) -> DiskTraits {
        disk_traits(&Tree::at(self.root.path()), self.root.path())
    }
}

const FAST: &[(&str, &str)] = &[
    ("queue/logical_block_size", "512\n"),
    ("queue/physical_block_size", "4096\n"),
    ("queue/atomic_write_unit_max_bytes", "16384\n"),
    ("queue/write_cache", "write back\n"),
    ("queue/rotational", "0\n"),
];

#[test]
fn a_disk_says_how_it_writes() {
    let expected = DiskTraits {
        logical_block_size: 512,
        physical_block_size: 4096,
        atomic_write_unit: 16384,
        write_cache: WriteCache::Volatile,
        rotational: false,
    };
    assert_eq!(Machine::new().disk(FAST), expected);
}

/// The atomic write unit of a disk with these files.
fn check(files: &[(&str, &str)], expected: u32) {
    let found = Machine::new().disk(files);
    assert_eq!(found.atomic_write_unit, expected, "{files:?}");
}

#[test]
fn nothing_is_atomic_that_nobody_promised() {
    check(&[], 512);
    check(&[("queue/physical_block_size", "4096")], 4096);
    check(&[("queue/logical_block_size", "4096")], 4096);
    check(
        &[("queue/physical_block_size", "4096"), ("queue/atomic_write_unit_max_bytes", "0")],
        4096,
    );
    check(&[("queue/physical_block_size", "4096"), ("alignment_offset", "512")], 512);
    check(&[("queue/physical_block_size", "4096"), ("alignment_offset", "0")], 4096);
    // A stack whose parts are not aligned with each other.
    check(&[("queue/physical_block_size", "4096"), ("alignment_offset", "-1")], 512);
    check(&[("queue/logical_block_size", "4096"), ("loop/backing_file", "/disk.img")], 512);
    for strange in ["", "-1", "3000", "99999999999999999999", "64"] {
        check(&[("queue/physical_block_size", strange)], 512);
    }
}

#[test]
fn a_cache_that_nobody_spoke_of_is_unknown() {
    for (word, expected) in [
        ("write back", WriteCache::Volatile),
        ("write through", WriteCache::Protected),
        ("something else", WriteCache::Unknown),
    ] {
        assert_eq!(Machine::new().disk(&[("queue/write_cache", word)]).write_cache, expected);
    }
    assert_eq!(Machine::new().disk(&[]), DiskTraits::UNKNOWN);
}

#[test]
fn a_partition_that_is_not_aligned_has_smaller_units() {
    for (start, expected) in [("2048", 16384), ("8", 4096), ("63", 512), ("", 512)] {
        let machine = Machine::new();
        machine.disk(FAST);
        machine.write("sys/devices/sda/sda1/partition", "1");
        machine.write("sys/devices/sda/sda1/start", start);
        let found = of_folder(&machine.root.path().join("sys/devices/sda/sda1"));
        assert_eq!(found.atomic_write_unit, expected, "from {start}");
        assert_eq!(found.write_cache, WriteCache::Volatile);
    }
}

#[test]
fn a_mapped_device_promises_what_every_disk_below_it_does() {
    let machine = Machine::new();
    machine.disk(FAST);
    let crypt = |expected| {
        let found = of_folder(&machine.root.path().join("sys/devices/dm-0"));
        assert_eq!(found.atomic_write_unit, expected);
    };
    machine.write("sys/devices/dm-0/queue/logical_block_size", "4096");
    machine.link("sys/devices/dm-0/slaves/sda", "sys/devices/sda");
    crypt(4096);
    // Another disk with smaller sectors, below a second layer.
    machine.write("sys/devices/sdb/queue/logical_block_size", "512");
    machine.write("sys/devices/md0/queue/physical_block_size", "4096");
    machine.link("sys/devices/md0/slaves/sdb", "sys/devices/sdb");
    machine.link("sys/devices/dm-0/slaves/md0", "sys/devices/md0");
    crypt(512);
}

#[test]
fn a_file_has_the_traits_of_the_disk_below() {
    let machine = Machine::new();
    assert_eq!(machine.traits_of_its_files(), DiskTraits::UNKNOWN);
    machine.disk(FAST);
    let number = machine.own_number();
    if number.starts_with("0:") {
        machine.write(
            "proc/self/mountinfo",
            &format!("30 1 {number} / / rw shared:1 - btrfs /dev/sda rw\n"),
        );
        machine.write("dev/sda", "");
        machine.link("sys/class/block/sda", "sys/devices/sda");
    } else {
        machine.link(&format!("sys/dev/block/{number}"), "sys/devices/sda");
    }
    let found = machine.traits_of_its_files();
    assert_eq!(found.write_cache, WriteCache::Volatile);
    // No more than a block of the file system, whatever the disk could do.
    let block = file_system_block(machine.root.path()).min(16384);
    assert_eq!(found.atomic_write_unit, if number.starts_with("0:") { 512 } else { block });
    let of_small_blocks = of_file(&Tree::at(machine.root.path()), &number, 1024);
    assert!(of_small_blocks.atomic_write_unit <= 1024);
}

#[test]
fn a_file_system_without_a_disk_promises_nothing() {
    let machine = Machine::new();
    machine.write("proc/self/mountinfo", "30 1 0:99 / / rw - tmpfs tmpfs rw\n");
    assert_eq!(of_source(&Tree::at(machine.root.path()), "tmpfs"), DiskTraits::UNKNOWN);
    assert_eq!(Users::read(&Tree::at(machine.root.path())).source("0:99"), Some("tmpfs"));
    let none = machine.root.path().join("none");
    assert_eq!(disk_traits(&Tree::at(machine.root.path()), &none), DiskTraits::UNKNOWN);
}

#[test]
fn numbers_of_devices_are_unpacked() {
    for (packed, expected) in [(0x0800, "8:0"), (0x0811, "8:17"), (0x1000_1000_0305, "4099:65541")]
    {
        assert_eq!(device_number(packed), expected);
    }
}
