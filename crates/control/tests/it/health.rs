//! What `/v1/health` and its neighbours answer.

use std::net::SocketAddr;
use std::sync::Arc;

use api::rest::Health;
use control::{Config, Service};
use model::{Problem, ProblemKind};
use store::client::{Client, Options};
use store::contract::{Store, StoreExt, SystemClock};
use store::testing::MemoryStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// One answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// A control plane on a port of its own, stopped when dropped.
struct Running {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Running {
    async fn with(store: Arc<dyn Store>) -> Running {
        let config = Config::plain(SocketAddr::from(([127, 0, 0, 1], 0)));
        let service = Service::bind(&config, store).await.unwrap();
        let address = service.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(service.run(async move {
            let _ = stopped.await;
        }));
        Running { address, _stop: stop }
    }

    async fn ask(&self, method: &str, path: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }
}

impl Answer {
    fn problem(&self) -> Problem {
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        serde_json::from_str(&self.body).unwrap()
    }
}

#[tokio::test]
async fn health_tells_the_revision_of_the_store() {
    let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
    let handed: Arc<dyn Store> = Arc::<MemoryStore>::clone(&store);
    let running = Running::with(handed).await;
    let revision = async || {
        let answer = running.ask("GET", "/v1/health").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let health: Health = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(health.status, "ok");
        health.store_revision
    };
    let written = store.put("a", "b").await.unwrap();
    assert!(revision().await >= written.0);
}

#[tokio::test]
async fn without_its_store_it_says_so() {
    // A port that was free a moment ago: nobody answers there.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let gone = Client::lazy(&[format!("http://127.0.0.1:{port}")], Options::default()).unwrap();
    let running = Running::with(Arc::new(gone)).await;
    assert_eq!(running.ask("GET", "/v1/live").await.status, 200);
    assert_eq!(running.ask("GET", "/v1/ready").await.status, 503);
    let answer = running.ask("GET", "/v1/health").await;
    assert_eq!(answer.status, 503);
    let problem = answer.problem();
    assert_eq!(problem.kind, ProblemKind::StoreUnavailable);
    assert!(problem.detail.contains("store"), "{}", problem.detail);
}

#[tokio::test]
async fn wrong_paths_and_methods_are_problems() {
    let running = Running::with(Arc::new(MemoryStore::new(Arc::new(SystemClock::new())))).await;
    let lost = running.ask("GET", "/v1/nowhere").await;
    assert_eq!((lost.status, lost.problem().kind), (404, ProblemKind::NotFound));
    assert!(lost.problem().detail.contains("/v1/nowhere"));
    let wrong = running.ask("POST", "/v1/health").await;
    assert_eq!((wrong.status, wrong.problem().kind), (405, ProblemKind::MethodNotAllowed));
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(SystemClock::new())));
    let error = Service::bind(&Config::plain(listen), store).await.err().unwrap();
    assert!(error.to_string().contains(&listen.to_string()), "{error}");
}
