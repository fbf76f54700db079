//! A target that says of its first commands that its path failed, and of its path that it is good.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use block::{BlockSize, Bytes, Geometry, IoError};
use nvme::target::{
    ConnId, Connection, ConnectionConfig, Event, Hosts, Limits, NamespaceConfig, NamespaceIds,
    Need, Payload, Reservations, Subsystem, SubsystemConfig, Transmit,
};
use nvme::time::Instant;

use crate::harness::nqn;

/// One subsystem, `a`, with a namespace of zeros.
pub(crate) struct Failing {
    subsystem: Subsystem,
    /// Commands that still have to fail.
    failures: u32,
}

/// Time stands still: nothing here depends on it.
const NOW: Instant = Instant::since_start(Duration::from_secs(1));

impl Failing {
    /// Serves until the process ends; the first `failures` I/O commands fail.
    pub(crate) fn start(failures: u32) -> SocketAddr {
        let mut subsystem = Subsystem::new(SubsystemConfig {
            nqn: nqn("a"),
            serial: "1".into(),
            model: "Failing".into(),
            firmware: "1".into(),
            cntlids: (1, 100),
            hosts: Hosts::Any,
            limits: Limits::default(),
        });
        let namespace = NamespaceConfig {
            ids: NamespaceIds { uuid: [1; 16], ..NamespaceIds::default() },
            geometry: Geometry::of_bytes(BlockSize::B4096, Bytes::mib(1)).unwrap(),
            ana_group: 1,
            read_only: false,
            write_cache: false,
            takes_messages: false,
            reservations: Reservations::default(),
            reservation_home: nvme::target::ReservationHome::default(),
        };
        subsystem.add_namespace(1, namespace).unwrap();
        let shared = Arc::new(Mutex::new(Failing { subsystem, failures }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (stream, number) in listener.incoming().zip(1..) {
                let shared = Arc::clone(&shared);
                let stream = stream.unwrap();
                std::thread::spawn(move || serve(stream, ConnId(number), &shared));
            }
        });
        address
    }

    /// Does what a connection asks for.
    fn work(&mut self, connection: &mut Connection) {
        if connection.need() == Need::Admission {
            connection.admit(&mut self.subsystem, NOW, None).unwrap();
        }
        while let Some(event) = connection.poll(&mut self.subsystem, NOW) {
            let Event::Io { slot, .. } = event else { panic!("only reads are expected") };
            let completion = match self.failures.checked_sub(1) {
                Some(left) => {
                    self.failures = left;
                    Err(IoError::Unreachable)
                }
                None => Ok(()),
            };
            connection.complete(slot, completion);
        }
    }
}

/// Serves one connection until the host ends it.
fn serve(mut stream: TcpStream, id: ConnId, shared: &Mutex<Failing>) {
    let mut connection = Connection::new(id, ConnectionConfig::default(), NOW);
    let mut inbox = [0; 4096];
    while let Ok(count) = stream.read(&mut inbox)
        && count > 0
    {
        let mut bytes = &inbox[..count];
        while !bytes.is_empty() {
            bytes = &bytes[connection.feed(bytes)..];
            shared.lock().unwrap().work(&mut connection);
        }
        while let Some(transmit) = connection.poll_transmit() {
            if stream.write_all(&assemble(&transmit)).is_err() {
                return;
            }
        }
    }
}

fn assemble(transmit: &Transmit) -> Vec<u8> {
    let payload = match &transmit.payload {
        Payload::None => Vec::new(),
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Slot { len, .. } => vec![0; usize::try_from(*len).unwrap()],
    };
    let tail = transmit.seal(&payload);
    [transmit.head.as_slice(), &payload, tail.as_slice()].concat()
}
