//! Durability of reservations: no answer rests on a state that a crash would take back.

use nvme::target::testing::Driver;
use nvme::target::{
    AcquireKeys, Effect, NamespaceConfig, ReservationHome, Reservations, Subsystem,
};
use nvme::wire::{
    AcquireAction, AcquireData, IoOpcode, RegisterAction, RegisterData, ReservationArgs,
    ReservationType, Sgl, Sqe, Status, U32,
};
use zerocopy::IntoBytes;

use super::host::*;
use super::reservation::*;

/// A driver with one namespace whose reservations are these.
fn rim_with(reservations: Reservations) -> Driver {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let config = NamespaceConfig { reservations, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut driver = Driver::new(subsystem, nvme::target::ConnectionConfig::default());
    driver.disks.insert(1, vec![0; BLOCK * 512]);
    driver
}

fn ask_to_acquire(driver: &mut Driver, queue: &mut Queue, key: u64) {
    let data = AcquireData { crkey: key.into(), prkey: 0.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(0, 2), 16);
    queue.submit(driver, sqe, data.as_bytes());
}

fn ask_to_register(driver: &mut Driver, queue: &mut Queue, cptpl: u8, key: u64) {
    let data = RegisterData { crkey: 0.into(), nrkey: key.into() };
    let args = ReservationArgs { cptpl, ..args(0, 0) };
    let sqe = command(IoOpcode::ReservationRegister, args, 16);
    queue.submit(driver, sqe, data.as_bytes());
}

fn report_command() -> Sqe {
    let mut sqe = io(IoOpcode::ReservationReport, 0, 1);
    (sqe.cdw10, sqe.cdw11, sqe.cdw12) = (U32::new(1023), U32::new(1), U32::ZERO);
    sqe.sgl = Sgl::transport(4096);
    sqe
}

#[test]
fn a_volatile_registration_does_not_release_an_earlier_acquire() {
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let mut driver = rim_with(guarded);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    driver.hold_persist = true;
    ask_to_acquire(&mut driver, &mut a, KEY_A);
    assert_eq!(a.receive(&mut driver), [], "the epoch is not durable yet");
    ask_to_register(&mut driver, &mut b, 0, KEY_B);
    assert_eq!(b.receive(&mut driver), [], "it rests on the acquire");
    // Anything makes the acquire look again at what it waits for.
    ask_to_register(&mut driver, &mut a, 0, KEY_A);
    assert_eq!(a.receive(&mut driver), [], "the epoch is still not durable");
    driver.persist(true);
    assert_eq!((a.receive(&mut driver).len(), b.receive(&mut driver).len()), (2, 1));
}

#[test]
fn a_failure_is_told_to_everybody_who_relied_on_it() {
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let mut driver = rim_with(guarded);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    driver.hold_persist = true;
    ask_to_acquire(&mut driver, &mut a, KEY_A);
    ask_to_register(&mut driver, &mut b, 0, KEY_B);
    driver.persist(false);
    for queue in [&mut a, &mut b] {
        let got = queue.receive(&mut driver);
        let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(cqe.status(), Status::INTERNAL_ERROR);
    }
    // Whoever asks again is answered when it is durable at last.
    ask_to_acquire(&mut driver, &mut a, KEY_A);
    assert_eq!(a.receive(&mut driver), [], "nothing changed, and it is still not durable");
    assert!(matches!(driver.unpersisted.as_slice(), [Effect::Persist { .. }]));
    driver.persist(true);
    assert!(is_success(&mut driver, &mut a));
}

#[test]
fn a_report_waits_until_what_it_shows_is_durable() {
    let mut driver = rim_with(Reservations::default());
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    driver.hold_persist = true;
    ask_to_register(&mut driver, &mut a, 3, KEY_A);
    b.submit(&mut driver, report_command(), &[]);
    assert_eq!(b.receive(&mut driver), [], "a crash would take the registration back");
    driver.persist(false);
    let got = b.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::INTERNAL_ERROR);
    b.submit(&mut driver, report_command(), &[]);
    assert_eq!(b.receive(&mut driver), [], "it is written once more");
    driver.persist(true);
    assert_eq!(b.receive(&mut driver).len(), 2, "data and response");
}

