//! The discovery service.

use nvme::pdu::Digests;
use nvme::target::testing::Driver;
use nvme::target::{ConnectionConfig, DiscoveryRecord, Hosts, Service, Subsystem};
use nvme::wire::{AdminOpcode, DiscoveryEntry, DiscoveryHeader, IdController, Nqn, Status};
use zerocopy::FromBytes;

use super::host::*;

fn record(name: &str, address: &str, hosts: Hosts) -> DiscoveryRecord {
    DiscoveryRecord {
        nqn: nqn(name),
        service: Service::Storage,
        address: address.parse().unwrap(),
        port_id: 3,
        secure: false,
        hosts,
    }
}

fn service() -> Driver {
    let records = vec![
        record("nqn.2026-01.io.holdfast:a", "192.0.2.7:4420", Hosts::Any),
        record(
            "nqn.2026-01.io.holdfast:b",
            "[2001:db8::7]:8420",
            Hosts::Listed([nqn(HOST_A)].into()),
        ),
    ];
    let subsystem = Subsystem::discovery(config(Nqn::DISCOVERY), records);
    Driver::new(subsystem, ConnectionConfig::default())
}

fn entry(data: &[u8], at: usize) -> DiscoveryEntry {
    DiscoveryEntry::read_from_prefix(&data[1024 * (at + 1)..]).unwrap().0
}

#[test]
fn the_log_shows_each_host_what_it_may_use() {
    let mut driver = service();
    for (host, expected) in [(HOST_A, 2), (HOST_B, 1)] {
        let (mut queue, _) = Queue::admin(&mut driver, host);
        let head: DiscoveryHeader =
            queue.command(&mut driver, get_log(0x70, 1024, 0, true), &[]).read();
        assert_eq!((head.genctr.get(), head.numrec.get(), head.recfmt.get()), (1, expected, 0));
        let data = queue.command(&mut driver, get_log(0x70, 4096, 0, true), &[]).data;
        let first = entry(&data, 0);
        assert_eq!((first.trtype, first.adrfam, first.subtype, first.treq), (3, 1, 2, 2));
        assert_eq!((first.cntlid.get(), first.portid.get(), first.asqsz.get()), (0xFFFF, 3, 128));
        assert_eq!(first.trsvcid.trim_ascii_end(), b"4420");
        assert_eq!(first.traddr.trim_ascii_end(), b"192.0.2.7");
        assert_eq!(first.subnqn, nqn("nqn.2026-01.io.holdfast:a").to_field());
        if expected == 2 {
            let second = entry(&data, 1);
            assert_eq!(second.adrfam, 2);
            assert_eq!(second.traddr.trim_ascii_end(), b"2001:db8::7");
            // By its offset it is the same.
            let part = queue.command(&mut driver, get_log(0x70, 1024, 2048, true), &[]).data;
            assert_eq!(part, data[2048..3072]);
        }
    }
}

#[test]
fn a_secure_listener_and_a_referral_look_like_it() {
    let mut driver = service();
    let mut secure = record("nqn.2026-01.io.holdfast:c", "192.0.2.8:4420", Hosts::Any);
    secure.secure = true;
    secure.service = Service::Referral;
    driver.subsystem.set_discovery(vec![secure]);
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let data = queue.command(&mut driver, get_log(0x70, 2048, 0, false), &[]).data;
    let only = entry(&data, 0);
    assert_eq!((only.subtype, only.treq, only.tsas[0]), (1, 1, 2));
    assert_eq!(data[0], 2, "second generation");
}

/// What a host that came by `local` is told of a listener on `listens`.
fn check_wildcard(listens: &str, local: Option<&str>, told: &str) {
    let records = vec![record("nqn.2026-01.io.holdfast:a", listens, Hosts::Any)];
    let subsystem = Subsystem::discovery(config(Nqn::DISCOVERY), records);
    let local = local.map(|text| text.parse().unwrap());
    let mut driver =
        Driver::new(subsystem, ConnectionConfig { local, ..ConnectionConfig::default() });
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let data = queue.command(&mut driver, get_log(0x70, 2048, 0, false), &[]).data;
    let mut found = String::new();
    if DiscoveryHeader::read_from_prefix(&data).unwrap().0.numrec.get() > 0 {
        let only = entry(&data, 0);
        let text = |field: &[u8]| String::from_utf8(field.trim_ascii_end().to_vec()).unwrap();
        found = format!("{} {} {}", only.adrfam, text(&only.traddr), text(&only.trsvcid));
    }
    assert_eq!(found, told, "listens on {listens}, host came by {local:?}");
}

