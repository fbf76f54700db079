//! Trying out a change, which takes two plans: beside everything else, and one at a time.

use std::sync::Arc;

use api::rest::{ApiResult, DryRun, DryRunRequest};
use model::{Problem, ProblemKind};

use super::Rest;

impl Rest {
    /// On a thread of its own. While it reads the controller does not write, so others wait until
    /// it is their turn, and one whose caller has gone holds its turn to its end.
    pub(super) async fn try_out(&self, request: DryRunRequest) -> ApiResult<DryRun> {
        let failed = |error: &dyn std::fmt::Display| {
            let detail = format!("the change could not be tried out: {error}");
            Problem::new(ProblemKind::Internal, detail)
        };
        let turn = Arc::clone(&self.0.trying).acquire_owned().await;
        let turn = turn.map_err(|error| failed(&error))?;
        let shared = Arc::clone(&self.0);
        let trying = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            shared.read(|controller| controller.try_out(request))
        });
        trying.await.map_err(|error| failed(&error))?
    }
}