/// A driver with one namespace whose volume is not open yet.
fn opening_rim(max_registrants: usize) -> Driver {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let reservation_home = ReservationHome::Volume { max_registrants };
    let config = NamespaceConfig { reservation_home, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut driver = Driver::new(subsystem, nvme::target::ConnectionConfig::default());
    driver.disks.insert(1, vec![0; BLOCK * 512]);
    driver
}

/// Host A holds the namespace, exclusively.
fn held_by_a() -> Reservations {
    let mut state = Reservations::default();
    let (host, kind) = (hostid(HOST_A), ReservationType::ExclusiveAccess);
    let keys = AcquireKeys { current: KEY_A, preempt: 0 };
    state.register(host, RegisterAction::Register, None, KEY_A).unwrap();
    state.acquire(host, AcquireAction::Acquire, kind, keys).unwrap();
    state
}

fn restore(driver: &mut Driver, reservations: Reservations) {
    driver.subsystem.restore_reservations(1, reservations);
    driver.effects();
}

#[test]
fn no_command_is_judged_before_the_reservations_of_its_volume_are_known() {
    let mut driver = opening_rim(8);
    let [(mut ax, mut a), (_y, mut b)] = hosts(&mut driver);
    let write = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    for queue in [&mut a, &mut b] {
        queue.submit(&mut driver, write, &[7; BLOCK]);
        queue.submit(&mut driver, report_command(), &[]);
        assert_eq!(queue.receive(&mut driver), []);
    }
    assert_eq!(
        ax.command(&mut driver, identify(1, 0), &[]).status,
        Status::SUCCESS,
        "admin goes on"
    );
    restore(&mut driver, held_by_a());
    let got = b.receive(&mut driver);
    let Got::Response(cqe) = &got[0] else { panic!("{got:?}") };
    assert_eq!(cqe.status().kind(), Status::RESERVATION_CONFLICT);
    let got = a.receive(&mut driver);
    assert!(matches!(&got[0], Got::Response(cqe) if cqe.status().is_success()), "{got:?}");
    let (head, entries) = report(&mut driver, &mut b);
    assert_eq!((head.header.rtype, entries.len()), (2, 1));
    assert_eq!((entries[0].hostid, entries[0].rkey.get()), (hostid(HOST_A), KEY_A));
}

#[test]
fn a_volume_that_does_not_open_fails_commands_by_their_path() {
    let mut driver = opening_rim(8);
    let [(_x, mut a), _] = hosts(&mut driver);
    a.submit(&mut driver, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[7; BLOCK]);
    driver.subsystem.set_available(1, false);
    driver.effects();
    let got = a.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::INTERNAL_PATH_ERROR);
    let refused = register(&mut driver, &mut a, args(0, 0), (0, KEY_A));
    assert_eq!(refused, Status::INTERNAL_PATH_ERROR);
    // It opens after all.
    driver.subsystem.set_available(1, true);
    a.submit(&mut driver, in_capsule(io(IoOpcode::Write, 0, 1), BLOCK), &[7; BLOCK]);
    assert_eq!(a.receive(&mut driver), []);
    restore(&mut driver, Reservations::default());
    assert!(is_success(&mut driver, &mut a));
    // It is served elsewhere now: what waits for the answer of a copy is not waited for.
    driver.hold_persist = true;
    ask_to_register(&mut driver, &mut a, 0, KEY_A);
    assert_eq!(a.receive(&mut driver), [], "kept although the host asks for no persistence");
    driver.subsystem.set_available(1, false);
    driver.effects();
    let got = a.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::INTERNAL_PATH_ERROR);
}

