//! What fuzzers drive, and a plain test replays: one function per parser, and the whole target.
//!
//! Each takes any bytes, and panics only if something here is wrong.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use block::{BlockSize, Blocks, Geometry, IoError};
use zerocopy::{FromBytes, IntoBytes};

use super::Driver;
use crate::pdu::{Align, Digests, Expect, Framing, IcReq, Pdu, Reader, Received, Side};
use crate::target::{
    ConnId, ConnectionConfig, Hosts, Limits, NamespaceConfig, NamespaceIds, Reservations,
    Subsystem, SubsystemConfig,
};
use crate::wire::{
    AnaState, Auth, Cc, Connect, ConnectData, DsmRange, Nqn, PropertyGet, PropertySet,
    ReservationArgs, Sqe, U16,
};

const HOST: &str = "nqn.2026-01.io.holdfast:host";
const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:fuzz";
const BLOCKS: u64 = 64;

/// The reader of PDUs: the first byte chooses side, digests and alignment.
pub fn reader(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let side = if how & 1 == 0 { Side::Controller } else { Side::Host };
    let mut reader = Reader::new(side);
    if how & 2 != 0 {
        let digests = Digests { header: how & 4 != 0, data: how & 8 != 0 };
        let align = Align::from_field(how >> 4).unwrap_or_default();
        reader.establish(Framing { digests, send_align: align, receive_align: align }, 8192);
    }
    while !rest.is_empty() {
        let taken = match reader.expect() {
            Expect::Payload(left) => {
                let count = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                reader.payload(rest.get(..count).unwrap_or_default());
                count
            }
            Expect::Head => match reader.feed(rest) {
                Ok((count, _)) => count,
                Err(error) => {
                    let term = Framing::term_req(side, error, reader.offending());
                    assert!(term.as_slice().len() <= Framing::MAX_HEAD);
                    return;
                }
            },
        };
        assert!(taken > 0, "the reader takes something or fails");
        rest = rest.get(taken..).unwrap_or_default();
    }
}

/// Structures that are read from bytes.
pub fn structures(input: &[u8]) {
    if let Ok((data, _)) = ConnectData::ref_from_prefix(input) {
        for field in [&data.subnqn, &data.hostnqn] {
            if let Ok(name) = Nqn::from_field(field) {
                assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
            }
        }
    }
    if let Ok(text) = core::str::from_utf8(input)
        && let Ok(name) = Nqn::new(text)
    {
        assert_eq!(name.as_str(), text);
    }
    if let Ok((sqe, _)) = Sqe::ref_from_prefix(input) {
        let cid = sqe.cid.get();
        let connect = Connect::from_sqe(sqe);
        assert_eq!(Connect::from_sqe(&connect.to_sqe(cid)), connect);
        let set = PropertySet::from_sqe(sqe);
        if set.wide.is_some() {
            assert_eq!(PropertySet::from_sqe(&set.to_sqe(cid)), set);
        }
        let _ = (PropertyGet::from_sqe(sqe), sqe.sgl.kind(), sqe.psdt(), sqe.fuse());
        let auth = Auth::from_sqe(sqe);
        assert_eq!(Auth::from_sqe(&auth.to_send(cid)), auth);
        let args = ReservationArgs::from_sqe(sqe);
        let _ = args.cdw10();
    }
    let _ = DsmRange::ref_from_prefix(input);
}

/// Any bytes on a fresh connection: the first byte is the size of the pieces they come in.
pub fn stream(input: &[u8]) {
    let Some((&chunk, bytes)) = input.split_first() else { return };
    let mut driver = driver();
    driver.chunk = usize::from(chunk).max(1);
    let conn = driver.open();
    driver.send(conn, bytes);
    driver.close(conn);
    assert_eq!(driver.subsystem.controllers().count(), 0);
}

