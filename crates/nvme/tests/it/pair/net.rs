//! Hosts and targets in one thread, with a network between them that cuts streams anywhere, lets
//! one connection overtake another, and loses connections.

use std::collections::VecDeque;
use std::time::Duration;

use block::{BlockSize, Blocks, Geometry};
use nvme::auth::{Accepted, ControllerSide, Entropy, Keys, Names, Sequence};
use nvme::initiator::{
    Admin, AdminEvent, Association, ControllerInfo, Host, IoEvent, IoQueue, Namespace, Need,
    Options, Payload, Transmit,
};
use nvme::target::testing::Driver;
use nvme::target::{
    ConnId, ConnectionConfig, Hosts, Limits, NamespaceConfig, NamespaceIds, Reservations,
    Subsystem, SubsystemConfig,
};
use nvme::time::Instant;
use nvme::wire::Nqn;

pub(super) const SUBSYSTEM: &str = "nqn.2026-01.io.holdfast:pair";
pub(super) const BLOCK: usize = 4096;
/// Room of a slot: more than the largest command here.
const BUFFER: usize = 1 << 19;

/// Chance from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    pub(super) fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(u64::try_from(limit).unwrap())).unwrap()
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How many seeds to run: more in the deep lane.
pub(super) fn seeds(quick: u64) -> std::ops::Range<u64> {
    let more = std::env::var("HOLDFAST_SEEDS").ok().and_then(|n| n.parse().ok());
    0..more.unwrap_or(quick)
}

/// A host's end of a connection.
pub(super) enum End {
    Admin(Box<Admin>),
    Io(Box<IoQueue>),
}

/// Something a host was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Admin(AdminEvent),
    Io(IoEvent),
}

pub(super) struct Link {
    pub(super) node: usize,
    pub(super) conn: ConnId,
    pub(super) end: End,
    pub(super) buffers: Vec<Vec<u8>>,
    up: VecDeque<u8>,
    down: VecDeque<u8>,
    /// The host knows that the socket is closed.
    pub(super) over: bool,
}

/// Nodes with targets, and hosts connected to them.
pub(super) struct Net {
    pub(super) dice: Dice,
    pub(super) nodes: Vec<Driver>,
    pub(super) links: Vec<Link>,
    pub(super) now: Instant,
    /// Links whose bytes do not move and whose ends are not noticed.
    pub(super) stalled: Vec<usize>,
    /// A disk that every node serves as namespace 1; whichever node is at work has it.
    pub(super) shared: Option<Vec<u8>>,
    sequence: Sequence,
}

impl Net {
    pub(super) fn new(seed: u64) -> Net {
        let now = Instant::default();
        Net {
            dice: Dice::new(seed),
            nodes: Vec::new(),
            links: Vec::new(),
            now,
            stalled: Vec::new(),
            shared: None,
            sequence: Sequence::starting_at(99),
        }
    }

    pub(super) fn add_node(&mut self, subsystem: Subsystem, config: ConnectionConfig) -> usize {
        self.nodes.push(Driver::new(subsystem, config));
        self.nodes.len() - 1
    }

    fn add_link(&mut self, node: usize, end: End, slots: usize) -> usize {
        let conn = self.nodes[node].open();
        let buffers = vec![vec![0; BUFFER]; slots];
        let (up, down) = (VecDeque::new(), VecDeque::new());
        self.links.push(Link { node, conn, end, buffers, up, down, over: false });
        self.links.len() - 1
    }

    pub(super) fn connect_admin(&mut self, node: usize, association: &Association) -> usize {
        let mut admin = Box::new(Admin::new(association.clone()));
        admin.start(self.now);
        self.add_link(node, End::Admin(admin), 0)
    }

    pub(super) fn connect_io(
        &mut self,
        node: usize,
        association: &Association,
        controller: &ControllerInfo,
        qid: u16,
    ) -> usize {
        let mut io = Box::new(IoQueue::new(association.clone(), controller, qid));
        io.start(self.now);
        let slots = io.slots();
        self.add_link(node, End::Io(io), slots.into())
    }

    pub(super) fn io(&mut self, link: usize) -> &mut IoQueue {
        match &mut self.links[link].end {
            End::Io(io) => io,
            End::Admin(_) => panic!("link {link} is an admin queue"),
        }
    }

    pub(super) fn admin(&mut self, link: usize) -> &mut Admin {
        match &mut self.links[link].end {
            End::Admin(admin) => admin,
            End::Io(_) => panic!("link {link} is an I/O queue"),
        }
    }

