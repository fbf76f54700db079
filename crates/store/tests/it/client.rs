//! The client when things go wrong.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use store::client::{Client, ConnectError, Grant, Login, Options};
use store::contract::{
    ErrorClass, Keys, ReadError, Revision, Store as _, StoreExt as _, WatchFrom, WriteError,
};
use store::export::{Onto, export, import};
use store::proto::etcdserverpb::kv_server::{Kv, KvServer};
use store::proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use tonic::{Request, Response, Status};

use crate::embedded::Embedded;

fn hasty() -> Options {
    Options { deadline: Duration::from_millis(300), ..Options::default() }
}

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn calls_go_on_to_an_endpoint_that_works() {
    let dir = tempfile::tempdir().unwrap();
    let server = Embedded::start(dir.path().join("store"));
    let endpoints = [nobody(), nobody(), server.endpoint()];
    let client = Client::connect(&endpoints, Options::default()).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(client.get("a").await.unwrap().unwrap().value.as_ref(), b"1");
}

#[tokio::test]
async fn nobody_there_is_said_in_time_with_the_address() {
    let endpoint = nobody();
    let error = Client::connect(&[&endpoint], hasty()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }));
    assert!(error.to_string().contains(&endpoint), "{error}");
    let client = Client::lazy(&[&endpoint], hasty()).unwrap();
    let error = client.get("the-key").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    let text = error.to_string();
    assert!(text.contains(&endpoint) && text.contains("the-key"), "{text}");
    let error = client.put("the-key", "1").await.unwrap_err();
    assert!(matches!(error, WriteError::NotSent { .. }), "{error}");
    assert!(!error.may_be_applied());
}

/// A server that takes requests, counts them, and answers none of them well.
struct Faulty {
    seen: Arc<AtomicU32>,
    /// The answer; without one there is silence.
    answer: Option<fn() -> Status>,
}

impl Faulty {
    fn start(answer: Option<fn() -> Status>) -> (Client, Arc<AtomicU32>) {
        let seen = Arc::new(AtomicU32::new(0));
        let service = KvServer::new(Faulty { seen: Arc::clone(&seen), answer });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        (Client::lazy(&[endpoint], hasty()).unwrap(), seen)
    }

    async fn fail<T>(&self) -> Result<Response<T>, Status> {
        self.seen.fetch_add(1, Ordering::SeqCst);
        match self.answer {
            Some(answer) => Err(answer()),
            None => std::future::pending().await,
        }
    }
}

#[tonic::async_trait]
impl Kv for Faulty {
    async fn range(&self, _: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        self.fail().await
    }
    async fn put(&self, _: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.fail().await
    }
    async fn delete_range(
        &self,
        _: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.fail().await
    }
    async fn txn(&self, _: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.fail().await
    }
    async fn compact(
        &self,
        _: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        self.fail().await
    }
}

