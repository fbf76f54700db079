//! Files: direct I/O, durability requests, space, sizes, errors.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use reactor::{Access, FileId, Io, Op, Opened, Outcome, PAGE, Reactor, Space, Token};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::harness::{Heard, drive, small};

const OP: Token = Token(1);

fn reactor() -> Reactor<()> {
    Reactor::new(&small()).unwrap()
}

fn file_of(pages: usize, reactor: &mut Reactor<()>) -> (tempfile::TempDir, Opened) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(u64::try_from(pages * PAGE).unwrap()).unwrap();
    let opened = reactor.open(&path, Access::ReadWrite).unwrap();
    (dir, opened)
}

/// Submits one operation and returns how it went.
fn outcome(reactor: &mut Reactor<()>, op: Op) -> Outcome {
    reactor.submit(op, OP).unwrap();
    let mut found = None;
    drive(reactor, &mut |heard, _| {
        if let Heard::Done(OP, outcome) = heard {
            found = Some(outcome);
        }
        found.is_some()
    });
    found.unwrap()
}

fn read(reactor: &mut Reactor<()>, file: FileId, at: u64, len: usize) -> Vec<u8> {
    let mut buffer = reactor.take(len).unwrap();
    buffer.fill(0xEE);
    match outcome(reactor, Op::Read { file, at, buffer }) {
        Outcome::Read { buffer, result } => {
            result.unwrap();
            buffer.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

fn write(reactor: &mut Reactor<()>, file: FileId, at: u64, byte: u8, durable: bool) {
    let mut buffer = reactor.take(PAGE).unwrap();
    buffer.fill(byte);
    match outcome(reactor, Op::Write { file, at, payload: buffer.freeze(), durable }) {
        Outcome::Written { payload, result } => {
            result.unwrap();
            assert_eq!(payload.len(), PAGE);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_written_is_read_around_the_page_cache() {
    let mut reactor = reactor();
    let (_dir, disk) = file_of(64, &mut reactor);
    assert_eq!(disk.bytes, 64 * 4096);
    assert!(!disk.direct || disk.alignment <= 4096, "{disk:?}");
    write(&mut reactor, disk.file, 4096, 1, false);
    write(&mut reactor, disk.file, 8192, 2, true);
    let got = read(&mut reactor, disk.file, 0, 4 * PAGE);
    let pages: Vec<u8> = got.chunks(PAGE).map(|page| page[0]).collect();
    assert_eq!(pages, [0, 1, 2, 0]);
    assert!(got.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])));
}

#[test]
fn split_buffers_are_filled_from_two_places_at_once() {
    let mut reactor = reactor();
    let (_dir, disk) = file_of(8, &mut reactor);
    write(&mut reactor, disk.file, 3 * 4096, 3, false);
    write(&mut reactor, disk.file, 6 * 4096, 6, false);
    let mut head = reactor.take(2 * PAGE).unwrap();
    let tail = head.split_off(PAGE).unwrap();
    reactor.submit(Op::Read { file: disk.file, at: 3 * 4096, buffer: head }, Token(3)).unwrap();
    reactor.submit(Op::Read { file: disk.file, at: 6 * 4096, buffer: tail }, Token(6)).unwrap();
    let mut left = 2;
    drive(&mut reactor, &mut |heard, _| {
        if let Heard::Done(Token(token), Outcome::Read { buffer, result }) = heard {
            result.unwrap();
            assert!(buffer.iter().all(|byte| u64::from(*byte) == token));
            left -= 1;
        }
        left == 0
    });
}

#[test]
fn released_and_zeroed_ranges_read_as_zeros() {
    let mut reactor = reactor();
    let (_dir, disk) = file_of(8, &mut reactor);
    for space in [Space::Released, Space::Zeroed] {
        write(&mut reactor, disk.file, 4096, 5, false);
        let op = Op::Allocate { file: disk.file, at: 4096, len: 4096, space };
        match outcome(&mut reactor, op) {
            Outcome::Allocated(Ok(())) => {}
            Outcome::Allocated(Err(error)) => {
                // A file system may not have it; the caller then writes zeros.
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{space:?}");
                continue;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&mut reactor, disk.file, 4096, PAGE), vec![0; PAGE], "{space:?}");
    }
    match outcome(&mut reactor, Op::Sync { file: disk.file }) {
        Outcome::Synced(Ok(())) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn reading_past_the_end_is_an_error_that_gives_the_buffer_back() {
    let mut reactor = reactor();
    let (_dir, disk) = file_of(1, &mut reactor);
    let buffer = reactor.take(2 * PAGE).unwrap();
    match outcome(&mut reactor, Op::Read { file: disk.file, at: 0, buffer }) {
        Outcome::Read { buffer, result } => {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            assert_eq!(buffer.len(), 2 * PAGE);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_disk_is_refused_when_opened() {
    let mut reactor = reactor();
    let null = reactor.open(Path::new("/dev/null"), Access::ReadOnly).unwrap_err();
    assert_eq!(null.kind(), ErrorKind::InvalidInput);
    let none = reactor.open(Path::new("/nonexistent/disk"), Access::ReadOnly).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
}

#[test]
fn a_file_is_closed_after_its_last_operation() {
    let mut reactor = reactor();
    for round in 0..20 {
        let (_dir, disk) = file_of(4, &mut reactor);
        let buffer = reactor.take(PAGE).unwrap();
        reactor.submit(Op::Read { file: disk.file, at: 0, buffer }, OP).unwrap();
        reactor.close_file(disk.file);
        let mut done = false;
        drive(&mut reactor, &mut |heard, _| {
            if let Heard::Done(OP, Outcome::Read { result, .. }) = heard {
                result.unwrap_or_else(|error| panic!("round {round}: {error}"));
                done = true;
            }
            done
        });
        let buffer = reactor.take(PAGE).unwrap();
        assert!(reactor.submit(Op::Read { file: disk.file, at: 0, buffer }, OP).is_err());
    }
}

#[test]
fn an_exclusive_file_is_refused_to_others_until_it_is_closed() {
    let mut reactor = reactor();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(4096).unwrap();
    let mine = reactor.open(&path, Access::Exclusive).unwrap();
    let found = reactor.open(&path, Access::Exclusive).unwrap_err();
    assert_eq!(found.kind(), ErrorKind::ResourceBusy);
    let elsewhere = Reactor::<()>::new(&small()).unwrap().open(&path, Access::Exclusive);
    assert_eq!(elsewhere.unwrap_err().kind(), ErrorKind::ResourceBusy);
    reactor.close_file(mine.file);
    reactor.open(&path, Access::Exclusive).unwrap();
}

/// The kernel drops references of completed operations when it pleases, and a process that is being
/// forked has one for a moment: neither may keep a closed file locked.
#[test]
fn a_closed_file_is_free_whoever_still_refers_to_it() {
    let mut reactor = reactor();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(4096).unwrap();
    let mine = reactor.open(&path, Access::Exclusive).unwrap();
    let _reference = duplicate_of(&path);
    reactor.close_file(mine.file);
    reactor.open(&path, Access::Exclusive).unwrap();
}

/// A second descriptor of the one open file description that this process has of a file.
fn duplicate_of(path: &Path) -> rustix::fd::OwnedFd {
    let is_it = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to == path);
    let found = std::fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap).find(is_it);
    let raw: i32 = found.unwrap().file_name().to_str().unwrap().parse().unwrap();
    let pid = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(pid, raw, PidfdGetfdFlags::empty()).unwrap()
}

/// A device that is read by its owner is waited for without a thread of its own.
#[test]
fn a_descriptor_says_when_there_is_something_to_read() {
    let mut reactor = reactor();
    let (mut there, here) = std::os::unix::net::UnixStream::pair().unwrap();
    let file = reactor.adopt(here.try_clone().unwrap().into()).unwrap();
    let late = Token(2);
    reactor.submit(Op::Ready { file }, OP).unwrap();
    let at = reactor.now().after(std::time::Duration::from_millis(20));
    reactor.submit(Op::Timer { at }, late).unwrap();
    let mut order = Vec::new();
    drive(&mut reactor, &mut |heard, _| {
        match heard {
            Heard::Done(token, Outcome::Timer) => {
                order.push(token);
                std::io::Write::write_all(&mut there, b"x").unwrap();
            }
            Heard::Done(token, Outcome::Ready(result)) => {
                result.unwrap();
                order.push(token);
            }
            _ => {}
        }
        order.len() == 2
    });
    assert_eq!(order, [late, OP], "not before there was something");
    // What is there already is said at once, and an end is something to read, too.
    assert!(matches!(outcome(&mut reactor, Op::Ready { file }), Outcome::Ready(Ok(()))));
    drop(there);
    assert!(matches!(outcome(&mut reactor, Op::Ready { file }), Outcome::Ready(Ok(()))));
}
