//! What host and guest agent say to each other over one byte stream.
//!
//! ```text
//! frame   length of body u32 | kind u8 | job u32 | body        numbers are little-endian
//!
//! host  ──Start(script)──► guest     then any of Input(bytes), Input(empty: end of input), Kill
//! host  ◄──Ready────────── guest     once, when the agent runs
//! host  ◄──Stdout, Stderr─ guest     as the job prints
//! host  ◄──Exited(status)─ guest     last word about a job; a signal is 128 + its number
//! ```
//!
//! Jobs run side by side; each has the number the host gave it.

use std::io::{self, ErrorKind, Read, Write};

/// The longest body: more is sent as several frames.
pub const MAX_BODY: usize = 64 * 1024;

const HEADER: usize = 9;

/// What a frame is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Guest: the agent runs.
    Ready,
    /// Host: run the body as a shell script.
    Start,
    /// Host: bytes for the job's standard input; empty ends it.
    Input,
    /// Host: kill the job and its children.
    Kill,
    /// Guest: bytes of the job's standard output.
    Stdout,
    /// Guest: bytes of the job's standard error.
    Stderr,
    /// Guest: the job ended; the body is its status as i32.
    Exited,
}

const KINDS: [Kind; 7] =
    [Kind::Ready, Kind::Start, Kind::Input, Kind::Kill, Kind::Stdout, Kind::Stderr, Kind::Exited];

/// One message, either way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is about.
    pub kind: Kind,
    /// The job's number.
    pub job: u32,
    /// Meaning depends on the kind.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame with a body.
    pub fn new(kind: Kind, job: u32, body: impl Into<Vec<u8>>) -> Frame {
        Frame { kind, job, body: body.into() }
    }

    /// The last word about a job.
    pub fn exited(job: u32, status: i32) -> Frame {
        Frame::new(Kind::Exited, job, status.to_le_bytes())
    }

    /// The status in an [`Kind::Exited`] frame.
    pub fn status(&self) -> io::Result<i32> {
        let bytes = self.body.as_slice().try_into().map_err(|_| bad("a status has four bytes"))?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// Writes the frame in one piece, so that several writers need only one lock.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        if self.body.len() > MAX_BODY {
            return Err(bad("frame too long"));
        }
        let length = u32::try_from(self.body.len()).map_err(io::Error::other)?;
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        let mut bytes = Vec::with_capacity(HEADER + self.body.len());
        bytes.extend(length.to_le_bytes());
        bytes.push(u8::try_from(kind).map_err(io::Error::other)?);
        bytes.extend(self.job.to_le_bytes());
        bytes.extend(&self.body);
        out.write_all(&bytes)?;
        out.flush()
    }

    /// Reads one frame; nothing if the stream ended between two frames.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut header = [0; HEADER];
        match from.read(&mut header) {
            Ok(0) => return Ok(None),
            Ok(got) => from.read_exact(header.get_mut(got..).unwrap_or_default())?,
            Err(error) if error.kind() == ErrorKind::Interrupted => return Frame::read(from),
            Err(error) => return Err(error),
        }
        let [l0, l1, l2, l3, kind, j0, j1, j2, j3] = header;
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]));
        let length = length.ok().filter(|length| *length <= MAX_BODY);
        let mut body = vec![0; length.ok_or_else(|| bad("frame too long"))?];
        from.read_exact(&mut body)?;
        let kind = KINDS.get(usize::from(kind)).ok_or_else(|| bad("unknown kind of frame"))?;
        Ok(Some(Frame { kind: *kind, job: u32::from_le_bytes([j0, j1, j2, j3]), body }))
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::{Frame, Kind, MAX_BODY};

    /// Gives one byte at a time, as a slow stream may.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = buffer.len().min(1);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn frames_survive_any_split_of_the_stream() {
        let sent = [
            Frame::new(Kind::Ready, 0, []),
            Frame::new(Kind::Start, 7, *b"echo hello"),
            Frame::exited(7, -1),
        ];
        let mut bytes = Vec::new();
        for frame in &sent {
            frame.write(&mut bytes).unwrap();
        }
        let mut stream = Trickle(&bytes);
        for frame in &sent {
            assert_eq!(Frame::read(&mut stream).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut stream).unwrap(), None);
        assert_eq!(sent[2].status().unwrap(), -1);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Frame::new(Kind::Input, 1, vec![0; MAX_BODY + 1]).write(&mut Vec::new()).is_err());
        let huge = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0];
        assert!(Frame::read(&mut huge.as_slice()).is_err());
        let unknown = [0, 0, 0, 0, 99, 0, 0, 0, 0];
        assert!(Frame::read(&mut unknown.as_slice()).is_err());
        let cut = [4, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        assert!(Frame::read(&mut cut.as_slice()).is_err());
    }
}
