//! What is on a volume and on its copies, compared to the last byte.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use block::{Blocks, Command, Lba, Span};
use engine::client::{Happened, Request, Session};
use engine::device::Data;
use model::Nqn;
use nvme::initiator::Options;

use crate::fleet::{self, Fleet};

/// An epoch that is higher than those of any target.
const LATER: u64 = 1000;
/// Blocks read at once.
const AT_ONCE: u64 = 64;

/// Connects a host to a volume or a replica.
pub fn connect(address: SocketAddr, names: (&str, &str)) -> Result<Session> {
    fleet::connect(address, names, Options::default())
}

/// Reads everything: the sums of its parts.
pub fn sum(session: &mut Session, bytes: u64) -> Result<Vec<u32>> {
    let mut sums = Vec::new();
    for start in (0..bytes / 4096).step_by(usize::try_from(AT_ONCE)?) {
        let blocks = AT_ONCE.min(bytes / 4096 - start);
        let span = Span::new(Lba(start), Blocks(blocks)).context("an odd span")?;
        let buffer = session.take(usize::try_from(blocks * 4096)?).context("no buffer")?;
        let command = Command::Read { span };
        let request = Request { tag: start, nsid: 1, command, data: Data::Fill(buffer) };
        ensure!(session.submit(request).is_ok(), "the connection is lost");
        let read = loop {
            match session.wait()? {
                Happened::Done { result, data: Data::Fill(read), .. } => {
                    result.with_context(|| format!("cannot read {span:?}"))?;
                    break read;
                }
                Happened::Done { result, .. } => bail!("{span:?}: {result:?}"),
                Happened::Lost { why } => bail!("{why}"),
                _ => {}
            }
        };
        sums.push(nvme::pdu::digest(0, &read));
    }
    Ok(sums)
}

/// Whether all copies of a volume that has no target are equal.
pub fn compare(fleet: &Fleet, host: &str, bytes: u64) -> Result<()> {
    let mut first: Option<Vec<u32>> = None;
    for machine in &fleet.machines {
        let name = Nqn::replica(machine.replica);
        let mut session = connect(machine.listen(), (host, name.as_str()))?;
        fleet::hold(&mut session, LATER)?;
        let found = sum(&mut session, bytes).with_context(|| format!("on {}", machine.name))?;
        let wanted = first.get_or_insert_with(|| found.clone());
        let differs = wanted.iter().zip(&found).position(|(one, other)| one != other);
        if let Some(part) = differs {
            bail!("the copy on {} differs from block {} on", machine.name, part * 64);
        }
    }
    Ok(())
}
