//! What lies on a device, by reading it.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::FilesystemKind;
use crate::{Kernel, SystemError};

/// How much of both ends must be zeros for a device to count as empty. File systems, volume
/// managers, RAID and partition tables have their signatures there.
const ENDS: u64 = 1 << 20;

/// What lies on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Both ends read as zeros.
    Empty,
    /// A file system of ours.
    Filesystem {
        /// Which.
        kind: FilesystemKind,
        /// Its uuid, as people write it.
        uuid: String,
    },
    /// Something else that has a name.
    Known(&'static str),
    /// Bytes that nothing here knows: somebody's data.
    Unknown,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Empty => f.write_str("nothing"),
            Content::Filesystem { kind, uuid } => write!(f, "{kind} with uuid {uuid}"),
            Content::Known(name) => f.write_str(name),
            Content::Unknown => f.write_str("data of an unknown kind"),
        }
    }
}

/// Signatures by name, offset in bytes and bytes; of what is not mounted as a file system of ours.
const SIGNATURES: [(&str, usize, &[u8]); 9] = [
    ("a LUKS container", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a member of a RAID (MD)", 4096, b"\xfc\x4e\x2b\xa9"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a Holdfast pool", 0, b"HOLDPOOL"),
    ("NTFS", 3, b"NTFS    "),
    ("an MBR partition table or boot sector", 510, b"\x55\xaa"),
];

/// Reads both ends of a device and says what lies there.
pub fn probe(kernel: &dyn Kernel, device: &Path) -> Result<Content, SystemError> {
    let failed = |source| SystemError::new("read", device, source);
    let size = kernel.device_size(device).map_err(failed)?;
    let start = read(kernel, device, 0..ENDS.min(size)).map_err(failed)?;
    let end = read(kernel, device, size.saturating_sub(ENDS)..size).map_err(failed)?;
    if let Some(found) = known_filesystem(&start) {
        return Ok(found);
    }
    let holds = |at: usize, mark: &[u8]| start.get(at..at + mark.len()) == Some(mark);
    if let Some((name, ..)) = SIGNATURES.iter().find(|(_, at, mark)| holds(*at, mark)) {
        return Ok(Content::Known(name));
    }
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    Ok(if is_zero(&start) && is_zero(&end) { Content::Empty } else { Content::Unknown })
}

fn read(kernel: &dyn Kernel, device: &Path, place: Range<u64>) -> std::io::Result<Vec<u8>> {
    let bytes = place.end.saturating_sub(place.start);
    let mut buffer = vec![0; usize::try_from(bytes).unwrap_or_default()];
    kernel.read_device(device, place.start, &mut buffer)?;
    Ok(buffer)
}

/// File systems by offset and bytes of their magic, and the offset of their uuid.
const FILESYSTEMS: [(FilesystemKind, usize, &[u8], usize); 3] = [
    (FilesystemKind::Xfs, 0, b"XFSB", 32),
    (FilesystemKind::Ext4, 1024 + 56, b"\x53\xef", 1024 + 104),
    (FilesystemKind::Btrfs, 65536 + 64, b"_BHRfS_M", 65536 + 32),
];
/// Of ext: what tells the fourth from the second and third, in the incompatible features.
const EXT_EXTENTS: u8 = 0x40;
const EXT_INCOMPATIBLE: usize = 1024 + 96;

fn known_filesystem(start: &[u8]) -> Option<Content> {
    let (kind, _, _, uuid) = FILESYSTEMS
        .into_iter()
        .find(|(_, at, magic, _)| start.get(*at..at + magic.len()) == Some(*magic))?;
    let is_ext4 = start.get(EXT_INCOMPATIBLE).is_some_and(|flags| flags & EXT_EXTENTS != 0);
    if kind == FilesystemKind::Ext4 && !is_ext4 {
        return Some(Content::Known("ext2 or ext3"));
    }
    let bytes: [u8; 16] = start.get(uuid..uuid + 16)?.try_into().ok()?;
    Some(Content::Filesystem { kind, uuid: uuid_text(bytes) })
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let mut text = String::with_capacity(36);
    for (at, digit) in digits.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}
