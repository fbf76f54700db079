//! A host for tests: makes commands, reads answers, checks the framing of everything it gets.

use block::{BlockSize, Blocks, Geometry};
use nvme::pdu::{Digests, Framing, IcReq, Pdu, Reader, Received, Side, digest};
use nvme::target::testing::Driver;
use nvme::target::{
    ConnId, ConnectionConfig, Hosts, Limits, NamespaceConfig, NamespaceIds, Reservations,
    Subsystem, SubsystemConfig,
};
use nvme::wire::{
    AdminOpcode, Connect, ConnectData, Cqe, IoOpcode, Nqn, PropertyGet, PropertySet, Sgl, Sqe,
    Status, U32,
};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:volume-1";
pub(crate) const HOST_A: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000a";
pub(crate) const HOST_B: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000b";
pub(crate) const HOST_C: &str =
    "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000c";
pub(crate) const BLOCKS: u64 = 512;
pub(crate) const BLOCK: usize = 4096;

pub(crate) fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

pub(crate) fn hostid(host: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id[15] = *host.as_bytes().last().unwrap();
    id[0] = 1;
    id
}

pub(crate) fn config(name: &str) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn(name),
        serial: "HF0001".into(),
        model: "Holdfast".into(),
        firmware: "0.1".into(),
        cntlids: (1, 64),
        hosts: Hosts::Any,
        limits: Limits::default(),
    }
}

pub(crate) fn namespace() -> NamespaceConfig {
    NamespaceConfig {
        ids: NamespaceIds { uuid: [0x11; 16], nguid: [0x22; 16], eui64: [0x33; 8] },
        geometry: Geometry::new(BlockSize::B4096, Blocks(BLOCKS)).unwrap(),
        ana_group: 1,
        read_only: false,
        write_cache: true,
        takes_messages: false,
        reservations: Reservations::default(),
        reservation_home: nvme::target::ReservationHome::default(),
    }
}

/// A driver with one namespace of 2 MiB.
pub(crate) fn driver() -> Driver {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM));
    subsystem.add_namespace(1, namespace()).unwrap();
    let mut driver = Driver::new(subsystem, ConnectionConfig::default());
    driver.disks.insert(1, vec![0; BLOCK * usize::try_from(BLOCKS).unwrap()]);
    driver
}

/// One connection, from the host's side.
pub(crate) struct Queue {
    pub(crate) id: ConnId,
    pub(crate) framing: Framing,
    reader: Reader,
    inbox: Vec<u8>,
    next_cid: u16,
}

/// Something the target sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Setup(nvme::pdu::IcResp),
    Response(Cqe),
    Data { cid: u16, offset: u32, data: Vec<u8>, last: bool, success: bool },
    Ask { cid: u16, tag: u16, offset: u32, len: u32 },
    Term { fes: u16, fei: u32 },
}

/// How a command ended.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) status: Status,
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

impl Done {
    pub(crate) fn read<T: FromBytes>(&self) -> T {
        T::read_from_prefix(&self.data).unwrap().0
    }
}

impl Queue {
    /// Opens a connection and exchanges the set-up PDUs.
    pub(crate) fn open(driver: &mut Driver, digests: Digests) -> Queue {
        let mut queue = Queue::raw(driver);
        driver.send(queue.id, IcReq::new(0, digests.to_field(), 0).as_bytes());
        let got = queue.receive(driver);
        let [Got::Setup(setup)] = got.as_slice() else { panic!("{got:?}") };
        assert_eq!(setup.dgst, digests.to_field());
        assert_eq!((setup.cpda, setup.pfv.get()), (0, 0));
        queue.establish(digests);
        queue
    }

    /// Opens a connection, nothing more.
    pub(crate) fn raw(driver: &mut Driver) -> Queue {
        Queue {
            id: driver.open(),
            framing: Framing::default(),
            reader: Reader::new(Side::Host),
            inbox: Vec::new(),
            next_cid: 0,
        }
    }

    pub(crate) fn establish(&mut self, digests: Digests) {
        self.framing = Framing { digests, ..Framing::default() };
        self.reader.establish(self.framing, 0);
    }

    /// An admin queue of an enabled controller.
    pub(crate) fn admin(driver: &mut Driver, host: &str) -> (Queue, u16) {
        Queue::admin_with(driver, host, Digests::default())
    }

