//! A node: staged, published, grown, taken down again, and asked for things that are not so.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use csi::node::{Attach, Devices};
use csi::proto::node_server::Node as _;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_usage::Unit;
use csi::proto::{
    NodeExpandVolumeRequest, NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeUsage,
};
use csi::{Node, NodeConfig};
use linux::ToolOutput;
use linux::testing::FakeKernel;
use model::VolumeId;
use tonic::{Code, Request, Status};

use crate::driver::{capability, code, range};

const ID: &str = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";
const DEVICE: &str = "/dev/vda";
const BYTES: u64 = 4 << 20;

/// One volume that can be attached to a made-up machine.
#[derive(Clone)]
struct OneDevice {
    kernel: Arc<FakeKernel>,
    attached: Arc<Mutex<bool>>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl Devices for OneDevice {
    fn attach(&self, volume: VolumeId, _: &Attach<'_>) -> Result<PathBuf, Status> {
        if volume.to_string() != ID {
            return Err(Status::not_found("no such volume"));
        }
        *self.attached.lock().unwrap() = true;
        Ok(PathBuf::from(DEVICE))
    }

    fn detach(&self, _: VolumeId) -> Result<(), Status> {
        assert!(self.kernel.calls().iter().all(|call| !call.starts_with("detach")));
        *self.attached.lock().unwrap() = false;
        Ok(())
    }

    fn device(&self, volume: VolumeId) -> Result<Option<PathBuf>, Status> {
        let is_there = *self.attached.lock().unwrap() && volume.to_string() == ID;
        Ok(is_there.then(|| PathBuf::from(DEVICE)))
    }

    fn trouble(&self, _: VolumeId) -> Result<Option<String>, Status> {
        Ok(self.trouble.lock().unwrap().clone())
    }

    fn backend_trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap().clone()
    }
}

struct Machine {
    kernel: Arc<FakeKernel>,
    node: Node<OneDevice>,
    attached: Arc<Mutex<bool>>,
    trouble: Arc<Mutex<Option<String>>>,
    home: tempfile::TempDir,
}

fn machine() -> Machine {
    let kernel = Arc::new(FakeKernel::new());
    kernel.device("vda", "252:0");
    kernel.write("dev/vda", vec![0; usize::try_from(BYTES).unwrap()]);
    let file = kernel.file(DEVICE);
    kernel.tool("mkfs.ext4", move |_| {
        let file = fs::OpenOptions::new().write(true).open(&file).unwrap();
        file.write_all_at(&0xEF53_u16.to_le_bytes(), 1080).unwrap();
        // It has extents: that is what makes it ext4.
        file.write_all_at(&0x40_u32.to_le_bytes(), 1120).unwrap();
        ToolOutput { code: Some(0), text: String::new() }
    });
    for tool in ["e2fsck", "resize2fs"] {
        kernel.tool(tool, |_| ToolOutput { code: Some(0), text: String::new() });
    }
    let attached = Arc::new(Mutex::new(false));
    let trouble = Arc::new(Mutex::new(None));
    let devices = OneDevice {
        kernel: Arc::clone(&kernel),
        attached: Arc::clone(&attached),
        trouble: Arc::clone(&trouble),
    };
    let config = NodeConfig { host: "n1".parse().unwrap(), zone: None, most_volumes: 0 };
    let home = tempfile::tempdir().unwrap();
    let node = Node::new(Arc::<FakeKernel>::clone(&kernel), devices, config);
    Machine { kernel, node, attached, trouble, home }
}

impl Machine {
    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    async fn stage(&self, capability: VolumeCapability) -> Result<(), Status> {
        self.stage_with(capability, &[]).await
    }

    async fn stage_with(
        &self,
        capability: VolumeCapability,
        context: &[(&str, &str)],
    ) -> Result<(), Status> {
        let context = context.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        let request = NodeStageVolumeRequest {
            volume_id: ID.to_owned(),
            staging_target_path: self.path("staging"),
            volume_capability: Some(capability),
            volume_context: context.collect(),
            ..NodeStageVolumeRequest::default()
        };
        self.node.node_stage_volume(Request::new(request)).await.map(drop)
    }

