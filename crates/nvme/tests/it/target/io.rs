//! I/O commands.

use block::{BlockSize, Blocks, Command, Completion, Geometry, IoError, Lba, Span};
use nvme::pdu::Digests;
use nvme::target::Event;
use nvme::target::testing::Driver;
use nvme::wire::{AnaState, Connect, DsmRange, IoOpcode, Sgl, Sqe, Status, U32, U64};
use zerocopy::IntoBytes;

use super::host::*;

fn dsm(ranges: &[(u64, u32)]) -> (Sqe, Vec<u8>) {
    let data: Vec<u8> = ranges
        .iter()
        .flat_map(|&(slba, nlb)| {
            let range = DsmRange { cattr: U32::ZERO, nlb: U32::new(nlb), slba: U64::new(slba) };
            range.as_bytes().to_vec()
        })
        .collect();
    let mut sqe = io(IoOpcode::DatasetManagement, 0, 1);
    sqe.cdw10 = U32::new(u32::try_from(ranges.len() - 1).unwrap());
    sqe.cdw11 = U32::new(Sqe::CDW11_DSM_AD);
    sqe.cdw12 = U32::ZERO;
    (in_capsule(sqe, data.len()), data)
}

#[test]
fn what_is_written_is_read() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    // In the capsule, and asked for: one block to the largest transfer.
    for (slba, blocks, capsule) in [(0, 1, true), (1, 2, true), (7, 1, false), (100, 256, false)] {
        let bytes = pattern(u8::try_from(blocks % 256).unwrap(), BLOCK * blocks);
        let mut write = io(IoOpcode::Write, slba, u32::try_from(blocks).unwrap());
        if capsule {
            write = in_capsule(write, bytes.len());
        }
        assert_eq!(queue.command(&mut driver, write, &bytes).status, Status::SUCCESS);
        let read = io(IoOpcode::Read, slba, u32::try_from(blocks).unwrap());
        assert_eq!(queue.command(&mut driver, read, &[]).data, bytes);
    }
}

#[test]
fn commands_reach_the_device_as_they_are_meant() {
    let mut driver = driver();
    driver.hold_io = true;
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let span = |start, len| Span::new(Lba(start), Blocks(len)).unwrap();
    let mut fua = in_capsule(io(IoOpcode::Write, 5, 1), BLOCK);
    fua.cdw12 = U32::new(Sqe::CDW12_FUA);
    let mut zeroes = io(IoOpcode::WriteZeroes, 9, 500);
    zeroes.cdw12 = U32::new(zeroes.cdw12.get() | Sqe::CDW12_DEAC | Sqe::CDW12_FUA);
    let cases = [
        (fua, BLOCK, Command::Write { span: span(5, 1), fua: true }),
        (io(IoOpcode::Read, 6, 3), 0, Command::Read { span: span(6, 3) }),
        (io(IoOpcode::Verify, 6, 3), 0, Command::Read { span: span(6, 3) }),
        (io(IoOpcode::Flush, 0, 1), 0, Command::Flush),
        (zeroes, 0, Command::WriteZeroes { span: span(9, 500), fua: true, deallocate: true }),
        (
            in_capsule(io(IoOpcode::Compare, 5, 1), BLOCK),
            BLOCK,
            Command::Compare { span: span(5, 1) },
        ),
    ];
    for (sqe, len, expected) in cases {
        queue.submit(&mut driver, sqe, &vec![0; len]);
        let (id, event) = driver.held.pop().unwrap();
        let Event::Io { nsid: 1, command, .. } = event else { panic!("{event:?}") };
        assert_eq!(command, expected);
        driver.release(id, event, Some(Ok(())));
        let got = queue.receive(&mut driver);
        let is_read = sqe.opcode == IoOpcode::Read.code();
        assert_eq!(got.len(), if is_read { 2 } else { 1 }, "only a read returns data: {got:?}");
    }
}

#[test]
fn deallocate_hands_out_every_range_and_answers_once() {
    let mut driver = driver();
    driver.hold_io = true;
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let ranges: Vec<(u64, u32)> = (0..256).map(|at| (at, u32::from(at % 3 != 0))).collect();
    let (sqe, data) = dsm(&ranges);
    queue.submit(&mut driver, sqe, &data);
    let held = core::mem::take(&mut driver.held);
    assert_eq!(held.len(), ranges.iter().filter(|(_, nlb)| *nlb > 0).count());
    for (at, (id, event)) in held.into_iter().enumerate() {
        assert_eq!(queue.receive(&mut driver), []);
        let end: Completion = if at == 3 { Err(IoError::Busy) } else { Ok(()) };
        driver.release(id, event, Some(end));
    }
    let got = queue.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::NAMESPACE_NOT_READY, "one failure is the command's");
}

