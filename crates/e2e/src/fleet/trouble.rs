//! Disks that are filled and spoiled, what is told of it, and whether copies are equal afterwards.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use api::node::{DeleteReplica, Node as _};
use api::{StreamItem, Subscription};
use block::{Blocks, Command, Lba, Span};
use engine::client::{ControllerEvent, Request, Session};
use engine::device::Data;
use model::{Event, EventName, Generation, PoolName, ProblemKind, ReplicaId, ReplicaSpec, Size};
use nvme::initiator::Options;

use super::{Fleet, connect_replica, hold, id, in_words};
use crate::process::PATIENCE;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Blocks that are read at once.
const CHUNK: u64 = 32;
/// Bytes of a disk that are looked through at once; its size is a multiple.
const PIECE: usize = 1 << 20;
/// Higher than any epoch of a target here.
const NOBODYS_EPOCH: u64 = 1000;

/// The replica of another volume that takes the room.
fn hog() -> Result<ReplicaId> {
    id(29)
}

impl Fleet {
    /// Promises the pool of a node to another volume, all but this much and what is less than a
    /// MiB.
    pub async fn fill(&self, nth: usize, left: Size) -> Result<()> {
        let (remote, pool): (_, PoolName) = (self.remote(nth)?, "tank".parse()?);
        let found = remote.pool(pool.clone()).await.map_err(|problem| in_words(&problem))?.status;
        let free = (found.capacity.bytes().0).saturating_sub(found.used.bytes().0 + left.bytes().0);
        // A pool keeps some of what is free for itself.
        for (generation, mib) in (1..).zip((1..=free >> 20).rev()) {
            let spec = ReplicaSpec {
                volume: id(11)?,
                pool: pool.clone(),
                size: Size::mib(u32::try_from(mib)?),
                thin: false,
                source: None,
                encryption: None,
                hosts: [].into(),
            };
            match remote.put_replica(hog()?, Fleet::order(generation, spec)?).await {
                Err(problem) if problem.kind == ProblemKind::NoSpace => {}
                answer => return answer.map(drop).map_err(|problem| in_words(&problem)),
            }
        }
        bail!("the pool of node {nth} has no room at all")
    }

    /// Gives the room back.
    pub async fn make_room(&self, nth: usize) -> Result<()> {
        let generation = Generation::new(1 << 20).context("generations begin at 1")?;
        let order = DeleteReplica { generation, pool: "tank".parse()? };
        let deleted = self.remote(nth)?.delete_replica(hog()?, order).await;
        ensure!(deleted.map_err(|problem| in_words(&problem))?.existed, "there was room");
        Ok(())
    }

    /// All copies hold the same in their first blocks, and all of it can be read; no target is
    /// open.
    pub fn copies_agree(&self, blocks: u64) -> Result<()> {
        // None promises to be heard of while another is read.
        let options = Options { keep_alive: Duration::ZERO, ..Options::default() };
        let mut all = Vec::new();
        for (_, machine) in self.holders() {
            let names = (self.host.as_str(), machine.replica);
            let mut session =
                connect_replica(machine.listen(), names, machine.protection, options)?;
            hold(&mut session, NOBODYS_EPOCH)?;
            all.push((&machine.name, session));
        }
        for start in (0..blocks).step_by(usize::try_from(CHUNK)?) {
            let span = Span::new(Lba(start), Blocks(CHUNK.min(blocks - start)))
                .context("no room for these blocks")?;
            let mut first = None;
            for (name, session) in &mut all {
                let found = read(session, span).with_context(|| format!("{span:?} of {name}"))?;
                let expected = first.get_or_insert_with(|| found.clone());
                let differs = found.chunks(BLOCK).zip(expected.chunks(BLOCK)).zip(start..);
                let block =
                    differs.filter(|((found, first), _)| found != first).map(|(_, nth)| nth);
                let blocks: Vec<u64> = block.collect();
                ensure!(blocks.is_empty(), "{name} has something else in blocks {blocks:?}");
            }
        }
        Ok(())
    }
}

fn read(session: &mut Session, span: Span) -> Result<Vec<u8>> {
    let bytes = usize::try_from(span.len().0)? * BLOCK;
    let buffer = session.take(bytes).context("no buffer")?;
    let command = Command::Read { span };
    let request = Request { tag: 1, nsid: 1, command, data: Data::Fill(buffer) };
    ensure!(session.submit(request).is_ok(), "the connection is lost");
    loop {
        match session.wait()? {
            ControllerEvent::Done { result, data: Data::Fill(bytes), .. } => {
                result.map_err(|fault| anyhow!("{fault}"))?;
                return Ok(bytes.to_vec());
            }
            ControllerEvent::Lost { why } => bail!("the connection is lost: {why}"),
            _ => {}
        }
    }
}

/// Spoils up to so many of the blocks of a disk that are meant, behind the back of its pool. How
/// many.
pub fn damage(disk: &Path, most: usize, is_meant: impl Fn(&[u8]) -> bool) -> Result<usize> {
    let file = std::fs::File::options().read(true).write(true).open(disk);
    let file = file.with_context(|| format!("cannot open {}", disk.display()))?;
    let (mut bytes, mut damaged) = (vec![0; PIECE], 0);
    for start in (0..file.metadata()?.len()).step_by(PIECE) {
        file.read_exact_at(&mut bytes, start)?;
        let blocks = (start..).step_by(BLOCK).zip(bytes.chunks_exact(BLOCK));
        for (at, _) in blocks.filter(|(_, found)| is_meant(found)).take(most - damaged) {
            file.write_all_at(&[0x5A; 64], at + 100)?;
            damaged += 1;
        }
    }
    file.sync_all()?;
    Ok(damaged)
}

/// Waits until something that is meant is told.
pub async fn told(
    events: &mut Subscription<Event>,
    is_meant: impl Fn(&Event) -> bool,
) -> Result<Event> {
    let mut others = Vec::new();
    let telling = async {
        loop {
            let seen = events.next().await?;
            let Some(StreamItem::Event(event)) = seen else { bail!("missed: {seen:?}") };
            if is_meant(&event) {
                return Ok(event);
            }
            others.push(event.message);
        }
    };
    match tokio::time::timeout(PATIENCE * 2, telling).await {
        Ok(outcome) => outcome,
        Err(_) => bail!("it was never told, only {others:#?}"),
    }
}

/// Waits until it was told that so many bad blocks were rewritten.
pub async fn repaired(events: &mut Subscription<Event>, blocks: usize) -> Result<()> {
    let mut seen = 0;
    while seen < blocks {
        let repaired = told(events, |event| event.name == EventName::Corrupted).await;
        let event = repaired.with_context(|| format!("{seen} of {blocks} bad blocks were told"))?;
        let count = event.message.split(' ').next().and_then(|count| count.parse::<usize>().ok());
        seen += count.with_context(|| format!("no count in {:?}", event.message))?;
    }
    Ok(())
}