    async fn publish(
        &self,
        target: &str,
        (capability, readonly): (VolumeCapability, bool),
    ) -> Result<(), Status> {
        let request = NodePublishVolumeRequest {
            volume_id: ID.to_owned(),
            staging_target_path: self.path("staging"),
            target_path: self.path(target),
            volume_capability: Some(capability),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.node.node_publish_volume(Request::new(request)).await.map(drop)
    }

    async fn unpublish(&self, target: &str) {
        let request =
            NodeUnpublishVolumeRequest { volume_id: ID.to_owned(), target_path: self.path(target) };
        self.node.node_unpublish_volume(Request::new(request)).await.unwrap();
    }

    async fn unstage(&self) {
        let request = NodeUnstageVolumeRequest {
            volume_id: ID.to_owned(),
            staging_target_path: self.path("staging"),
        };
        self.node.node_unstage_volume(Request::new(request)).await.unwrap();
    }

    async fn stats(&self, at: &str) -> Result<NodeGetVolumeStatsResponse, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: ID.to_owned(),
            volume_path: at.to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        };
        let answer = self.node.node_get_volume_stats(Request::new(request)).await;
        answer.map(tonic::Response::into_inner)
    }

    /// Why the volume is not well, if it is not.
    async fn health(&self) -> Result<Vec<String>, Status> {
        let request = NodeGetVolumeHealthRequest { volume_id: ID.to_owned(), ..Default::default() };
        let answer = self.node.node_get_volume_health(Request::new(request)).await?;
        let health = answer.into_inner().volume_health.unwrap();
        assert_eq!(health.volume_id, ID);
        Ok(health.health_statuses.into_iter().map(|entry| entry.reason).collect())
    }

    /// The device holds this much of a file system.
    fn has_filesystem(&self, at: usize, magic: &[u8]) {
        let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        self.kernel.write("dev/vda", bytes);
        for tool in ["xfs_growfs", "xfs_admin", "btrfs", "btrfstune", "tune2fs"] {
            self.kernel.tool(tool, |_| ToolOutput { code: Some(0), text: String::new() });
        }
    }

    fn count(&self, call: &str) -> usize {
        self.kernel.calls().iter().filter(|made| made.starts_with(call)).count()
    }
}

fn mount(mode: Mode) -> VolumeCapability {
    capability(false, mode)
}

#[tokio::test]
async fn a_file_system_is_made_once_and_every_step_may_be_repeated() {
    let machine = machine();
    for _ in 0..3 {
        machine.stage(mount(Mode::SingleNodeMultiWriter)).await.unwrap();
    }
    for target in ["pod-1", "pod-2"] {
        for _ in 0..3 {
            let how = (mount(Mode::SingleNodeMultiWriter), false);
            machine.publish(target, how).await.unwrap();
        }
    }
    let usage = machine.stats(&machine.path("pod-1")).await.unwrap().usage;
    assert_eq!(
        usage.iter().map(VolumeUsage::unit).collect::<Vec<_>>(),
        [Unit::Bytes, Unit::Inodes]
    );
    for target in ["pod-1", "pod-2", "pod-2", "never"] {
        machine.unpublish(target).await;
        assert!(!Path::new(&machine.path(target)).exists());
    }
    for _ in 0..2 {
        machine.unstage().await;
        assert!(!*machine.attached.lock().unwrap());
    }
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap();
    assert_eq!((machine.count("mkfs.ext4"), machine.count("mount ")), (1, 2));
}

#[tokio::test]
async fn nothing_that_may_hold_data_is_formatted() {
    let unknown = machine();
    unknown.kernel.write("dev/vda", [vec![7; 4096], vec![0; 2 << 20]].concat());
    let refused = unknown.stage(mount(Mode::SingleNodeWriter)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("nothing was changed"), "{refused}");
    let empty = machine();
    let refused = empty.stage(mount(Mode::SingleNodeReaderOnly)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "read-only, and nothing on it");
    assert_eq!(unknown.count("mkfs") + empty.count("mkfs"), 0);
}

