//! Identify, log pages, features, events.

use block::{BlockSize, Blocks, Geometry};
use nvme::target::NamespaceConfig;
use nvme::wire::{
    AdminOpcode, AnaGroupHeader, AnaLogHeader, AnaState, CommandEffects, HostBehavior,
    IdController, IdControllerNvm, IdNamespace, IdNamespaceIndependent, IoOpcode, Sgl, Smart, Sqe,
    Status, U32,
};
use zerocopy::{FromZeros, IntoBytes};

use super::host::*;

/// What Linux looks at before it takes a controller.
#[test]
fn identify_controller_passes_what_linux_checks() {
    let mut driver = driver();
    let (mut queue, cntlid) = Queue::admin(&mut driver, HOST_A);
    let id: IdController = queue.command(&mut driver, identify(1, 0), &[]).read();
    assert_eq!(id.cntlid.get(), cntlid);
    assert_ne!(id.kas.get(), 0);
    assert_eq!(id.sgls.get() & 3, 1);
    assert_eq!((id.ioccsz.get(), id.iorcsz.get(), id.icdoff.get()), (516, 1, 0));
    assert_eq!(id.maxcmd.get(), 128);
    assert_eq!(id.mdts, 8);
    assert_eq!(id.subnqn, nqn(SUBSYSTEM).to_field());
    assert_eq!(&id.sn, b"HF0001              ");
    assert_eq!(&id.fr, b"0.1     ");
    assert_eq!(id.cmic & 0b1000, 0b1000, "ANA");
    assert!(id.anatt != 0 && id.anagrpmax.get() != 0);
    assert!(id.nanagrpid.get() <= id.anagrpmax.get());
    assert!(id.mnan.get() != 0 && id.mnan.get() <= id.nn.get());
    let ana_log = 16 + 32 * id.nanagrpid.get() + 4 * id.mnan.get();
    assert!(ana_log <= 4096 << id.mdts);
    assert_eq!((id.sqes, id.cqes), (0x66, 0x44));
    assert_eq!(id.vwc & 1, 1, "a namespace has a cache");
    assert_eq!(id.cntrltype, 1);
    let nvm: IdControllerNvm = queue.command(&mut driver, identify(6, 0), &[]).read();
    // 65536 blocks of 512 bytes are the most that one command can zero.
    assert!(4096u64 << nvm.wzsl <= 65536 * 512);
}

#[test]
fn identify_namespace() {
    let mut driver = driver();
    let geometry = Geometry::new(BlockSize::B512, Blocks(1 << 40)).unwrap();
    let config = NamespaceConfig { geometry, read_only: true, ana_group: 9, ..namespace() };
    driver.subsystem.add_namespace(7, config).unwrap();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let id: IdNamespace = queue.command(&mut driver, identify(0, 1), &[]).read();
    assert_eq!((id.nsze.get(), id.ncap.get()), (BLOCKS, BLOCKS));
    assert_eq!((id.flbas, id.nlbaf, id.lbaf[0].lbads), (0, 0, 12));
    assert_eq!((id.nmic, id.rescap, id.dlfeat, id.nsattr), (1, 0xFF, 9, 0));
    assert_eq!((id.nguid, id.eui64, id.anagrpid.get()), ([0x22; 16], [0x33; 8], 1));
    let id: IdNamespace = queue.command(&mut driver, identify(0, 7), &[]).read();
    assert_eq!((id.nsze.get(), id.lbaf[0].lbads), (1 << 40, 9));
    assert_eq!((id.nsattr, id.anagrpid.get(), id.npwg.get()), (1, 9, 7));
    let id: IdNamespaceIndependent = queue.command(&mut driver, identify(8, 7), &[]).read();
    assert_eq!((id.nstat, id.nsattr, id.nmic, id.anagrpid.get()), (1, 1, 1, 9));
    // Possible but not there: zeros. Not possible: an error.
    for cns in [0x00, 0x08, 0x11] {
        let done = queue.command(&mut driver, identify(cns, 2), &[]);
        assert_eq!((done.status, done.data), (Status::SUCCESS, vec![0; 4096]));
        for nsid in [0, 1025, u32::MAX] {
            let done = queue.command(&mut driver, identify(cns, nsid), &[]);
            assert_eq!(done.status, Status::INVALID_NAMESPACE.do_not_retry());
        }
    }
}

