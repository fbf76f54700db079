//! What one VolumeAttachment needs next, decided from what was observed.
//!
//! ```text
//!   new ──► recorded: finalizer, handle, node id ──► published ──► status.attached
//!   deleted ──► unpublished ──► status cleared, finalizer removed: it is gone
//! ```
//!
//! Invariants:
//! - What will be undone is recorded in the attachment before it is done, so that undoing needs
//!   neither the PersistentVolume nor the CSINode, which may be gone by then.
//! - The finalizer goes only after the volume was unpublished: a new attachment of the same volume
//!   cannot exist before, and that is the fence before a second mount.
//!
//! Not here: publishing again what somebody unpublished by hand. That may have been a fence.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};

use crate::DRIVER_NAME;
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::proto::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
};

/// The name that the external-attacher uses for this driver: either can go on with what the other
/// began.
pub(super) const FINALIZER: &str = "external-attacher/csi-holdfast-io";
/// Where the external-attacher keeps the id of the node.
pub(super) const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
/// Where we keep the handle of the volume.
pub(super) const HANDLE: &str = "csi.holdfast.io/volume-handle";

/// An attachment and what it names; absent: not there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed<'a> {
    pub(super) attachment: &'a VolumeAttachment,
    pub(super) volume: Option<&'a PersistentVolume>,
    pub(super) node: Option<&'a CSINode>,
}

/// What is done next.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Nothing.
    Nothing,
    /// Write down what will be published, with the finalizer.
    Record {
        /// The volume.
        handle: String,
        /// The node.
        node_id: String,
    },
    /// Publish, and say that it is attached.
    Publish(Box<ControllerPublishVolumeRequest>),
    /// Unpublish, and let it go.
    Unpublish(ControllerUnpublishVolumeRequest),
    /// It cannot go on; this is why, for people. It is tried again.
    Blocked(String),
}

/// Whether there is nothing to do, whatever else is so.
pub(super) fn is_settled(attachment: &VolumeAttachment) -> bool {
    if attachment.spec.attacher != DRIVER_NAME {
        return true;
    }
    if is_deleted(attachment) {
        return !has_finalizer(attachment);
    }
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

/// Whether it shall go away.
pub(super) fn is_deleted(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.deletion_timestamp.is_some()
}

/// Decides.
pub(super) fn decide(observed: &Observed<'_>) -> Action {
    let attachment = observed.attachment;
    if is_settled(attachment) {
        return Action::Nothing;
    }
    let decided =
        if is_deleted(attachment) { decide_detach(observed) } else { decide_attach(observed) };
    decided.unwrap_or_else(Action::Blocked)
}

fn decide_attach(observed: &Observed<'_>) -> Result<Action, String> {
    let attachment = observed.attachment;
    let volume = observed.volume.ok_or_else(|| {
        let named = attachment.spec.source.persistent_volume_name.as_deref();
        let named = named.unwrap_or("(an inline volume, which this driver has none of)");
        format!("there is no PersistentVolume {named}")
    })?;
    if volume.metadata.deletion_timestamp.is_some() {
        return Err("the PersistentVolume is being deleted; nothing is attached any more".into());
    }
    let spec = volume.spec.as_ref().ok_or("the PersistentVolume has no spec")?;
    let handle = handle(volume).ok_or_else(|| {
        format!("the PersistentVolume is not of driver {DRIVER_NAME}, which shall attach it")
    })?;
    let node_id = node_id(observed)?;
    let (handle, node_id) = (handle.to_owned(), node_id.to_owned());
    let is_recorded = has_finalizer(attachment)
        && annotation(attachment, HANDLE) == Some(&handle)
        && annotation(attachment, NODE_ID) == Some(&node_id);
    if !is_recorded {
        return Ok(Action::Record { handle, node_id });
    }
    let capability = capability(spec)?;
    let csi = spec.csi.as_ref();
    let context = csi.and_then(|csi| csi.volume_attributes.clone()).unwrap_or_default();
    Ok(Action::Publish(Box::new(ControllerPublishVolumeRequest {
        volume_id: handle,
        node_id,
        volume_capability: Some(capability),
        // The driver has no read-only publication: nodes mount read-only what is to be so.
        readonly: false,
        secrets: BTreeMap::new(),
        volume_context: context,
    })))
}

fn decide_detach(observed: &Observed<'_>) -> Result<Action, String> {
    let attachment = observed.attachment;
    let recorded = annotation(attachment, HANDLE).map(String::as_str);
    let volume_id = recorded.or_else(|| observed.volume.and_then(handle)).ok_or(
        "the PersistentVolume is gone and the attachment does not name the volume: see what \
         holdfast volume list shows as published to the node, unpublish it, and remove the \
         finalizer",
    )?;
    let recorded = annotation(attachment, NODE_ID).map(String::as_str);
    let node_id = recorded.map_or_else(|| node_id(observed), Ok)?;
    Ok(Action::Unpublish(ControllerUnpublishVolumeRequest {
        volume_id: volume_id.to_owned(),
        node_id: node_id.to_owned(),
        secrets: BTreeMap::new(),
    }))
}

fn has_finalizer(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

fn annotation<'a>(attachment: &'a VolumeAttachment, name: &str) -> Option<&'a String> {
    attachment.metadata.annotations.as_ref().and_then(|all| all.get(name))
}

