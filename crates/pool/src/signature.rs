//! What is on a disk that is offered for a pool, so that nothing is overwritten by mistake.

/// Bytes from the start of a disk that [`find_signature`] wants to see.
pub const OCCUPANT_BYTES: usize = (64 << 10) + 4096;

/// Something that was found on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A pool of ours, or what is left of one.
    Pool,
    /// Something else, by its usual name.
    Other(&'static str),
}

impl core::fmt::Display for Signature {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Signature::Pool => f.write_str("a Holdfast pool"),
            Signature::Other(name) => f.write_str(name),
        }
    }
}

/// Name, offset and bytes of what marks it.
const MARKS: &[(&str, usize, &[u8])] = &[
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 65600, b"_BHRfS_M"),
    ("an F2FS file system", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an encrypted LUKS volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 536, b"LVM2 001"),
    ("a member of an MD array", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a member of an MD array", 0, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("an SPDK blobstore", 0, b"SPDKBLOB"),
    ("a bcache device", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("an NTFS file system", 3, b"NTFS    "),
    // Last: file systems leave it in their boot sector as well.
    ("an MBR partition table or boot sector", 510, &[0x55, 0xaa]),
];

/// What the first bytes of a disk say is on it. Nothing known is not the same as nothing.
pub fn find_signature(start: &[u8]) -> Option<Signature> {
    let holds = |at: usize, mark: &[u8]| start.get(at..at + mark.len()) == Some(mark);
    if holds(0, b"HOLDPOOL") {
        return Some(Signature::Pool);
    }
    MARKS.iter().find(|(_, at, mark)| holds(*at, mark)).map(|(name, ..)| Signature::Other(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_seen_and_an_empty_disk_is_empty() {
        let blank = std::vec![0; OCCUPANT_BYTES];
        assert_eq!(find_signature(&blank), None);
        assert_eq!(find_signature(&[]), None);
        for (name, at, mark) in MARKS {
            let mut disk = blank.clone();
            disk[*at..at + mark.len()].copy_from_slice(mark);
            assert_eq!(find_signature(&disk), Some(Signature::Other(name)));
        }
        let mut disk = blank;
        disk[..8].copy_from_slice(b"HOLDPOOL");
        assert_eq!(find_signature(&disk), Some(Signature::Pool));
    }
}