#[test]
fn deallocate_of_nothing_and_of_too_much() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    driver.disks.get_mut(&1).unwrap().fill(9);
    let mut run = |ranges: &[(u64, u32)]| {
        let (sqe, data) = dsm(ranges);
        queue.command(&mut driver, sqe, &data).status
    };
    assert_eq!(run(&[(0, 0)]), Status::SUCCESS);
    assert_eq!(run(&[(0, 1), (BLOCKS - 1, 1)]), Status::SUCCESS);
    let beyond = Status::LBA_OUT_OF_RANGE.do_not_retry();
    assert_eq!(run(&[(1, 1), (BLOCKS - 1, 2)]), beyond);
    assert_eq!(run(&[(u64::MAX, 2)]), beyond);
    // A bad range anywhere means that nothing is deallocated.
    let disk = &driver.disks[&1];
    assert_eq!((disk[0], disk[BLOCK], disk[disk.len() - 1]), (0, 9, 0));
    // Fewer data than ranges; a hint instead of a deallocation.
    let (mut sqe, data) = dsm(&[(0, 1)]);
    sqe.cdw10 = U32::new(1);
    let short = queue.command(&mut driver, sqe, &data).status;
    assert_eq!(short, Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
    let (mut sqe, data) = dsm(&[(2, 1)]);
    sqe.cdw11 = U32::new(1);
    assert_eq!(queue.command(&mut driver, sqe, &data).status, Status::SUCCESS);
    assert_eq!(driver.disks[&1][2 * BLOCK], 9);
}

fn status_of(driver: &mut Driver, queue: &mut Queue, sqe: Sqe, data: &[u8]) -> Status {
    queue.command(driver, sqe, data).status
}

#[test]
fn refusals() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let with = |mut sqe: Sqe, change: &dyn Fn(&mut Sqe)| {
        change(&mut sqe);
        sqe
    };
    let read = io(IoOpcode::Read, 0, 1);
    let cases: &[(&str, Sqe, Status)] = &[
        ("past the end", io(IoOpcode::Read, BLOCKS, 1), Status::LBA_OUT_OF_RANGE),
        ("over the end", io(IoOpcode::Read, BLOCKS - 1, 2), Status::LBA_OUT_OF_RANGE),
        ("wraps", io(IoOpcode::Read, u64::MAX, 2), Status::LBA_OUT_OF_RANGE),
        ("zeroes over the end", io(IoOpcode::WriteZeroes, 1, 512), Status::LBA_OUT_OF_RANGE),
        ("no namespace", with(read, &|sqe| sqe.nsid = U32::new(2)), Status::INVALID_NAMESPACE),
        (
            "flush of all namespaces",
            with(io(IoOpcode::Flush, 0, 1), &|sqe| sqe.nsid = U32::new(u32::MAX)),
            Status::INVALID_NAMESPACE,
        ),
        ("no such opcode", with(read, &|sqe| sqe.opcode = 0x7E), Status::INVALID_OPCODE),
        ("pages", with(read, &|sqe| sqe.flags = 0), Status::INVALID_FIELD),
        ("two descriptors", with(read, &|sqe| sqe.flags = 0x80), Status::INVALID_FIELD),
        (
            "short buffer",
            with(read, &|sqe| sqe.sgl = Sgl::transport(4095)),
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            "long buffer",
            with(read, &|sqe| sqe.sgl = Sgl::transport(8192)),
            Status::DATA_SGL_LENGTH_INVALID,
        ),
        (
            "a read into a capsule",
            with(read, &|sqe| sqe.sgl.identifier = 0x01),
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        (
            "keyed descriptor",
            with(read, &|sqe| sqe.sgl.identifier = 0x40),
            Status::SGL_DESCRIPTOR_TYPE_INVALID,
        ),
        ("more than MDTS", io(IoOpcode::Read, 0, 257), Status::INVALID_FIELD),
        ("verify of more than MDTS", io(IoOpcode::Verify, 0, 257), Status::INVALID_FIELD),
    ];
    for (name, sqe, expected) in cases {
        let status = status_of(&mut driver, &mut queue, *sqe, &[]);
        assert_eq!(status, expected.do_not_retry(), "{name}");
    }
    let mut offset = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    offset.sgl.address = U64::new(4);
    let status = status_of(&mut driver, &mut queue, offset, &[0; BLOCK]);
    assert_eq!(status, Status::SGL_OFFSET_INVALID.do_not_retry());
    // The queue still works after all that.
    assert_eq!(status_of(&mut driver, &mut queue, read, &[]), Status::SUCCESS);
}

