//! Hosts of volumes, and those who speak to a copy as a target does.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use engine::client::Session;
use model::{Nqn, ReplicaId};
use nvme::auth::Accepted;
use nvme::initiator::{Association, Host, Key, Options, Reservation};
use nvme::wire::{AcquireAction, RegisterAction, ReservationType};

use super::Protection;

/// Connects a host to a subsystem.
pub fn connect(
    address: SocketAddr,
    (host, subsystem): (&str, &str),
    options: Options,
) -> Result<Session> {
    let association = Association {
        host: Host { nqn: nvme::wire::Nqn::new(host)?, id: [7; 16] },
        subsystem: nvme::wire::Nqn::new(subsystem)?,
        keys: None,
        accepted: Accepted::default(),
        options,
    };
    Ok(Session::connect(address, association)?)
}

/// Connects to a copy of a volume as an engine of the cluster.
pub fn connect_replica(
    address: SocketAddr,
    (host, replica): (&str, ReplicaId),
    protection: Protection,
    options: Options,
) -> Result<Session> {
    let host = Host { nqn: nvme::wire::Nqn::new(host)?, id: [7; 16] };
    let subsystem = nvme::wire::Nqn::new(Nqn::replica(replica).as_str())?;
    let association = protection.replication()?.association(host, subsystem, options);
    Ok(Session::connect(address, association)?)
}

/// Takes a copy of a volume as a target of this epoch would.
pub fn hold(session: &mut Session, epoch: u64) -> Result<()> {
    let (none, key, kind) = (Key(0), Key(epoch), ReservationType::ExclusiveAccess);
    let action = RegisterAction::Replace;
    let register = Reservation::Register { action, current: none, new: key, force: true };
    session.reserve(1, register)?;
    let report = session.reserve(1, Reservation::Report)?.context("no report")?;
    let acquire = |action, preempt| Reservation::Acquire { action, kind, current: key, preempt };
    let others: BTreeSet<Key> = report.registrants.iter().map(|one| one.key).collect();
    for other in others.into_iter().filter(|other| *other != key) {
        session.reserve(1, acquire(AcquireAction::PreemptAndAbort, other))?;
    }
    session.reserve(1, acquire(AcquireAction::Acquire, none))?;
    Ok(())
}