    pub(crate) fn admin_with(driver: &mut Driver, host: &str, digests: Digests) -> (Queue, u16) {
        let mut queue = Queue::open(driver, digests);
        let done = queue.connect(driver, host, 0, 0xFFFF);
        assert_eq!(done.status, Status::SUCCESS);
        let cntlid = u16::try_from(done.result).unwrap();
        let enable = PropertySet { offset: 0x14, wide: Some(false), value: 0x0046_0001 };
        assert_eq!(queue.command(driver, enable.to_sqe(0), &[]).status, Status::SUCCESS);
        let get = PropertyGet { offset: 0x1C, wide: Some(false) };
        assert_eq!(queue.command(driver, get.to_sqe(0), &[]).result, 1, "ready");
        (queue, cntlid)
    }

    /// An I/O queue of a controller.
    pub(crate) fn io(driver: &mut Driver, host: &str, cntlid: u16, qid: u16) -> Queue {
        Queue::io_with(driver, host, cntlid, qid, Digests::default())
    }

    pub(crate) fn io_with(
        driver: &mut Driver,
        host: &str,
        cntlid: u16,
        qid: u16,
        digests: Digests,
    ) -> Queue {
        let mut queue = Queue::open(driver, digests);
        assert_eq!(queue.connect(driver, host, qid, cntlid).status, Status::SUCCESS);
        queue
    }

    /// A controller with one I/O queue.
    pub(crate) fn pair(driver: &mut Driver, host: &str) -> (Queue, Queue) {
        let (admin, cntlid) = Queue::admin(driver, host);
        let io = Queue::io(driver, host, cntlid, 1);
        (admin, io)
    }

    pub(crate) fn connect(
        &mut self,
        driver: &mut Driver,
        host: &str,
        qid: u16,
        cntlid: u16,
    ) -> Done {
        let connect = Connect { recfmt: 0, qid, sqsize: 31, cattr: 0, kato: 5000 };
        self.connect_with(driver, host, connect, cntlid)
    }

    pub(crate) fn connect_with(
        &mut self,
        driver: &mut Driver,
        host: &str,
        connect: Connect,
        cntlid: u16,
    ) -> Done {
        let name = driver.subsystem.nqn().clone();
        let data = ConnectData::new(&nqn(host), hostid(host), &name, cntlid);
        self.command(driver, connect.to_sqe(0), data.as_bytes())
    }

    /// The bytes of a command with data in its capsule.
    pub(crate) fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let len = u32::try_from(data.len()).unwrap();
        let mut bytes = self.framing.capsule_cmd(sqe, len).as_slice().to_vec();
        bytes.extend_from_slice(data);
        if self.framing.digests.data && !data.is_empty() {
            bytes.extend_from_slice(&digest(0, data).to_le_bytes());
        }
        bytes
    }

    /// The bytes of data that the target asked for.
    pub(crate) fn data(&self, tags: (u16, u16), offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let len = u32::try_from(data.len()).unwrap();
        let mut bytes = self.framing.h2c_data(tags, offset, len, last).as_slice().to_vec();
        bytes.extend_from_slice(data);
        if self.framing.digests.data {
            bytes.extend_from_slice(&digest(0, data).to_le_bytes());
        }
        bytes
    }

    /// Gives a command the next id and sends it, without waiting.
    pub(crate) fn submit(&mut self, driver: &mut Driver, mut sqe: Sqe, data: &[u8]) -> u16 {
        self.next_cid += 1;
        sqe.cid = self.next_cid.into();
        driver.send(self.id, &self.capsule(&sqe, data));
        self.next_cid
    }

    /// Sends a command and waits for its end; answers requests for data.
    pub(crate) fn command(&mut self, driver: &mut Driver, sqe: Sqe, data: &[u8]) -> Done {
        let is_in_capsule = sqe.sgl.identifier == 0x01;
        let cid = self.submit(driver, sqe, if is_in_capsule { data } else { &[] });
        let mut done = Done { status: Status::SUCCESS, result: 0, data: Vec::new() };
        loop {
            let got = self.receive(driver);
            assert!(!got.is_empty(), "no answer to {sqe:?}");
            for got in got {
                match got {
                    Got::Ask { cid: of, tag, offset, len } if of == cid => {
                        let range = usize::try_from(offset).unwrap()..;
                        let part = &data[range][..usize::try_from(len).unwrap()];
                        driver.send(self.id, &self.data((cid, tag), offset, part, true));
                    }
                    Got::Data { cid: of, offset, data, last, .. } if of == cid => {
                        assert_eq!(usize::try_from(offset).unwrap(), done.data.len());
                        assert!(last);
                        done.data.extend(data);
                    }
                    Got::Response(cqe) if cqe.cid.get() == cid => {
                        (done.status, done.result) = (cqe.status(), cqe.result());
                        return done;
                    }
                    other => panic!("unexpected {other:?} for command {cid}"),
                }
            }
        }
    }

    /// Everything that the target has sent.
    pub(crate) fn receive(&mut self, driver: &mut Driver) -> Vec<Got> {
        self.inbox.extend(driver.take_sent(self.id));
        let mut all = Vec::new();
        while !self.inbox.is_empty() {
            let (count, received) = self.reader.feed(&self.inbox).expect("good framing");
            self.inbox.drain(..count);
            let Some(Received::Head(pdu)) = received else { break };
            all.push(match pdu {
                Pdu::IcResp(response) => Got::Setup(response),
                Pdu::Response(cqe) => Got::Response(cqe),
                Pdu::R2t(r2t) => Got::Ask {
                    cid: r2t.cccid.get(),
                    tag: r2t.ttag.get(),
                    offset: r2t.r2to.get(),
                    len: r2t.r2tl.get(),
                },
                Pdu::TermReq(term) => {
                    self.inbox.clear();
                    Got::Term { fes: term.fes.get(), fei: term.fei.get() }
                }
                Pdu::C2hData(head) => {
                    let len = usize::try_from(head.datal.get()).unwrap();
                    let data: Vec<u8> = self.inbox.drain(..len).collect();
                    self.reader.payload(&data);
                    if self.framing.digests.data {
                        let (count, received) = self.reader.feed(&self.inbox).unwrap();
                        assert_eq!(received, Some(Received::Payload { intact: true }));
                        self.inbox.drain(..count);
                    }
                    let (last, success) = (head.is_last(), head.is_success());
                    Got::Data {
                        cid: head.cccid.get(),
                        offset: head.datao.get(),
                        data,
                        last,
                        success,
                    }
                }
                other => panic!("{other:?} to a host"),
            });
        }
        all
    }

    /// The one thing that the target has sent, a termination.
    pub(crate) fn term(&mut self, driver: &mut Driver) -> (u16, u32) {
        let got = self.receive(driver);
        let [Got::Term { fes, fei }] = got.as_slice() else { panic!("{got:?}") };
        assert!(driver.is_closed(self.id));
        (*fes, *fei)
    }
}

