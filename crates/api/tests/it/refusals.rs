//! Every kind of bad input is refused by kind, with the field and the id of the request.

use std::time::Duration;

use api::node::{Node, Remote};
use api::{CallError, Client, ClientConfig, Guard, Limits, NoBody, NoQuery};
use model::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake::{Running, golden, good, order};
use crate::server::{ask, raw, send};

fn pool_order() -> Value {
    serde_json::to_value(order(1, golden::<Pool>("pool.json").order().spec)).unwrap()
}

fn small() -> Guard {
    let limits = Limits { body: 2000, request: Duration::from_millis(300), ..Limits::default() };
    Guard { limits, ..Guard::default() }
}

/// The order with one place changed.
fn with(pointer: &str, value: Value) -> Value {
    let mut order = pool_order();
    *order.pointer_mut(pointer).unwrap() = value;
    order
}

#[tokio::test]
async fn bodies_of_the_wrong_form_name_the_field() {
    let running = Running::new().await;
    let mut unknown = pool_order();
    unknown["spec"]["colour"] = json!("red");
    let mut missing = pool_order();
    missing["spec"].as_object_mut().unwrap().remove("disks");
    for (body, field, says) in [
        (with("/generation", json!("one")), "generation", "expected"),
        (with("/generation", json!(0)), "generation", "nonzero"),
        (with("/generation", json!(-1)), "generation", "invalid value"),
        (with("/spec/clusterSize", json!("1MiB")), "spec.clusterSize", "expected u64"),
        (with("/spec/clusterSize", json!(1e30)), "spec.clusterSize", "expected u64"),
        (with("/spec/clusterSize", json!(4096)), "spec.clusterSize", "256KiB to 64MiB"),
        (with("/spec/disks/0", json!("sda")), "spec.disks[0]", "absolute path"),
        (with("/spec/disks", json!([])), "spec.disks", "1 to 64"),
        (with("/spec/node", json!("No de")), "spec.node", "a-z"),
        (unknown, "spec.colour", "unknown field"),
        (missing, "spec", "missing field `disks`"),
    ] {
        let problem = send(running.address, "PUT /v1/pools/p", &body).await.problem();
        assert_eq!(problem.kind, ProblemKind::InvalidArgument, "{problem:?}");
        assert_eq!(problem.field.as_deref(), Some(field), "{problem:?}");
        assert!(problem.detail.contains(says), "{problem:?}");
    }
}

#[tokio::test]
async fn requests_that_cannot_be_read() {
    let running = Running::new().await;
    let json = "content-type: application/json";
    let order = pool_order().to_string();
    let twice = format!("{order} {order}");
    for (request, headers, body, kind) in [
        ("PUT /v1/pools/p", &[json][..], "{", ProblemKind::Malformed),
        ("PUT /v1/pools/p", &[json], "", ProblemKind::Malformed),
        ("PUT /v1/pools/p", &[json], twice.as_str(), ProblemKind::Malformed),
        ("PUT /v1/pools/p", &[], order.as_str(), ProblemKind::WrongMediaType),
        ("GET /v1/pools", &[], "{}", ProblemKind::Malformed),
        ("PUT /v1/pools/No_Pool", &[json], order.as_str(), ProblemKind::InvalidArgument),
        ("GET /v1/targets/7", &[], "", ProblemKind::InvalidArgument),
        ("GET /v1/targets/%FF", &[], "", ProblemKind::Malformed),
        ("GET /v1/pools?limit=0", &[], "", ProblemKind::InvalidArgument),
        ("GET /v1/pools?limit=1001", &[], "", ProblemKind::InvalidArgument),
        ("GET /v1/pools?limit=x", &[], "", ProblemKind::InvalidArgument),
        ("GET /v1/pools?page=1", &[], "", ProblemKind::InvalidArgument),
        ("DELETE /v1/pools/p", &[], "", ProblemKind::InvalidArgument),
        ("GET /v1/pools", &["if-match: 7"], "", ProblemKind::InvalidArgument),
        ("GET /v2/pools", &[], "", ProblemKind::NotFound),
        ("GET /v1/pools/p", &[], "", ProblemKind::NotFound),
        ("PATCH /v1/pools/p", &[json], order.as_str(), ProblemKind::MethodNotAllowed),
    ] {
        let answer = ask(running.address, request, headers, body).await;
        assert_eq!(answer.problem().kind, kind, "{request}: {}", answer.body);
    }
    let answer = ask(running.address, "POST /v1/pools/p", &[], "").await;
    assert!(answer.head.contains("allow: "), "{}", answer.head);
}

