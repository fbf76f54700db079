//! Tokens, roles and TLS.

use std::sync::Arc;

use api::events::Log;
use api::node::DeletePool;
use api::node::routes::{DELETE_POOL, NODE, PUT_POOL};
use api::rest::fake::Fake;
use api::rest::routes::STATUS;
use api::{
    Client, ClientConfig, Guard, NoBody, NoQuery, Server, TlsClient, TlsServer, Token, Tokens,
    heartbeat,
};
use model::*;

use crate::fake::{Running, golden, good, id, order};
use crate::server::ask;

const VIEWER: &str = "viewer-0123456789abcdef";
const EDITOR: &str = "editor-0123456789abcdef";
const ADMIN: &str = "admin-0123456789abcdef";

fn tokens(text: &str) -> Result<Tokens, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    std::fs::write(&path, text).unwrap();
    Tokens::read(&path).map_err(|error| error.to_string())
}

async fn guarded() -> Running {
    let known = format!("# people\nviewer {VIEWER}\n\neditor {EDITOR}\nadmin {ADMIN}\n");
    let guard = Guard { tokens: Some(Arc::new(tokens(&known).unwrap())), ..Guard::default() };
    Running::with(guard, None).await
}

fn client(running: &Running, token: Option<&str>) -> Client {
    let server = running.address.to_string().parse().unwrap();
    let token = token.map(|token| Token::new(token).unwrap());
    let config = ClientConfig { token, ..ClientConfig::plain(server) };
    assert!(!format!("{config:?}").contains("0123456789abcdef"), "{config:?}");
    Client::new(config).unwrap()
}

#[tokio::test]
async fn each_role_may_do_its_part() {
    use ProblemKind::{PermissionDenied as Denied, Unauthenticated as Unknown};
    let running = guarded().await;
    let spec = golden::<Pool>("pool.json").order().spec;
    for (token, look, change, destroy) in [
        (None, Some(Unknown), Some(Unknown), Some(Unknown)),
        (Some("viewer-0123456789abcdeF"), Some(Unknown), Some(Unknown), Some(Unknown)),
        (Some(VIEWER), None, Some(Denied), Some(Denied)),
        (Some(EDITOR), None, None, Some(Denied)),
        (Some(ADMIN), None, None, None),
    ] {
        let client = client(&running, token);
        let kind = |problem: api::CallError| Problem::from(problem).kind;
        let pool: PoolName = good("pool-1");
        let looked = client.call(&NODE, (), NoQuery {}, NoBody).await;
        assert_eq!(looked.err().map(kind), look, "{token:?}");
        let request = order(1, spec.clone());
        let changed = client.call(&PUT_POOL, (pool.clone(),), NoQuery {}, request).await;
        assert_eq!(changed.err().map(kind), change, "{token:?}");
        let (generation, uuid) = (Generation::FIRST, id(1));
        let last = DeletePool { generation, uuid };
        let destroyed = client.call(&DELETE_POOL, (pool,), last, NoBody).await;
        assert_eq!(destroyed.err().map(kind), destroy, "{token:?}");
    }
}

const ENGINE: &str = "engine-0123456789abcdef";
const AGENT: &str = "agent-0123456789abcdef";

/// A machine says that it is there, and nothing else; an editor says that of no engine, since the
/// control plane calls it where that was said.
#[tokio::test]
async fn a_machine_speaks_for_itself_only() {
    use ProblemKind::PermissionDenied as Denied;
    let known = format!(
        "viewer {VIEWER}\neditor {EDITOR}\nadmin {ADMIN}\nnode:n1 {ENGINE}\nhost:h1 {AGENT}\n"
    );
    let guard = Guard { tokens: Some(Arc::new(tokens(&known).unwrap())), ..Guard::default() };
    let bound = Server::bind(([127, 0, 0, 1], 0).into(), None, guard.limits).await.unwrap();
    let address = bound.local_addr().unwrap();
    let events = Arc::new(Log::new(id(1), 4.try_into().unwrap()));
    let router = api::rest::router(Fake::at(Timestamp::EPOCH), events, guard);
    tokio::spawn(bound.run(router, std::future::pending()));
    let spec = golden::<Node>("node.json").spec().clone();
    let (instance, version) = (id(1), "1".to_owned());
    let node = Heartbeat { instance, version: version.clone(), address: spec.address, told: None };
    let spec = golden::<Host>("host.json").spec().clone();
    let host = Heartbeat { instance, version, address: spec.address, told: None };
    for (token, own_node, other_node, own_host, other_host, look) in [
        (VIEWER, Some(Denied), Some(Denied), Some(Denied), Some(Denied), None),
        (EDITOR, Some(Denied), Some(Denied), None, None, None),
        (ADMIN, None, None, None, None, None),
        (ENGINE, None, Some(Denied), Some(Denied), Some(Denied), Some(Denied)),
        (AGENT, Some(Denied), Some(Denied), None, Some(Denied), Some(Denied)),
    ] {
        let server = address.to_string().parse().unwrap();
        let config = ClientConfig { token: Token::new(token), ..ClientConfig::plain(server) };
        let client = Client::new(config).unwrap();
        let kind = |problem: api::CallError| Problem::from(problem).kind;
        for (name, refused) in [("n1", own_node), ("n2", other_node)] {
            let at = (good(name),);
            let heard = client.call(&heartbeat::NODE, at, NoQuery {}, node.clone()).await;
            assert_eq!(heard.err().map(kind), refused, "{token} as node {name}");
        }
        for (name, refused) in [("h1", own_host), ("n1", other_host)] {
            let at = (good(name),);
            let heard = client.call(&heartbeat::HOST, at, NoQuery {}, host.clone()).await;
            assert_eq!(heard.err().map(kind), refused, "{token} as host {name}");
        }
        let looked = client.call(&STATUS, (), NoQuery {}, NoBody).await;
        assert_eq!(looked.err().map(kind), look, "{token}");
    }
}

