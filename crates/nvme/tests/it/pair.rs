//! The initiator's and the target's machines against each other in one thread.

mod corpus;
mod guarded;
mod model;
mod net;
mod paths;

use std::time::Duration;

use block::{Blocks, Command, IoError, Lba, Span};
use nvme::auth::{Accepted, Group, Hash, Keys, Reason, Secret};
use nvme::initiator::{
    AdminEvent, Answer, ConnectRefused, DiscoveryReader, IoEvent, Key, Lost, Namespace, ReadStep,
    Reservation,
};
use nvme::pdu::Digests;
use nvme::target::{ConnectionConfig, DiscoveryRecord, Hosts, Service, Subsystem};
use nvme::wire::{
    AcquireAction, AnaState, Nqn, RegisterAction, ReleaseAction, ReservationType, Status,
};

use model::Model;
use net::{BLOCK, Dice, Net, Told, config, demand, host, namespace, nqn, seeds, subsystem};

const BLOCKS: usize = 128;

fn node(net: &mut Net, number: u16) -> usize {
    let node = net
        .add_node(subsystem(number, u64::try_from(BLOCKS).unwrap()), ConnectionConfig::default());
    net.nodes[node].disks.insert(1, vec![0; BLOCKS * BLOCK]);
    node
}

fn span(start: u64, len: u64) -> Span {
    Span::new(Lba(start), Blocks(len)).unwrap()
}

/// Waits for the end of one command and nothing else.
fn end_of(net: &mut Net, link: usize) -> Result<(), IoError> {
    let told = net.settle();
    end_among(&told, link)
}

fn end_among(told: &[(usize, Told)], link: usize) -> Result<(), IoError> {
    match told {
        [(at, Told::Io(IoEvent::Done { result, .. })), ..] if *at == link => *result,
        other => panic!("not the end of a command but {other:?}"),
    }
}

/// A controller and one I/O queue of it.
fn with_queue(net: &mut Net, node: usize, number: u8) -> (usize, usize, Namespace) {
    let association = host(number);
    let (admin, controller, namespaces) = net.bring_up(node, &association);
    let io = net.connect_io(node, &association, &controller, 1);
    assert_eq!(net.settle(), [(io, Told::Io(IoEvent::Ready))]);
    (admin, io, namespaces[0].clone())
}

#[test]
fn a_controller_describes_itself() {
    for digests in [false, true] {
        let mut net = Net::new(1);
        let node = node(&mut net, 1);
        let mut association = host(1);
        association.options.digests = Digests { header: digests, data: digests };
        association.options.io_queues = 4;
        let (_, controller, namespaces) = net.bring_up(node, &association);
        assert_eq!((controller.cntlid, controller.io_queues), (1001, 4));
        assert_eq!(controller.serial, "HF0001");
        assert!(controller.max_transfer >= 1 << 20 && controller.capsule_data >= 8192);
        let [namespace] = &namespaces[..] else { panic!("{namespaces:?}") };
        assert_eq!((namespace.nsid, namespace.ana_group), (1, 1));
        assert_eq!(namespace.geometry.blocks(), Blocks(128));
        assert_eq!(namespace.ids.uuid, Some([0xAB; 16]));
    }
}

#[test]
fn an_unknown_subsystem_is_refused_with_a_reason() {
    let mut net = Net::new(1);
    let node = node(&mut net, 1);
    let mut association = host(1);
    association.subsystem = nqn("nqn.2026-01.io.holdfast:other");
    net.connect_admin(node, &association);
    let told = net.settle();
    let [(_, Told::Admin(AdminEvent::Refused(why)))] = &told[..] else { panic!("{told:?}") };
    assert!(matches!(why, ConnectRefused::Connect { .. }), "{why}");
    assert!(why.to_string().contains("subsystem name"), "{why}");
}

fn keys(host: u8, controller: Option<u8>) -> Keys {
    let secret = |fill| Secret::new(&[fill; 32], Some(Hash::Sha256)).unwrap();
    Keys { host: secret(host), controller: controller.map(secret) }
}

#[test]
fn queues_authenticate_in_both_directions() {
    let accepted =
        Accepted { hashes: vec![Hash::Sha384], groups: vec![Group::Ffdhe2048, Group::Null] };
    for controller in [None, Some(2)] {
        let mut net = Net::new(7);
        let node = node(&mut net, 1);
        demand(&mut net.nodes[node], keys(1, Some(2)), accepted.clone());
        let mut association = host(1);
        association.keys = Some(keys(1, controller));
        let (_, controller, _) = net.bring_up(node, &association);
        let io = net.connect_io(node, &association, &controller, 1);
        assert_eq!(net.settle(), [(io, Told::Io(IoEvent::Ready))]);
    }
}

