//! From the first byte to a live queue.

use nvme::pdu::{Digests, IcReq};
use nvme::target::testing::Driver;
use nvme::target::{ConnectionConfig, Hosts, Subsystem};
use nvme::wire::{
    AdminOpcode, Connect, ConnectData, PropertyGet, PropertySet, Sgl, Sqe, Status, U16,
};
use zerocopy::IntoBytes;

use super::host::*;

#[test]
fn digests_are_what_the_host_asks_for() {
    for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut driver = driver();
        let digests = Digests { header, data };
        let (mut admin, cntlid) = Queue::admin_with(&mut driver, HOST_A, digests);
        let done = admin.command(&mut driver, identify(1, 0), &[]);
        assert_eq!((done.status, done.data.len()), (Status::SUCCESS, 4096));
        let mut io_queue = Queue::io_with(&mut driver, HOST_A, cntlid, 1, digests);
        let bytes = pattern(5, 2 * BLOCK);
        let write = in_capsule(io(nvme::wire::IoOpcode::Write, 3, 2), bytes.len());
        assert_eq!(io_queue.command(&mut driver, write, &bytes).status, Status::SUCCESS);
        let read = io(nvme::wire::IoOpcode::Read, 3, 2);
        assert_eq!(io_queue.command(&mut driver, read, &[]).data, bytes);
    }
}

/// The set-up response, byte by byte from the specification.
#[test]
fn icresp_bytes() {
    let mut driver = driver();
    let queue = Queue::raw(&mut driver);
    driver.send(queue.id, IcReq::new(0, 0b01, 0).as_bytes());
    let sent = driver.take_sent(queue.id);
    let mut expected = [0u8; 128];
    expected[..16].copy_from_slice(&[
        0x01, 0x00, 128, 0x00, 128, 0, 0, 0, // type, flags, HLEN, PDO, PLEN
        0x00, 0x00, 0x00, 0x01, // PFV, CPDA, DGST
        0x00, 0x00, 0x10, 0x00, // MAXH2CDATA: 1 MiB
    ]);
    assert_eq!(sent, expected);
}

fn refused(change: impl FnOnce(&mut Connect, &mut ConnectData)) -> (Status, u64) {
    let mut driver = driver();
    driver.subsystem.set_hosts(Hosts::Listed([nqn(HOST_A)].into()));
    let mut queue = Queue::open(&mut driver, Digests::default());
    let mut connect = Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato: 0 };
    let mut data = ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &nqn(SUBSYSTEM), 0xFFFF);
    change(&mut connect, &mut data);
    let done = queue.command(&mut driver, connect.to_sqe(0), data.as_bytes());
    assert_eq!(driver.is_closed(queue.id), done.status != Status::SUCCESS);
    (done.status, done.result)
}

#[test]
fn connect_says_what_is_wrong() {
    const IN_DATA: u64 = 1 << 16;
    let invalid = Status::CONNECT_INVALID_PARAMETERS.do_not_retry();
    assert_eq!(refused(|_, _| {}), (Status::SUCCESS, 1));
    let format = Status::CONNECT_INCOMPATIBLE_FORMAT.do_not_retry();
    assert_eq!(refused(|connect, _| connect.recfmt = 1), (format, 0));
    assert_eq!(refused(|connect, _| connect.sqsize = 0), (invalid, 44));
    assert_eq!(refused(|connect, _| connect.sqsize = 128), (invalid, 44));
    assert_eq!(refused(|connect, _| connect.sqsize = 127), (Status::SUCCESS, 1));
    assert_eq!(refused(|_, data| data.cntlid = U16::new(1)), (invalid, IN_DATA | 16));
    assert_eq!(refused(|_, data| data.hostid = [0; 16]), (invalid, IN_DATA));
    // A subsystem that moved away may come back: hosts go on trying.
    let unknown = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(refused(|_, data| data.subnqn = nqn(HOST_A).to_field()), (unknown, IN_DATA | 256));
    assert_eq!(refused(|_, data| data.subnqn = [b'n'; 256]), (unknown, IN_DATA | 256));
    assert_eq!(refused(|_, data| data.hostnqn = [0; 256]), (invalid, IN_DATA | 512));
    let stranger = Status::CONNECT_INVALID_HOST.do_not_retry();
    assert_eq!(refused(|_, data| data.hostnqn = nqn(HOST_B).to_field()), (stranger, 0));
    // An I/O queue of a controller that does not exist.
    assert_eq!(refused(|connect, _| connect.qid = 1), (invalid, IN_DATA | 16));
}

