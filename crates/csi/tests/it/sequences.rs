//! Random sequences of calls, repeated and cut by restarts of the driver, against a model of what
//! the specification says of them. Afterwards the world is compared with the model's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use api::rest::fake::Fake;
use csi::node::{Attach, Devices};
use csi::proto::controller_server::Controller as _;
use csi::proto::node_server::Node as _;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_content_source::{SnapshotSource, Type};
use csi::proto::{
    ControllerExpandVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest,
    DeleteSnapshotRequest, DeleteVolumeRequest, ListSnapshotsRequest, ListVolumesRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeContentSource,
};
use csi::{Controller, ControllerConfig, Node, NodeConfig};
use linux::mounts::MountTable;
use linux::testing::FakeKernel;
use linux::{Kernel as _, ToolOutput};
use model::VolumeId;
use proptest::prelude::*;
use tonic::{Code, Request, Response, Status};

use crate::driver::{GIB, capability, create, fake, range};

/// One call. Numbers name volumes, snapshots, hosts, paths of pods; sizes are in GiB.
#[derive(Clone, Debug)]
enum Call {
    Create { volume: u8, size: i64, from: Option<u8> },
    Delete { volume: u8 },
    Publish { volume: u8, host: u8 },
    Unpublish { volume: u8, host: u8 },
    Snapshot { snapshot: u8, volume: u8 },
    DeleteSnapshot { snapshot: u8 },
    Expand { volume: u8, size: i64 },
    Stage { volume: u8 },
    Unstage { volume: u8 },
    NodePublish { volume: u8, target: u8, read_only: bool },
    NodeUnpublish { volume: u8, target: u8 },
    Restart,
}

const VOLUMES: u8 = 3;

fn call() -> impl Strategy<Value = Call> {
    let volume = 0..VOLUMES;
    let from = prop_oneof![3 => Just(None), 1 => (0..2_u8).prop_map(Some)];
    let create = (volume.clone(), 1..=2_i64, from);
    prop_oneof![
        4 => create.prop_map(|(volume, size, from)| Call::Create { volume, size, from }),
        2 => volume.clone().prop_map(|volume| Call::Delete { volume }),
        // The last host is one that nobody knows.
        3 => (volume.clone(), 1..=4_u8).prop_map(|(volume, host)| Call::Publish { volume, host }),
        2 => (volume.clone(), 1..=4_u8).prop_map(|(volume, host)| Call::Unpublish { volume, host }),
        2 => (0..2_u8, volume.clone())
            .prop_map(|(snapshot, volume)| Call::Snapshot { snapshot, volume }),
        1 => (0..2_u8).prop_map(|snapshot| Call::DeleteSnapshot { snapshot }),
        1 => (volume.clone(), 1..=4_i64).prop_map(|(volume, size)| Call::Expand { volume, size }),
        3 => volume.clone().prop_map(|volume| Call::Stage { volume }),
        2 => volume.clone().prop_map(|volume| Call::Unstage { volume }),
        3 => (volume.clone(), 0..2_u8, any::<bool>()).prop_map(|(volume, target, read_only)| {
            Call::NodePublish { volume, target, read_only }
        }),
        2 => (volume, 0..2_u8)
            .prop_map(|(volume, target)| Call::NodeUnpublish { volume, target }),
        1 => Just(Call::Restart),
    ]
}

/// What there should be.
#[derive(Debug, Default, PartialEq, Eq)]
struct Model {
    /// Size, source and host of each volume.
    volumes: BTreeMap<u8, (i64, Option<u8>, Option<u8>)>,
    /// Volume and size of each snapshot.
    snapshots: BTreeMap<u8, (u8, i64)>,
    staged: BTreeSet<u8>,
    /// Volume and mode at each path.
    targets: BTreeMap<u8, (u8, bool)>,
}

