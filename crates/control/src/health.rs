//! `GET /v1/health` and `/v1/ready`: whether this control plane can do its work, and whether it is
//! the one that does.

use std::time::Duration;

use api::rest::{Health, Leader};
use model::{Problem, ProblemKind};
use store::contract::{Keys, Query, Store};

/// Longer than this, and a caller that asks for health has gone away.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads the store, as every other answer has to.
pub(crate) async fn health(store: &dyn Store, leader: Leader) -> Result<Health, Problem> {
    let nothing = Query::keys(Keys::one("health")).limit(1);
    let unavailable = |detail: String| Problem::new(ProblemKind::StoreUnavailable, detail);
    match tokio::time::timeout(PATIENCE, store.range(nothing)).await {
        Ok(Ok(page)) => Ok(Health {
            status: "ok".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            store_revision: page.revision.0,
            leader,
        }),
        Ok(Err(error)) => Err(unavailable(format!("the store cannot be read: {error}"))),
        Err(_) => Err(unavailable(format!("the store did not answer within {PATIENCE:?}"))),
    }
}
