//! What fuzzers drive, and a plain test replays: controllers that send anything to a host.
//!
//! Each takes any bytes, and panics only if something here is wrong.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use block::{BlockSize, Blocks, Command, Geometry, Lba, Span};
use zerocopy::IntoBytes;

use super::{
    Admin, AdminEvent, AnaLog, Association, ControllerInfo, DiscoveryReader, Host, IoEvent,
    IoQueue, Limits, Namespace, NamespaceIds, Need, Options, ReadStep, Report, Reservation,
    Transmit,
};
use crate::auth::{Accepted, FromController, FromHost, Secret};
use crate::pdu::{Framing, IcResp};
use crate::time::Instant;
use crate::wire::{Cap, Cqe, Nqn, Status};

const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:fuzz";

/// An I/O queue: any bytes from its controller, before the set-up or with commands at work. Gives
/// what was told.
pub fn io(input: &[u8]) -> Vec<IoEvent> {
    let mut told = Vec::new();
    let (Some((&how, mut rest)), Some(association)) = (input.split_first(), association()) else {
        return told;
    };
    let controller = controller();
    let mut io = IoQueue::new(association, &controller, 1);
    io.start(now());
    io.poll_transmit();
    let mut left = Vec::new();
    if how & 1 != 0 {
        io.feed(IcResp::new(0, 0, 4096).as_bytes());
        io.poll(now());
        let connect = io.poll_transmit().as_ref().and_then(cid);
        io.feed(response(connect.unwrap_or_default(), Status::SUCCESS, 0).as_slice());
        assert_eq!(io.poll(now()), Some(IoEvent::Ready));
        left = submit_all(&mut io);
    }
    let step = usize::from(how >> 1).max(1);
    while !rest.is_empty() {
        let part = rest.get(..step.min(rest.len())).unwrap_or_default();
        let used = match io.need() {
            Need::Nothing => break,
            Need::Bytes => io.feed(part),
            Need::Payload { offset, len, .. } => {
                assert!(u64::from(offset) + u64::from(len) <= 16384, "past the end of a buffer");
                let len = usize::try_from(len).unwrap_or_default().min(part.len());
                io.placed(part.get(..len).unwrap_or_default());
                len
            }
        };
        assert!(used > 0, "a connection takes something or ends");
        rest = rest.get(used..).unwrap_or_default();
        while io.poll_transmit().is_some() {}
        drain(&mut io, &mut left, &mut told);
    }
    io.close();
    drain(&mut io, &mut left, &mut told);
    assert_eq!(left, [0u16; 0], "commands that never ended");
    told
}

fn submit_all(io: &mut IoQueue) -> Vec<u16> {
    let Some((namespace, span)) = namespace().zip(Span::new(Lba(0), Blocks(4))) else {
        return Vec::new();
    };
    for (slot, command) in [
        (0, Command::Read { span }),
        (1, Command::Write { span, fua: false }),
        (2, Command::Flush),
        (3, Command::Discard { span }),
    ] {
        assert_eq!(io.submit(now(), slot, &namespace, command), Ok(()));
    }
    assert_eq!(io.reserve(now(), 4, 1, Reservation::Report), Ok(()));
    while io.poll_transmit().is_some() {}
    alloc::vec![0, 1, 2, 3, 4]
}

fn drain(io: &mut IoQueue, left: &mut Vec<u16>, told: &mut Vec<IoEvent>) {
    while let Some(event) = io.poll(now()) {
        told.push(event.clone());
        if let IoEvent::Done { slot, .. } | IoEvent::Reported { slot, .. } = event {
            let at = left.iter().position(|waiting| *waiting == slot);
            assert!(at.is_some(), "slot {slot} ended twice");
            left.retain(|waiting| *waiting != slot);
        }
    }
}

