//! A driver on a socket, and its callers.

use std::path::PathBuf;
use std::sync::Arc;

use api::rest::Control as _;
use api::rest::fake::Fake;
use csi::proto::controller_client::ControllerClient;
use csi::proto::group_controller_client::GroupControllerClient;
use csi::proto::identity_client::IdentityClient;
use csi::proto::snapshot_metadata_client::SnapshotMetadataClient;
use csi::proto::volume_capability::access_mode::Mode;
use csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::proto::{CapacityRange, CreateVolumeRequest, Volume, VolumeCapability};
use csi::{Controller, ControllerConfig, Serving, serve_controller};
use hyper_util::rt::TokioIo;
use model::{Heartbeat, HostAddress, HostName, NodeAddress, NodeName, Nqn, PoolSpec, Timestamp};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};

pub(crate) const GIB: i64 = 1 << 30;

/// A driver that serves three nodes with a pool of 100 GiB each.
pub(crate) struct Driver {
    pub(crate) fake: Arc<Fake>,
    channel: Channel,
    _stop: oneshot::Sender<()>,
    _home: tempfile::TempDir,
}

impl Driver {
    pub(crate) async fn start() -> Driver {
        let fake = Arc::new(fake().await);
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("csi.sock");
        // A socket that an earlier process left is replaced.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let (stop, stopped) = oneshot::channel::<()>();
        let controller = Controller::new(Arc::clone(&fake), ControllerConfig::default());
        let path = socket.clone();
        let serving = async move {
            let stop = async { drop(stopped.await) };
            let serving = Serving::default();
            serve_controller(&path, Arc::new(controller), &serving, stop).await.unwrap();
        };
        let mut serving = Box::pin(serving);
        // One step binds the socket; the rest goes on beside the test.
        assert!(futures::poll!(&mut serving).is_pending());
        tokio::spawn(serving);
        Driver { fake, channel: connect(socket).await, _stop: stop, _home: home }
    }

    pub(crate) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    pub(crate) fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }

    pub(crate) fn metadata(&self) -> SnapshotMetadataClient<Channel> {
        SnapshotMetadataClient::new(self.channel.clone())
    }

    pub(crate) fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.channel.clone())
    }

    /// Makes a volume of a GiB.
    pub(crate) async fn volume(&self, name: &str) -> Volume {
        let made = self.controller().create_volume(create(name)).await.unwrap();
        made.into_inner().volume.unwrap()
    }
}

/// A control plane in memory with three nodes, which are hosts as well.
pub(crate) async fn fake() -> Fake {
    let fake = Fake::at(Timestamp::from_millis(1_794_778_258_000));
    for nth in 1..=3_u8 {
        add_node(&fake, nth).await;
        add_host(&fake, nth).await;
    }
    fake
}

pub(crate) async fn add_node(fake: &Fake, nth: u8) {
    let name: NodeName = format!("n{nth}").parse().unwrap();
    let address = NodeAddress {
        api: ([10, 0, 0, nth], 1).into(),
        data: vec![([10, 0, 0, nth], 2).into()],
        nqn: Nqn::node(&name).unwrap(),
    };
    let instance = format!("00000000-0000-4000-8000-00000000000{nth}").parse().unwrap();
    let beat = Heartbeat { instance, version: "1".to_owned(), address, told: None };
    fake.node_heartbeat(name.clone(), beat).await.unwrap();
    let spec = PoolSpec {
        node: name,
        disks: vec!["/dev/sdb".parse().unwrap()],
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: [].into(),
        cordons: [].into(),
    };
    fake.put_pool(format!("pool-{nth}").parse().unwrap(), spec).await.unwrap();
}

async fn add_host(fake: &Fake, nth: u8) {
    let name: HostName = format!("n{nth}").parse().unwrap();
    let nqn = format!("nqn.2026-11.io.holdfast:host:{name}");
    let instance = format!("00000000-0000-4000-8000-00000000010{nth}").parse().unwrap();
    let address: HostAddress = serde_json::from_value(serde_json::json!({ "nqn": nqn })).unwrap();
    let beat = Heartbeat { instance, version: "1".to_owned(), address, told: None };
    fake.host_heartbeat(name, beat).await.unwrap();
}

async fn connect(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::try_from("http://localhost").unwrap();
    endpoint.connect_with_connector(connector).await.unwrap()
}

pub(crate) fn capability(block: bool, mode: Mode) -> VolumeCapability {
    let access = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume::default())
    };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    }
}

pub(crate) fn mounted() -> VolumeCapability {
    capability(false, Mode::SingleNodeWriter)
}

pub(crate) fn range(required: i64, limit: i64) -> CapacityRange {
    CapacityRange { required_bytes: required, limit_bytes: limit }
}

/// A request for a volume of a GiB.
pub(crate) fn create(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(range(GIB, 0)),
        volume_capabilities: vec![mounted()],
        ..CreateVolumeRequest::default()
    }
}

/// The code of a call that must fail, with a message.
pub(crate) fn code<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, Status>) -> Code {
    let status = answer.unwrap_err();
    assert!(!status.message().is_empty() && status.details().is_empty(), "{status:?}");
    status.code()
}