#[test]
fn a_host_may_leave_out_the_prefix_of_its_name() {
    // What hosts built on older versions of SPDK send when they are given no name.
    let mut data = ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &nqn(SUBSYSTEM), 0xFFFF);
    let name = b"2014-08.org.nvmexpress:uuid:5ab3f2de-11ad-4b6f-a1a0-6a0f3a6c0d57";
    data.hostnqn = [0; 256];
    data.hostnqn[..name.len()].copy_from_slice(name);
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato: 0 };
    let status = |data: &ConnectData, hosts| {
        let mut driver = driver();
        driver.subsystem.set_hosts(hosts);
        let mut queue = Queue::open(&mut driver, Digests::default());
        queue.command(&mut driver, connect.to_sqe(0), data.as_bytes()).status
    };
    assert_eq!(status(&data, Hosts::Any), Status::SUCCESS);
    let stranger = Status::CONNECT_INVALID_HOST.do_not_retry();
    assert_eq!(status(&data, Hosts::Listed([nqn(HOST_A)].into())), stranger);
    // A name is text without control characters.
    data.hostnqn[5] = b'\n';
    let done = refused(|_, sent| sent.hostnqn = data.hostnqn);
    assert_eq!(done, (Status::CONNECT_INVALID_PARAMETERS.do_not_retry(), 1 << 16 | 512));
}

#[test]
fn connect_data_of_another_length_are_refused() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests::default());
    let connect = Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato: 0 };
    let sqe = in_capsule(connect.to_sqe(0), 512);
    let done = queue.command(&mut driver, sqe, &[0; 512]);
    assert_eq!(done.status, Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
}

#[test]
fn connect_data_may_be_asked_for() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests { header: true, data: true });
    let mut sqe = Connect { recfmt: 0, qid: 0, sqsize: 31, cattr: 0, kato: 0 }.to_sqe(0);
    sqe.sgl = Sgl::transport(1024);
    let data = ConnectData::new(&nqn(HOST_A), hostid(HOST_A), &nqn(SUBSYSTEM), 0xFFFF);
    assert_eq!(queue.command(&mut driver, sqe, data.as_bytes()).status, Status::SUCCESS);
}

#[test]
fn commands_before_connect_are_out_of_sequence() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests::default());
    let done = queue.command(&mut driver, identify(1, 0), &[]);
    assert_eq!(done.status, Status::SEQUENCE_ERROR.do_not_retry());
    assert_eq!(queue.connect(&mut driver, HOST_A, 0, 0xFFFF).status, Status::SUCCESS);
    // And a queue is connected once.
    let again = queue.connect(&mut driver, HOST_A, 0, 0xFFFF);
    assert_eq!(again.status, Status::SEQUENCE_ERROR.do_not_retry());
}

#[test]
fn io_queues_belong_to_a_controller() {
    let mut driver = driver();
    let mut admin = Queue::open(&mut driver, Digests::default());
    let done = admin.connect(&mut driver, HOST_A, 0, 0xFFFF);
    let cntlid = u16::try_from(done.result).unwrap();
    let try_connect = |driver: &mut Driver, host: &str, qid, cntlid| {
        let mut queue = Queue::open(driver, Digests::default());
        let done = queue.connect(driver, host, qid, cntlid);
        (done.status.kind(), done.result)
    };
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(try_connect(&mut driver, HOST_A, 1, cntlid), (invalid, 42), "not enabled yet");
    let enable = PropertySet { offset: 0x14, wide: Some(false), value: 0x0046_0001 };
    admin.command(&mut driver, enable.to_sqe(0), &[]);
    let set = feature(AdminOpcode::SetFeatures, 7, 0x0003_0001);
    assert_eq!(admin.command(&mut driver, set, &[]).result, 0x0001_0001, "two queues granted");
    assert_eq!(try_connect(&mut driver, HOST_B, 1, cntlid), (invalid, 1 << 16 | 512));
    assert_eq!(try_connect(&mut driver, HOST_A, 3, cntlid), (invalid, 42), "more than granted");
    assert_eq!(try_connect(&mut driver, HOST_A, 1, 99), (invalid, 1 << 16 | 16));
    assert_eq!(try_connect(&mut driver, HOST_A, 1, cntlid), (Status::SUCCESS, cntlid.into()));
    assert_eq!(try_connect(&mut driver, HOST_A, 1, cntlid), (invalid, 42), "in use");
    assert_eq!(try_connect(&mut driver, HOST_A, 2, cntlid), (Status::SUCCESS, cntlid.into()));
    let late = admin.command(&mut driver, set, &[]);
    assert_eq!(late.status, Status::SEQUENCE_ERROR.do_not_retry());
}