#[tokio::test]
async fn a_write_without_an_answer_is_unknown_and_sent_once() {
    let timed_out: fn() -> Status = || Status::unavailable("etcdserver: request timed out");
    for answer in [None, Some(timed_out)] {
        let (client, seen) = Faulty::start(answer);
        let error = client.put("a", "1").await.unwrap_err();
        assert!(matches!(error, WriteError::Unknown { .. }), "{error}");
        assert!(error.may_be_applied());
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_read_without_an_answer_is_repeated_until_its_deadline() {
    let (client, seen) = Faulty::start(Some(|| Status::unavailable("etcdserver: no leader")));
    let error = client.get("a").await.unwrap_err();
    assert!(matches!(error, ReadError::Unreachable { .. }), "{error}");
    assert!(seen.load(Ordering::SeqCst) > 1);
}

#[tokio::test]
async fn a_refusal_is_told_as_one_and_not_repeated() {
    let (client, seen) = Faulty::start(Some(|| {
        Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
    }));
    let error = client.put("a", "1").await.unwrap_err();
    assert!(matches!(error, WriteError::Full { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Operator);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    let (client, _) =
        Faulty::start(Some(|| Status::permission_denied("etcdserver: permission denied")));
    assert_eq!(client.put("a", "1").await.unwrap_err().class(), ErrorClass::Operator);
    // The same code without the server's words was made on the way: the write may be done.
    let (client, _) = Faulty::start(Some(|| Status::out_of_range("message too large")));
    assert!(client.put("a", "1").await.unwrap_err().may_be_applied());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_outlives_restarts_without_gap_or_duplicate() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Embedded::start(dir.path().join("store"));
    let client = server.client();
    let first = client.put("w/0", "1").await.unwrap();
    let mut watch = server.client().watch(WatchFrom::new(Keys::prefix("w/"), first));
    let mut seen: Vec<Revision> = Vec::new();
    for round in 0..3 {
        for key in 0..5 {
            client.put(format!("w/{key}"), round.to_string()).await.unwrap();
        }
        let news = watch.next().await.unwrap().unwrap();
        seen.extend(news.changes.iter().map(store::contract::Change::at));
        server.stop().await;
        server.restart();
    }
    while seen.len() < 16 {
        let news = watch.next().await.unwrap().unwrap();
        seen.extend(news.changes.iter().map(store::contract::Change::at));
    }
    let want: Vec<Revision> = (first.0..first.0 + 16).map(Revision).collect();
    assert_eq!(seen, want);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_members_and_leases_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Embedded::start(dir.path().join("store"));
    let client = server.client();
    let now = client.put("a", "1").await.unwrap();
    let status = client.status().await.unwrap();
    assert_eq!(status.revision, now);
    let members = client.members().await.unwrap();
    assert_eq!(members.iter().map(|member| member.id).collect::<Vec<_>>(), [status.member]);
    let (lease, ttl) = client.grant(Duration::from_mins(1)).await.unwrap();
    assert_eq!(client.leases().await.unwrap(), [lease]);
    assert!(client.time_to_live(lease).await.unwrap() <= ttl);
    client.revoke(lease).await.unwrap();
    assert_eq!(client.leases().await.unwrap(), []);
    client.time_to_live(lease).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_moves_to_another_server_and_back_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let from = Embedded::start(dir.path().join("from"));
    let to = Embedded::start(dir.path().join("to"));
    for number in 0..300u32 {
        let key = format!("k/{}", number.wrapping_mul(2_654_435_761) % 1000);
        from.client().put(key, vec![b'x'; 1000]).await.unwrap();
    }
    let mut first = Vec::new();
    let mut told = 0;
    let summary =
        export(&from.client(), &mut first, &mut |progress| told = progress.done).await.unwrap();
    assert_eq!(told, summary.keys);
    let mut source = std::io::Cursor::new(first.clone());
    let mut ignore = |_| {};
    import(&to.client(), &mut source, Onto::Empty, &mut ignore).await.unwrap();
    let mut second = Vec::new();
    export(&to.client(), &mut second, &mut |_| {}).await.unwrap();
    assert!(first == second);
}

fn login(user: &str) -> Options {
    let login = Some(Login { user: user.to_owned(), password: format!("{user}'s") });
    Options { login, ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_reaches_its_keys_only_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Embedded::start(dir.path().join("store"));
    let anybody = server.client();
    anybody.put("spec/1", "1").await.unwrap();
    let engine = login("engine").login.unwrap();
    let grants =
        [Grant::ReadWrite(Keys::prefix("record/")), Grant::Read(Keys::prefix("sequence/"))];
    for _ in 0..2 {
        anybody.ensure_user(&engine, &grants).await.unwrap();
    }
    anybody.require_users("root's").await.unwrap();
    let refused = anybody.get("spec/1").await.unwrap_err();
    assert!(refused.to_string().contains("user name is empty"), "{refused}");
    let connect = |user: &str| Client::lazy(&[server.endpoint()], login(user)).unwrap();
    let (root, engine) = (connect("root"), connect("engine"));
    root.put("sequence/1", "1").await.unwrap();
    for round in 0..2 {
        engine.put("record/1", format!("{round}")).await.unwrap();
        assert_eq!(engine.get("sequence/1").await.unwrap().unwrap().value.as_ref(), b"1");
        for forbidden in ["spec/1", "sequence/1", "leader"] {
            let error = engine.put(forbidden, "2").await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Operator, "{error}");
            assert!(!error.may_be_applied(), "{error}");
        }
        engine.get("spec/1").await.unwrap_err();
        let mut watch = engine.watch(WatchFrom::new(Keys::prefix("record/"), Revision(2)));
        watch.next().await.unwrap().unwrap();
        assert_eq!(root.get("spec/1").await.unwrap().unwrap().value.as_ref(), b"1");
        // Tokens end with the server; the clients get others by themselves.
        server.stop().await;
        server.restart();
    }
    let mut wrong = login("engine");
    wrong.login.as_mut().unwrap().password = "guessed".to_owned();
    let error = Client::lazy(&[server.endpoint()], wrong).unwrap().get("record/1").await;
    assert!(error.unwrap_err().to_string().contains("authentication failed"));
}