    /// The network loses a connection, with whatever is on its way.
    pub(super) fn cut(&mut self, link: usize) {
        let Link { node, conn, .. } = self.links[link];
        self.links[link].up.clear();
        self.links[link].down.clear();
        self.nodes[node].close(conn);
        self.nodes[node].take_sent(conn);
    }

    /// Time passes everywhere.
    pub(super) fn advance(&mut self, by: Duration) {
        self.now = self.now.after(by);
        for node in 0..self.nodes.len() {
            self.at(node, |node| node.advance(by));
        }
        for link in &mut self.links {
            match &mut link.end {
                End::Admin(admin) => admin.handle_timeout(self.now),
                End::Io(io) => io.handle_timeout(self.now),
            }
        }
    }

    /// Moves some bytes of some connection; tells what came of it. Nothing moved: `None`.
    pub(super) fn step(&mut self) -> Option<Vec<(usize, Told)>> {
        let mut told = Vec::new();
        for at in 0..self.links.len() {
            self.collect(at);
            told.extend(self.poll(at));
            self.collect(at);
        }
        let busy: Vec<usize> = (0..self.links.len())
            .filter(|at| !self.stalled.contains(at))
            .filter(|at| !self.links[*at].up.is_empty() || !self.links[*at].down.is_empty())
            .collect();
        if busy.is_empty() {
            return if told.is_empty() { None } else { Some(told) };
        }
        let at = busy[self.dice.index(busy.len())];
        let most = [7, 100, 5000, 1 << 20][self.dice.index(4)];
        let count = 1 + self.dice.index(most);
        let upwards = !self.links[at].up.is_empty()
            && (self.links[at].down.is_empty() || self.dice.one_in(2));
        if upwards {
            let link = &mut self.links[at];
            let count = count.min(link.up.len());
            let bytes: Vec<u8> = link.up.drain(..count).collect();
            let (node, conn) = (link.node, link.conn);
            self.at(node, |node| node.send(conn, &bytes));
        } else {
            self.deliver(at, count);
        }
        Some(told)
    }

    /// Does something at a node while it has the shared disk.
    pub(super) fn at(&mut self, node: usize, act: impl FnOnce(&mut Driver)) {
        let node = &mut self.nodes[node];
        if let Some(disk) = self.shared.take() {
            node.disks.insert(1, disk);
            act(node);
            self.shared = node.disks.remove(&1);
        } else {
            act(node);
        }
    }

    /// Runs until nothing moves any more.
    pub(super) fn settle(&mut self) -> Vec<(usize, Told)> {
        let mut told = Vec::new();
        while let Some(more) = self.step() {
            told.extend(more);
        }
        told
    }

    /// Takes what either side has to send.
    fn collect(&mut self, at: usize) {
        let link = &mut self.links[at];
        let node = &mut self.nodes[link.node];
        link.down.extend(node.take_sent(link.conn));
        loop {
            let transmit = match &mut link.end {
                End::Admin(admin) => admin.poll_transmit(),
                End::Io(io) => io.poll_transmit(),
            };
            let Some(transmit) = transmit else { break };
            link.up.extend(bytes_of(&transmit, &link.buffers));
        }
        let heard = !self.stalled.contains(&at);
        if heard && node.is_closed(link.conn) && link.down.is_empty() && !link.over {
            link.up.clear();
            link.over = true;
            match &mut link.end {
                End::Admin(admin) => admin.close(),
                End::Io(io) => io.close(),
            }
        }
        let ended = match &mut link.end {
            End::Admin(admin) => admin.need() == Need::Nothing,
            End::Io(io) => io.need() == Need::Nothing,
        };
        if heard && ended && !link.over {
            link.over = true;
            link.down.clear();
            let rest: Vec<u8> = link.up.drain(..).collect();
            node.send(link.conn, &rest);
            node.close(link.conn);
        }
    }