/// Any commands on two live queues, with faults, time and changes of the subsystem between them.
pub fn commands(mut input: &[u8]) {
    let mut driver = driver();
    let (Some(&how), rest) = (input.first(), input.get(1..).unwrap_or_default()) else { return };
    input = rest;
    driver.hold_io = how & 1 != 0;
    driver.hold_persist = how & 2 != 0;
    let digests = Digests { header: how & 4 != 0, data: how & 8 != 0 };
    let mut hosts =
        [Host::connect(&mut driver, digests, 0), Host::connect(&mut driver, digests, 1)];
    while let Some((&what, rest)) = input.split_first() {
        input = rest;
        match what >> 5 {
            0..=4 => {
                let [admin, io] = &mut hosts;
                let host = if what & 1 == 0 { admin } else { io };
                let Ok((mut sqe, rest)) = Sqe::read_from_prefix(input) else { break };
                if what & 2 != 0 {
                    sqe.flags = sqe.flags & 3 | Sqe::FLAGS_SGL;
                    sqe.nsid = 1u32.into();
                }
                let len = usize::from(what >> 2 & 7) * 16;
                let (data, rest) = rest.split_at_checked(len).unwrap_or((rest, &[]));
                input = rest;
                host.submit(&mut driver, sqe, data);
            }
            5 => {
                let held = core::mem::take(&mut driver.held);
                for (conn, event) in held {
                    let end = (what & 1 != 0).then_some(Err(IoError::Aborted));
                    driver.release(conn, event, end);
                }
                driver.persist(what & 2 == 0);
            }
            6 => driver.advance(Duration::from_millis(u64::from(what & 31) * 250)),
            _ => change(&mut driver, what & 31),
        }
        for host in &mut hosts {
            host.receive(&mut driver);
        }
    }
    // Whatever happened, the device is let go, and nothing hangs.
    driver.persist(true);
    while let Some((conn, event)) = driver.held.pop() {
        driver.release(conn, event, None);
    }
    for host in &mut hosts {
        driver.close(host.conn);
        assert!(driver.connection(host.conn).is_some_and(super::super::Connection::is_drained));
    }
    assert_eq!(driver.subsystem.controllers().count(), 0);
}

fn change(driver: &mut Driver, what: u8) {
    let states = AnaState::ALL;
    match what {
        0..5 => {
            let state = states.get(usize::from(what)).copied().unwrap_or(AnaState::Change);
            let _ = driver.subsystem.set_ana(1, state);
        }
        5 => drop(driver.subsystem.set_read_only(1, true)),
        6 => drop(driver.subsystem.set_read_only(1, false)),
        7 => drop(driver.subsystem.remove_namespace(1)),
        8 => driver.subsystem.set_hosts(Hosts::Listed(alloc::collections::BTreeSet::new())),
        9 => driver.subsystem.close(),
        nsid => drop(driver.subsystem.add_namespace(nsid.into(), namespace())),
    }
    driver.effects();
}

fn namespace() -> NamespaceConfig {
    let whole = Geometry::new(BlockSize::B512, Blocks(BLOCKS));
    let Ok(geometry) = whole else { unreachable!("a constant geometry") };
    NamespaceConfig {
        ids: NamespaceIds { uuid: [1; 16], nguid: [2; 16], eui64: [3; 8] },
        geometry,
        ana_group: 1,
        read_only: false,
        write_cache: true,
        takes_messages: true,
        reservations: Reservations::default(),
        reservation_home: super::super::ReservationHome::default(),
    }
}

fn name(text: &str) -> Nqn {
    let Ok(name) = Nqn::new(text) else { unreachable!("a constant name") };
    name
}

fn driver() -> Driver {
    let config = SubsystemConfig {
        nqn: name(SUBSYSTEM),
        serial: String::from("1"),
        model: String::from("fuzz"),
        firmware: String::from("1"),
        cntlids: (1, 16),
        hosts: Hosts::Any,
        limits: Limits { queue_depth: 32, io_queues: 4, controllers: 4 },
    };
    let mut subsystem = Subsystem::new(config);
    let _ = subsystem.add_namespace(1, namespace());
    let mut driver = Driver::new(subsystem, ConnectionConfig::default());
    driver.disks.insert(1, vec![0; usize::try_from(BLOCKS * 512).unwrap_or(0)]);
    driver
}