#[test]
fn identify_lists() {
    let mut driver = driver();
    for nsid in [3, 1024] {
        driver.subsystem.add_namespace(nsid, namespace()).unwrap();
    }
    let (mut queue, cntlid) = Queue::admin(&mut driver, HOST_A);
    let mut list = |cns, above| {
        let data = queue.command(&mut driver, identify(cns, above), &[]).data;
        let numbers = data.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
        numbers.take_while(|number| *number != 0).collect::<Vec<u32>>()
    };
    for cns in [0x02, 0x07, 0x10] {
        assert_eq!(list(cns, 0), [1, 3, 1024]);
        assert_eq!(list(cns, 1), [3, 1024]);
        assert_eq!(list(cns, 1024), Vec::<u32>::new());
    }
    assert_eq!(list(0x1C, 0), [1], "command sets: NVM alone");
    assert_eq!(list(0x13, 0), [u32::from(cntlid) << 16 | 1], "controllers: count and ids");
    assert_eq!(list(0x12, 1), [u32::from(cntlid) << 16 | 1]);
    // Every kind of descriptor, each with its length.
    let data = queue.command(&mut driver, identify(3, 1), &[]).data;
    let mut expected = vec![3, 16, 0, 0];
    expected.extend([0x11; 16]);
    expected.extend([2, 16, 0, 0]);
    expected.extend([0x22; 16]);
    expected.extend([1, 8, 0, 0]);
    expected.extend([0x33; 8]);
    expected.extend([4, 1, 0, 0, 0]);
    expected.resize(4096, 0);
    assert_eq!(data, expected);
    for (cns, nsid) in [(0x03, 2), (0x04, 1), (0x20, 1), (0xFF, 1)] {
        assert!(!queue.command(&mut driver, identify(cns, nsid), &[]).status.is_success());
    }
}

#[test]
fn log_pages_have_offsets_and_lengths() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let whole = queue.command(&mut driver, get_log(5, 4096, 0, false), &[]).data;
    let effects: CommandEffects = nvme_read(&whole);
    assert_eq!(effects.io[1].get(), 3, "write: supported, changes contents");
    assert_eq!((effects.io[2].get(), effects.admin[6].get(), effects.io[0x80].get()), (1, 1, 0));
    for (offset, len) in [(0u64, 4u32), (1024, 64), (4092, 4), (4000, 200), (4096, 4)] {
        let part = queue.command(&mut driver, get_log(5, len, offset, false), &[]).data;
        let mut expected = whole[usize::try_from(offset).unwrap()..].to_vec();
        expected.resize(usize::try_from(len).unwrap(), 0);
        assert_eq!(part, expected, "{len} bytes from {offset}");
    }
    for (sqe, status) in [
        (get_log(5, 4, 4100, false), Status::INVALID_FIELD),
        (get_log(5, 4, 2, false), Status::INVALID_FIELD),
        (get_log(5, 4, u64::MAX - 3, false), Status::INVALID_FIELD),
        (get_log(0x70, 1024, 0, false), Status::INVALID_LOG_PAGE),
        (get_log(0xC0, 512, 0, false), Status::INVALID_LOG_PAGE),
    ] {
        assert_eq!(queue.command(&mut driver, sqe, &[]).status, status.do_not_retry());
    }
    let mut huge = get_log(5, 4, 0, false);
    huge.cdw11 = U32::new(0xFFFF);
    assert_eq!(queue.command(&mut driver, huge, &[]).status, Status::INVALID_FIELD.do_not_retry());
    let mut short = get_log(5, 64, 0, false);
    short.sgl = Sgl::transport(32);
    let status = queue.command(&mut driver, short, &[]).status;
    assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
}

fn nvme_read<T: zerocopy::FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes).unwrap().0
}

