//! The admin queue against a controller that answers what a test tells it to.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use zerocopy::{FromZeros, IntoBytes};

use super::super::mock_controller::{MockController, NOW};
use super::super::{Host, Options};
use super::*;
use crate::auth::Accepted;
use crate::pdu::{Digests, Pdu, flags};
use crate::wire::{
    Cap, Cqe, Csts, FabricsType, IdController, IdNamespace, Nqn, Property, Status, U16, U32, U64,
};

const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:lab";

fn association() -> Association {
    Association {
        host: Host { nqn: Nqn::new("nqn.2026-01.io.holdfast:host").unwrap(), id: [1; 16] },
        subsystem: Nqn::new(SUBSYSTEM).unwrap(),
        keys: None,
        accepted: Accepted::default(),
        options: Options::default(),
    }
}

/// Status, result and data of an answer.
type Reply = (Status, u64, Vec<u8>);

/// An admin queue and its controller.
struct Lab {
    admin: Admin,
    toy: MockController,
    now: Instant,
    /// Commands in the order they came.
    asked: Vec<String>,
    /// Commands that wait for an answer of the test.
    waiting: Vec<Sqe>,
    events: Vec<AdminEvent>,
}

impl Lab {
    fn new() -> Lab {
        let mut lab = Lab {
            admin: Admin::new(association()),
            toy: MockController::new(),
            now: NOW,
            asked: Vec::new(),
            waiting: Vec::new(),
            events: Vec::new(),
        };
        lab.admin.start(NOW);
        lab.toy.take(&lab.admin.poll_transmit().unwrap(), &|_| Vec::new());
        let answer = lab.toy.accept(Digests::default(), 8192);
        lab.admin.feed(&answer);
        lab.toy.seen.clear();
        lab
    }

    /// Runs until nothing moves; `reply` leaves a command unanswered by returning nothing.
    fn run(&mut self, mut reply: impl FnMut(&Sqe) -> Option<Reply>) {
        loop {
            while let Some(event) = self.admin.poll(self.now) {
                self.events.push(event);
            }
            while let Some(transmit) = self.admin.poll_transmit() {
                self.toy.take(&transmit, &|_| Vec::new());
            }
            let seen = core::mem::take(&mut self.toy.seen);
            if seen.is_empty() {
                return;
            }
            for (pdu, _) in seen {
                let Pdu::Command { sqe, .. } = pdu else { continue };
                self.asked.push(name(&sqe));
                match reply(&sqe) {
                    Some(answer) => self.answer(&sqe, answer),
                    None => self.waiting.push(sqe),
                }
            }
        }
    }

    fn answer(&mut self, sqe: &Sqe, (status, result, bytes): Reply) {
        let cid = sqe.cid.get();
        let room = usize::try_from(sqe.sgl.length.get()).unwrap();
        let bytes = &bytes[..bytes.len().min(room)];
        if !bytes.is_empty() && status.is_success() {
            let data = self.toy.data(cid, 0, bytes, flags::LAST);
            self.admin.feed(&data);
        }
        let mut cqe = Cqe::new(cid, status);
        cqe.set_result(result);
        let capsule = self.toy.framing.capsule_resp(&cqe);
        self.admin.feed(capsule.as_slice());
    }

    fn pass(&mut self, by: Duration) {
        self.now = self.now.after(by);
        self.admin.handle_timeout(self.now);
    }

    fn refused(&self) -> ConnectRefused {
        match &self.events[..] {
            [AdminEvent::Refused(why)] => *why,
            other => panic!("not refused but {other:?}"),
        }
    }
}

fn name(sqe: &Sqe) -> String {
    let code = sqe.cdw10.get() & 0xFF;
    match (AdminOpcode::from_code(sqe.opcode), FabricsType::from_code(sqe.fctype())) {
        (Some(AdminOpcode::Identify), _) => alloc::format!("identify {code:#04x}"),
        (Some(AdminOpcode::GetLogPage), _) => alloc::format!("log {code:#04x}"),
        (Some(AdminOpcode::SetFeatures), _) => alloc::format!("set {code:#04x}"),
        (Some(opcode), _) => alloc::format!("{opcode:?}"),
        (None, Some(kind)) => alloc::format!("{kind:?} {:#04x}", sqe.cdw11.get()),
        (None, None) => String::from("unknown"),
    }
}

