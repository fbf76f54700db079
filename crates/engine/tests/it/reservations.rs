//! Reservations of hosts on a mirrored volume: whoever serves it next finds them.

use std::net::SocketAddr;

use block::IoError;
use engine::client::Session;
use engine::volumes::{VolumeRequest, VolumeResponse};
use nvme::initiator::{Host, Key, Options, Report, Reservation};
use nvme::wire::{AcquireAction, RegisterAction, ReleaseAction, ReservationType};

use crate::harness::{association, nqn};
use crate::volumes::{Cluster, await_news, is_open, name, read, volume, write};

const KIND: ReservationType = ReservationType::ExclusiveAccessRegistrants;

/// A host of a cluster, by its number.
fn host(address: SocketAddr, number: u8) -> Session {
    let mut association = association(name(&model::Nqn::volume(volume())), Options::default());
    association.host = Host { nqn: nqn(&format!("host{number}")), id: [number; 16] };
    Session::connect(address, association).unwrap()
}

fn register(session: &mut Session, key: u64) {
    let (action, new) = (RegisterAction::Register, Key(key));
    let register = Reservation::Register { action, current: Key(0), new, force: false };
    session.reserve(1, register).unwrap();
}

fn acquire(session: &mut Session, action: AcquireAction, keys: (u64, u64)) {
    let (current, preempt) = (Key(keys.0), Key(keys.1));
    session.reserve(1, Reservation::Acquire { action, kind: KIND, current, preempt }).unwrap();
}

fn report(session: &mut Session) -> Report {
    session.reserve(1, Reservation::Report).unwrap().unwrap()
}

/// Hosts 1 and 2 are registered, 1 holds the volume, 3 is a stranger.
fn check(address: SocketAddr, expected: &Report) {
    let mut all = [1, 2, 3].map(|number| host(address, number));
    assert_eq!(write(&mut all[2], 5, 9), Err(IoError::Fenced), "a stranger's write");
    assert_eq!(read(&mut all[2], 5), Err(IoError::Fenced), "a stranger's read");
    assert_eq!(write(&mut all[0], 5, 1), Ok(()));
    assert_eq!(write(&mut all[1], 6, 2), Ok(()));
    let found = report(&mut all[2]);
    assert_eq!(found, *expected);
    let seen: Vec<_> = found.registrants.iter().map(|one| (one.key.0, one.holds)).collect();
    assert_eq!((found.kind, seen), (Some(KIND), vec![(0xA, true), (0xB, false)]));
}

fn reserved(address: SocketAddr) -> Report {
    let mut hosts = [1, 2].map(|number| host(address, number));
    register(&mut hosts[0], 0xA);
    register(&mut hosts[1], 0xB);
    acquire(&mut hosts[0], AcquireAction::Acquire, (0xA, 0));
    report(&mut hosts[1])
}

#[test]
fn the_next_target_of_a_volume_finds_its_reservations() {
    let cluster = Cluster::new(3);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let expected = reserved(cluster.nodes[0].address);
    check(cluster.nodes[0].address, &expected);
    // Another takes over; nobody asks the former one.
    let told = cluster.open(1, 201);
    check(cluster.nodes[1].address, &expected);
    await_news(&told, is_open);
    // A clean end, and a third.
    assert!(matches!(cluster.request(1, VolumeRequest::Close), VolumeResponse::Done));
    let told = cluster.open(2, 202);
    await_news(&told, is_open);
    check(cluster.nodes[2].address, &expected);
    // The former owners answer nothing about reservations any more.
    let mut old = host(cluster.nodes[2].address, 2);
    acquire(&mut old, AcquireAction::PreemptAndAbort, (0xB, 0xA));
    let after = report(&mut old);
    assert_eq!(after.registrants.len(), 1);
    let mut fenced = host(cluster.nodes[2].address, 1);
    assert_eq!(write(&mut fenced, 5, 1), Err(IoError::Fenced));
    cluster.stop();
}

#[test]
fn reservations_outlive_a_restart_of_everything() {
    let mut cluster = Cluster::new(2);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let expected = reserved(cluster.nodes[0].address);
    // Nobody stops the target: its engine ends under it.
    for node in &mut cluster.nodes {
        node.stop();
    }
    for node in &mut cluster.nodes {
        node.restart();
    }
    let told = cluster.open(1, 201);
    await_news(&told, is_open);
    check(cluster.nodes[1].address, &expected);
    let mut holder = host(cluster.nodes[1].address, 1);
    let action = ReleaseAction::Clear;
    holder.reserve(1, Reservation::Release { action, kind: KIND, current: Key(0xA) }).unwrap();
    let told = cluster.open(0, 202);
    await_news(&told, is_open);
    let mut stranger = host(cluster.nodes[0].address, 3);
    assert_eq!(report(&mut stranger).registrants, []);
    assert_eq!(write(&mut stranger, 5, 9), Ok(()));
    cluster.stop();
}
