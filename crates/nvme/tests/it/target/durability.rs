//! Durability of reservations: no answer rests on a state that a crash would take back.

use nvme::target::testing::Rim;
use nvme::target::{Effect, NamespaceConfig, Reservations, Subsystem};
use nvme::wire::{AcquireData, IoOpcode, RegisterData, ReservationArgs, Sgl, Sqe, Status, U32};
use zerocopy::IntoBytes;

use super::host::*;
use super::reservation::*;

/// A rim with one namespace whose reservations are these.
fn rim_with(reservations: Reservations) -> Rim {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    let config = NamespaceConfig { reservations, ..namespace() };
    subsystem.add_namespace(1, config).unwrap();
    let mut rim = Rim::new(subsystem, nvme::target::ConnectionConfig::default());
    rim.disks.insert(1, vec![0; BLOCK * 512]);
    rim
}

fn ask_to_acquire(rim: &mut Rim, queue: &mut Queue, key: u64) {
    let data = AcquireData { crkey: key.into(), prkey: 0.into() };
    let sqe = command(IoOpcode::ReservationAcquire, args(0, 2), 16);
    queue.submit(rim, sqe, data.as_bytes());
}

fn ask_to_register(rim: &mut Rim, queue: &mut Queue, cptpl: u8, key: u64) {
    let data = RegisterData { crkey: 0.into(), nrkey: key.into() };
    let args = ReservationArgs { cptpl, ..args(0, 0) };
    let sqe = command(IoOpcode::ReservationRegister, args, 16);
    queue.submit(rim, sqe, data.as_bytes());
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
    let mut rim = rim_with(guarded);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut rim);
    register(&mut rim, &mut a, args(0, 0), (0, KEY_A));
    rim.hold_persist = true;
    ask_to_acquire(&mut rim, &mut a, KEY_A);
    assert_eq!(a.receive(&mut rim), [], "the epoch is not durable yet");
    ask_to_register(&mut rim, &mut b, 0, KEY_B);
    assert_eq!(b.receive(&mut rim), [], "it rests on the acquire");
    // Anything makes the acquire look again at what it waits for.
    ask_to_register(&mut rim, &mut a, 0, KEY_A);
    assert_eq!(a.receive(&mut rim), [], "the epoch is still not durable");
    rim.persist(true);
    assert_eq!((a.receive(&mut rim).len(), b.receive(&mut rim).len()), (2, 1));
}

#[test]
fn a_failure_is_told_to_everybody_who_relied_on_it() {
    let guarded = Reservations { least_key: Some(1), ..Reservations::default() };
    let mut rim = rim_with(guarded);
    let [(_x, mut a), (_y, mut b)] = hosts(&mut rim);
    register(&mut rim, &mut a, args(0, 0), (0, KEY_A));
    rim.hold_persist = true;
    ask_to_acquire(&mut rim, &mut a, KEY_A);
    ask_to_register(&mut rim, &mut b, 0, KEY_B);
    rim.persist(false);
    for queue in [&mut a, &mut b] {
        let got = queue.receive(&mut rim);
        let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(cqe.status(), Status::INTERNAL_ERROR);
    }
    // Whoever asks again is answered when it is durable at last.
    ask_to_acquire(&mut rim, &mut a, KEY_A);
    assert_eq!(a.receive(&mut rim), [], "nothing changed, and it is still not durable");
    assert!(matches!(rim.unpersisted.as_slice(), [Effect::Persist { .. }]));
    rim.persist(true);
    assert!(is_success(&mut rim, &mut a));
}

#[test]
fn a_report_waits_until_what_it_shows_is_durable() {
    let mut rim = rim_with(Reservations::default());
    let [(_x, mut a), (_y, mut b)] = hosts(&mut rim);
    rim.hold_persist = true;
    ask_to_register(&mut rim, &mut a, 3, KEY_A);
    b.submit(&mut rim, report_command(), &[]);
    assert_eq!(b.receive(&mut rim), [], "a crash would take the registration back");
    rim.persist(false);
    let got = b.receive(&mut rim);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::INTERNAL_ERROR);
    b.submit(&mut rim, report_command(), &[]);
    assert_eq!(b.receive(&mut rim), [], "it is written once more");
    rim.persist(true);
    assert_eq!(b.receive(&mut rim).len(), 2, "data and response");
}
