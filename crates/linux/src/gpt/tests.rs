use super::*;
use crate::testing::FakeKernel;

const DISK: &str = "/dev/nvme0n1";
const OURS: &str = "6f1d0a57-1122-4000-8000-000000000001";
const LABEL: &str = "ours";

/// A disk of 64 MiB with a partition of somebody else.
fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.write(DISK, "");
    let mut file = kernel.open_table(Path::new(DISK)).unwrap();
    file.set_len(64 << 20).unwrap();
    make_table(&mut file, 512).unwrap();
    let other = ("6f1d0a57-1122-4000-8000-00000000000f", "home");
    create(&kernel, Path::new(DISK), other, 8 << 20).unwrap();
    kernel
}

#[test]
fn a_partition_is_made_grown_and_removed_and_a_repetition_changes_nothing() {
    let (kernel, disk) = (machine(), Path::new(DISK));
    for _ in 0..2 {
        create(&kernel, disk, (OURS, LABEL), 4 << 20).unwrap();
    }
    let found = layout(&kernel, disk).unwrap();
    assert_eq!(found.partitions.len(), 2);
    let made = &found.partitions[1];
    assert_eq!((made.uuid.as_str(), made.bytes, made.start % ALIGNMENT), (OURS, 4 << 20, 0));
    for _ in 0..2 {
        grow(&kernel, disk, (OURS, LABEL), 6 << 20).unwrap();
    }
    assert_eq!(layout(&kernel, disk).unwrap().partitions[1].bytes, 6 << 20);
    for _ in 0..2 {
        remove(&kernel, disk, OURS, &[LABEL]).unwrap();
    }
    assert_eq!(layout(&kernel, disk).unwrap().partitions.len(), 1);
}

#[test]
fn a_partition_with_another_label_is_never_changed() {
    let (kernel, disk) = (machine(), Path::new(DISK));
    let before = std::fs::read(kernel.file(DISK)).unwrap();
    let other = "6f1d0a57-1122-4000-8000-00000000000f";
    let refused = remove(&kernel, disk, other, &[LABEL]).unwrap_err().to_string();
    assert!(refused.contains("not ours"), "{refused}");
    assert!(grow(&kernel, disk, (other, LABEL), 16 << 20).is_err());
    assert!(relabel(&kernel, disk, other, (LABEL, "x")).is_err());
    assert_eq!(std::fs::read(kernel.file(DISK)).unwrap(), before);
}

#[test]
fn a_disk_without_a_table_or_without_room_is_refused_and_not_changed() {
    let kernel = FakeKernel::new();
    kernel.write(DISK, vec![0x55; 1 << 20]);
    let refused = create(&kernel, Path::new(DISK), (OURS, LABEL), 1 << 20).unwrap_err();
    assert!(refused.to_string().contains("only disks with a GPT"), "{refused}");
    assert_eq!(std::fs::read(kernel.file(DISK)).unwrap(), vec![0x55; 1 << 20]);
    let kernel = machine();
    let refused = create(&kernel, Path::new(DISK), (OURS, LABEL), 1 << 30).unwrap_err();
    assert!(refused.to_string().contains("no free region"), "{refused}");
}

#[test]
fn a_partition_in_use_is_not_removed_from_the_table() {
    let (kernel, disk) = (machine(), Path::new(DISK));
    create(&kernel, disk, (OURS, LABEL), 4 << 20).unwrap();
    kernel.fail_next("change_partition", libc::EBUSY);
    assert!(remove(&kernel, disk, OURS, &[LABEL]).is_err());
    assert_eq!(layout(&kernel, disk).unwrap().partitions.len(), 2);
}

#[test]
fn uuids_are_written_as_the_table_has_them() {
    let bytes = uuid_bytes("a19d880f-05fc-4d3b-a006-743f0f84911e").unwrap();
    assert_eq!(bytes, LINUX_RAID);
    assert_eq!(uuid_text(bytes), "a19d880f-05fc-4d3b-a006-743f0f84911e");
    assert_eq!(uuid_bytes("xyz"), None);
    assert_eq!(device(Path::new("/dev/nvme0n1"), 3), Path::new("/dev/nvme0n1p3"));
    assert_eq!(device(Path::new("/dev/vda"), 3), Path::new("/dev/vda3"));
}