#[test]
fn wrong_or_missing_secrets_are_refused() {
    let accepted = Accepted { hashes: vec![Hash::Sha256], groups: vec![Group::Null] };
    for (given, refused) in [
        (None, ConnectRefused::SecretMissing),
        (Some(keys(9, None)), ConnectRefused::Authentication(Reason::Failed)),
        (Some(keys(1, Some(9))), ConnectRefused::Authentication(Reason::Failed)),
    ] {
        let mut net = Net::new(7);
        let node = node(&mut net, 1);
        demand(&mut net.nodes[node], keys(1, Some(2)), accepted.clone());
        let mut association = host(1);
        association.keys = given;
        let admin = net.connect_admin(node, &association);
        assert_eq!(net.settle(), [(admin, Told::Admin(AdminEvent::Refused(refused)))]);
    }
}

/// Random commands on one queue with random splitting; with `cuts`, the connection is lost now and
/// then and made anew.
fn run_io(seed: u64, digests: Digests, cuts: bool) {
    let mut net = Net::new(seed);
    let node = node(&mut net, 1);
    let mut dice = Dice::new(seed ^ 0x10);
    let mut association = host(1);
    association.options.digests = digests;
    association.options.quiet_reads = dice.one_in(2);
    association.options.r2ts = 1 + u8::try_from(dice.below(3)).unwrap();
    let (_, controller, namespaces) = net.bring_up(node, &association);
    let mut model = Model::new(BLOCKS);
    let mut io = net.connect_io(node, &association, &controller, 1);
    net.settle();
    let mut at_work: Vec<(u16, Command, u64)> = Vec::new();
    let mut left = 150;
    while left > 0 || !at_work.is_empty() {
        let slots = net.io(io).slots();
        let free = (0..slots).find(|slot| at_work.iter().all(|work| work.0 != *slot));
        let commands: Vec<Command> = at_work.iter().map(|work| work.1).collect();
        if left > 0
            && dice.one_in(3)
            && let Some(slot) = free
            && let Some((command, tag)) = model.choose(&mut dice, &commands)
        {
            left -= 1;
            model.fill(command, tag, &mut net.links[io].buffers[usize::from(slot)]);
            let now = net.now;
            net.io(io).submit(now, slot, &namespaces[0], command).unwrap();
            at_work.push((slot, command, tag));
        }
        if cuts && dice.one_in(100) {
            net.cut(io);
        }
        let mut lost = false;
        for (link, event) in net.step().unwrap_or_default() {
            match event {
                Told::Io(IoEvent::Done { slot, result }) => {
                    assert_eq!(link, io);
                    let at = at_work.iter().position(|work| work.0 == slot).expect("twice");
                    let (_, command, tag) = at_work.remove(at);
                    let buffer = &net.links[io].buffers[usize::from(slot)];
                    match result {
                        Ok(()) => model.done(command, tag, buffer),
                        Err(IoError::Unreachable) if cuts => model.doubted(command, tag),
                        Err(IoError::Miscompare { .. })
                            if !model.is_certain(command.span().unwrap()) => {}
                        Err(fault) => panic!("{command:?}: {fault}"),
                    }
                }
                Told::Io(IoEvent::Lost(_)) if cuts => lost = true,
                other => panic!("{other:?}"),
            }
        }
        if lost {
            assert!(at_work.is_empty(), "commands outlived their connection");
            io = net.connect_io(node, &association, &controller, 1);
            let told = net.settle();
            assert_eq!(told, [(io, Told::Io(IoEvent::Ready))]);
        }
    }
    // All of it, once more.
    let buffer = read_all(&mut net, io, &namespaces[0]);
    model.done(Command::Read { span: model.span() }, 0, &buffer);
}

fn read_all(net: &mut Net, io: usize, namespace: &Namespace) -> Vec<u8> {
    let now = net.now;
    let whole = namespace.geometry.span();
    net.io(io).submit(now, 0, namespace, Command::Read { span: whole }).unwrap();
    assert_eq!(end_of(net, io), Ok(()));
    net.links[io].buffers[0][..BLOCKS * BLOCK].to_vec()
}

#[test]
fn data_are_what_was_written() {
    for seed in seeds(6) {
        let digests = Digests { header: seed % 2 == 0, data: seed % 3 == 0 };
        run_io(seed, digests, false);
    }
}

#[test]
fn lost_connections_leave_old_or_new_data_and_nothing_else() {
    for seed in seeds(6) {
        let digests = Digests { header: seed % 2 == 1, data: seed % 3 == 1 };
        run_io(seed, digests, true);
    }
}

