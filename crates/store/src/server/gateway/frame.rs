//! Messages of gRPC in a body: a byte of flags, the length, the message.

use axum::body::{Body, Bytes};
use bytes::{Buf as _, BufMut as _, BytesMut};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use tonic::{Code, Status};

const HEADER: usize = 5;

/// One message as it stands in a body.
pub(super) fn enframe(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER + message.len());
    frame.put_u8(0);
    // A message came in a body of less than 4 GiB.
    frame.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    frame.put_slice(message);
    frame.freeze()
}

/// The messages of a body.
pub(super) struct Deframer {
    body: Body,
    buffer: BytesMut,
}

impl Deframer {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// The next message; nothing after the last one of a call that succeeded.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take() {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(|error| Status::unavailable(error.to_string()))?;
            match frame.into_data() {
                Ok(data) => self.buffer.extend_from_slice(&data),
                Err(frame) => ended(frame.trailers_ref())?,
            }
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let length = self.buffer.get(1..HEADER)?.get_u32();
        let length = usize::try_from(length).ok()?;
        if self.buffer.len() - HEADER < length {
            return None;
        }
        self.buffer.advance(HEADER);
        Some(self.buffer.split_to(length).freeze())
    }
}

fn ended(trailers: Option<&HeaderMap>) -> Result<(), Status> {
    match trailers.and_then(Status::from_header_map) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}
