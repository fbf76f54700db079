//! Requests as bytes: what a client of ours would never send.

use std::fmt::Write;
use std::net::SocketAddr;

use model::Problem;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn parse(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// The problem it must be.
    pub(crate) fn problem(&self) -> Problem {
        assert!(self.head.contains("content-type: application/problem+json"), "{}", self.head);
        let problem: Problem = serde_json::from_str(&self.body).unwrap();
        assert_eq!(problem.kind.http(), self.status);
        let id = problem.request.as_deref().unwrap();
        assert!(self.head.contains(&format!("x-request-id: {id}")), "{}", self.head);
        problem
    }
}

/// Sends bytes and reads until the server closes.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    Answer::parse(&String::from_utf8_lossy(&text))
}

/// A request with further header lines and a body.
pub(crate) async fn ask(
    address: SocketAddr,
    request: &str,
    headers: &[&str],
    body: &str,
) -> Answer {
    let mut text = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for header in headers {
        write!(text, "{header}\r\n").unwrap();
    }
    write!(text, "content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    raw(address, text.as_bytes()).await
}

/// The same with a JSON body.
pub(crate) async fn send(address: SocketAddr, request: &str, body: &Value) -> Answer {
    ask(address, request, &["content-type: application/json"], &body.to_string()).await
}