#[tokio::test]
async fn the_id_of_a_request_is_kept_if_it_can_be_logged() {
    let running = Running::new().await;
    let id = async |given: &str| {
        let header = format!("x-request-id: {given}");
        let answer = ask(running.address, "GET /v1/nothing", &[&header], "").await;
        answer.problem().request.unwrap()
    };
    assert_eq!(id("job-7.a").await, "job-7.a");
    assert_ne!(id("a b").await, "a b");
    let long = "x".repeat(65);
    let (made, other) = (id(&long).await, id(&long).await);
    assert!(made != long && made != other, "{made} and {other}");
}

#[tokio::test]
async fn too_much_and_too_slow() {
    let running = Running::with(small(), None).await;
    let large = " ".repeat(2001);
    let json = ["content-type: application/json"];
    let answer = ask(running.address, "PUT /v1/pools/p", &json, &large).await;
    assert_eq!(answer.problem().kind, ProblemKind::TooLarge);
    // The body never comes whole.
    let slow = "PUT /v1/pools/p HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    assert_eq!(raw(running.address, slow.as_bytes()).await.problem().kind, ProblemKind::TimedOut);
    // The handler never answers.
    let answer = send(running.address, "PUT /v1/pools/slow", &pool_order()).await;
    assert_eq!(answer.problem().kind, ProblemKind::TimedOut);
    // The headers are longer than anybody needs: refused before there is a request.
    let long = format!("x-long: {}", "x".repeat(20 << 10));
    assert_eq!(ask(running.address, "GET /v1/node", &[&long], "").await.status, 431);
}

#[tokio::test]
async fn a_bug_in_a_handler_is_one_answer_and_not_the_end() {
    let running = Running::new().await;
    let answer = send(running.address, "PUT /v1/pools/panic", &pool_order()).await;
    assert_eq!(answer.problem().kind, ProblemKind::Internal);
    assert!(running.remote().health().await.is_ok());
}

#[tokio::test]
async fn the_client_says_who_must_act() {
    // A port that was free a moment ago: nobody answers there.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let gone = Remote::plain(good(&format!("127.0.0.1:{port}"))).unwrap();
    assert_eq!(gone.health().await.unwrap_err().kind, ProblemKind::NodeUnavailable);

    // Somebody listens there, but never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = silent.local_addr().unwrap().to_string().parse().unwrap();
    let patience = Duration::from_millis(50);
    let client = Client::new(ClientConfig { patience, ..ClientConfig::plain(server) }).unwrap();
    let health = &api::node::routes::HEALTH;
    let error = client.call(health, (), NoQuery {}, NoBody).await.unwrap_err();
    assert!(matches!(error, CallError::TimedOut { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Retry);

    // Somebody answers, but with something else.
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = other.local_addr().unwrap().to_string().parse().unwrap();
    let asked = tokio::spawn(async move {
        let (mut stream, _): (TcpStream, _) = other.accept().await.unwrap();
        let mut some = [0; 1024];
        let length = stream.read(&mut some).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
        stream.write_all(answer).await.unwrap();
        String::from_utf8_lossy(&some[..length]).into_owned()
    });
    let client = Client::new(ClientConfig::plain(server)).unwrap();
    let error = client.call(health, (), NoQuery {}, NoBody).await.unwrap_err();
    assert!(matches!(error, CallError::Unreadable { .. }), "{error:?}");
    // The caller has named its request, so both sides can find it in their logs.
    let asked = asked.await.unwrap();
    assert!(asked.contains("\r\nx-request-id: "), "{asked}");
}