    fn deliver(&mut self, at: usize, count: usize) {
        let link = &mut self.links[at];
        let count = count.min(link.down.len());
        let bytes: Vec<u8> = link.down.drain(..count).collect();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let need = match &mut link.end {
                End::Admin(admin) => admin.need(),
                End::Io(io) => io.need(),
            };
            let used = match (need, &mut link.end) {
                (Need::Nothing, _) => rest.len(),
                (Need::Bytes, End::Admin(admin)) => admin.feed(rest),
                (Need::Bytes, End::Io(io)) => io.feed(rest),
                (Need::Payload { slot, offset, len }, End::Io(io)) => {
                    let count = rest.len().min(usize::try_from(len).unwrap());
                    let at = usize::try_from(offset).unwrap();
                    let (part, _) = rest.split_at(count);
                    link.buffers[usize::from(slot)][at..at + count].copy_from_slice(part);
                    io.placed(part);
                    count
                }
                (Need::Payload { .. }, End::Admin(_)) => panic!("an admin queue has no buffers"),
            };
            rest = &rest[used..];
        }
    }

    fn poll(&mut self, at: usize) -> Vec<(usize, Told)> {
        let mut told = Vec::new();
        loop {
            let now = self.now;
            let event = match &mut self.links[at].end {
                End::Admin(admin) => admin.poll(now).map(Told::Admin),
                End::Io(io) => io.poll(now).map(Told::Io),
            };
            match event {
                None => return told,
                Some(Told::Admin(AdminEvent::Entropy) | Told::Io(IoEvent::Entropy)) => {
                    let entropy = self.entropy();
                    match &mut self.links[at].end {
                        End::Admin(admin) => admin.authenticate(now, entropy),
                        End::Io(io) => io.authenticate(now, entropy),
                    }
                }
                Some(event) => told.push((at, event)),
            }
        }
    }

    fn entropy(&mut self) -> Entropy {
        let mut random = [0; Entropy::LEN];
        for byte in &mut random {
            *byte = u8::try_from(self.dice.below(256)).unwrap();
        }
        Entropy::new(&mut random, self.sequence.advance())
    }

    /// Brings a controller up; panics if that does not work.
    pub(super) fn bring_up(
        &mut self,
        node: usize,
        association: &Association,
    ) -> (usize, ControllerInfo, Vec<Namespace>) {
        let admin = self.connect_admin(node, association);
        let told = self.settle();
        let ready = told.into_iter().find_map(|(at, event)| match event {
            Told::Admin(AdminEvent::Ready { controller, namespaces, .. }) if at == admin => {
                Some((controller, namespaces))
            }
            Told::Admin(other) if at == admin => panic!("not ready but {other:?}"),
            _ => None,
        });
        let (controller, namespaces) = ready.expect("nothing was heard of the controller");
        (admin, controller, namespaces)
    }
}

fn bytes_of(transmit: &Transmit, buffers: &[Vec<u8>]) -> Vec<u8> {
    let payload: &[u8] = match &transmit.payload {
        Payload::None => &[],
        Payload::Owned(bytes) => bytes,
        Payload::Slot { slot, offset, len } => {
            let at = usize::try_from(*offset).unwrap();
            &buffers[usize::from(*slot)][at..at + usize::try_from(*len).unwrap()]
        }
    };
    [transmit.head.as_slice(), payload, transmit.tail([payload]).as_slice()].concat()
}

pub(super) fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

/// A subsystem with one namespace of `blocks` blocks, on the node with this number.
pub(super) fn subsystem(node: u16, blocks: u64) -> Subsystem {
    let mut subsystem = Subsystem::new(config(SUBSYSTEM, node));
    subsystem.add_namespace(1, namespace(blocks)).unwrap();
    subsystem
}

pub(super) fn config(name: &str, node: u16) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn(name),
        serial: "HF0001".into(),
        model: "Holdfast".into(),
        firmware: "1".into(),
        cntlids: (node * 1000 + 1, node * 1000 + 1000),
        hosts: Hosts::Any,
        limits: Limits::default(),
    }
}

pub(super) fn namespace(blocks: u64) -> NamespaceConfig {
    NamespaceConfig {
        ids: NamespaceIds { uuid: [0xAB; 16], nguid: [0xCD; 16], eui64: [0; 8] },
        geometry: Geometry::new(BlockSize::B4096, Blocks(blocks)).unwrap(),
        ana_group: 1,
        read_only: false,
        write_cache: true,
        takes_messages: false,
        reservations: Reservations::default(),
        reservation_home: nvme::target::ReservationHome::default(),
    }
}

/// A host with this number.
pub(super) fn host(number: u8) -> Association {
    Association {
        host: Host {
            nqn: nqn(&format!("nqn.2026-01.io.holdfast:host-{number}")),
            id: [number; 16],
        },
        subsystem: nqn(SUBSYSTEM),
        keys: None,
        accepted: Accepted::default(),
        options: Options { queue_entries: 16, ..Options::default() },
    }
}

/// Makes a node ask every host for this secret.
pub(super) fn demand(driver: &mut Driver, keys: Keys, accepted: Accepted) {
    driver.authentication = Some(Box::new(move |request| {
        let names =
            Names { host: request.host.as_str().to_string(), subsystem: SUBSYSTEM.to_string() };
        Some(ControllerSide::new(names, keys.clone(), accepted.clone()))
    }));
}
