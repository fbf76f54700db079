//! Reservations, through the wire.

use block::{Blocks, Command, IoError, Lba, Span};
use nvme::target::testing::Driver;
use nvme::target::{ConnId, Effect, Event, Reservations, Slot, Subsystem};
use nvme::wire::{
    AcquireData, AdminOpcode, IoOpcode, RegisterData, RegistrantExtended, ReleaseData,
    ReportHeaderExtended, ReservationArgs, ReservationNotice, Sgl, Sqe, Status, U32,
};
use zerocopy::{FromBytes, IntoBytes};

use super::host::*;

pub(super) const KEY_A: u64 = 0xA;
pub(super) const KEY_B: u64 = 0xB;

pub(super) fn args(action: u8, rtype: u8) -> ReservationArgs {
    ReservationArgs { action, iekey: false, rtype, cptpl: 0 }
}

pub(super) fn command(opcode: IoOpcode, args: ReservationArgs, len: usize) -> Sqe {
    let mut sqe = in_capsule(io(opcode, 0, 1), len);
    sqe.cdw12 = U32::ZERO;
    sqe.cdw10 = U32::new(args.cdw10());
    sqe
}

pub(super) fn register(
    driver: &mut Driver,
    queue: &mut Queue,
    args: ReservationArgs,
    keys: (u64, u64),
) -> Status {
    let data = RegisterData { crkey: keys.0.into(), nrkey: keys.1.into() };
    let sqe = command(IoOpcode::ReservationRegister, args, 16);
    queue.command(driver, sqe, data.as_bytes()).status.kind()
}

pub(super) fn acquire(
    driver: &mut Driver,
    queue: &mut Queue,
    args: ReservationArgs,
    keys: (u64, u64),
) -> Status {
    let data = AcquireData { crkey: keys.0.into(), prkey: keys.1.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args, 16);
    queue.command(driver, sqe, data.as_bytes()).status.kind()
}

pub(super) fn release(
    driver: &mut Driver,
    queue: &mut Queue,
    args: ReservationArgs,
    key: u64,
) -> Status {
    let data = ReleaseData { crkey: key.into() };
    let sqe = command(IoOpcode::ReservationRelease, args, 8);
    queue.command(driver, sqe, data.as_bytes()).status.kind()
}

pub(super) fn report(
    driver: &mut Driver,
    queue: &mut Queue,
) -> (ReportHeaderExtended, Vec<RegistrantExtended>) {
    let mut sqe = io(IoOpcode::ReservationReport, 0, 1);
    sqe.cdw12 = U32::ZERO;
    sqe.cdw10 = U32::new(4096 / 4 - 1);
    sqe.cdw11 = U32::new(1);
    sqe.sgl = Sgl::transport(4096);
    let done = queue.command(driver, sqe, &[]);
    assert_eq!(done.status, Status::SUCCESS);
    let head: ReportHeaderExtended = done.read();
    let count = usize::from(head.header.regctl.get());
    let entries = done.data[64..].chunks(64).take(count);
    (head, entries.map(|one| RegistrantExtended::read_from_bytes(one).unwrap()).collect())
}

pub(super) fn status(driver: &mut Driver, queue: &mut Queue, opcode: IoOpcode) -> Status {
    let sqe = io(opcode, 0, 1);
    let is_inbound = matches!(opcode, IoOpcode::Write | IoOpcode::Compare);
    let sqe = if is_inbound { in_capsule(sqe, BLOCK) } else { sqe };
    let data = vec![0; if is_inbound { BLOCK } else { 0 }];
    queue.command(driver, sqe, &data).status.kind()
}

/// Two hosts with an I/O queue each; their admin queues.
pub(super) fn hosts(driver: &mut Driver) -> [(Queue, Queue); 2] {
    [Queue::pair(driver, HOST_A), Queue::pair(driver, HOST_B)]
}

