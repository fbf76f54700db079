//! Checks of a part of a volume by its target.

use api::node::{Answered, BlockRange, CheckReport, CheckRequest, DifferingBlocks};
use block::{Blocks, Lba, Span};
use model::{Kind, Problem, TargetId};

use super::engine::Engine;
use super::problems;
use super::targets::Door;
use crate::volumes::{Answer, Order as VolumeOrder};

impl Engine {
    /// Reads blocks on all children in sync, compares, and rewrites what is damaged.
    pub(super) async fn check_blocks(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> Answered<CheckReport> {
        let open = self
            .state()
            .targets
            .get(&target)
            .filter(|here| here.door == Door::Open)
            .map(|here| here.volume);
        let volume = open.ok_or_else(|| {
            Problem::new(Kind::NotFound, format!("there is no open target {target} on this node"))
        })?;
        let CheckRequest { first_block, blocks, believe, accept_loss } = request;
        let span = Span::new(Lba(first_block), Blocks(blocks)).ok_or_else(|| {
            problems::in_field("blocks", Kind::OutOfRange, "check 1 to 4096 blocks at once")
        })?;
        let order = mirror::Order::Check { span, believed: believe, accept_loss };
        let answer = self.ask_volume(volume, VolumeOrder::Mirror(order)).await?;
        let Answer::Checked(found) = answer else { return Err(problems::stopping()) };
        let range = |span: Span| BlockRange { first_block: span.start().0, blocks: span.len().0 };
        let differing = found.differing.into_iter();
        Ok(CheckReport {
            bad_blocks: found.bad,
            repaired_blocks: found.repaired,
            unreadable: found.unreadable.into_iter().map(range).collect(),
            differing: differing
                .map(|(span, replicas)| DifferingBlocks { range: range(span), replicas })
                .collect(),
        })
    }
}