#[tokio::test]
async fn health_needs_no_token_and_a_wrong_scheme_is_named() {
    let running = guarded().await;
    assert_eq!(ask(running.address, "GET /v1/health", &[], "").await.status, 200);
    let answer = ask(running.address, "GET /v1/node", &["authorization: Basic eDp5"], "").await;
    assert_eq!(answer.problem().kind, ProblemKind::Unauthenticated);
    assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
}

#[test]
fn a_bad_file_of_tokens_is_refused_by_line() {
    for (text, says) in [
        ("", "no token"),
        ("# nothing\n", "no token"),
        ("viewer short", "line 1"),
        ("admin 0123456789abcdef\nroot 0123456789abcdef", "line 2"),
        ("anybody 0123456789abcdef", "line 1"),
        ("admin 0123456789 abcdef", "line 1"),
        ("node 0123456789abcdef", "line 1"),
        ("node:Not_A_Name 0123456789abcdef", "line 1"),
        ("admin:n1 0123456789abcdef", "line 1"),
    ] {
        let refused = tokens(text).unwrap_err();
        assert!(refused.contains(says) && !refused.contains("0123"), "{text}: {refused}");
    }
}

#[test]
fn a_token_is_one_word_that_is_never_printed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Token::read(&path).map_err(|error| error.to_string())
    };
    let token = read(&format!("  {ADMIN}\n")).unwrap();
    assert_eq!(token, Token::new(ADMIN).unwrap());
    assert!(!format!("{token:?}").contains("0123456789abcdef"), "{token:?}");
    for bad in ["", "short", &format!("admin {ADMIN}"), &format!("{ADMIN}\n{VIEWER}")] {
        let refused = read(bad).unwrap_err();
        assert!(refused.contains("one word") && !refused.contains("0123"), "{refused}");
    }
}

#[tokio::test]
async fn tls_is_spoken_and_strangers_are_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let made = |name| rcgen::generate_simple_self_signed([String::from(name)]).unwrap();
    let (ours, strange) = (made("localhost"), made("localhost"));
    let chain = write("chain.pem", ours.cert.pem());
    let key = write("key.pem", ours.signing_key.serialize_pem());
    let stranger = write("strange.pem", strange.cert.pem());
    let empty = write("empty.pem", String::new());
    let server = TlsServer::read(&chain, &key).unwrap();
    let running = Running::with(Guard::default(), Some(&server)).await;
    let call = async |authorities| {
        let server = good(&format!("localhost:{}", running.address.port()));
        let tls = Some(TlsClient::read(authorities).unwrap());
        let client = Client::new(ClientConfig { tls, ..ClientConfig::plain(server) }).unwrap();
        client.call(&NODE, (), NoQuery {}, NoBody).await
    };
    assert!(call(&chain).await.is_ok());
    let refused = Problem::from(call(&stranger).await.unwrap_err());
    assert_eq!(refused.kind, ProblemKind::NodeUnavailable);
    assert!(refused.detail.contains("is not believed: invalid peer cert"), "{refused}");
    // One that should have been asked with TLS, and one that cannot be.
    let plain = client(&running, None).call(&NODE, (), NoQuery {}, NoBody).await.unwrap_err();
    assert!(plain.to_string().contains("--ca"), "{plain}");
    let unguarded = Running::with(Guard::default(), None).await;
    let server = good(&format!("localhost:{}", unguarded.address.port()));
    let tls = Some(TlsClient::read(&chain).unwrap());
    let secured = Client::new(ClientConfig { tls, ..ClientConfig::plain(server) }).unwrap();
    let refused = secured.call(&NODE, (), NoQuery {}, NoBody).await.unwrap_err();
    assert!(refused.to_string().contains("does not speak TLS"), "{refused}");
    assert!(TlsClient::read(&empty).unwrap_err().to_string().contains("no certificate"));
    assert!(TlsServer::read(&chain, &chain).unwrap_err().to_string().contains("private key"));
}

#[tokio::test]
async fn servers_may_share_a_certificate_under_one_name() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["engines".to_owned()]).unwrap();
    let (chain, key) = (dir.path().join("chain.pem"), dir.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = TlsServer::read(&chain, &key).unwrap();
    let running = Running::with(Guard::default(), Some(&server)).await;
    let call = async |tls| {
        let server = good(&running.address.to_string());
        let tls = Some(tls);
        let client = Client::new(ClientConfig { tls, ..ClientConfig::plain(server) }).unwrap();
        client.call(&NODE, (), NoQuery {}, NoBody).await
    };
    let tls = || TlsClient::read(&chain).unwrap();
    let refused = call(tls()).await.unwrap_err();
    assert!(refused.to_string().contains("is not believed"), "{refused}");
    assert!(call(tls().expecting("engines").unwrap()).await.is_ok());
    let refused = call(tls().expecting("others").unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("is not believed"), "{refused}");
    let wrong = tls().expecting("not a name").unwrap_err();
    assert!(wrong.to_string().contains("DNS name"), "{wrong}");
}
