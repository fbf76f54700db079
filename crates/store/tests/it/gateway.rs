//! The JSON gateway of an embedded server, asked by hand.

use std::net::SocketAddr;

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
        "POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
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
