//! File systems on the disk keep what was put into them.

use anyhow::Result;

use crate::lab::Lab;

/// XFS.
pub(super) fn xfs(lab: &mut Lab) -> Result<()> {
    keeps_files(lab, "mkfs.xfs -q -f", "xfs", "xfs_repair -n")
}

/// ext4.
pub(super) fn ext4(lab: &mut Lab) -> Result<()> {
    keeps_files(lab, "mkfs.ext4 -q -F", "ext4", "e2fsck -f -n")
}

/// Files big and small, some removed again, survive an unmount; the check finds nothing.
fn keeps_files(lab: &mut Lab, make: &str, kind: &str, check: &str) -> Result<()> {
    let disk = lab.connected_disk()?;
    lab.sh(&format!(
        "{make} {disk} >&2; mount -t {kind} {disk} /mnt; cd /mnt; \
         dd if=/dev/urandom of=big bs=1M count=16 2>&1; mkdir small gone; \
         for i in $(seq 64); do echo \"file $i\" > small/$i; echo $i > gone/$i; done; \
         cp big small/copy; rm -r gone; find . -type f | sort | xargs sha256sum > /tmp/sums; \
         cd /; umount /mnt; {check} {disk} >&2"
    ))?;
    lab.sh(&format!(
        "echo 3 > /proc/sys/vm/drop_caches; mount -t {kind} {disk} /mnt; cd /mnt; \
         sha256sum -c -s /tmp/sums; [ $(find . -type f | wc -l) = $(wc -l < /tmp/sums) ]; \
         fstrim /mnt; sha256sum -c -s /tmp/sums; cd /; umount /mnt; {check} {disk} >&2"
    ))?;
    Ok(())
}
