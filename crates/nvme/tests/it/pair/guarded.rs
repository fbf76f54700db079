//! Replicas between engines, through the wire: ownership by number, and messages to their owner.

use block::{Command, IoError};
use nvme::initiator::{Content, IoEvent, IoQueue, Key, Message, Namespace, Reservation};
use nvme::target::testing::Driver;
use nvme::target::{
    ConnectionConfig, Event, MAX_KEY_STEP, NamespaceConfig, Reservations, Subsystem,
};
use nvme::wire::{AcquireAction, RegisterAction, ReservationType};

use super::net::{BLOCK, Net, SUBSYSTEM, Told, config, namespace};
use super::{end_of, reserve, span, with_queue};

const BLOCKS: u64 = 16;
const TOPIC: u32 = 7;

fn guarded(least_key: u64) -> NamespaceConfig {
    NamespaceConfig {
        takes_messages: true,
        reservations: Reservations { least_key: Some(least_key), ..Reservations::default() },
        ..namespace(BLOCKS)
    }
}

/// A node with a replica that was owned by number `least_key` before.
fn replica(net: &mut Net, least_key: u64) -> usize {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM, 1));
    subsystem.add_namespace(1, guarded(least_key)).unwrap();
    let node = net.add_node(subsystem, ConnectionConfig::default());
    net.nodes[node].disks.insert(1, vec![0; usize::try_from(BLOCKS).unwrap() * BLOCK]);
    node
}

fn register(key: u64) -> Reservation {
    let action = RegisterAction::Replace;
    Reservation::Register { action, current: Key(0), new: Key(key), force: true }
}

fn acquire(action: AcquireAction, key: u64, preempt: u64) -> Reservation {
    let kind = ReservationType::ExclusiveAccess;
    Reservation::Acquire { action, kind, current: Key(key), preempt: Key(preempt) }
}

fn own(net: &mut Net, io: usize, key: u64) -> Result<(), IoError> {
    reserve(net, io, register(key))?;
    reserve(net, io, acquire(AcquireAction::Acquire, key, 0))
}

fn write(net: &mut Net, io: usize, namespace: &Namespace) -> Result<(), IoError> {
    let now = net.now;
    net.io(io).submit(now, 0, namespace, Command::Write { span: span(0, 1), fua: false }).unwrap();
    end_of(net, io)
}

fn send(net: &mut Net, io: usize, content: Content) -> Result<Vec<u8>, IoError> {
    let message = Message { topic: TOPIC, argument: 0x1_0000_0002, object: 0x3_0000_0004, content };
    let now = net.now;
    net.io(io).send(now, 0, 1, message).unwrap();
    match net.settle().as_slice() {
        [(at, Told::Io(IoEvent::Answered { slot: 0, result }))] if *at == io => result.clone(),
        other => panic!("not an answer but {other:?}"),
    }
}

fn tell(bytes: &[u8]) -> Content {
    Content::Tell(bytes.into())
}

fn least_key(driver: &Driver) -> Option<u64> {
    driver.subsystem.namespace(1).unwrap().reservations().least_key
}

#[test]
fn nobody_touches_a_replica_before_owning_it() {
    let mut net = Net::new(1);
    let node = replica(&mut net, 5);
    let (_, io, namespace) = with_queue(&mut net, node, 1);
    assert_eq!(write(&mut net, io, &namespace), Err(IoError::Fenced));
    assert_eq!(send(&mut net, io, tell(b"x")), Err(IoError::Fenced));
    assert_eq!(send(&mut net, io, Content::Ask { room: 16 }), Err(IoError::Fenced));
    assert_eq!(own(&mut net, io, 5), Ok(()));
    assert_eq!(write(&mut net, io, &namespace), Ok(()));
}

#[test]
fn a_lower_number_never_owns_it_again() {
    let mut net = Net::new(2);
    let node = replica(&mut net, 5);
    let (_, old, namespace) = with_queue(&mut net, node, 1);
    assert_eq!(own(&mut net, old, 4), Err(IoError::Fenced));
    assert_eq!(own(&mut net, old, 6), Ok(()));
    assert_eq!(least_key(&net.nodes[node]), Some(6));
    let (_, new, _) = with_queue(&mut net, node, 2);
    assert_eq!(reserve(&mut net, new, register(7)), Ok(()));
    let preempt = acquire(AcquireAction::PreemptAndAbort, 7, 6);
    assert_eq!(reserve(&mut net, new, preempt), Ok(()));
    net.settle();
    assert_eq!(least_key(&net.nodes[node]), Some(7));
    assert_eq!(own(&mut net, old, 6), Err(IoError::Fenced));
    assert_eq!(write(&mut net, old, &namespace), Err(IoError::Fenced));
    assert_eq!(write(&mut net, new, &namespace), Ok(()));
}

