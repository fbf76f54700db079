//! What was written is read.

use anyhow::{Result, bail};

use crate::lab::{Lab, Way};

/// Jobs side by side, each in its own part of the disk: sizes from 4 KiB to 1 MiB, both orders.
const VERIFY: &str = "fio --thread --direct=1 --ioengine=libaio --group_reporting \
    --verify=crc32c --verify_fatal=1 --minimal \
    --name=random-4k --rw=randwrite --bs=4k --iodepth=32 --offset=0 --size=4m \
    --name=random-64k --rw=randwrite --bs=64k --iodepth=8 --offset=16m --size=8m \
    --name=random-mixed --rw=randwrite --bsrange=4k-1m --iodepth=8 --offset=32m --size=16m \
    --name=sequential-4k --rw=write --bs=4k --iodepth=16 --offset=64m --size=2m \
    --name=sequential-1m --rw=write --bs=1m --iodepth=4 --offset=96m --size=32m";

/// Random and sequential writes, verified.
pub(super) fn fio_verifies(lab: &mut Lab) -> Result<()> {
    let disk = lab.connected_disk()?;
    lab.sh(&format!("{VERIFY} --filename={disk}")).map(drop)
}

/// The same with header and data digests on the wire.
pub(super) fn fio_verifies_with_digests(lab: &mut Lab) -> Result<()> {
    lab.connect(Way::First, "--hdr-digest --data-digest")?;
    let disk = lab.disk()?;
    lab.sh(&format!("{VERIFY} --filename={disk}")).map(drop)
}

/// Blocks are trimmed, written again and verified in a random order, beside others that are not.
pub(super) fn fio_verifies_with_trim(lab: &mut Lab) -> Result<()> {
    let disk = lab.connected_disk()?;
    lab.sh(&format!(
        "fio --thread --direct=1 --ioengine=libaio --iodepth=16 --group_reporting --minimal \
         --filename={disk} --verify=crc32c --verify_fatal=1 --size=4m \
         --name=trimmed --rw=randtrimwrite --bs=4k --offset=4m \
         --name=before --rw=randwrite --bs=8k --offset=0 \
         --name=after --rw=randwrite --bs=16k --offset=8m"
    ))
    .map(drop)
}

/// `blkdiscard` and `blkdiscard --zeroout` empty what they are told to, and only that.
pub(super) fn discard(lab: &mut Lab) -> Result<()> {
    let disk = lab.connected_disk()?;
    for how in ["", "--zeroout"] {
        // A discard may leave the bytes alone, unless the namespace says that it zeroes them.
        let id = lab.json(&format!("nvme id-ns {disk} -o json"))?;
        let zeroes_after_discard = id["dlfeat"].as_u64().unwrap_or_default() & 0b111 == 1;
        let script = format!(
            "dd if=/dev/urandom of=/tmp/sample bs=1M count=8 2>&1; \
             dd if=/tmp/sample of={disk} bs=1M oflag=direct 2>&1; \
             blkdiscard {how} --offset 2097152 --length 4194304 {disk}; \
             dd if={disk} of=/tmp/back bs=1M count=8 iflag=direct 2>&1; \
             part() {{ dd if=$1 bs=1M skip=$2 count=$3 2>/dev/null | sha256sum; }}; \
             [ \"$(part /tmp/sample 0 2)\" = \"$(part /tmp/back 0 2)\" ]; \
             [ \"$(part /tmp/sample 6 2)\" = \"$(part /tmp/back 6 2)\" ]; \
             part /tmp/back 2 4 > /tmp/middle; part /dev/zero 0 4 | cmp - /tmp/middle && echo zero"
        );
        let zeroed = lab.try_sh(&script)?;
        if zeroed.status != 0 && (zeroes_after_discard || !how.is_empty()) {
            zeroed.ok()?;
        }
    }
    let limits = lab.sh(&format!("cat /sys/class/block/{}/queue/discard_max_bytes", &disk[5..]))?;
    if limits.trim() == "0" {
        bail!("the disk does not offer discard");
    }
    Ok(())
}