#[tokio::test]
async fn another_mode_at_the_same_path_is_another_request() {
    let machine = machine();
    let writer = || mount(Mode::SingleNodeMultiWriter);
    let early = machine.publish("pod", (writer(), false)).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition, "it is not staged");
    machine.stage(writer()).await.unwrap();
    let staged = machine.stage(mount(Mode::SingleNodeReaderOnly)).await.unwrap_err();
    assert_eq!(staged.code(), Code::AlreadyExists);
    machine.publish("pod", (writer(), true)).await.unwrap();
    let other = machine.publish("pod", (writer(), false)).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn one_pod_alone_uses_a_volume_that_only_one_may_use() {
    for block in [false, true] {
        let machine = machine();
        let alone = || capability(block, Mode::SingleNodeSingleWriter);
        machine.stage(alone()).await.unwrap();
        machine.publish("pod-1", (alone(), false)).await.unwrap();
        machine.publish("pod-1", (alone(), false)).await.unwrap();
        let second = machine.publish("pod-2", (alone(), false)).await.unwrap_err();
        assert_eq!(second.code(), Code::FailedPrecondition);
        assert!(second.message().contains("pod-1"), "{second}");
        machine.unpublish("pod-1").await;
        machine.publish("pod-2", (alone(), false)).await.unwrap();
    }
}

#[tokio::test]
async fn a_block_device_is_bound_to_a_file_and_counted_in_bytes() {
    let machine = machine();
    let block = || capability(true, Mode::SingleNodeMultiWriter);
    machine.stage(block()).await.unwrap();
    machine.publish("pods/disk", (block(), false)).await.unwrap();
    assert!(Path::new(&machine.path("pods/disk")).is_file());
    let usage = machine.stats(&machine.path("pods/disk")).await.unwrap().usage;
    assert_eq!((usage.len(), usage[0].total), (1, 4 << 20));
    assert_eq!(machine.count("mkfs") + machine.count("mount "), 0);
    machine.unpublish("pods/disk").await;
    assert!(!Path::new(&machine.path("pods/disk")).exists());
}

