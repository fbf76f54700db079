//! The block devices of the machine, and what lies on them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use api::node::Answered;
use api::{Page, Paging};
use linux::Tree;
use model::{BlockDevice, Obstacle, Size};
use pool::{OCCUPANT_BYTES, Occupant};

use super::engine::Engine;
use crate::pools;

/// A pool on less would hold next to nothing.
const LEAST: Size = Size::mib(64);

impl Engine {
    /// A page of block devices, by name.
    pub(super) async fn page_of_devices(&self, paging: Paging) -> Answered<Page<BlockDevice>> {
        let all = self.apart(|| linux::block_devices(&Tree::default(), LEAST, look)).await?;
        paging.cut(all, |device| device.path.to_string())
    }
}

/// What lies on a device that nothing else keeps from being used.
fn look(path: &Path) -> Option<Obstacle> {
    let mut start = Vec::new();
    let most = u64::try_from(OCCUPANT_BYTES).unwrap_or(0);
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut start));
    if let Err(error) = read {
        return Some(Obstacle::Held { by: format!("it cannot be read: {error}") });
    }
    match pool::occupant(&start)? {
        Occupant::Other(name) => Some(Obstacle::FileSystem { name: name.to_owned() }),
        Occupant::Pool => {
            let found = pools::superblock_of(path).ok().flatten();
            let named = found.and_then(|found| found.name.parse().ok());
            Some(match named {
                Some(pool) => Obstacle::Pool { pool },
                None => Obstacle::Held { by: "what is left of a pool".to_owned() },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_on_a_device_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut bytes = vec![0; OCCUPANT_BYTES];
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(look(&path), None);
        bytes[..4].copy_from_slice(b"XFSB");
        std::fs::write(&path, &bytes).unwrap();
        let name = "an XFS file system".to_owned();
        assert_eq!(look(&path), Some(Obstacle::FileSystem { name }));
        assert!(matches!(look(&dir.path().join("none")), Some(Obstacle::Held { .. })));
    }
}
