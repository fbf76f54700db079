//! The bytes of the FUSE protocol, version 7, as far as one file needs them. All numbers have the
//! machine's byte order: both sides are one machine.

/// The version that is spoken; a kernel's minor version only adds to it.
pub(super) const MAJOR: u32 = 7;
const MINOR: u32 = 38;

const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// What is before the payload of a write.
pub(super) const TRANSFER_LENGTH: usize = 40;

/// Numbers of notices, in the place of an error.
const NOTICE_INVALIDATE: i32 = 2;
const NOTICE_RESEND: i32 = 7;

/// Flags of the first request and of open files.
pub(super) mod flag {
    const ASYNC_READ: u64 = 1;
    const BIG_WRITES: u64 = 1 << 5;
    const ASYNC_DIO: u64 = 1 << 15;
    const MAX_PAGES: u64 = 1 << 22;
    /// The second word of flags is there.
    pub(in crate::fuse) const EXTENDED: u64 = 1 << 30;
    /// Requests that a dead server got are sent again.
    pub(in crate::fuse) const HAS_RESEND: u64 = 1 << 39;
    /// What we use of what the kernel offers.
    pub(in crate::fuse) const WANTED: u64 =
        ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | EXTENDED | HAS_RESEND;
    /// No page cache of the file (1), and writes side by side (64): the loop device orders them.
    pub(in crate::fuse) const OPEN: u32 = 1 | 64;
}

macro_rules! opcodes {
    ($($name:ident = $number:literal),+ $(,)?) => {
        /// What the kernel asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Opcode { $($name,)+ /// Anything else.
            Other }

        impl Opcode {
            fn of(number: u32) -> Opcode {
                match number { $($number => Opcode::$name,)+ _ => Opcode::Other }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttributes = 3, Open = 14, Read = 15, Write = 16, StatFs = 17,
    Release = 18, Fsync = 20, Flush = 25, Init = 26, OpenFolder = 27, ReadFolder = 28,
    ReleaseFolder = 29, Access = 34, Interrupt = 36, Destroy = 38, BatchForget = 42,
    Fallocate = 43,
}

/// A request: its header, and what follows it.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) opcode: Opcode,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) body: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let length = usize::try_from(u32_at(message, 0)?).ok()?;
        Some(Request {
            opcode: Opcode::of(u32_at(message, 4)?),
            unique: u64_at(message, 8)?,
            node: u64_at(message, 16)?,
            body: message.get(IN_HEADER..length)?,
        })
    }
}

/// The kernel's first request.
#[derive(Debug)]
pub(super) struct InitRequest {
    pub(super) major: u32,
    minor: u32,
    max_readahead: u32,
    pub(super) flags: u64,
}

impl InitRequest {
    pub(super) fn parse(body: &[u8]) -> Option<InitRequest> {
        let low = u64::from(u32_at(body, 12).unwrap_or_default());
        let high = if low & flag::EXTENDED == 0 { 0 } else { u64::from(u32_at(body, 16)?) };
        Some(InitRequest {
            major: u32_at(body, 0)?,
            minor: u32_at(body, 4)?,
            max_readahead: u32_at(body, 8).unwrap_or_default(),
            flags: low | high << 32,
        })
    }
}

/// Attributes of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    pub(super) node: u64,
    pub(super) bytes: u64,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) block: u32,
}

/// Offset and length of a read or write.
pub(super) fn transfer(body: &[u8]) -> Option<(u64, u32)> {
    let (offset, length) = (u64_at(body, 8)?, u32_at(body, 16)?);
    body.get(..TRANSFER_LENGTH)?;
    Some((offset, length))
}

/// Offset, length and mode.
pub(super) fn fallocate(body: &[u8]) -> Option<(u64, u64, i32)> {
    let mode = u32_at(body, 24)?.cast_signed();
    Some((u64_at(body, 8)?, u64_at(body, 16)?, mode))
}

/// The header of an answer with so many bytes behind it.
pub(super) fn header(unique: u64, body: usize) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(u32::try_from(OUT_HEADER + body).unwrap_or(u32::MAX)).u32(0).u64(unique);
    bytes.0
}

/// A whole answer.
pub(super) fn message(unique: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = header(unique, body.len());
    bytes.extend_from_slice(body);
    bytes
}

/// An answer that is an error.
pub(super) fn error(unique: u64, errno: i32) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(16).u32((-errno).cast_unsigned()).u64(unique);
    bytes.0
}

pub(super) fn resend_notice() -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(16).u32(NOTICE_RESEND.cast_unsigned()).u64(0);
    bytes.0
}

/// Attributes of a node are to be asked for again; no page of it is cached.
pub(super) fn invalidate_notice(node: u64) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(40).u32(NOTICE_INVALIDATE.cast_unsigned()).u64(0);
    bytes.u64(node).u64(u64::MAX).u64(0);
    bytes.0
}

pub(super) fn version_reply() -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(MAJOR).u32(MINOR);
    bytes.zeros(56);
    bytes.0
}

pub(super) fn init_reply(
    asked: &InitRequest,
    granted: u64,
    max_background: u16,
    max_write: u32,
) -> Vec<u8> {
    let [low, high] = [granted & 0xffff_ffff, granted >> 32];
    let word = |value: u64| u32::try_from(value).unwrap_or_default();
    let mut bytes = Writer::default();
    bytes.u32(MAJOR).u32(MINOR.min(asked.minor)).u32(asked.max_readahead).u32(word(low));
    bytes.u16(max_background).u16(max_background / 4 * 3);
    bytes.u32(max_write).u32(1);
    bytes.u16(u16::try_from(max_write.div_ceil(4096)).unwrap_or(u16::MAX)).u16(0);
    bytes.u32(word(high));
    bytes.zeros(28);
    bytes.0
}

pub(super) fn attributes_reply(attributes: Attributes, valid: u64) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u64(valid).u64(0).attributes(attributes);
    bytes.0
}

pub(super) fn entry_reply(attributes: Attributes, valid: u64) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u64(attributes.node).u64(0).u64(valid).u64(valid).u64(0).attributes(attributes);
    bytes.0
}

pub(super) fn open_reply(flags: u32) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u64(0).u32(flags).u32(0);
    bytes.0
}

pub(super) fn write_reply(length: u32) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u32(length).u32(0);
    bytes.0
}

/// The granularity of discards on a loop device is the block size told here.
pub(super) fn statfs_reply(total: u64, block: u32) -> Vec<u8> {
    let mut bytes = Writer::default();
    bytes.u64(total.checked_div(u64::from(block)).unwrap_or_default());
    bytes.u64(0).u64(0).u64(2).u64(0);
    bytes.u32(block).u32(255).u32(block).u32(0);
    bytes.zeros(24);
    bytes.0
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u16(&mut self, value: u16) -> &mut Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeros(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    fn attributes(&mut self, of: Attributes) {
        self.u64(of.node).u64(of.bytes).u64(of.bytes.div_ceil(512));
        // Times: none that would mean anything.
        self.zeros(36);
        self.u32(of.mode).u32(of.links).u32(0).u32(0).u32(0).u32(of.block).u32(0);
    }
}
