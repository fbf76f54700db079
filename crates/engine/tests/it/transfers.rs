//! Payloads that come in pieces, that are damaged, that end in the middle.

use std::time::Duration;

use block::Blocks;
use engine::client::Session;
use engine::client::perf::{Load, LoadError, Measured, Pattern, run};
use engine::serve::Server;
use nvme::initiator::Options;
use nvme::pdu::Digests;

use crate::harness::{address, association, config, connect, file, memory, nqn, verify};
use crate::rough::{Rough, way};

/// Bytes of an I/O queue before its first command, without digests: ICReq and Connect.
const SET_UP: usize = 128 + 72 + 1024;
/// The same on the way back: ICResp and the answer.
const SET_UP_BACK: usize = 128 + 24;
const BOTH: Digests = Digests { header: true, data: true };

fn session(server: &Server, digests: Digests, rough: Rough) -> Session {
    let options = Options { digests, io_queues: 1, ..Options::default() };
    Session::connect(way(address(server), rough), association(nqn("a"), options)).unwrap()
}

fn load(session: &mut Session, pattern: Pattern, blocks: u64) -> Result<Measured, LoadError> {
    let time = Duration::from_hours(1);
    let blocks = Blocks(blocks);
    let load =
        Load { nsid: 1, pattern, blocks, depth: 2, time, commands: 6, verify: false, seed: 1 };
    run(session, load)
}

#[test]
fn payloads_may_come_in_any_pieces() {
    let dir = tempfile::tempdir().unwrap();
    for backing in [memory(64), file(&dir.path().join("disk"), 64)] {
        let server = Server::start(config(vec![backing], 1)).unwrap();
        for (digests, piece) in [(Digests::default(), 3000), (BOTH, 3001), (BOTH, 50_000)] {
            let rough = Rough { piece, ..Rough::default() };
            let mut session = session(&server, digests, rough);
            for (blocks, depth) in [(1, 8), (2, 8), (9, 4), (32, 4), (256, 2)] {
                verify(&mut session, blocks, depth);
            }
            session.close().unwrap();
        }
        server.stop().unwrap();
    }
}

#[test]
fn a_damaged_payload_fails_its_command_only() {
    let server = Server::start(config(vec![memory(16)], 1)).unwrap();
    for (pattern, blocks, backwards, at) in [
        (Pattern::Write, 1, false, 3000),
        (Pattern::Write, 32, false, 100_000),
        (Pattern::Read, 32, true, 100_000),
    ] {
        let before = if backwards { SET_UP_BACK } else { SET_UP };
        let rough = Rough { piece: 5000, backwards, damage: Some(before + at), cut: None };
        let mut session = session(&server, BOTH, rough);
        let measured = load(&mut session, pattern, blocks).unwrap();
        assert_eq!(measured.failed, 1, "{pattern:?} of {blocks} blocks");
        verify(&mut session, blocks, 2);
        session.close().unwrap();
    }
    server.stop().unwrap();
}

#[test]
fn a_connection_that_ends_within_a_payload_leaves_nothing_behind() {
    let server = Server::start(config(vec![memory(16)], 1)).unwrap();
    for (pattern, backwards) in [(Pattern::Write, false), (Pattern::Read, true)] {
        let before = if backwards { SET_UP_BACK } else { SET_UP };
        // More often than there are large buffers.
        for at in (0..40).map(|step| 100 + step * 26_000) {
            let rough = Rough { piece: 20_000, backwards, cut: Some(before + at), damage: None };
            let mut session = session(&server, Digests::default(), rough);
            let error = load(&mut session, pattern, 256).unwrap_err();
            assert!(matches!(error, LoadError::Session(_)), "{pattern:?} cut at {at}: {error}");
        }
    }
    verify(&mut connect(&server, "a", Options::default()), 256, 8);
    server.stop().unwrap();
}
