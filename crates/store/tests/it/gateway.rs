//! The JSON gateway of an embedded server, asked by hand.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::embedded::Embedded;

/// A request, with these headers besides.
async fn send(to: SocketAddr, path: &str, headers: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let body = body.to_string();
    let length = body.len();
    let text = format!(
        "POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n\
         {body}"
    );
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// The status and the whole answer.
async fn post(to: SocketAddr, path: &str, headers: &str, body: &Value) -> (u16, String) {
    let mut answer = String::new();
    let mut stream = send(to, path, headers, body).await;
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), answer)
}

/// Reads a stream until it has said this.
async fn until(stream: &mut TcpStream, said: &mut String, what: &str) {
    let reads = async {
        while !said.contains(what) {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.unwrap();
            assert_ne!(read, 0, "it ended: {said}");
            said.push_str(str::from_utf8(&piece[..read]).unwrap());
        }
    };
    let limit = Duration::from_secs(30);
    assert!(tokio::time::timeout(limit, reads).await.is_ok(), "it does not say {what}: {said}");
}

/// Nothing that a page can make a browser send changes or reads a store that everybody may use.
#[tokio::test]
async fn a_web_page_from_elsewhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Embedded::start(dir.path().into());
    let at = server.address();
    let (here, put) = (format!("host: {at}\r\n"), json!({ "key": "YQ==", "value": "MQ==" }));
    assert_eq!(post(at, "/v3/kv/put", &here, &put).await.0, 200);
    let all = json!({ "key": "AA==", "range_end": "AA==" });
    let page = format!("{here}origin: http://evil.example\r\ncontent-type: text/plain\r\n");
    let (status, said) = post(at, "/v3/kv/deleterange", &page, &all).await;
    assert_eq!(status, 403, "{said}");
    assert!(said.contains("web page of another server"), "{said}");
    // Its name was made to point here, so that it could read the answer.
    let rebound = "host: evil.example\r\nuser-agent: Mozilla/5.0\r\n";
    assert_eq!(post(at, "/v3/kv/range", rebound, &all).await.0, 403);
    let (status, said) = post(at, "/v3/kv/range", &here, &all).await;
    assert!(status == 200 && said.contains("YQ=="), "{said}");
    server.stop().await;
}

/// Whoever watches as nobody in particular hears nothing more once users are required.
#[tokio::test]
async fn what_is_open_ends_when_users_are_required() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Embedded::start(dir.path().into());
    let at = server.address();
    let here = format!("host: {at}\r\n");
    let mut watching =
        send(at, "/v3/watch", &here, &json!({ "create_request": { "key": "YQ==" } })).await;
    let mut watched = String::new();
    until(&mut watching, &mut watched, "\"created\":true").await;
    // YQ== is what the key of an election begins with, too.
    let mut observing = send(at, "/v3/election/observe", &here, &json!({ "name": "YQ==" })).await;
    let lease = json!({ "TTL": 60, "ID": 7 });
    assert_eq!(post(at, "/v3/lease/grant", &here, &lease).await.0, 200);
    let campaign = json!({ "name": "YQ==", "lease": 7, "value": "Zmlyc3Q=" });
    assert_eq!(post(at, "/v3/election/campaign", &here, &campaign).await.0, 200);
    let mut observed = String::new();
    until(&mut observing, &mut observed, "Zmlyc3Q=").await;
    let root = [
        ("user/add", json!({ "name": "root", "password": "secret" })),
        ("role/add", json!({ "name": "root" })),
        ("user/grant", json!({ "user": "root", "role": "root" })),
        ("enable", json!({})),
    ];
    for (call, body) in root {
        let (status, said) = post(at, &format!("/v3/auth/{call}"), &here, &body).await;
        assert_eq!(status, 200, "{call}: {said}");
    }
    let root = json!({ "name": "root", "password": "secret" });
    let (_, said) = post(at, "/v3/auth/authenticate", &here, &root).await;
    let token = said.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let known = format!("{here}authorization: {token}\r\n");
    let secret = json!({ "key": "YQ==", "value": "c2VjcmV0" });
    assert_eq!(post(at, "/v3/kv/put", &known, &secret).await.0, 200);
    until(&mut watching, &mut watched, "\"canceled\":true").await;
    assert!(!watched.contains("c2VjcmV0"), "{watched}");
    let second = json!({ "key": "YS83", "value": "c2Vjb25k", "lease": 7 });
    assert_eq!(post(at, "/v3/kv/put", &known, &second).await.0, 200);
    until(&mut observing, &mut observed, "error").await;
    assert!(!observed.contains("c2Vjb25k"), "{observed}");
    server.stop().await;
}
