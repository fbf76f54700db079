//! Checks of a part of a volume by its target.

use api::node::{ApiResult, BlockRange, CheckReport, CheckRequest, DifferingBlocks};
use block::{Blocks, Lba, Span};
use mirror::UnreadableBlocks;
use model::{Problem, ProblemKind, TargetId};

use super::engine::Engine;
use super::problems;
use super::targets::TargetAvailability;
use crate::volumes::{VolumeRequest, VolumeResponse};

impl Engine {
    /// Reads blocks on all children in sync, compares, and rewrites what is damaged.
    pub(super) async fn check_blocks(
        &self,
        target: TargetId,
        request: CheckRequest,
    ) -> ApiResult<CheckReport> {
        let open = self
            .state()
            .targets
            .get(&target)
            .filter(|here| here.availability == TargetAvailability::Open)
            .map(|here| here.volume);
        let volume = open.ok_or_else(|| {
            Problem::new(
                ProblemKind::NotFound,
                format!("there is no open target {target} on this node"),
            )
        })?;
        let CheckRequest { first_block, blocks, believe, accept_loss, keep } = request;
        let unreadable = match (accept_loss, keep) {
            (false, None) => UnreadableBlocks::Tell,
            (true, None) => UnreadableBlocks::Zero,
            (false, Some(replica)) => UnreadableBlocks::Keep(replica),
            (true, Some(_)) => {
                let detail = "blocks are either given up (acceptLoss) or kept (keep)";
                return Err(problems::in_field("keep", ProblemKind::InvalidArgument, detail));
            }
        };
        let span = Span::new(Lba(first_block), Blocks(blocks)).ok_or_else(|| {
            problems::in_field("blocks", ProblemKind::OutOfRange, "check 1 to 4096 blocks at once")
        })?;
        let order = mirror::MirrorRequest::Check { span, believed: believe, unreadable };
        let answer = self.ask_volume(volume, VolumeRequest::Mirror(order)).await?;
        let VolumeResponse::Checked(found) = answer else { return Err(problems::stopping()) };
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