fn controller() -> IdController {
    let mut id = IdController::new_zeroed();
    id.subnqn = Nqn::new(SUBSYSTEM).unwrap().to_field();
    id.cntlid = U16::new(5);
    id.sgls = U32::new(1);
    id.ioccsz = U32::new(4 + 512);
    id.iorcsz = U32::new(1);
    id.mdts = 5;
    id.kas = U16::new(10);
    id.maxcmd = U16::new(63);
    id.oaes = U32::new(1 << 11 | 1 << 8);
    id.cmic = 1 << 3;
    id.nanagrpid = U32::new(1);
    id
}

fn namespace() -> IdNamespace {
    let mut id = IdNamespace::new_zeroed();
    id.nsze = U64::new(1024);
    id.lbaf[0].lbads = 12;
    id.anagrpid = U32::new(1);
    id
}

/// A controller as it should be: one namespace, number 3.
fn good(sqe: &Sqe) -> Option<Reply> {
    let ok = |result, bytes| Some((Status::SUCCESS, result, bytes));
    let code = sqe.cdw10.get() & 0xFF;
    match AdminOpcode::from_code(sqe.opcode) {
        Some(AdminOpcode::Identify) => match code {
            0 => ok(0, namespace().as_bytes().to_vec()),
            1 => ok(0, controller().as_bytes().to_vec()),
            2 => {
                let mut list = vec![0; 4096];
                list[0] = 3;
                ok(0, list)
            }
            _ => ok(0, vec![0; 4096]),
        },
        Some(AdminOpcode::GetLogPage) => {
            let mut log = vec![0; 48];
            log[8] = 1;
            log[16] = 1;
            log[32] = 1;
            ok(0, log)
        }
        Some(AdminOpcode::AsyncEventRequest) => None,
        Some(_) => ok(0x0007_0007, Vec::new()),
        None => match FabricsType::from_code(sqe.fctype()) {
            Some(FabricsType::Connect) => ok(5, Vec::new()),
            Some(FabricsType::PropertyGet) if sqe.cdw11.get() == Property::Cap.offset() => {
                ok(Cap::new(128, 10, 0).0, Vec::new())
            }
            Some(FabricsType::PropertyGet) => ok(Csts::READY.into(), Vec::new()),
            _ => ok(0, Vec::new()),
        },
    }
}

/// The same, except for one command.
fn except(
    odd: &'static str,
    reply: impl Fn() -> Option<Reply>,
) -> impl FnMut(&Sqe) -> Option<Reply> {
    move |sqe| if name(sqe) == odd { reply() } else { good(sqe) }
}

fn up() -> Lab {
    let mut lab = Lab::new();
    lab.run(good);
    let Some(AdminEvent::Ready { .. }) = lab.events.pop() else { panic!() };
    lab
}

#[test]
fn the_order_in_which_a_controller_is_brought_up() {
    let mut lab = Lab::new();
    lab.run(good);
    let [AdminEvent::Ready { controller, namespaces, ana }] = &lab.events[..] else {
        panic!("{:?}", lab.events)
    };
    assert_eq!((controller.cntlid, controller.io_queues), (5, 1));
    assert_eq!((controller.queue_entries, controller.max_transfer), (64, 128 * 1024));
    assert_eq!(controller.capsule_data, 8192);
    assert_eq!(ana.as_ref().map(|log| log.state(1)), Some(crate::wire::AnaState::Optimized));
    assert_eq!(namespaces.len(), 1);
    assert_eq!((namespaces[0].nsid, namespaces[0].limits.transfer.0), (3, 32));
    assert_eq!(
        lab.asked,
        [
            "Connect 0x1f",
            "PropertyGet 0x00",
            "PropertySet 0x14",
            "PropertyGet 0x1c",
            "identify 0x01",
            "set 0x07",
            "set 0x0b",
            "log 0x0c",
            "identify 0x02",
            "identify 0x00",
            "identify 0x03",
            "AsyncEventRequest",
        ]
    );
}

