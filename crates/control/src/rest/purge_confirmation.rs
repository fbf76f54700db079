//! Whether an operator agreed to what would be lost.

use api::rest::{ApiResult, Purge, PurgeConfirmation};
use model::{Problem, ProblemKind};

/// Whether the caller knows all that would be lost.
pub(super) fn covered(
    preview: ApiResult<Purge>,
    consent: &PurgeConfirmation,
) -> Result<(), Problem> {
    let preview = match preview {
        Ok(preview) => preview,
        // What is not there is gone.
        Err(problem) if problem.kind == ProblemKind::NotFound => return Ok(()),
        Err(problem) => return Err(problem),
    };
    if preview.is_covered(consent) {
        return Ok(());
    }
    let detail = format!(
        "{} volumes and {} snapshots would be lost; read the preview and name them",
        preview.lost_volumes.len(),
        preview.lost_snapshots.len()
    );
    Err(Problem::new(ProblemKind::LastReplica, detail))
}
