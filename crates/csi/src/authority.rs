//! Requests of the kubelet to register a driver, made acceptable to our HTTP/2 server.
//!
//! The kubelet dials the registration socket by its path, and its gRPC library sends that path,
//! percent-encoded, as `:authority`. Our HTTP/2 library accepts only host names there and resets
//! the stream with `PROTOCOL_ERROR`. The kubelet's calls of the driver itself are not affected:
//! they say `localhost`.
//!
//! [`AuthorityRewriter`] passes bytes on and replaces the value of each `:authority` field with
//! `localhost`. Strings of HPACK have their length in front, so fields are told apart without
//! decoding them; the receiver keeps its own table of fields, so nobody notices.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// What a client sends before its first frame: this many bytes.
const PREFACE: usize = 24;
/// Length, type, flags and stream of a frame.
const FRAME_HEADER: usize = 9;
/// The largest payload that a server that says nothing else accepts.
const MOST_PAYLOAD: usize = 16_384;
/// The type of frames with header fields, and of those that continue them.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// `:authority` in the static table of HPACK.
const AUTHORITY: usize = 1;
/// Its new value, with the length in front.
const LOCALHOST: &[u8] = b"\x09localhost";

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the registration client sent {what}"))
}

/// Passes on what a client sends, with another authority.
#[derive(Debug)]
struct AuthorityRewriter {
    /// What has arrived and is not a whole frame yet.
    pending: Vec<u8>,
    preface_left: usize,
}

impl AuthorityRewriter {
    fn new() -> AuthorityRewriter {
        AuthorityRewriter { pending: Vec::new(), preface_left: PREFACE }
    }

    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let (preface, bytes) = bytes.split_at(self.preface_left.min(bytes.len()));
        self.preface_left -= preface.len();
        out.extend_from_slice(preface);
        self.pending.extend_from_slice(bytes);
        while let Some(header) = self.pending.first_chunk::<FRAME_HEADER>() {
            let [high, middle, low, kind, flags, stream @ ..] = *header;
            let length = u32::from_be_bytes([0, high, middle, low]);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MOST_PAYLOAD {
                return Err(malformed("a frame that is too large"));
            }
            let Some(payload) = self.pending.get(FRAME_HEADER..FRAME_HEADER + length) else {
                return Ok(());
            };
            match kind {
                HEADERS if flags & END_HEADERS == 0 => return Err(malformed("too many fields")),
                CONTINUATION => return Err(malformed("fields in pieces")),
                HEADERS => {
                    let fields = rewritten(block(payload, flags)?)?;
                    let flags = flags & !(PADDED | PRIORITY);
                    let length = u32::try_from(fields.len()).unwrap_or(u32::MAX).to_be_bytes();
                    out.extend_from_slice(&length[1..]);
                    out.extend_from_slice(&[kind, flags]);
                    out.extend_from_slice(&stream);
                    out.extend_from_slice(&fields);
                }
                _ => {
                    out.extend_from_slice(header);
                    out.extend_from_slice(payload);
                }
            }
            self.pending.drain(..FRAME_HEADER + length);
        }
        Ok(())
    }
}

/// The fields in a payload, without padding and priority.
fn block(payload: &[u8], flags: u8) -> io::Result<&[u8]> {
    let short = || malformed("a frame that is too short");
    let mut fields = payload;
    if flags & PADDED != 0 {
        let (padding, rest) = fields.split_first().ok_or_else(short)?;
        let end = rest.len().checked_sub(usize::from(*padding)).ok_or_else(short)?;
        fields = rest.get(..end).ok_or_else(short)?;
    }
    if flags & PRIORITY != 0 {
        fields = fields.get(5..).ok_or_else(short)?;
    }
    Ok(fields)
}

/// The same fields, with another authority.
fn rewritten(fields: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(fields.len());
    let mut reader = Reader { rest: fields };
    while let Some(first) = reader.rest.first().copied() {
        let start = reader.rest;
        // How many bits of the first byte belong to the number, and whether a value follows.
        let (bits, has_value) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index = reader.integer(bits)?;
        if !has_value {
            out.extend_from_slice(reader.since(start));
            continue;
        }
        if index == 0 {
            reader.string()?;
        }
        out.extend_from_slice(reader.since(start));
        let value = reader.rest;
        reader.string()?;
        let is_authority = index == AUTHORITY;
        out.extend_from_slice(if is_authority { LOCALHOST } else { reader.since(value) });
    }
    Ok(out)
}

