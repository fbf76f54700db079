//! What a caller wants to do with a volume: as which kind of device, and from how many nodes.

use tonic::Status;

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::status::missing;

/// A capability that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    /// As a block device, or as a file system.
    pub access: Access,
    /// From where, and for what.
    pub mode: Mode,
}

/// How a volume is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a block device.
    Block,
    /// As a file system.
    Mount {
        /// Of this kind; absent: as the class says.
        filesystem: Option<String>,
        /// Options of the mount.
        options: Vec<String>,
        /// The group that owns the files.
        group: Option<String>,
    },
}

impl Capability {
    /// Reads one capability of a request.
    pub fn read(given: &VolumeCapability) -> Result<Capability, Status> {
        let access = match given.access_type.as_ref() {
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) => mounted(mount),
            None => return Err(missing("volume_capability.access_type")),
        };
        let mode = given.access_mode.as_ref().map(AccessMode::mode);
        let mode = mode.filter(|mode| *mode != Mode::Unknown);
        let mode = mode.ok_or_else(|| missing("volume_capability.access_mode"))?;
        let capability = Capability { access, mode };
        if capability.writes_from_many_nodes() && capability.access != Access::Block {
            let message = "a file system cannot be written from several nodes at once: take \
                           volumeMode Block, or an access mode with one writing node";
            return Err(Status::invalid_argument(message));
        }
        Ok(capability)
    }

    /// Reads all capabilities of a request; there must be one at least.
    pub fn read_all(given: &[VolumeCapability]) -> Result<Vec<Capability>, Status> {
        if given.is_empty() {
            return Err(missing("volume_capabilities"));
        }
        given.iter().map(Capability::read).collect()
    }

    /// Whether several nodes use it at once.
    pub fn is_shared(&self) -> bool {
        matches!(
            self.mode,
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter
        )
    }

    /// Whether nobody may write.
    pub fn is_read_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }

    fn writes_from_many_nodes(&self) -> bool {
        matches!(self.mode, Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter)
    }
}

fn mounted(mount: &MountVolume) -> Access {
    let given = |text: &String| (!text.is_empty()).then(|| text.clone());
    Access::Mount {
        filesystem: given(&mount.fs_type),
        options: mount.mount_flags.clone(),
        group: given(&mount.volume_mount_group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::volume_capability::BlockVolume;

    fn capability(block: bool, mode: Mode) -> VolumeCapability {
        let access = if block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        };
        let access_mode = Some(AccessMode { mode: mode.into() });
        VolumeCapability { access_mode, access_type: Some(access) }
    }

    #[test]
    fn only_block_devices_are_written_from_many_nodes() {
        for mode in [Mode::MultiNodeMultiWriter, Mode::MultiNodeSingleWriter] {
            assert!(Capability::read(&capability(true, mode)).unwrap().is_shared());
            let refused = Capability::read(&capability(false, mode)).unwrap_err();
            assert!(refused.message().contains("volumeMode Block"), "{refused}");
        }
        let readers = Capability::read(&capability(false, Mode::MultiNodeReaderOnly)).unwrap();
        assert!(readers.is_shared() && readers.is_read_only());
        for mode in
            [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter, Mode::SingleNodeMultiWriter]
        {
            let one = Capability::read(&capability(false, mode)).unwrap();
            assert!(!one.is_shared() && !one.is_read_only());
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut given = capability(true, Mode::Unknown);
        let refused = Capability::read(&given).unwrap_err();
        assert!(refused.message().contains("access_mode"), "{refused}");
        given.access_type = None;
        let refused = Capability::read(&given).unwrap_err();
        assert!(refused.message().contains("access_type"), "{refused}");
        assert!(Capability::read_all(&[]).is_err());
    }
}