#[test]
fn a_compare_that_differs_is_told() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (_, io, namespace) = with_queue(&mut net, node, 1);
    net.nodes[node].disks.get_mut(&1).unwrap()[9 * BLOCK] = 1;
    let now = net.now;
    let compare = Command::Compare { span: span(8, 2) };
    net.io(io).submit(now, 0, &namespace, compare).unwrap();
    assert_eq!(end_of(&mut net, io), Err(IoError::Miscompare { at: Lba(8) }));
}

#[test]
fn what_cannot_be_is_refused_before_it_is_sent() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (_, io, namespace) = with_queue(&mut net, node, 1);
    let now = net.now;
    let beyond = span(127, 2);
    let io = net.io(io);
    let read = Command::Read { span: beyond };
    assert_eq!(io.submit(now, 0, &namespace, read), Err(IoError::OutOfRange { span: beyond }));
    let slots = io.slots();
    assert_eq!(io.submit(now, slots, &namespace, Command::Flush), Err(IoError::Busy));
    io.submit(now, 0, &namespace, Command::Flush).unwrap();
    assert_eq!(io.submit(now, 0, &namespace, Command::Flush), Err(IoError::Busy));
    let read_only = Namespace { read_only: true, ..namespace };
    let write = Command::Write { span: span(0, 1), fua: false };
    assert_eq!(io.submit(now, 1, &read_only, write), Err(IoError::ReadOnly));
}

#[test]
fn a_silent_target_is_given_up() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (admin, io, namespace) = with_queue(&mut net, node, 1);
    // Kept alive for a while.
    for _ in 0..10 {
        net.advance(Duration::from_millis(2500));
        assert_eq!(net.settle(), []);
    }
    net.nodes[node].hold_io = true;
    let now = net.now;
    net.io(io).submit(now, 3, &namespace, Command::Flush).unwrap();
    net.stalled = vec![admin, io];
    net.advance(Duration::from_millis(2500));
    assert_eq!(net.settle(), []);
    let due = net.admin(admin).poll_timeout().unwrap();
    net.now = due;
    net.admin(admin).handle_timeout(due);
    let told = net.settle();
    assert_eq!(told, [(admin, Told::Admin(AdminEvent::Lost(Lost::TimedOut)))]);
    net.now = now.after(Duration::from_secs(30));
    let now = net.now;
    net.io(io).handle_timeout(now);
    let late = IoEvent::Done { slot: 3, result: Err(IoError::TimedOut) };
    let over = IoEvent::Lost(Lost::TimedOut);
    assert_eq!(net.settle(), [(io, Told::Io(late)), (io, Told::Io(over))]);
}

fn reserve(net: &mut Net, io: usize, command: Reservation) -> Result<(), IoError> {
    let now = net.now;
    net.io(io).reserve(now, 0, 1, command).unwrap();
    end_of(net, io)
}

fn register(key: u64) -> Reservation {
    let action = RegisterAction::Register;
    Reservation::Register { action, current: Key(0), new: Key(key), force: false }
}

#[test]
fn a_new_owner_fences_the_old_one() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (old_admin, old, namespace) = with_queue(&mut net, node, 1);
    let (_, new, _) = with_queue(&mut net, node, 2);
    let kind = ReservationType::WriteExclusiveRegistrants;
    assert_eq!(reserve(&mut net, old, register(10)), Ok(()));
    let take = |action, current, preempt| Reservation::Acquire {
        action,
        kind,
        current: Key(current),
        preempt: Key(preempt),
    };
    assert_eq!(reserve(&mut net, old, take(AcquireAction::Acquire, 10, 0)), Ok(()));
    assert_eq!(reserve(&mut net, new, register(20)), Ok(()));
    let now = net.now;
    let preempt = take(AcquireAction::PreemptAndAbort, 20, 10);
    net.io(new).reserve(now, 0, 1, preempt).unwrap();
    let told = net.settle();
    assert_eq!(end_among(&told, new), Ok(()));
    let is_notice = |event: &(usize, Told)| {
        matches!(event, (at, Told::Admin(AdminEvent::Reservation(notice)))
            if *at == old_admin && notice.kind == 1)
    };
    assert!(told.iter().any(is_notice), "the old owner was not told: {told:?}");
    let write = Command::Write { span: span(0, 4), fua: true };
    net.io(old).submit(now, 0, &namespace, write).unwrap();
    assert_eq!(end_of(&mut net, old), Err(IoError::Fenced));
    net.io(new).submit(now, 0, &namespace, write).unwrap();
    assert_eq!(end_of(&mut net, new), Ok(()));
    assert_eq!(reserve(&mut net, old, take(AcquireAction::Acquire, 10, 0)), Err(IoError::Fenced));

    net.io(new).reserve(now, 0, 1, Reservation::Report).unwrap();
    let told = net.settle();
    let [(_, Told::Io(IoEvent::Reported { result: Ok(report), .. }))] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(report.kind, Some(kind));
    assert!(report.persistent);
    let holders: Vec<_> = report.registrants.iter().map(|r| (r.host[0], r.key, r.holds)).collect();
    assert_eq!(holders, [(2, Key(20), true)]);
    let release = Reservation::Release { action: ReleaseAction::Release, kind, current: Key(20) };
    assert_eq!(reserve(&mut net, new, release), Ok(()));
}