#[test]
fn health_counts_traffic() {
    let mut driver = driver();
    let (mut admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    for _ in 0..3 {
        queue.command(&mut driver, io(IoOpcode::Read, 0, 256), &[]);
    }
    let write = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    queue.command(&mut driver, write, &[0; BLOCK]);
    let page: Smart = admin.command(&mut driver, get_log(2, 512, 0, false), &[]).read();
    assert_eq!((page.host_reads.get(), page.host_writes.get()), (3, 1));
    // 3 MiB and 4 KiB in units of 512 000 bytes, rounded up.
    assert_eq!((page.data_units_read.get(), page.data_units_written.get()), (7, 1));
    assert_eq!((page.critical_warning, page.available_spare), (0, 100));
    let slots = admin.command(&mut driver, get_log(3, 512, 0, false), &[]).data;
    assert_eq!((slots[0], &slots[8..16]), (1, b"0.1     ".as_slice()));
    let errors = admin.command(&mut driver, get_log(1, 64, 0, false), &[]);
    assert_eq!((errors.status, errors.data), (Status::SUCCESS, vec![0; 64]));
    let known = admin.command(&mut driver, get_log(0, 1024, 0, false), &[]).data;
    let ids: Vec<usize> = (0..256).filter(|id| known[id * 4] == 1).collect();
    assert_eq!(ids, [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x0C, 0x80]);
}

#[test]
fn ana_log_counts_changes() {
    let mut driver = driver();
    let second = NamespaceConfig { ana_group: 5, ..namespace() };
    driver.subsystem.add_namespace(2, second).unwrap();
    driver.subsystem.set_ana(5, AnaState::Inaccessible).unwrap();
    driver.subsystem.set_ana(5, AnaState::Inaccessible).unwrap();
    driver.subsystem.set_ana(1, AnaState::NonOptimized).unwrap();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let data = queue.command(&mut driver, get_log(0x0C, 4096, 0, false), &[]).data;
    let header: AnaLogHeader = nvme_read(&data);
    assert_eq!((header.chgcnt.get(), header.ngrps.get()), (2, 2));
    let first: AnaGroupHeader = nvme_read(&data[16..]);
    assert_eq!((first.grpid.get(), first.nnsids.get(), first.chgcnt.get()), (1, 1, 2));
    assert_eq!((first.state, &data[48..52]), (2, [1, 0, 0, 0].as_slice()));
    let other: AnaGroupHeader = nvme_read(&data[52..]);
    assert_eq!((other.grpid.get(), other.chgcnt.get(), other.state), (5, 1, 3));
    assert_eq!(data[84..88], [2, 0, 0, 0]);
    // Groups only.
    let mut sqe = get_log(0x0C, 4096, 0, false);
    sqe.cdw10 = U32::new(sqe.cdw10.get() | 1 << 8);
    let data = queue.command(&mut driver, sqe, &[]).data;
    let other: AnaGroupHeader = nvme_read(&data[48..]);
    assert_eq!((other.grpid.get(), other.nnsids.get()), (5, 0));
    // `nvme ana-log` reads the longest page there can be, 4 KiB at a time.
    let rest = queue.command(&mut driver, get_log(0x0C, 4096, 4096, false), &[]);
    assert_eq!((rest.status, rest.data), (Status::SUCCESS, vec![0; 4096]));
}

#[test]
fn features() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let mut run = |opcode, id, value| {
        let done = queue.command(&mut driver, feature(opcode, id, value), &[]);
        (done.status.kind(), done.result)
    };
    let (get, set) = (AdminOpcode::GetFeatures, AdminOpcode::SetFeatures);
    let ok = |result| (Status::SUCCESS, result);
    assert_eq!(run(get, 0x07, 0), ok(0x007F_007F), "128 queues");
    assert_eq!(run(set, 0x07, 0x0007_000F), ok(0x0007_0007), "pairs: the smaller number");
    assert_eq!(run(get, 0x07, 0), ok(0x0007_0007));
    assert_eq!(run(set, 0x07, 0xFFFF_0000).0, Status::INVALID_FIELD);
    assert_eq!(run(get, 0x06, 0), ok(1));
    assert_eq!(run(set, 0x06, 1), ok(0));
    assert_eq!(run(set, 0x06, 0).0, Status::FEATURE_NOT_CHANGEABLE);
    assert_eq!(run(set, 0x0B, 0x900), ok(0));
    assert_eq!(run(get, 0x0B, 0), ok(0x900));
    assert_eq!(run(get, 0x0F, 0), ok(5000));
    assert_eq!(run(set, 0x0F, 7001), ok(0));
    assert_eq!(run(get, 0x0F, 0), ok(8000), "rounded up");
    assert_eq!(run(set, 0x82, 0xFFFF_FFFF), ok(0));
    assert_eq!(run(get, 0x82, 0), ok(0b1110));
    for id in [0x01, 0x04, 0x05] {
        assert_eq!(run(set, id, 3), ok(0));
        assert_eq!(run(get, id, 0), ok(3));
    }
    assert_eq!(run(set, 0x02, 0), ok(0));
    assert_eq!(run(set, 0x02, 1).0, Status::INVALID_FIELD);
    assert_eq!(run(set, 0x81, 0).0, Status::SEQUENCE_ERROR);
    assert_eq!(run(get, 0x81, 0).0, Status::HOST_ID_INCONSISTENT);
    assert_eq!(run(get, 0xC0, 0).0, Status::INVALID_FIELD);
    assert_eq!(run(set, 0x03, 0).0, Status::INVALID_FIELD);
    let mut save = feature(set, 0x0B, 0);
    save.cdw10 = U32::new(save.cdw10.get() | 1 << 31);
    let status = queue.command(&mut driver, save, &[]).status;
    assert_eq!(status, Status::FEATURE_NOT_SAVEABLE.do_not_retry());
    let mut able = feature(get, 0x83, 0);
    able.cdw10 = U32::new(0x83 | 3 << 8);
    assert_eq!(queue.command(&mut driver, able, &[]).result, 0b110);
}