#[test]
fn capsule_data_that_belong_to_a_refused_command_are_skipped() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let mut sqe = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    sqe.sgl.length = U32::new(512);
    let status = status_of(&mut driver, &mut queue, sqe, &pattern(1, BLOCK));
    assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.do_not_retry());
    let read = queue.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(read.data, vec![0; BLOCK]);
}

#[test]
fn faults_become_statuses() {
    let mut driver = driver();
    driver.hold_io = true;
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let span = Span::one(Lba(0)).unwrap();
    let cases = [
        (IoError::OutOfRange { span }, Status::LBA_OUT_OF_RANGE.do_not_retry()),
        (IoError::Unsupported, Status::INVALID_FIELD.do_not_retry()),
        (IoError::Locked, Status::NAMESPACE_NOT_READY),
        (IoError::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED.do_not_retry()),
        (IoError::NoSpace, Status::CAPACITY_EXCEEDED.do_not_retry()),
        (IoError::Medium { span }, Status::UNRECOVERED_READ.do_not_retry()),
        (IoError::Checksum { span }, Status::UNRECOVERED_READ.do_not_retry()),
        (IoError::Unproven { span }, Status::GUARD_CHECK.do_not_retry()),
        (IoError::Fenced, Status::INTERNAL_PATH_ERROR),
        (IoError::Unreachable, Status::INTERNAL_PATH_ERROR),
        (IoError::TimedOut, Status::INTERNAL_PATH_ERROR),
        (IoError::Aborted, Status::COMMAND_INTERRUPTED),
        (IoError::Busy, Status::NAMESPACE_NOT_READY),
        (IoError::Internal, Status::INTERNAL_ERROR),
    ];
    for (fault, expected) in cases {
        queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
        let (id, event) = driver.held.pop().unwrap();
        driver.release(id, event, Some(Err(fault)));
        let got = queue.receive(&mut driver);
        let [Got::Response(cqe)] = got.as_slice() else { panic!("no data with {fault}: {got:?}") };
        assert_eq!(cqe.status(), expected, "{fault}");
    }
}

#[test]
fn a_path_that_is_not_accessible_says_so() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    for (state, expected) in [
        (AnaState::NonOptimized, Status::SUCCESS),
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
        (AnaState::Optimized, Status::SUCCESS),
    ] {
        driver.subsystem.set_ana(1, state).unwrap();
        for sqe in [io(IoOpcode::Read, 0, 1), io(IoOpcode::Flush, 0, 1)] {
            assert_eq!(status_of(&mut driver, &mut queue, sqe, &[]), expected, "{state:?}");
        }
    }
}

#[test]
fn a_read_only_namespace_is_read_and_flushed_only() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    driver.subsystem.set_read_only(1, true).unwrap();
    let protected = Status::NAMESPACE_WRITE_PROTECTED.do_not_retry();
    let write = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    assert_eq!(status_of(&mut driver, &mut queue, write, &[1; BLOCK]), protected);
    let zeroes = io(IoOpcode::WriteZeroes, 0, 1);
    assert_eq!(status_of(&mut driver, &mut queue, zeroes, &[]), protected);
    let (sqe, data) = dsm(&[(0, 1)]);
    assert_eq!(status_of(&mut driver, &mut queue, sqe, &data), protected);
    for sqe in [io(IoOpcode::Read, 0, 1), io(IoOpcode::Flush, 0, 1)] {
        assert_eq!(status_of(&mut driver, &mut queue, sqe, &[]), Status::SUCCESS);
    }
}

