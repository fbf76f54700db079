//! Whether a driver is alive and ready, as the kubelet asks for it.

use std::path::Path;
use std::sync::Arc;

use api::rest::Remote;
use api::{Client, ClientConfig};
use csi::{Controller, ControllerConfig, Serving, serve_controller, serve_liveness};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::driver::fake;

/// The code and the text of an answer.
async fn get(at: std::net::SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (code, body.to_owned())
}

async fn liveness(socket: &Path, serving: &Serving) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (socket, serving) = (socket.to_owned(), serving.clone());
    tokio::spawn(async move {
        serve_liveness(listener, &socket, serving, std::future::pending()).await.unwrap();
    });
    address
}

#[tokio::test]
async fn a_driver_that_starts_or_waits_is_alive_and_one_that_is_gone_is_not() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("csi.sock");
    let serving = Serving::default();
    let at = liveness(&socket, &serving).await;
    assert_eq!(get(at, "/healthz").await.0, 200, "it has not begun yet");
    assert_eq!(get(at, "/readyz").await.0, 503);

    let controller = Controller::new(Arc::new(fake().await), ControllerConfig::default());
    let controller = Arc::new(controller);
    let never = std::future::pending();
    let mut serves = Box::pin(serve_controller(&socket, controller, &serving, never));
    assert!(futures::poll!(&mut serves).is_pending());
    tokio::select! {
        ended = &mut serves => panic!("{ended:?}"),
        () = async {
            assert_eq!(get(at, "/healthz").await, (200, "ready\n".to_owned()));
            assert_eq!(get(at, "/readyz").await.0, 200);
            assert_eq!(get(at, "/other").await.0, 404);
        } => {}
    }
    drop(serves);
    let (code, said) = get(at, "/healthz").await;
    assert_eq!(code, 503, "nobody answers on the socket any more");
    assert!(said.contains("csi.sock"), "{said}");
}

#[tokio::test]
async fn a_driver_without_its_control_plane_is_alive_and_not_ready() {
    // Nobody listens there any more.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = ClientConfig::plain(closed.to_string().parse().unwrap());
    let control = Arc::new(Remote::new(Client::new(config).unwrap()));
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("csi.sock");
    let serving = Serving::default();
    let at = liveness(&socket, &serving).await;
    let controller = Arc::new(Controller::new(control, ControllerConfig::default()));
    let never = std::future::pending();
    tokio::select! {
        ended = serve_controller(&socket, controller, &serving, never) => panic!("{ended:?}"),
        () = async {
            // The socket is bound by the first step of the other branch.
            tokio::task::yield_now().await;
            let (code, said) = get(at, "/healthz").await;
            assert_eq!(code, 200, "{said}");
            assert_eq!(get(at, "/readyz").await.0, 503);
        } => {}
    }
}
