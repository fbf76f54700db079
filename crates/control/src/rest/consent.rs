//! Whether an operator agreed to what would be lost.

use api::rest::{Answered, Consent, Purge};
use model::{Kind, Problem};

/// Whether the caller knows all that would be lost.
pub(super) fn covered(preview: Answered<Purge>, consent: &Consent) -> Result<(), Problem> {
    let preview = match preview {
        Ok(preview) => preview,
        // What is not there is gone.
        Err(problem) if problem.kind == Kind::NotFound => return Ok(()),
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
    Err(Problem::new(Kind::LastReplica, detail))
}