#[test]
fn a_controller_may_take_a_moment() {
    let mut lab = Lab::new();
    lab.run(except("PropertyGet 0x1c", || Some((Status::SUCCESS, 0, Vec::new()))));
    assert_eq!(lab.events, []);
    lab.pass(Duration::from_millis(20));
    lab.run(good);
    assert!(matches!(lab.events[..], [AdminEvent::Ready { .. }]), "{:?}", lab.events);
}

type Change = fn(&mut IdController);

#[test]
fn what_cannot_be_used_is_refused_with_a_reason() {
    let never = || Some((Status::SUCCESS, 0, Vec::new()));
    let mut lab = Lab::new();
    for _ in 0..300 {
        lab.run(except("PropertyGet 0x1c", never));
        lab.pass(Duration::from_millis(20));
    }
    assert_eq!(lab.refused(), ConnectRefused::Unusable("it did not become ready in time"));

    let changes: [Change; 4] = [
        |id| id.subnqn[20] = b'x',
        |id| id.sgls = U32::ZERO,
        |id| id.ioccsz = U32::new(3),
        |id| id.icdoff = U16::new(1),
    ];
    for change in changes {
        let mut id = controller();
        change(&mut id);
        let answer = move || Some((Status::SUCCESS, 0, id.as_bytes().to_vec()));
        let mut lab = Lab::new();
        lab.run(except("identify 0x01", answer));
        assert!(matches!(lab.refused(), ConnectRefused::Unusable(_)));
    }
    let short = || Some((Status::SUCCESS, 0, vec![0; 100]));
    let mut lab = Lab::new();
    lab.run(except("identify 0x01", short));
    assert!(matches!(lab.refused(), ConnectRefused::Unusable(_)));
    let failing = || Some((Status::INVALID_FIELD, 0, Vec::new()));
    let mut lab = Lab::new();
    lab.run(except("set 0x07", failing));
    let status = Status::INVALID_FIELD;
    assert_eq!(lab.refused(), ConnectRefused::Command { step: "asking for queues", status });
}

#[test]
fn a_namespace_may_go_while_we_look() {
    let gone = || Some((Status::INVALID_NAMESPACE, 0, Vec::new()));
    let mut lab = Lab::new();
    lab.run(except("identify 0x00", gone));
    let [AdminEvent::Ready { namespaces, .. }] = &lab.events[..] else { panic!() };
    assert_eq!(namespaces[..], []);
}

#[test]
fn events_are_asked_for_again_and_followed() {
    let mut lab = up();
    let wait = lab.waiting.pop().unwrap();
    lab.asked.clear();
    let dw0 = AsyncEvent::AnaChanged.dw0();
    lab.answer(&wait, (Status::SUCCESS, dw0.into(), Vec::new()));
    lab.run(good);
    assert!(matches!(lab.events[..], [AdminEvent::Ana(_)]), "{:?}", lab.events);
    assert_eq!(
        lab.asked,
        ["AsyncEventRequest", "log 0x0c", "identify 0x02", "identify 0x00", "identify 0x03"]
    );
    // A controller that will not be asked is not asked.
    let wait = lab.waiting.pop().unwrap();
    lab.asked.clear();
    lab.answer(&wait, (Status::ASYNC_LIMIT_EXCEEDED, 0, Vec::new()));
    lab.run(good);
    assert_eq!(lab.asked, [""; 0]);
}

#[test]
fn states_are_looked_at_again_without_an_event() {
    let mut lab = up();
    lab.asked.clear();
    lab.admin.refresh(lab.now);
    lab.run(good);
    assert!(matches!(lab.events[..], [AdminEvent::Ana(_)]), "{:?}", lab.events);
    assert_eq!(lab.asked.first().map(String::as_str), Some("log 0x0c"));
}

#[test]
fn two_events_at_once_are_both_followed() {
    let mut lab = up();
    for event in [AsyncEvent::AnaChanged, AsyncEvent::NamespaceChanged] {
        let wait = lab.waiting.pop().unwrap();
        lab.answer(&wait, (Status::SUCCESS, event.dw0().into(), Vec::new()));
        // Only the next event request is seen; the logs are not answered yet.
        lab.run(|_| None);
        lab.waiting.sort_by_key(|sqe| sqe.opcode == AdminOpcode::AsyncEventRequest.code());
    }
    lab.asked.clear();
    lab.waiting.pop();
    let log = lab.waiting.pop().unwrap();
    assert_eq!(name(&log), "log 0x0c");
    lab.answer(&log, good(&log).unwrap());
    lab.run(good);
    assert!(lab.asked.contains(&String::from("log 0x04")), "{:?}", lab.asked);
}

