//! Every trouble that copies of a volume may get into.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use api::node::{Node as _, Numbered, SnapshotWish};
use e2e::fleet::{Fleet, id};
use e2e::process::PATIENCE;
use model::{
    ChildState, Consistency, EventName, FaultReason, Generation, Order, Problem, ReplicaId,
    ReplicaSpec, Size, SnapshotId, TargetId, Timestamp,
};
use rustix::process::Signal;
use tokio::time::Instant;

use crate::lab::Trouble;
use crate::mirrored::LAST;

/// A volume that is to get into trouble.
pub(crate) struct Troubled<'a> {
    pub(crate) fleet: &'a mut Fleet,
    pub(crate) target: TargetId,
    pub(crate) on: usize,
}

impl Troubled<'_> {
    /// Gets into it, and out of it again.
    pub(crate) async fn meet(&mut self, trouble: Trouble) -> Result<()> {
        match trouble {
            Trouble::Hang => self.hang().await?,
            Trouble::CutOff => self.cut_off().await?,
            Trouble::Full => self.fill().await?,
            Trouble::Spoilt => self.spoil().await?,
            Trouble::Moved => self.move_away().await?,
        }
        self.fleet.until_open(self.target, self.on).await
    }

    async fn hang(&self) -> Result<()> {
        let program = &self.fleet.machine(LAST)?.engine()?.program;
        program.signal(Signal::STOP)?;
        let lost = self.fleet.until_lost((self.target, self.on), LAST).await;
        program.signal(Signal::CONT)?;
        lost
    }

    async fn cut_off(&self) -> Result<()> {
        let network = self.fleet.machine(LAST)?.network.as_ref().context("it has a cable")?;
        network.cut()?;
        let lost = self.fleet.until_lost((self.target, self.on), LAST).await;
        network.mend()?;
        lost
    }

    /// After a snapshot every write needs space, and nearly all of it is promised to another.
    async fn fill(&self) -> Result<()> {
        let machine = self.fleet.machine(LAST)?;
        let (remote, replica) = (&machine.engine()?.remote, machine.replica);
        let (hog, snapshot): (ReplicaId, SnapshotId) = (id(29)?, id(30)?);
        let wish = SnapshotWish {
            group: None,
            taken_at: Timestamp::from_millis(1),
            consistency: Consistency::Crash,
        };
        remote.put_snapshot(replica, snapshot, wish).await.map_err(in_words)?;
        let pool = remote.pool("tank".parse()?).await.map_err(in_words)?.status;
        let left = (pool.capacity.bytes().0 - pool.used.bytes().0) >> 20;
        let spec = remote.replica(replica).await.map_err(in_words)?.spec;
        let size = Size::mib(u32::try_from(left - 16)?);
        let spec = ReplicaSpec { volume: id(11)?, size, thin: false, hosts: [].into(), ..spec };
        remote
            .put_replica(hog, Order { generation: generation(1)?, spec })
            .await
            .map_err(in_words)?;
        let is_full = |state| state == ChildState::Faulted { reason: FaultReason::NoSpace };
        self.fleet.until_child((self.target, self.on), LAST, is_full).await?;
        let numbered = Numbered { generation: generation(2)? };
        remote.delete_replica(hog, numbered).await.map_err(in_words)?;
        remote.delete_snapshot(replica, snapshot).await.map_err(in_words)?;
        Ok(())
    }

    /// Until a host has read something that is wrong. What it writes anew is right again.
    async fn spoil(&self) -> Result<()> {
        let machine = self.fleet.machine(self.on)?;
        let mut events = machine.engine()?.remote.events(None).await?;
        let until = Instant::now() + PATIENCE * 2;
        let mut spoilt = 0;
        while Instant::now() < until {
            spoilt += spoil_some(&machine.disk)?;
            let soon = Instant::now() + PATIENCE / 10;
            while let Ok(seen) = tokio::time::timeout_at(soon, events.next()).await {
                match seen? {
                    Some(api::Seen::Event(event)) if event.name == EventName::Corrupted => {
                        return Ok(());
                    }
                    Some(_) => {}
                    None => bail!("the engine tells nothing more"),
                }
            }
        }
        bail!("{spoilt} blocks were spoilt, and nobody noticed")
    }

    async fn move_away(&mut self) -> Result<()> {
        let (from, to) = (self.on, 1);
        ensure!(from != to, "it has moved already");
        self.fleet.machines.get_mut(from).context("the node of the target")?.kill()?;
        (self.target, self.on) = (id(41)?, to);
        self.fleet.open(self.target, to).await?;
        self.fleet.restart(from).await
    }
}

/// Spoils blocks that fio wrote, each as it was at this moment. How many.
fn spoil_some(disk: &Path) -> Result<usize> {
    /// Of fio's header of a block, with its length.
    const MAGIC: [u8; 2] = 0xacca_u16.to_le_bytes();
    let bytes = std::fs::read(disk)?;
    let file = std::fs::File::options().write(true).open(disk)?;
    let mut spoilt = 0;
    for (at, found) in (0_u64..).step_by(4096).zip(bytes.chunks_exact(4096)) {
        let is_fios = found.starts_with(&MAGIC) && found.get(4..8) == Some(&[0, 0x10, 0, 0]);
        if is_fios && spoilt < 100 {
            file.write_all_at(&[0x5A; 64], at + 1000)?;
            spoilt += 1;
        }
    }
    file.sync_all()?;
    Ok(spoilt)
}

fn generation(number: u64) -> Result<Generation> {
    Generation::new(number).context("generations begin at 1")
}

fn in_words(problem: Problem) -> anyhow::Error {
    anyhow::anyhow!("{problem}")
}