impl Model {
    /// What a call answers, and what it changes if that is no error.
    fn on(&mut self, call: &Call) -> Code {
        match *call {
            Call::Restart => Code::Ok,
            Call::Create { volume, size, from } => self.create(volume, size, from),
            Call::Delete { volume } => {
                if let Some((_, _, Some(_))) = self.volumes.get(&volume) {
                    return Code::FailedPrecondition;
                }
                self.volumes.remove(&volume);
                Code::Ok
            }
            Call::Publish { volume, host } => match self.volumes.get_mut(&volume) {
                None => Code::NotFound,
                Some(_) if host == 4 => Code::NotFound,
                Some((_, _, Some(other))) if *other != host => Code::FailedPrecondition,
                Some((_, _, published)) => {
                    *published = Some(host);
                    Code::Ok
                }
            },
            Call::Unpublish { volume, host } => {
                if let Some((_, _, published)) = self.volumes.get_mut(&volume) {
                    *published = published.filter(|other| *other != host);
                }
                Code::Ok
            }
            Call::Snapshot { snapshot, volume } => {
                match (self.snapshots.get(&snapshot), self.volumes.get(&volume)) {
                    (Some((of, _)), _) if *of == volume => Code::Ok,
                    (Some(_), _) => Code::AlreadyExists,
                    (None, None) => Code::NotFound,
                    (None, Some((size, ..))) => {
                        self.snapshots.insert(snapshot, (volume, *size));
                        Code::Ok
                    }
                }
            }
            Call::DeleteSnapshot { snapshot } => {
                self.snapshots.remove(&snapshot);
                Code::Ok
            }
            Call::Expand { volume, size } => match self.volumes.get_mut(&volume) {
                None => Code::NotFound,
                Some((have, ..)) => {
                    *have = size.max(*have);
                    Code::Ok
                }
            },
            _ => self.on_node(call),
        }
    }

    fn create(&mut self, volume: u8, size: i64, from: Option<u8>) -> Code {
        if let Some((have, source, _)) = self.volumes.get(&volume) {
            let same = *have == size && *source == from;
            return if same { Code::Ok } else { Code::AlreadyExists };
        }
        let source = from.map(|from| self.snapshots.get(&from));
        match source {
            Some(None) => return Code::NotFound,
            // The size is a limit as well, so that the model knows what it becomes.
            Some(Some((_, least))) if *least > size => return Code::OutOfRange,
            _ => {}
        }
        self.volumes.insert(volume, (size, from, None));
        Code::Ok
    }

    fn on_node(&mut self, call: &Call) -> Code {
        match *call {
            Call::Stage { volume } => {
                self.staged.insert(volume);
                Code::Ok
            }
            Call::Unstage { volume } => {
                self.staged.remove(&volume);
                Code::Ok
            }
            Call::NodePublish { volume, target, read_only } => {
                if !self.staged.contains(&volume) {
                    return Code::FailedPrecondition;
                }
                match self.targets.get(&target) {
                    Some(there) if *there == (volume, read_only) => Code::Ok,
                    Some(_) => Code::AlreadyExists,
                    None => {
                        self.targets.insert(target, (volume, read_only));
                        Code::Ok
                    }
                }
            }
            Call::NodeUnpublish { target, .. } => {
                self.targets.remove(&target);
                Code::Ok
            }
            _ => unreachable!("calls of the controller"),
        }
    }

    /// Whether an orchestrator would call that: it unpublishes before it unstages.
    fn allows(&self, call: &Call) -> bool {
        match call {
            Call::Unstage { volume } => self.targets.values().all(|(used, _)| used != volume),
            _ => true,
        }
    }
}

/// Volumes that can be attached to a made-up machine, each as a device of its own.
#[derive(Clone)]
struct ManyDevices {
    attached: Arc<Mutex<BTreeSet<VolumeId>>>,
}

fn id(volume: u8) -> VolumeId {
    format!("00000000-0000-4000-8000-00000000000{volume}").parse().unwrap()
}

fn device(volume: VolumeId) -> PathBuf {
    let text = volume.to_string();
    PathBuf::from(format!("/dev/vd{}", &text[text.len() - 1..]))
}

impl Devices for ManyDevices {
    fn attach(&self, volume: VolumeId, _: &Attach<'_>) -> Result<PathBuf, Status> {
        self.attached.lock().unwrap().insert(volume);
        Ok(device(volume))
    }

    fn detach(&self, volume: VolumeId) -> Result<(), Status> {
        self.attached.lock().unwrap().remove(&volume);
        Ok(())
    }

    fn device(&self, volume: VolumeId) -> Result<Option<PathBuf>, Status> {
        Ok(self.attached.lock().unwrap().contains(&volume).then(|| device(volume)))
    }

    fn trouble(&self, _: VolumeId) -> Result<Option<String>, Status> {
        Ok(None)
    }

    fn backend_trouble(&self) -> Option<String> {
        None
    }
}

/// A driver with all that outlives it.
struct World {
    fake: Arc<Fake>,
    kernel: Arc<FakeKernel>,
    devices: ManyDevices,
    home: tempfile::TempDir,
    controller: Controller<Fake>,
    node: Node<ManyDevices>,
}

