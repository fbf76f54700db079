//! The block devices of the machine, and what lies on them.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use api::node::ApiResult;
use api::{Page, Paging};
use linux::Tree;
use model::{
    BlockDevice, DevicePath, DiskTraits, EventName, IneligibleReason, PoolName, Severity, Size,
    Subject,
};
use pool::{OCCUPANT_BYTES, Signature};

use super::engine::Engine;
use crate::pools;

/// A pool on less would hold next to nothing.
const LEAST: Size = Size::mib(64);

impl Engine {
    /// A page of block devices, by name.
    pub(super) async fn page_of_devices(&self, paging: Paging) -> ApiResult<Page<BlockDevice>> {
        let all = self.run_blocking(|| linux::block_devices(&Tree::default(), LEAST, look)).await?;
        paging.cut(all, |device| device.path.to_string())
    }

    /// Tells that a pool was made or got more disks, and what to know about these disks.
    pub(super) async fn tell_of_disks(
        &self,
        name: &PoolName,
        (what, message): (EventName, &str),
        disks: Vec<DevicePath>,
    ) {
        let look = move || {
            let traits =
                |disk: &DevicePath| linux::disk_traits(&Tree::default(), Path::new(disk.as_str()));
            disks.into_iter().map(|disk| (traits(&disk), disk)).collect::<Vec<_>>()
        };
        // Without an answer there is nothing to add; the engine is stopping.
        let disks = self.run_blocking(look).await.unwrap_or_default();
        let (severity, remarks) = admission(&disks);
        let message = [message.to_owned()].into_iter().chain(remarks).collect::<Vec<_>>();
        self.tell_as(severity, Subject::Pool(name.clone()), what, message.join("; "));
    }
}

/// What to know about the disks of a pool, and how much it matters.
fn admission(disks: &[(DiskTraits, DevicePath)]) -> (Severity, Vec<String>) {
    let mut remarks = Vec::new();
    if disks.len() > 1 {
        remarks.push(format!("it is lost with any one of its {} disks", disks.len()));
    }
    for (traits, disk) in disks {
        remarks.extend(traits.remarks().into_iter().map(|remark| format!("{disk}: {remark}")));
    }
    let may_tear = |traits: &DiskTraits| traits.atomic_write_unit < DiskTraits::POOL_BLOCK;
    let matters = disks.len() > 1 || disks.iter().any(|(traits, _)| may_tear(traits));
    (if matters { Severity::Warning } else { Severity::Info }, remarks)
}

/// What lies on a device that nothing else keeps from being used.
fn look(path: &Path) -> Option<IneligibleReason> {
    let mut start = Vec::new();
    let most = u64::try_from(OCCUPANT_BYTES).unwrap_or(0);
    let read = File::open(path).and_then(|file| file.take(most).read_to_end(&mut start));
    if let Err(error) = read {
        return Some(IneligibleReason::Held { by: format!("it cannot be read: {error}") });
    }
    match pool::find_signature(&start)? {
        Signature::Other(name) => Some(IneligibleReason::FileSystem { name: name.to_owned() }),
        Signature::Pool => {
            let found = pools::superblock_of(path).ok().flatten();
            let named = found.and_then(|found| found.name.parse().ok());
            Some(match named {
                Some(pool) => IneligibleReason::Pool { pool },
                None => IneligibleReason::Held { by: "what is left of a pool".to_owned() },
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_know_about_the_disks_of_a_pool_is_told() {
        let good = DiskTraits {
            atomic_write_unit: 4096,
            write_cache: model::WriteCache::Protected,
            ..DiskTraits::UNKNOWN
        };
        let on = |traits, disk: &str| (traits, disk.parse().unwrap());
        assert_eq!(admission(&[on(good, "/dev/sda")]), (Severity::Info, vec![]));
        let (severity, remarks) = admission(&[on(good, "/dev/sda"), on(good, "/dev/sdb")]);
        assert_eq!(severity, Severity::Warning);
        assert_eq!(remarks, ["it is lost with any one of its 2 disks"]);
        let (severity, remarks) = admission(&[on(DiskTraits::UNKNOWN, "/dev/sda")]);
        assert_eq!(severity, Severity::Warning);
        assert!(remarks.iter().all(|remark| remark.starts_with("/dev/sda: ")), "{remarks:?}");
        assert_eq!(remarks.len(), 2);
        let volatile = DiskTraits { write_cache: model::WriteCache::Volatile, ..good };
        let (severity, remarks) = admission(&[on(volatile, "/dev/sda")]);
        assert_eq!((severity, remarks.len()), (Severity::Info, 1));
    }

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
        assert_eq!(look(&path), Some(IneligibleReason::FileSystem { name }));
        assert!(matches!(look(&dir.path().join("none")), Some(IneligibleReason::Held { .. })));
    }
}
