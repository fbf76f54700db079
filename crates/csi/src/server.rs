//! Services on a unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::rest::Control;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::authority::RegistrationStream;
use crate::liveness::Serving;
use crate::node::Devices;
use crate::proto::controller_server::{Controller as ControllerService, ControllerServer};
use crate::proto::group_controller_server::GroupControllerServer;
use crate::proto::identity_server::{Identity as IdentityService, IdentityServer};
use crate::proto::node_server::NodeServer;
use crate::proto::pluginregistration::registration_server::RegistrationServer;
use crate::proto::snapshot_metadata_server::SnapshotMetadataServer;
use crate::registration::Registration;
use crate::{Controller, GroupController, Identity, Node, SnapshotMetadata};

/// Why services cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Something else has the path of the socket.
    #[error("{0} exists and is not a socket; remove it, or choose another path")]
    NotASocket(PathBuf),
    /// The socket cannot be made.
    #[error("no socket can be made at {path}; its folder must exist and be writable")]
    Bind {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server ended.
    #[error("the server on {path} ended")]
    Serve {
        /// Where.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// Listens on a path that only this user can reach. A socket that an earlier process left there is
/// replaced.
fn listen(path: &Path) -> Result<UnixListenerStream, ServeError> {
    let failed = |source| ServeError::Bind { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => fs::remove_file(path).map_err(failed)?,
        Ok(_) => return Err(ServeError::NotASocket(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(UnixListenerStream::new(listener))
}

/// Serves what the controller's sidecars ask for, until `stop` ends.
pub async fn serve_controller<C: Control>(
    path: &Path,
    controller: Arc<Controller<C>>,
    serving: &Serving,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let socket = listen(path)?;
    serving.begin();
    tracing::info!(socket = %path.display(), "CSI controller services");
    let control = Arc::clone(controller.control());
    let group = GroupController::new(Arc::clone(&control), &controller);
    let served = Server::builder()
        .add_service(IdentityServer::new(Identity::new(Arc::clone(&control))))
        .add_service(ControllerServer::from_arc(controller))
        .add_service(GroupControllerServer::new(group))
        .add_service(SnapshotMetadataServer::new(SnapshotMetadata::new(control)))
        .serve_with_incoming_shutdown(socket, stop)
        .await;
    served.map_err(|source| ServeError::Serve { path: path.to_owned(), source })
}

/// Serves another backend's controller, until `stop` ends.
pub async fn serve_controller_of<I: IdentityService, C: ControllerService>(
    path: &Path,
    (identity, controller): (I, C),
    serving: &Serving,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let socket = listen(path)?;
    serving.begin();
    tracing::info!(socket = %path.display(), "CSI controller services");
    let served = Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(ControllerServer::new(controller))
        .serve_with_incoming_shutdown(socket, stop)
        .await;
    served.map_err(|source| ServeError::Serve { path: path.to_owned(), source })
}

/// Where a node serves.
#[derive(Clone, Copy, Debug)]
pub struct NodeSockets<'a> {
    /// The socket of the driver.
    pub driver: &'a Path,
    /// The socket by which the kubelet finds it, if it shall.
    pub registration: Option<&'a Path>,
}

/// Serves what the kubelet of this node asks for, until `stop` ends; registers with it, if a path
/// for that is given.
pub async fn serve_node<C: Control, D: Devices>(
    sockets: NodeSockets<'_>,
    (control, node): (Arc<C>, Node<D>),
    serving: &Serving,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    serve_node_of(sockets, (Identity::new(control), node), serving, stop).await
}

/// The same, for a driver with an identity of its own.
pub async fn serve_node_of<I: IdentityService, D: Devices>(
    sockets: NodeSockets<'_>,
    (identity, node): (I, Node<D>),
    serving: &Serving,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let NodeSockets { driver: path, registration } = sockets;
    let socket = listen(path)?;
    serving.begin();
    tracing::info!(socket = %path.display(), "CSI node services");
    let (stopping, stopped) = watch::channel(false);
    let serves = Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(NodeServer::new(node))
        .serve_with_incoming_shutdown(socket, until(stopped.clone()));
    let registering = async {
        let Some(at) = registration else { return Ok(()) };
        // Only now: the kubelet calls the other socket as soon as it finds this one.
        let socket = listen(at)?.map(|stream| stream.map(RegistrationStream::new));
        tracing::info!(socket = %at.display(), "waiting for the kubelet to register this driver");
        let registered = RegistrationServer::new(Registration::new(path));
        let server = Server::builder().add_service(registered);
        let served = server.serve_with_incoming_shutdown(socket, until(stopped.clone())).await;
        // One that is left would have the kubelet call a driver that is gone.
        let _ = fs::remove_file(at);
        served.map_err(|source| ServeError::Serve { path: at.to_owned(), source })
    };
    let serves = async {
        serves.await.map_err(|source| ServeError::Serve { path: path.to_owned(), source })
    };
    let stop = async {
        stop.await;
        stopping.send_replace(true);
        Ok(())
    };
    tokio::try_join!(serves, registering, stop).map(|_| ())
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // An error: whoever would have said so is gone.
    let _ = stopped.wait_for(|stop| *stop).await;
}