fn driver(
    fake: &Arc<Fake>,
    kernel: &Arc<FakeKernel>,
    devices: &ManyDevices,
) -> (Controller<Fake>, Node<ManyDevices>) {
    let controller = Controller::new(Arc::clone(fake), ControllerConfig::default());
    let config = NodeConfig { host: "n1".parse().unwrap(), zone: None, most_volumes: 0 };
    (controller, Node::new(Arc::<FakeKernel>::clone(kernel), devices.clone(), config))
}

fn answered<T>(answer: Result<Response<T>, Status>) -> Code {
    answer.map_or_else(|status| status.code(), |_| Code::Ok)
}

impl World {
    async fn new() -> World {
        let fake = Arc::new(fake().await);
        let kernel = Arc::new(FakeKernel::new());
        for volume in 0..VOLUMES {
            kernel.device(&format!("vd{volume}"), &format!("252:{volume}"));
            kernel.write(&format!("dev/vd{volume}"), vec![0; 2 << 20]);
        }
        let root = kernel.file("/");
        kernel.tool("mkfs.ext4", move |words| {
            let device = root.join(words.last().unwrap().trim_start_matches('/'));
            let file = fs::OpenOptions::new().write(true).open(device).unwrap();
            file.write_all_at(&0xEF53_u16.to_le_bytes(), 1080).unwrap();
            file.write_all_at(&0x40_u32.to_le_bytes(), 1120).unwrap();
            ToolOutput { code: Some(0), text: String::new() }
        });
        for tool in ["e2fsck", "resize2fs"] {
            kernel.tool(tool, |_| ToolOutput { code: Some(0), text: String::new() });
        }
        let devices = ManyDevices { attached: Arc::default() };
        let (controller, node) = driver(&fake, &kernel, &devices);
        let home = tempfile::tempdir().unwrap();
        World { fake, kernel, devices, home, controller, node }
    }

    fn path(&self, name: &str, nth: u8) -> String {
        self.home.path().join(format!("{name}-{nth}")).display().to_string()
    }