#[test]
fn a_listener_on_all_addresses_is_told_by_the_one_the_host_came_by() {
    check_wildcard("0.0.0.0:4420", Some("192.0.2.9"), "1 192.0.2.9 4420");
    check_wildcard("[::]:4420", Some("2001:db8::9"), "2 2001:db8::9 4420");
    check_wildcard("[::]:4420", Some("::ffff:192.0.2.9"), "1 192.0.2.9 4420");
    check_wildcard("[::]:4420", Some("192.0.2.9"), "1 192.0.2.9 4420");
    // No address of that listener is known that this host could use.
    check_wildcard("0.0.0.0:4420", Some("2001:db8::9"), "");
    check_wildcard("192.0.2.7:4420", Some("192.0.2.9"), "1 192.0.2.7 4420");
    check_wildcard("192.0.2.7:4420", None, "1 192.0.2.7 4420");
}

#[test]
fn hosts_are_told_of_changes() {
    let mut driver = service();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_B);
    queue.command(&mut driver, feature(AdminOpcode::SetFeatures, 0x0B, 1 << 31), &[]);
    queue.submit(&mut driver, admin(AdminOpcode::AsyncEventRequest), &[]);
    driver.subsystem.set_discovery(vec![]);
    driver.subsystem.set_discovery(vec![]);
    driver.effects();
    let got = queue.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.result(), 0x70_F002);
    let head: DiscoveryHeader =
        queue.command(&mut driver, get_log(0x70, 1024, 0, false), &[]).read();
    assert_eq!((head.genctr.get(), head.numrec.get()), (2, 0), "the same twice is one change");
}

#[test]
fn a_discovery_controller_does_discovery_only() {
    let mut driver = service();
    let (mut queue, cntlid) = Queue::admin(&mut driver, HOST_A);
    let id: IdController = queue.command(&mut driver, identify(1, 0), &[]).read();
    assert_eq!((id.cntrltype, id.oaes.get()), (2, 1 << 31));
    assert_eq!(id.subnqn, nqn(Nqn::DISCOVERY).to_field());
    for (sqe, status) in [
        (identify(0, 1), Status::INVALID_FIELD),
        (identify(2, 0), Status::INVALID_FIELD),
        (get_log(0x0C, 64, 0, false), Status::INVALID_LOG_PAGE),
        (feature(AdminOpcode::SetFeatures, 7, 0), Status::INVALID_FIELD),
    ] {
        assert_eq!(queue.command(&mut driver, sqe, &[]).status, status.do_not_retry());
    }
    let mut io_queue = Queue::open(&mut driver, Digests::default());
    let done = io_queue.connect(&mut driver, HOST_A, 1, cntlid);
    assert_eq!(done.status, Status::CONNECT_INVALID_PARAMETERS.do_not_retry());
}

#[test]
fn a_service_with_a_name_of_its_own_answers_to_both() {
    let own = "nqn.2026-01.io.holdfast:discovery";
    let subsystem = Subsystem::discovery(config(own), vec![]);
    let mut driver = Driver::new(subsystem, ConnectionConfig::default());
    Queue::admin(&mut driver, HOST_A);
    let mut queue = Queue::open(&mut driver, Digests::default());
    let data =
        nvme::wire::ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &nqn(Nqn::DISCOVERY), 0xFFFF);
    let connect = nvme::wire::Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato: 0 };
    let done = queue.command(&mut driver, connect.to_sqe(0), zerocopy::IntoBytes::as_bytes(&data));
    assert_eq!(done.status, Status::SUCCESS);
}