/// With the last number of all, nobody could ever own it again.
#[test]
fn an_absurd_number_does_not_lock_it_for_ever() {
    let mut net = Net::new(4);
    let node = replica(&mut net, 5);
    let (_, liar, _) = with_queue(&mut net, node, 1);
    for absurd in [u64::MAX, u64::MAX - 1, 1 << 63, 6 + MAX_KEY_STEP] {
        assert!(own(&mut net, liar, absurd).is_err(), "{absurd}");
        assert_eq!(least_key(&net.nodes[node]), Some(5));
    }
    let (_, io, namespace) = with_queue(&mut net, node, 2);
    assert_eq!(own(&mut net, io, 6), Ok(()));
    assert_eq!(write(&mut net, io, &namespace), Ok(()));
    // One that was away for long is owned all the same.
    assert_eq!(reserve(&mut net, io, register(6 + MAX_KEY_STEP)), Ok(()));
}

#[test]
fn one_who_was_registered_earlier_cannot_take_it_back() {
    let mut net = Net::new(3);
    let node = replica(&mut net, 1);
    let (_, low, _) = with_queue(&mut net, node, 1);
    let (_, high, namespace) = with_queue(&mut net, node, 2);
    assert_eq!(reserve(&mut net, low, register(2)), Ok(()));
    assert_eq!(own(&mut net, high, 3), Ok(()));
    // It is still registered; its number alone forbids it.
    let back = acquire(AcquireAction::PreemptAndAbort, 2, 3);
    assert_eq!(reserve(&mut net, low, back), Err(IoError::Fenced));
    assert_eq!(write(&mut net, high, &namespace), Ok(()));
}

#[test]
fn what_is_told_can_be_asked_for() {
    let mut net = Net::new(5);
    let node = replica(&mut net, 1);
    let (_, io, _) = with_queue(&mut net, node, 1);
    assert_eq!(own(&mut net, io, 1), Ok(()));
    assert_eq!(send(&mut net, io, Content::Ask { room: 16 }), Err(IoError::Unsupported));
    let long = vec![0xA5; usize::try_from(Message::MOST_BYTES).unwrap()];
    for bytes in [&b""[..], b"a label", &long] {
        assert_eq!(send(&mut net, io, tell(bytes)), Ok(Vec::new()));
        let answer = send(&mut net, io, Content::Ask { room: 1 << 16 });
        assert_eq!(answer, Ok(bytes.to_vec()));
    }
    let cut = send(&mut net, io, Content::Ask { room: 100 });
    assert_eq!(cut, Ok(vec![0xA5; 100]));
}

#[test]
fn too_much_is_not_told() {
    let mut net = Net::new(6);
    let node = replica(&mut net, 1);
    let (_, io, _) = with_queue(&mut net, node, 1);
    let bytes = vec![0; usize::try_from(Message::MOST_BYTES).unwrap() + 1];
    let message = Message { topic: TOPIC, argument: 0, object: 0, content: tell(&bytes) };
    let now = net.now;
    let queue: &mut IoQueue = net.io(io);
    assert_eq!(queue.send(now, 0, 1, message), Err(IoError::Unsupported));
}

#[test]
fn an_ordinary_namespace_takes_no_messages() {
    let mut net = Net::new(7);
    let node = super::node(&mut net, 1);
    let (_, io, _) = with_queue(&mut net, node, 1);
    assert_eq!(send(&mut net, io, tell(b"x")), Err(IoError::Unsupported));
    assert_eq!(send(&mut net, io, Content::Ask { room: 8 }), Err(IoError::Unsupported));
}

#[test]
fn a_new_owner_waits_for_messages_at_work() {
    let mut net = Net::new(8);
    let node = replica(&mut net, 1);
    let (_, old, _) = with_queue(&mut net, node, 1);
    let (_, new, _) = with_queue(&mut net, node, 2);
    assert_eq!(own(&mut net, old, 1), Ok(()));
    assert_eq!(reserve(&mut net, new, register(2)), Ok(()));
    net.nodes[node].hold_io = true;
    let message = Message { topic: TOPIC, argument: 0, object: 0, content: tell(b"late") };
    let now = net.now;
    net.io(old).send(now, 3, 1, message).unwrap();
    assert_eq!(net.settle(), []);
    let preempt = acquire(AcquireAction::PreemptAndAbort, 2, 1);
    net.io(new).reserve(now, 0, 1, preempt).unwrap();
    let told = net.settle();
    let is_over = |told: &[(usize, Told)]| told.iter().any(|(at, _)| *at == new);
    assert!(!is_over(&told), "acknowledged while a message was at work: {told:?}");
    let (conn, event) = net.nodes[node].held.pop().expect("the message");
    assert!(matches!(event, Event::Message { message, .. } if message.topic == TOPIC));
    net.at(node, |driver| driver.release(conn, event, Some(Err(IoError::Aborted))));
    let told = net.settle();
    assert!(is_over(&told), "{told:?}");
    let old_end = told.iter().find(|(at, _)| *at == old);
    let fenced = IoEvent::Answered { slot: 3, result: Err(IoError::Fenced) };
    assert_eq!(old_end, Some(&(old, Told::Io(fenced))));
}