#[test]
fn controller_ids_come_from_the_range_and_come_back_late() {
    let mut subsystem = nvme::target::SubsystemConfig { cntlids: (7, 8), ..config(SUBSYSTEM) };
    subsystem.limits.controllers = 8;
    let mut driver = Driver::new(Subsystem::new(subsystem), ConnectionConfig::default());
    let (first, seven) = Queue::admin(&mut driver, HOST_A);
    let (_second, eight) = Queue::admin(&mut driver, HOST_B);
    assert_eq!((seven, eight), (7, 8));
    let mut third = Queue::open(&mut driver, Digests::default());
    let busy = third.connect(&mut driver, HOST_A, 0, 0xFFFF);
    assert_eq!(busy.status, Status::CONNECT_CONTROLLER_BUSY);
    driver.close(first.id);
    let (fourth, again) = Queue::admin(&mut driver, HOST_A);
    assert_eq!(again, 7);
    driver.close(fourth.id);
}

#[test]
fn properties() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests::default());
    queue.connect(&mut driver, HOST_A, 0, 0xFFFF);
    let mut get = |offset, wide| {
        let done =
            queue.command(&mut driver, PropertyGet { offset, wide: Some(wide) }.to_sqe(0), &[]);
        (done.status.kind(), done.result)
    };
    let (status, cap) = get(0, true);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(cap & 0xFFFF, 127, "MQES");
    assert_eq!(cap >> 16 & 1, 1, "CQR");
    assert_eq!(cap >> 37 & 1, 1, "NVM command set");
    assert_eq!(cap >> 48 & 0xFF, 0, "4 KiB pages only");
    assert_eq!(get(8, false), (Status::SUCCESS, 0x0002_0000));
    assert_eq!(get(0x14, false), (Status::SUCCESS, 0));
    assert_eq!(get(0x1C, false), (Status::SUCCESS, 0));
    assert_eq!(get(0, false).0, Status::INVALID_FIELD);
    assert_eq!(get(0x14, true).0, Status::INVALID_FIELD);
    assert_eq!(get(0x40, false).0, Status::INVALID_FIELD);
}

#[test]
fn a_controller_must_be_enabled_and_can_be_reset_and_shut_down() {
    let mut driver = driver();
    let mut queue = Queue::open(&mut driver, Digests::default());
    let cntlid = u16::try_from(queue.connect(&mut driver, HOST_A, 0, 0xFFFF).result).unwrap();
    let done = queue.command(&mut driver, identify(1, 0), &[]);
    assert_eq!(done.status, Status::SEQUENCE_ERROR.do_not_retry());
    let mut configure = |driver: &mut Driver, value| {
        let set = PropertySet { offset: 0x14, wide: Some(false), value }.to_sqe(0);
        let status = queue.command(driver, set, &[]).status.kind();
        let get = PropertyGet { offset: 0x1C, wide: Some(false) }.to_sqe(0);
        (status, queue.command(driver, get, &[]).result)
    };
    // Wrong entry sizes, page size, arbitration, command set.
    for bad in [0x0000_0001, 0x0046_0081, 0x0046_0801, 0x0046_0011] {
        assert_eq!(configure(&mut driver, bad), (Status::INVALID_FIELD, 0), "{bad:#x}");
    }
    assert_eq!(configure(&mut driver, 0x0046_0001), (Status::SUCCESS, 1));
    let io_queue = Queue::io(&mut driver, HOST_A, cntlid, 1);
    assert_eq!(configure(&mut driver, 0x0046_0000), (Status::SUCCESS, 0));
    assert!(driver.is_closed(io_queue.id), "a reset ends the I/O queues");
    assert_eq!(configure(&mut driver, 0x0046_0001), (Status::SUCCESS, 1));
    let io_queue = Queue::io(&mut driver, HOST_A, cntlid, 1);
    assert_eq!(configure(&mut driver, 0x0046_4001), (Status::SUCCESS, 0b1001));
    assert!(driver.is_closed(io_queue.id), "a shutdown ends the I/O queues");
}

#[test]
fn disconnect_ends_an_io_queue_only() {
    let mut driver = driver();
    let (mut admin, mut io_queue) = Queue::pair(&mut driver, HOST_A);
    let refused = admin.command(&mut driver, Sqe::disconnect(0), &[]);
    assert_eq!(refused.status, Status::DISCONNECT_INVALID_QUEUE.do_not_retry());
    assert!(!driver.is_closed(admin.id));
    assert_eq!(io_queue.command(&mut driver, Sqe::disconnect(0), &[]).status, Status::SUCCESS);
    assert!(driver.is_closed(io_queue.id) && !driver.is_closed(admin.id));
}
