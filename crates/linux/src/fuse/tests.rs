//! The kernel's side, in bytes.

use super::*;

const GIB: u64 = 1 << 30;

/// A request with this body.
fn request(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let length = u32::try_from(40 + body.len()).unwrap();
    bytes.extend(length.to_ne_bytes());
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(node.to_ne_bytes());
    bytes.resize(40, 0);
    bytes.extend(body);
    bytes
}

fn init(major: u32, flags: u64) -> Vec<u8> {
    let words = [major, 45, 131_072, u32::try_from(flags & 0xffff_ffff).unwrap()];
    let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    body.extend(u32::try_from(flags >> 32).unwrap().to_ne_bytes());
    body.resize(64, 0);
    request(26, 1, 0, &body)
}

fn io(opcode: u32, offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(offset.to_ne_bytes());
    body.extend(length.to_ne_bytes());
    body.resize(40, 0);
    body.extend(payload);
    request(opcode, 7, FILE, &body)
}

fn fallocate(offset: u64, length: u64, mode: i32) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend(offset.to_ne_bytes());
    body.extend(length.to_ne_bytes());
    body.extend(mode.to_ne_bytes());
    body.resize(32, 0);
    request(43, 7, FILE, &body)
}

fn session() -> Session {
    Session::new(GIB, 4096, false)
}

/// The error number of an answer; zero if it is none.
fn errno(reaction: &Reaction) -> i32 {
    let Reaction::Reply(bytes) = reaction else { panic!("{reaction:?}") };
    -i32::from_ne_bytes(bytes[4..8].try_into().unwrap())
}