/// A host that answers requests for data and checks that everything it gets is well framed.
struct Host {
    conn: ConnId,
    framing: Framing,
    reader: Reader,
    commands: usize,
    answers: usize,
    terminated: bool,
}

impl Host {
    fn new(conn: ConnId, framing: Framing) -> Host {
        let reader = Reader::new(Side::Host);
        Host { conn, framing, reader, commands: 0, answers: 0, terminated: false }
    }

    /// A queue of controller 1, which is enabled.
    fn connect(driver: &mut Driver, digests: Digests, qid: u16) -> Host {
        let framing = Framing { digests, ..Framing::default() };
        let mut host = Host::new(driver.open(), framing);
        driver.send(host.conn, IcReq::new(0, digests.to_field(), 0).as_bytes());
        host.receive(driver);
        let connect = Connect { recfmt: 0, qid, sqsize: 31, cattr: 0, kato: 5000 };
        let cntlid = if qid == 0 { 0xFFFF } else { 1 };
        let data = ConnectData::new(&name(HOST), [9; 16], &name(SUBSYSTEM), cntlid);
        host.submit(driver, connect.to_sqe(0), data.as_bytes());
        host.receive(driver);
        if qid == 0 {
            let enable =
                PropertySet { offset: 0x14, wide: Some(false), value: Cc::ENABLE_NVM.0.into() };
            host.submit(driver, enable.to_sqe(0), &[]);
            host.receive(driver);
        }
        host
    }

    fn submit(&mut self, driver: &mut Driver, mut sqe: Sqe, data: &[u8]) {
        // A host does not send more than its queue holds.
        if self.terminated || self.commands - self.answers >= 32 {
            return;
        }
        self.commands += 1;
        sqe.cid = U16::new(u16::try_from(self.commands & 0xFFFF).unwrap_or(0));
        let head = self.framing.capsule_cmd(&sqe, u32::try_from(data.len()).unwrap_or(0));
        self.send(driver, head.as_slice(), data);
    }

    fn send(&self, driver: &mut Driver, head: &[u8], data: &[u8]) {
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(data);
        if self.framing.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&crate::pdu::digest(0, data).to_le_bytes());
        }
        driver.send(self.conn, &bytes);
    }

    fn receive(&mut self, driver: &mut Driver) {
        loop {
            let bytes = driver.take_sent(self.conn);
            let mut asked = Vec::new();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let taken = match self.reader.expect() {
                    Expect::Payload(left) => {
                        let count = rest.len().min(usize::try_from(left).unwrap_or(0));
                        self.reader.payload(rest.get(..count).unwrap_or_default());
                        count
                    }
                    Expect::Head => {
                        let read = self.reader.feed(rest);
                        let Ok((count, received)) = read else {
                            unreachable!("the target sent a bad frame: {read:?}")
                        };
                        self.on(received, &mut asked);
                        if self.terminated {
                            return;
                        }
                        count
                    }
                };
                rest = rest.get(taken..).unwrap_or_default();
            }
            if asked.is_empty() {
                return;
            }
            for (tags, len) in asked {
                let data = vec![0; usize::try_from(len).unwrap_or(0)];
                let head = self.framing.h2c_data(tags, 0, len, true);
                self.send(driver, head.as_slice(), &data);
            }
        }
    }

    fn on(&mut self, received: Option<Received>, asked: &mut Vec<((u16, u16), u32)>) {
        match received {
            Some(Received::Head(Pdu::IcResp(_))) => self.reader.establish(self.framing, 0),
            Some(Received::Head(Pdu::Response(_))) => {
                self.answers += 1;
                assert!(self.answers <= self.commands, "an answer without a command");
            }
            Some(Received::Head(Pdu::R2t(r2t))) => {
                asked.push(((r2t.cccid.get(), r2t.ttag.get()), r2t.r2tl.get()));
            }
            Some(Received::Head(Pdu::TermReq(_))) => self.terminated = true,
            Some(Received::Payload { intact }) => assert!(intact, "a bad data digest"),
            _ => {}
        }
    }
}
