//! `holdfast volume check`: every copy is read, and compared with the others.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::node::{BlockRange, CheckReport, CheckRequest, JobControl};
use api::rest::{Control, Remote};
use clap::Args;
use model::{Progress, ReplicaId, Size, VolumeId};

use super::create::agreed;
use super::out::Out;
use super::progress::ProgressBar;
use super::reference::VolumeReference;
use super::replica;

/// Blocks that are checked at once.
const STEP: u64 = 4096;
/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Most ranges that are named; all are counted.
const NAMED: usize = 32;

/// What to check, and what may be done about it.
#[derive(Args)]
pub(crate) struct Check {
    volume: VolumeReference,
    /// Compare all copies with each other, block by block; without it each copy is scrubbed
    #[arg(long)]
    compare: bool,
    /// Where intact copies differ, this one is right: the others get its content
    #[arg(long, value_name = "REPLICA", requires = "compare")]
    believe: Option<ReplicaId>,
    /// Blocks that no copy can give become zeroes, so that the rest can be read and rebuilt; what
    /// they held is lost
    #[arg(long, requires = "compare")]
    accept_loss: bool,
    /// Blocks that no copy can give are kept as this copy holds them, although their checksum is
    /// wrong, and the other copies get that: what hosts wrote last, or something else
    #[arg(long, value_name = "REPLICA", requires = "compare", conflicts_with = "accept_loss")]
    keep: Option<ReplicaId>,
    /// Yes, lose what no copy can give, or what copies that are not believed hold
    #[arg(long)]
    yes: bool,
    /// At most so many bytes of the volume a second
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Size>,
}

impl Check {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        if self.accept_loss || self.keep.is_some() || self.believe.is_some() {
            agreed(self.yes, "content of blocks is replaced for good")?;
        }
        let volume = self.volume.clone().find(remote).await?;
        if self.compare {
            self.compared(volume, remote, out).await
        } else {
            self.scrubbed(volume, remote, out).await
        }
    }

    /// Scrubs all copies, one after the other.
    async fn scrubbed(self, volume: VolumeId, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let status = remote.volume(volume).await?.status.context("nothing is known of it")?;
        for copy in status.replicas.into_keys() {
            let pace = JobControl { bytes_per_second: self.bandwidth, ..JobControl::default() };
            remote.put_scrub(copy, pace).await?;
            replica::scrubbed(remote, copy, out).await?;
        }
        Ok(())
    }

    /// Has the target compare its copies, a part after the other.
    async fn compared(self, volume: VolumeId, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let size = remote.volume(volume).await?.spec().size;
        let total = size.bytes().0 / BLOCK;
        let mut report = CheckReport::default();
        let mut bar = ProgressBar::new("check");
        for first_block in (0..total).step_by(usize::try_from(STEP)?) {
            let blocks = STEP.min(total - first_block);
            let done = Size::from(block::Bytes(first_block * BLOCK));
            bar.bytes(Progress { total: size, done, copied: Size::ZERO });
            let (believe, accept_loss) = (self.believe, self.accept_loss);
            let keep = self.keep;
            let request = CheckRequest { first_block, blocks, believe, accept_loss, keep };
            let pause = self.bandwidth.map(|rate| time_for(blocks * BLOCK, rate));
            let part = remote.check_volume(volume, request);
            let (part, ()) = tokio::join!(part, tokio::time::sleep(pause.unwrap_or_default()));
            let part = part?;
            report.bad_blocks += part.bad_blocks;
            report.repaired_blocks += part.repaired_blocks;
            report.unreadable.extend(part.unreadable);
            report.differing.extend(part.differing);
        }
        bar.end();
        let is_mended = report.unreadable.is_empty() || self.accept_loss || self.keep.is_some();
        let is_equal = report.differing.is_empty() || self.believe.is_some();
        out.done(&self.in_words(volume, &report), &report)?;
        ensure!(is_mended && is_equal, "volume {volume} is not whole");
        Ok(())
    }

    fn in_words(&self, volume: VolumeId, report: &CheckReport) -> String {
        let CheckReport { bad_blocks, repaired_blocks, unreadable, differing } = report;
        let mut text =
            format!("volume {volume}: {}, {repaired_blocks} repaired", counted(*bad_blocks, "bad"));
        // Writing to a string cannot fail.
        if !unreadable.is_empty() {
            let lost = match (self.accept_loss, self.keep) {
                (true, _) => "lost; they are zeroes now".to_owned(),
                (false, Some(replica)) => format!("kept as replica {replica} holds them"),
                (false, None) => "no copy can give; restore them, give them up with \
                                  --accept-loss --yes, or keep what a copy holds there with \
                                  --keep REPLICA --yes"
                    .to_owned(),
            };
            let places = unreadable.iter().copied();
            let _ = write!(text, "\n{lost}: {}", named(places));
        }
        if !differing.is_empty() {
            let what = match self.believe {
                Some(replica) => format!("differed; they are now as on replica {replica}"),
                None => "intact and different; choose the copy that is right with --believe \
                         REPLICA --yes"
                    .to_owned(),
            };
            let places = differing.iter().map(|one| one.range);
            let _ = write!(text, "\n{what}: {}", named(places));
        }
        text
    }
}

fn time_for(bytes: u64, rate: Size) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.bytes().0.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what} {}", if count == 1 { "block" } else { "blocks" })
}

/// How many blocks, and the numbers of the first.
fn named(ranges: impl Iterator<Item = BlockRange> + Clone) -> String {
    let total: u64 = ranges.clone().map(|range| range.blocks).sum();
    let first = ranges.clone().take(NAMED).map(|range| match range.blocks {
        1 => range.first_block.to_string(),
        blocks => format!("{}-{}", range.first_block, range.first_block + blocks - 1),
    });
    let more = if ranges.count() > NAMED { ", ..." } else { "" };
    let first: Vec<String> = first.collect();
    let noun = if total == 1 { "block" } else { "blocks" };
    format!("{total} {noun} ({}{more})", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted_whole_and_named_in_part() {
        let range = |first_block, blocks| BlockRange { first_block, blocks };
        assert_eq!(named([range(7, 1)].into_iter()), "1 block (7)");
        assert_eq!(named([range(7, 1), range(9, 3)].into_iter()), "4 blocks (7, 9-11)");
        let many: Vec<_> = (0..100).map(|at| range(2 * at, 1)).collect();
        let text = named(many.into_iter());
        assert!(text.starts_with("100 blocks (0, 2, ") && text.ends_with(", ...)"), "{text}");
    }

    #[test]
    fn a_bandwidth_is_kept_by_pauses() {
        assert_eq!(time_for(16 << 20, Size::mib(16)), Duration::from_secs(1));
    }
}