/// The admin queue: a controller that answers each command with the next few bytes of the input.
/// Gives what was told.
pub fn admin(input: &[u8]) -> Vec<AdminEvent> {
    let mut told = Vec::new();
    let Some(association) = association() else { return told };
    let mut admin = Admin::new(association);
    admin.start(now());
    admin.poll_transmit();
    admin.feed(IcResp::new(0, 0, 4096).as_bytes());
    let mut rest = input;
    loop {
        told.extend(core::iter::from_fn(|| admin.poll(now())));
        let Some(transmit) = admin.poll_transmit() else { break };
        let Some(cid) = cid(&transmit) else { continue };
        let Some((head, after)) = rest.split_first_chunk::<12>() else { break };
        let [s0, s1, l0, l1, result @ ..] = *head;
        let len = usize::from(u16::from_le_bytes([l0, l1])).min(after.len());
        let (bytes, after) = after.split_at(len);
        rest = after;
        let status = Status::from_field(u16::from_le_bytes([s0, s1]));
        if len > 0 {
            let count = u32::try_from(len).unwrap_or_default();
            admin.feed(Framing::default().c2h_data(cid, 0, count, 0).as_slice());
            admin.feed(bytes);
        }
        admin.feed(response(cid, status, u64::from_le_bytes(result)).as_slice());
    }
    admin.close();
    told.extend(core::iter::from_fn(|| admin.poll(now())));
    let is_end =
        |event: &&AdminEvent| matches!(event, AdminEvent::Lost(_) | AdminEvent::Refused(_));
    assert_eq!(told.iter().filter(is_end).count(), 1, "a connection ends once");
    told
}

/// Structures that a host reads from bytes.
pub fn structures(input: &[u8]) {
    if let Some(log) = AnaLog::parse(input) {
        assert!(log.groups.len() <= input.len() / 32);
    }
    if let Some(report) = Report::parse(input) {
        assert!(report.registrants.len() <= input.len() / 64);
    }
    let ids = NamespaceIds::parse(input);
    if let Ok(name) = Nqn::new(SUBSYSTEM) {
        let _ = ControllerInfo::parse(input, Cap(0), &name);
    }
    let _ = Namespace::parse(1, input, ids, &controller());
    let (mut reader, _) = DiscoveryReader::begin();
    for part in input.chunks(2048) {
        if !matches!(reader.on(part), ReadStep::Ask(_)) {
            break;
        }
    }
    if let Ok(message) = FromHost::parse(input) {
        assert_eq!(FromHost::parse(&message.encode()), Ok(message));
    }
    if let Ok(message) = FromController::parse(input) {
        assert_eq!(FromController::parse(&message.encode()), Ok(message));
    }
    if let Ok(text) = core::str::from_utf8(input)
        && let Ok(secret) = text.parse::<Secret>()
    {
        assert!(secret.to_text().starts_with(text.trim().trim_end_matches(':')));
    }
}

fn now() -> Instant {
    Instant::since_start(Duration::from_secs(1))
}

fn association() -> Option<Association> {
    Some(Association {
        host: Host { nqn: Nqn::new("nqn.2026-01.io.holdfast:host").ok()?, id: [1; 16] },
        subsystem: Nqn::new(SUBSYSTEM).ok()?,
        keys: None,
        accepted: Accepted::default(),
        options: Options { r2ts: 2, ..Options::default() },
    })
}

fn controller() -> ControllerInfo {
    ControllerInfo {
        cntlid: 1,
        is_discovery: false,
        serial: String::new(),
        model: String::new(),
        firmware: String::new(),
        version: 0,
        max_transfer: 1 << 20,
        queue_entries: 16,
        capsule_data: 4096,
        commands: u16::MAX,
        events: 0,
        has_cache: true,
        ana_log: None,
        ana_transition: 0,
        io_queues: 1,
    }
}

fn namespace() -> Option<Namespace> {
    Some(Namespace {
        nsid: 1,
        geometry: Geometry::new(BlockSize::B4096, Blocks(64)).ok()?,
        limits: Limits::of_protocol(BlockSize::B4096),
        ids: NamespaceIds::default(),
        ana_group: 0,
        read_only: false,
        shared: true,
        reservations: 0,
        commands: u16::MAX,
    })
}

/// Name of the command in a capsule.
fn cid(transmit: &Transmit) -> Option<u16> {
    let (_, rest) = transmit.head.as_slice().split_at_checked(10)?;
    (transmit.head.as_slice().first() == Some(&4)).then_some(())?;
    rest.first_chunk().copied().map(u16::from_le_bytes)
}

fn response(
    cid: u16,
    status: Status,
    result: u64,
) -> crate::pdu::InlineBytes<{ Framing::MAX_HEAD }> {
    let mut cqe = Cqe::new(cid, status);
    cqe.set_result(result);
    Framing::default().capsule_resp(&cqe)
}