/// The table of the specification: who may read and write under each type.
#[test]
fn access_by_type() {
    // type; may a registrant that does not hold it read, write; may a stranger.
    let table = [
        (1, [true, false], [true, false]),
        (2, [false, false], [false, false]),
        (3, [true, true], [true, false]),
        (4, [true, true], [false, false]),
        (5, [true, true], [true, false]),
        (6, [true, true], [false, false]),
    ];
    for (rtype, registrant, stranger) in table {
        let mut driver = driver();
        let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
        assert_eq!(register(&mut driver, &mut a, args(0, 0), (0, KEY_A)), Status::SUCCESS);
        assert_eq!(acquire(&mut driver, &mut a, args(0, rtype), (KEY_A, 0)), Status::SUCCESS);
        let check = |driver: &mut Driver, queue: &mut Queue, [read, write]: [bool; 2]| {
            let expected = |may| if may { Status::SUCCESS } else { Status::RESERVATION_CONFLICT };
            for opcode in [IoOpcode::Read, IoOpcode::Compare, IoOpcode::Verify] {
                assert_eq!(status(driver, queue, opcode), expected(read), "{opcode:?} {rtype}");
            }
            for opcode in [IoOpcode::Write, IoOpcode::WriteZeroes, IoOpcode::Flush] {
                assert_eq!(status(driver, queue, opcode), expected(write), "{opcode:?} {rtype}");
            }
        };
        check(&mut driver, &mut a, [true, true]);
        check(&mut driver, &mut b, stranger);
        assert_eq!(register(&mut driver, &mut b, args(0, 0), (0, KEY_B)), Status::SUCCESS);
        check(&mut driver, &mut b, registrant);
        assert_eq!(release(&mut driver, &mut a, args(0, rtype), KEY_A), Status::SUCCESS);
        check(&mut driver, &mut b, [true, true]);
    }
}

#[test]
fn report_shows_who_holds_what() {
    let mut driver = driver();
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    let persist = ReservationArgs { cptpl: 3, ..args(0, 0) };
    register(&mut driver, &mut a, persist, (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    acquire(&mut driver, &mut b, args(0, 3), (KEY_B, 0));
    let (head, entries) = report(&mut driver, &mut a);
    assert_eq!((head.header.generation.get(), head.header.rtype, head.header.ptpls), (2, 3, 1));
    let shown: Vec<_> = entries.iter().map(|one| (one.hostid, one.rkey.get(), one.rcsts)).collect();
    assert_eq!(shown, [(hostid(HOST_A), KEY_A, 0), (hostid(HOST_B), KEY_B, 1)]);
    assert_eq!(entries[0].cntlid.get(), 0xFFFF);
    // The short form cannot show 128-bit identifiers.
    let mut sqe = io(IoOpcode::ReservationReport, 0, 1);
    sqe.cdw10 = U32::new(15);
    sqe.sgl = Sgl::transport(64);
    let status = queue_status(&mut driver, &mut a, sqe);
    assert_eq!(status, Status::HOST_ID_INCONSISTENT);
    // A short buffer gets the beginning; too short a buffer gets an error.
    sqe.cdw11 = U32::new(1);
    assert_eq!(a.command(&mut driver, sqe, &[]).data.len(), 64);
    sqe.cdw10 = U32::new(16);
    assert_eq!(queue_status(&mut driver, &mut a, sqe), Status::DATA_SGL_LENGTH_INVALID);
}

fn queue_status(driver: &mut Driver, queue: &mut Queue, sqe: Sqe) -> Status {
    queue.command(driver, sqe, &[]).status.kind()
}

#[test]
fn fields_are_checked() {
    let mut driver = driver();
    let [(_x, mut a), _] = hosts(&mut driver);
    let invalid = Status::INVALID_FIELD;
    assert_eq!(register(&mut driver, &mut a, args(3, 0), (0, 1)), invalid);
    let bad_persist = ReservationArgs { cptpl: 1, ..args(0, 0) };
    assert_eq!(register(&mut driver, &mut a, bad_persist, (0, 1)), invalid);
    assert_eq!(register(&mut driver, &mut a, args(0, 0), (0, 0)), invalid, "no key");
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    for rtype in [0, 7, 255] {
        assert_eq!(acquire(&mut driver, &mut a, args(0, rtype), (KEY_A, 0)), invalid);
    }
    assert_eq!(acquire(&mut driver, &mut a, args(3, 1), (KEY_A, 0)), invalid);
    let iekey = ReservationArgs { iekey: true, ..args(0, 1) };
    assert_eq!(acquire(&mut driver, &mut a, iekey, (KEY_A, 0)), invalid);
    assert_eq!(release(&mut driver, &mut a, iekey, KEY_A), invalid);
    assert_eq!(release(&mut driver, &mut a, args(2, 1), KEY_A), invalid);
    let short = command(IoOpcode::ReservationRegister, args(0, 0), 8);
    let status = a.command(&mut driver, short, &[0; 8]).status.kind();
    assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID);
}

#[test]
fn nothing_is_acknowledged_before_it_is_durable() {
    let mut driver = driver();
    driver.hold_persist = true;
    let [(_x, mut a), _] = hosts(&mut driver);
    assert_eq!(register(&mut driver, &mut a, args(0, 0), (0, KEY_A)), Status::SUCCESS, "volatile");
    let persist = ReservationArgs { cptpl: 3, ..args(2, 0) };
    let data = RegisterData { crkey: KEY_A.into(), nrkey: KEY_B.into() };
    let sqe = command(IoOpcode::ReservationRegister, persist, 16);
    a.submit(&mut driver, sqe, data.as_bytes());
    assert_eq!(a.receive(&mut driver), []);
    let [Effect::Persist { nsid: 1, reservations, .. }] = driver.unpersisted.as_slice() else {
        panic!("{:?}", driver.unpersisted)
    };
    assert!(reservations.persist);
    assert_eq!(reservations.registrants[0].key, KEY_B);
    driver.persist(true);
    assert!(
        matches!(a.receive(&mut driver).as_slice(), [Got::Response(it)] if it.status().is_success())
    );
    // A failure is told, and the state stays in force.
    let sqe = command(IoOpcode::ReservationAcquire, args(0, 2), 16);
    let data = AcquireData { crkey: KEY_B.into(), prkey: 0.into() };
    a.submit(&mut driver, sqe, data.as_bytes());
    driver.persist(false);
    let got = a.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::INTERNAL_ERROR);
    assert!(driver.subsystem.namespace(1).unwrap().reservations().reservation.is_some());
}