    async fn carry_out(&mut self, call: &Call) -> Code {
        match *call {
            Call::Restart => {
                (self.controller, self.node) = driver(&self.fake, &self.kernel, &self.devices);
                Code::Ok
            }
            Call::Create { volume, size, from } => {
                let source = from.map(|from| VolumeContentSource {
                    r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: snapshot_id(from) })),
                });
                let request = CreateVolumeRequest {
                    capacity_range: Some(range(size * GIB, size * GIB)),
                    volume_content_source: source,
                    ..create(&format!("pvc-{}", id(volume)))
                };
                answered(self.controller.create_volume(Request::new(request)).await)
            }
            Call::Delete { volume } => {
                let volume_id = id(volume).to_string();
                let request = DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() };
                answered(self.controller.delete_volume(Request::new(request)).await)
            }
            Call::Publish { volume, host } => {
                let request = ControllerPublishVolumeRequest {
                    volume_id: id(volume).to_string(),
                    node_id: format!("n{host}"),
                    volume_capability: Some(capability(false, Mode::SingleNodeWriter)),
                    ..ControllerPublishVolumeRequest::default()
                };
                answered(self.controller.controller_publish_volume(Request::new(request)).await)
            }
            Call::Unpublish { volume, host } => {
                let request = ControllerUnpublishVolumeRequest {
                    volume_id: id(volume).to_string(),
                    node_id: format!("n{host}"),
                    ..ControllerUnpublishVolumeRequest::default()
                };
                answered(self.controller.controller_unpublish_volume(Request::new(request)).await)
            }
            Call::Expand { volume, size } => {
                let request = ControllerExpandVolumeRequest {
                    volume_id: id(volume).to_string(),
                    capacity_range: Some(range(size * GIB, 0)),
                    ..ControllerExpandVolumeRequest::default()
                };
                answered(self.controller.controller_expand_volume(Request::new(request)).await)
            }
            Call::Snapshot { .. } | Call::DeleteSnapshot { .. } => {
                self.carry_out_snapshot(call).await
            }
            _ => self.carry_out_on_node(call).await,
        }
    }

    async fn carry_out_snapshot(&self, call: &Call) -> Code {
        match *call {
            Call::Snapshot { snapshot, volume } => {
                let request = CreateSnapshotRequest {
                    source_volume_id: id(volume).to_string(),
                    name: format!("snapshot-{}", snapshot_id(snapshot)),
                    ..CreateSnapshotRequest::default()
                };
                answered(self.controller.create_snapshot(Request::new(request)).await)
            }
            Call::DeleteSnapshot { snapshot } => {
                let snapshot_id = snapshot_id(snapshot);
                let request =
                    DeleteSnapshotRequest { snapshot_id, ..DeleteSnapshotRequest::default() };
                answered(self.controller.delete_snapshot(Request::new(request)).await)
            }
            _ => unreachable!("calls of snapshots"),
        }
    }

    async fn carry_out_on_node(&self, call: &Call) -> Code {
        let capability = Some(capability(false, Mode::SingleNodeMultiWriter));
        match *call {
            Call::Stage { volume } => {
                let request = NodeStageVolumeRequest {
                    volume_id: id(volume).to_string(),
                    staging_target_path: self.path("staging", volume),
                    volume_capability: capability,
                    ..NodeStageVolumeRequest::default()
                };
                answered(self.node.node_stage_volume(Request::new(request)).await)
            }
            Call::Unstage { volume } => {
                let request = NodeUnstageVolumeRequest {
                    volume_id: id(volume).to_string(),
                    staging_target_path: self.path("staging", volume),
                };
                answered(self.node.node_unstage_volume(Request::new(request)).await)
            }
            Call::NodePublish { volume, target, read_only } => {
                let request = NodePublishVolumeRequest {
                    volume_id: id(volume).to_string(),
                    staging_target_path: self.path("staging", volume),
                    target_path: self.path("pod", target),
                    volume_capability: capability,
                    readonly: read_only,
                    ..NodePublishVolumeRequest::default()
                };
                answered(self.node.node_publish_volume(Request::new(request)).await)
            }
            Call::NodeUnpublish { volume, target } => {
                let request = NodeUnpublishVolumeRequest {
                    volume_id: id(volume).to_string(),
                    target_path: self.path("pod", target),
                };
                answered(self.node.node_unpublish_volume(Request::new(request)).await)
            }
            _ => unreachable!("calls of the controller"),
        }
    }

    /// What there is, in the words of the model.
    async fn look(&self) -> Model {
        let mut found = Model::default();
        let listed = self.controller.list_volumes(Request::new(ListVolumesRequest::default()));
        for entry in listed.await.unwrap().into_inner().entries {
            let volume = entry.volume.unwrap();
            let source = volume.content_source.map(|source| match source.r#type.unwrap() {
                Type::Snapshot(snapshot) => nth(&snapshot.snapshot_id),
                Type::Volume(_) => unreachable!("no call makes one"),
            });
            let hosts = entry.status.unwrap().published_node_ids;
            assert!(hosts.len() <= 1, "published to {hosts:?}");
            let size = volume.capacity_bytes / GIB;
            found
                .volumes
                .insert(nth(&volume.volume_id), (size, source, hosts.first().map(|it| nth(it))));
        }
        let listed = self.controller.list_snapshots(Request::new(ListSnapshotsRequest::default()));
        for entry in listed.await.unwrap().into_inner().entries {
            let snapshot = entry.snapshot.unwrap();
            let of = (nth(&snapshot.source_volume_id), snapshot.size_bytes / GIB);
            found.snapshots.insert(nth(&snapshot.snapshot_id), of);
        }
        for mount in MountTable::read(self.kernel.tree()).iter() {
            let volume = u8::try_from(mount.device.minor).unwrap();
            let point = mount.point.display().to_string();
            if point.contains("staging") {
                assert_eq!(nth(&point), volume);
                assert!(found.staged.insert(volume), "mounted twice at {point}");
            } else {
                let there = (volume, mount.is_read_only());
                assert_eq!(found.targets.insert(nth(&point), there), None, "{point}");
            }
        }
        let attached: Vec<VolumeId> =
            self.devices.attached.lock().unwrap().iter().copied().collect();
        let staged: Vec<VolumeId> = found.staged.iter().map(|volume| id(*volume)).collect();
        assert_eq!(attached, staged, "devices without a mount, or mounts without a device");
        found
    }
}

fn snapshot_id(snapshot: u8) -> String {
    format!("00000000-0000-4000-9000-00000000000{snapshot}")
}

/// The number that a name ends with.
fn nth(name: &str) -> u8 {
    name[name.len() - 1..].parse().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_called_how_often_and_across_restarts_the_world_is_the_models(
        calls in prop::collection::vec((call(), 1..=2_u8), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new().await;
            let mut model = Model::default();
            for (call, times) in calls {
                if !model.allows(&call) {
                    continue;
                }
                for _ in 0..times {
                    let wanted = model.on(&call);
                    prop_assert_eq!(world.carry_out(&call).await, wanted, "{:?}", call);
                }
                prop_assert_eq!(&world.look().await, &model, "after {:?}", call);
            }
            Ok(())
        })?;
    }
}