#[test]
fn features_with_data() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let (get, set) = (AdminOpcode::GetFeatures, AdminOpcode::SetFeatures);
    let mut id = feature(get, 0x81, 1);
    id.sgl = Sgl::transport(16);
    assert_eq!(queue.command(&mut driver, id, &[]).data, hostid(HOST_A));
    let mut behavior = HostBehavior::new_zeroed();
    behavior.acre = 1;
    let sqe = in_capsule(feature(set, 0x16, 0), 512);
    assert_eq!(queue.command(&mut driver, sqe, behavior.as_bytes()).status, Status::SUCCESS);
    let mut sqe = feature(get, 0x16, 0);
    sqe.sgl = Sgl::transport(512);
    assert_eq!(queue.command(&mut driver, sqe, &[]).data, behavior.as_bytes());
    let short = in_capsule(feature(set, 0x16, 0), 4);
    let status = queue.command(&mut driver, short, &[0; 4]).status;
    assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
    // Noon of some day, and 2.5 s later.
    let given = 1_800_000_000_123u64.to_le_bytes();
    let sqe = in_capsule(feature(set, 0x0E, 0), 8);
    queue.command(&mut driver, sqe, &[given[..6].to_vec(), vec![0, 0]].concat());
    driver.advance(core::time::Duration::from_millis(2500));
    let mut sqe = feature(get, 0x0E, 0);
    sqe.sgl = Sgl::transport(8);
    let data = queue.command(&mut driver, sqe, &[]).data;
    let later = 1_800_000_002_623u64.to_le_bytes();
    assert_eq!(data, [later[..6].to_vec(), vec![0b10, 0]].concat());
}

/// The first dword of each event that was sent.
fn events(queue: &mut Queue, driver: &mut nvme::target::testing::Driver) -> Vec<u64> {
    driver.effects();
    let answers = queue.receive(driver).into_iter().map(|got| match got {
        Got::Response(cqe) if cqe.status().is_success() => cqe.result(),
        other => panic!("{other:?}"),
    });
    answers.collect()
}

const NAMESPACE_EVENT: u64 = 0x04_0002;
const ANA_EVENT: u64 = 0x0C_0302;