#[test]
fn changes_are_told() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (admin, _, _) = with_queue(&mut net, node, 1);
    net.nodes[node].subsystem.set_ana(1, AnaState::Inaccessible).unwrap();
    net.nodes[node].effects();
    let told = net.settle();
    let is_ana = |event: &(usize, Told)| match event {
        (at, Told::Admin(AdminEvent::Ana(log))) if *at == admin => {
            Some(log.state(1)) == Some(AnaState::Inaccessible)
        }
        _ => false,
    };
    assert!(told.iter().any(is_ana), "{told:?}");
    net.nodes[node].subsystem.set_ana(1, AnaState::Optimized).unwrap();
    net.nodes[node].effects();
    net.settle();
    net.nodes[node].subsystem.add_namespace(7, namespace(16)).unwrap();
    net.nodes[node].effects();
    let told = net.settle();
    let [(_, Told::Admin(AdminEvent::Namespaces(now)))] = &told[..] else { panic!("{told:?}") };
    assert_eq!(now.iter().map(|namespace| namespace.nsid).collect::<Vec<_>>(), [1, 7]);
}

#[test]
fn discovery_is_read_and_changes_are_told() {
    let mut net = Net::new(3);
    let record = |name: &str| DiscoveryRecord {
        nqn: nqn(name),
        service: Service::Storage,
        address: "127.0.0.1:4420".parse().unwrap(),
        port_id: 1,
        secure: false,
        hosts: Hosts::Any,
    };
    let records: Vec<_> =
        (0..40).map(|n| record(&format!("nqn.2026-01.io.holdfast:v{n}"))).collect();
    let discovery = Subsystem::discovery(config(Nqn::DISCOVERY, 1), records.clone());
    let node = net.add_node(discovery, ConnectionConfig::default());
    let mut association = host(1);
    association.subsystem = nqn(Nqn::DISCOVERY);
    let (admin, controller, namespaces) = net.bring_up(node, &association);
    assert!(controller.is_discovery && namespaces.is_empty());
    let (mut reader, mut request) = DiscoveryReader::begin();
    let found = loop {
        let now = net.now;
        net.admin(admin).request(now, request).unwrap();
        let told = net.settle();
        let [(_, Told::Admin(AdminEvent::Answered(_, Answer::Done { bytes, .. })))] = &told[..]
        else {
            panic!("{told:?}")
        };
        match reader.on(bytes) {
            ReadStep::Ask(next) => request = next,
            ReadStep::Done(entries) => break entries,
            ReadStep::Failed(why) => panic!("{why}"),
        }
    };
    assert_eq!(found.len(), 40);
    assert_eq!(found[0].port, 4420);
    net.nodes[node].subsystem.set_discovery(records[..3].to_vec());
    net.nodes[node].effects();
    assert_eq!(net.settle(), [(admin, Told::Admin(AdminEvent::Discovery))]);
}

#[test]
fn a_host_that_is_no_longer_allowed_is_disconnected() {
    let mut net = Net::new(3);
    let node = node(&mut net, 1);
    let (admin, io, namespace) = with_queue(&mut net, node, 1);
    net.nodes[node].hold_io = true;
    let now = net.now;
    net.io(io).submit(now, 0, &namespace, Command::Flush).unwrap();
    net.settle();
    net.nodes[node].subsystem.set_hosts(Hosts::Listed(std::collections::BTreeSet::new()));
    net.nodes[node].effects();
    let told = net.settle();
    let gone = IoEvent::Done { slot: 0, result: Err(IoError::Unreachable) };
    assert!(told.contains(&(io, Told::Io(gone))), "{told:?}");
    assert!(told.contains(&(admin, Told::Admin(AdminEvent::Lost(Lost::Closed)))), "{told:?}");
    net.connect_admin(node, &host(1));
    let told = net.settle();
    let [(_, Told::Admin(AdminEvent::Refused(ConnectRefused::Connect { status, .. })))] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST);
}
