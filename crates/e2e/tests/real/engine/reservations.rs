//! Reservations of hosts on a volume of real engines: fencing that outlives its target.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use block::{Blocks, Command, Completion, IoError, Lba, Span};
use e2e::fleet::{Fleet, Plan};
use e2e::process::PATIENCE;
use e2e::store::Kind as StoreKind;
use engine::client::{ControllerEvent, Request, Session};
use engine::device::Data;
use model::{Nqn, StopCause, TargetState, VolumeId};
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Key, Options, Report, Reservation};
use nvme::wire::{AcquireAction, RegisterAction, ReservationType};
use rustix::process::Signal;

use super::rig::{HOST, id};
use super::targets::with_each_store;

with_each_store! {
    the_next_target_finds_the_reservations_of_a_killed_one
}

const KIND: ReservationType = ReservationType::WriteExclusiveRegistrants;

/// A member of a cluster of hosts.
fn member(address: SocketAddr, volume: VolumeId, number: u8) -> Session {
    let wire = |name: &str| nvme::wire::Nqn::new(name).unwrap();
    let association = Association {
        host: Host { nqn: wire(HOST), id: [number; 16] },
        subsystem: wire(Nqn::volume(volume).as_str()),
        keys: None,
        accepted: Accepted::default(),
        // It is not heard of while the test is busy elsewhere.
        options: Options {
            keep_alive: Duration::ZERO,
            io_patience: PATIENCE * 2,
            ..Options::default()
        },
    };
    Session::connect(address, association).unwrap()
}

fn write(session: &mut Session) -> Completion {
    let buffer = session.take(4096).unwrap().freeze();
    let command = Command::Write { span: Span::new(Lba(0), Blocks(1)).unwrap(), fua: false };
    session.submit(Request { tag: 1, nsid: 1, command, data: Data::Bytes(buffer) }).unwrap();
    loop {
        if let ControllerEvent::Done { result, .. } = session.wait().unwrap() {
            return result;
        }
    }
}

fn report(session: &mut Session) -> Report {
    session.reserve(1, Reservation::Report).unwrap().unwrap()
}

/// Members 1 and 2 register, and 1 takes the volume for both.
fn reserve(fleet: &Fleet, on: usize) -> Report {
    let mut members =
        [1, 2].map(|number| member(fleet.machines[on].listen(), fleet.volume, number));
    for (session, key) in members.iter_mut().zip([0xA, 0xB]) {
        let (action, current, new) = (RegisterAction::Register, Key(0), Key(key));
        session.reserve(1, Reservation::Register { action, current, new, force: false }).unwrap();
    }
    let (action, current, preempt) = (AcquireAction::Acquire, Key(0xA), Key(0));
    let acquire = Reservation::Acquire { action, kind: KIND, current, preempt };
    members[0].reserve(1, acquire).unwrap();
    report(&mut members[1])
}

fn check(fleet: &Fleet, on: usize, expected: &Report) {
    let connect = |number| member(fleet.machines[on].listen(), fleet.volume, number);
    let mut stranger = connect(3);
    assert_eq!(write(&mut stranger), Err(IoError::Fenced), "a stranger writes");
    assert_eq!(report(&mut stranger), *expected);
    assert_eq!(expected.kind, Some(KIND));
    assert_eq!((write(&mut connect(1)), write(&mut connect(2))), (Ok(()), Ok(())));
}

async fn the_next_target_finds_the_reservations_of_a_killed_one(store: StoreKind) {
    let mut fleet = Fleet::start(Plan::default_for(store, HOST)).await.unwrap();
    fleet.open(id(40), 0).await.unwrap();
    fleet.until_open(id(40), 0).await.unwrap();
    let expected = reserve(&fleet, 0);
    check(&fleet, 0, &expected);
    // The volume is served elsewhere; what a host asks at once is asked before it has opened.
    fleet.machines[0].kill().unwrap();
    fleet.open(id(41), 1).await.unwrap();
    check(&fleet, 1, &expected);
    fleet.restart(0).await.unwrap();
    fleet.until_open(id(41), 1).await.unwrap();
    // Everything ends at once and comes back.
    for machine in &mut fleet.machines {
        machine.kill().unwrap();
    }
    for machine in 0..3 {
        fleet.restart(machine).await.unwrap();
    }
    fleet.open(id(42), 2).await.unwrap();
    check(&fleet, 2, &expected);
    // Fencing goes on from there.
    let mut second = member(fleet.machines[2].listen(), fleet.volume, 2);
    let (action, current, preempt) = (AcquireAction::PreemptAndAbort, Key(0xB), Key(0xA));
    let take = Reservation::Acquire { action, kind: KIND, current, preempt };
    second.reserve(1, take).unwrap();
    let mut first = member(fleet.machines[2].listen(), fleet.volume, 1);
    assert_eq!(write(&mut first), Err(IoError::Fenced), "a preempted member writes");
    fleet.until_open(id(42), 2).await.unwrap();
    fleet.close(id(42), 2).await.unwrap();
}

/// Its node stands still while another one takes the volume and a member takes it from the other:
/// what was asked of the former owner meanwhile is not answered from what it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_stopped_reports_no_old_reservations() {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    fleet.open(id(40), 0).await.unwrap();
    fleet.until_open(id(40), 0).await.unwrap();
    let old = reserve(&fleet, 0);
    let (at, volume) = (fleet.machines[0].listen(), fleet.volume);
    let (go, goes) = mpsc::channel();
    let (attached, until_attached) = mpsc::channel();
    let asking = std::thread::spawn(move || {
        let mut session = member(at, volume, 2);
        attached.send(()).unwrap();
        goes.recv().unwrap();
        session.reserve(1, Reservation::Report).ok().flatten()
    });
    until_attached.recv().unwrap();
    fleet.machines[0].engine().unwrap().program.pause().unwrap();
    go.send(()).unwrap();
    fleet.open(id(41), 1).await.unwrap();
    fleet.until(id(41), 1, |status| status.state.serves()).await.unwrap();
    let mut second = member(fleet.machines[1].listen(), fleet.volume, 2);
    let (action, current, preempt) = (AcquireAction::PreemptAndAbort, Key(0xB), Key(0xA));
    second.reserve(1, Reservation::Acquire { action, kind: KIND, current, preempt }).unwrap();
    assert_ne!(report(&mut second), old);
    fleet.machines[0].engine().unwrap().program.signal(Signal::CONT).unwrap();
    let answered = asking.join().unwrap();
    assert!(answered.as_ref() != Some(&old), "an old report was answered: {answered:?}");
    let fenced = TargetState::Shutdown { cause: StopCause::Fenced };
    fleet.until(id(40), 0, |status| status.state == fenced).await.unwrap();
}