#[tokio::test]
async fn a_file_system_follows_its_volume_when_it_has_grown() {
    let machine = machine();
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap();
    let at_staging = machine.count("resize2fs");
    let expand = |required| NodeExpandVolumeRequest {
        volume_id: ID.to_owned(),
        volume_path: machine.path("staging"),
        capacity_range: Some(range(required, 0)),
        ..NodeExpandVolumeRequest::default()
    };
    let early = machine.node.node_expand_volume(Request::new(expand(8 << 20))).await;
    assert_eq!(code(early), Code::Unavailable, "the device has not grown yet");
    let grown = machine.node.node_expand_volume(Request::new(expand(4 << 20))).await.unwrap();
    assert_eq!(grown.into_inner().capacity_bytes, 4 << 20);
    assert_eq!(machine.count("resize2fs"), at_staging + 1);
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_what_is_missing_is_named() {
    let machine = machine();
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap();
    assert_eq!(machine.stats("some/path").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(machine.stats("").await.unwrap_err().code(), Code::InvalidArgument);
    let nameless = NodeStageVolumeRequest::default();
    let answer = machine.node.node_stage_volume(Request::new(nameless)).await;
    assert_eq!(code(answer), Code::InvalidArgument);
    let foreign = NodeStageVolumeRequest {
        volume_id: "fake-vol-id".to_owned(),
        staging_target_path: machine.path("staging"),
        volume_capability: Some(mount(Mode::SingleNodeWriter)),
        ..NodeStageVolumeRequest::default()
    };
    let answer = machine.node.node_stage_volume(Request::new(foreign)).await;
    assert_eq!(code(answer), Code::NotFound);
    let foreign = NodeUnstageVolumeRequest {
        volume_id: "fake-vol-id".to_owned(),
        staging_target_path: machine.path("staging"),
    };
    assert!(machine.node.node_unstage_volume(Request::new(foreign)).await.is_ok());
}

#[tokio::test]
async fn a_stage_that_was_interrupted_before_it_grew_the_file_system_is_finished() {
    let machine = machine();
    machine.kernel.fail_next("resize2fs", libc_eio());
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap_err();
    // The kubelet takes the failure for the end, and does not unstage.
    assert_eq!((machine.count("mount "), machine.count("unmount ")), (1, 1));
    let before = machine.count("resize2fs");
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap();
    assert_eq!((machine.count("resize2fs"), machine.count("mount ")), (before + 1, 2));
}

/// An I/O error.
fn libc_eio() -> i32 {
    5
}

#[tokio::test]
async fn a_copy_can_be_mounted_beside_its_source() {
    let copy = [("isClone", "true")];
    let own = [("isClone", "true"), ("cloneFsIdAsVolumeId", "true")];
    let xfs = || {
        let machine = machine();
        machine.has_filesystem(0, b"XFSB");
        machine
    };
    let machine = xfs();
    machine.stage_with(mount(Mode::SingleNodeWriter), &copy).await.unwrap();
    assert_eq!(machine.count("xfs_admin"), 0);
    let mounts: Vec<String> =
        machine.kernel.calls().into_iter().filter(|call| call.starts_with("mount ")).collect();
    assert!(mounts.len() == 1 && mounts[0].ends_with("xfs nouuid"), "{mounts:?}");

    let machine = xfs();
    machine.stage_with(mount(Mode::SingleNodeWriter), &own).await.unwrap();
    assert_eq!(machine.count(&format!("xfs_admin -U {ID}")), 1);
    assert!(!Path::new(&machine.path("staging.new-uuid")).exists());

    // Two btrfs of one uuid cannot be told apart: a copy always gets its own.
    let btrfs = self::machine();
    btrfs.has_filesystem(65600, b"_BHRfS_M");
    let read_only = btrfs.stage_with(mount(Mode::SingleNodeReaderOnly), &copy).await.unwrap_err();
    assert_eq!(read_only.code(), Code::FailedPrecondition);
    btrfs.stage_with(mount(Mode::SingleNodeWriter), &copy).await.unwrap();
    assert_eq!(btrfs.count(&format!("btrfstune -f -U {ID}")), 1);

    // What is no copy keeps what it has.
    let machine = xfs();
    machine.stage_with(mount(Mode::SingleNodeWriter), &own[1..]).await.unwrap();
    assert_eq!(machine.count("xfs_admin"), 0);
}

#[tokio::test]
async fn a_node_says_what_keeps_a_volume_from_being_used() {
    let machine = machine();
    assert_eq!(machine.health().await.unwrap_err().code(), Code::NotFound, "it is not here");
    machine.stage(mount(Mode::SingleNodeWriter)).await.unwrap();
    assert!(machine.health().await.unwrap().is_empty());
    let condition = machine.stats(&machine.path("staging")).await.unwrap().volume_condition;
    assert!(!condition.unwrap().abnormal);

    let table = machine.kernel.file("/proc/self/mountinfo");
    let text = fs::read_to_string(&table).unwrap();
    fs::write(&table, text.trim_end().strip_suffix("rw").unwrap().to_owned() + "ro\n").unwrap();
    assert_eq!(machine.health().await.unwrap(), ["FilesystemReadOnly"]);
    fs::write(&table, text).unwrap();

    *machine.trouble.lock().unwrap() = Some("no path works".to_owned());
    assert_eq!(machine.health().await.unwrap(), ["TargetUnreachable"]);
    let condition = machine.stats(&machine.path("staging")).await.unwrap().volume_condition;
    assert!(condition.unwrap().message.contains("no path works"));
    let asked = Request::new(NodeGetStorageHealthRequest::default());
    let storage = machine.node.node_get_storage_health(asked).await.unwrap().into_inner();
    assert_eq!(storage.backend_health[0].reason, "ControlPlaneUnreachable");

    *machine.trouble.lock().unwrap() = None;
    machine.kernel.remove_device("vda", "252:0");
    assert_eq!(machine.health().await.unwrap(), ["DeviceGone"]);
}