#[test]
fn the_controller_is_kept_alive_and_missed() {
    let mut lab = up();
    lab.asked.clear();
    lab.pass(Duration::from_millis(2499));
    lab.run(good);
    assert_eq!(lab.asked, [""; 0]);
    lab.pass(Duration::from_millis(1));
    lab.run(good);
    assert_eq!(lab.asked, ["KeepAlive"]);
    lab.pass(Duration::from_millis(2500));
    lab.run(|_| None);
    assert_eq!(lab.admin.poll_timeout(), Some(lab.now.after(Duration::from_secs(5))));
    lab.pass(Duration::from_secs(5));
    lab.run(good);
    assert_eq!(lab.events, [AdminEvent::Lost(Lost::TimedOut)]);
    assert_eq!(lab.admin.poll_timeout(), None);
}

#[test]
fn requests_are_bounded_and_end() {
    let mut lab = Lab::new();
    let request = AdminRequest::GetFeature { id: crate::wire::FeatureId::KeepAliveTimer };
    assert_eq!(lab.admin.request(NOW, request), None, "not up yet");
    let mut lab = up();
    let tickets: Vec<Ticket> =
        core::iter::from_fn(|| lab.admin.request(NOW, request)).take(100).collect();
    assert_eq!(tickets.len(), usize::from(ENTRIES - 1 - FIRST_REQUEST));
    let mut answered = false;
    lab.run(|sqe| {
        // Only the first.
        let first = !core::mem::replace(&mut answered, true);
        if first { Some((Status::SUCCESS, 42, Vec::new())) } else { good(sqe).filter(|_| false) }
    });
    let done = Answer::Done { result: 42, bytes: Vec::new() };
    assert_eq!(lab.events, [AdminEvent::Answered(tickets[0], done)]);
    lab.events.clear();
    lab.admin.close();
    lab.run(good);
    let lost = |ticket: &Ticket| AdminEvent::Answered(*ticket, Answer::Lost(Lost::Closed));
    let mut expected: Vec<AdminEvent> = tickets[1..].iter().map(lost).collect();
    expected.push(AdminEvent::Lost(Lost::Closed));
    assert_eq!(lab.events, expected);
    assert_eq!(lab.admin.request(NOW, request), None);
}

proptest! {
    /// A controller whose answers make no sense.
    #[test]
    fn nonsense_is_survived(
        answers in proptest::collection::vec(
            (any::<u16>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..200), 0u8..8),
            0..60
        )
    ) {
        let mut lab = Lab::new();
        let mut answers = answers.into_iter();
        lab.run(|sqe| {
            let (status, result, mut bytes, kind) = answers.next()?;
            match kind {
                0 => Some((Status::from_field(status), result, bytes)),
                1 => {
                    bytes.resize(4096, 0xA5);
                    Some((Status::SUCCESS, result, bytes))
                }
                2 => {
                    // Almost right.
                    let (_, right, mut good) = good(sqe)?;
                    for (at, byte) in bytes.iter().enumerate() {
                        if let Some(place) = good.get_mut(at * 7) {
                            *place = *byte;
                        }
                    }
                    Some((Status::SUCCESS, right, good))
                }
                _ => good(sqe),
            }
        });
        lab.admin.close();
        lab.run(good);
        let over = lab.events.iter().filter(|event| {
            matches!(event, AdminEvent::Lost(_) | AdminEvent::Refused(_))
        });
        prop_assert_eq!(over.count(), 1);
    }

    /// A controller that sends anything.
    #[test]
    fn any_bytes_are_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), is_up: bool, kind in 0u8..10,
    ) {
        let mut lab = if is_up { up() } else { Lab::new() };
        let mut bytes = bytes;
        if bytes.len() > 8 {
            bytes[..8].copy_from_slice(&[kind, 0, 24, 0, 24, 0, 0, 0]);
        }
        lab.admin.feed(&bytes);
        lab.run(|_| None);
        lab.admin.close();
        lab.run(|_| None);
    }
}
