//! HTTP/1.1 by hand: no client between the case and the server.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::Failure;
use super::target::Target;

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) status: u16,
    chunked: bool,
    left: Option<usize>,
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Target {
    /// The whole answer to a call of the gateway.
    pub(super) async fn post(&self, path: &str, body: Value) -> Result<(u16, Value), Failure> {
        self.post_as("", path, body).await
    }

    /// The same with a token.
    pub(super) async fn post_as(
        &self,
        token: &str,
        path: &str,
        body: Value,
    ) -> Result<(u16, Value), Failure> {
        let mut answer = self.send("POST", token, path, &body.to_string()).await?;
        let text = answer.rest().await?;
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok((answer.status, json))
    }

    /// The answer to a call whose answer is lines.
    pub(super) async fn lines(&self, path: &str, body: Value) -> Result<Answer, Failure> {
        self.send("POST", "", path, &body.to_string()).await
    }

    /// The whole answer to a GET.
    pub(super) async fn fetch(&self, path: &str) -> Result<(u16, String), Failure> {
        let mut answer = self.send("GET", "", path, "").await?;
        Ok((answer.status, answer.rest().await?))
    }

    async fn send(
        &self,
        verb: &str,
        token: &str,
        path: &str,
        body: &str,
    ) -> Result<Answer, Failure> {
        let address = self.endpoint().trim_start_matches("http://").to_owned();
        let mut stream = TcpStream::connect(&address).await?;
        let authorization =
            if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
        let head = format!(
            "{verb} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        Answer::begin(BufReader::new(stream)).await
    }
}

impl Answer {
    async fn begin(mut stream: BufReader<TcpStream>) -> Result<Answer, Failure> {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(Failure::Missing("a status of HTTP"))?;
        let (mut chunked, mut left) = (false, None);
        loop {
            line.clear();
            stream.read_line(&mut line).await?;
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                return Ok(Answer { status, chunked, left, stream, body: Vec::new() });
            }
            chunked |= header == "transfer-encoding: chunked";
            if let Some(length) = header.strip_prefix("content-length: ") {
                left = length.parse().ok();
            }
        }
    }

    /// The next message of a body of lines.
    pub(super) async fn line(&mut self) -> Result<Value, Failure> {
        loop {
            let mut read = serde_json::Deserializer::from_slice(&self.body).into_iter::<Value>();
            if let Some(Ok(json)) = read.next() {
                let used = read.byte_offset();
                self.body.drain(..used);
                return Ok(json);
            }
            if !self.more().await? {
                return Err(Failure::Missing("the next line of an answer"));
            }
        }
    }

    async fn rest(&mut self) -> Result<String, Failure> {
        while self.more().await? {}
        Ok(String::from_utf8_lossy(&self.body).into_owned())
    }

    /// Reads a piece of the body; whether there was one.
    async fn more(&mut self) -> io::Result<bool> {
        let length = if self.chunked {
            let mut line = String::new();
            self.stream.read_line(&mut line).await?;
            usize::from_str_radix(line.trim(), 16).unwrap_or(0)
        } else {
            match self.left.take() {
                Some(left) => left,
                None => return Ok(self.stream.read_to_end(&mut self.body).await? > 0),
            }
        };
        if length == 0 {
            self.left = Some(0);
            return Ok(false);
        }
        let mut piece = vec![0; length];
        self.stream.read_exact(&mut piece).await?;
        self.body.extend(piece);
        if self.chunked {
            self.stream.read_exact(&mut [0; 2]).await?;
        } else {
            self.left = Some(0);
        }
        Ok(true)
    }
}
