//! Which blocks of a snapshot are written, or have changed since another: for backup tools.

use std::pin::Pin;
use std::sync::Arc;

use api::node::Range;
use api::rest::{Control, RangeQuery};
use futures::{Stream, StreamExt as _, stream};
use model::{Size, SnapshotId};
use tonic::{Request, Response, Status};

use crate::proto::snapshot_metadata_server::SnapshotMetadata as Service;
use crate::proto::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse,
};
use crate::status::{missing, not_found, status};

/// The snapshot metadata service.
#[derive(Debug)]
pub struct SnapshotMetadata<C> {
    control: Arc<C>,
}

/// Tuples in a message unless fewer are asked for.
const USUAL_RESULTS: u32 = 256;

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One message of either stream.
struct Part {
    capacity: i64,
    blocks: Vec<BlockMetadata>,
}

/// What is asked, and how far the answer is.
struct Cursor<C> {
    control: Arc<C>,
    snapshot: SnapshotId,
    since: Option<SnapshotId>,
    capacity: i64,
    from: i64,
    limit: u32,
    after: Option<String>,
    is_over: bool,
}

impl<C: Control> SnapshotMetadata<C> {
    /// Metadata of the snapshots of this control plane.
    pub fn new(control: Arc<C>) -> SnapshotMetadata<C> {
        SnapshotMetadata { control }
    }

    async fn parts(
        &self,
        (snapshot, since): (SnapshotId, Option<SnapshotId>),
        from: i64,
        max_results: i32,
    ) -> Result<Messages<Part>, Status> {
        let size = self.size_of(snapshot).await?;
        if let Some(since) = since {
            self.size_of(since).await?;
        }
        let capacity = i64::try_from(size.bytes().0).unwrap_or(i64::MAX);
        if !(0..=capacity).contains(&from) {
            let message = format!("starting_offset {from} is not in 0..={capacity}");
            return Err(Status::out_of_range(message));
        }
        let limit = match u32::try_from(max_results) {
            Err(_) => return Err(Status::invalid_argument("max_results is negative")),
            Ok(0) => USUAL_RESULTS,
            Ok(some) => some.min(api::MOST_PER_PAGE),
        };
        let control = Arc::clone(&self.control);
        let cursor =
            Cursor { control, snapshot, since, capacity, from, limit, after: None, is_over: false };
        Ok(Box::pin(stream::try_unfold(cursor, Cursor::next)))
    }

    async fn size_of(&self, snapshot: SnapshotId) -> Result<Size, Status> {
        let found = self.control.snapshot(snapshot).await.map_err(status)?;
        let early = || Status::unavailable("the snapshot is still being taken; try again");
        found.status.map(|taken| taken.size).ok_or_else(early)
    }
}

impl<C: Control> Cursor<C> {
    /// The next message; those without a tuple are not sent.
    async fn next(mut self) -> Result<Option<(Part, Cursor<C>)>, Status> {
        while !self.is_over {
            let query =
                RangeQuery { since: self.since, limit: Some(self.limit), after: self.after.take() };
            let page = self.control.ranges(self.snapshot, query).await.map_err(status)?;
            (self.is_over, self.after) = (page.after.is_none(), page.after);
            let blocks: Vec<_> = page.items.iter().filter_map(|range| self.tuple(range)).collect();
            if !blocks.is_empty() {
                return Ok(Some((Part { capacity: self.capacity, blocks }, self)));
            }
        }
        Ok(None)
    }

    /// A tuple that ends after where the caller begins.
    fn tuple(&self, range: &Range) -> Option<BlockMetadata> {
        let byte_offset = i64::try_from(range.offset.bytes().0).ok()?;
        let size_bytes = i64::try_from(range.length.bytes().0).ok()?;
        let ends_later = byte_offset.saturating_add(size_bytes) > self.from;
        ends_later.then_some(BlockMetadata { byte_offset, size_bytes })
    }
}

fn read_id(field: &'static str, text: &str) -> Result<SnapshotId, Status> {
    match text {
        "" => Err(missing(field)),
        text => text.parse().map_err(|_| not_found("snapshot", text)),
    }
}

#[tonic::async_trait]
impl<C: Control> Service for SnapshotMetadata<C> {
    type GetMetadataAllocatedStream = Messages<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Messages<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let request = request.into_inner();
        let snapshot = read_id("snapshot_id", &request.snapshot_id)?;
        let asked = (snapshot, None);
        let parts = self.parts(asked, request.starting_offset, request.max_results).await?;
        Ok(Response::new(Box::pin(parts.map(|part| {
            part.map(|part| GetMetadataAllocatedResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes: part.capacity,
                block_metadata: part.blocks,
            })
        }))))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let request = request.into_inner();
        let base = read_id("base_snapshot_id", &request.base_snapshot_id)?;
        let target = read_id("target_snapshot_id", &request.target_snapshot_id)?;
        let asked = (target, Some(base));
        let parts = self.parts(asked, request.starting_offset, request.max_results).await?;
        Ok(Response::new(Box::pin(parts.map(|part| {
            part.map(|part| GetMetadataDeltaResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes: part.capacity,
                block_metadata: part.blocks,
            })
        }))))
    }
}