#[test]
fn an_event_is_sent_once_until_its_log_is_read() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    queue.command(&mut driver, feature(AdminOpcode::SetFeatures, 0x0B, 0x900), &[]);
    let request = admin(AdminOpcode::AsyncEventRequest);
    queue.submit(&mut driver, request, &[]);
    queue.submit(&mut driver, request, &[]);
    assert_eq!(events(&mut queue, &mut driver), []);
    let grown = Geometry::new(BlockSize::B4096, Blocks(BLOCKS + 8)).unwrap();
    driver.subsystem.resize_namespace(1, grown).unwrap();
    assert_eq!(events(&mut queue, &mut driver), [NAMESPACE_EVENT]);
    driver.subsystem.add_namespace(4, namespace()).unwrap();
    assert_eq!(events(&mut queue, &mut driver), [], "masked");
    driver.subsystem.set_ana(1, AnaState::Change).unwrap();
    assert_eq!(events(&mut queue, &mut driver), [ANA_EVENT], "another kind is not");
    // Read without acknowledging, then with.
    let retained = queue.command(&mut driver, get_log(4, 4096, 0, true), &[]).data;
    assert_eq!(retained[..12], [1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    let read = queue.command(&mut driver, get_log(4, 4096, 0, false), &[]).data;
    assert_eq!(read, retained);
    let again = queue.command(&mut driver, get_log(4, 4096, 0, false), &[]).data;
    assert_eq!(again, vec![0; 4096]);
    driver.subsystem.remove_namespace(4).unwrap();
    queue.submit(&mut driver, request, &[]);
    assert_eq!(events(&mut queue, &mut driver), [NAMESPACE_EVENT], "waited for a request");
}

#[test]
fn events_that_were_not_asked_for_are_not_sent() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    queue.submit(&mut driver, admin(AdminOpcode::AsyncEventRequest), &[]);
    driver.subsystem.set_ana(1, AnaState::Change).unwrap();
    driver.subsystem.remove_namespace(1).unwrap();
    assert_eq!(events(&mut queue, &mut driver), []);
}

#[test]
fn too_many_changed_namespaces_are_one_entry() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    queue.command(&mut driver, feature(AdminOpcode::SetFeatures, 0x0B, 0x100), &[]);
    for nsid in 2..=1024 {
        driver.subsystem.add_namespace(nsid, namespace()).unwrap();
    }
    let data = queue.command(&mut driver, get_log(4, 4096, 0, true), &[]).data;
    assert_eq!(data[..4], [2, 0, 0, 0], "1023 entries fit");
    for nsid in 1..=1024 {
        driver.subsystem.remove_namespace(nsid).unwrap();
    }
    let data = queue.command(&mut driver, get_log(4, 4096, 0, false), &[]).data;
    assert_eq!(data[..4], [1, 0, 0, 0], "1024 fit just so");
}

#[test]
fn event_requests_are_bounded_and_can_be_aborted() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let request = admin(AdminOpcode::AsyncEventRequest);
    let first = queue.submit(&mut driver, request, &[]);
    for _ in 0..3 {
        queue.submit(&mut driver, request, &[]);
    }
    let fifth = queue.command(&mut driver, request, &[]);
    assert_eq!(fifth.status, Status::ASYNC_LIMIT_EXCEEDED.do_not_retry());
    let mut abort = admin(AdminOpcode::Abort);
    abort.cdw10 = U32::new(u32::from(first) << 16);
    let cid = queue.submit(&mut driver, abort, &[]);
    let got = queue.receive(&mut driver);
    let [Got::Response(of_abort), Got::Response(aborted)] = got.as_slice() else {
        panic!("{got:?}")
    };
    assert_eq!((of_abort.cid.get(), of_abort.result()), (cid, 0));
    assert_eq!(aborted.cid.get(), first);
    assert_eq!(aborted.status(), Status::ABORT_REQUESTED.do_not_retry());
    // Nothing to abort; no such queue.
    assert_eq!(queue.command(&mut driver, abort, &[]).result, 1);
    abort.cdw10 = U32::new(9);
    let status = queue.command(&mut driver, abort, &[]).status;
    assert_eq!(status, Status::INVALID_FIELD.do_not_retry());
}

#[test]
fn admin_refusals() {
    let mut driver = driver();
    let (mut queue, _) = Queue::admin(&mut driver, HOST_A);
    let mut run = |sqe: Sqe| queue.command(&mut driver, sqe, &[]).status;
    assert_eq!(run(Sqe::new(0xC1, 0)), Status::INVALID_OPCODE.do_not_retry());
    assert_eq!(run(Sqe::new(0x80, 0)), Status::INVALID_OPCODE.do_not_retry());
    let mut pages = identify(1, 0);
    pages.flags = 0;
    assert_eq!(run(pages), Status::INVALID_FIELD.do_not_retry());
    let mut fused = identify(1, 0);
    fused.flags |= 1;
    assert_eq!(run(fused), Status::INVALID_FIELD.do_not_retry());
    assert_eq!(run(admin(AdminOpcode::KeepAlive)), Status::SUCCESS);
    let mut fabrics = Sqe::new(Sqe::FABRICS, 0);
    fabrics.nsid = U32::new(0x03);
    assert_eq!(run(fabrics), Status::INVALID_OPCODE.do_not_retry());
}