#[test]
fn persistence_can_be_switched_by_feature() {
    let mut driver = driver();
    driver.hold_persist = true;
    let [(mut admin_queue, _a), _] = hosts(&mut driver);
    let mut set = feature(AdminOpcode::SetFeatures, 0x83, 1);
    set.nsid = U32::new(1);
    admin_queue.submit(&mut driver, set, &[]);
    assert_eq!(admin_queue.receive(&mut driver), [], "waits until it is durable");
    driver.persist(true);
    assert_eq!(admin_queue.receive(&mut driver).len(), 1);
    let mut get = feature(AdminOpcode::GetFeatures, 0x83, 0);
    get.nsid = U32::new(1);
    assert_eq!(admin_queue.command(&mut driver, get, &[]).result, 1);
    get.nsid = U32::new(2);
    let status = admin_queue.command(&mut driver, get, &[]).status;
    assert_eq!(status, Status::INVALID_NAMESPACE.do_not_retry());
}

#[test]
fn reservations_from_before_a_restart_are_in_force() {
    let mut old = driver();
    let [(_x, mut a), _] = hosts(&mut old);
    register(&mut old, &mut a, ReservationArgs { cptpl: 3, ..args(0, 0) }, (0, KEY_A));
    acquire(&mut old, &mut a, args(0, 1), (KEY_A, 0));
    let reservations = old.subsystem.namespace(1).unwrap().reservations().clone();
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let config = nvme::target::NamespaceConfig { reservations, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut driver = Driver::new(subsystem, nvme::target::ConnectionConfig::default());
    driver.disks.insert(1, vec![0; BLOCK * 512]);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    assert_eq!(status(&mut driver, &mut a, IoOpcode::Write), Status::SUCCESS);
    assert_eq!(status(&mut driver, &mut b, IoOpcode::Write), Status::RESERVATION_CONFLICT);
}

#[test]
fn a_number_of_ownership_is_kept_whether_the_host_asks_for_it_or_not() {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let config = nvme::target::NamespaceConfig { reservations: guarded, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut driver = Driver::new(subsystem, nvme::target::ConnectionConfig::default());
    let [(_x, mut a), _] = hosts(&mut driver);
    driver.hold_persist = true;
    assert_eq!(register(&mut driver, &mut a, args(0, 0), (0, KEY_A)), Status::SUCCESS);
    let data = AcquireData { crkey: KEY_A.into(), prkey: 0.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(0, 2), 16);
    a.submit(&mut driver, sqe, data.as_bytes());
    assert_eq!(a.receive(&mut driver), [], "waits until it is durable");
    let [Effect::Persist { reservations, .. }] = driver.unpersisted.as_slice() else {
        panic!("{:?}", driver.unpersisted)
    };
    assert_eq!(reservations.least_key, Some(KEY_A));
    driver.persist(true);
    assert!(is_success(&mut driver, &mut a));
}

/// Host A writes slowly; host B takes over with preempt-and-abort. Returns what A has at work.
pub(super) fn take_over(
    driver: &mut Driver,
    a: &mut Queue,
    b: &mut Queue,
) -> (ConnId, Event, Slot) {
    register(driver, a, args(0, 0), (0, KEY_A));
    register(driver, b, args(0, 0), (0, KEY_B));
    acquire(driver, a, args(0, 1), (KEY_A, 0));
    driver.hold_io = true;
    let write = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    a.submit(driver, write, &[1; BLOCK]);
    let (id, event) = driver.held.pop().unwrap();
    let Event::Io { slot, .. } = event else { panic!("{event:?}") };
    let data = AcquireData { crkey: KEY_B.into(), prkey: KEY_A.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(2, 1), 16);
    b.submit(driver, sqe, data.as_bytes());
    assert_eq!(b.receive(driver), [], "the old write may still land");
    (id, event, slot)
}

pub(super) fn is_success(driver: &mut Driver, queue: &mut Queue) -> bool {
    matches!(queue.receive(driver).as_slice(), [Got::Response(it)] if it.status().is_success())
}

#[test]
fn preempt_and_abort_waits_for_the_commands_it_aborts() {
    let mut driver = driver();
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    let (id, event, slot) = take_over(&mut driver, &mut a, &mut b);
    assert_eq!(driver.cancels, [(id, slot)]);
    // New commands of the old owner do not get as far, and do not hold anything up.
    assert_eq!(status(&mut driver, &mut a, IoOpcode::Write), Status::RESERVATION_CONFLICT);
    let read = a.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(b.receive(&mut driver), []);
    driver.release(id, event, Some(Err(IoError::Aborted)));
    let got = a.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_ne!(cqe.cid.get(), read);
    assert_eq!(cqe.status(), Status::ABORTED_PREEMPT.do_not_retry());
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn preempt_and_abort_waits_also_if_the_old_host_is_gone() {
    let mut driver = driver();
    let [(ax, mut a), (_y, mut b)] = hosts(&mut driver);
    let (id, event, _) = take_over(&mut driver, &mut a, &mut b);
    driver.close(a.id);
    driver.close(ax.id);
    assert_eq!(b.receive(&mut driver), [], "its write is still at work");
    driver.release(id, event, None);
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn preempt_and_abort_waits_for_a_host_that_left_before() {
    let mut driver = driver();
    let [(ax, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    driver.hold_io = true;
    a.submit(&mut driver, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[1; BLOCK]);
    driver.close(a.id);
    driver.close(ax.id);
    let data = AcquireData { crkey: KEY_B.into(), prkey: KEY_A.into() };
    b.submit(&mut driver, command(IoOpcode::ReservationAcquire, args(2, 1), 16), data.as_bytes());
    assert_eq!(b.receive(&mut driver), []);
    let (id, event) = driver.held.pop().unwrap();
    driver.release(id, event, None);
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn preempt_and_abort_waits_for_every_range_of_a_deallocation() {
    let mut driver = driver();
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    driver.hold_io = true;
    let mut ranges = Vec::new();
    for slba in 0..4u64 {
        ranges.extend([0, 0, 0, 0, 1, 0, 0, 0]);
        ranges.extend(slba.to_le_bytes());
    }
    let mut sqe = in_capsule(io(IoOpcode::DatasetManagement, 0, 1), ranges.len());
    (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (U32::new(3), U32::new(4), U32::ZERO);
    a.submit(&mut driver, sqe, &ranges);
    assert_eq!(driver.held.len(), 4);
    let data = AcquireData { crkey: KEY_B.into(), prkey: KEY_A.into() };
    b.submit(&mut driver, command(IoOpcode::ReservationAcquire, args(2, 1), 16), data.as_bytes());
    for (at, (id, event)) in core::mem::take(&mut driver.held).into_iter().enumerate() {
        assert_eq!(b.receive(&mut driver), [], "{at} of 4 ranges are done");
        driver.release(id, event, None);
    }
    assert!(is_success(&mut driver, &mut b));
}

pub(super) fn write_of(blocks: u64) -> Command {
    Command::Write { span: Span::new(Lba(0), Blocks(blocks)).unwrap(), fua: false }
}

fn preempt(driver: &mut Driver, by: &mut Queue) {
    let data = AcquireData { crkey: KEY_B.into(), prkey: KEY_A.into() };
    by.submit(driver, command(IoOpcode::ReservationAcquire, args(2, 1), 16), data.as_bytes());
}

#[test]
fn commands_without_a_stream_pass_the_same_fence() {
    let mut driver = driver();
    let [(ax, mut a), (_y, mut b)] = hosts(&mut driver);
    assert_eq!(driver.begin_local(ax.id, write_of(1)), Err(IoError::Unreachable), "no I/O queue");
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    acquire(&mut driver, &mut a, args(0, 1), (KEY_A, 0));
    assert_eq!(driver.begin_local(b.id, write_of(1)), Err(IoError::Fenced));
    let too_far = write_of(1 << 40);
    assert_eq!(
        driver.begin_local(a.id, too_far),
        Err(IoError::OutOfRange { span: too_far.span().unwrap() })
    );
    let first = driver.begin_local(a.id, write_of(1)).unwrap();
    let second = driver.begin_local(a.id, write_of(1)).unwrap();
    preempt(&mut driver, &mut b);
    assert_eq!(driver.begin_local(a.id, write_of(1)), Err(IoError::Fenced));
    assert_eq!(b.receive(&mut driver), [], "two writes may still land");
    driver.end_local(a.id, second);
    assert_eq!(b.receive(&mut driver), [], "one write may still land");
    driver.end_local(a.id, first);
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn commands_without_a_stream_are_waited_for_also_if_their_host_is_gone() {
    let mut driver = driver();
    let [(ax, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    let write = driver.begin_local(a.id, write_of(1)).unwrap();
    driver.close(a.id);
    driver.close(ax.id);
    assert_eq!(driver.begin_local(a.id, write_of(1)), Err(IoError::Unreachable));
    preempt(&mut driver, &mut b);
    assert_eq!(b.receive(&mut driver), [], "its write is still at work");
    driver.end_local(a.id, write);
    assert!(is_success(&mut driver, &mut b));
}

#[test]
fn hosts_are_told_what_others_did_to_them() {
    let mut driver = driver();
    let [(mut ax, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    ax.submit(&mut driver, admin(AdminOpcode::AsyncEventRequest), &[]);
    acquire(&mut driver, &mut b, args(1, 1), (KEY_B, KEY_A));
    let got = ax.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.result(), 0x80_0006);
    let read = |driver: &mut Driver, queue: &mut Queue| -> (u64, u8, u32) {
        let page: ReservationNotice =
            queue.command(driver, get_log(0x80, 64, 0, false), &[]).read();
        (page.count.get(), page.kind, page.nsid.get())
    };
    assert_eq!(read(&mut driver, &mut ax), (1, 1, 1), "registration preempted");
    assert_eq!(read(&mut driver, &mut ax), (0, 0, 0));
    // A mask keeps a kind of notice away.
    ax.command(&mut driver, feature(AdminOpcode::SetFeatures, 0x82, 1 << 3), &[]);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    release(&mut driver, &mut b, args(1, 0), KEY_B);
    assert_eq!(read(&mut driver, &mut ax), (0, 0, 0));
}