/// Reads the parts of fields.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn since(&self, start: &'a [u8]) -> &'a [u8] {
        start.get(..start.len() - self.rest.len()).unwrap_or_default()
    }

    fn byte(&mut self) -> io::Result<u8> {
        let (first, rest) = self.rest.split_first().ok_or_else(|| malformed("half a field"))?;
        self.rest = rest;
        Ok(*first)
    }

    /// A number whose first bits share a byte with something else (RFC 7541, section 5.1).
    fn integer(&mut self, bits: u32) -> io::Result<usize> {
        let most = (1_usize << bits) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Ok(value);
        }
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number that is too large"))
    }

    fn string(&mut self) -> io::Result<()> {
        let length = self.integer(7)?;
        self.rest = self.rest.get(length..).ok_or_else(|| malformed("half a string"))?;
        Ok(())
    }
}

/// A connection whose requests have an acceptable authority.
#[derive(Debug)]
pub(crate) struct RegistrationStream {
    stream: UnixStream,
    rewriter: AuthorityRewriter,
    ready: Vec<u8>,
}

impl RegistrationStream {
    pub(crate) fn new(stream: UnixStream) -> RegistrationStream {
        RegistrationStream { stream, rewriter: AuthorityRewriter::new(), ready: Vec::new() }
    }
}

impl Connected for RegistrationStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for RegistrationStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(read.filled(), &mut this.ready)?;
        }
        let count = this.ready.len().min(into.remaining());
        let taken: Vec<u8> = this.ready.drain(..count).collect();
        into.put_slice(&taken);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RegistrationStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of header fields of a request: `POST`, `http`, the authority, and a path.
    fn request(authority: &[u8], flags: u8) -> Vec<u8> {
        let mut fields = vec![0x83, 0x86, 0x41];
        fields.push(u8::try_from(authority.len()).unwrap());
        fields.extend_from_slice(authority);
        // A path by the index of its name, a field with both texts, and one from the table.
        fields.extend_from_slice(b"\x44\x03/ab\x40\x02te\x08trailers\xbe");
        let mut frame = vec![0, 0, u8::try_from(fields.len()).unwrap(), HEADERS, flags, 0, 0, 0, 1];
        frame.extend_from_slice(&fields);
        frame
    }

    fn pass(bytes: &[u8], at_a_time: usize) -> io::Result<Vec<u8>> {
        let (mut rewriter, mut out) = (AuthorityRewriter::new(), Vec::new());
        for piece in bytes.chunks(at_a_time) {
            rewriter.push(piece, &mut out)?;
        }
        Ok(out)
    }

    #[test]
    fn a_path_as_authority_becomes_localhost_and_nothing_else_changes() {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let with = |authority: &[u8]| {
            let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
            [&preface[..], &settings, &request(authority, END_HEADERS), &settings].concat()
        };
        let sent = with(b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fcsi.sock");
        let wanted = with(b"localhost");
        for at_a_time in [1, 2, 7, 33, sent.len()] {
            assert_eq!(pass(&sent, at_a_time).unwrap(), wanted, "{at_a_time} at a time");
        }
    }

    #[test]
    fn what_is_no_request_of_a_kubelet_is_refused() {
        let refused = |frame: &[u8]| {
            let sent = [&[0; PREFACE][..], frame].concat();
            pass(&sent, sent.len()).unwrap_err().to_string()
        };
        assert!(refused(&request(b"x", 0)).contains("too many fields"));
        assert!(refused(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0]).contains("too large"));
        assert!(refused(&[0, 0, 2, 1, 4, 0, 0, 0, 1, 0x41, 9]).contains("half a string"));
        assert!(refused(&[0, 0, 1, 1, 4, 0, 0, 0, 1, 0xff]).contains("half a field"));
        assert!(refused(&[0, 0, 1, 1, 12, 0, 0, 0, 1, 5]).contains("too short"));
    }

    #[test]
    fn bytes_without_sense_never_panic() {
        let mut seed = 1_u32;
        for _ in 0..20_000 {
            let mut bytes = vec![0; PREFACE];
            for _ in 0..40 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let [high, ..] = seed.to_be_bytes();
                bytes.push(if high < 60 { high % 10 } else { high });
            }
            // Whatever the answer is: it is one.
            let _ = pass(&bytes, 5);
        }
    }
}