/// The id of our volume behind a PersistentVolume; nothing: it is not ours.
pub(super) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.filter(|csi| csi.driver == DRIVER_NAME).map(|csi| csi.volume_handle.as_str())
}

/// The id that the node plugin told the kubelet.
fn node_id<'a>(observed: &Observed<'a>) -> Result<&'a str, String> {
    let name = &observed.attachment.spec.node_name;
    let mut drivers = observed.node.into_iter().flat_map(|node| &node.spec.drivers);
    let ours = drivers.find(|driver| driver.name == DRIVER_NAME);
    ours.map(|driver| driver.node_id.as_str()).ok_or_else(|| {
        format!("driver {DRIVER_NAME} is not registered on node {name}: is its plugin running?")
    })
}

/// How pods use a volume, from the access modes of its PersistentVolume.
fn capability(spec: &PersistentVolumeSpec) -> Result<VolumeCapability, String> {
    let has = |mode: &str| spec.access_modes.iter().flatten().any(|have| have == mode);
    let (once, many) = (has("ReadWriteOnce"), has("ReadOnlyMany"));
    let mode = if has("ReadWriteMany") {
        Mode::MultiNodeMultiWriter
    } else if has("ReadWriteOncePod") {
        Mode::SingleNodeSingleWriter
    } else if once && many {
        Mode::MultiNodeSingleWriter
    } else if many {
        Mode::MultiNodeReaderOnly
    } else if once {
        Mode::SingleNodeMultiWriter
    } else {
        return Err("the PersistentVolume has no access mode that is known".to_owned());
    };
    let fs_type = spec.csi.as_ref().and_then(|csi| csi.fs_type.clone()).unwrap_or_default();
    let access = if spec.volume_mode.as_deref() == Some("Block") {
        AccessType::Block(BlockVolume {})
    } else {
        let mount_flags = spec.mount_options.clone().unwrap_or_default();
        AccessType::Mount(MountVolume { fs_type, mount_flags, ..MountVolume::default() })
    };
    Ok(VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, from};
    use super::*;
    use serde_json::json;

    const ID: &str = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";

    fn volume() -> PersistentVolume {
        from(testing::volume("pv-1", ID))
    }

    fn node() -> CSINode {
        from(testing::node("node-1", "host-1"))
    }

    /// An attachment that has this much behind it.
    fn attachment(recorded: bool, attached: bool, deleted: bool) -> VolumeAttachment {
        let mut made = testing::attachment("va-1", "pv-1", "node-1");
        if recorded {
            made["metadata"]["finalizers"] = json!([FINALIZER]);
            made["metadata"]["annotations"] = json!({ HANDLE: ID, NODE_ID: "host-1" });
        }
        if attached {
            made["status"] = json!({ "attached": true });
        }
        if deleted {
            made["metadata"]["deletionTimestamp"] = json!("2026-11-18T00:00:00Z");
        }
        from(made)
    }

    fn decided(
        attachment: &VolumeAttachment,
        volume: Option<&PersistentVolume>,
        node: Option<&CSINode>,
    ) -> Action {
        decide(&Observed { attachment, volume, node })
    }

    fn unpublished() -> Action {
        Action::Unpublish(ControllerUnpublishVolumeRequest {
            volume_id: ID.to_owned(),
            node_id: "host-1".to_owned(),
            secrets: BTreeMap::new(),
        })
    }

    #[test]
    fn what_is_published_is_recorded_first_and_unpublished_before_the_finalizer_goes() {
        let (volume, node) = (volume(), node());
        let (pv, csi_node) = (Some(&volume), Some(&node));
        let record = Action::Record { handle: ID.to_owned(), node_id: "host-1".to_owned() };
        assert_eq!(decided(&attachment(false, false, false), pv, csi_node), record);
        let Action::Publish(request) = decided(&attachment(true, false, false), pv, csi_node)
        else {
            panic!("it is recorded, so it is published")
        };
        assert_eq!((request.volume_id.as_str(), request.node_id.as_str()), (ID, "host-1"));
        assert!(!request.readonly);
        assert_eq!(request.volume_context["fsType"], "xfs");
        assert_eq!(decided(&attachment(true, true, false), pv, csi_node), Action::Nothing);
        for attached in [true, false] {
            let going = attachment(true, attached, true);
            assert_eq!(decided(&going, pv, csi_node), unpublished(), "maybe it was published");
            assert_eq!(decided(&going, None, None), unpublished(), "whatever else is gone");
        }
        assert_eq!(decided(&attachment(false, true, true), pv, csi_node), Action::Nothing);
    }

    #[test]
    fn a_record_of_another_node_or_volume_is_written_again_before_publishing() {
        let (volume, mut node) = (volume(), node());
        node.spec.drivers[1].node_id = "host-2".to_owned();
        let record = Action::Record { handle: ID.to_owned(), node_id: "host-2".to_owned() };
        let found = decided(&attachment(true, false, false), Some(&volume), Some(&node));
        assert_eq!(found, record);
    }

    #[test]
    fn what_another_attacher_left_is_finished() {
        let mut left = attachment(true, true, true);
        left.metadata.annotations = None;
        let (volume, node) = (volume(), node());
        assert_eq!(decided(&left, Some(&volume), Some(&node)), unpublished());
        let Action::Blocked(why) = decided(&left, None, Some(&node)) else {
            panic!("nobody knows the volume")
        };
        assert!(why.contains("finalizer"), "{why}");
    }

    #[test]
    fn what_is_missing_blocks_with_its_remedy() {
        let (mut volume, node) = (volume(), node());
        let fresh = attachment(false, false, false);
        let blocked = |volume: Option<&PersistentVolume>, node: Option<&CSINode>, says: &str| {
            let Action::Blocked(why) = decided(&fresh, volume, node) else {
                panic!("it is blocked: {says}")
            };
            assert!(why.contains(says), "{why}");
        };
        blocked(None, Some(&node), "no PersistentVolume pv-1");
        blocked(Some(&volume), None, "is its plugin running");
        volume.spec.as_mut().unwrap().csi.as_mut().unwrap().driver = "other".to_owned();
        blocked(Some(&volume), Some(&node), "not of driver");
        let mut going = self::volume();
        going.metadata.deletion_timestamp =
            attachment(true, true, true).metadata.deletion_timestamp;
        blocked(Some(&going), Some(&node), "being deleted");
    }

    #[test]
    fn attachments_of_other_drivers_are_left_alone() {
        let mut other = attachment(true, false, true);
        other.spec.attacher = "ebs.csi.aws.com".to_owned();
        assert_eq!(decided(&other, Some(&volume()), Some(&node())), Action::Nothing);
    }

    #[test]
    fn access_modes_say_who_may_use_it() {
        let mode_of = |modes: &[&str], block: bool| {
            let mut spec = volume().spec.unwrap();
            spec.access_modes = Some(modes.iter().map(|mode| (*mode).to_owned()).collect());
            spec.volume_mode = block.then(|| "Block".to_owned());
            let capability = capability(&spec)?;
            let is_block = matches!(capability.access_type, Some(AccessType::Block(_)));
            assert_eq!(is_block, block);
            Ok::<_, String>(capability.access_mode.unwrap().mode())
        };
        for (modes, wanted) in [
            (&["ReadWriteOnce"][..], Mode::SingleNodeMultiWriter),
            (&["ReadWriteOncePod"], Mode::SingleNodeSingleWriter),
            (&["ReadOnlyMany"], Mode::MultiNodeReaderOnly),
            (&["ReadWriteOnce", "ReadOnlyMany"], Mode::MultiNodeSingleWriter),
            (&["ReadWriteMany", "ReadWriteOnce"], Mode::MultiNodeMultiWriter),
        ] {
            assert_eq!(mode_of(modes, false), Ok(wanted));
            assert_eq!(mode_of(modes, true), Ok(wanted));
        }
        assert!(mode_of(&[], true).is_err());
    }
}