fn body(reaction: &Reaction) -> &[u8] {
    assert_eq!(errno(reaction), 0);
    let Reaction::Reply(bytes) = reaction else { panic!("{reaction:?}") };
    let length = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    assert_eq!(usize::try_from(length).unwrap(), bytes.len());
    &bytes[16..]
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn what_is_offered_and_wanted_is_granted() {
    let mut session = session();
    let all = session.receive(&init(7, u64::MAX));
    let reply = body(&all);
    assert_eq!(reply.len(), 64);
    assert_eq!((word(reply, 0), word(reply, 4)), (7, 38));
    assert_eq!(u64::from(word(reply, 12)) | u64::from(word(reply, 32)) << 32, flag::WANTED);
    assert_eq!(word(reply, 20), MAX_TRANSFER);
    assert!(resend(session.state()).is_some());

    let mut old = Session::new(GIB, 4096, false);
    let few = old.receive(&init(7, 1));
    assert_eq!(word(body(&few), 12), 1);
    assert_eq!(resend(old.state()), None);
}

#[test]
fn another_major_version_is_negotiated_or_refused() {
    assert_eq!(word(body(&session().receive(&init(8, 0))), 0), 7);
    assert_eq!(errno(&session().receive(&init(6, 0))), libc::EPROTO);
}

#[test]
fn there_is_one_file() {
    let mut session = session();
    let found = session.receive(&request(1, 7, ROOT, b"volume\0"));
    let entry = body(&found);
    assert_eq!(entry.len(), 128);
    assert_eq!(u64::from_ne_bytes(entry[..8].try_into().unwrap()), FILE);
    // Node, size and mode in the attributes behind the entry.
    assert_eq!(u64::from_ne_bytes(entry[48..56].try_into().unwrap()), GIB);
    assert_eq!(word(entry, 40 + 60), libc::S_IFREG | 0o600);
    assert_eq!(errno(&session.receive(&request(1, 7, ROOT, b"other\0"))), libc::ENOENT);
    assert_eq!(errno(&session.receive(&request(1, 7, FILE, b"volume\0"))), libc::ENOENT);
    assert_eq!(body(&session.receive(&request(3, 7, FILE, &[0; 16]))).len(), 104);
    assert_eq!(errno(&session.receive(&request(3, 7, 3, &[0; 16]))), libc::ENOENT);
    assert_eq!(body(&session.receive(&request(17, 7, ROOT, &[]))).len(), 80);
    session.resize(2 * GIB);
    let grown = session.receive(&request(3, 7, FILE, &[0; 16]));
    assert_eq!(u64::from_ne_bytes(body(&grown)[24..32].try_into().unwrap()), 2 * GIB);
}

#[test]
fn block_commands_come_out() {
    let mut session = session();
    let id = RequestId(7);
    let read = Command::Read { offset: 8192, length: 4096 };
    assert_eq!(session.receive(&io(15, 8192, 4096, &[])), Reaction::Submit(id, read));
    let end = Command::Read { offset: GIB - 512, length: 512 };
    assert_eq!(session.receive(&io(15, GIB - 512, 4096, &[])), Reaction::Submit(id, end));
    let write = Command::Write { offset: 0, length: 3 };
    assert_eq!(session.receive(&io(16, 0, 3, b"abc")), Reaction::Submit(id, write));
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let discard = Command::Discard { offset: 4096, length: 8192 };
    assert_eq!(session.receive(&fallocate(4096, 8192, punch)), Reaction::Submit(id, discard));
    let zero = Command::WriteZeroes { offset: 0, length: 4096 };
    let mode = libc::FALLOC_FL_ZERO_RANGE;
    assert_eq!(session.receive(&fallocate(0, 4096, mode)), Reaction::Submit(id, zero));
    assert_eq!(errno(&session.receive(&fallocate(0, 4096, 0))), libc::EOPNOTSUPP);
}

/// The kernel believes "not implemented" once and for all.
#[test]
fn a_flush_is_always_carried_out() {
    for mut session in [session(), Session::new(GIB, 4096, true), Session::new(0, 4096, false)] {
        let flush = Reaction::Submit(RequestId(9), Command::Flush);
        assert_eq!(session.receive(&request(20, 9, FILE, &[0; 16])), flush);
        // Even one that is cut short.
        assert_eq!(session.receive(&request(20, 9, FILE, &[])), flush);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut session = session();
    for (message, refused) in [
        (io(16, GIB - 1, 3, b"abc"), libc::EFBIG),
        (io(16, u64::MAX, 3, b"abc"), libc::EINVAL),
        (io(16, 0, 4, b"abc"), libc::EINVAL),
        (io(15, 0, MAX_TRANSFER + 1, &[]), libc::EINVAL),
        (request(15, 7, FILE, &[0; 8]), libc::EINVAL),
        (request(43, 7, FILE, &[0; 8]), libc::EINVAL),
        (fallocate(GIB, 1, libc::FALLOC_FL_ZERO_RANGE), libc::ENOSPC),
        (request(26, 7, 0, &[0; 4]), libc::EPROTO),
        (request(9999, 7, ROOT, &[]), libc::ENOSYS),
        (request(15, 7, ROOT, &[0; 40]), libc::ENOSYS),
    ] {
        assert_eq!(errno(&session.receive(&message)), refused, "{:?}", &message[..8]);
    }
    let mut read_only = Session::new(GIB, 4096, true);
    assert_eq!(errno(&read_only.receive(&io(16, 0, 3, b"abc"))), libc::EROFS);
    assert_eq!(session.receive(&[]), Reaction::Ignore);
    assert_eq!(session.receive(&[0xff; 44]), Reaction::Ignore);
}

#[test]
fn no_bytes_of_a_kernel_make_it_panic() {
    let mut session = session();
    let mut seed = 1_u64;
    for _ in 0..20_000 {
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        let length = usize::try_from(random() % 120).unwrap();
        let mut bytes: Vec<u8> = (0..length).map(|_| random().to_le_bytes()[0]).collect();
        if bytes.len() >= 8 && random() % 4 > 0 {
            bytes[..4].copy_from_slice(&u32::try_from(length).unwrap().to_ne_bytes());
            bytes[4..8].copy_from_slice(&u32::try_from(random() % 50).unwrap().to_ne_bytes());
        }
        session.receive(&bytes);
    }
}

#[test]
fn answers_are_whole() {
    let session = session();
    let id = RequestId(5);
    let read = session.complete(id, Command::Read { offset: 0, length: 3 }, Ok(b"abc"));
    assert_eq!((word(&read, 0), read.len()), (19, 16));
    let write = session.complete(id, Command::Write { offset: 0, length: 3 }, Ok(&[]));
    assert_eq!((word(&write, 0), word(&write, 16)), (24, 3));
    assert_eq!(session.complete(id, Command::Flush, Ok(&[])).len(), 16);
    let failed = session.complete(id, Command::Flush, Err(libc::EIO));
    assert_eq!(i32::from_ne_bytes(failed[4..8].try_into().unwrap()), -libc::EIO);
    assert_eq!(u64::from_ne_bytes(failed[8..16].try_into().unwrap()), 5);
}