#[test]
fn what_was_found_is_written_again_before_it_is_told() {
    let mut driver = opening_rim(8);
    let [(_x, mut a), _] = hosts(&mut driver);
    driver.hold_persist = true;
    restore(&mut driver, held_by_a());
    assert_eq!(status(&mut driver, &mut a, IoOpcode::Write), Status::SUCCESS, "I/O does not wait");
    a.submit(&mut driver, report_command(), &[]);
    assert_eq!(a.receive(&mut driver), [], "perhaps only one copy has it");
    driver.persist(true);
    assert_eq!(a.receive(&mut driver).len(), 2, "data and response");
}

#[test]
fn more_registrants_than_a_volume_keeps_are_refused() {
    let mut driver = opening_rim(1);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    restore(&mut driver, held_by_a());
    let before = driver.subsystem.namespace(1).unwrap().reservations().clone();
    let refused = register(&mut driver, &mut b, args(0, 0), (0, KEY_B));
    assert_eq!(refused, Status::CAPACITY_EXCEEDED);
    assert_eq!(*driver.subsystem.namespace(1).unwrap().reservations(), before);
    assert_eq!(register(&mut driver, &mut a, args(2, 0), (KEY_A, KEY_B)), Status::SUCCESS);
}

/// Another node serves the volume, and this one has not heard of it yet: what hosts reserved there
/// is not known here.
#[test]
fn a_former_owner_says_nothing_of_reservations() {
    let mut driver = opening_rim(8);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut driver);
    restore(&mut driver, held_by_a());
    let all = |driver: &mut Driver, a: &mut Queue, b: &mut Queue| {
        let report = b.command(driver, report_command(), &[]).status;
        let (read, write) = (status(driver, b, IoOpcode::Read), status(driver, b, IoOpcode::Write));
        let again = register(driver, a, args(0, 0), (0, KEY_A));
        let held = acquire(driver, a, args(0, 2), (KEY_A, 0));
        let refused = acquire(driver, b, args(0, 2), (KEY_B, 0));
        [report, again, held, read, write, refused].map(Status::kind)
    };
    let (fine, no) = (Status::SUCCESS, Status::RESERVATION_CONFLICT);
    assert_eq!(all(&mut driver, &mut a, &mut b), [fine, fine, fine, no, no, no]);
    driver.is_replaced = true;
    assert_eq!(all(&mut driver, &mut a, &mut b), [Status::INTERNAL_PATH_ERROR; 6]);
    // What no answer rests on is for the volume itself to refuse.
    assert_eq!(status(&mut driver, &mut a, IoOpcode::Write), Status::SUCCESS);
}

/// Both commands of a fused pair end, whatever becomes of the proof.
#[test]
fn a_fused_pair_waits_for_the_proof_as_one() {
    for (is_owner, expected) in
        [(true, Status::RESERVATION_CONFLICT), (false, Status::INTERNAL_PATH_ERROR)]
    {
        let mut driver = opening_rim(8);
        let [_a, (_y, mut b)] = hosts(&mut driver);
        restore(&mut driver, held_by_a());
        driver.hold_persist = true;
        for (opcode, fuse) in [(IoOpcode::Compare, 1), (IoOpcode::Write, 2)] {
            let mut sqe = in_capsule(io(opcode, 0, 1), BLOCK);
            sqe.flags |= fuse;
            b.submit(&mut driver, sqe, &[0; BLOCK]);
        }
        assert_eq!(b.receive(&mut driver), [], "nobody knows who owns it");
        driver.persist(is_owner);
        let got = b.receive(&mut driver);
        let [Got::Response(compare), Got::Response(write)] = got.as_slice() else {
            panic!("{got:?}")
        };
        assert_eq!(compare.status().kind(), expected);
        assert_eq!(write.status().kind(), Status::ABORTED_FAILED_FUSED);
        driver.hold_persist = false;
        assert_eq!(
            status(&mut driver, &mut b, IoOpcode::Read).kind(),
            Status::RESERVATION_CONFLICT
        );
    }
}