#[test]
fn blocks_of_512_bytes() {
    let mut driver = driver();
    let geometry = Geometry::new(BlockSize::B512, Blocks(16)).unwrap();
    let config = nvme::target::NamespaceConfig { geometry, ..namespace() };
    driver.subsystem.add_namespace(2, config).unwrap();
    driver.disks.insert(2, pattern(0, 8192));
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let mut read = io(IoOpcode::Read, 15, 1);
    read.nsid = U32::new(2);
    read.sgl = Sgl::transport(512);
    assert_eq!(queue.command(&mut driver, read, &[]).data, pattern(0, 8192)[7680..]);
}

#[test]
fn a_damaged_payload_ends_its_command_only() {
    let mut driver = driver();
    let digests = Digests { header: true, data: true };
    let (_admin, cntlid) = Queue::admin(&mut driver, HOST_A);
    let mut queue = Queue::io_with(&mut driver, HOST_A, cntlid, 1, digests);
    let sqe = in_capsule(io(IoOpcode::Write, 0, 1), BLOCK);
    let mut bytes = queue.capsule(&sqe, &pattern(0, BLOCK));
    let in_payload = bytes.len() - 100;
    bytes[in_payload] ^= 1;
    driver.send(queue.id, &bytes);
    let got = queue.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.status(), Status::TRANSIENT_TRANSPORT_ERROR);
    let read = queue.command(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    assert_eq!(read.data, vec![0; BLOCK], "nothing was written, the queue lives");
}

#[test]
fn data_come_in_several_pieces_and_tags_are_not_mixed_up() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    let one = queue.submit(&mut driver, io(IoOpcode::Write, 0, 3), &[]);
    let two = queue.submit(&mut driver, io(IoOpcode::Write, 10, 3), &[]);
    let got = queue.receive(&mut driver);
    let [Got::Ask { cid: a, tag: first, len: 12288, .. }, Got::Ask { cid: b, tag: second, .. }] =
        got.as_slice()
    else {
        panic!("{got:?}")
    };
    assert_eq!((*a, *b), (one, two));
    assert_ne!(first, second);
    let (left, right) = (pattern(1, 3 * BLOCK), pattern(2, 3 * BLOCK));
    for at in 0..3 {
        let part = at * BLOCK..(at + 1) * BLOCK;
        let offset = u32::try_from(part.start).unwrap();
        let last = at == 2;
        let bytes = queue.data((two, *second), offset, &right[part.clone()], last);
        driver.send(queue.id, &bytes);
        let bytes = queue.data((one, *first), offset, &left[part], last);
        driver.send(queue.id, &bytes);
    }
    let ends: Vec<u16> = queue
        .receive(&mut driver)
        .into_iter()
        .map(|got| match got {
            Got::Response(cqe) if cqe.status() == Status::SUCCESS => cqe.cid.get(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ends, [two, one], "in the order in which their data were complete");
    assert_eq!(driver.disks[&1][..3 * BLOCK], left);
    assert_eq!(driver.disks[&1][10 * BLOCK..13 * BLOCK], right);
}

#[test]
fn without_flow_control_a_read_needs_no_response_capsule() {
    let mut driver = driver();
    let (_admin, cntlid) = Queue::admin(&mut driver, HOST_A);
    let mut queue = Queue::open(&mut driver, Digests::default());
    let connect =
        Connect { recfmt: 0, qid: 1, sqsize: 31, cattr: Connect::CATTR_NO_SQ_FLOW, kato: 0 };
    queue.connect_with(&mut driver, HOST_A, connect, cntlid);
    queue.submit(&mut driver, io(IoOpcode::Read, 0, 1), &[]);
    let got = queue.receive(&mut driver);
    assert!(matches!(got.as_slice(), [Got::Data { success: true, last: true, .. }]), "{got:?}");
    // A failure needs one.
    queue.submit(&mut driver, io(IoOpcode::Read, BLOCKS, 1), &[]);
    let got = queue.receive(&mut driver);
    let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(cqe.sqhd.get(), 0xFFFF);
}

#[test]
fn the_queue_head_moves_with_every_answer_and_wraps() {
    let mut driver = driver();
    let (_admin, mut queue) = Queue::pair(&mut driver, HOST_A);
    // Connect moved it to 1; the queue has 32 entries.
    for expected in (2..32).chain(0..5) {
        queue.submit(&mut driver, io(IoOpcode::Flush, 0, 1), &[]);
        let got = queue.receive(&mut driver);
        let [Got::Response(cqe)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(cqe.sqhd.get(), expected);
    }
}