pub(crate) fn admin(opcode: AdminOpcode) -> Sqe {
    Sqe::new(opcode.code(), 0)
}

/// An I/O command on namespace 1.
pub(crate) fn io(opcode: IoOpcode, slba: u64, blocks: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode.code(), 0);
    sqe.nsid = U32::new(1);
    sqe.set_slba(slba);
    sqe.cdw12 = U32::new(blocks - 1);
    let moves = matches!(opcode, IoOpcode::Read | IoOpcode::Write | IoOpcode::Compare);
    if moves {
        sqe.sgl = Sgl::transport(blocks * 4096);
    }
    sqe
}

/// The same with its data in the capsule.
pub(crate) fn in_capsule(mut sqe: Sqe, len: usize) -> Sqe {
    sqe.sgl = Sgl::in_capsule(u32::try_from(len).unwrap());
    sqe
}

pub(crate) fn identify(cns: u8, nsid: u32) -> Sqe {
    let mut sqe = admin(AdminOpcode::Identify);
    sqe.nsid = U32::new(nsid);
    sqe.cdw10 = U32::new(cns.into());
    sqe.sgl = Sgl::transport(4096);
    sqe
}

pub(crate) fn get_log(id: u8, len: u32, offset: u64, retain: bool) -> Sqe {
    let mut sqe = admin(AdminOpcode::GetLogPage);
    let dwords = len / 4 - 1;
    sqe.nsid = U32::new(u32::MAX);
    sqe.cdw10 = U32::new(u32::from(id) | u32::from(retain) << 15 | (dwords & 0xFFFF) << 16);
    sqe.cdw11 = U32::new(dwords >> 16);
    sqe.cdw12 = U32::new(u32::try_from(offset & 0xFFFF_FFFF).unwrap());
    sqe.cdw13 = U32::new(u32::try_from(offset >> 32).unwrap());
    sqe.sgl = Sgl::transport(len);
    sqe
}

pub(crate) fn feature(opcode: AdminOpcode, id: u8, value: u32) -> Sqe {
    let mut sqe = admin(opcode);
    sqe.cdw10 = U32::new(id.into());
    sqe.cdw11 = U32::new(value);
    sqe
}

/// Bytes that tell where they are.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251).unwrap() ^ seed).collect()
}
